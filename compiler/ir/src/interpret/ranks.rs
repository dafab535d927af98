//! Values spread over the ranks of a mesh: cutting, assembling, and moving by definition.

use super::scalar::{combine, identity};
use super::tensor::{Tensor, walk};
use crate::dim::{Axis, Dim, Mesh};
use crate::program::Program;
use crate::types::{Placement, ReduceOp, Type};

/// Every rank's coordinate on each axis; the last axis varies fastest.
pub(super) fn coordinates(mesh: &Mesh) -> Vec<Vec<u64>> {
    let mut ranks = vec![Vec::new()];
    for axis in mesh.axes.values() {
        let extend = |rank: &Vec<u64>| {
            let rank = rank.clone();
            (0..axis.size).map(move |at| rank.iter().copied().chain([at]).collect())
        };
        ranks = ranks.iter().flat_map(extend).collect();
    }
    ranks
}

/// Each rank's part of a whole tensor. A partial value lies on coordinate 0, nothing elsewhere.
pub(super) fn cut(program: &Program, ranks: &[Vec<u64>], whole: &Tensor, ty: &Type) -> Vec<Tensor> {
    ranks.iter().map(|rank| cut_one(program, rank, whole, ty, &Placement::replicated())).collect()
}

/// The whole of a value.
pub(super) fn whole(
    program: &Program,
    ranks: &[Vec<u64>],
    ty: &Type,
    held: &[Tensor],
) -> Result<Tensor, String> {
    replicas_agree(program, ranks, ty, held)?;
    assemble(program, ranks, ty, held, |_| true, resolved(ty, &Placement::replicated())?)
}

/// The same value placed as `to` says. What is partial along an axis in both types stays as it is there.
pub(super) fn transfer(
    program: &Program,
    ranks: &[Vec<u64>],
    from: &Type,
    to: &Type,
    held: &[Tensor],
) -> Result<Vec<Tensor>, String> {
    let op = resolved(from, &to.placement)?;
    let kept: Vec<Axis> = from
        .placement
        .partials()
        .iter()
        .filter(|partial| to.placement.partials().contains(partial))
        .map(|partial| partial.axis)
        .collect();
    let on = |rank: &[u64], axis: Axis| rank[axis.as_u32() as usize];
    ranks
        .iter()
        .map(|rank| {
            let same = |other: &[u64]| kept.iter().all(|&axis| on(other, axis) == on(rank, axis));
            let whole = assemble(program, ranks, from, held, same, op)?;
            Ok(cut_one(program, rank, &whole, to, &from.placement))
        })
        .collect()
}

/// Checks that ranks that differ only in axes which the type doesn't mention hold the same elements.
pub(super) fn replicas_agree(
    program: &Program,
    ranks: &[Vec<u64>],
    ty: &Type,
    held: &[Tensor],
) -> Result<(), String> {
    for (number, rank) in ranks.iter().enumerate() {
        let first: Vec<u64> = program
            .mesh
            .axes
            .keys()
            .map(|axis| if mentions(&ty.placement, axis) { rank[axis.as_u32() as usize] } else { 0 })
            .collect();
        let Some(twin) = ranks.iter().position(|other| *other == first) else { continue };
        let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
        let (one, other) = (&held[number].data, &held[twin].data);
        if one.len() != other.len() || !one.iter().zip(other).all(same) {
            return Err(format!("ranks {twin} and {number} should hold the same, and don't"));
        }
    }
    Ok(())
}

fn mentions(placement: &Placement, axis: Axis) -> bool {
    placement.dim_on(axis).is_some() || placement.partial_on(axis).is_some()
}

/// How the partial results of `ty` that `to` doesn't keep combine.
fn resolved(ty: &Type, to: &Placement) -> Result<ReduceOp, String> {
    let gone = ty.placement.partials().iter().filter(|partial| !to.partials().contains(partial));
    let mut ops: Vec<ReduceOp> = gone.map(|partial| partial.op).collect();
    ops.dedup();
    match ops[..] {
        [] => Ok(ReduceOp::Sum),
        [op] => Ok(op),
        _ => Err("a value partial in two ways is resolved at once".into()),
    }
}

/// The whole of the value that the ranks for which `counts` hold. Replicas count once.
fn assemble(
    program: &Program,
    ranks: &[Vec<u64>],
    ty: &Type,
    held: &[Tensor],
    counts: impl Fn(&[u64]) -> bool,
    op: ReduceOp,
) -> Result<Tensor, String> {
    let shape: Vec<(Dim, usize)> =
        ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize)).collect();
    let mut whole = Tensor::filled(shape.iter().copied(), identity(op));
    for (rank, part) in ranks.iter().zip(held) {
        let replica = program
            .mesh
            .axes
            .keys()
            .any(|axis| !mentions(&ty.placement, axis) && rank[axis.as_u32() as usize] != 0);
        if replica || !counts(rank) {
            continue;
        }
        let starts = starts(program, rank, ty);
        let space = part.shape();
        let strides = whole.strides(&space);
        walk(&space, &[part.strides(&space)], |at, offset| {
            let global: Vec<usize> = at.iter().zip(&starts).map(|(at, start)| at + start).collect();
            if global.iter().zip(&shape).all(|(&at, &(_, size))| at < size) {
                let to: usize = global.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
                whole.data[to] = combine(op, whole.data[to], part.data[offset[0]]);
            }
        });
    }
    Ok(whole)
}

/// One rank's part of `whole`. Along axes where `ty` is partial and `from` isn't, coordinate 0 holds it.
fn cut_one(program: &Program, rank: &[u64], whole: &Tensor, ty: &Type, from: &Placement) -> Tensor {
    let shape: Vec<(Dim, usize)> =
        ty.dims.iter().map(|&dim| (dim, ty.local_size(program, dim) as usize)).collect();
    let fresh = |axis: Axis| from.partial_on(axis).is_none();
    for partial in ty.placement.partials() {
        if fresh(partial.axis) && rank[partial.axis.as_u32() as usize] != 0 {
            return Tensor::filled(shape, identity(partial.op));
        }
    }
    let starts = starts(program, rank, ty);
    let mut part = Tensor::filled(shape.iter().copied(), 0.0);
    let strides = whole.strides(&shape);
    let mut next = 0;
    walk(&shape, &[], |at, _| {
        let global: Vec<usize> = at.iter().zip(&starts).map(|(at, start)| at + start).collect();
        if global.iter().zip(&shape).all(|(&at, &(dim, _))| at < whole.size(dim)) {
            let from: usize = global.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
            part.data[next] = whole.data[from];
        }
        next += 1;
    });
    part
}

/// The global coordinate of the first element along each dim of `ty` on a rank.
fn starts(program: &Program, rank: &[u64], ty: &Type) -> Vec<usize> {
    let start = |&dim: &Dim| {
        let part = ty
            .placement
            .axes_of(dim)
            .fold(0, |part, axis| part * program.mesh.axes[axis].size + rank[axis.as_u32() as usize]);
        (part * ty.local_size(program, dim)) as usize
    };
    ty.dims.iter().map(start).collect()
}
