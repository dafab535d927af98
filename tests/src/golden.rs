//! The reference numbers of `tests/golden`: weights, batches, losses, norms and gradients of tiny models; and the examples
//! that are held against them.

use crate::backend::Start;
use crate::chain::{Mode, assembled};
use dtlc_codegen::assemble::Assembled;
use dtlc_runtime::files::safetensors::{TensorFile, read_all};
use dtlc_runtime::files::weights::{load_weights, parameters};
use dtlc_runtime::session::Session;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;
use std::path::{Path, PathBuf};

/// One model's reference training.
pub struct Golden {
    tensors: IndexMap<String, HostTensor>,
    /// Parameters in the order of `final_l2`.
    order: Vec<String>,
}

impl Golden {
    /// Reads `tests/golden/NAME_tiny.safetensors`.
    pub fn open(name: &str) -> Golden {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{name}_tiny.safetensors"));
        let tensors = read_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let metadata = TensorFile::open(&path).unwrap_or_else(|error| panic!("{error}")).metadata().clone();
        let order = serde_json::from_str(&metadata["param_order"]).unwrap_or_else(|error| panic!("{error}"));
        Golden { tensors, order }
    }

    /// The initial weights by the reference's names.
    pub fn weights(&self) -> IndexMap<String, HostTensor> {
        self.with_prefix("param.")
    }

    /// The gradients of the first step.
    pub fn gradients(&self) -> IndexMap<String, HostTensor> {
        self.with_prefix("grad.")
    }

    fn with_prefix(&self, prefix: &str) -> IndexMap<String, HostTensor> {
        let named = self.tensors.iter();
        named
            .filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_string(), tensor.clone())))
            .collect()
    }

    /// A list of numbers such as `losses`.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        self.tensors[name].to_f32().into_iter().map(f64::from).collect()
    }

    /// The norm of each parameter after the five steps.
    pub fn final_norms(&self) -> Vec<(String, f64)> {
        self.order.iter().cloned().zip(self.numbers("final_l2")).collect()
    }

    /// Tokens and labels of a step.
    pub fn batch(&self, step: usize) -> (HostTensor, HostTensor) {
        let tokens = &self.tensors["tokens"];
        let [_, rows, columns] = *tokens.shape.as_slice() else { panic!("tokens of three dims") };
        let numbers: Vec<u32> = tokens
            .bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let batch = &numbers[step * (rows * columns) as usize..][..(rows * columns) as usize];
        let part = |from: usize| {
            let kept = batch
                .chunks_exact(columns as usize)
                .flat_map(|row| row[from..][..columns as usize - 1].to_vec());
            HostTensor::from_u32(&[rows, columns - 1], &kept.collect::<Vec<u32>>())
        };
        (part(0), part(1))
    }

    /// Writes the weights where a session can load them from.
    pub fn write_weights(&self, folder: &Path) -> PathBuf {
        let path = folder.join("weights.safetensors");
        dtlc_runtime::files::weights::save_tensors(&path, &self.weights())
            .unwrap_or_else(|error| panic!("{error}"));
        path
    }
}

/// A session on the plan's program with the reference's weights.
fn session(model: &str, plan: &str, mode: Mode, golden: &Golden, on: Start) -> Session {
    start(assembled(&file(model), plan, mode), plan, golden, on)
}

/// Where an example is.
pub(crate) fn file(model: &str) -> String {
    format!("../examples/golden/{model}.dtl")
}

/// A session on a program with the reference's weights.
pub(crate) fn start(made: Assembled, plan: &str, golden: &Golden, on: Start) -> Session {
    let mut session = on(made).unwrap_or_else(|error| panic!("{plan}: {error}"));
    session.initialise(0).unwrap_or_else(|error| panic!("{plan}: {error}"));
    let folder = tempfile::tempdir().expect("a folder");
    load_weights(&mut session, &[golden.write_weights(folder.path())])
        .unwrap_or_else(|error| panic!("{plan}: {error}"));
    session
}

/// Runs a step on its batch of the reference's.
pub(crate) fn step(session: &mut Session, golden: &Golden, step: usize) -> IndexMap<String, HostTensor> {
    let (tokens, labels) = golden.batch(step);
    for (name, tensor) in [("tokens", tokens), ("labels", labels)] {
        session.set_input(name, &tensor).unwrap_or_else(|error| panic!("{error}"));
    }
    session.step(step as u64 + 1, 0).unwrap_or_else(|error| panic!("{error}"));
    dtlc_runtime::train::outputs(session).unwrap_or_else(|error| panic!("{error}"))
}

/// Holds the loss and every gradient of the first step to 1e-5.
///
/// # Panics
/// Where one is off.
pub fn gradients_match(model: &str, plan: &str, on: Start) {
    let golden = Golden::open(model);
    let mut session = session(model, plan, Mode::Gradients, &golden, on);
    let outputs = step(&mut session, &golden, 0);
    let loss = f64::from(outputs["loss"].to_f32()[0]);
    let expected = golden.numbers("losses")[0];
    assert!((loss - expected).abs() / expected < 1e-5, "{plan}: loss {loss}, not {expected}");
    for (name, gradient) in golden.gradients() {
        let got = outputs.get(&format!("grad.{name}"));
        let got = got.unwrap_or_else(|| panic!("no grad.{name} in {:?}", outputs.keys()));
        let error = relative_error(&gradient.to_f32(), &got.to_f32());
        assert!(error < 1e-5, "{plan}, {name}: {error}");
    }
}

/// Holds five steps of AdamW to 1e-5: losses, gradient norms, and the norms of the parameters at the end.
///
/// # Panics
/// Where one is off.
pub fn training_matches(model: &str, plan: &str, on: Start) {
    let golden = Golden::open(model);
    let mut session = session(model, plan, Mode::Train, &golden, on);
    for (number, (&loss, &norm)) in
        golden.numbers("losses").iter().zip(&golden.numbers("grad_norms")).enumerate()
    {
        let outputs = step(&mut session, &golden, number);
        for (name, expected) in [("loss", loss), ("grad_norm", norm)] {
            let got = f64::from(outputs[name].to_f32()[0]);
            let error = (got - expected).abs() / expected;
            assert!(error < 1e-5, "{plan}, step {number}: {name} {got}, not {expected}");
        }
    }
    let parameters = parameters(&session).unwrap_or_else(|error| panic!("{error}"));
    for (name, expected) in golden.final_norms() {
        let tensor = parameters.get(&name).unwrap_or_else(|| panic!("no {name} in {:?}", parameters.keys()));
        let mut numbers = tensor.to_f32();
        if name.ends_with("b_qkv") {
            without_key_bias_noise(&mut numbers, &golden.weights()[&name].to_f32(), plan);
        }
        let squares = numbers.into_iter().map(|number| f64::from(number).powi(2)).sum::<f64>();
        let error = (squares.sqrt() - expected).abs() / expected;
        assert!(error < 1e-5, "{plan}: the norm of {name} is {}, not {expected}", squares.sqrt());
    }
}

/// Softmax does not see a bias on keys, so in exact arithmetic its gradient is zero and it stays where it started
/// (biases do not decay). In f32 the gradient is rounding noise of about a tenth of Adam's epsilon, which Adam turns
/// into steps of up to the learning rate. The noise is held to that bound and taken out before norms are compared.
fn without_key_bias_noise(numbers: &mut [f32], start: &[f32], plan: &str) {
    const LEARNING_RATE: f32 = 1e-3;
    const STEPS: f32 = 5.0;
    let third = numbers.len() / 3;
    for (number, start) in numbers.iter_mut().zip(start).skip(third).take(third) {
        assert!(
            (*number - start).abs() <= STEPS * LEARNING_RATE,
            "{plan}: a key bias moved from {start} to {number}"
        );
        *number = *start;
    }
}

/// The largest difference over the largest number.
pub fn relative_error(expected: &[f32], got: &[f32]) -> f64 {
    assert_eq!(expected.len(), got.len());
    let scale = expected.iter().fold(0f64, |most, &number| most.max(f64::from(number).abs()));
    let error = expected.iter().zip(got).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    error.fold(0.0, f64::max) / scale.max(f64::MIN_POSITIVE)
}
