//! A pseudo-random order of `0..count` that needs no memory: position in, index out.
//!
//! A four-round Feistel network on the next even number of bits permutes a range at most four times
//! as long as asked for; positions that land outside walk on until they land inside (cycle walking;
//! Black and Rogaway, Ciphers with arbitrary finite domains, 2002).

use crate::random::philox;

const ROUNDS: u32 = 4;

/// An order of `0..count` that a seed chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Order {
    /// The order of `count` things, at least 1 and at most 2^62, for a seed.
    #[must_use]
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// What stands at a position of the endless sequence of passes through all things, each pass in
    /// an order of its own.
    #[must_use]
    pub fn at(&self, position: u64) -> u64 {
        let (pass, mut index) = (position / self.count, position % self.count);
        loop {
            index = self.permute(index, pass);
            if index < self.count {
                return index;
            }
        }
    }

    fn permute(&self, index: u64, pass: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (index >> self.half_bits, index & mask);
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        for round in 0..ROUNDS {
            let counter = [right as u32, round, pass as u32, (pass >> 32) as u32];
            let mixed = u64::from(philox(key, counter)[0]) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_visits_everything_once() {
        for count in [1, 2, 3, 7, 64, 1000, 4097] {
            let order = Order::new(count, 42);
            for pass in 0..3 {
                let mut seen: Vec<u64> = (0..count).map(|index| order.at(pass * count + index)).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..count).collect::<Vec<u64>>());
            }
        }
    }

    #[test]
    fn passes_and_seeds_differ() {
        let pass = |seed, pass: u64| -> Vec<u64> {
            (0..100).map(|index| Order::new(100, seed).at(100 * pass + index)).collect()
        };
        assert_ne!(pass(1, 0), pass(1, 1));
        assert_ne!(pass(1, 0), pass(2, 0));
        assert_ne!(pass(1, 0), (0..100).collect::<Vec<u64>>());
    }
}
