//! The reference numbers of `tests/golden`: weights, batches, losses, norms and gradients of tiny models.

use dtlc_runtime::files::safetensors::{TensorFile, read_all};
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

/// The largest difference over the largest number.
pub fn relative_error(expected: &[f32], got: &[f32]) -> f64 {
    assert_eq!(expected.len(), got.len());
    let scale = expected.iter().fold(0f64, |most, &number| most.max(f64::from(number).abs()));
    let error = expected.iter().zip(got).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    error.fold(0.0, f64::max) / scale.max(f64::MIN_POSITIVE)
}
