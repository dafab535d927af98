//! The golden examples in bf16 and f16: how far a first step may be from the reference's f64 numbers, by what its own arithmetic rounds.
//!
//! A bound is the sum of two distances, each a tensor's Euclidean one. The first is from the reference to the same program in f64
//! from the same weights in 16 bits: what rounding the weights alone does. The second is from there to that program with every
//! result, and every sum on its way, rounded to its type, up or down by chance (Parker, "Monte Carlo Arithmetic", 1997): the
//! largest of a few samples. The interpreter computes both, rank by rank under the same plan, so they have the roundings that a
//! plan adds. To the nearest, as backends round, an error has half the variance that it has by chance.

use crate::backend::{Start, on_cpu};
use crate::chain::{Mode, compile_text};
use crate::golden::{Golden, file, start, step};
use dtlc::pipeline::Compilation;
use dtlc::verification::rounding::{Interpreted, STUDENT};
use dtlc_codegen::assemble::Assembled;
use dtlc_ir::interpret::Rounding;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;

/// Samples of rounding by chance.
const SAMPLES: u64 = 3;
/// What is put into each plan, for a format.
fn precision(format: &str) -> String {
    format!("precision {{ compute {format}, params {format}, grads {format}, master f32, reduce f32 }}")
}

/// Loss and gradients by the reference's names.
type Results = IndexMap<String, Vec<f64>>;

/// Compiles an example with its plans in a format.
fn compiled(model: &str, plan: &str, format: &str) -> Compilation {
    let precision = precision(format);
    let path = file(model);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let text = text.replace("  optimizer adamw", &format!("  {precision}\n  optimizer adamw"));
    assert!(text.contains(&precision), "{path} has no optimizer");
    compile_text(&path, text.as_bytes(), plan, Mode::Gradients)
}

/// What a model's first step under a plan may be off by.
pub struct Bounds {
    golden: Golden,
    plan: String,
    made: Assembled,
    /// For each result its name, the reference's numbers, and the distance that is allowed.
    results: Vec<(String, Vec<f64>, f64)>,
}

impl Bounds {
    /// Those of `examples/golden/MODEL.dtl` with its plan in `bf16` or `f16`.
    ///
    /// # Panics
    /// Where it does not compile, or can't be interpreted.
    pub fn of(model: &str, plan: &str, format: &str) -> Bounds {
        let golden = Golden::open(model);
        let compilation = compiled(model, plan, format);
        let made = compilation.assembled.expect("the last stage");
        let planned = compilation.scheduled.expect("a stage before it").planned;
        let session = start(made.clone(), plan, &golden, on_cpu);
        let (tokens, labels) = golden.batch(0);
        let inputs = [("tokens".to_owned(), tokens), ("labels".to_owned(), labels)].into_iter().collect();
        let first = Interpreted::first_step(&planned, &session, &inputs, 0)
            .unwrap_or_else(|failure| panic!("{failure:?}"));
        let interpreted = |rounding| -> Results {
            let outputs = first.outputs(rounding).unwrap_or_else(|failure| panic!("{failure:?}"));
            outputs.iter().map(|(name, tensor)| (name.clone(), wide(tensor))).collect()
        };
        let exact = interpreted(Rounding::None);
        let samples: Vec<Results> = (0..SAMPLES).map(|seed| interpreted(Rounding::Chance(seed))).collect();
        let bound = |(name, expected): (String, Vec<f64>)| {
            let distances: Vec<f64> =
                samples.iter().map(|sample| distance(&sample[&name], &exact[&name])).collect();
            let most = distance(&exact[&name], &expected) + spread(&distances, expected.len());
            (name, expected, most)
        };
        let results = reference(&golden).into_iter().map(bound).collect();
        Bounds { golden, plan: plan.to_owned(), made, results }
    }

    /// Runs the step on a backend. What is beyond its bound, a line each.
    ///
    /// # Panics
    /// Where it can't be run.
    pub fn broken(&self, on: Start) -> Vec<String> {
        let mut session = start(self.made.clone(), &self.plan, &self.golden, on);
        let outputs = step(&mut session, &self.golden, 0);
        let judge = |(name, expected, most): &(String, Vec<f64>, f64)| {
            let off = distance(&wide(&outputs[name]), expected);
            // A NaN is beyond all bounds.
            let is_within = off <= *most;
            (!is_within).then(|| format!("{name} is off by {off:.3e}, bound {most:.3e}"))
        };
        self.results.iter().filter_map(judge).collect()
    }
}

/// How far rounding takes a result. The length of a long error hardly varies between samples; that of a lone number does, so it
/// gets Student's interval for one more like these.
fn spread(distances: &[f64], elements: usize) -> f64 {
    let most = distances.iter().copied().fold(0.0, f64::max);
    let mean_square = distances.iter().map(|it| it.powi(2)).sum::<f64>() / distances.len() as f64;
    if elements == 1 { STUDENT * mean_square.sqrt() } else { most }
}

fn distance(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).powi(2)).sum::<f64>().sqrt()
}

fn wide(tensor: &HostTensor) -> Vec<f64> {
    tensor.to_f32().into_iter().map(f64::from).collect()
}

/// The reference's numbers by name.
fn reference(golden: &Golden) -> Results {
    let gradients = golden.gradients();
    let gradients = gradients.iter().map(|(name, tensor)| (format!("grad.{name}"), wide(tensor)));
    [("loss".to_owned(), golden.numbers("losses")[..1].to_vec())].into_iter().chain(gradients).collect()
}
