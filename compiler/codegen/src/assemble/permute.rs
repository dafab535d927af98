//! Permutations: which rank of a group receives from which, when what a rank holds moves to another as a whole.

use dtlc_ir::{Axis, Dim, Program, Type};

/// For each rank of the group over `axes` (row-major), the rank whose part of `from` is its part of `to`. Where
/// several hold the same part, the first gives to the first that wants it, and so on. None where this is no
/// permutation, or not the same one in every group of the mesh.
pub(super) fn sources(program: &Program, axes: &[Axis], from: &Type, to: &Type) -> Option<Vec<u32>> {
    let first = sources_in(program, axes, from, to, |_| 0)?;
    // The axes around the group may only add the same to both sides; the last coordinate shows if they don't.
    let last = sources_in(program, axes, from, to, |axis| program.mesh.axes[axis].size - 1)?;
    (first == last).then_some(first)
}

/// The same in the group at the coordinates `around` on all other axes.
fn sources_in(
    program: &Program,
    axes: &[Axis],
    from: &Type,
    to: &Type,
    around: impl Fn(Axis) -> u64,
) -> Option<Vec<u32>> {
    let size = |axis: Axis| program.mesh.axes[axis].size;
    let ranks: u64 = axes.iter().map(|&axis| size(axis)).product();
    let part = |ty: &Type, rank: u64| -> Vec<(Dim, u64)> {
        let coordinate = |axis: Axis| match axes.iter().position(|&other| other == axis) {
            Some(position) => {
                let behind: u64 = axes[position + 1..].iter().map(|&axis| size(axis)).product();
                rank / behind % size(axis)
            }
            None => around(axis),
        };
        let index =
            |dim: Dim| ty.placement.axes_of(dim).fold(0, |index, axis| index * size(axis) + coordinate(axis));
        ty.dims.iter().map(|&dim| (dim, index(dim))).collect()
    };
    let mut givers: Vec<Option<Vec<(Dim, u64)>>> = (0..ranks).map(|rank| Some(part(from, rank))).collect();
    let mut sources = Vec::new();
    for rank in 0..ranks {
        let wanted = Some(part(to, rank));
        let giver = givers.iter().position(|held| *held == wanted)?;
        givers[giver] = None;
        sources.push(giver as u32);
    }
    Some(sources)
}
