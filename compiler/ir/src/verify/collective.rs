//! What movements may do to a placement.

use crate::dim::{Axis, Dim};
use crate::op::{Collective, CollectiveKind};
use crate::program::Program;
use crate::types::{Partial, Placement, Type};

/// A reshard goes anywhere, but makes nothing partial.
pub(super) fn reshard(from: &Type, to: &Type) -> Result<(), String> {
    let kept = to.placement.partials().iter().all(|partial| from.placement.partials().contains(partial));
    require(kept, || "a reshard makes nothing partial".into())
}

/// A local slice splits dims further, over axes that held all of it.
pub(super) fn local_slice(program: &Program, from: &Type, to: &Type) -> Result<(), String> {
    require(from.placement.partials() == to.placement.partials(), || {
        "a local slice combines nothing".into()
    })?;
    for &dim in &from.dims {
        let (before, after) = (axes(&from.placement, dim), axes(&to.placement, dim));
        require(after.starts_with(&before), || {
            "a local slice keeps what is split, and splits it further".into()
        })?;
    }
    nested(program, from, to)
}

/// Argument `i` becomes result `i` by this kind of collective over these axes.
pub(super) fn collective(
    program: &Program,
    collective: &Collective,
    args: &[&Type],
    results: &[&Type],
) -> Result<(), String> {
    require(collective.reasons.len() == args.len(), || "a collective has one reason an argument".into())?;
    require(!collective.axes.is_empty() && collective.axes.is_sorted_by(|one, next| one < next), || {
        "the axes of a collective stand in mesh order".into()
    })?;
    for (from, to) in args.iter().zip(results) {
        one(program, collective, from, to)?;
    }
    Ok(())
}

/// What a collective brings stays as it is.
pub(super) fn done(args: &[&Type], results: &[&Type]) -> Result<(), String> {
    require(args == results, || "a done changes no placement".into())
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

fn axes(placement: &Placement, dim: Dim) -> Vec<Axis> {
    placement.axes_of(dim).collect()
}

fn one(program: &Program, collective: &Collective, from: &Type, to: &Type) -> Result<(), String> {
    let Collective { kind, axes: group, reduce, .. } = collective;
    let owed = |ty: &Type| -> Vec<Partial> {
        let partials = ty.placement.partials().iter().copied();
        partials.filter(|partial| group.contains(&partial.axis)).collect()
    };
    let elsewhere = |ty: &Type| -> Vec<Partial> {
        let partials = ty.placement.partials().iter().copied();
        partials.filter(|partial| !group.contains(&partial.axis)).collect()
    };
    require(elsewhere(from) == elsewhere(to) && owed(to).is_empty(), || {
        "a collective makes nothing partial and resolves nothing outside its axes".into()
    })?;
    let expected: Vec<Partial> = match kind.reduces() {
        true => group.iter().map(|&axis| Partial { axis, op: *reduce }).collect(),
        false => Vec::new(),
    };
    require(owed(from) == expected, || match kind.reduces() {
        true => "the argument isn't partial along the collective's axes".into(),
        false => "the argument is partial along the collective's axes".into(),
    })?;
    let splits = Splits::new(from, to, group);
    let fits = match kind {
        CollectiveKind::AllGather => splits.only_minor && splits.before == group.len() && splits.after == 0,
        CollectiveKind::ReduceScatter => {
            splits.only_minor && splits.before == 0 && splits.after == group.len()
        }
        CollectiveKind::AllReduce => splits.before == 0 && splits.after == 0 && splits.only_minor,
        CollectiveKind::AllToAll => {
            splits.only_minor && splits.before == group.len() && splits.after == group.len()
        }
        CollectiveKind::Permute => splits.before == splits.after && from.placement != to.placement,
    };
    require(fits, || format!("this isn't what {} does to shards", kind.name()))?;
    if !matches!(kind, CollectiveKind::Permute) {
        nested(program, from, to)?;
    }
    let same_size = from.local_elements(program) == to.local_elements(program);
    require(same_size || !matches!(kind, CollectiveKind::Permute), || "a permute keeps sizes".into())
}

/// Where a dim is split more ways on one side, the parts of the other are whole numbers of its parts. Pads
/// can break that; a whole dim is fine, its pads are cut off.
fn nested(program: &Program, from: &Type, to: &Type) -> Result<(), String> {
    for &dim in &from.dims {
        let ways = |ty: &Type| program.mesh.group_size(ty.placement.axes_of(dim));
        let (coarse, fine) = if ways(from) < ways(to) { (from, to) } else { (to, from) };
        let parts = ways(fine) / ways(coarse);
        let fits = coarse.local_size(program, dim) == parts * fine.local_size(program, dim);
        require(fits || ways(coarse) == 1, || {
            format!("the padded parts of `{}` aren't those of its finer split", program.dims[dim].name)
        })?;
    }
    Ok(())
}

/// How the axes of a group split the dims before and after.
struct Splits {
    /// How many of them split something before.
    before: usize,
    /// And after.
    after: usize,
    /// Whether all of them are minor to the axes outside the group, which stay where they are.
    only_minor: bool,
}

impl Splits {
    fn new(from: &Type, to: &Type, group: &[Axis]) -> Splits {
        let mut splits = Splits { before: 0, after: 0, only_minor: true };
        for &dim in &from.dims {
            let (before, after) = (axes(&from.placement, dim), axes(&to.placement, dim));
            let outside = |axes: &[Axis]| axes.iter().take_while(|axis| !group.contains(axis)).count();
            let (kept_before, kept_after) = (outside(&before), outside(&after));
            let minor =
                before[kept_before..].iter().chain(&after[kept_after..]).all(|axis| group.contains(axis));
            splits.only_minor &= minor && before[..kept_before] == after[..kept_after];
            splits.before += before.len() - kept_before;
            splits.after += after.len() - kept_after;
        }
        splits
    }
}
