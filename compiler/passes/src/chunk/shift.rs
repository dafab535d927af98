//! Exponentials of a dim that is split over ranks, shifted by each rank's own maximum first.
//!
//! ```text
//! before:  %m: f32[B] = all_reduce(max) (reduce_max[V] %y: f32[B, V@tp])
//!          %s: f32[B] partial(sum: tp) = reduce_sum[V] (exp (sub %y, %m))
//! after:   %l: f32[B, V.ranks@tp] = reduce_max[V.own] %y#                      where %y# is %y, split
//!          %m: f32[B] = all_reduce(max) (reduce_max[V.ranks] %l)
//!          %t: f32[B, V.ranks@tp] = reduce_sum[V.own] (exp (sub %y#, %l))
//!          %s: f32[B] partial(sum: tp) = reduce_sum[V.ranks] (mul %t, (exp (sub %l, %m)))
//! ```
//!
//! So that one pass over the values makes both statistics, with both collectives behind it (arXiv 1805.02867).

use dtlc_ir::{
    Builder, CollectiveKind, DType, Dim, Inst, Op, Phase, Program, ReduceOp, Region, ScalarOp, Type, Value,
};
use smallvec::SmallVec;

/// What stands for the maximum of nothing, or of nothing but minus infinity: the least finite number, so that
/// differences to it are numbers.
const FLOOR: f64 = f32::MIN as f64;

/// Rewrites the sums of exponentials of a region.
pub(super) fn by_local_maximum(program: &mut Program, region: &mut Region) {
    let found: Vec<Softmax> =
        (0..region.insts.len()).filter_map(|at| Softmax::find(program, region, at)).collect();
    // From the last on, so that positions stay right.
    for softmax in found.iter().rev() {
        softmax.rewrite(program, region);
    }
}

/// The maximum over a split dim and the sum of exponentials that it shifts.
struct Softmax {
    /// What the maximum is of.
    values: Value,
    dim: Dim,
    /// The maximum over all ranks.
    maximum: Value,
    /// Positions of the two reductions.
    max_at: usize,
    sum_at: usize,
}

impl Softmax {
    /// The one whose maximum is at a position.
    fn find(program: &Program, region: &Region, max_at: usize) -> Option<Softmax> {
        let reduced = &region.insts[max_at];
        let Op::Reduce { op: ReduceOp::Max, dims } = &reduced.op else { return None };
        let (&[dim], values) = (&dims[..], reduced.args[0]) else { return None };
        let ty = program.ty(values);
        if ty.dtype != DType::F32 || ty.placement.axes_of(dim).next().is_none() || program.dims[dim].pad {
            return None;
        }
        let maximum = region.insts.iter().find_map(|inst| match &inst.op {
            Op::Collective(call)
                if call.kind == CollectiveKind::AllReduce && inst.args[..] == reduced.results[..] =>
            {
                inst.results.first().copied()
            }
            _ => None,
        })?;
        let user = |wanted: &dyn Fn(&Inst) -> bool| region.insts.iter().position(wanted);
        let shifted = user(&|inst| inst.op == Op::Map(ScalarOp::Sub) && inst.args[..] == [values, maximum])?;
        let shifted = region.insts[shifted].results[0];
        let raised = user(&|inst| inst.op == Op::Map(ScalarOp::Exp) && inst.args[..] == [shifted])?;
        let raised = region.insts[raised].results[0];
        let sum_at = user(&|inst| match &inst.op {
            Op::Reduce { op: ReduceOp::Sum, dims } => dims[..] == [dim] && inst.args[..] == [raised],
            _ => false,
        })?;
        Some(Softmax { values, dim, maximum, max_at, sum_at })
    }

    fn rewrite(&self, program: &mut Program, region: &mut Region) {
        let ty = program.ty(self.values).clone();
        let (name, whole) = (program.dims[self.dim].name.clone(), program.dims[self.dim].size);
        let local = ty.local_size(program, self.dim);
        let ranks = program.fresh_dim(&format!("{name}.ranks"), whole / local);
        let own = program.fresh_dim(&format!("{name}.own"), local);
        let apart = apart(&ty, self.dim, &[ranks, own]);
        let of_rank = without(&apart, own);

        let mut first = builder(program, self.values, region.insts[self.max_at].phase);
        let into = SmallVec::from_slice(&[ranks, own]);
        let values = first.push_one(Op::Split { dim: self.dim, into }, &[self.values], apart.clone());
        let highest = first.push_one(reduce(ReduceOp::Max, own), &[values], of_rank.clone());
        let before_max = first.region.insts;

        let sum = region.insts[self.sum_at].results[0];
        let mut second = builder(program, sum, region.insts[self.sum_at].phase);
        let floor = second.float(FLOOR, DType::F32);
        let shift = second.push_one(Op::Map(ScalarOp::Max), &[highest, floor], of_rank.clone());
        let shifted = second.push_one(Op::Map(ScalarOp::Sub), &[values, shift], apart.clone());
        let raised = second.push_one(Op::Map(ScalarOp::Exp), &[shifted], apart);
        let total = second.push_one(reduce(ReduceOp::Sum, own), &[raised], of_rank.clone());
        let ahead = second.push_one(Op::Map(ScalarOp::Sub), &[shift, self.maximum], of_rank.clone());
        let factor = second.push_one(Op::Map(ScalarOp::Exp), &[ahead], of_rank.clone());
        let scaled = second.push_one(Op::Map(ScalarOp::Mul), &[total, factor], of_rank);
        let before_sum = second.region.insts;

        for (at, arg) in [(self.max_at, highest), (self.sum_at, scaled)] {
            let inst = &mut region.insts[at];
            inst.args = SmallVec::from_slice(&[arg]);
            if let Op::Reduce { dims, .. } = &mut inst.op {
                *dims = SmallVec::from_slice(&[ranks]);
            }
        }
        region.insts.splice(self.sum_at..self.sum_at, before_sum);
        region.insts.splice(self.max_at..self.max_at, before_max);
    }
}

fn builder(program: &mut Program, like: Value, phase: Phase) -> Builder<'_> {
    let origin = program.values[like].origin;
    let mut builder = Builder::new(program, phase);
    builder.origin = origin;
    builder
}

fn reduce(op: ReduceOp, dim: Dim) -> Op {
    Op::Reduce { op, dims: SmallVec::from_slice(&[dim]) }
}

/// `ty` with two dims for one: its ranks, which its axes split, and what each has.
fn apart(ty: &Type, dim: Dim, into: &[Dim; 2]) -> Type {
    let mut apart = ty.clone();
    let at = ty.position(dim).unwrap_or(0);
    apart.dims.remove(at);
    apart.dims.insert_many(at, into.iter().copied());
    let axes: SmallVec<[_; 4]> = ty.placement.axes_of(dim).collect();
    axes.iter().for_each(|&axis| apart.placement.remove_axis(axis));
    axes.iter().for_each(|&axis| apart.placement.add_shard(into[0], axis));
    apart
}

fn without(ty: &Type, dim: Dim) -> Type {
    let mut less = ty.clone();
    less.dims.retain(|other| *other != dim);
    less
}
