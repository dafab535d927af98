//! `joint`, last part: from gradients to the next step's parameters.
//!
//! Before: outputs `loss` and `grad.PATH`. After: the gradients clipped by their global norm, the plan's
//! optimizer inlined on each parameter whole, its state tensors among the program's states, and outputs
//! `loss`, the model's own, `grad_norm` (before clipping) and `lr`. All of it is arithmetic on f32 with the role
//! of the optimizer; the sum of squares is a plain reduction, so that whatever the placement each element
//! counts once.

use crate::error::{PassError, PassErrorKind};
use crate::interface::{seal, step_input};
use crate::lower::{dtype, elementwise};
use cranelift_entity::SecondaryMap;
use dtlc_ir::{
    Builder, DType, Initializer, Literal, Output, ParameterKind, Phase, Program, ReduceOp, Role, ScalarOp,
    State, StateKind, Type, Value,
};
use dtlc_lang::model::{Graph, NodeId, Operation, ParamKind};
use dtlc_lang::plan::{Optimizer, Plan};

/// Added to the norm before dividing by it, as `torch.nn.utils.clip_grad_norm_` does.
const CLIP_EPSILON: f64 = 1e-6;

/// Consumes the outputs `grad.PATH` and makes each parameter's next value.
///
/// # Errors
/// The plan has no optimizer, or its graph uses an operation that isn't elementwise.
pub fn update(program: &mut Program, plan: &Plan) -> Result<(), PassError> {
    let Some(optimizer) = &plan.optimizer else {
        let text = format!("plan `{}` cannot train: it has no optimizer", plan.name);
        let help = "add one, such as `optimizer adamw { lr 3e-4 }`";
        return Err(PassError::at_span(PassErrorKind::NoOptimizer, plan.span, text).with_help(help));
    };
    let parameters = parameters(program);
    let step = step_input(program);
    let mut insts = std::mem::take(&mut program.main.insts);
    let mut builder = Builder::new(program, Phase::Update);
    builder.role = Role::Optimizer;
    let norm = global_norm(&mut builder, &parameters);
    let factor = optimizer.clip.map(|bound| clip_factor(&mut builder, norm, bound));
    let lr = inline(&mut builder, &optimizer.schedule, &[step])?;
    let lr = *lr.first().ok_or_else(|| PassError::bug("a schedule without a result"))?;
    let with_master = plan.precision.master != plan.precision.params;
    for parameter in &parameters {
        let rule = Rule { optimizer, factor, step, lr, with_master };
        rule.apply(&mut builder, parameter)?;
    }
    insts.append(&mut builder.region.insts);
    program.main.insts = insts;
    program.outputs.push(Output { name: "grad_norm".to_string(), value: norm });
    program.outputs.push(Output { name: "lr".to_string(), value: lr });
    seal(program);
    Ok(())
}

/// A parameter with its gradient.
struct Parameter {
    state: usize,
    kind: ParameterKind,
    gradient: Value,
}

/// Takes the gradients out of the outputs.
fn parameters(program: &mut Program) -> Vec<Parameter> {
    let mut found = Vec::new();
    for (index, state) in program.states.iter().enumerate() {
        let StateKind::Parameter(kind) = state.kind else { continue };
        let name = format!("grad.{}", state.path);
        if let Some(position) = program.outputs.iter().position(|output| output.name == name) {
            let gradient = program.outputs.remove(position).value;
            found.push(Parameter { state: index, kind, gradient });
        }
    }
    found
}

/// The root of the sum of squares of all gradients, f32.
fn global_norm(builder: &mut Builder, parameters: &[Parameter]) -> Value {
    let mut total: Option<Value> = None;
    for parameter in parameters {
        builder.origin = builder.program.values[parameter.gradient].origin;
        let gradient = builder.cast(parameter.gradient, DType::F32);
        let square = builder.mul(gradient, gradient);
        let dims = builder.ty(square).dims.clone();
        let sum = if dims.is_empty() { square } else { builder.reduce(ReduceOp::Sum, square, &dims) };
        total = Some(total.map_or(sum, |total| builder.add(total, sum)));
    }
    builder.origin = builder.program.no_origin();
    let total = total.unwrap_or_else(|| builder.number(0.0, DType::F32));
    let norm = builder.map(ScalarOp::Sqrt, &[total]);
    builder.program.values[norm].name = Some("grad_norm".to_string());
    norm
}

/// `min(1, bound / (norm + ε))`.
fn clip_factor(builder: &mut Builder, norm: Value, bound: f64) -> Value {
    let [epsilon, bound, one] = [CLIP_EPSILON, bound, 1.0].map(|number| builder.number(number, DType::F32));
    let norm = builder.add(norm, epsilon);
    let ratio = builder.div(bound, norm);
    builder.map(ScalarOp::Min, &[one, ratio])
}

/// What is the same for every parameter.
struct Rule<'plan> {
    optimizer: &'plan Optimizer,
    factor: Option<Value>,
    step: Value,
    lr: Value,
    with_master: bool,
}

impl Rule<'_> {
    /// Appends the update of one parameter with the states that it needs.
    fn apply(&self, builder: &mut Builder, parameter: &Parameter) -> Result<(), PassError> {
        let stored = builder.program.states[parameter.state].value;
        builder.origin = builder.program.values[stored].origin;
        let mut states = Vec::new();
        let current = if self.with_master {
            let kind = StateKind::Master(parameter.state);
            let index =
                add_state(builder, parameter.state, "master", kind, Initializer::CopyOf(parameter.state));
            states.push(index);
            builder.program.states[index].value
        } else {
            builder.cast(stored, DType::F32)
        };
        let mut gradient = builder.cast(parameter.gradient, DType::F32);
        if let Some(factor) = self.factor {
            gradient = builder.mul(gradient, factor);
        }
        let decays = self.optimizer.decay_on.iter().any(|&kind| same_kind(kind, parameter.kind));
        let decay = builder.number(if decays { self.optimizer.decay } else { 0.0 }, DType::F32);
        let mut inputs = vec![current, gradient, self.step, self.lr, decay];
        for name in &self.optimizer.states {
            let kind = StateKind::Optimizer { parameter: parameter.state, name: name.clone() };
            let index = add_state(builder, parameter.state, name, kind, Initializer::Constant(0.0));
            states.push(index);
            inputs.push(builder.program.states[index].value);
        }
        let results = inline(builder, &self.optimizer.update, &inputs)?;
        let expected = 1 + self.optimizer.states.len();
        if results.len() != expected {
            return Err(PassError::bug(format_args!(
                "an optimizer with {} results, not {expected}",
                results.len()
            )));
        }
        // The new parameter is the master's too, where there is one.
        let for_states = if self.with_master { &results[..] } else { &results[1..] };
        for (&index, &result) in states.iter().zip(for_states) {
            set(builder, index, result);
        }
        set(builder, parameter.state, results[0]);
        Ok(())
    }
}

/// Makes `value` what the state holds next.
fn set(builder: &mut Builder, state: usize, value: Value) {
    let ty = builder.ty(builder.program.states[state].value).clone();
    let value = builder.conform(value, &ty);
    builder.program.states[state].updated = Some(value);
}

/// Adds an f32 state shaped like the parameter.
fn add_state(
    builder: &mut Builder,
    parameter: usize,
    name: &str,
    kind: StateKind,
    init: Initializer,
) -> usize {
    let of = builder.program.states[parameter].clone();
    let ty = Type::new(DType::F32, builder.ty(of.value).dims.iter().copied());
    let value = builder.program.add_value(ty, builder.origin);
    let path = format!("{}.{name}", of.path);
    builder.program.values[value].role = Role::Optimizer;
    builder.program.values[value].name = Some(path.clone());
    let names = of.names.iter().map(|file| format!("{file}.{name}")).collect();
    builder.program.states.push(State { path, names, kind, init, stack: of.stack, value, updated: None });
    builder.program.states.len() - 1
}

fn same_kind(written: ParamKind, kind: ParameterKind) -> bool {
    match written {
        ParamKind::Weight => kind == ParameterKind::Weight,
        ParamKind::Norm => kind == ParameterKind::Norm,
        ParamKind::Bias => kind == ParameterKind::Bias,
    }
}

/// Appends a graph of scalar functions, applied to whole tensors.
fn inline(builder: &mut Builder, graph: &Graph, inputs: &[Value]) -> Result<Vec<Value>, PassError> {
    let mut values: SecondaryMap<NodeId, Option<Value>> = SecondaryMap::new();
    let undefined = || PassError::bug("an optimizer's graph that uses what it does not define");
    for &id in &graph.block.nodes {
        let node = &graph.nodes[id];
        let ty = dtype(node.ty.element, DType::F32);
        let args = node.args.iter().map(|&arg| values[arg].ok_or_else(undefined));
        let args = args.collect::<Result<Vec<Value>, PassError>>()?;
        values[id] = Some(match &node.operation {
            Operation::Input(index) => {
                let input = *inputs.get(*index).ok_or_else(undefined)?;
                builder.cast(input, ty)
            }
            Operation::Number(number) => builder.number(*number, ty),
            Operation::Truth(truth) => builder.constant(Literal::Bool(*truth), ty),
            Operation::Elementwise(function) => elementwise(builder, *function, &args, ty),
            Operation::Cast => builder.cast(args[0], ty),
            other => {
                let text = format!("an optimizer works on one element; it cannot use {other:?}");
                return Err(PassError::at_span(PassErrorKind::Dimension, node.span, text));
            }
        });
    }
    graph.block.results.iter().map(|&result| values[result].ok_or_else(undefined)).collect()
}
