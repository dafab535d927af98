//! From parsed pairs to tree nodes: plans.
//!
//! Also the table of a plan's entries by their first word.

use pest::iterators::Pair;

use super::expression::parse_number;
use super::grammar::Rule;
use super::item::unquoted;
use super::message;
use super::pieces::Pieces;
use crate::ast::{
    Allow, AxisRef, Comparison, Expect, Expectation, ExpectedBound, ExpectedCollectives, ExpectedCount,
    ExpectedScope, Expr, ExprKind, Ident, LaterItem, MemoryLimit, Mesh, MeshAxis, MeshSize, PlanArgument,
    PlanDims, PlanItem, PlanOptimizer, PlanValue, PlanValueKind, Remat, RematPolicy, Role, RoleKind, Setting,
    SettingsItem, SettingsKind, Step, StepBody, StepRule, StoreDim, StoreRule, UseRule, ValuePath,
};
use crate::source::Span;

/// The words that begin an entry of a plan.
pub(super) const ENTRY_KEYWORDS: [&str; 14] = [
    "mesh",
    "step",
    "batch",
    "precision",
    "memory",
    "remat",
    "optimizer",
    "dims",
    "allow",
    "expect",
    "pipeline",
    "moe",
    "context",
    "offload",
];

/// The rule of the entry that begins with a word.
pub(super) fn entry_rule(word: &str) -> Option<Rule> {
    Some(match word {
        "mesh" => Rule::mesh_item,
        "step" => Rule::step_item,
        "batch" | "precision" => Rule::settings_item,
        "memory" => Rule::memory_item,
        "remat" => Rule::remat_item,
        "optimizer" => Rule::plan_optimizer,
        "dims" => Rule::dims_member,
        "allow" => Rule::allow_item,
        "expect" => Rule::expect_item,
        "pipeline" | "moe" | "context" | "offload" => Rule::later_item,
        _ => return None,
    })
}

/// What use and store rules share after their arrow.
struct RuleTail {
    axes: Vec<AxisRef>,
    pad: Option<Span>,
    at: Vec<ValuePath>,
}

impl Pieces<'_> {
    /// The plan's own name and its model's.
    pub(super) fn plan_head(&self, pair: Pair<'_, Rule>) -> (Ident, Ident) {
        let mut names = self.idents(pair.clone()).into_iter();
        match (names.next(), names.next()) {
            (Some(name), Some(model)) => (name, model),
            _ => (self.name_of(&pair), self.name_of(&pair)),
        }
    }

    pub(super) fn plan_item(&self, pair: Pair<'_, Rule>) -> PlanItem {
        let span = self.span(&pair);
        match pair.as_rule() {
            Rule::mesh_item => PlanItem::Mesh(Mesh { span, axes: self.mesh_item(pair) }),
            Rule::step_item => self.step_item(pair),
            Rule::settings_item => PlanItem::Settings(self.settings_item(pair)),
            Rule::memory_item => {
                let amount = self.only_plan_value(pair);
                PlanItem::Memory(MemoryLimit { span, amount })
            }
            Rule::remat_item => self.remat(pair),
            Rule::plan_optimizer => PlanItem::Optimizer(PlanOptimizer {
                span,
                name: self.name_of(&pair),
                settings: self.settings(pair),
            }),
            Rule::dims_member => PlanItem::Dims(PlanDims { span, dims: self.dim_declarations(pair) }),
            Rule::allow_item => {
                PlanItem::Allow(Allow { span, what: self.name_of(&pair), at: self.at_paths(pair) })
            }
            Rule::expect_item => PlanItem::Expect(Expect { span, entries: self.expectations(pair) }),
            Rule::later_item => self.later_item(pair),
            _ => {
                self.report(message::fault(span));
                PlanItem::Error(span)
            }
        }
    }

    fn mesh_item(&self, pair: Pair<'_, Rule>) -> Vec<MeshAxis> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::mesh_axes)
            .flat_map(|child| self.mesh_axes(child))
            .collect()
    }

    fn mesh_axes(&self, pair: Pair<'_, Rule>) -> Vec<MeshAxis> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::mesh_axis)
            .map(|child| {
                let span = self.span(&child);
                let name = self.name_of(&child);
                let parts = child.clone().into_inner().find(|part| part.as_rule() == Rule::mesh_axes);
                let size = match parts {
                    Some(parts) => MeshSize::Parts(self.mesh_axes(parts)),
                    None => MeshSize::Ranks(self.only_expression(child)),
                };
                MeshAxis { span, name, size }
            })
            .collect()
    }

    fn step_item(&self, pair: Pair<'_, Rule>) -> PlanItem {
        let span = self.span(&pair);
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::zero_step => return PlanItem::Step(self.zero_step(span, child)),
                Rule::rules_step => {
                    let name = self.name_of(&child);
                    let body = StepBody::Rules(self.step_rules(child));
                    return PlanItem::Step(Step { span, name, body });
                }
                _ => {}
            }
        }
        self.report(message::fault(span));
        PlanItem::Error(span)
    }

    fn zero_step(&self, span: Span, pair: Pair<'_, Rule>) -> Step {
        let mut name = Ident { span, name: "zero".to_owned() };
        let mut stage = Expr { span, kind: ExprKind::Error };
        let (mut axes, mut modifiers) = (Vec::new(), Vec::new());
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::kw_zero => name = self.ident(&child),
                Rule::number => stage = self.number(&child),
                Rule::zero_target => {
                    modifiers = self.idents(child.clone());
                    axes = self.axes_inside(child);
                }
                _ => {}
            }
        }
        Step { span, name, body: StepBody::Zero { stage, axes, modifiers } }
    }

    fn step_rules(&self, pair: Pair<'_, Rule>) -> Vec<StepRule> {
        pair.into_inner()
            .filter_map(|child| match child.as_rule() {
                Rule::use_rule => Some(StepRule::Use(self.use_rule(child))),
                Rule::store_rule => Some(StepRule::Store(self.store_rule(child))),
                _ => None,
            })
            .collect()
    }

    fn use_rule(&self, pair: Pair<'_, Rule>) -> UseRule {
        let span = self.span(&pair);
        let roles = self.roles(pair.clone());
        let dims = pair
            .clone()
            .into_inner()
            .find(|child| child.as_rule() == Rule::rule_dims)
            .map_or_else(Vec::new, |child| self.idents(child));
        let RuleTail { axes, pad, at } = self.rule_tail(pair);
        UseRule { span, roles, dims, axes, pad, at }
    }

    fn store_rule(&self, pair: Pair<'_, Rule>) -> StoreRule {
        let span = self.span(&pair);
        let roles = self.roles(pair.clone());
        let mut dim = StoreDim::Largest(span);
        for child in pair.clone().into_inner() {
            if child.as_rule() == Rule::store_dim {
                let named = self.idents(child.clone()).into_iter().next();
                dim = named.map_or(StoreDim::Largest(self.span(&child)), StoreDim::Named);
            }
        }
        let RuleTail { axes, pad, at } = self.rule_tail(pair);
        StoreRule { span, roles, dim, axes, pad, at }
    }

    fn roles(&self, pair: Pair<'_, Rule>) -> Vec<Role> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::roles)
            .flat_map(Pair::into_inner)
            .filter(|child| child.as_rule() == Rule::role)
            .map(|child| {
                let kind = match child.as_str() {
                    "params" => RoleKind::Params,
                    "grads" => RoleKind::Grads,
                    "opt" => RoleKind::Opt,
                    "backward" => RoleKind::Backward,
                    _ => RoleKind::Acts,
                };
                Role { span: self.span(&child), kind }
            })
            .collect()
    }

    fn rule_tail(&self, pair: Pair<'_, Rule>) -> RuleTail {
        let pad = pair
            .clone()
            .into_inner()
            .find(|child| child.as_rule() == Rule::kw_pad)
            .map(|child| self.span(&child));
        RuleTail { axes: self.axes_inside(pair.clone()), pad, at: self.at_paths(pair) }
    }

    fn axes_inside(&self, pair: Pair<'_, Rule>) -> Vec<AxisRef> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::axes)
            .flat_map(|child| self.axes(child))
            .collect()
    }

    fn at_paths(&self, pair: Pair<'_, Rule>) -> Vec<ValuePath> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::at_paths)
            .flat_map(|child| self.value_paths(child))
            .collect()
    }

    fn value_paths(&self, pair: Pair<'_, Rule>) -> Vec<ValuePath> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::value_path)
            .map(|child| self.value_path(child))
            .collect()
    }

    fn value_path(&self, pair: Pair<'_, Rule>) -> ValuePath {
        let span = self.span(&pair);
        let segments = pair
            .into_inner()
            .filter(|child| matches!(child.as_rule(), Rule::word | Rule::axis_part))
            .map(|child| self.ident(&child))
            .collect();
        ValuePath { span, segments }
    }

    fn settings_item(&self, pair: Pair<'_, Rule>) -> SettingsItem {
        let span = self.span(&pair);
        let kind =
            if pair.as_str().starts_with("batch") { SettingsKind::Batch } else { SettingsKind::Precision };
        SettingsItem { span, kind, settings: self.settings(pair) }
    }

    fn settings(&self, pair: Pair<'_, Rule>) -> Vec<Setting> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::settings)
            .flat_map(Pair::into_inner)
            .filter(|child| child.as_rule() == Rule::setting)
            .map(|child| {
                let span = self.span(&child);
                let mut names = self.idents(child.clone()).into_iter();
                let name = names.next();
                Setting {
                    span,
                    name: name.unwrap_or_else(|| self.name_of(&child)),
                    on: names.collect(),
                    value: self.only_plan_value(child),
                }
            })
            .collect()
    }

    fn only_plan_value(&self, pair: Pair<'_, Rule>) -> PlanValue {
        let span = self.span(&pair);
        match pair.into_inner().find(|child| child.as_rule() == Rule::plan_value) {
            Some(child) => self.plan_value(child),
            None => self.fault_value(span),
        }
    }

    fn fault_value(&self, span: Span) -> PlanValue {
        self.report(message::fault(span));
        PlanValue { span, kind: PlanValueKind::Error }
    }

    fn plan_value(&self, pair: Pair<'_, Rule>) -> PlanValue {
        let span = self.span(&pair);
        let Some(inner) = pair.into_inner().next() else {
            return self.fault_value(span);
        };
        let kind = match inner.as_rule() {
            Rule::quantity => self.quantity(inner),
            Rule::plan_number => self.plan_number(&inner),
            Rule::boolean => PlanValueKind::Bool(inner.as_str() == "true"),
            Rule::string => PlanValueKind::String(unquoted(inner.as_str())),
            Rule::ident => PlanValueKind::Name(self.ident(&inner)),
            Rule::plan_tuple => PlanValueKind::Tuple(
                inner
                    .into_inner()
                    .filter(|child| child.as_rule() == Rule::plan_value)
                    .map(|child| self.plan_value(child))
                    .collect(),
            ),
            Rule::plan_call => self.plan_call(inner),
            _ => return self.fault_value(span),
        };
        PlanValue { span, kind }
    }

    fn plan_number(&self, pair: &Pair<'_, Rule>) -> PlanValueKind {
        let text: String = pair.as_str().chars().filter(|&c| c != '_').collect();
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.as_str()),
        };
        match parse_number(text) {
            Some(ExprKind::Integer(value)) if !negative => PlanValueKind::Integer(value),
            Some(ExprKind::Integer(value)) => PlanValueKind::Float(-(value as f64)),
            Some(ExprKind::Float(value)) => PlanValueKind::Float(if negative { -value } else { value }),
            _ => {
                self.report(message::number_out_of_range(self.span(pair), pair.as_str()));
                PlanValueKind::Error
            }
        }
    }

    fn quantity(&self, pair: Pair<'_, Rule>) -> PlanValueKind {
        let mut number = PlanValueKind::Error;
        let mut unit = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::plan_number => number = self.plan_number(&child),
                Rule::unit => unit = Some(self.ident(&child)),
                _ => {}
            }
        }
        match (number, unit) {
            (PlanValueKind::Integer(value), Some(unit)) => {
                PlanValueKind::Quantity { number: value as f64, unit }
            }
            (PlanValueKind::Float(number), Some(unit)) => PlanValueKind::Quantity { number, unit },
            _ => PlanValueKind::Error,
        }
    }

    fn plan_call(&self, pair: Pair<'_, Rule>) -> PlanValueKind {
        let name = self.name_of(&pair);
        let arguments = pair
            .into_inner()
            .filter(|child| child.as_rule() == Rule::plan_arguments)
            .flat_map(Pair::into_inner)
            .filter(|child| child.as_rule() == Rule::plan_argument)
            .map(|child| self.plan_argument(child))
            .collect();
        PlanValueKind::Call { name, arguments }
    }

    fn plan_argument(&self, pair: Pair<'_, Rule>) -> PlanArgument {
        let span = self.span(&pair);
        let named = pair.clone().into_inner().find(|child| child.as_rule() == Rule::named_value);
        match named {
            Some(named) => {
                PlanArgument { span, name: Some(self.name_of(&named)), value: self.only_plan_value(named) }
            }
            None => PlanArgument { span, name: None, value: self.only_plan_value(pair) },
        }
    }

    fn remat(&self, pair: Pair<'_, Rule>) -> PlanItem {
        let span = self.span(&pair);
        let target = self.value_paths(pair.clone()).into_iter().next();
        let policy = pair.into_inner().find(|child| child.as_rule() == Rule::remat_policy);
        let Some(policy) = policy else {
            self.report(message::fault(span));
            return PlanItem::Error(span);
        };
        let policy_span = self.span(&policy);
        let word = self.idents(policy.clone()).into_iter().next();
        let policy = match word {
            None => RematPolicy::Save(self.value_paths(policy)),
            Some(word) if word.name == "full" => RematPolicy::Full(policy_span),
            Some(word) if word.name == "none" => RematPolicy::None(policy_span),
            Some(word) => RematPolicy::Other(word),
        };
        PlanItem::Remat(Remat { span, target, policy })
    }

    fn expectations(&self, pair: Pair<'_, Rule>) -> Vec<Expectation> {
        pair.into_inner()
            .filter_map(|child| match child.as_rule() {
                Rule::expect_collectives => Some(Expectation::Collectives(self.expected_collectives(child))),
                Rule::expect_bound => Some(Expectation::Bound(self.expected_bound(child))),
                _ => None,
            })
            .collect()
    }

    fn expected_collectives(&self, pair: Pair<'_, Rule>) -> ExpectedCollectives {
        let span = self.span(&pair);
        let mut scope = ExpectedScope::Step(span);
        let (mut phase, mut axes, mut counts) = (None, Vec::new(), Vec::new());
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::kw_step => scope = ExpectedScope::Step(self.span(&child)),
                Rule::value_path => scope = ExpectedScope::Per(self.value_path(child)),
                Rule::expect_phase => phase = Some(self.name_of(&child)),
                Rule::expect_axes => axes = self.axes_inside(child),
                Rule::expect_counts => counts = self.expected_counts(child),
                _ => {}
            }
        }
        ExpectedCollectives { span, scope, phase, axes, counts }
    }

    fn expected_counts(&self, pair: Pair<'_, Rule>) -> Vec<ExpectedCount> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::expect_count)
            .map(|child| {
                let span = self.span(&child);
                let number = child.clone().into_inner().find(|part| part.as_rule() == Rule::number);
                ExpectedCount {
                    span,
                    count: number.map_or_else(|| self.fault_expression(span), |part| self.number(&part)),
                    kind: self.name_of(&child),
                }
            })
            .collect()
    }

    fn expected_bound(&self, pair: Pair<'_, Rule>) -> ExpectedBound {
        let comparison = pair.clone().into_inner().find(|child| child.as_rule() == Rule::comparison).map_or(
            Comparison::AtMost,
            |child| match child.as_str() {
                "<" => Comparison::Below,
                ">=" => Comparison::AtLeast,
                ">" => Comparison::Above,
                "==" => Comparison::Equal,
                _ => Comparison::AtMost,
            },
        );
        ExpectedBound {
            span: self.span(&pair),
            figure: self.name_of(&pair),
            comparison,
            amount: self.only_plan_value(pair),
        }
    }

    fn later_item(&self, pair: Pair<'_, Rule>) -> PlanItem {
        let span = self.span(&pair);
        let keyword = pair
            .into_inner()
            .find(|child| child.as_rule() == Rule::later_keyword)
            .map_or(Ident { span, name: String::new() }, |child| self.ident(&child));
        PlanItem::Later(LaterItem { span, keyword })
    }
}
