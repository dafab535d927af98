//! The work that every contestant does: sizes, initial weights and batches, as safetensors files.
//!
//! Matrices start normal with variance 1 over their inputs, norms near 1. Tokens are a noisy affine chain, so that there
//! is something to learn. All follows from fixed seeds.

use dtlc_runtime::files::weights::save_tensors;
use dtlc_runtime::program::DType;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;
use std::path::Path;

/// A model of `examples/peers.dtl`.
pub struct Size {
    /// How its plans' names begin.
    pub name: &'static str,
    /// Steps that a contestant runs in a round.
    pub steps: usize,
    layers: u64,
    width: u64,
    key_width: u64,
    hidden: u64,
    vocabulary: u64,
    positions: u64,
    sequences: u64,
}

impl Size {
    /// The three sizes.
    pub const ALL: [Size; 3] = [
        Size {
            name: "tiny",
            steps: 80,
            layers: 2,
            width: 64,
            key_width: 32,
            hidden: 176,
            vocabulary: 256,
            positions: 64,
            sequences: 8,
        },
        Size {
            name: "small",
            steps: 7,
            layers: 4,
            width: 256,
            key_width: 128,
            hidden: 688,
            vocabulary: 4096,
            positions: 256,
            sequences: 8,
        },
        Size {
            name: "base",
            steps: 5,
            layers: 8,
            width: 512,
            key_width: 512,
            hidden: 1376,
            vocabulary: 8192,
            positions: 512,
            sequences: 4,
        },
    ];

    /// Tokens of a step.
    pub fn tokens(&self) -> u64 {
        self.positions * self.sequences
    }

    /// Operations of a step, as papers count them: 6 for each weight of a product and token, and attention over all
    /// pairs of positions.
    pub fn operations(&self) -> f64 {
        let block = 2 * self.width * (self.width + self.key_width) + 3 * self.width * self.hidden;
        let weights = self.layers * block + self.width * self.vocabulary;
        let attention = 12 * self.layers * self.positions * self.width;
        ((6 * weights + attention) * self.tokens()) as f64
    }

    /// Writes `NAME.weights.safetensors` and `NAME.data.safetensors` with batches for `steps` steps.
    pub fn write(&self, folder: &Path, steps: usize) -> dtlc_runtime::Result<()> {
        let file = |kind: &str| folder.join(format!("{}.{kind}.safetensors", self.name));
        save_tensors(&file("weights"), &self.weights())?;
        save_tensors(&file("data"), &self.data(steps as u64))
    }

    fn weights(&self) -> IndexMap<String, HostTensor> {
        let mut random = Random(1);
        let mut weights = IndexMap::new();
        let mut matrix = |name: String, rows: u64, columns: u64, inputs: u64| {
            let deviation = (inputs as f32).sqrt().recip();
            let values = (0..rows * columns).map(|_| deviation * random.normal()).collect();
            weights.insert(name, floats(vec![rows, columns], values));
        };
        matrix("embed".into(), self.vocabulary, self.width, self.width);
        for layer in 0..self.layers {
            for (name, rows, columns) in [
                ("wq", self.width, self.width),
                ("wk", self.width, self.key_width),
                ("wv", self.width, self.key_width),
                ("wo", self.width, self.width),
                ("w_gate", self.width, self.hidden),
                ("w_up", self.width, self.hidden),
                ("w_down", self.hidden, self.width),
            ] {
                matrix(format!("layers.{layer}.{name}"), rows, columns, rows);
            }
        }
        matrix("lm_head".into(), self.width, self.vocabulary, self.width);
        let norms = (0..self.layers)
            .flat_map(|layer| ["attn_norm", "mlp_norm"].map(|name| format!("layers.{layer}.{name}")));
        for name in norms.chain(["final_norm".to_owned()]) {
            let values = (0..self.width).map(|_| 1.0 + 0.1 * random.normal()).collect();
            weights.insert(name, floats(vec![self.width], values));
        }
        weights
    }

    fn data(&self, steps: u64) -> IndexMap<String, HostTensor> {
        let mut random = Random(2);
        let (mut tokens, mut labels) = (Vec::new(), Vec::new());
        for _ in 0..steps * self.sequences {
            let mut token = random.below(self.vocabulary);
            for _ in 0..self.positions {
                tokens.extend((token as u32).to_le_bytes());
                let follows = random.below(10) > 0;
                token =
                    if follows { (5 * token + 17) % self.vocabulary } else { random.below(self.vocabulary) };
                labels.extend((token as u32).to_le_bytes());
            }
        }
        let shape = vec![steps, self.sequences, self.positions];
        let integers = |bytes| HostTensor { dtype: DType::U32, shape: shape.clone(), bytes };
        IndexMap::from([("tokens".to_owned(), integers(tokens)), ("labels".to_owned(), integers(labels))])
    }
}

fn floats(shape: Vec<u64>, values: Vec<f32>) -> HostTensor {
    HostTensor { dtype: DType::F32, shape, bytes: values.into_iter().flat_map(f32::to_le_bytes).collect() }
}

/// Random numbers: splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f32 {
        ((self.next() >> 40) + 1) as f32 / (1u64 << 24) as f32
    }

    /// Standard normal, by Box and Muller's transform.
    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }
}
