//! What a plan asks of the partitioner, in the IR's dimensions: a mesh and steps of rules. Made from
//! the typed plan; tests make it by hand.

use crate::lower::Pin;
use dtlc_ir::{AxisInfo, Dim, Mesh, Program, Role, Value};
use dtlc_lang::model::{DimId, Model};
use dtlc_lang::plan;
use dtlc_lang::source::Span;

/// Mesh and placement rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementRequest {
    /// The mesh as the plan writes it. Refinement may split its axes further.
    pub mesh: Mesh,
    /// In order; each is propagated to a fixed point before the next.
    pub steps: Vec<StepRequest>,
    /// Paths of values that may be gathered on their way; an empty path means all.
    pub leave: Vec<Vec<String>>,
}

/// Rules that are propagated together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRequest {
    /// The step's name in the plan.
    pub name: String,
    /// Its rules.
    pub rules: Vec<RuleRequest>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// Places values in use.
    Place,
    /// Places values in use; a size that the axes do not divide is padded.
    PlacePadded,
    /// Shards where state rests. Takes no part in propagation.
    Store,
    /// Keeps, from the forward to the backward pass, the part on these axes of what parameters were gathered to.
    Keep,
}

/// One rule: a dimension on axes.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleRequest {
    /// What it does.
    pub kind: RuleKind,
    /// The dimension as written, for messages; `largest` where the store rule names none.
    pub dim_name: String,
    /// Its atoms, major first; empty for `largest`.
    pub dims: Vec<Dim>,
    /// Axes, major first, each `dp` or `dp.inner`.
    pub axes: Vec<String>,
    /// Roles it is narrowed to; empty means all.
    pub roles: Vec<Role>,
    /// Paths of names that it is narrowed to; empty means all.
    pub at: Vec<Vec<String>>,
    /// Values that it is narrowed to directly: inline placements. Used where not empty.
    pub values: Vec<Value>,
    /// Where it is written.
    pub span: Option<Span>,
}

impl RuleRequest {
    /// A rule for all values with a dimension.
    pub fn place(dim_name: &str, dims: &[Dim], axes: &[&str]) -> RuleRequest {
        RuleRequest {
            kind: RuleKind::Place,
            dim_name: dim_name.to_string(),
            dims: dims.to_vec(),
            axes: axes.iter().map(|axis| axis.to_string()).collect(),
            roles: Vec::new(),
            at: Vec::new(),
            values: Vec::new(),
            span: None,
        }
    }

    /// `store roles: largest -> axes`.
    pub fn store(roles: &[Role], axes: &[&str]) -> RuleRequest {
        RuleRequest {
            kind: RuleKind::Store,
            roles: roles.to_vec(),
            ..RuleRequest::place("largest", &[], axes)
        }
    }

    /// The rule as a plan writes it.
    pub fn text(&self) -> String {
        let roles: Vec<&str> = self.roles.iter().map(|&role| role_name(role)).collect();
        let axes =
            if self.axes.len() == 1 { self.axes[0].clone() } else { format!("({})", self.axes.join(", ")) };
        let at: Vec<String> = self.at.iter().map(|path| path.join(".")).collect();
        let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
        let dim = &self.dim_name;
        match self.kind {
            _ if !self.values.is_empty() => format!("{dim}@{}", self.axes.join("@")),
            RuleKind::Store => format!("store {}: {dim} -> {axes}{at}", roles.join(", ")),
            RuleKind::Keep => format!("store backward: {dim} -> {axes}{at}"),
            RuleKind::Place | RuleKind::PlacePadded => {
                let pad = if self.kind == RuleKind::PlacePadded { " pad" } else { "" };
                let roles = if roles.is_empty() { String::new() } else { format!("{} ", roles.join(", ")) };
                format!("{roles}{dim} -> {axes}{pad}{at}")
            }
        }
    }
}

impl PlacementRequest {
    /// The request of a plan. `dims` gives the IR's atoms of a model's dimension.
    pub fn from_plan(plan: &plan::Plan, model: &Model, dims: impl Fn(DimId) -> Vec<Dim>) -> PlacementRequest {
        let rule = |rule: &plan::Rule| rule_request(rule, model, &dims);
        let step = |step: &plan::Step| StepRequest {
            name: step.name.clone(),
            rules: step.rules.iter().map(rule).collect(),
        };
        let mut leave: Vec<Vec<String>> = Vec::new();
        for given in &plan.leave {
            leave.extend(given.at.iter().map(|path| path.segments.clone()));
            leave.extend(given.at.is_empty().then(Vec::new));
        }
        PlacementRequest { mesh: mesh(&plan.mesh), steps: plan.steps.iter().map(step).collect(), leave }
    }

    /// Adds inline placements. They bind the values that they stand on whatever the steps say, and spread from
    /// there after all steps: so a plan's order decides everywhere else, and a program printed with all its
    /// placements means the same.
    pub fn add_pins(&mut self, program: &Program, pins: &[Pin]) {
        let rule = |pin: &Pin| {
            let names: Vec<&str> = pin.dims.iter().map(|&dim| program.dims[dim].name.as_str()).collect();
            RuleRequest {
                values: program.bindings.get(pin.binding).map(|binding| binding.value).into_iter().collect(),
                axes: pin.axes.clone(),
                span: Some(pin.span),
                ..RuleRequest::place(&names.join("*"), &pin.dims, &[])
            }
        };
        let rules: Vec<RuleRequest> = pins.iter().map(rule).collect();
        if !rules.is_empty() {
            self.steps.push(StepRequest { name: "inline".to_string(), rules });
        }
    }
}

/// The name of a role in a plan.
pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Activation => "acts",
        Role::Parameter => "params",
        Role::Gradient => "grads",
        Role::Optimizer => "opt",
    }
}

fn mesh(axes: &[plan::MeshAxis]) -> Mesh {
    let mut mesh = Mesh::default();
    for axis in axes {
        if axis.parts.is_empty() {
            mesh.axes.push(AxisInfo { name: axis.name.clone(), part: None, size: axis.size });
        }
        for (part, size) in &axis.parts {
            mesh.axes.push(AxisInfo { name: axis.name.clone(), part: Some(part.clone()), size: *size });
        }
    }
    mesh
}

fn rule_request(rule: &plan::Rule, model: &Model, dims: &impl Fn(DimId) -> Vec<Dim>) -> RuleRequest {
    let (kind, roles, dim, axes, at, span) = match rule {
        plan::Rule::Place { roles, dim, axes, pad, at, span } => {
            let kind = if *pad { RuleKind::PlacePadded } else { RuleKind::Place };
            (kind, roles, Some(*dim), axes, at, *span)
        }
        plan::Rule::Store { roles, dim, axes, at, span } => {
            let keeps = roles.contains(&plan::Role::Backward);
            (if keeps { RuleKind::Keep } else { RuleKind::Store }, roles, *dim, axes, at, *span)
        }
    };
    RuleRequest {
        kind,
        dim_name: dim.map_or_else(|| "largest".to_string(), |dim| model.dims[dim].name.clone()),
        dims: dim.map(dims).unwrap_or_default(),
        axes: axes.clone(),
        roles: roles.iter().map(|&role| ir_role(role)).collect(),
        at: at.iter().map(|path| path.segments.clone()).collect(),
        values: Vec::new(),
        span: Some(span),
    }
}

fn ir_role(role: plan::Role) -> Role {
    match role {
        plan::Role::Params | plan::Role::Backward => Role::Parameter,
        plan::Role::Grads => Role::Gradient,
        plan::Role::Opt => Role::Optimizer,
        plan::Role::Acts => Role::Activation,
    }
}
