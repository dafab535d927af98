//! Optimizers and schedules: their bodies, from the standard library or the file, as graphs on scalars.

use super::super::call::Callee;
use super::super::context::{Elaborator, Purpose};
use super::super::instance::{Blueprint, Given, ItemKind};
use super::super::program::Program;
use super::super::value::{Frame, Number, Value};
use super::Resolver;
use crate::ast::{self, Ident, Item, PlanOptimizer, PlanValue, PlanValueKind, Setting};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{Element, Graph, Input, NodeId, Operation, ParamKind, Scope, TensorType};
use crate::plan::Optimizer;
use crate::source::{FileId, Span};
use crate::suggest::did_you_mean;
use indexmap::IndexMap;

/// What an optimizer's function may take, in the order of the graph's inputs.
const INPUTS: [&str; 5] = ["parameter", "gradient", "step", "lr", "decay"];

/// Settings of the plan itself; all others are the optimizer's hyper-parameters.
const SETTINGS: [&str; 3] = ["lr", "decay", "clip"];

/// Checks an optimizer that no plan uses.
pub(in super::super) fn check_optimizer(
    program: &Program,
    file: FileId,
    item: &ast::Optimizer,
) -> Vec<Diagnostic> {
    let mut elaborator = Elaborator::new(program, Purpose::Generic);
    elaborator.update(file, item, &[], item.name.span);
    elaborator.diagnostics
}

impl Resolver<'_> {
    pub(super) fn optimizer(&mut self, item: &PlanOptimizer) -> Option<Optimizer> {
        let program = self.program;
        let found =
            program.lookup(self.file, &item.name.name).or_else(|| program.standard("optim", &item.name.name));
        let Some((file, Item::Optimizer(optimizer))) = found else {
            self.unknown_item(&item.name, "optimizer", &program.standard_names("optim"));
            return None;
        };
        for (index, setting) in item.settings.iter().enumerate() {
            if let Some(first) = item.settings[..index].iter().find(|it| it.name.name == setting.name.name) {
                self.diagnostics.push(
                    Diagnostic::error(Code::DuplicateEntry, format!("`{}` is set twice", setting.name.name))
                        .label(setting.span, "set again")
                        .label(first.span, "first set here"),
                );
            }
        }
        let given: Vec<Given<'_>> = item
            .settings
            .iter()
            .filter(|setting| !SETTINGS.contains(&setting.name.name.as_str()))
            .map(|setting| Given {
                name: Some(&setting.name),
                value: self.setting_value(&setting.value),
                span: setting.span,
            })
            .collect();
        let mut elaborator = Elaborator::new(program, Purpose::Model);
        let update = elaborator.update(file, optimizer, &given, item.name.span);
        self.diagnostics.append(&mut elaborator.diagnostics);
        let schedule = self.schedule(item);
        let (decay, decay_on) = self.decay(item);
        let clip = match setting(item, "clip") {
            Some(clip) => Some(self.clip(clip)?),
            None => None,
        };
        let (states, update) = update?;
        let name = item.name.name.clone();
        Some(Optimizer { name, states, update, schedule: schedule?, decay, decay_on, clip, span: item.span })
    }

    fn unknown_item(&mut self, name: &Ident, kind: &str, known: &[&str]) {
        let title = format!("no {kind} `{}`", name.name);
        let mut diagnostic = Diagnostic::error(Code::InvalidOptimizer, title)
            .label(name.span, "neither in this file nor in the standard library")
            .note(format!("the standard library has {}", known.join(", ")));
        if let Some(near) = did_you_mean(&name.name, known.iter().copied()) {
            diagnostic = diagnostic.hint_edit(near.to_owned(), name.span, near);
        }
        self.diagnostics.push(diagnostic);
    }

    fn setting_value(&mut self, value: &PlanValue) -> Value {
        match &value.kind {
            PlanValueKind::Integer(number) => Value::Number(Number::Int(i128::from(*number))),
            PlanValueKind::Float(number) => Value::Number(Number::Float(*number)),
            PlanValueKind::Bool(truth) => Value::Truth(*truth),
            PlanValueKind::Tuple(values) => {
                Value::Tuple(values.iter().map(|it| self.setting_value(it)).collect())
            }
            PlanValueKind::Error => Value::Error,
            PlanValueKind::Quantity { .. }
            | PlanValueKind::Name(_)
            | PlanValueKind::String(_)
            | PlanValueKind::Call { .. } => {
                self.diagnostics.push(
                    Diagnostic::error(Code::InvalidSetting, "expected a number, `true`, `false` or a tuple")
                        .label(value.span, "can't be set to this"),
                );
                Value::Error
            }
        }
    }

    /// A finite number above a bound.
    fn number(&mut self, setting: &Setting, least: f64) -> Option<f64> {
        let number = match setting.value.kind {
            PlanValueKind::Integer(number) => number as f64,
            PlanValueKind::Float(number) => number,
            PlanValueKind::Error => return None,
            _ => f64::NAN,
        };
        if number >= least && (number as f32).is_finite() {
            return Some(number);
        }
        self.diagnostics.push(
            Diagnostic::error(
                Code::InvalidSetting,
                format!("`{}` is a number, {least} or more", setting.name.name),
            )
            .label(setting.value.span, "not one"),
        );
        None
    }

    /// The norm that gradients are scaled down to.
    fn clip(&mut self, setting: &Setting) -> Option<f64> {
        let clip = self.number(setting, 0.0)?;
        if clip as f32 > 0.0 {
            return Some(clip);
        }
        self.diagnostics.push(
            Diagnostic::error(Code::InvalidSetting, "a clip of zero makes every gradient zero")
                .label(setting.value.span, "the norm that gradients are scaled down to")
                .why("without `clip` they are left as they are")
                .hint("clip 1.0"),
        );
        None
    }

    fn decay(&mut self, item: &PlanOptimizer) -> (f64, Vec<ParamKind>) {
        for setting in item.settings.iter().filter(|it| it.name.name != "decay") {
            if let Some(kind) = setting.on.first() {
                self.diagnostics.push(
                    Diagnostic::error(
                        Code::InvalidSetting,
                        format!("`{}` can't be narrowed", setting.name.name),
                    )
                    .label(kind.span, "only `decay` is for kinds of parameter"),
                );
            }
        }
        let Some(setting) = setting(item, "decay") else { return (0.0, vec![ParamKind::Weight]) };
        let decay = self.number(setting, 0.0).unwrap_or(0.0);
        let mut kinds = Vec::new();
        for kind in &setting.on {
            match ast::ParamKind::from_name(&kind.name) {
                Some(ast::ParamKind::Weight) => kinds.push(ParamKind::Weight),
                Some(ast::ParamKind::Norm) => kinds.push(ParamKind::Norm),
                Some(ast::ParamKind::Bias) => kinds.push(ParamKind::Bias),
                None => {
                    let mut diagnostic = Diagnostic::error(
                        Code::InvalidSetting,
                        format!("no kind of parameter `{}`", kind.name),
                    )
                    .label(kind.span, "expected weight, norm or bias");
                    if let Some(near) = did_you_mean(&kind.name, ast::ParamKind::NAMES) {
                        diagnostic = diagnostic.hint_edit(near, kind.span, near);
                    }
                    self.diagnostics.push(diagnostic);
                }
            }
        }
        if kinds.is_empty() {
            kinds.push(ParamKind::Weight);
        }
        (decay, kinds)
    }

    /// The learning rate as a function of the step.
    fn schedule(&mut self, item: &PlanOptimizer) -> Option<Graph> {
        let Some(lr) = setting(item, "lr") else {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidOptimizer, "an optimizer needs a learning rate")
                    .label(item.span, "`lr` is missing")
                    .hint(format!("optimizer {} {{ lr 3e-4 }}", item.name.name)),
            );
            return None;
        };
        let none = Vec::new();
        let (name, arguments) = match &lr.value.kind {
            PlanValueKind::Call { name, arguments } => (name, arguments),
            PlanValueKind::Name(name) => (name, &none),
            _ => {
                let rate = self.number(lr, 0.0)?;
                return Some(constant(rate, lr.span));
            }
        };
        let program = self.program;
        let found =
            program.lookup(self.file, &name.name).or_else(|| program.standard("schedule", &name.name));
        let Some((file, Item::Function(function))) = found else {
            self.unknown_item(name, "schedule", &program.standard_names("schedule"));
            return None;
        };
        let given: Vec<Given<'_>> = arguments
            .iter()
            .map(|it| Given { name: it.name.as_ref(), value: self.setting_value(&it.value), span: it.span })
            .collect();
        let mut elaborator = Elaborator::new(program, Purpose::Model);
        let graph = elaborator.schedule(Callee { function, file, owner: None, span: lr.span }, given);
        self.diagnostics.append(&mut elaborator.diagnostics);
        graph
    }
}

fn setting<'a>(item: &'a PlanOptimizer, name: &str) -> Option<&'a Setting> {
    item.settings.iter().find(|setting| setting.name.name == name)
}

fn scalar() -> TensorType {
    TensorType { element: Element::F32, dims: Vec::new() }
}

/// A schedule without a choice.
fn constant(rate: f64, span: Span) -> Graph {
    let mut nodes = cranelift_entity::PrimaryMap::new();
    let scope = crate::model::ScopeId::from_u32(0);
    let input =
        crate::model::Node { operation: Operation::Input(0), args: Vec::new(), ty: scalar(), span, scope };
    let input = nodes.push(input);
    let rate = crate::model::Node {
        operation: Operation::Number(rate),
        args: Vec::new(),
        ty: scalar(),
        span,
        scope,
    };
    let rate = nodes.push(rate);
    let block = crate::model::Block { nodes: vec![input, rate], results: vec![rate] };
    Graph { nodes, block, inputs: vec![Input { name: "step".to_owned(), ty: scalar(), span }] }
}

impl<'p> Elaborator<'p> {
    fn scalar_input(&mut self, name: &str, span: Span) -> Value {
        let index = self.inputs.len();
        self.inputs.push(Input { name: name.to_owned(), ty: scalar(), span });
        Value::Node(self.push(Operation::Input(index), Vec::new(), scalar(), span))
    }

    fn graph(&mut self, results: Vec<NodeId>) -> Graph {
        let mut block = std::mem::take(&mut self.blocks[0]);
        block.results = results;
        Graph { nodes: std::mem::take(&mut self.nodes), block, inputs: std::mem::take(&mut self.inputs) }
    }

    /// The states and the update of an optimizer.
    fn update(
        &mut self,
        file: FileId,
        item: &'p ast::Optimizer,
        given: &[Given<'_>],
        span: Span,
    ) -> Option<(Vec<String>, Graph)> {
        let what = format!("optimizer `{}`", item.name.name);
        self.frames.push(Frame { what, span, dims: Vec::new(), item: item.span });
        let blueprint = Blueprint {
            name: &item.name,
            item: item.span,
            kind: ItemKind::Optimizer,
            file,
            members: &item.members,
            hypers: &item.hypers,
        };
        let name = item.name.name.clone();
        let scope = Scope { parent: None, instance: name.clone(), layer: name, span: item.name.span };
        let instance = self.instantiate(&blueprint, IndexMap::new(), given, scope);
        let states = self.states(instance);
        let mut env = self.env_of(instance);
        env.named = false;
        let inputs: Vec<Value> = INPUTS.iter().map(|name| self.scalar_input(name, item.name.span)).collect();
        for (name, span) in &states {
            let value = self.scalar_input(name, *span);
            env.values.push((name.clone(), value));
        }
        let function = self.update_function(instance, item)?;
        for parameter in &function.parameters {
            let value = match INPUTS.iter().position(|name| *name == parameter.name.name) {
                Some(index) => {
                    self.bind_parameter(&mut env, parameter, inputs[index].clone(), parameter.span)
                }
                None => self.no_such_input(&parameter.name),
            };
            self.declare(&mut env, &parameter.name, value);
        }
        let value = self.function_body(&mut env, function);
        let results = self.scalars(value, function)?;
        self.check_results(results.len(), states.len(), function)?;
        let failed = self.diagnostics.iter().any(Diagnostic::is_error);
        let states = states.into_iter().map(|(name, _)| name).collect();
        let graph = self.graph(results);
        (!failed).then_some((states, graph))
    }

    fn update_function(&mut self, instance: usize, item: &ast::Optimizer) -> Option<&'p ast::Function> {
        let function = self.instances[instance].function(None);
        if function.is_none() {
            self.report(
                Diagnostic::error(
                    Code::InvalidOptimizer,
                    format!("optimizer `{}` computes nothing", item.name.name),
                )
                .label(item.name.span, "has no function without a name")
                .hint("fn (parameter: f32, gradient: f32, lr: f32) -> f32 { … }"),
            );
        }
        function
    }

    fn check_results(&mut self, results: usize, states: usize, function: &ast::Function) -> Option<()> {
        if results == 1 + states {
            return Some(());
        }
        self.report(
            Diagnostic::error(Code::InvalidOptimizer, format!("{results} of {} results", 1 + states))
                .label(function.result.span, "does not fit")
                .why("an optimizer gives back the new parameter, then each new state in order"),
        );
        None
    }

    fn states(&mut self, instance: usize) -> Vec<(String, Span)> {
        let mut found = Vec::new();
        for state in self.instances[instance].states.clone() {
            let zero = state.init.as_ref().is_none_or(|init| {
                init.as_name().is_some_and(|name| name.name == "zeros")
                    || init.kind == ast::ExprKind::Float(0.0)
            });
            if !zero {
                self.report(
                    Diagnostic::error(Code::NotSupported, "states start at zero")
                        .label(state.span, "starts elsewhere"),
                );
            }
            if let Some(ty) = &state.ty {
                self.report(
                    Diagnostic::error(Code::NotSupported, "states are f32 and shaped like the parameter")
                        .label(ty.span, "leave the type out"),
                );
            }
            found.extend(state.names.iter().map(|name| (name.name.clone(), name.span)));
        }
        found
    }

    fn no_such_input(&mut self, name: &Ident) -> Value {
        let mut diagnostic =
            Diagnostic::error(Code::InvalidOptimizer, format!("an optimizer is given no `{}`", name.name))
                .label(name.span, "unknown")
                .note(format!("it is given {}", INPUTS.join(", ")));
        if let Some(near) = did_you_mean(&name.name, INPUTS) {
            diagnostic = diagnostic.hint_edit(near, name.span, near);
        }
        self.report(diagnostic)
    }

    /// Results as scalar nodes.
    fn scalars(&mut self, value: Value, function: &ast::Function) -> Option<Vec<NodeId>> {
        let values = match value {
            Value::Tuple(values) => values,
            Value::Error => return None,
            single @ (Value::Node(_) | Value::Number(_) | Value::Truth(_)) => vec![single],
        };
        let (span, declared) = (function.body.result.span, function.result.span);
        values.iter().map(|value| self.fit(value, &scalar(), span, declared, "each result")).collect()
    }

    /// The graph of a schedule: its first parameter is the step.
    fn schedule(&mut self, callee: Callee<'p>, given: Vec<Given<'_>>) -> Option<Graph> {
        let scope = Scope {
            parent: None,
            instance: String::new(),
            layer: String::new(),
            span: callee.function.span.at_start(),
        };
        self.scope = self.scopes.push(scope);
        let step = self.scalar_input("step", callee.span);
        let step = Given { name: None, value: step, span: callee.span };
        let given: Vec<Given<'_>> = std::iter::once(step).chain(given).collect();
        let env = super::super::value::Env::new(callee.file);
        let value = self.call_function(&env, callee, None, &given);
        let results = self.scalars(value, callee.function)?;
        let failed = self.diagnostics.iter().any(Diagnostic::is_error);
        let graph = self.graph(results);
        (!failed && graph.block.results.len() == 1).then_some(graph)
    }
}
