//! Gradient accumulation, on the `joint` program: rolls the dimension of micro-batches into a loop.
//!
//! ```text
//! before:  %x: f32[M, B, D] …           after:  %g = scan[M](%zeros; %tokens) {(%sum, %slice)
//!          %g: f32[D, F] = dot %x, %y             %x: f32[B, D] …
//!                                                  %part: f32[D, F] = dot %x, %y
//!                                                  yield add %sum, %part }
//! ```
//!
//! What depends on a micro-batch moves into the loop, its types without the dimension; what is summed over
//! micro-batches becomes a carry of the loop, or the initial stack of an accumulating output of a layer loop, so
//! that the gradients of a stack of layers are added where they lie. What the loop needs of all micro-batches
//! beforehand, such as the number of valid labels, a small loop in front computes; if that takes the
//! parameters, the loss is not a sum over micro-batches and the program is refused.

mod classify;
mod roll;

use crate::error::PassError;
use crate::interface::seal;
use crate::regions::{copy, substitute};
use crate::simplify::remove_dead;
use crate::uses::for_each_use;
use classify::{Class, Facts, class_at, classify, is_rolled, level_of, not_a_sum};
use dtlc_ir::{Builder, Dim, Inst, Op, Phase, Program, StateKind, Value};
use roll::Roll;
use rustc_hash::{FxHashMap, FxHashSet};

/// Rolls `micro` up, so that no value has it but inputs and outputs.
///
/// # Errors
/// The loss is not a sum over micro-batches.
pub fn accumulate(program: &mut Program, micro: Dim) -> Result<(), PassError> {
    let facts = separated(program, micro)?;
    let insts = std::mem::take(&mut program.main.insts);
    let plan = Plan::new(program, &facts, &insts)?;
    let wanted = plan.wanted(program, &facts, &insts);
    let (rolled, fixed): (Vec<Inst>, Vec<Inst>) = insts.into_iter().partition(|inst| is_rolled(&facts, inst));
    let is_early = |inst: &Inst| inst.results.iter().any(|result| plan.early.contains(result));
    let (early, late): (Vec<Inst>, Vec<Inst>) = fixed.into_iter().partition(is_early);

    let mut builder = Builder::new(program, Phase::Forward);
    let mut roll = Roll::new(micro, &facts);
    for level in 0..=plan.last {
        for inst in early.iter().filter(|inst| level_of(&facts, inst) == level) {
            let mut inst = inst.clone();
            roll.redirect(&mut inst);
            builder.region.insts.push(inst);
        }
        let sums = if level < plan.last { plan.sums(&facts, level) } else { Vec::new() };
        roll.early(&mut builder, slice(&rolled, &sums), &sums)?;
    }
    roll.main(&mut builder, rolled, &wanted)?;
    for mut inst in late {
        roll.redirect(&mut inst);
        builder.region.insts.push(inst);
    }
    program.main.insts = builder.region.insts;
    let Roll { complete, keeps, .. } = roll;
    roll::redirect_outputs(program, &complete);
    roll::strip(program, micro, &keeps);
    seal(program);
    Ok(())
}

/// Classifies the program after taking out of each scan that has to be rolled what is the same for all
/// micro-batches, as a scan of its own.
fn separated(program: &mut Program, micro: Dim) -> Result<Facts, PassError> {
    loop {
        let facts = classify(program, micro)?;
        let mut read: FxHashSet<Value> = program.main.yields.iter().copied().collect();
        for inst in &program.main.insts {
            for_each_use(inst, &mut |value| {
                read.insert(value);
            });
        }
        let fixed = |result: &&Value| class_at(&facts, **result, 0) == Class::Fixed && read.contains(*result);
        let mixed = |inst: &Inst| {
            matches!(inst.op, Op::Scan(_))
                && is_rolled(&facts, inst)
                && inst.results.iter().any(|result| fixed(&result))
        };
        let Some(at) = program.main.insts.iter().position(mixed) else { return Ok(facts) };
        let original = program.main.insts[at].clone();
        let (mut twin, mut copies) = (original.clone(), FxHashMap::default());
        copy(program, &mut twin, &mut copies);
        let moved = original.results.iter().filter(|result| fixed(result));
        let moved: FxHashMap<Value, Value> = moved.map(|result| (*result, copies[result])).collect();
        program.main.insts.insert(at, twin);
        substitute(&mut program.main, &moved);
        roll::redirect_outputs(program, &moved);
        seal(program);
        remove_dead(program);
    }
}

/// What is computed before the main loop, and what by it.
struct Plan {
    /// The level of the main loop.
    last: usize,
    /// Values that must be complete before it: fixed ones, and partial ones, which earlier loops sum.
    early: FxHashSet<Value>,
    /// The partial ones among them, in program order.
    early_sums: Vec<Value>,
}

impl Plan {
    fn new(program: &Program, facts: &Facts, insts: &[Inst]) -> Result<Plan, PassError> {
        let rolled = || insts.iter().filter(|inst| is_rolled(facts, inst));
        let last = rolled().map(|inst| level_of(facts, inst)).max().unwrap_or(0);
        let mut early: FxHashSet<Value> = FxHashSet::default();
        let mut queue: Vec<&Inst> = rolled().collect();
        while let Some(inst) = queue.pop() {
            let level = if is_rolled(facts, inst) { level_of(facts, inst) } else { usize::MAX };
            for_each_use(inst, &mut |value| {
                if class_at(facts, value, level) == Class::Fixed && early.insert(value) {
                    queue.extend(insts.iter().find(|inst| inst.results.contains(&value)));
                }
            });
        }
        let partial = |value: &Value| early.contains(value) && class_at(facts, *value, 0) != Class::Fixed;
        let results = insts.iter().flat_map(|inst| inst.results.iter().copied());
        let early_sums: Vec<Value> = results.filter(partial).collect();
        let trained = depend_on_parameters(program, insts);
        match early_sums.iter().find(|value| trained.contains(value)) {
            Some(&value) => Err(not_a_sum(program, value)),
            None => Ok(Plan { last, early, early_sums }),
        }
    }

    fn sums(&self, facts: &Facts, level: usize) -> Vec<Value> {
        let of_level = |value: &Value| facts[*value].is_some_and(|fact| fact.level == level);
        self.early_sums.iter().copied().filter(of_level).collect()
    }

    /// What the main loop has to hand out: what something after it reads and no loop before it sums.
    fn wanted(&self, program: &Program, facts: &Facts, insts: &[Inst]) -> Vec<Value> {
        let mut read: FxHashSet<Value> = program.main.yields.iter().copied().collect();
        for inst in insts.iter().filter(|inst| !is_rolled(facts, inst)) {
            for_each_use(inst, &mut |value| {
                read.insert(value);
            });
        }
        let rolled = insts.iter().filter(|inst| is_rolled(facts, inst));
        let results = rolled.flat_map(|inst| inst.results.iter().copied());
        results.filter(|value| read.contains(value) && !self.early_sums.contains(value)).collect()
    }
}

/// The instructions of a loop that `sums` take, in order.
fn slice(rolled: &[Inst], sums: &[Value]) -> Vec<Inst> {
    let mut needed: FxHashSet<Value> = sums.iter().copied().collect();
    let mut found = Vec::new();
    for inst in rolled.iter().rev() {
        if inst.results.iter().any(|result| needed.contains(result)) {
            for_each_use(inst, &mut |value| {
                needed.insert(value);
            });
            found.push(inst.clone());
        }
    }
    found.reverse();
    found
}

/// Values that change when a parameter does.
fn depend_on_parameters(program: &Program, insts: &[Inst]) -> FxHashSet<Value> {
    let parameters = program.states.iter().filter(|state| matches!(state.kind, StateKind::Parameter(_)));
    let mut found: FxHashSet<Value> = parameters.map(|state| state.value).collect();
    for inst in insts {
        let mut depends = false;
        for_each_use(inst, &mut |value| depends |= found.contains(&value));
        if depends {
            found.extend(&inst.results);
        }
    }
    found
}
