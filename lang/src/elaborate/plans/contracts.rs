//! `remat`, `allow` and `expect` of a plan.

use super::paths::Selected;
use super::{Resolver, integer};
use crate::ast::{
    self, Allow, Comparison, Expectation, ExpectedBound, ExpectedCollectives, ExpectedScope, ExprKind,
    RematPolicy,
};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{Operation, ScopeId};
use crate::plan::{Expect, Leave, Path, Policy, Remat};
use crate::source::Span;
use crate::suggest::did_you_mean;

const PHASES: [&str; 5] = ["forward", "recompute", "backward", "gradient", "update"];
const COLLECTIVES: [&str; 5] = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"];

impl Resolver<'_> {
    /// One policy for the layer named, or for every repeated layer.
    pub(super) fn remat(&mut self, item: &ast::Remat) -> Vec<Remat> {
        let policy = match &item.policy {
            RematPolicy::Full(_) => Policy::Full,
            RematPolicy::None(_) => Policy::None,
            RematPolicy::Save(paths) => {
                let prefix = item.target.as_ref().map_or(&[][..], |target| &target.segments);
                let mut saved = Vec::new();
                for path in paths {
                    let mut whole = path.clone();
                    whole.segments = prefix.iter().chain(&path.segments).cloned().collect();
                    let Some((resolved, _)) = self.path(&whole) else { return Vec::new() };
                    let segments = resolved.segments[prefix.len()..].to_vec();
                    saved.push(Path { segments, span: path.span });
                }
                Policy::Save(saved)
            }
            RematPolicy::Other(word) => {
                let known = ["full", "none", "save"];
                let mut diagnostic =
                    Diagnostic::error(Code::NotSupported, format!("no remat policy `{}`", word.name))
                        .label(word.span, "not one of this version")
                        .note("policies: full, none, save VALUE, …");
                if let Some(near) = did_you_mean(&word.name, known) {
                    diagnostic = diagnostic.hint_edit(near, word.span, near);
                }
                self.diagnostics.push(diagnostic);
                return Vec::new();
            }
        };
        let layers = match &item.target {
            Some(target) => self.stacked_layer(target).into_iter().collect(),
            None => {
                let layers = self.repeated_layers(item.span);
                if layers.is_empty() {
                    let title = "`remat` changes nothing: the model has no stack";
                    let label = "what is kept is decided for the layers of a `repeat`";
                    self.diagnostics.push(Diagnostic::warning(Code::NoEffect, title).label(item.span, label));
                }
                layers
            }
        };
        layers.into_iter().map(|layer| Remat { layer, policy: policy.clone(), span: item.span }).collect()
    }

    /// A layer that stands in a stack, or that has one in it.
    fn stacked_layer(&mut self, path: &ast::ValuePath) -> Option<Path> {
        let layer = self.layer_path(path)?;
        let (_, selected) = self.path(path)?;
        let is_selected = |scope| selected.contains(&Selected::Scope(scope));
        let around =
            |scope| std::iter::successors(Some(scope), |&scope: &ScopeId| self.model.scopes[scope].parent);
        let nodes = &self.model.graph.nodes;
        let is_stacked = nodes.values().any(|node| {
            let Operation::Repeat { body, .. } = &node.operation else { return false };
            body.nodes.iter().any(|&node| around(nodes[node].scope).any(is_selected))
        });
        if is_stacked {
            return Some(layer);
        }
        let name = layer.segments.join(".");
        let stacks = self.repeated_layers(path.span);
        let stacks: Vec<&str> = stacks.iter().map(|stack| stack.segments[0].as_str()).collect();
        let mut diagnostic = Diagnostic::error(
            Code::RuleMatchesNothing,
            format!("`{name}` stands in no stack"),
        )
        .label(path.span, "no `repeat` around it")
        .why(
            "`remat` says what a layer of a stack keeps for the backward pass; all else keeps what it needs",
        );
        if let Some(stack) = stacks.first() {
            diagnostic = diagnostic.hint(format!("remat {stack}: …"));
        }
        self.diagnostics.push(diagnostic);
        None
    }

    fn repeated_layers(&self, span: Span) -> Vec<Path> {
        let mut layers: Vec<Path> = Vec::new();
        for node in self.model.graph.nodes.values() {
            let Operation::Repeat { body, .. } = &node.operation else { continue };
            let Some(&carry) = body.nodes.first() else { continue };
            let scope = self.model.graph.nodes[carry].scope;
            let segments = vec![self.model.scopes[scope].layer.clone()];
            if layers.iter().all(|known| known.segments != segments) {
                layers.push(Path { segments, span });
            }
        }
        layers
    }

    pub(super) fn leave(&mut self, item: &Allow) -> Option<Leave> {
        if item.what.name != "gather" {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidSetting, format!("`{}` can't be allowed", item.what.name))
                    .label(item.what.span, "unknown")
                    .hint("allow gather at Block.x"),
            );
            return None;
        }
        let mut at = Vec::new();
        for path in &item.at {
            at.push(self.path(path)?.0);
        }
        Some(Leave { at, span: item.span })
    }

    pub(super) fn expectations(&mut self, item: &ast::Expect) -> Vec<Expect> {
        let mut found = Vec::new();
        for entry in &item.entries {
            match entry {
                Expectation::Collectives(collectives) => found.extend(self.expected_collectives(collectives)),
                Expectation::Bound(bound) => found.extend(self.expected_bound(bound)),
                Expectation::Error(_) => {}
            }
        }
        found
    }

    fn expected_collectives(&mut self, item: &ExpectedCollectives) -> Option<Expect> {
        let layer = match &item.scope {
            ExpectedScope::Per(path) => Some(self.layer_path(path)?.segments.join(".")),
            ExpectedScope::Step(_) => None,
        };
        let phase = match &item.phase {
            Some(phase) if PHASES.contains(&phase.name.as_str()) => Some(phase.name.clone()),
            Some(phase) => {
                self.unknown_word(&phase.name, phase.span, "phase", &PHASES);
                return None;
            }
            None => None,
        };
        let axes = self.axes(&item.axes)?;
        let mut counts: Vec<(String, u64)> = Vec::new();
        for count in &item.counts {
            if !COLLECTIVES.contains(&count.kind.name.as_str()) {
                self.unknown_word(&count.kind.name, count.kind.span, "collective", &COLLECTIVES);
                return None;
            }
            let number = match count.count.kind {
                ExprKind::Integer(0) => Some(0),
                _ => integer(&count.count).ok(),
            };
            let Some(number) = number else {
                self.diagnostics.push(
                    Diagnostic::error(Code::InvalidExpectation, "a count is an integer")
                        .label(count.span, "not one"),
                );
                return None;
            };
            counts.push((count.kind.name.clone(), number));
        }
        let axis = (!axes.is_empty()).then(|| axes.join(","));
        Some(Expect::Collectives { layer, phase, axis, counts, span: item.span })
    }

    fn unknown_word(&mut self, word: &str, span: Span, what: &str, known: &[&str]) {
        let mut diagnostic = Diagnostic::error(Code::InvalidExpectation, format!("no {what} `{word}`"))
            .label(span, "unknown")
            .note(format!("known: {}", known.join(", ")));
        if let Some(near) = did_you_mean(word, known.iter().copied()) {
            diagnostic = diagnostic.hint_edit(near, span, near);
        }
        self.diagnostics.push(diagnostic);
    }

    fn expected_bound(&mut self, item: &ExpectedBound) -> Option<Expect> {
        if item.figure.name != "peak" || item.comparison != Comparison::AtMost {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidExpectation, "not a contract of this version")
                    .label(item.span, "only the peak can be bounded, from above")
                    .hint("peak <= 70 GiB"),
            );
            return None;
        }
        let bytes = self.bytes(&item.amount)?;
        Some(Expect::Peak { bytes, span: item.span })
    }
}
