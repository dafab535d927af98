//! Runs a plan on its ranks and the same mathematics on one, from equal parameters and inputs, and compares.
//!
//! From typed models to errors by tensor. Prints nothing; what is too much is `dtlc verify`'s to say.

pub mod random;
pub mod shrink;

use crate::device::{Processor, Target};
use crate::failure::Failure;
use crate::machine::{index_bounds, start_parts};
use crate::pipeline::{Mode, Stage, compile_parts};
use cranelift_entity::PrimaryMap;
use dtlc_ir::{DType, Inst, Literal, Op, Program, Region};
use dtlc_lang::model::{Element, Elementwise, Graph, Input, Node, NodeId, Operation, ScopeId, TensorType};
use dtlc_lang::plan::{Optimizer, Plan, Precision};
use dtlc_lang::{Compiled, Span};
use dtlc_runtime::files::weights::parameters;
use dtlc_runtime::session::Session;
use dtlc_runtime::tensor::HostTensor;
use dtlc_runtime::train::outputs;
use indexmap::IndexMap;

/// The learning rate of the one step of SGD: so large that parameters show what their gradients were.
const LEARNING_RATE: f64 = 1.0;
/// Some gradients are zero in exact arithmetic: errors are never relative to less than this part of the largest.
const FLOOR: f64 = 1e-3;

/// The differences between many ranks and one.
#[derive(Clone, Debug)]
pub struct Differences {
    /// Ranks of the plan.
    pub ranks: u64,
    /// Of the loss, relative.
    pub loss: f64,
    /// The largest of all gradients, and whose it is.
    pub gradient: (f64, String),
    /// The largest of all updated parameters, and whose it is.
    pub parameter: (f64, String),
    /// What rounding alone can explain.
    pub bound: f64,
}

/// Compares.
///
/// # Errors
/// The model or the plan is at fault, or a run fails.
pub fn compare(
    compiled: &Compiled,
    processor: (&Processor, &Target),
    seed: u64,
) -> Result<Differences, Failure> {
    let plan = compiled.plan.clone().unwrap_or_else(|| without_placement(compiled));
    let many = Plan { optimizer: Some(sgd(plan.span, plan.optimizer.as_ref())), ..plan };
    let one = alone(&many);
    let compilation =
        compile_parts(&compiled.sources, &compiled.model, Some(&many), Mode::Train, Stage::Sharded)
            .map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    let bounds = index_bounds(&compilation.logical);
    let start =
        |plan: &Plan, mode| start_parts(&compiled.sources, &compiled.model, Some(plan), mode, processor);

    let mut reference = start(&one, Mode::Gradients)?;
    reference.initialise(seed)?;
    let weights = random::weights(&mut reference, seed)?;
    let inputs = random::inputs(reference.program(), &bounds, marks_ignored(&compilation.logical.main), seed);
    let step = |mut session: Session| -> Result<Session, Failure> {
        random::set(&mut session, &weights, &inputs)?;
        session.step(1, seed)?;
        Ok(session)
    };
    let reference = outputs(&step(reference)?)?;
    let session = step(start(&many, Mode::Gradients)?)?;
    let ranks = session.program().mesh.ranks();
    let placed = outputs(&session)?;
    drop(session);
    let updated = parameters(&step(start(&one, Mode::Train)?)?)?;
    let placed_update = parameters(&step(start(&many, Mode::Train)?)?)?;

    let is_gradient = |name: &str| name.starts_with("grad.");
    let largest = largest(reference.iter().filter(|(name, _)| is_gradient(name)).map(|(_, tensor)| tensor));
    let gradients = reference.iter().filter(|(name, _)| is_gradient(name));
    Ok(Differences {
        ranks,
        loss: relative(number(&reference, "loss")?, number(&placed, "loss")?),
        gradient: worst(gradients, &placed, FLOOR * largest, "grad.")?,
        parameter: worst(updated.iter(), &placed_update, FLOOR * largest, "")?,
        bound: bound(&many.precision, &compilation.logical),
    })
}

/// The largest error of all tensors, and whose it is.
fn worst<'a>(
    expected: impl Iterator<Item = (&'a String, &'a HostTensor)>,
    got: &IndexMap<String, HostTensor>,
    floor: f64,
    prefix: &str,
) -> Result<(f64, String), Failure> {
    let mut worst = (0.0, String::new());
    for (name, tensor) in expected {
        let other =
            got.get(name).ok_or_else(|| Failure::Bug(format!("`{name}` is no result of the plan")))?;
        let error = error(tensor, other, floor);
        // Not a number is worse than any.
        if worst.1.is_empty() || error > worst.0 || error.is_nan() {
            worst = (error, name.strip_prefix(prefix).unwrap_or(name).to_owned());
        }
    }
    Ok(worst)
}

/// The largest difference over the larger of the tensor's largest element and the floor.
fn error(expected: &HostTensor, got: &HostTensor, floor: f64) -> f64 {
    let (expected, got) = (expected.to_f32(), got.to_f32());
    if expected.len() != got.len() {
        return f64::INFINITY;
    }
    let scale = expected.iter().fold(floor, |most, value| most.max(f64::from(value.abs())));
    let differences =
        expected.iter().zip(&got).map(|(left, right)| (f64::from(*left) - f64::from(*right)).abs());
    let most = differences.fold(0.0, |most: f64, one| if one.is_nan() { one } else { most.max(one) });
    if most == 0.0 { 0.0 } else { most / scale }
}

fn largest<'a>(tensors: impl Iterator<Item = &'a HostTensor>) -> f64 {
    let values = tensors.flat_map(HostTensor::to_f32);
    values.fold(0.0, |most, value| most.max(f64::from(value.abs())))
}

fn relative(expected: f64, got: f64) -> f64 {
    if expected == got { 0.0 } else { (expected - got).abs() / expected.abs().max(f64::MIN_POSITIVE) }
}

fn number(results: &IndexMap<String, HostTensor>, name: &str) -> Result<f64, Failure> {
    let first = results.get(name).and_then(|tensor| tensor.to_f32().first().copied());
    first.map(f64::from).ok_or_else(|| Failure::Bug(format!("a program without `{name}`")))
}

/// The bound for f32, or for a program with values in bf16.
///
/// Ranks add in another order and kernels are cut elsewhere, so any value in bf16 may be rounded to its neighbour: by
/// 2⁻⁸ of itself. The roundings of the `n` such values on the way are independent, so together they come to about √n
/// of that; twice as much is allowed. The backward pass has about two values for each of the forward pass.
fn bound(precision: &Precision, logical: &Program) -> f64 {
    let elements = [precision.compute, precision.params, precision.grads];
    let values = 3 * narrow_values(logical, &logical.main);
    if values == 0 && !elements.contains(&Element::Bf16) {
        return 1e-5;
    }
    2.0 * (values.max(1) as f64).sqrt() / 256.0
}

/// Values in bf16 that a forward pass makes, every run of a loop counted.
fn narrow_values(program: &Program, region: &Region) -> u64 {
    let count = |inst: &Inst| match &inst.op {
        Op::Scan(scan) => program.dims[scan.dim].size.saturating_mul(narrow_values(program, &scan.body)),
        op => {
            let is_view = matches!(op, Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. });
            let is_narrow = inst.results.iter().any(|&result| program.ty(result).dtype == DType::Bf16);
            u64::from(is_narrow && !is_view)
        }
    };
    region.insts.iter().map(count).fold(0, u64::saturating_add)
}

/// Whether the model knows the label 0xffffffff, the mark of positions that do not count.
fn marks_ignored(region: &Region) -> bool {
    let is_mark = |literal: &Literal| match literal {
        Literal::Int(number) => *number == i64::from(u32::MAX) || *number == -1,
        Literal::Float(number) => *number == f64::from(u32::MAX),
        Literal::Bool(_) => false,
    };
    region.insts.iter().any(|inst| {
        let inside = inst.op.region().is_some_and(marks_ignored);
        inside || matches!(&inst.op, Op::Constant(literal) if is_mark(literal))
    })
}

/// The same plan without ranks and without micro-batches.
fn alone(plan: &Plan) -> Plan {
    let mut alone = plan.clone();
    alone.mesh.clear();
    alone.steps.clear();
    alone.leave.clear();
    alone.expect.clear();
    alone.remat.clear();
    alone.memory = None;
    if let Some(batch) = &mut alone.batch {
        batch.micro = None;
    }
    alone
}

fn without_placement(compiled: &Compiled) -> Plan {
    Plan {
        name: "none".to_owned(),
        span: compiled.model.scopes[ScopeId::from_u32(0)].span,
        mesh: Vec::new(),
        steps: Vec::new(),
        batch: None,
        precision: Precision::default(),
        memory: None,
        remat: Vec::new(),
        optimizer: None,
        leave: Vec::new(),
        expect: Vec::new(),
    }
}

/// `parameter - lr * gradient`, clipped as the plan's own optimizer clips.
fn sgd(span: Span, own: Option<&Optimizer>) -> Optimizer {
    let scalar = TensorType { element: Element::F32, dims: Vec::new() };
    let inputs = ["parameter", "gradient", "step", "lr", "decay"];
    let input = |name: &str| Input { name: name.to_owned(), ty: scalar.clone(), span };
    let mut update = Graph {
        nodes: PrimaryMap::new(),
        block: dtlc_lang::model::Block::default(),
        inputs: inputs.iter().map(|name| input(name)).collect(),
    };
    let mut schedule = update.clone();
    schedule.inputs = vec![input("step")];
    let push = |graph: &mut Graph, operation: Operation, args: Vec<NodeId>| {
        let scope = ScopeId::from_u32(0);
        let id = graph.nodes.push(Node { operation, args, ty: scalar.clone(), span, scope });
        graph.block.nodes.push(id);
        id
    };
    let [parameter, gradient, lr] =
        [0, 1, 3].map(|index| push(&mut update, Operation::Input(index), Vec::new()));
    let change = push(&mut update, Operation::Elementwise(Elementwise::Mul), vec![lr, gradient]);
    let new = push(&mut update, Operation::Elementwise(Elementwise::Sub), vec![parameter, change]);
    update.block.results = vec![new];
    let rate = push(&mut schedule, Operation::Number(LEARNING_RATE), Vec::new());
    schedule.block.results = vec![rate];
    Optimizer {
        name: "sgd".to_owned(),
        states: Vec::new(),
        update,
        schedule,
        decay: 0.0,
        decay_on: Vec::new(),
        clip: own.and_then(|own| own.clip),
        span,
    }
}
