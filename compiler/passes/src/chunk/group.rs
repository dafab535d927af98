//! What goes into the loops over chunks: everything as large as the product, and what lies between.
//!
//! Loops have levels, as those over micro-batches do: what a loop sums over its rows, and what a collective makes of
//! a loop's rows, is there when all of them are done, so whatever needs it belongs to a later loop or stands outside.

use crate::uses::for_each_use;
use dtlc_ir::{Dim, Inst, Op, Program, ReduceOp, Region, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// How a value depends on the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Made outside of the loops; all of it is there once this many loops are done.
    Outside(u32),
    /// Made row by row in the loop of this number.
    Rows(u32),
    /// Summed over the rows of the loop of this number.
    Sum(u32),
}

/// The loops of one product.
pub(super) struct Group {
    /// The dim whose rows are told apart.
    pub(super) dim: Dim,
    /// For each instruction of the region, the number of its loop.
    pub(super) loops: Vec<Option<u32>>,
    /// The values that are as large as the product.
    pub(super) large: FxHashSet<Value>,
    kinds: FxHashMap<Value, Kind>,
}

impl Group {
    /// The loops that compute `product` by rows of `dim`; none if something needs more than rows of it.
    pub(super) fn new(program: &Program, region: &Region, product: Value, dim: Dim) -> Option<Group> {
        let (members, large) = members(program, region, product, dim)?;
        let within = with_what_lies_between(program, region, members, dim);
        let mut group = Group { dim, loops: Vec::new(), large, kinds: FxHashMap::default() };
        for (inst, &within) in region.insts.iter().zip(&within) {
            group.enter(program, inst, within);
        }
        group.can_cross(program, region).then_some(group)
    }

    /// How a value depends on the rows.
    pub(super) fn kind(&self, value: Value) -> Kind {
        self.kinds.get(&value).copied().unwrap_or(Kind::Outside(0))
    }

    /// Gives an instruction its loop, if it is within one, and its results their kinds.
    fn enter(&mut self, program: &Program, inst: &Inst, within: bool) {
        let (mut inside, mut outside) = (0, 0);
        for_each_use(inst, &mut |value| {
            let (own, done) = match self.kind(value) {
                Kind::Outside(level) => (level, level),
                Kind::Rows(level) => (level, level + 1),
                Kind::Sum(level) => (level + 1, level + 1),
            };
            inside = inside.max(own);
            outside = outside.max(done);
        });
        for &result in &inst.results {
            let kind = match (within, program.ty(result).has(self.dim)) {
                (true, true) => Kind::Rows(inside),
                (true, false) => Kind::Sum(inside),
                (false, _) => Kind::Outside(outside),
            };
            self.kinds.insert(result, kind);
        }
        self.loops.push(within.then_some(inside));
    }

    /// Whether the rows of everything that goes into a loop or comes out of one lie end to end.
    fn can_cross(&self, program: &Program, region: &Region) -> bool {
        let leads = |value: Value| {
            let ty = program.ty(value);
            let before = ty.dims.iter().take_while(|&&dim| dim != self.dim);
            before.into_iter().all(|&dim| ty.local_size(program, dim) == 1)
        };
        region.insts.iter().zip(&self.loops).all(|(inst, level)| {
            let Some(level) = level else { return true };
            let comes_in = |value: Value| match self.kind(value) {
                Kind::Outside(_) => true,
                Kind::Rows(made) => made < *level && !self.large.contains(&value),
                Kind::Sum(_) => false,
            };
            let goes_out = |value: Value| {
                matches!(self.kind(value), Kind::Rows(_)) && self.is_needed_outside(region, value, *level)
            };
            let args = inst.args.iter().filter(|&&arg| comes_in(arg) && program.ty(arg).has(self.dim));
            let results = inst.results.iter().filter(|&&result| goes_out(result));
            args.chain(results).all(|&value| leads(value))
        })
    }

    /// Whether something outside of the loop that makes a value reads it, large values aside. So does a later loop
    /// that computes large values again, for all that is known here.
    pub(super) fn is_needed_outside(&self, region: &Region, value: Value, level: u32) -> bool {
        if self.large.contains(&value) {
            return false;
        }
        let is_last = self.loops.iter().flatten().all(|other| *other <= level);
        let mut used = region.yields.contains(&value);
        for (inst, own) in region.insts.iter().zip(&self.loops) {
            let again = !is_last && inst.results.iter().any(|result| self.large.contains(result));
            if *own != Some(level) || again {
                for_each_use(inst, &mut |other| used |= other == value);
            }
        }
        used
    }
}

/// The instructions that make or read anything as large as the product, which none of them may need whole, and
/// those values. There must be statistics among them: a product that nothing reduces is as small as it gets.
fn members(
    program: &Program,
    region: &Region,
    product: Value,
    dim: Dim,
) -> Option<(Vec<bool>, FxHashSet<Value>)> {
    let mut around: FxHashMap<Value, Vec<usize>> = FxHashMap::default();
    let mut defined: FxHashSet<Value> = FxHashSet::default();
    for (index, inst) in region.insts.iter().enumerate() {
        defined.extend(&inst.results);
        inst.results.iter().for_each(|&value| around.entry(value).or_default().push(index));
        for_each_use(inst, &mut |value| around.entry(value).or_default().push(index));
    }
    let mut members = vec![false; region.insts.len()];
    let mut large: FxHashSet<Value> = std::iter::once(product).collect();
    let mut pending = vec![product];
    let mut reduced = false;
    while let Some(value) = pending.pop() {
        if region.yields.contains(&value) || !defined.contains(&value) {
            return None;
        }
        for &index in &around[&value] {
            let inst = &region.insts[index];
            members[index] = true;
            if !acts_on_rows(&inst.op, dim) {
                return None;
            }
            reduced |= matches!(inst.op, Op::Reduce { .. });
            let others = inst.args.iter().chain(&inst.results).copied();
            pending.extend(
                others.filter(|&other| is_as_large(program, inst, value, other) && large.insert(other)),
            );
        }
    }
    reduced.then_some((members, large))
}

/// Adds to the members what acts on rows that one of them makes, and makes rows that one of them reads.
fn with_what_lies_between(program: &Program, region: &Region, members: Vec<bool>, dim: Dim) -> Vec<bool> {
    let insts = &region.insts;
    let acts = |inst: &Inst| {
        acts_on_rows(&inst.op, dim) && inst.results.iter().all(|&result| program.ty(result).has(dim))
    };
    let mut made: FxHashSet<Value> = FxHashSet::default();
    let follows: Vec<bool> = insts
        .iter()
        .zip(&members)
        .map(|(inst, &member)| {
            let follows = member || acts(inst) && inst.args.iter().any(|arg| made.contains(arg));
            if follows {
                made.extend(inst.results.iter().filter(|&&result| program.ty(result).has(dim)));
            }
            follows
        })
        .collect();
    let mut read: FxHashSet<Value> = FxHashSet::default();
    let mut within = members;
    for (index, inst) in insts.iter().enumerate().rev() {
        let leads = follows[index] && inst.results.iter().any(|result| read.contains(result));
        within[index] |= leads;
        if within[index] {
            read.extend(&inst.args);
        }
    }
    within
}

/// Whether an instruction that has `value` makes or reads `other` element by element with it.
fn is_as_large(program: &Program, inst: &Inst, value: Value, other: Value) -> bool {
    let viewed = matches!(inst.op, Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. });
    viewed || program.ty(value).dims.iter().all(|&dim| program.ty(other).has(dim))
}

/// Whether an operation does to some rows of `dim` what it does to all: each by itself, or their sum.
fn acts_on_rows(op: &Op, rows: Dim) -> bool {
    match op {
        Op::Constant(_) | Op::Map(_) | Op::Dot(_) => true,
        Op::Iota { dim } => *dim != rows,
        Op::Random { dims, .. } => !dims.contains(&rows),
        Op::Reduce { op, dims } => *op == ReduceOp::Sum || !dims.contains(&rows),
        Op::Rename { from, to } => ![*from, *to].contains(&rows),
        Op::Split { dim, into } => *dim != rows && !into.contains(&rows),
        Op::Merge { dims, into } => *into != rows && !dims.contains(&rows),
        Op::Slice { dim, into, .. } => *dim != rows && *into != Some(rows),
        Op::Pad { dim, into, .. } => *dim != Some(rows) && *into != rows,
        Op::Concat { pieces, into } => *into != rows && !pieces.contains(&Some(rows)),
        Op::Take { .. } | Op::ScatterAdd { .. } | Op::StopGradient | Op::Scan(_) | Op::Fused(_) => false,
        Op::Attention(_) | Op::AttentionGradient(_) => false,
        Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => false,
    }
}
