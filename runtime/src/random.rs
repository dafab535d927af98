//! Initial values of state tensors: functions of seed, path and global index alone.
//!
//! Uses Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3,
//! SC 2011), a counter-based generator, so each element is computed where it is needed and has the
//! same bits under any sharding.

use crate::program::Initial;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
/// The distance between 32-bit fractions.
const STEP: f64 = 1.0 / 4_294_967_296.0;

/// Four random words for a key and a counter.
#[must_use]
pub fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// The random numbers of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: [u32; 2],
    tensor: [u32; 2],
}

impl Stream {
    /// The stream of the tensor at a path.
    #[must_use]
    pub fn new(seed: u64, path: &str) -> Self {
        let hash = blake3::hash(path.as_bytes());
        let word = |at: usize| (0..4).fold(0, |word, byte| word << 8 | u32::from(hash.as_bytes()[at + byte]));
        Self { key: [seed as u32, (seed >> 32) as u32], tensor: [word(0), word(4)] }
    }

    /// The value that an element starts with; `None` for a copy, which has no values of its own.
    #[must_use]
    pub fn value(&self, initial: Initial, index: u64) -> Option<f32> {
        let words = || philox(self.key, [index as u32, (index >> 32) as u32, self.tensor[0], self.tensor[1]]);
        match initial {
            Initial::Constant(value) => Some(value),
            Initial::Normal { mean, deviation } => {
                let words = words();
                // Box–Muller; the half keeps the logarithm's argument above 0.
                let radius = (-2.0 * ((f64::from(words[0]) + 0.5) * STEP).ln()).sqrt();
                let angle = std::f64::consts::TAU * f64::from(words[1]) * STEP;
                Some((f64::from(mean) + f64::from(deviation) * radius * angle.cos()) as f32)
            }
            Initial::Uniform { low, high } => {
                // 24 bits, so that the fraction is exact in f32 and below 1.
                let fraction = f64::from(words()[0] >> 8) / f64::from(1 << 24);
                let value = (f64::from(low) + (f64::from(high) - f64::from(low)) * fraction) as f32;
                Some(if value < high { value } else { low })
            }
            Initial::CopyOf(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_words() {
        // The known answers that come with the authors' Random123.
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn normal_values_have_the_asked_moments() {
        let stream = Stream::new(7, "layers.attn.wq");
        let initial = Initial::Normal { mean: 1.0, deviation: 0.5 };
        let count = 100_000;
        let values: Vec<f64> =
            (0..count).filter_map(|index| stream.value(initial, index)).map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64;
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
        assert!((variance - 0.25).abs() < 0.01, "variance {variance}");
    }

    #[test]
    fn uniform_values_stay_in_their_range() {
        let stream = Stream::new(u64::MAX, "embed");
        let initial = Initial::Uniform { low: -0.25, high: 0.5 };
        let values: Vec<f32> = (0..10_000).filter_map(|index| stream.value(initial, index)).collect();
        assert_eq!(values.len(), 10_000);
        assert!(values.iter().all(|value| (-0.25..0.5).contains(value)));
        let mean = values.iter().sum::<f32>() / 10_000.0;
        assert!((mean - 0.125).abs() < 0.01, "mean {mean}");
    }
}
