//! Rematerialisation, on a `sharded` program with planned collectives: decides for each layer stack what the
//! forward scan keeps for the backward scan, and lets the backward scan compute the rest again.
//!
//! ```text
//! before:  forward scan yields stacks (%x, %h, %s)    after:  forward scan yields stacks (%x, %h)
//!          backward scan reads    (%x, %h, %s)                backward scan: %s' = sigmoid %h recompute
//! ```
//!
//! It acts on values and after partitioning, so that the cost of collectives that would be repeated is
//! known. Without a rule a layer keeps what is costly to compute; `full` keeps a layer's input only;
//! `save a, b` its input and these values. A parameter is never kept: the backward scan reads (and
//! gathers) it anew. Nothing outside of scans is touched.

use crate::partition::select::resolve;
use crate::regions::{add_stack_input, add_stack_output, copy, shared_slices, substitute};
use crate::report::layer_of;
use crate::simplify::remove_dead;
use crate::uses::for_each_use;
use dtlc_ir::{
    Axis, CollectiveKind, Inst, Op, Phase, Program, ReduceOp, Region, Role, ScalarOp, Scan, Value,
};
use dtlc_lang::plan::{Policy, Remat};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// What is decided for a pair of scans.
#[derive(Clone, Copy)]
enum Choice<'a> {
    /// What a plan's rules say.
    Rules(&'a [Remat]),
    /// All is kept, but for weights in the type that is computed with.
    AllButConverted,
}

/// Applies a plan's rules to every pair of a forward scan and the backward scan that reads what it keeps.
pub fn rematerialise(program: &mut Program, rules: &[Remat]) {
    rematerialise_by(program, Choice::Rules(rules));
}

/// Lets backward scans convert weights themselves. Before placement, so that both passes gather, if they have to, from what is
/// stored: a kept weight would be a whole one of each layer.
pub fn convert_weights_again(program: &mut Program) {
    rematerialise_by(program, Choice::AllButConverted);
}

fn rematerialise_by(program: &mut Program, choice: Choice<'_>) {
    let mut main = std::mem::take(&mut program.main);
    let has_changed = in_region(program, choice, &mut main);
    program.main = main;
    if has_changed {
        remove_dead(program);
    }
}

/// Whether anything has changed.
fn in_region(program: &mut Program, choice: Choice<'_>, region: &mut Region) -> bool {
    let mut has_changed = false;
    for index in 0..region.insts.len() {
        if let Op::Scan(scan) = &mut region.insts[index].op {
            has_changed |= in_region(program, choice, &mut scan.body);
        }
    }
    for forward in 0..region.insts.len() {
        for backward in forward + 1..region.insts.len() {
            has_changed |= in_pair(program, choice, region, forward, backward);
        }
    }
    has_changed
}

/// Whether a value of a scan's body is a weight in another type than it is stored in.
fn is_converted_weight(
    program: &Program,
    scan: &Scan,
    definition: &FxHashMap<Value, usize>,
    value: Value,
) -> bool {
    let Some(&index) = definition.get(&value) else { return false };
    let inst = &scan.body.insts[index];
    let is_stored = |arg: &Value| scan.body.params[scan.carries..].contains(arg);
    movement(program, inst) == Some(Movement::Conversion) && is_stored(&inst.args[0])
}

/// Something that the forward scan keeps for the backward scan.
struct Residual {
    /// The value in the forward scan's body.
    made: Value,
    /// Its slice in the backward scan's body.
    read: Value,
}

fn in_pair(
    program: &mut Program,
    choice: Choice<'_>,
    region: &mut Region,
    forward: usize,
    backward: usize,
) -> bool {
    let Some(residuals) = residuals(region, forward, backward) else { return false };
    let Op::Scan(from) = region.insts[forward].op.clone() else { return false };
    let moved = moved_anew(program, &region.insts[forward], &region.insts[backward]);
    let definition = definitions(&from.body);
    let kept = match choice {
        Choice::Rules(rules) => kept(program, rules, &from, &definition, &residuals, &moved),
        Choice::AllButConverted => {
            let made = residuals.iter().map(|residual| residual.made);
            made.filter(|&made| !is_converted_weight(program, &from, &definition, made)).collect()
        }
    };
    let dropped: Vec<&Residual> =
        residuals.iter().filter(|residual| !kept.contains(&residual.made)).collect();
    if dropped.is_empty() {
        return false;
    }
    let known = residuals.iter().filter(|residual| kept.contains(&residual.made));
    let mut copies: FxHashMap<Value, Value> = known.map(|residual| (residual.made, residual.read)).collect();
    copies.extend(shared_slices(&region.insts[forward], &region.insts[backward]));
    let gathers = gathers_of_parts(program, &from, &definition, &region.insts[backward], &residuals);
    let mut replay = Replay {
        program,
        forward: &from,
        definition,
        gathers,
        copies,
        insts: Vec::new(),
        missing: Vec::new(),
    };
    let replacements: FxHashMap<Value, Value> =
        dropped.iter().map(|residual| (residual.read, replay.copy(residual.made))).collect();
    let Replay { insts, missing, .. } = replay;
    supply(program, region, forward, backward, &missing);
    if let Op::Scan(scan) = &mut region.insts[backward].op {
        substitute(&mut scan.body, &replacements);
        scan.body.insts.splice(0..0, insts);
        share_movement(program, &mut scan.body);
    }
    true
}

/// What the one scan keeps for the other; none if they are no such pair.
fn residuals(region: &Region, forward: usize, backward: usize) -> Option<Vec<Residual>> {
    let (first, second) = (&region.insts[forward], &region.insts[backward]);
    let (Op::Scan(from), Op::Scan(to)) = (&first.op, &second.op) else { return None };
    if from.dim != to.dim || from.reverse == to.reverse || first.phase != Phase::Forward {
        return None;
    }
    let mut found = Vec::new();
    for stack in 0..to.stacks {
        let arg = second.args[to.carries + stack];
        let Some(result) = first.results[from.carries..].iter().position(|&result| result == arg) else {
            continue;
        };
        let read = to.body.params[to.carries + stack];
        found.push(Residual { made: from.body.yields[from.carries + result], read });
    }
    (!found.is_empty()).then_some(found)
}

/// What the forward body gathers of parameters, where the backward body gathers the same anyway.
fn moved_anew(program: &Program, forward: &Inst, backward: &Inst) -> FxHashSet<Value> {
    let mut twins: FxHashMap<Value, Value> = shared_slices(forward, backward).into_iter().collect();
    let (Op::Scan(from), Op::Scan(to)) = (&forward.op, &backward.op) else { return FxHashSet::default() };
    let mut moved = FxHashSet::default();
    for inst in from.body.insts.iter().filter(|inst| movement(program, inst).is_some()) {
        let Some(&arg) = twins.get(&inst.args[0]) else { continue };
        let same = |other: &&Inst| {
            movement(program, other) == movement(program, inst)
                && other.args[..] == [arg]
                && program.ty(other.results[0]) == program.ty(inst.results[0])
        };
        if let Some(twin) = to.body.insts.iter().find(same) {
            twins.insert(inst.results[0], twin.results[0]);
            moved.insert(inst.results[0]);
        }
    }
    moved
}

/// The gathered parameter that a value is a part of, as a plan's `store backward` keeps it.
fn gathered(
    program: &Program,
    forward: &Scan,
    definition: &FxHashMap<Value, usize>,
    part: Value,
) -> Option<Value> {
    let inst = &forward.body.insts[*definition.get(&part)?];
    (program.values[part].role == Role::Parameter && inst.op == Op::LocalSlice).then(|| inst.args[0])
}

/// How the backward body gathers what the forward body gathered, from the part that is kept.
fn gathers_of_parts(
    program: &Program,
    forward: &Scan,
    definition: &FxHashMap<Value, usize>,
    backward: &Inst,
    residuals: &[Residual],
) -> FxHashMap<Value, Inst> {
    let Op::Scan(to) = &backward.op else { return FxHashMap::default() };
    let gather = |residual: &Residual| {
        let whole = gathered(program, forward, definition, residual.made)?;
        let from_part = |inst: &&Inst| {
            movement(program, inst).is_some()
                && inst.args[0] == residual.read
                && program.ty(inst.results[0]) == program.ty(whole)
        };
        Some((whole, to.body.insts.iter().find(from_part)?.clone()))
    };
    residuals.iter().filter_map(gather).collect()
}

/// What an instruction that moves one value, or converts a weight on its way, does with it.
#[derive(PartialEq, Eq)]
enum Movement<'a> {
    Collective(CollectiveKind, &'a [Axis], ReduceOp),
    Slice,
    Conversion,
}

fn movement<'a>(program: &Program, inst: &'a Inst) -> Option<Movement<'a>> {
    match &inst.op {
        _ if inst.args.len() != 1 => None,
        Op::Collective(call) => Some(Movement::Collective(call.kind, &call.axes, call.reduce)),
        Op::LocalSlice => Some(Movement::Slice),
        Op::Map(ScalarOp::Cast) => {
            (program.values[inst.args[0]].role == Role::Parameter).then_some(Movement::Conversion)
        }
        _ => None,
    }
}

fn definitions(body: &Region) -> FxHashMap<Value, usize> {
    let of = |(index, inst): (usize, &Inst)| {
        inst.results.iter().map(move |&result| (result, index)).collect::<Vec<_>>()
    };
    body.insts.iter().enumerate().flat_map(of).collect()
}

/// The values of the forward body that stay kept.
fn kept(
    program: &Program,
    rules: &[Remat],
    forward: &Scan,
    definition: &FxHashMap<Value, usize>,
    residuals: &[Residual],
    moved: &FxHashSet<Value>,
) -> FxHashSet<Value> {
    let layer = layer_of(program, &forward.body);
    let is_meant = |rule: &&Remat| match (rule.layer.segments.as_slice(), layer) {
        ([name], Some(scope)) => {
            program.scopes[scope].layer == *name || program.scopes[scope].instance == *name
        }
        _ => false,
    };
    let carries: FxHashSet<Value> = forward.body.params[..forward.carries].iter().copied().collect();
    // Parts of gathered parameters are there to be kept, whatever becomes of the rest.
    let is_part = |made: &Value| gathered(program, forward, definition, *made).is_some();
    let mut kept: FxHashSet<Value> = residuals.iter().map(|residual| residual.made).filter(is_part).collect();
    let mut known = moved.clone();
    known.extend(&kept);
    match rules.iter().rev().find(is_meant).map(|rule| &rule.policy) {
        None | Some(Policy::None) => {
            let mut sorted: Vec<Value> = residuals.iter().map(|residual| residual.made).collect();
            sorted.sort_by_key(|value| definition.get(value).copied());
            for value in sorted.into_iter().filter(|value| !is_part(value)) {
                let slice = forward.body.params[forward.carries..].contains(&value);
                if !slice && !follows(forward, definition, &known, value) {
                    kept.insert(value);
                    known.insert(value);
                }
            }
        }
        Some(Policy::Full) => {
            kept.extend(residuals.iter().map(|residual| residual.made).filter(|made| carries.contains(made)))
        }
        Some(Policy::Save(paths)) => {
            let named: FxHashSet<Value> =
                paths.iter().flat_map(|path| resolve(program, &path.segments)).collect();
            for residual in residuals {
                if carries.contains(&residual.made) || is_named(forward, definition, &named, residual.made) {
                    kept.insert(residual.made);
                }
            }
        }
    }
    kept
}

/// Whether a value is cheap to compute from known values, slices of stacks, and what lies outside.
fn follows(
    forward: &Scan,
    definition: &FxHashMap<Value, usize>,
    known: &FxHashSet<Value>,
    value: Value,
) -> bool {
    if known.contains(&value) {
        return true;
    }
    match definition.get(&value) {
        None => !forward.body.params[..forward.carries].contains(&value),
        Some(&index) => {
            let inst = &forward.body.insts[index];
            is_light(&inst.op) && inst.args.iter().all(|&arg| follows(forward, definition, known, arg))
        }
    }
}

/// Elementwise work and movement within a rank.
fn is_light(op: &Op) -> bool {
    match op {
        Op::Constant(_) | Op::Iota { .. } | Op::Map(_) | Op::Rename { .. } | Op::Split { .. } => true,
        Op::Merge { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. } | Op::Random { .. } => true,
        Op::StopGradient | Op::LocalSlice => true,
        Op::Reduce { .. } | Op::Dot(_) | Op::Take { .. } | Op::ScatterAdd { .. } | Op::Attention(_) => false,
        Op::AttentionGradient(_)
        | Op::Scan(_)
        | Op::Reshard(_)
        | Op::Collective(_)
        | Op::Done
        | Op::Fused(_) => false,
    }
}

/// Whether a value, or what was moved or converted to make it, is one of the named ones.
fn is_named(
    forward: &Scan,
    definition: &FxHashMap<Value, usize>,
    named: &FxHashSet<Value>,
    value: Value,
) -> bool {
    if named.contains(&value) {
        return true;
    }
    let Some(&index) = definition.get(&value) else { return false };
    let inst = &forward.body.insts[index];
    let moves = matches!(inst.op, Op::Collective(_) | Op::LocalSlice | Op::Reshard(_));
    let number = inst.results.iter().position(|&result| result == value).unwrap_or(0);
    moves && is_named(forward, definition, named, inst.args[number])
}

/// Copies forward work into the backward body.
struct Replay<'a> {
    program: &'a mut Program,
    forward: &'a Scan,
    definition: FxHashMap<Value, usize>,
    /// How what the forward body gathers is gathered here.
    gathers: FxHashMap<Value, Inst>,
    /// What stands for values of the forward body.
    copies: FxHashMap<Value, Value>,
    insts: Vec<Inst>,
    /// Parameters of the forward body that the backward body needs too, with what stands for them.
    missing: Vec<(Value, Value)>,
}

impl Replay<'_> {
    fn copy(&mut self, value: Value) -> Value {
        if let Some(&copy) = self.copies.get(&value) {
            return copy;
        }
        if self.forward.body.params.contains(&value) {
            let copy = self.twin(value);
            self.missing.push((value, copy));
            return copy;
        }
        if let Some(mut gather) = self.gathers.get(&value).cloned() {
            let copy = self.twin(value);
            gather.results = SmallVec::from_slice(&[copy]);
            self.insts.push(gather);
            return copy;
        }
        let Some(&index) = self.definition.get(&value) else { return value };
        let mut inst = self.forward.body.insts[index].clone();
        let mut used = Vec::new();
        for_each_use(&inst, &mut |value| used.push(value));
        for value in used {
            self.copy(value);
        }
        copy(self.program, &mut inst, &mut self.copies);
        mark_recomputed(self.program, &mut inst);
        self.insts.push(inst);
        self.copies[&value]
    }

    fn twin(&mut self, value: Value) -> Value {
        let info = self.program.values[value].clone();
        let copy = self.program.values.push(info);
        self.copies.insert(value, copy);
        copy
    }
}

/// Puts an instruction, and all inside it, into the phase of repeated work. Weights are gathered for the way back, not
/// again: they are never kept, whether anything is recomputed or not.
fn mark_recomputed(program: &Program, inst: &mut Inst) {
    let moves =
        matches!(inst.op, Op::Collective(_) | Op::LocalSlice | Op::Reshard(_) | Op::Map(ScalarOp::Cast));
    let of_weights = moves && inst.args.iter().all(|&arg| program.values[arg].role == Role::Parameter);
    inst.phase = if of_weights { Phase::Backward } else { Phase::Recompute };
    if let Some(inside) = inst.op.region_mut() {
        inside.insts.iter_mut().for_each(|inst| mark_recomputed(program, inst));
    }
}

/// Gives the backward scan what it needs of the forward body's parameters: stacks as arguments, carries as
/// further outputs of the forward scan.
fn supply(
    program: &mut Program,
    region: &mut Region,
    forward: usize,
    backward: usize,
    missing: &[(Value, Value)],
) {
    for &(param, copy) in missing {
        let stack = match &mut region.insts[forward] {
            Inst { op: Op::Scan(scan), args, results, .. } => {
                let position = scan.body.params.iter().position(|&other| other == param).unwrap_or(0);
                if position >= scan.carries {
                    args[position]
                } else {
                    add_stack_output(program, scan, results, param)
                }
            }
            _ => continue,
        };
        let inst = &mut region.insts[backward];
        if let Op::Scan(scan) = &mut inst.op {
            add_stack_input(scan, &mut inst.args, stack, copy);
        }
    }
}

/// Lets equal movements of the same value be one: what is computed again may gather a parameter that the
/// backward body gathers anyway, and then that is what it is for.
fn share_movement(program: &Program, body: &mut Region) {
    let mut replaced: FxHashMap<Value, Value> = FxHashMap::default();
    let mut insts: Vec<Inst> = Vec::new();
    for mut inst in std::mem::take(&mut body.insts) {
        inst.args.iter_mut().for_each(|arg| *arg = replaced.get(arg).copied().unwrap_or(*arg));
        let same = |other: &Inst| {
            movement(program, other) == movement(program, &inst)
                && other.args == inst.args
                && program.ty(other.results[0]) == program.ty(inst.results[0])
        };
        let twin = if movement(program, &inst).is_some() { insts.iter().position(same) } else { None };
        match twin {
            Some(at) => {
                replaced.insert(inst.results[0], insts[at].results[0]);
                if insts[at].phase == Phase::Recompute {
                    insts[at].phase = inst.phase;
                }
            }
            None => insts.push(inst),
        }
    }
    body.insts = insts;
    substitute(body, &replaced);
}
