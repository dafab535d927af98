//! Judges one file with the plans `one` (a mesh of one) and `many`: whatever `many` computes must be what `one` means.
//!
//! The program of `one`, interpreted in f64 before anything is placed, is the truth. Against it stand the program of
//! `many` interpreted rank by rank before and after fusion, and a backend, the CPU's mostly, which also runs twice.
//!
//! A backend may differ from the truth by what rounding does. That is measured, not guessed: the program of `one` is
//! interpreted with every result, every partial sum and every number within attention rounded to its type, up or down by
//! chance, a few times over. Where types have 16 bits, or products read tf32, the program of `many` is so instead, rank by rank, as
//! parts of sums that travel in them, or are factors, are rounded before they cancel. The programs themselves are held to 1e-9,
//! so all that this shows is rounding.

use super::coverage::Coverage;
use super::slopes;
use crate::backend::{Start, on_cpu, run_twice};
use dtlc::failure::Failure;
use dtlc::pipeline::{self, Compilation, Mode, Stage};
use dtlc_ir::interpret::{Options, Outcome, Rounding, Tensor, interpret, interpret_ranks, stored};
use dtlc_ir::{DType, Dim, ParameterKind, Program, State, StateKind, Value, text};
use dtlc_lang::{Diagnostic, Loaded, Options as LangOptions, PlanChoice, Rejected, SourceMap, compile};
use dtlc_passes::ChunkBudget;
use indexmap::IndexMap;

use super::rng::Rng;

/// What interpreting rank by rank may differ by in f64, relative, besides what f64 rounds: that matters where a result is nothing
/// else, as the sum of what has no mean is.
const EXACT: f64 = 1e-9;
/// What a backend may differ by, relative, besides what is measured: two units in an f32's last place. Samples of a lone
/// number, such as a loss, may all happen to be nearer.
const UNITS: f64 = 2.0 / 8_388_608.0;
/// The part of the largest gradient below which a gradient counts as zero.
const ZERO: f64 = 0.05;
/// How much more than the worst sample a backend may differ: it adds in another order, and its functions are right to a
/// few roundings where the interpreter's are to one (`tanh` to seven halves of a unit).
const ORDERS: f64 = 6.0;
/// Samples of rounding by chance: that all are small by luck where their spread is not, is less likely than one in a
/// thousand for a quarter of the spread.
const SAMPLES: u64 = 4;
/// The number of the step.
pub const STEP: u64 = 2;
/// The seed of random values.
pub const SEED: u64 = 5;
/// Compiling walks trees recursively.
const STACK_BYTES: usize = 256 << 20;

/// The outcome for one file.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All results agree.
    Agrees,
    /// The compiler refuses the file, with reasons.
    Refused(String),
    /// The model's own values are no numbers, so nothing can be compared.
    Degenerate,
    /// Something is wrong with dtlc: the kind, and the details.
    Wrong(String, String),
}

/// Why a compilation ended.
enum Stop {
    Refused(String),
    Bug(String),
}

/// Results by name, each in the order of its dimensions' names.
type Results = IndexMap<String, Vec<f64>>;

/// A verdict, and what it was about.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The outcome.
    pub verdict: Verdict,
    /// The operations of the programs that were judged.
    pub coverage: Coverage,
}

/// Judges a file. A panic counts as wrong.
pub fn judge(source: &str) -> Verdict {
    examine(source, on_cpu).verdict
}

/// [`judge`] on a backend of one's own, that also says what it has seen.
pub fn examine(source: &str, on: Start) -> Judgement {
    on_large_stack(source, move |source| {
        let mut coverage = Coverage::default();
        let verdict = judge_modes(source, on, &mut coverage);
        Judgement { verdict, coverage }
    })
    .unwrap_or_else(|panic| Judgement {
        verdict: Verdict::Wrong("panic".into(), panic),
        coverage: Coverage::default(),
    })
}

/// Holds the gradients of the plan `one` against differences of its loss, both in f64.
pub fn judge_slopes(source: &str) -> Verdict {
    // In the library it stands where the loss does not depend on what it stops.
    if source.contains("stop_gradient") {
        return Verdict::Refused("has a stop_gradient, which differences don't see".into());
    }
    let judged = on_large_stack(source, |source| {
        let joint = compiled(source, "one", Mode::Gradients, Stage::Joint)?;
        slopes::check(joint.joint.as_ref(), &arguments, SEED).map_err(Stop::Bug)
    });
    match judged {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(Stop::Refused(text))) => Verdict::Refused(text),
        Ok(Err(Stop::Bug(text))) => Verdict::Wrong(kind_of(&text), text),
        Err(panic) => Verdict::Wrong("panic".into(), panic),
    }
}

/// Runs `work` on a stack that is large enough to compile anything; what it panics with is the error.
fn on_large_stack<R: Send + 'static>(
    source: &str,
    work: impl FnOnce(&str) -> R + Send + 'static,
) -> Result<R, String> {
    let source = source.to_owned();
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || work(&source)).unwrap_or_else(|error| panic!("{error}"));
    spawned.join().map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_default()
    })
}

fn judge_modes(source: &str, on: Start, coverage: &mut Coverage) -> Verdict {
    for mode in [Mode::Gradients, Mode::Train] {
        match judge_mode(source, mode, on, coverage) {
            Ok(Verdict::Agrees) => {}
            Ok(other) => return other,
            Err(Stop::Refused(text)) => return Verdict::Refused(text),
            Err(Stop::Bug(text)) => return Verdict::Wrong(kind_of(&text), text),
        }
    }
    Verdict::Agrees
}

/// The first words of a fault, by which shrinking knows it again.
fn kind_of(text: &str) -> String {
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    words
        .filter(|word| word.chars().all(|c| c.is_alphabetic() || c == ':'))
        .take(6)
        .collect::<Vec<_>>()
        .join(" ")
}

fn judge_mode(source: &str, mode: Mode, on: Start, coverage: &mut Coverage) -> Result<Verdict, Stop> {
    let missing = || Stop::Bug("a stage that is not there".into());
    let single = compiled(source, "one", mode, Stage::Joint)?;
    let one = single.joint.ok_or_else(missing)?;
    let several = compiled(source, "many", mode, Stage::Scheduled)?;
    let (sharded, scheduled) = (several.sharded.ok_or_else(missing)?, several.scheduled.ok_or_else(missing)?);
    let (many, fused) = (scheduled.planned, scheduled.program);
    [&single.logical, &one, &sharded.program, &many, &fused].into_iter().for_each(|it| coverage.add(it));

    let truth = interpreted(&one, Rounding::None)?;
    if truth.values().flatten().any(|number| !number.is_finite() || number.abs() > 1e6) {
        return Ok(Verdict::Degenerate);
    }
    let coarse = one.is_coarse();
    let scales = scales(&truth);
    let bounds = |relative: f64, noise: &[f64]| -> Vec<f64> {
        scales.iter().zip(noise).map(|(scale, noise)| relative * scale + ORDERS * noise).collect()
    };
    for (program, stage) in [(&many, "planned"), (&fused, "fused")] {
        let got = interpreted_by_rank(program, Rounding::None)
            .map_err(|(Stop::Bug(fault) | Stop::Refused(fault))| Stop::Bug(format!("{stage}: {fault}")))?;
        let nearest = bounds(EXACT, &vec![0.0; truth.len()]);
        if disagreement(&truth, &got, &nearest).is_none() {
            continue;
        }
        let noise = noise(&truth, |seed| interpreted(&one, Rounding::Beside(seed)))?;
        if let Some(text) = disagreement(&truth, &got, &bounds(EXACT, &noise)) {
            return Ok(Verdict::Wrong(
                format!("{mode:?} {stage}"),
                format!("{text}\n{}", text::print_step(program)),
            ));
        }
    }
    let noise = noise(&truth, |seed| match Rounding::Chance(seed) {
        rounding if coarse => interpreted_by_rank(&many, rounding),
        rounding => interpreted(&one, rounding),
    })?;
    if coarse && !noise.iter().all(|noise| noise.is_finite()) {
        // Beyond the greatest number of a type.
        return Ok(Verdict::Degenerate);
    }
    let [first, second] = run_twice(&fused, &arguments(&many), STEP, SEED, on).map_err(Stop::Bug)?;
    if bits(&first) != bits(&second) {
        return Ok(Verdict::Wrong(format!("{mode:?} backend twice"), "two runs differ".into()));
    }
    let got = results(&many, &Outcome { yields: first });
    Ok(match disagreement(&truth, &got, &bounds(UNITS, &noise)) {
        Some(text) => {
            Verdict::Wrong(format!("{mode:?} backend"), format!("{text}\n{}", text::print_step(&fused)))
        }
        None => Verdict::Agrees,
    })
}

/// For each result, the most that a few samples are away from the truth.
fn noise(truth: &Results, sample: impl Fn(u64) -> Result<Results, Stop>) -> Result<Vec<f64>, Stop> {
    let mut noise = vec![0.0f64; truth.len()];
    for seed in 0..SAMPLES {
        let apart = differences(truth, &sample(seed)?);
        noise.iter_mut().zip(apart).for_each(|(most, apart)| {
            *most = if apart.is_nan() { f64::INFINITY } else { most.max(apart) };
        });
    }
    Ok(noise)
}

fn interpreted(program: &Program, rounding: Rounding) -> Result<Results, Stop> {
    let options = Options { seed: SEED, rounding };
    let outcome = interpret(program, &arguments(program), &options).map_err(bug)?;
    Ok(results(program, &outcome))
}

fn interpreted_by_rank(program: &Program, rounding: Rounding) -> Result<Results, Stop> {
    let options = Options { seed: SEED, rounding };
    let outcome = interpret_ranks(program, &arguments(program), &options).map_err(bug)?;
    Ok(results(program, &outcome))
}

fn compiled(source: &str, plan: &str, mode: Mode, last: Stage) -> Result<Compilation, Stop> {
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let options = LangOptions { plan: PlanChoice::Named(plan.to_owned()), overrides: Vec::new() };
    let stop = |diagnostics: &[Diagnostic], sources: &SourceMap| {
        let titles = diagnostics.iter().map(|it| {
            let at = it.span().map(|span| sources.position(span).line).unwrap_or_default();
            format!("{} line {at}: {}", it.code.number(), it.title)
        });
        Stop::Refused(format!("{plan}: {}", titles.collect::<Vec<_>>().join("; ")))
    };
    let typed = compile(&nothing, "case.dtl", source.as_bytes(), &options)
        .map_err(|rejected: Box<Rejected>| stop(&rejected.diagnostics, &rejected.sources))?;
    pipeline::compile_within(&typed, mode, last, &budget(mode)).map_err(|trouble| {
        match trouble.into_failure(&typed.sources) {
            Failure::Input { diagnostics, sources } => stop(&diagnostics, &sources),
            other => Stop::Bug(format!("{other:?}")),
        }
    })
}

/// A training step computes every product in chunks that can be, down to one row; gradients alone keep them whole.
fn budget(mode: Mode) -> ChunkBudget {
    match mode {
        Mode::Train => ChunkBudget { whole: 0, chunk: 0, rows: 0 },
        Mode::Evaluate | Mode::Gradients => ChunkBudget::default(),
    }
}

fn bug(fault: impl std::fmt::Display) -> Stop {
    Stop::Bug(fault.to_string())
}

/// States, then inputs: numbers that depend on the tensor's name and the position alone.
fn arguments(program: &Program) -> Vec<Tensor> {
    let states = program.states.iter().map(|state| state_argument(program, state));
    let inputs = program.inputs.iter().map(|input| input_argument(program, &input.name, input.value));
    states.chain(inputs).collect()
}

fn state_argument(program: &Program, state: &State) -> Tensor {
    let (path, base, reach) = match &state.kind {
        StateKind::Parameter(kind) => (&state.path, centre(*kind), 0.5),
        StateKind::Master(of) => match &program.states[*of].kind {
            StateKind::Parameter(kind) => (&program.states[*of].path, centre(*kind), 0.5),
            StateKind::Master(_) | StateKind::Optimizer { .. } => (&state.path, 0.0, 0.5),
        },
        // Second moments are positive.
        StateKind::Optimizer { .. } => (&state.path, 0.04, 0.02),
    };
    filled(program, path, state.value, |number| base + reach * (2.0 * number - 1.0))
}

fn centre(kind: ParameterKind) -> f64 {
    match kind {
        ParameterKind::Norm => 1.0,
        ParameterKind::Weight | ParameterKind::Bias => 0.0,
    }
}

/// Integers reach one beyond the dimension `V`, as a token out of range is zero; one label in five does not count.
fn input_argument(program: &Program, name: &str, value: Value) -> Tensor {
    let vocabulary = program.dims.values().find(|dim| dim.name == "V").map_or(5, |dim| dim.size);
    let mut labels = Rng::new(77);
    let dtype = program.ty(value).dtype;
    filled(program, name, value, |number| match name {
        "step" => STEP as f64,
        "labels" if labels.percent(20) => f64::from(u32::MAX),
        _ if dtype == DType::Bool => f64::from(u8::from(number < 0.6)),
        _ if dtype.is_float() => 2.0 * number - 1.0,
        "labels" => (number * vocabulary as f64).floor(),
        _ => (number * (vocabulary as f64 + 0.5)).floor(),
    })
}

fn filled(program: &Program, name: &str, value: Value, number: impl FnMut(f64) -> f64) -> Tensor {
    let ty = program.ty(value);
    let mut number = number;
    let seed = name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(1_000_003) ^ u64::from(byte));
    let mut rng = Rng::new(seed);
    let shape = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
    Tensor::from_fn(shape, |_| stored(number(rng.unit()), ty.dtype))
}

/// Updated states by path, outputs by name.
fn results(program: &Program, outcome: &Outcome) -> Results {
    let mut results = Results::new();
    for (value, tensor) in program.main.yields.iter().zip(&outcome.yields) {
        let state = program.states.iter().find(|state| state.updated == Some(*value));
        let outputs = program.outputs.iter().filter(|output| output.value == *value);
        let names = outputs.map(|output| &output.name).chain(state.map(|state| &state.path));
        let mut dims = program.ty(*value).dims.to_vec();
        // The batch is `M × B` where micro-batches are outputs.
        let name = |dim: Dim| program.dims[dim].name.as_str();
        dims.sort_by_key(|&dim| if name(dim) == "M" { ("B", 0) } else { (name(dim), 1) });
        let data = tensor.ordered(&dims).data;
        names.for_each(|name| {
            results.insert(name.clone(), data.clone());
        });
    }
    results
}

/// For each result, how far the other one's is away.
fn differences(expected: &Results, got: &Results) -> Vec<f64> {
    let most = |(name, left): (&String, &Vec<f64>)| match got.get(name) {
        Some(right) if right.len() == left.len() => {
            let errors = left
                .iter()
                .zip(right)
                .map(|(left, right)| if left == right { 0.0 } else { (left - right).abs() });
            errors.fold(0.0, |most: f64, error| if error.is_nan() { error } else { most.max(error) })
        }
        Some(_) | None => f64::NAN,
    };
    expected.iter().map(most).collect()
}

/// What errors are relative to: the largest number of the tensor, of a gradient at least a part of the model's largest.
fn scales(truth: &Results) -> Vec<f64> {
    let largest = |numbers: &[f64]| numbers.iter().fold(0f64, |most, number| most.max(number.abs()));
    let gradients = truth.iter().filter(|(name, _)| name.starts_with("grad."));
    let gradient = gradients.fold(0f64, |most, (_, numbers)| most.max(largest(numbers)));
    let scale = |(name, numbers): (&String, &Vec<f64>)| {
        let floor = if name.starts_with("grad.") { ZERO * gradient } else { 1e-2 };
        largest(numbers).max(floor)
    };
    truth.iter().map(scale).collect()
}

fn disagreement(truth: &Results, got: &Results, bounds: &[f64]) -> Option<String> {
    let errors = differences(truth, got);
    let mut lines = Vec::new();
    for (((name, numbers), error), bound) in truth.iter().zip(&errors).zip(bounds) {
        if *error <= *bound {
            continue;
        }
        let empty = Vec::new();
        let other = got.get(name).unwrap_or(&empty);
        let at = numbers.iter().zip(other).position(|(left, right)| {
            let off = (left - right).abs();
            off.is_nan() || off > *bound
        });
        let at = at.unwrap_or_default();
        lines.push(format!(
            "{name}: off by {error:.3e}, bound {bound:.3e}; [{at}] is {:?}, not {:?} ({} elements, {} expected)",
            other.get(at),
            numbers.get(at),
            other.len(),
            numbers.len()
        ));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn bits(tensors: &[Tensor]) -> Vec<u64> {
    tensors.iter().flat_map(|tensor| tensor.data.iter().map(|number| number.to_bits())).collect()
}
