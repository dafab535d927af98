//! Where state rests between uses: the `store` rules, for parameters, gradients and optimizer state.
//! A store adds one dimension of each parameter to what its use splits already, one that its gradient can get to
//! from where it is made. What can't be divided stays whole and is reported.

use super::assign::Assignments;
use super::error::{PlacementError, PlacementErrorKind};
use super::mesh::Entry;
use super::request::{RuleKind, RuleRequest, role_name};
use super::select::{has_role, select};
use cranelift_entity::SecondaryMap;
use dtlc_ir::{Axis, Dim, Inst, Op, Placement, Program, Region, Role, ScalarOp, StateKind, Value};
use smallvec::SmallVec;

/// A dimension that a store adds, on the axes of an entry.
pub(super) type StoreShard = (Dim, Entry);

/// The stores of a program.
#[derive(Default)]
pub(super) struct Stores {
    /// For each state, what its store adds to its use.
    pub states: Vec<SmallVec<[StoreShard; 1]>>,
    /// For each state that is a parameter, what the store of its gradient adds.
    pub gradients: Vec<SmallVec<[StoreShard; 1]>>,
    /// For each state that is a parameter, the axes of its store that the backward pass's copy keeps.
    pub kept: Vec<SmallVec<[Axis; 2]>>,
    /// What stays whole although a rule would store it in parts: the state's path and the rule.
    pub whole: Vec<(String, String)>,
}

/// The parameter that each value is a copy, a slice or the gradient of, by its index in the states.
pub(super) type Owners = SecondaryMap<Value, Option<usize>>;

/// Finds the owners of all values.
pub(super) fn owners(program: &Program) -> Owners {
    let mut owners = Owners::new();
    for (index, state) in program.states.iter().enumerate() {
        owners[state.value] = match state.kind {
            StateKind::Parameter(_) => Some(index),
            StateKind::Master(_) | StateKind::Optimizer { .. } => None,
        };
    }
    own_region(program, &program.main, &mut owners);
    owners
}

fn own_region(program: &Program, region: &Region, owners: &mut Owners) {
    for inst in &region.insts {
        if let Op::Scan(scan) = &inst.op {
            for (&arg, &param) in inst.args.iter().zip(&scan.body.params) {
                owners[param] = owners[arg];
            }
            own_region(program, &scan.body, owners);
            for (&value, &result) in scan.body.yields.iter().zip(&inst.results) {
                owners[result] = owners[value];
            }
        }
        own_results(program, inst, owners);
    }
}

/// A gradient belongs to its parameter's owner; what is made from one gradient alone belongs there too, and so does a parameter in
/// another type.
fn own_results(program: &Program, inst: &Inst, owners: &mut Owners) {
    for &result in &inst.results {
        let info = &program.values[result];
        if let Some(value) = info.gradient_of {
            owners[result] = owners[value];
        } else if info.role == Role::Parameter && inst.op == Op::Map(ScalarOp::Cast) {
            owners[result] = owners[inst.args[0]];
        } else if info.role == Role::Gradient && owners[result].is_none() {
            let known = inst.args.iter().filter(|&&arg| program.values[arg].role == Role::Gradient);
            owners[result] = known.filter_map(|&arg| owners[arg]).next();
        }
    }
}

/// Decides the stores, once everything in use is placed.
///
/// # Errors
/// A rule that names a dimension or value that no parameter has, or a dimension that its axes do not divide.
pub(super) fn decide(
    program: &Program,
    assignments: &Assignments<'_>,
    owners: &Owners,
    looped: &[Dim],
) -> Result<Stores, Vec<PlacementError>> {
    let count = program.states.len();
    let mut stores = Stores {
        states: vec![SmallVec::new(); count],
        gradients: vec![SmallVec::new(); count],
        kept: vec![SmallVec::new(); count],
        whole: Vec::new(),
    };
    let mut made = vec![Vec::new(); count];
    for (value, _) in program.values.iter().filter(|(_, info)| info.role == Role::Gradient) {
        if let Some(owner) = owners[value] {
            made[owner].push(value);
        }
    }
    let rests = Rests { program, assignments, owners, looped, made };
    let mut errors = Vec::new();
    // What is kept is a part of what is stored, so all stores come first.
    let rules = |kind: RuleKind| {
        let all = assignments.entries.iter();
        let rules = all.map(|(entry, info)| (entry, &assignments.request.steps[info.step].rules[info.rule]));
        rules.filter(move |(_, rule)| rule.kind == kind)
    };
    errors.extend(
        rules(RuleKind::Store).filter_map(|(entry, rule)| rests.apply(entry, rule, &mut stores).err()),
    );
    errors
        .extend(rules(RuleKind::Keep).filter_map(|(entry, rule)| rests.keep(entry, rule, &mut stores).err()));
    if errors.is_empty() { Ok(stores) } else { Err(errors) }
}

/// What decides where state rests.
struct Rests<'a> {
    program: &'a Program,
    assignments: &'a Assignments<'a>,
    owners: &'a Owners,
    looped: &'a [Dim],
    /// For each state, the values that its gradient is made of.
    made: Vec<Vec<Value>>,
}

impl Rests<'_> {
    fn apply(&self, entry: Entry, rule: &RuleRequest, stores: &mut Stores) -> Result<(), PlacementError> {
        let program = self.program;
        let selected = selected_states(program, self.owners, rule)?;
        let (mut asked, mut matched) = (false, false);
        let mut whole: Vec<String> = Vec::new();
        for (index, state) in program.states.iter().enumerate() {
            let (roles, parameter): (&[Role], usize) = match &state.kind {
                StateKind::Parameter(_) => (&[Role::Parameter, Role::Gradient], index),
                StateKind::Master(parameter) | StateKind::Optimizer { parameter, .. } => {
                    (&[Role::Optimizer], *parameter)
                }
            };
            let is_asked = |role: &&Role| selected.contains(&parameter) && has_role(&rule.roles, **role);
            for role in roles.iter().filter(is_asked) {
                asked = true;
                matched |= rule.dims.iter().all(|&dim| program.ty(state.value).has(dim));
                let shards = if *role == Role::Gradient {
                    &mut stores.gradients[index]
                } else {
                    &mut stores.states[index]
                };
                let path = &program.states[parameter].path;
                match self.pick(entry, rule, parameter, shards)? {
                    Some(dim) => shards.push((dim, entry)),
                    None if whole.contains(path) || self.assignments.entries[entry].axes.is_empty() => {}
                    None => whole.push(path.clone()),
                }
            }
        }
        stores.whole.extend(whole.into_iter().map(|path| (path, rule.text())));
        // An evaluation has no optimizer, and then its store is about nothing.
        if matched || !asked || rule.dims.is_empty() { Ok(()) } else { Err(no_match(rule)) }
    }

    /// Notes the axes that the backward pass's copies keep of the parameters' stores.
    fn keep(&self, entry: Entry, rule: &RuleRequest, stores: &mut Stores) -> Result<(), PlacementError> {
        let axes = &self.assignments.entries[entry].axes;
        let mut matched = axes.is_empty();
        for index in selected_states(self.program, self.owners, rule)? {
            if !matches!(self.program.states[index].kind, StateKind::Parameter(_)) {
                continue;
            }
            let stored =
                stores.states[index].iter().flat_map(|shard| &self.assignments.entries[shard.1].axes);
            let kept: SmallVec<[Axis; 2]> = stored.filter(|axis| axes.contains(axis)).copied().collect();
            matched |= !kept.is_empty();
            stores.kept[index].extend(kept);
        }
        if matched { Ok(()) } else { Err(nothing_stored(rule)) }
    }

    /// The dimension of a parameter that a store splits: the one named, or the largest that remains once its use is
    /// split and that the axes divide. None where the use has one of the axes, or nothing divides.
    fn pick(
        &self,
        entry: Entry,
        rule: &RuleRequest,
        parameter: usize,
        before: &[StoreShard],
    ) -> Result<Option<Dim>, PlacementError> {
        let axes = &self.assignments.entries[entry].axes;
        let value = self.program.states[parameter].value;
        let used = self.assignments.of(value).iter().map(|assigned| assigned.entry);
        let mut taken = used.chain(before.iter().map(|shard| shard.1));
        let overlaps =
            |other: Entry| self.assignments.entries[other].axes.iter().any(|axis| axes.contains(axis));
        if axes.is_empty() || taken.any(overlaps) {
            return Ok(None);
        }
        if let Some(&named) = rule.dims.first() {
            if !self.program.ty(value).has(named) {
                return Ok(None);
            }
            return match self.divided(value, named, entry, before) {
                Some(_) => Ok(Some(named)),
                None => Err(not_divisible(self.program, self.assignments, rule, parameter, self.ways(entry))),
            };
        }
        let mut best: Option<(u64, Dim)> = None;
        for &dim in &self.program.ty(value).dims {
            let is_layers = self.looped.contains(&dim) || self.program.states[parameter].stack == Some(dim);
            // A gradient that is made in parts which those of the store do not divide further would have to be
            // gathered on its way.
            let reaches = |part: Value| {
                let here = self.assignments.of(part).iter().any(|assigned| overlaps(assigned.entry));
                here || self.divided(part, dim, entry, before).is_some()
            };
            let mut made = self.made[parameter].iter().filter(|&&part| self.program.ty(part).has(dim));
            if !is_layers
                && let Some(size) = self.divided(value, dim, entry, before)
                && made.all(|&part| reaches(part))
                && best.is_none_or(|(largest, _)| size > largest)
            {
                best = Some((size, dim));
            }
        }
        Ok(best.map(|(_, dim)| dim))
    }

    /// What remains of a dimension of a value once its use and earlier stores split it, if the entry divides that.
    fn divided(&self, value: Value, dim: Dim, entry: Entry, before: &[StoreShard]) -> Option<u64> {
        let stored: u64 =
            before.iter().filter(|shard| shard.0 == dim).map(|shard| self.ways(shard.1)).product();
        let split = self.assignments.ways(value, dim) * stored;
        let size = self.program.dims[dim].size;
        let remains = size.is_multiple_of(split).then_some(size / split)?;
        remains.is_multiple_of(self.ways(entry)).then_some(remains)
    }

    fn ways(&self, entry: Entry) -> u64 {
        self.assignments.mesh.group_size(self.assignments.entries[entry].axes.iter().copied())
    }
}

fn no_match(rule: &RuleRequest) -> PlacementError {
    let roles: Vec<&str> = rule.roles.iter().map(|&role| role_name(role)).collect();
    let message = format!("no {} with a dimension `{}`", roles.join(" or "), rule.dim_name);
    let (roles, axes) = (roles.join(", "), rule.axes.join(", "));
    PlacementError::new(PlacementErrorKind::NoMatch, message)
        .at_plan(rule.span, "this rule matches nothing")
        .hint(format!("`store {roles}: largest -> {axes}` picks a dimension for each"))
}

fn nothing_stored(rule: &RuleRequest) -> PlacementError {
    let axes = rule.axes.join(", ");
    let message = format!("no parameter is stored in parts over {axes}");
    PlacementError::new(PlacementErrorKind::NoMatch, message)
        .at_plan(rule.span, "there is nothing to keep on these axes")
        .hint(format!("zero(3): over {axes}"))
}

/// The parameters that a rule is about, by index.
fn selected_states(
    program: &Program,
    owners: &Owners,
    rule: &RuleRequest,
) -> Result<Vec<usize>, PlacementError> {
    if rule.at.is_empty() {
        return Ok((0..program.states.len()).collect());
    }
    let all_roles = RuleRequest { roles: Vec::new(), ..rule.clone() };
    let values = select(program, &all_roles).map_err(|unknown| super::unknown_path(rule, &unknown))?;
    Ok(values.into_iter().filter_map(|value| owners[value]).collect())
}

fn not_divisible(
    program: &Program,
    assignments: &Assignments<'_>,
    rule: &RuleRequest,
    parameter: usize,
    ways: u64,
) -> PlacementError {
    let state = &program.states[parameter];
    let message = format!("`{}` of `{}` is not divided by {ways} ranks more", rule.dim_name, state.path);
    let used = assignments.of(state.value);
    let chains = used.iter().flat_map(|assigned| assignments.chain(program, state.value, assigned.entry));
    PlacementError::new(PlacementErrorKind::NotDivisible, message)
        .at_plan(rule.span, "stored by this rule")
        .at_model(program.values[state.value].origin, "declared here")
        .because(chains)
        .hint("leave the dimension out: `largest` takes one that is divided")
}

/// Adds what a store adds to a placement.
pub(super) fn add_shards(placement: &mut Placement, shards: &[StoreShard], assignments: &Assignments<'_>) {
    for &(dim, entry) in shards {
        for &axis in &assignments.entries[entry].axes {
            placement.add_shard(dim, axis);
        }
    }
}
