//! Refines the mesh until every rule places whole atoms on whole axes, and turns rules into entries.
//!
//! A rule for a product dimension arrives as its atoms. With `KV = 2`, `G = 4` and `tp = 4`, `H -> tp`
//! splits `tp` into `tp.0` (2) and `tp.1` (2), and becomes `KV@tp.0` and `G@tp.1`; every other rule on
//! `tp` then means both parts. Axes of one rank place nothing, so they leave the entries here.

use super::error::{PlacementError, PlacementErrorKind};
use super::request::{PlacementRequest, RuleKind, RuleRequest};
use cranelift_entity::{PrimaryMap, entity_impl};
use dtlc_ir::{Axis, AxisInfo, Dim, Mesh, Program};

/// One dimension on an ordered group of axes. Ids are in order of precedence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Entry(u32);
entity_impl!(Entry, "entry");

/// What an entry says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EntryInfo {
    /// Index of its step in the request.
    pub step: usize,
    /// Index of its rule in the step.
    pub rule: usize,
    /// The dimension; none for a store on the largest.
    pub dim: Option<Dim>,
    /// Axes with more than one rank, major first.
    pub axes: Vec<Axis>,
}

/// The refined mesh with all entries: those that place values in use first, then the stores.
pub(super) struct Refined {
    pub mesh: Mesh,
    pub entries: PrimaryMap<Entry, EntryInfo>,
}

/// An axis to split: its major part gets this size.
struct Split {
    axis: Axis,
    major: u64,
}

/// Refines the request's mesh for the program's dimensions. `looped` dims are scanned over and can't be placed.
///
/// # Errors
/// Unknown or repeated axes, dimensions that their axes don't divide, loops.
pub(super) fn refine(
    program: &Program,
    request: &PlacementRequest,
    looped: &[Dim],
) -> Result<Refined, Vec<PlacementError>> {
    check_names(request)?;
    let mut mesh = request.mesh.clone();
    // Each round splits one axis into two parts of at least 2 ranks, so there are at most as many rounds
    // as an axis has prime factors.
    loop {
        match collect(program, request, looped, &mesh) {
            Outcome::Done(entries) => return Ok(Refined { mesh, entries }),
            Outcome::Split(split) => mesh = split_axis(&mesh, &split),
            Outcome::Errors(errors) => return Err(errors),
        }
    }
}

enum Outcome {
    Done(PrimaryMap<Entry, EntryInfo>),
    Split(Split),
    Errors(Vec<PlacementError>),
}

fn collect(program: &Program, request: &PlacementRequest, looped: &[Dim], mesh: &Mesh) -> Outcome {
    let mut entries: PrimaryMap<Entry, EntryInfo> = PrimaryMap::new();
    let mut stores = Vec::new();
    let mut errors = Vec::new();
    for (step, step_request) in request.steps.iter().enumerate() {
        for (rule_index, rule) in step_request.rules.iter().enumerate() {
            let axes: Vec<Axis> = rule.axes.iter().flat_map(|name| mesh.find(name)).collect();
            let axes: Vec<Axis> = axes.into_iter().filter(|&axis| mesh.axes[axis].size > 1).collect();
            let info = |dim, axes| EntryInfo { step, rule: rule_index, dim, axes };
            if let RuleKind::Store | RuleKind::Keep = rule.kind {
                stores.push(info(rule.dims.first().copied(), axes));
                continue;
            }
            let atoms: Vec<Dim> = rule.dims.iter().copied().filter(|dim| !looped.contains(dim)).collect();
            if atoms.is_empty() {
                errors.push(stacked(rule));
                continue;
            }
            match distribute(program, mesh, request, rule, &atoms, &axes) {
                Ok(Distribution::Placed(placed)) => {
                    for (dim, axes) in placed {
                        // `H, KV -> tp` says `KV@tp.0` twice.
                        let same = |other: &EntryInfo| {
                            other.step == step && other.dim == Some(dim) && other.axes == axes
                        };
                        if !is_general(rule) || !entries.values().any(same) {
                            entries.push(info(Some(dim), axes));
                        }
                    }
                }
                Ok(Distribution::Split(split)) => return Outcome::Split(split),
                Err(error) => errors.push(error),
            }
        }
    }
    stores.into_iter().for_each(|store| {
        entries.push(store);
    });
    if errors.is_empty() { Outcome::Done(entries) } else { Outcome::Errors(errors) }
}

/// Whether a rule is about every value that has its dimension.
fn is_general(rule: &RuleRequest) -> bool {
    rule.at.is_empty() && rule.roles.is_empty() && rule.values.is_empty()
}

enum Distribution {
    Placed(Vec<(Dim, Vec<Axis>)>),
    Split(Split),
}

/// Gives the axes to the atoms in order, each atom as many as divide it.
fn distribute(
    program: &Program,
    mesh: &Mesh,
    request: &PlacementRequest,
    rule: &RuleRequest,
    atoms: &[Dim],
    axes: &[Axis],
) -> Result<Distribution, PlacementError> {
    // An inline placement has no word for pads: it takes them where the plan does.
    let padded_inline = !rule.values.is_empty() && program.dims[atoms[0]].pad;
    if rule.kind == RuleKind::PlacePadded || padded_inline {
        return Ok(Distribution::Placed(vec![(atoms[0], axes.to_vec())]));
    }
    let mut placed: Vec<(Dim, Vec<Axis>)> = vec![(atoms[0], Vec::new())];
    let mut left = program.dims[atoms[0]].size;
    for &axis in axes {
        let size = mesh.axes[axis].size;
        while left == 1 && placed.len() < atoms.len() {
            let atom = atoms[placed.len()];
            left = program.dims[atom].size;
            placed.push((atom, Vec::new()));
        }
        if left.is_multiple_of(size) {
            left /= size;
            if let Some((_, taken)) = placed.last_mut() {
                taken.push(axis);
            }
        } else if left > 1
            && size.is_multiple_of(left)
            && (placed.len() < atoms.len() || leads_product(request, rule))
        {
            return Ok(Distribution::Split(Split { axis, major: left }));
        } else if left == 1 && leads_product(request, rule) {
            // `KV -> tp` beside `H -> tp`: the minor part of the axis is for the other factor.
            break;
        } else {
            return Err(not_divisible(program, mesh, rule, atoms, axes));
        }
    }
    placed.retain(|(_, axes)| !axes.is_empty());
    if placed.is_empty() {
        placed.push((atoms[0], Vec::new()));
    }
    Ok(Distribution::Placed(placed))
}

/// Whether another rule puts a product that starts with this rule's dimension on the same axes.
fn leads_product(request: &PlacementRequest, rule: &RuleRequest) -> bool {
    let rules = request.steps.iter().flat_map(|step| &step.rules);
    rules
        .filter(|other| other.kind == rule.kind && other.axes == rule.axes)
        .any(|other| other.dims.len() > rule.dims.len() && other.dims.starts_with(&rule.dims))
}

/// The mesh with one axis in two parts. Parts of an axis of which none was named get numbers.
fn split_axis(mesh: &Mesh, split: &Split) -> Mesh {
    let mut refined = Mesh::default();
    let target = &mesh.axes[split.axis];
    let numbered = |part: &Option<String>| part.as_ref().is_none_or(|part| part.parse::<u32>().is_ok());
    let mut number = 0;
    for (axis, info) in mesh.axes.iter() {
        let sizes =
            if axis == split.axis { vec![split.major, info.size / split.major] } else { vec![info.size] };
        let pieces = sizes.len();
        for (piece, size) in sizes.into_iter().enumerate() {
            let part = if info.name == target.name && numbered(&info.part) {
                number += 1;
                Some((number - 1).to_string())
            } else if pieces > 1 {
                Some(format!("{}.{piece}", info.part.clone().unwrap_or_default()))
            } else {
                info.part.clone()
            };
            refined.axes.push(AxisInfo { name: info.name.clone(), part, size });
        }
    }
    refined
}

fn check_names(request: &PlacementRequest) -> Result<(), Vec<PlacementError>> {
    let mut errors = Vec::new();
    for step in &request.steps {
        for (index, rule) in step.rules.iter().enumerate() {
            errors.extend(check_axes(&request.mesh, rule));
            let same = |other: &&RuleRequest| {
                other.kind == rule.kind
                    && other.dim_name == rule.dim_name
                    && other.at == rule.at
                    && other.values == rule.values
                    && share_role(&other.roles, &rule.roles)
            };
            if let Some(other) = step.rules[..index].iter().find(same) {
                let message = format!("step `{}` places `{}` twice", step.name, rule.dim_name);
                errors.push(
                    PlacementError::new(PlacementErrorKind::DuplicateRule, message)
                        .at_plan(rule.span, "again here")
                        .at_plan(other.span, "first here")
                        .hint(format!("put `{}` in a step of its own, or remove it", rule.text())),
                );
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn share_role(left: &[dtlc_ir::Role], right: &[dtlc_ir::Role]) -> bool {
    left.is_empty() || right.is_empty() || left.iter().any(|role| right.contains(role))
}

fn check_axes(mesh: &Mesh, rule: &RuleRequest) -> Vec<PlacementError> {
    let mut errors = Vec::new();
    let mut seen: Vec<Axis> = Vec::new();
    for name in &rule.axes {
        let axes = mesh.find(name);
        if axes.is_empty() {
            let known: Vec<String> = mesh.axes.values().map(AxisInfo::full_name).collect();
            let hint = if known.is_empty() {
                format!("add it to the mesh: `mesh {{ {name}: 2 }}`")
            } else {
                format!("the mesh has {}", known.join(", "))
            };
            let message = format!("no axis `{name}` in the mesh");
            errors.push(
                PlacementError::new(PlacementErrorKind::UnknownAxis, message)
                    .at_plan(rule.span, "named here")
                    .hint(hint),
            );
        }
        if axes.iter().any(|axis| seen.contains(axis)) {
            let message = format!("axis `{name}` stands twice in one rule");
            errors.push(
                PlacementError::new(PlacementErrorKind::AxisTwice, message)
                    .at_plan(rule.span, "an axis can split a tensor once"),
            );
        }
        seen.extend(axes);
    }
    errors
}

fn stacked(rule: &RuleRequest) -> PlacementError {
    let message = format!("`{}` is iterated over, so it can't be split over ranks", rule.dim_name);
    PlacementError::new(PlacementErrorKind::StackedDimension, message)
        .at_plan(rule.span, "each rank runs every layer")
        .hint("place a dimension of the layer instead")
}

fn not_divisible(
    program: &Program,
    mesh: &Mesh,
    rule: &RuleRequest,
    atoms: &[Dim],
    axes: &[Axis],
) -> PlacementError {
    let ways = mesh.group_size(axes.iter().copied());
    let axis = mesh.display(axes);
    let name = &rule.dim_name;
    let size: u64 = atoms.iter().map(|&atom| program.dims[atom].size).product();
    let error = if atoms.len() > 1 {
        let factors: Vec<String> = atoms
            .iter()
            .map(|&atom| format!("{} = {}", program.dims[atom].name, program.dims[atom].size))
            .collect();
        let message = format!("`{name}` ({}) can't be split {ways} ways over `{axis}`", factors.join(", "));
        let reason = format!(
            "the axis goes to the major factor first, and what is left of it to the next: one of `{}` and {ways} has to divide the other",
            program.dims[atoms[0]].name
        );
        PlacementError::new(PlacementErrorKind::NotDivisible, message).because([reason])
    } else {
        let message = format!("`{name}` has {size} elements, which `{axis}` ({ways} ranks) does not divide");
        PlacementError::new(PlacementErrorKind::NotDivisible, message)
    };
    error.at_plan(rule.span, "placed here").hint(format!(
        "`{name} -> {} pad` rounds the size up; pads take part in no sum",
        rule.axes.join(", ")
    ))
}
