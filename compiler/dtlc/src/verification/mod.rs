//! Runs a plan on its ranks and the same mathematics on one, from equal parameters and inputs, and compares.
//!
//! From typed models to errors by tensor. Prints nothing; what is too much is `dtlc verify`'s to say.

pub mod random;
pub mod rounding;
pub mod shrink;

use crate::device::{Processor, Target};
use crate::failure::Failure;
use crate::machine::{index_bounds, start_parts};
use crate::pipeline::{Compilation, Mode, Stage, compile_parts};
use cranelift_entity::PrimaryMap;
use dtlc_ir::interpret::Rounding;
use dtlc_ir::{Literal, Op, Program, Region};
use dtlc_lang::model::{Element, Elementwise, Graph, Input, Node, NodeId, Operation, ScopeId, TensorType};
use dtlc_lang::plan::{Optimizer, Plan, Precision};
use dtlc_lang::{Compiled, Span};
use dtlc_runtime::files::weights::parameters;
use dtlc_runtime::session::Session;
use dtlc_runtime::tensor::HostTensor;
use dtlc_runtime::train::outputs;
use rounding::{Interpreted, Results, STUDENT};

/// The learning rate of the one step of SGD: so large that parameters show what their gradients were.
const LEARNING_RATE: f64 = 1.0;
/// Some gradients are zero in exact arithmetic: errors are never relative to less than this part of the largest.
const FLOOR: f64 = 1e-3;

/// What f32 may differ by, relative.
const EXACT: f64 = 1e-5;
/// Pairs of results whose values were rounded up or down by chance.
const PAIRS: u64 = 3;
/// The largest error of many hardly varies: so many times the mean one is enough where chance rounds twice as much as backends.
const MANY: f64 = 4.0;
/// A bound above this decides nothing: half of a gradient may be missing.
const UNDECIDED: f64 = 0.5;
/// Elements that are many.
const ENOUGH: usize = 16;

/// An error and what rounding alone can explain of it, both relative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// Whose it is.
    pub name: String,
    /// The error.
    pub error: f64,
    /// The bound.
    pub bound: f64,
}

impl Difference {
    /// Whether rounding explains it. What is not a number, nothing explains.
    #[must_use]
    pub fn is_explained(&self) -> bool {
        self.error <= self.bound
    }

    /// How near the bound it is: above 1 beyond it.
    fn share(&self) -> f64 {
        if self.error.is_nan() { f64::INFINITY } else { self.error / self.bound }
    }
}

/// The differences of many tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worst {
    /// The largest error of all.
    pub largest: f64,
    /// The one that is nearest to its bound.
    pub worst: Difference,
    /// Those whose bound decides nothing.
    pub undecided: Vec<String>,
}

/// The differences between many ranks and one.
#[derive(Clone, Debug)]
pub struct Differences {
    /// Ranks of the plan.
    pub ranks: u64,
    /// Of the loss.
    pub loss: Difference,
    /// Of all gradients.
    pub gradients: Worst,
    /// Of all updated parameters.
    pub parameters: Worst,
    /// Gradients that rounding alone may change by more than half of their size.
    pub undecided: Vec<String>,
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
    let comparison = Comparison::of(compiled, processor, seed)?;
    let mut gradients = comparison.step(Mode::Gradients)?;
    let mut updated = comparison.step(Mode::Train)?;
    let ranks = comparison.many.mesh.iter().map(|axis| axis.size).product();
    let exact = differences(ranks, &gradients, &updated)?;
    let are_sampled = [&gradients, &updated].iter().all(|sides| !sides.samples.is_empty());
    if exact.are_explained() || are_sampled {
        return Ok(exact);
    }
    // Where gradients cancel, f32 rounds more than is usual.
    comparison.sample(Mode::Gradients, &mut gradients)?;
    comparison.sample(Mode::Train, &mut updated)?;
    differences(ranks, &gradients, &updated)
}

fn differences(ranks: u64, gradients: &Sides, updated: &Sides) -> Result<Differences, Failure> {
    let is_gradient = |name: &&String| name.starts_with("grad.");
    let tensors = gradients.expected.iter().filter(|(name, _)| is_gradient(name));
    let floor = FLOOR * largest(tensors.map(|(_, tensor)| tensor));
    let gradient = gradients.worst(gradients.expected.keys().filter(is_gradient), floor)?;
    Ok(Differences {
        ranks,
        loss: gradients.difference("loss", f64::MIN_POSITIVE)?,
        undecided: gradient.undecided.clone(),
        gradients: gradient,
        parameters: updated.worst(updated.expected.keys(), floor)?,
    })
}

impl Differences {
    /// Whether rounding explains all.
    #[must_use]
    pub fn are_explained(&self) -> bool {
        self.unexplained().is_none()
    }

    /// The first that rounding does not explain.
    #[must_use]
    pub fn unexplained(&self) -> Option<&Difference> {
        let worst = [&self.loss, &self.gradients.worst, &self.parameters.worst];
        worst.into_iter().find(|difference| !difference.is_explained())
    }
}

/// A plan and the same mathematics on one rank, with what both start from.
struct Comparison<'a> {
    compiled: &'a Compiled,
    processor: (&'a Processor, &'a Target),
    seed: u64,
    one: Plan,
    many: Plan,
    weights: Results,
    inputs: Results,
}

impl<'a> Comparison<'a> {
    fn of(
        compiled: &'a Compiled,
        processor: (&'a Processor, &'a Target),
        seed: u64,
    ) -> Result<Comparison<'a>, Failure> {
        let plan = compiled.plan.clone().unwrap_or_else(|| without_placement(compiled));
        let many = Plan { optimizer: Some(sgd(plan.span, plan.optimizer.as_ref())), ..plan };
        let one = alone(&many);
        let none = Results::new;
        let bare = Comparison { compiled, processor, seed, one, many, weights: none(), inputs: none() };
        let logical = bare.compilation(Mode::Gradients, Stage::Sharded)?.logical;
        let mut session = bare.start(&bare.one, Mode::Gradients)?;
        session.initialise(seed)?;
        let weights = random::weights(&mut session, seed)?;
        let inputs =
            random::inputs(session.program(), &index_bounds(&logical), marks_ignored(&logical.main), seed);
        Ok(Comparison { weights, inputs, ..bare })
    }

    fn compilation(&self, mode: Mode, last: Stage) -> Result<Compilation, Failure> {
        compile_parts(&self.compiled.sources, &self.compiled.model, Some(&self.many), mode, last)
            .map_err(|trouble| trouble.into_failure(&self.compiled.sources))
    }

    fn start(&self, plan: &Plan, mode: Mode) -> Result<Session, Failure> {
        let (sources, model) = (&self.compiled.sources, &self.compiled.model);
        let mut session = start_parts(sources, model, Some(plan), mode, self.processor)?;
        random::set(&mut session, &self.weights, &self.inputs)?;
        Ok(session)
    }

    /// The results of a first step: gradients, or updated parameters.
    fn step(&self, mode: Mode) -> Result<Sides, Failure> {
        let read = |session: &Session| match mode {
            Mode::Train => parameters(session),
            Mode::Evaluate | Mode::Gradients => outputs(session),
        };
        let mut one = self.start(&self.one, mode)?;
        one.step(1, self.seed)?;
        let expected = read(&one)?;
        drop(one);
        let mut many = self.start(&self.many, mode)?;
        many.step(1, self.seed)?;
        let scheduled = self.compilation(mode, Stage::Scheduled)?.scheduled;
        let missing = || Failure::Bug("a compilation without a scheduled program".to_owned());
        let planned = scheduled.ok_or_else(missing)?.planned;
        let is_coarse = planned.is_coarse();
        let mut sides = Sides { expected, got: read(&many)?, planned, samples: Vec::new() };
        drop(many);
        if is_coarse {
            self.sample(mode, &mut sides)?;
        }
        Ok(sides)
    }

    /// Adds results of the plan that differ in how values were rounded, where there are none yet.
    fn sample(&self, mode: Mode, sides: &mut Sides) -> Result<(), Failure> {
        if !sides.samples.is_empty() {
            return Ok(());
        }
        let session = self.start(&self.many, mode)?;
        let step = Interpreted::first_step(&sides.planned, &session, &self.inputs, self.seed)?;
        let sample = |seed| match mode {
            Mode::Train => step.parameters(Rounding::Chance(seed)),
            Mode::Evaluate | Mode::Gradients => step.outputs(Rounding::Chance(seed)),
        };
        for pair in 0..PAIRS {
            sides.samples.push((sample(2 * pair)?, sample(2 * pair + 1)?));
        }
        Ok(())
    }
}

/// What one rank makes of a step, what many do, and pairs of what rounding does to the latter.
struct Sides {
    expected: Results,
    got: Results,
    /// What the many run, before fusion.
    planned: Program,
    samples: Vec<(Results, Results)>,
}

impl Sides {
    fn worst<'a>(&self, names: impl Iterator<Item = &'a String>, floor: f64) -> Result<Worst, Failure> {
        let mut found = Worst::default();
        for name in names {
            let one = self.difference(name, floor)?;
            if one.error > found.largest || one.error.is_nan() {
                found.largest = one.error;
            }
            if one.bound > UNDECIDED {
                found.undecided.push(one.name.clone());
            }
            if found.worst.name.is_empty() || one.share() > found.worst.share() {
                found.worst = one;
            }
        }
        Ok(found)
    }

    /// The error of one tensor: the largest difference over the larger of its largest element and the floor.
    fn difference(&self, name: &str, floor: f64) -> Result<Difference, Failure> {
        let find = |results: &Results| {
            let tensor = results.get(name).map(HostTensor::to_f32);
            tensor.ok_or_else(|| Failure::Bug(format!("`{name}` is no result of the plan")))
        };
        let (expected, got) = (find(&self.expected)?, find(&self.got)?);
        let scale = expected.iter().fold(floor, |most, value| most.max(f64::from(value.abs())));
        let mut apart = Vec::new();
        for (left, right) in &self.samples {
            apart.push(error(&find(left)?, &find(right)?, scale));
        }
        let bound = EXACT + spread(&apart, expected.len());
        let name = name.strip_prefix("grad.").unwrap_or(name).to_owned();
        Ok(Difference { name, error: error(&expected, &got, scale), bound })
    }
}

/// How far rounding takes a tensor's results, by what it did to such pairs. Chance rounds with twice the variance of rounding to the nearest,
/// and the plan's own program has at least the roundings of the one without ranks.
fn spread(apart: &[f64], elements: usize) -> f64 {
    let mean_square = apart.iter().map(|it| it.powi(2)).sum::<f64>() / apart.len().max(1) as f64;
    mean_square.sqrt() * if elements < ENOUGH { STUDENT } else { MANY }
}

/// The largest difference, of that scale.
fn error(expected: &[f32], got: &[f32], scale: f64) -> f64 {
    if expected.len() != got.len() {
        return f64::INFINITY;
    }
    let differences =
        expected.iter().zip(got).map(|(left, right)| (f64::from(*left) - f64::from(*right)).abs());
    let most = differences.fold(0.0, |most: f64, one| if one.is_nan() { one } else { most.max(one) });
    if most == 0.0 { 0.0 } else { most / scale }
}

fn largest<'a>(tensors: impl Iterator<Item = &'a HostTensor>) -> f64 {
    let values = tensors.flat_map(HostTensor::to_f32);
    values.fold(0.0, |most, value| most.max(f64::from(value.abs())))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Device;
    use dtlc_lang::{Loaded, Options, PlanChoice};

    /// The gradient of `mix` is a sum whose parts cancel, so rounding is most of it.
    const MODEL: &str = "use std::loss::cross_entropy
use std::nn::{Embedding, LayerNorm, gelu_tanh}

layer Mixed[D, M] {
  norm = LayerNorm[D]
  param up: [D, M] = normal(0.3)
  param down: [M, D] = normal(0.3)
  param mix: f32 = constant(0.5)
  fn (x: [B, S, D]) -> [B, S, D] {
    x + float(mix) * dot[M](gelu_tanh(dot[D](norm(x), up)), down)
  }
}

model Small {
  dims B, S, D = 16, M = 24, V = 32, L = 3
  embed = Embedding[V, D]
  layers = repeat[L] Mixed[D, M]
  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    mean(cross_entropy[V](embed.logits(layers(embed(tokens))), labels))
  }
}

plan dp2 for Small {
  mesh { dp: 2 }
  step data: acts B -> dp
  step zero(3): over dp
  batch { seq 8, global 8, micro 2 }
  precision { compute bf16, params bf16, grads bf16, master f32 }
}
";

    #[test]
    fn rounding_in_16_bits_is_explained_and_a_gradient_of_another_size_is_not() {
        rounding_is_explained(MODEL, 1e-4, 0..4);
        rounding_is_explained(&MODEL.replace("bf16", "f16"), 1e-5, 0..1);
    }

    /// Rounding makes an error above `least`.
    fn rounding_is_explained(model: &str, least: f64, seeds: std::ops::Range<u64>) {
        let nothing = |_: &str, _: &[&str]| Loaded::Missing;
        let options = Options { plan: PlanChoice::Named("dp2".to_owned()), overrides: Vec::new() };
        let compiled = dtlc_lang::compile(&nothing, "small.dtl", model.as_bytes(), &options)
            .unwrap_or_else(|rejected| panic!("{:?}", rejected.diagnostics));
        let processor = Processor::open(Device::Cpu, None).expect("the CPU");
        let target = processor.target().expect("a target");
        for seed in seeds {
            let comparison = Comparison::of(&compiled, (&processor, &target), seed).expect("a start");
            let mut sides = comparison.step(Mode::Gradients).expect("a step");
            let worst = |sides: &Sides| sides.worst(sides.expected.keys(), 0.0).expect("results").worst;
            let right = worst(&sides);
            assert!(right.is_explained() && right.error > least, "{seed}: {right:?}");

            // As if one rank's part of the sum were missing.
            for name in ["grad.layers.1.up", "grad.layers.2.norm.weight", "grad.embed.weight"] {
                let whole = sides.got[name].clone();
                let half: Vec<f32> = whole.to_f32().iter().map(|number| number / 2.0).collect();
                sides.got.insert(name.to_owned(), HostTensor::from_f32(&whole.shape, &half));
                let wrong = worst(&sides);
                assert!(!wrong.is_explained() && name.ends_with(&wrong.name), "{seed}: {wrong:?}");
                sides.got.insert(name.to_owned(), whole);
            }
        }
    }
}
