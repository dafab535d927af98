//! What an instruction can be split by: its factors. A factor ties the dimensions of arguments and
//! results that are cut together when the work is divided; placement is propagated along factors and
//! the computation is split by one factor an axis.
//!
//! Dimensions that are in no factor have to be whole on every rank.

use dtlc_ir::{Dim, Inst, Op, Program, ReduceOp};
use smallvec::SmallVec;

/// Dimensions that are split together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Factor {
    /// Its dimension in each argument that has it.
    pub args: SmallVec<[Option<Dim>; 6]>,
    /// Its dimension in each result that has it. A result that lacks it is partial when it is split.
    pub results: SmallVec<[Option<Dim>; 3]>,
    /// How parts of a result that lacks it combine.
    pub reduce: ReduceOp,
    /// What the number of ways has to divide; none where pads make up for it.
    pub divides: Option<u64>,
}

impl Factor {
    /// Whether some result lacks the factor while an argument has it.
    pub fn is_contracted(&self) -> bool {
        self.results.iter().any(Option::is_none)
    }
}

/// The factors of an instruction. Scans have none: their values are tied instead.
pub(super) fn factors(program: &Program, inst: &Inst) -> Vec<Factor> {
    let mut factors = match &inst.op {
        Op::Scan(_) | Op::Fused(_) => Vec::new(),
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Random { .. }
        | Op::Map(_)
        | Op::Dot(_)
        | Op::StopGradient => by_name(program, inst, &[]),
        Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => by_name(program, inst, &[]),
        Op::Reduce { op, .. } => {
            let mut factors = by_name(program, inst, &[]);
            factors.iter_mut().for_each(|factor| factor.reduce = *op);
            factors
        }
        Op::Rename { from, to } => {
            let mut factors = by_name(program, inst, &[*from, *to]);
            factors.push(view(*from, *to, divisor(program, *from)));
            factors
        }
        Op::Split { dim, into } => {
            let mut moved: SmallVec<[Dim; 6]> = into.iter().copied().collect();
            moved.push(*dim);
            let mut factors = by_name(program, inst, &moved);
            factors.extend(into.first().map(|&major| view(*dim, major, Some(program.dims[major].size))));
            factors
        }
        Op::Merge { dims, into } => {
            let mut moved: SmallVec<[Dim; 6]> = dims.iter().copied().collect();
            moved.push(*into);
            let mut factors = by_name(program, inst, &moved);
            factors.extend(dims.first().map(|&major| view(major, *into, Some(program.dims[major].size))));
            factors
        }
        Op::Slice { dim, into, .. } => by_name(program, inst, &moved([Some(*dim), *into])),
        Op::Pad { dim, into, .. } => by_name(program, inst, &moved([*dim, Some(*into)])),
        Op::Concat { pieces, into } => {
            by_name(program, inst, &moved(pieces.iter().copied().chain([Some(*into)])))
        }
        // Ranks look up the rows they hold and give zeros for the others.
        Op::Take { .. } | Op::ScatterAdd { .. } => by_name(program, inst, &[]),
        // Positions interact through the softmax, and heads' elements through the scores.
        Op::Attention(attention) | Op::AttentionGradient(attention) => {
            by_name(program, inst, &[attention.query, attention.key, attention.head, attention.value])
        }
    };
    factors.retain(|factor| factor.args.iter().chain(&factor.results).any(Option::is_some));
    factors
}

fn moved(dims: impl IntoIterator<Item = Option<Dim>>) -> SmallVec<[Dim; 6]> {
    dims.into_iter().flatten().collect()
}

fn divisor(program: &Program, dim: Dim) -> Option<u64> {
    let info = &program.dims[dim];
    (!info.pad).then_some(info.size)
}

/// A factor of an operation that gives a dimension another name.
fn view(from: Dim, to: Dim, divides: Option<u64>) -> Factor {
    Factor {
        args: SmallVec::from_slice(&[Some(from)]),
        results: SmallVec::from_slice(&[Some(to)]),
        reduce: ReduceOp::Sum,
        divides,
    }
}

/// One factor for each dimension, but for those in `whole`.
fn by_name(program: &Program, inst: &Inst, whole: &[Dim]) -> Vec<Factor> {
    let mut dims: SmallVec<[Dim; 8]> = SmallVec::new();
    for &value in inst.results.iter().chain(&inst.args) {
        for &dim in &program.ty(value).dims {
            if !whole.contains(&dim) && !dims.contains(&dim) {
                dims.push(dim);
            }
        }
    }
    let in_value = |dim: Dim| move |value: &dtlc_ir::Value| program.ty(*value).has(dim).then_some(dim);
    dims.into_iter()
        .map(|dim| Factor {
            args: inst.args.iter().map(in_value(dim)).collect(),
            results: inst.results.iter().map(in_value(dim)).collect(),
            reduce: ReduceOp::Sum,
            divides: divisor(program, dim),
        })
        .collect()
}
