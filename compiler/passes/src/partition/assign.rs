//! What is decided of each value: which of its dimensions lie on which axes, by which entry, and why.
//! Only splits are decided here; partial results come about when the program is realised.

use super::error::{PlacementError, PlacementErrorKind};
use super::mesh::{Entry, EntryInfo};
use super::request::PlacementRequest;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use dtlc_ir::{Dim, Mesh, Placement, Program, Value};
use smallvec::SmallVec;

/// Why a value is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Cause {
    /// A rule names it.
    #[default]
    Rule,
    /// It follows another value through what is named here.
    Follows(Value, &'static str),
}

/// One dimension of one value on an entry's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    pub dim: Dim,
    pub entry: Entry,
    pub cause: Cause,
}

/// What assigning did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The value is placed as asked now.
    Placed,
    /// It was already, or an earlier step's assignment stands, or it can't be split that way.
    Unchanged,
    /// Another rule of the same step wants this other dimension on the axis.
    Conflict(Assigned),
    /// The axes do not divide the dimension.
    NotDivisible,
}

/// The decisions for all values.
#[derive(Clone)]
pub(super) struct Assignments<'a> {
    pub request: &'a PlacementRequest,
    pub mesh: &'a Mesh,
    pub entries: &'a PrimaryMap<Entry, EntryInfo>,
    table: SecondaryMap<Value, SmallVec<[Assigned; 2]>>,
    /// Inline placements of each value, which hold its axes for the step that they are.
    pins: SecondaryMap<Value, SmallVec<[(Dim, Entry); 2]>>,
}

impl<'a> Assignments<'a> {
    /// Nothing decided.
    pub fn new(
        request: &'a PlacementRequest,
        mesh: &'a Mesh,
        entries: &'a PrimaryMap<Entry, EntryInfo>,
    ) -> Assignments<'a> {
        let mut pins: SecondaryMap<Value, SmallVec<[(Dim, Entry); 2]>> = SecondaryMap::new();
        for (entry, info) in entries {
            for &value in &request.steps[info.step].rules[info.rule].values {
                pins[value].extend(info.dim.map(|dim| (dim, entry)));
            }
        }
        Assignments { request, mesh, entries, table: SecondaryMap::new(), pins }
    }

    /// What is decided of a value, in order of precedence.
    pub fn of(&self, value: Value) -> &[Assigned] {
        &self.table[value]
    }

    /// The inline placements of a value.
    pub fn pins(&self, value: Value) -> &[(Dim, Entry)] {
        &self.pins[value]
    }

    /// The placement that the decisions for a value come to.
    pub fn placement(&self, value: Value) -> Placement {
        let mut placement = Placement::replicated();
        for assigned in self.of(value) {
            for &axis in &self.entries[assigned.entry].axes {
                placement.add_shard(assigned.dim, axis);
            }
        }
        placement
    }

    /// Whether an entry is an inline placement. Where two of them meet that stand on other values, the earlier
    /// stands.
    pub fn is_pin(&self, entry: Entry) -> bool {
        let info = &self.entries[entry];
        !self.request.steps[info.step].rules[info.rule].values.is_empty()
    }

    /// Whether an entry's axes hold nothing of a value yet.
    fn blocker(&self, value: Value, entry: Entry) -> Option<Assigned> {
        let axes = &self.entries[entry].axes;
        let overlaps =
            |assigned: &&Assigned| self.entries[assigned.entry].axes.iter().any(|axis| axes.contains(axis));
        self.of(value).iter().find(overlaps).copied()
    }

    /// Places `dim` of a value by an entry, if that is free.
    pub fn assign(
        &mut self,
        program: &Program,
        value: Value,
        dim: Dim,
        entry: Entry,
        cause: Cause,
    ) -> Effect {
        let info = &self.entries[entry];
        if info.axes.is_empty() || !program.ty(value).has(dim) {
            return Effect::Unchanged;
        }
        if self.is_pinned_otherwise(value, dim, entry) {
            return Effect::Unchanged;
        }
        let is_rule = !self.is_pin(entry) || cause == Cause::Rule;
        if let Some(other) = self.blocker(value, entry) {
            let same_step = self.entries[other.entry].step == info.step;
            let clash = is_rule && same_step && other.entry != entry && other.dim != dim;
            return if clash { Effect::Conflict(other) } else { Effect::Unchanged };
        }
        let before = self.of(value).iter().find(|assigned| assigned.dim == dim).copied();
        if let Some(other) =
            before.filter(|other| self.entries[other.entry].step == info.step && other.entry != entry)
        {
            return if is_rule { Effect::Conflict(other) } else { Effect::Unchanged };
        }
        let ways = self.ways(value, dim) * self.mesh.group_size(info.axes.iter().copied());
        if !program.dims[dim].size.is_multiple_of(ways) && !program.dims[dim].pad {
            return Effect::NotDivisible;
        }
        let assigned = &mut self.table[value];
        let at = assigned.partition_point(|other| other.entry < entry);
        assigned.insert(at, Assigned { dim, entry, cause });
        Effect::Placed
    }

    /// Whether an inline placement keeps one of the entry's axes for another dimension of this value, or
    /// for this one together with axes that the entry doesn't have.
    fn is_pinned_otherwise(&self, value: Value, dim: Dim, entry: Entry) -> bool {
        let info = &self.entries[entry];
        self.pins[value].iter().any(|&(pinned, by)| {
            let by = &self.entries[by];
            let shares = by.axes.iter().any(|axis| info.axes.contains(axis));
            let covers = pinned == dim && by.axes.iter().all(|axis| info.axes.contains(axis));
            shares && !covers && by.step != info.step
        })
    }

    /// How many ways a dimension of a value is split.
    pub fn ways(&self, value: Value, dim: Dim) -> u64 {
        let of_dim = self.of(value).iter().filter(|assigned| assigned.dim == dim);
        of_dim
            .map(|assigned| self.mesh.group_size(self.entries[assigned.entry].axes.iter().copied()))
            .product()
    }

    /// The step that an entry comes from, as users know it.
    pub fn step_name(&self, entry: Entry) -> &str {
        &self.request.steps[self.entries[entry].step].name
    }

    /// Why a value is placed by an entry: a line for the value, then one for each that it follows, back
    /// to the rule.
    pub fn chain(&self, program: &Program, value: Value, entry: Entry) -> Vec<String> {
        let mut lines = Vec::new();
        let mut at = Some(value);
        while let Some(value) = at {
            let Some(assigned) = self.of(value).iter().find(|assigned| assigned.entry == entry) else {
                break;
            };
            let info = &self.entries[entry];
            let placed = format!(
                "{} has {}@{}",
                describe(program, value),
                program.dims[assigned.dim].name,
                self.mesh.display(&info.axes)
            );
            at = match assigned.cause {
                Cause::Rule => {
                    let rule = &self.request.steps[info.step].rules[info.rule];
                    lines.push(format!("{placed} by step `{}`: {}", self.step_name(entry), rule.text()));
                    None
                }
                Cause::Follows(from, through) => {
                    lines.push(format!("{placed}, as {} has, through {through}", describe(program, from)));
                    Some(from)
                }
            };
        }
        lines
    }

    /// The error for two rules of one step that want different things of a value. `chain` is why the
    /// second is wanted.
    pub fn conflict(
        &self,
        program: &Program,
        value: Value,
        held: Assigned,
        wanted: (Dim, Entry),
        chain: Vec<String>,
    ) -> PlacementError {
        let name = |dim: Dim| &program.dims[dim].name;
        let (held_info, wanted_info) = (&self.entries[held.entry], &self.entries[wanted.1]);
        let places = format!(
            "{}@{} and {}@{}",
            name(held.dim),
            self.mesh.display(&held_info.axes),
            name(wanted.0),
            self.mesh.display(&wanted_info.axes)
        );
        let value_name = describe(program, value);
        let message = if self.is_pin(wanted.1) {
            format!("{value_name} can't be both {places}: an axis cuts a value along one dimension")
        } else {
            format!("step `{}` wants both {places} of {value_name}", self.step_name(held.entry))
        };
        let rule = |info: &EntryInfo| &self.request.steps[info.step].rules[info.rule];
        let held_chain = self.chain(program, value, held.entry);
        PlacementError::new(PlacementErrorKind::Conflict, message)
            .at_plan(rule(wanted_info).span, "one rule")
            .at_plan(rule(held_info).span, "the other")
            .at_model(program.values[value].origin, "this value")
            .because(held_chain.into_iter().chain(chain))
            .hint(if self.is_pin(wanted.1) {
                format!(
                    "leave out one of them, such as `@{}` behind `{}`",
                    self.mesh.display(&wanted_info.axes),
                    name(wanted.0)
                )
            } else {
                format!(
                    "`step other: {}` on its own; the earlier step stands where both meet",
                    rule(wanted_info).text()
                )
            })
    }
}

/// A value as a message names it: its name, else what it is and where.
pub(super) fn describe(program: &Program, value: Value) -> String {
    let info = &program.values[value];
    let origin = &program.origins[info.origin];
    let name = match &info.name {
        Some(name) => format!("`{name}`"),
        None => {
            let dims: Vec<&str> = info.ty.dims.iter().map(|&dim| program.dims[dim].name.as_str()).collect();
            format!("the value [{}]", dims.join(", "))
        }
    };
    if origin.line == 0 { name } else { format!("{name} ({}:{})", origin.file, origin.line) }
}
