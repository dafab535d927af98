//! Partitioning: takes a `joint` program and what a plan asks to a `sharded` one, in which every value
//! has a placement, and then to calls of collectives.
//!
//! 1. `mesh`: axes are split until rules place whole atoms on whole axes.
//! 2. `propagate`: rules, step by step, decide which dimensions lie on which axes.
//! 3. `stores`: where state rests.
//! 4. `realise`: every instruction is split by one factor an axis, and reshards stand where a value is
//!    not as its use needs it or its own type states it. Nothing else ever moves data.
//! 5. `keep`: what a backward pass gathers parameters from, where it isn't their store.
//! 6. `reshard`: reshards become slices and collectives.
//! 7. `merge`: collectives of one block that can go together become one call.
//!
//! Differentiation is done before and knows nothing of this; no collective is ever differentiated.

mod assign;
mod copies;
mod error;
mod factors;
mod idle;
mod keep;
mod merge;
mod mesh;
mod pad;
mod partial;
mod pins;
mod propagate;
mod realise;
mod reason;
mod request;
mod reshard;
mod scan;
pub(crate) mod select;
mod stores;

pub use error::{Place, PlacementError, PlacementErrorKind};
pub use merge::merge_collectives;
pub use request::{PlacementRequest, RuleKind, RuleRequest, StepRequest};
pub use reshard::plan_reshards;
pub(crate) use reshard::ring_bytes;

use assign::{Assignments, Cause, Effect};
use dtlc_ir::{Dim, Op, Placement, Program, Region, Role, StateKind, Type, Value};
use mesh::{Entry, EntryInfo};
use propagate::Graph;
use request::role_name;
use select::{UnknownPath, select};
use stores::Stores;

/// What partitioning made.
pub struct Partitioned {
    /// The program at stage `sharded`, with [`Op::Reshard`] where data moves.
    pub program: Program,
    /// Parameters that a store rule left whole, as no dimension was divided: the path and the rule.
    pub left_whole: Vec<(String, String)>,
    /// For each parameter that has a gradient, the type that it is stored in until the update.
    pub gradient_stores: Vec<Type>,
    /// For each state, where it lies while it is used.
    pub uses: Vec<Placement>,
    /// Rules from which nothing follows.
    pub idle: Vec<PlacementError>,
}

/// Places every value of a joint program.
///
/// # Errors
/// All rules that are wrong by themselves, or the first conflict between rules.
pub fn partition(
    mut program: Program,
    request: &PlacementRequest,
) -> Result<Partitioned, Vec<PlacementError>> {
    let looped = looped_dims(&program.main);
    pad::mark(&mut program, request);
    let refined = mesh::refine(&program, request, &looped)?;
    program.mesh = refined.mesh.clone();
    let mut assignments = Assignments::new(request, &refined.mesh, &refined.entries);
    let graph = Graph::new(&program);
    for step in 0..request.steps.len() {
        seed(&program, &mut assignments, step)?;
        graph.propagate(&mut assignments).map_err(|error| vec![error])?;
    }
    let leave =
        select::with_leave(&program, &request.leave).map_err(|unknown| vec![unknown_name(&unknown)])?;
    let owners = stores::owners(&program);
    let stores = stores::decide(&program, &assignments, &owners, &looped)?;
    let idle = idle::idle_rules(&program, &assignments, &stores);
    let update = place_update(&program, &assignments, &stores, &owners).map_err(|error| vec![error])?;
    let gradient_stores = gradient_stores(&program, &assignments, &stores, &owners);
    let mut program = realise::realise(program.clone(), &assignments, &update, &stores, owners, leave)?;
    keep::keep_parts(&mut program, &assignments, &stores);
    let uses = program.states.iter().map(|state| assignments.placement(state.value)).collect();
    Ok(Partitioned { program, left_whole: stores.whole, gradient_stores, uses, idle })
}

/// A gradient rests as its parameter is used, split further by what its store adds.
fn gradient_stores(
    program: &Program,
    assignments: &Assignments<'_>,
    stores: &Stores,
    owners: &stores::Owners,
) -> Vec<Type> {
    let parameters = program.states.iter().zip(&stores.gradients).enumerate();
    let of_parameter = parameters.filter_map(|(index, (state, shards))| {
        let is_its = |value: Value| {
            owners[value] == Some(index) && program.ty(value).dims == program.ty(state.value).dims
        };
        let mut gradients = program.values.iter().filter(|(_, info)| info.gradient_of.is_some());
        let (_, gradient) = gradients.find(|&(value, _)| is_its(value))?;
        let mut placement = assignments.placement(state.value);
        for &(dim, entry) in shards {
            for &axis in &assignments.entries[entry].axes {
                if placement.dim_on(axis).is_none() {
                    placement.add_shard(dim, axis);
                }
            }
        }
        let ty = program.ty(state.value);
        Some(Type { dtype: gradient.ty.dtype, dims: ty.dims.clone(), placement })
    });
    of_parameter.collect()
}

/// The dimensions that scans iterate over.
fn looped_dims(region: &Region) -> Vec<Dim> {
    let mut dims = Vec::new();
    for inst in &region.insts {
        if let Op::Scan(scan) = &inst.op {
            dims.push(scan.dim);
            dims.extend(looped_dims(&scan.body));
        }
    }
    dims
}

/// Places the values that a step's rules name.
fn seed(
    program: &Program,
    assignments: &mut Assignments<'_>,
    step: usize,
) -> Result<(), Vec<PlacementError>> {
    let mut errors = Vec::new();
    for (index, rule) in assignments.request.steps[step].rules.iter().enumerate() {
        if let RuleKind::Store | RuleKind::Keep = rule.kind {
            continue;
        }
        let is_of_rule = |info: &EntryInfo| info.step == step && info.rule == index;
        let entries: Vec<(Entry, Dim)> = assignments
            .entries
            .iter()
            .filter(|(_, info)| is_of_rule(info))
            .filter_map(|(entry, info)| info.dim.map(|dim| (entry, dim)))
            .collect();
        if let Err(error) = seed_rule(program, assignments, rule, &entries) {
            errors.push(error);
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn seed_rule(
    program: &Program,
    assignments: &mut Assignments<'_>,
    rule: &RuleRequest,
    entries: &[(Entry, Dim)],
) -> Result<(), PlacementError> {
    let values = select(program, rule).map_err(|unknown| unknown_path(rule, &unknown))?;
    let has_any = |value: &&Value| rule.dims.iter().any(|&dim| program.ty(**value).has(dim));
    if !values.iter().any(|value| has_any(&value)) && !values.is_empty() {
        return Err(no_match(program, rule));
    }
    for &value in &values {
        for &(entry, dim) in entries {
            match assignments.assign(program, value, dim, entry, Cause::Rule) {
                Effect::Placed | Effect::Unchanged => {}
                Effect::NotDivisible => return Err(not_divisible(program, assignments, rule, value, dim)),
                Effect::Conflict(held) => {
                    let line = format!(
                        "{} has a rule of its own: {}",
                        assign::describe(program, value),
                        rule.text()
                    );
                    return Err(assignments.conflict(program, value, held, (dim, entry), vec![line]));
                }
            }
        }
    }
    Ok(())
}

fn no_match(program: &Program, rule: &RuleRequest) -> PlacementError {
    let name = &rule.dim_name;
    let whose = match rule.roles.as_slice() {
        [] => "value".to_string(),
        roles => roles.iter().map(|&role| role_name(role)).collect::<Vec<_>>().join(" or "),
    };
    let at = rule.at.iter().map(|path| path.join(".")).collect::<Vec<_>>().join(", ");
    let place = if at.is_empty() { String::new() } else { format!(" at {at}") };
    let mut known: Vec<&str> = Vec::new();
    for value in select(program, rule).unwrap_or_default() {
        for &dim in &program.ty(value).dims {
            let name = program.dims[dim].name.as_str();
            if !known.contains(&name) {
                known.push(name);
            }
        }
    }
    PlacementError::new(PlacementErrorKind::NoMatch, format!("no {whose}{place} has a dimension `{name}`"))
        .at_plan(rule.span, "this rule matches nothing")
        .hint(format!("they have {}", known.join(", ")))
}

fn not_divisible(
    program: &Program,
    assignments: &Assignments<'_>,
    rule: &RuleRequest,
    value: Value,
    dim: Dim,
) -> PlacementError {
    let size = program.dims[dim].size;
    let name = &program.dims[dim].name;
    let before: Vec<Entry> =
        assignments.of(value).iter().filter(|held| held.dim == dim).map(|held| held.entry).collect();
    let chains = before.into_iter().flat_map(|entry| assignments.chain(program, value, entry));
    let message = format!("`{name}` has {size} elements, which `{}` does not divide", rule.axes.join(", "));
    PlacementError::new(PlacementErrorKind::NotDivisible, message)
        .at_plan(rule.span, "placed here")
        .at_model(program.values[value].origin, "a value with it")
        .because(chains)
        .hint(format!(
            "`{name} -> {} pad` rounds the size up; pads take part in no sum",
            rule.axes.join(", ")
        ))
}

/// The error for an `at` that names nothing.
fn unknown_path(rule: &RuleRequest, unknown: &UnknownPath) -> PlacementError {
    unknown_name(unknown).at_plan(rule.span, "named here")
}

fn unknown_name(unknown: &UnknownPath) -> PlacementError {
    PlacementError::new(PlacementErrorKind::UnknownName, format!("nothing is called `{}`", unknown.path))
        .hint(format!("there are {}", unknown.known.join(", ")))
}

/// The placements of the update's arithmetic: what is decided for values in use, and the store of the
/// optimizer's state, of parameters and of gradients carried along it.
fn place_update<'a>(
    program: &Program,
    assignments: &Assignments<'a>,
    stores: &Stores,
    owners: &stores::Owners,
) -> Result<Assignments<'a>, PlacementError> {
    let mut update = assignments.clone();
    let graph = Graph::of_update(program);
    let is_parameter = |kind: &StateKind| match kind {
        StateKind::Parameter(_) => true,
        StateKind::Master(_) | StateKind::Optimizer { .. } => false,
    };
    // What the optimizer stores says where it computes; parameters' own store only where it doesn't.
    for parameters in [false, true] {
        for (state, shards) in program.states.iter().zip(&stores.states) {
            if is_parameter(&state.kind) == parameters {
                for &(dim, entry) in shards {
                    update.assign(program, state.value, dim, entry, Cause::Rule);
                }
            }
        }
        graph.propagate(&mut update)?;
    }
    for (value, info) in program.values.iter().filter(|(_, info)| info.role == Role::Gradient) {
        let shards = owners[value].map(|owner| stores.gradients[owner].as_slice()).unwrap_or_default();
        for &(dim, entry) in shards.iter().filter(|shard| info.ty.has(shard.0)) {
            update.assign(program, value, dim, entry, Cause::Rule);
        }
    }
    graph.propagate(&mut update)?;
    Ok(update)
}
