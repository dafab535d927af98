//! Makes a model and its plan small enough to run here, with the mesh and everything that divides kept.
//!
//! Chooses `-D` overrides from the typed model; the file is then compiled again with them.

use dtlc_lang::ast::{ExprKind, Item, Member};
use dtlc_lang::model::{DimId, Model, Operation};
use dtlc_lang::plan::{MeshAxis, Plan, Rule};
use dtlc_lang::{SourceFile, parse};
use indexmap::IndexMap;

/// More ranks than this are not run.
const MOST_RANKS: u64 = 16;
/// Sizes up to this stay.
const SMALL: u64 = 32;
/// What larger ones are made, or a little more, so that not all are equal.
const TARGET: u64 = 16;
/// How many different sizes are made of equal ones.
const VARIANTS: u64 = 3;
/// Layers of a stack, sequences of a micro-batch, and micro-batches that are kept.
const FEW: u64 = 2;

/// A size that is made smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What `-D` calls it.
    pub name: String,
    /// As the file has it.
    pub from: u64,
    /// As it is run.
    pub to: u64,
}

/// Sizes of axes such that the ranks are few enough: the largest is divided by its smallest factor, again and again,
/// and none goes below 2.
#[must_use]
pub fn mesh(axes: &[MeshAxis]) -> Vec<Change> {
    let mut sizes: Vec<u64> = axes.iter().map(|axis| axis.size).collect();
    while sizes.iter().product::<u64>() > MOST_RANKS {
        let can_shrink = |&&(_, size): &&(usize, u64)| size > smallest_factor(size);
        let numbered: Vec<(usize, u64)> = sizes.iter().copied().enumerate().collect();
        let Some(&(largest, size)) = numbered.iter().filter(can_shrink).max_by_key(|(_, size)| *size) else {
            break;
        };
        sizes[largest] = size / smallest_factor(size);
    }
    changes(axes.iter().zip(&sizes).map(|(axis, &to)| (axis.name.clone(), axis.size, to)))
}

/// Sizes of dimensions and of the batch. `mesh` is what became of the axes.
#[must_use]
pub fn sizes(
    file: &SourceFile,
    model: &Model,
    plan: Option<&Plan>,
    micro_batches: u64,
    mesh: &[Change],
) -> Vec<Change> {
    let axis_size =
        |axis: &MeshAxis| mesh.iter().find(|it| it.name == axis.name).map_or(axis.size, |it| it.to);
    let ranks: u64 = plan.iter().flat_map(|plan| &plan.mesh).map(axis_size).product();
    let unit = 2 * ranks;
    let repeated = repeated(model);
    let declared = declared(file, model);
    let mut wanted = Vec::new();
    let mut variant = 0;
    for (dim, info) in
        model.dims.iter().filter(|(_, info)| info.factors.is_empty() && declared.contains(&info.name))
    {
        if Some(dim) == model.batch || Some(dim) == model.sequence {
            continue;
        }
        if repeated.contains(&dim) {
            wanted.push((info.name.clone(), info.size, info.size.min(FEW)));
            continue;
        }
        let to = smaller(info.size, unit, variant % VARIANTS);
        variant += u64::from(to != info.size);
        wanted.push((info.name.clone(), info.size, to));
    }
    let size = |dim: Option<DimId>| dim.map(|dim| (model.dims[dim].name.clone(), model.dims[dim].size));
    let ways: u64 = plan.map_or(1, |plan| batch_ways(model, plan, &axis_size));
    match plan.and_then(|plan| plan.batch.as_ref()) {
        Some(batch) => {
            wanted.push(("seq".to_owned(), batch.sequence, smaller(batch.sequence, unit, 0)));
            let micro = batch.micro.map_or(FEW, |micro| micro.min(FEW));
            wanted.push(("global".to_owned(), batch.global, ways * micro * micro_batches.min(FEW)));
            wanted.extend(batch.micro.map(|from| ("micro".to_owned(), from, micro)));
        }
        None => {
            wanted.extend(size(model.batch).map(|(name, from)| (name, from, ways * FEW)));
            wanted.extend(size(model.sequence).map(|(name, from)| (name, from, smaller(from, unit, 0))));
        }
    }
    changes(wanted.into_iter())
}

fn changes(sizes: impl Iterator<Item = (String, u64, u64)>) -> Vec<Change> {
    sizes.filter(|(_, from, to)| from != to).map(|(name, from, to)| Change { name, from, to }).collect()
}

/// About [`TARGET`] (`variant` makes it larger), divisible by whatever of `unit` divides `size`, and odd if that is.
fn smaller(size: u64, unit: u64, variant: u64) -> u64 {
    if size <= SMALL {
        return size;
    }
    let keep = gcd(size, unit);
    let mut times = TARGET.div_ceil(keep) + variant;
    if size % 2 == 1 && times.is_multiple_of(2) {
        times += 1;
    }
    (keep * times).min(size)
}

/// Names that the model gives a number, or none: only those can be given another.
fn declared(file: &SourceFile, model: &Model) -> Vec<String> {
    let items = parse(file).file.items;
    let own = items.iter().filter_map(|item| match item {
        Item::Model(it) if it.name.name == model.name => Some(&it.members),
        _ => None,
    });
    let dims = own.flatten().filter_map(|member| match member {
        Member::Dims(dims) => Some(&dims.dims),
        _ => None,
    });
    let numbers = dims.flatten().filter(|dim| match &dim.value {
        None => true,
        Some(value) => matches!(value.kind, ExprKind::Integer(_)),
    });
    numbers.map(|dim| dim.name.name.clone()).collect()
}

/// The dimensions of stacks.
fn repeated(model: &Model) -> Vec<DimId> {
    let nodes = model.graph.nodes.values().filter_map(|node| {
        let Operation::Repeat { dim, .. } = &node.operation else { return None };
        Some(*dim)
    });
    nodes.collect()
}

/// Into how many parts the axes of the batch's rules split it.
fn batch_ways(model: &Model, plan: &Plan, axis_size: &impl Fn(&MeshAxis) -> u64) -> u64 {
    let mut ways: IndexMap<&str, u64> = IndexMap::new();
    for rule in plan.steps.iter().flat_map(|step| &step.rules) {
        let Rule::Place { dim, axes, .. } = rule else { continue };
        if Some(*dim) != model.batch {
            continue;
        }
        for name in axes {
            let whole = name.split_once('.').map_or(name.as_str(), |(axis, _)| axis);
            if let Some(axis) = plan.mesh.iter().find(|axis| axis.name == whole) {
                ways.insert(whole, axis_size(axis));
            }
        }
    }
    ways.values().product()
}

fn smallest_factor(size: u64) -> u64 {
    (2..)
        .take_while(|factor| factor * factor <= size)
        .find(|factor| size.is_multiple_of(*factor))
        .unwrap_or(size)
}

fn gcd(left: u64, right: u64) -> u64 {
    if right == 0 { left } else { gcd(right, left % right) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_divisible_by_what_divided_them() {
        assert_eq!(smaller(4096, 16, 0), 16);
        assert_eq!(smaller(14336, 32, 1), 64);
        assert_eq!(smaller(50257, 8, 0), 17);
        assert_eq!(smaller(8, 16, 2), 8);
        // 96 is divided by 3 of 12 ranks; so is what becomes of it.
        assert_eq!(smaller(96, 24, 0), 24);
    }

    #[test]
    fn factors_are_the_smallest() {
        assert_eq!([2, 9, 15, 7, 64].map(smallest_factor), [2, 3, 3, 7, 2]);
    }
}
