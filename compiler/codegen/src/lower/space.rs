//! The loops of a kernel: which dims they run over, and which neighbouring dims are one loop.

use dtlc_ir::{Dim, Op, Program, Region, Value};
use rustc_hash::FxHashSet;

/// One loop over a dim, or over several that lie side by side in every tensor.
#[derive(Clone, Debug)]
pub(super) struct LoopDim {
    /// The dims, outermost first. The index is the last one's; the others stay at 0.
    pub(super) dims: Vec<Dim>,
    /// Number of iterations.
    pub(super) extent: u64,
    /// Where the loop is cut, since different expressions hold on both sides: 0, …, extent.
    pub(super) cuts: Vec<u64>,
}

/// The loops over `dims`, which are those of `model` (a value that has all of them).
pub(super) fn loops(program: &Program, body: &Region, dims: &[Dim], model: Value) -> Vec<LoopDim> {
    let single = dims_with_index(program, body);
    let mut loops: Vec<LoopDim> = Vec::new();
    for &dim in dims {
        let size = program.ty(model).local_size(program, dim);
        if let Some(last) = loops.last_mut()
            && last.dims.iter().chain([&dim]).all(|dim| !single.contains(dim))
            && always_adjacent(program, body, last.dims[last.dims.len() - 1], dim)
        {
            last.dims.push(dim);
            last.extent *= size;
            last.cuts = vec![0, last.extent];
            continue;
        }
        loops.push(LoopDim { dims: vec![dim], extent: size, cuts: cuts(program, body, dim, size) });
    }
    loops
}

/// Dims whose coordinate something in the body depends on.
fn dims_with_index(program: &Program, body: &Region) -> FxHashSet<Dim> {
    let mut found = FxHashSet::default();
    for inst in &body.insts {
        let result = program.ty(inst.results[0]);
        match &inst.op {
            Op::Constant(_) | Op::Map(_) => {}
            Op::Reduce { .. } => {}
            Op::Iota { dim } => found.extend([*dim]),
            Op::Random { .. } | Op::LocalSlice => found.extend(&result.dims),
            Op::Rename { from, to } => found.extend([*from, *to]),
            Op::Split { dim, into } => found.extend(into.iter().chain([dim])),
            Op::Merge { dims, into } => found.extend(dims.iter().chain([into])),
            Op::Slice { dim, into, .. } => found.extend(into.iter().chain([dim])),
            Op::Pad { dim, into, .. } => found.extend(dim.iter().chain([into])),
            Op::Concat { pieces, into } => found.extend(pieces.iter().flatten().chain([into])),
            // Fusion keeps these out of kernels.
            Op::Dot(_) | Op::Take { .. } | Op::ScatterAdd { .. } | Op::StopGradient | Op::Attention(_) => {}
            Op::AttentionGradient(_)
            | Op::Scan(_)
            | Op::Reshard(_)
            | Op::Collective(_)
            | Op::Done
            | Op::Fused(_) => {}
        }
    }
    found
}

/// Whether every value that has one of two dims has both, side by side in this order.
fn always_adjacent(program: &Program, body: &Region, major: Dim, minor: Dim) -> bool {
    let results = body.insts.iter().flat_map(|inst| &inst.results);
    body.params.iter().chain(results).all(|&value| {
        let ty = program.ty(value);
        match (ty.position(major), ty.position(minor)) {
            (None, None) => true,
            (Some(first), Some(second)) => second == first + 1,
            (Some(_), None) | (None, Some(_)) => false,
        }
    })
}

/// Where the pieces of concatenations and pads along `dim` meet.
fn cuts(program: &Program, body: &Region, dim: Dim, size: u64) -> Vec<u64> {
    let mut cuts = vec![0, size];
    for inst in &body.insts {
        match &inst.op {
            Op::Concat { pieces, into } if *into == dim => {
                let mut at = 0;
                for (&piece, &arg) in pieces.iter().zip(&inst.args) {
                    at += piece.map_or(1, |piece| program.ty(arg).local_size(program, piece));
                    cuts.push(at);
                }
            }
            Op::Pad { dim: piece, start, into } if *into == dim => {
                let length = piece.map_or(1, |piece| program.ty(inst.args[0]).local_size(program, piece));
                cuts.extend([*start, start + length]);
            }
            _ => {}
        }
    }
    cuts.retain(|&cut| cut <= size);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}
