//! Makes a `logical` or `joint` program smaller without changing what it computes: the cleaning between
//! the passes that build it.
//!
//! One walk in order of evaluation applies the local rules (`rules`), shares equal instructions of a region
//! and takes what does not change out of scans (`hoist`); then what nothing needs goes (`dead`). Both repeat
//! until nothing changes. Constants, coordinates and broadcasts stay where they are used: to compute them
//! again is cheaper than to read them.

mod dead;
mod hoist;
mod rules;

pub(crate) use dead::remove as remove_dead;

use crate::cheap::is_cheap;
use crate::interface::seal;
use crate::regions::substitute;
use dtlc_ir::{Builder, Inst, Op, Phase, Program, Region, Role, Value};
use rustc_hash::FxHashMap;

/// Whether gradients have been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradients {
    /// Not yet: what stops them stays.
    ToCome,
    /// They have been, or never will be.
    Taken,
}

/// More rounds than any program needs; each makes it smaller.
const ROUNDS: usize = 16;

/// Simplifies a program.
pub fn simplify(program: &mut Program, gradients: Gradients) {
    for _ in 0..ROUNDS {
        let changed = rewrite(program, gradients);
        dead::remove(program);
        if !changed {
            break;
        }
    }
}

/// One walk over the program; whether it changed anything.
fn rewrite(program: &mut Program, gradients: Gradients) -> bool {
    let main = std::mem::take(&mut program.main);
    let builder = Builder::new(program, Phase::Forward);
    let mut rewriter = Rewriter {
        builder,
        gradients,
        replaced: FxHashMap::default(),
        definitions: FxHashMap::default(),
        changed: false,
    };
    let main = rewriter.region(main);
    let Rewriter { replaced, changed, .. } = rewriter;
    program.main = main;
    redirect(program, &replaced);
    changed
}

/// Lets the program's lists follow what was replaced.
pub(crate) fn redirect(program: &mut Program, replaced: &FxHashMap<Value, Value>) {
    let follow = |value: &mut Value| *value = last(replaced, *value);
    program.bindings.iter_mut().for_each(|binding| follow(&mut binding.value));
    program.outputs.iter_mut().for_each(|output| follow(&mut output.value));
    program.states.iter_mut().filter_map(|state| state.updated.as_mut()).for_each(follow);
    program.values.values_mut().filter_map(|info| info.gradient_of.as_mut()).for_each(follow);
    seal(program);
}

/// What stands for `value` after all replacements.
fn last(replaced: &FxHashMap<Value, Value>, mut value: Value) -> Value {
    while let Some(&next) = replaced.get(&value) {
        value = next;
    }
    value
}

/// The state of a walk.
struct Rewriter<'program> {
    /// Holds the region that is written.
    builder: Builder<'program>,
    gradients: Gradients,
    /// What stands for a value that is gone.
    replaced: FxHashMap<Value, Value>,
    /// The instruction that defines each value seen, in any region; but for scans.
    definitions: FxHashMap<Value, Inst>,
    changed: bool,
}

/// Instructions of one region by what they compute.
type Known = FxHashMap<(String, Vec<Value>), Vec<Value>>;

impl Rewriter<'_> {
    fn region(&mut self, region: Region) -> Region {
        let Region { params, insts, yields } = region;
        let outer = std::mem::replace(&mut self.builder.region, Region { params, ..Region::default() });
        let mut known = Known::default();
        for inst in insts {
            self.inst(inst, &mut known);
        }
        self.builder.region.yields = yields.iter().map(|&value| self.resolve(value)).collect();
        std::mem::replace(&mut self.builder.region, outer)
    }

    fn resolve(&self, value: Value) -> Value {
        last(&self.replaced, value)
    }

    fn inst(&mut self, mut inst: Inst, known: &mut Known) {
        for arg in &mut inst.args {
            *arg = self.resolve(*arg);
        }
        if let Op::Scan(_) = inst.op {
            return self.scan(inst, known);
        }
        let first = self.builder.program.values[inst.results[0]].clone();
        (self.builder.origin, self.builder.role, self.builder.phase) = (first.origin, first.role, inst.phase);
        self.changed |= rules::read_through_casts(&self.builder, &self.definitions, &mut inst);
        let before = self.builder.region.insts.len();
        if let Some(value) = rules::apply(self, &inst) {
            for made in &self.builder.region.insts[before..] {
                define(&mut self.definitions, made);
            }
            return self.replace(inst.results[0], value);
        }
        // Each use of a broadcast or a wider copy has its own, which a kernel never stores.
        let own = matches!(inst.op, Op::Map(_)) && is_cheap(self.builder.program, &inst);
        if own {
            define(&mut self.definitions, &inst);
            return self.builder.region.insts.push(inst);
        }
        let key = self.key(&inst);
        if let Some(values) = known.get(&key) {
            for (&result, &value) in inst.results.iter().zip(&values.clone()) {
                self.replace(result, value);
            }
            return;
        }
        known.insert(key, inst.results.to_vec());
        define(&mut self.definitions, &inst);
        self.builder.region.insts.push(inst);
    }

    /// Lets `value` stand for `gone`, and take over what is known of it.
    fn replace(&mut self, gone: Value, value: Value) {
        self.changed = true;
        self.replaced.insert(gone, value);
        let from = self.builder.program.values[gone].clone();
        let to = &mut self.builder.program.values[value];
        if to.name.is_none() {
            to.name = from.name;
        }
        // A forward value that a gradient happens to equal stays what it is.
        if self.definitions.get(&value).is_some_and(|inst| inst.phase != Phase::Forward) {
            to.gradient_of = to.gradient_of.or(from.gradient_of.filter(|&of| of != value));
            to.role = if to.role == Role::Activation { from.role } else { to.role };
        }
    }

    /// What an instruction computes, as text: operation, element types and dims, and roles.
    fn key(&self, inst: &Inst) -> (String, Vec<Value>) {
        let values = &self.builder.program.values;
        let results = inst.results.iter().map(|&result| (&values[result].ty, values[result].role));
        (format!("{:?} {:?}", inst.op, results.collect::<Vec<_>>()), inst.args.to_vec())
    }

    fn scan(&mut self, mut inst: Inst, known: &mut Known) {
        let Op::Scan(scan) = &mut inst.op else { return };
        let params = scan.body.params.clone();
        // A carry that an iteration hands on as it came is its initial value.
        for (index, &param) in params.iter().enumerate().take(scan.carries) {
            if scan.body.yields[index] == param {
                self.replace(param, inst.args[index]);
                self.replace(inst.results[index], inst.args[index]);
            }
        }
        // A stack that is sliced twice.
        for index in scan.carries..params.len() {
            let twin = (scan.carries..index).find(|&twin| inst.args[twin] == inst.args[index]);
            if let Some(twin) = twin {
                self.replace(params[index], params[twin]);
            }
        }
        let body = self.region(std::mem::take(&mut scan.body));
        let (hoisted, body) = hoist::hoist(self.builder.program, scan.dim, body);
        scan.body = body;
        if !hoisted.is_empty() {
            self.changed = true;
            hoisted.into_iter().for_each(|outside| self.inst(outside, known));
            substitute(&mut scan.body, &self.replaced);
        }
        self.changed |= hoist::sink(self.builder.program, &self.definitions, scan);
        self.share_outputs(&inst);
        self.builder.region.insts.push(inst);
    }

    /// Outputs that stack the same value, or the slices of a stack, are that.
    fn share_outputs(&mut self, inst: &Inst) {
        let Op::Scan(scan) = &inst.op else { return };
        let yields = &scan.body.yields;
        let stacks = scan.carries..yields.len();
        let is_stack = |index: usize| scan.outputs[index - scan.carries] == dtlc_ir::ScanOutput::Stack;
        let mut same = Vec::new();
        for index in stacks.clone().filter(|&index| is_stack(index)) {
            let slice = scan.body.params.iter().position(|&param| param == yields[index]);
            let whole = slice.filter(|&slice| slice >= scan.carries).map(|slice| inst.args[slice]);
            let twin = (scan.carries..index).find(|&twin| is_stack(twin) && yields[twin] == yields[index]);
            let value = whole.or(twin.map(|twin| inst.results[twin]));
            same.extend(value.map(|value| (inst.results[index], value)));
        }
        for (result, value) in same {
            let (from, to) = (self.builder.ty(result).clone(), self.builder.ty(value).clone());
            let unused = self.replaced.contains_key(&result);
            if from == to && !unused {
                self.replace(result, value);
            }
        }
    }
}

fn define(definitions: &mut FxHashMap<Value, Inst>, inst: &Inst) {
    for &result in &inst.results {
        definitions.insert(result, inst.clone());
    }
}
