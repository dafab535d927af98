//! Rules of a plan from which nothing follows: without them everything would lie where it does.
//!
//! Remarks, not errors: the program is right. Inline placements are left out, as they may document where a value is anyway.

use super::assign::{Assignments, Cause};
use super::error::{PlacementError, PlacementErrorKind};
use super::mesh::Entry;
use super::request::{RuleKind, RuleRequest};
use super::select::select;
use super::stores::Stores;
use dtlc_ir::{Axis, Program};
use rustc_hash::FxHashSet;

/// The rules that placed nothing and store nothing; not those whose axes have one rank.
pub(super) fn idle_rules(
    program: &Program,
    assignments: &Assignments<'_>,
    stores: &Stores,
) -> Vec<PlacementError> {
    let placed = program.values.keys().flat_map(|value| assignments.of(value));
    let by_rule = placed.filter(|assigned| assigned.cause == Cause::Rule).map(|assigned| assigned.entry);
    let stored = stores.states.iter().chain(&stores.gradients).flatten().map(|shard| shard.1);
    let busy: FxHashSet<Entry> = by_rule.chain(stored).collect();
    let mut idle = Vec::new();
    for (step, request) in assignments.request.steps.iter().enumerate() {
        for (index, rule) in request.rules.iter().enumerate() {
            let of_rule =
                assignments.entries.iter().filter(|(_, info)| (info.step, info.rule) == (step, index));
            let mut entries =
                of_rule.filter(|(_, info)| !info.axes.is_empty()).map(|(entry, _)| entry).peekable();
            // What is kept has been found to be a part of what is stored.
            let is_asked = rule.values.is_empty() && rule.kind != RuleKind::Keep && entries.peek().is_some();
            if is_asked && !entries.any(|entry| busy.contains(&entry)) {
                idle.push(idle_rule(program, assignments, rule));
            }
        }
    }
    idle
}

fn idle_rule(program: &Program, assignments: &Assignments<'_>, rule: &RuleRequest) -> PlacementError {
    let values = select(program, rule).unwrap_or_default();
    let axes: Vec<Axis> = rule.axes.iter().flat_map(|name| assignments.mesh.find(name)).collect();
    let chain = values.into_iter().find_map(|value| {
        let takes = |entry: Entry| assignments.entries[entry].axes.iter().any(|axis| axes.contains(axis));
        let held = assignments.of(value).iter().find(|held| takes(held.entry))?;
        let is_meant = rule.dims.is_empty() || rule.dims.iter().any(|&dim| program.ty(value).has(dim));
        is_meant.then(|| assignments.chain(program, value, held.entry))
    });
    PlacementError::new(PlacementErrorKind::NoEffect, format!("`{}` changes nothing", rule.text()))
        .at_plan(rule.span, "without it everything lies where it does")
        .because(chain.unwrap_or_default())
        .hint(format!("leave out `{}`", rule.text()))
}
