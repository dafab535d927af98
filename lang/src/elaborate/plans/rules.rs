//! Placement steps: rules resolved against the model, and what can be said against them before anything is placed.

use super::Resolver;
use super::paths::Selected;
use crate::ast::{self, ExprKind, Ident, RoleKind, StepBody, StepRule, StoreDim};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::DimId;
use crate::plan::{Path, Plan, Role, Rule, Step};
use crate::source::Span;
use crate::suggest::did_you_mean;

impl Resolver<'_> {
    pub(super) fn step(&mut self, step: &ast::Step) -> Option<Step> {
        let (name, rules) = match &step.body {
            StepBody::Zero { stage, axes, modifiers } => {
                if let Some(modifier) = modifiers.first() {
                    self.not_supported(modifier.span, &modifier.name);
                }
                let ExprKind::Integer(number @ 0..=3) = stage.kind else {
                    self.diagnostics.push(
                        Diagnostic::error(Code::InvalidSetting, "ZeRO has stages 0 to 3")
                            .label(stage.span, "no such stage")
                            .hint("step zero(1): over dp"),
                    );
                    return None;
                };
                let axes = self.axes(axes)?;
                (format!("zero({number})"), zero_rules(number, &axes, step.span))
            }
            StepBody::Rules(rules) => {
                let mut resolved = Vec::new();
                for rule in rules {
                    match rule {
                        StepRule::Use(rule) => self.use_rule(rule, &mut resolved),
                        StepRule::Store(rule) => resolved.extend(self.store_rule(rule)),
                    }
                }
                (step.name.name.clone(), resolved)
            }
        };
        let step = Step { name, rules, span: step.span };
        self.check_conflicts(&step);
        Some(step)
    }

    fn use_rule(&mut self, rule: &ast::UseRule, into: &mut Vec<Rule>) {
        if let Some(role) = rule.roles.iter().find(|role| role.kind == RoleKind::Backward) {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidSetting, "`backward` is no kind of value in use")
                    .label(role.span, "only a store has it")
                    .why("it is what the backward pass gathers parameters from")
                    .hint("store backward: largest -> dp.inner"),
            );
            return;
        }
        let roles = roles(&rule.roles);
        let axes = self.axes(&rule.axes);
        let at = self.at(&rule.at);
        for name in &rule.dims {
            let Some(dim) = self.rule_dim(name) else { continue };
            let Some((paths, selected)) = &at else { continue };
            if !self.matches(dim, &roles, selected) {
                self.nothing(name, &roles, (&rule.at, selected));
                continue;
            }
            let Some(axes) = axes.clone() else { continue };
            into.push(Rule::Place {
                roles: roles.clone(),
                dim,
                axes,
                pad: rule.pad.is_some(),
                at: paths.clone(),
                span: rule.span,
            });
        }
    }

    fn store_rule(&mut self, rule: &ast::StoreRule) -> Option<Rule> {
        let roles = roles(&rule.roles);
        if let Some(acts) = rule.roles.iter().find(|role| role.kind == RoleKind::Acts) {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidSetting, "activations have no store")
                    .label(acts.span, "only `params`, `grads` and `opt` rest between uses"),
            );
            return None;
        }
        if let Some(pad) = rule.pad {
            self.not_supported(pad, "pad in a store");
        }
        if roles.contains(&Role::Backward) && !self.stands_alone(rule) {
            return None;
        }
        let axes = self.axes(&rule.axes);
        let (paths, selected) = self.at(&rule.at)?;
        let dim = match &rule.dim {
            StoreDim::Largest(_) => None,
            StoreDim::Named(name) => {
                let dim = self.rule_dim(name)?;
                if !self.matches(dim, &[Role::Params], &selected) {
                    self.nothing(name, &[Role::Params], (&rule.at, &selected));
                    return None;
                }
                Some(dim)
            }
        };
        Some(Rule::Store { roles, dim, axes: axes?, at: paths, span: rule.span })
    }

    /// Whether a rule about the backward pass's copies says nothing else: they are parts of what `params` stores.
    fn stands_alone(&mut self, rule: &ast::StoreRule) -> bool {
        let other = rule.roles.iter().find(|role| role.kind != RoleKind::Backward).map(|role| role.span);
        let span = match &rule.dim {
            StoreDim::Largest(_) => other,
            StoreDim::Named(name) => Some(name.span),
        };
        let Some(span) = span else { return true };
        let axes = self.axes(&rule.axes).unwrap_or_default().join(", ");
        self.diagnostics.push(
            Diagnostic::error(Code::InvalidSetting, "the backward pass's copies are a rule of their own")
                .label(span, "not beside `backward`")
                .why("they keep axes of the store of `params`, on the dimension that it cuts")
                .hint(format!("store backward: largest -> {}", axes)),
        );
        false
    }

    fn at(&mut self, paths: &[ast::ValuePath]) -> Option<(Vec<Path>, Vec<Selected>)> {
        let mut resolved = Vec::new();
        let mut selected = Vec::new();
        let mut whole = true;
        for path in paths {
            match self.path(path) {
                Some((path, found)) => {
                    resolved.push(path);
                    selected.extend(found);
                }
                None => whole = false,
            }
        }
        whole.then_some((resolved, selected))
    }

    /// The dim that a rule names, which some value has.
    fn rule_dim(&mut self, name: &Ident) -> Option<DimId> {
        let model = self.model;
        if let Some((dim, _)) = model.dims.iter().find(|(_, dim)| dim.name == name.name) {
            if !self.occurs(dim) && model.params.values().any(|param| param.stack.contains(&dim)) {
                self.diagnostics.push(
                    Diagnostic::error(Code::NotSupported, "a stack of layers can't be placed yet")
                        .label(name.span, format!("`{}` numbers layers", name.name))
                        .why("layers on different ranks are a pipeline, which is of a later version"),
                );
                return None;
            }
            return Some(dim);
        }
        let known = model.dims.values().map(|dim| dim.name.as_str());
        let title = format!("model `{}` has no dimension `{}`", model.name, name.name);
        let mut diagnostic =
            Diagnostic::error(Code::RuleMatchesNothing, title).label(name.span, "matches nothing");
        if let Some(near) = did_you_mean(&name.name, known.clone()) {
            diagnostic = diagnostic.hint_edit(near.to_owned(), name.span, near);
        }
        let known: Vec<&str> = known.collect();
        self.diagnostics.push(diagnostic.note(format!("dimensions: {}", known.join(", "))));
        None
    }

    fn occurs(&self, dim: DimId) -> bool {
        self.matches(dim, &[], &[])
    }

    /// Whether a value of these roles, among those selected if any are, has the dim.
    fn matches(&self, dim: DimId, roles: &[Role], selected: &[Selected]) -> bool {
        if !selected.is_empty() {
            return self.selected_has(selected, dim);
        }
        let params = roles.is_empty() || roles.iter().any(|role| *role != Role::Acts);
        let acts = roles.is_empty() || roles.contains(&Role::Acts);
        let model = self.model;
        (params && model.params.values().any(|it| self.has_factor(&it.dims, dim)))
            || (acts && model.graph.nodes.values().any(|it| self.has_factor(&it.ty.dims, dim)))
    }

    fn nothing(&mut self, name: &Ident, roles: &[Role], (at, selected): (&[ast::ValuePath], &[Selected])) {
        // Of two dims that are declared with one name the second has a number behind it.
        let other = self.model.dims.iter().find(|(dim, data)| {
            let number = data.name.strip_prefix(&name.name);
            number.is_some_and(|number| number.parse::<u64>().is_ok()) && self.matches(*dim, roles, selected)
        });
        let other = other.map(|(_, data)| (data.name.clone(), data.span));
        let roles = roles.iter().map(|role| role_name(*role)).collect::<Vec<_>>().join("|");
        let title = format!("no value that this rule is about has `{}`", name.name);
        let mut diagnostic = Diagnostic::error(Code::RuleMatchesNothing, title)
            .label(name.span, "matches nothing")
            .why("a rule that places nothing is a mistake");
        if let Some(path) = at.first() {
            diagnostic = diagnostic.label(path.span, "narrowed to this");
        } else if !roles.is_empty() {
            diagnostic = diagnostic.note(format!("narrowed to {roles}"));
        }
        if let Some((other, span)) = other {
            diagnostic = diagnostic
                .label(span, format!("another `{}`, which plans call `{other}`", name.name))
                .hint_edit(other.clone(), name.span, &other);
        }
        self.diagnostics.push(diagnostic);
    }

    /// Two rules of one step for the same thing, or for two dims of one tensor on the same axis.
    fn check_conflicts(&mut self, step: &Step) {
        let mut found = Vec::new();
        for (index, second) in step.rules.iter().enumerate() {
            for first in &step.rules[..index] {
                found.extend(self.conflict(step, first, second));
            }
        }
        self.diagnostics.extend(found);
    }

    fn conflict(&self, step: &Step, first: &Rule, second: &Rule) -> Option<Diagnostic> {
        match (first, second) {
            (
                Rule::Place { roles: r1, dim: d1, axes: a1, at: t1, span: s1, .. },
                Rule::Place { roles: r2, dim: d2, axes: a2, at: t2, span: s2, .. },
            ) => {
                if !overlap(r1, r2) || !same_paths(t1, t2) {
                    return None;
                }
                if d1 == d2 {
                    let what = format!("`{}`", self.model.dims[*d1].name);
                    return Some(twice(&step.name, &what, *s1, *s2));
                }
                let shared = a1.iter().find(|axis| a2.contains(axis))?;
                if !t1.is_empty() || self.has_factor(&[*d1], *d2) {
                    return None;
                }
                let (name, span) = self.tensor_with(*d1, *d2, r1, r2)?;
                let title = format!("axis `{shared}` for two dimensions of one tensor");
                let (n1, n2) = (&self.model.dims[*d1].name, &self.model.dims[*d2].name);
                Some(
                    Diagnostic::error(Code::AxisTwice, title)
                        .label(*s2, format!("`{n2}` -> {shared}"))
                        .label(*s1, format!("`{n1}` -> {shared}"))
                        .label(span, format!("{name} has both"))
                        .why("rules of one step have the same weight, and an axis cuts a tensor along one dimension")
                        .hint(format!("step {}: {n1} -> {shared}    // and another step for {n2}", step.name)),
                )
            }
            (
                Rule::Store { roles: r1, at: t1, span: s1, .. },
                Rule::Store { roles: r2, at: t2, span: s2, .. },
            ) => {
                let both = r1.iter().find(|role| r2.contains(role))?;
                same_paths(t1, t2)
                    .then(|| twice(&step.name, &format!("the store of {}", role_name(*both)), *s1, *s2))
            }
            (Rule::Place { .. }, Rule::Store { .. }) | (Rule::Store { .. }, Rule::Place { .. }) => None,
        }
    }

    /// A tensor that both rules are about and that has both dims.
    fn tensor_with(&self, first: DimId, second: DimId, r1: &[Role], r2: &[Role]) -> Option<(String, Span)> {
        let about = |role: Role| [r1, r2].iter().all(|roles| roles.is_empty() || roles.contains(&role));
        let both = |dims: &[DimId]| self.has_factor(dims, first) && self.has_factor(dims, second);
        let model = self.model;
        let params = about(Role::Params) || about(Role::Grads) || about(Role::Opt);
        if let Some(param) = model.params.values().find(|it| params && both(&it.dims)) {
            return Some((format!("`{}`", param.path), param.span));
        }
        let node = model.graph.nodes.values().find(|it| about(Role::Acts) && both(&it.ty.dims))?;
        Some(("this value".to_owned(), node.span))
    }

    /// Dims with a size that the axes on them do not divide.
    pub(super) fn check_divisions(&mut self, plan: &Plan) {
        let mut found = Vec::new();
        let places = plan.steps.iter().flat_map(|step| &step.rules).filter_map(|rule| match rule {
            Rule::Place { dim, axes, pad: false, span, .. } => Some((*dim, axes, *span)),
            Rule::Place { .. } | Rule::Store { .. } => None,
        });
        let places: Vec<_> = places.collect();
        for &(dim, axes, span) in &places {
            let data = &self.model.dims[dim];
            let ranks: u64 = axes.iter().map(|axis| self.axis_size(axis)).product();
            if data.open || Some(dim) == self.model.batch || self.divides(dim, ranks) {
                continue;
            }
            // Fewer key heads than ranks use the major part of the axis, where their product with the group is cut too.
            let whole = places.iter().any(|&(other, others, _)| {
                other != dim && others == axes && self.model.dims[other].factors.contains(&dim)
            });
            if whole && ranks.is_multiple_of(data.size) {
                continue;
            }
            let axes = axes.join(", ");
            let mut diagnostic = Diagnostic::error(
                Code::NotDivided,
                format!("`{}` has {} elements, which {ranks} ranks do not divide", data.name, data.size),
            )
            .label(span, format!("placed on {axes}"))
            .label(data.span, format!("`{}` is declared here", data.name))
            .why("each rank gets an equal part");
            diagnostic = if data.factors.is_empty() {
                diagnostic.hint(format!("{} -> {axes} pad", data.name))
            } else {
                let factors: Vec<String> = data
                    .factors
                    .iter()
                    .map(|&it| format!("{} ({})", self.model.dims[it].name, self.model.dims[it].size))
                    .collect();
                diagnostic.note(format!(
                    "{} is cut along its factors, the major one first: {}",
                    data.name,
                    factors.join(" * ")
                ))
            };
            found.push(diagnostic);
        }
        self.diagnostics.extend(found);
    }

    /// Whether ranks cut a dim into equal parts, factor by factor.
    fn divides(&self, dim: DimId, ranks: u64) -> bool {
        let mut left = ranks;
        for atom in self.model.atoms(dim) {
            let size = self.model.dims[atom].size;
            if size.is_multiple_of(left) {
                return true;
            }
            if !left.is_multiple_of(size) {
                return false;
            }
            left /= size;
        }
        left == 1
    }
}

fn zero_rules(stage: u64, axes: &[String], span: Span) -> Vec<Rule> {
    let roles: &[Role] = match stage {
        0 => return Vec::new(),
        1 => &[Role::Opt],
        2 => &[Role::Opt, Role::Grads],
        _ => &[Role::Opt, Role::Grads, Role::Params],
    };
    vec![Rule::Store { roles: roles.to_vec(), dim: None, axes: axes.to_vec(), at: Vec::new(), span }]
}

fn roles(roles: &[ast::Role]) -> Vec<Role> {
    let mut found = Vec::new();
    for role in roles {
        let role = match role.kind {
            RoleKind::Params => Role::Params,
            RoleKind::Grads => Role::Grads,
            RoleKind::Opt => Role::Opt,
            RoleKind::Acts => Role::Acts,
            RoleKind::Backward => Role::Backward,
        };
        if !found.contains(&role) {
            found.push(role);
        }
    }
    found
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Params => "params",
        Role::Grads => "grads",
        Role::Opt => "opt",
        Role::Acts => "acts",
        Role::Backward => "backward",
    }
}

fn overlap(left: &[Role], right: &[Role]) -> bool {
    left.is_empty() || right.is_empty() || left.iter().any(|role| right.contains(role))
}

fn same_paths(left: &[Path], right: &[Path]) -> bool {
    let shared = |path: &Path| right.iter().any(|other| other.segments == path.segments);
    (left.is_empty() && right.is_empty()) || left.iter().any(shared)
}

fn twice(step: &str, what: &str, first: Span, second: Span) -> Diagnostic {
    let mut diagnostic =
        Diagnostic::error(Code::ConflictingRules, format!("step `{step}` places {what} twice"))
            .label(second, "placed again")
            .why("rules of one step have the same weight, so neither could give way")
            .hint("step other: …    // one of the two, in a step of its own");
    if first != second {
        diagnostic = diagnostic.label(first, "placed here");
    }
    diagnostic
}
