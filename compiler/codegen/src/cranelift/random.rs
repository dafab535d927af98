//! Philox-4x32-10 on vectors: four counters a vector.

use super::emit::Emitter;
use super::group::{Group, LANES};
use crate::kir::{Draw, Index};
use crate::math::Lanes;
use cranelift_codegen::ir::{ConstantData, InstBuilder, Value, types};

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: u32 = 10;

impl Emitter<'_, '_> {
    /// Word `word` of the generator's output, drawn as `draw` says.
    pub(super) fn random(&mut self, key: &[Index; 2], counter: &Index, word: u8, draw: Draw) -> Group {
        let words = self.philox(key, counter);
        let bits = words[usize::from(word)].clone();
        match draw {
            Draw::Bits => bits,
            Draw::Unit => {
                let upper = self.shift_right(&bits, 8);
                let number = self.signed_to_float(&upper);
                let scale = self.float(1.0 / 16_777_216.0);
                self.multiply(&number, &scale)
            }
        }
    }

    fn philox(&mut self, key: &[Index; 2], counter: &Index) -> [Group; 4] {
        let mut key = [&key[0], &key[1]].map(|index| self.low_word(index));
        let [low, high] = self.counter_words(counter);
        let zero = self.bits(0);
        let mut state = [low, high, zero.clone(), zero];
        for round in 0..ROUNDS {
            if round > 0 {
                for (word, step) in key.iter_mut().zip(KEY_STEPS) {
                    let step = self.bits(step);
                    *word = self.bits_add(word, &step);
                }
            }
            let (high_0, low_0) = self.wide_product(&state[0], MULTIPLIERS[0]);
            let (high_1, low_1) = self.wide_product(&state[2], MULTIPLIERS[1]);
            let first = self.bits_xor(&high_1, &state[1]);
            let third = self.bits_xor(&high_0, &state[3]);
            state = [self.bits_xor(&first, &key[0]), low_1, self.bits_xor(&third, &key[1]), low_0];
        }
        state
    }

    /// The low 32 bits of an index that does not vary in the chunk.
    fn low_word(&mut self, index: &Index) -> Group {
        let value = self.index_value(index);
        let word = self.builder.ins().ireduce(types::I32, value);
        Group::uniform(self.builder.ins().splat(types::I32X4, word))
    }

    /// The low and the high words of an index, lane by lane.
    fn counter_words(&mut self, counter: &Index) -> [Group; 2] {
        let step = self.lane_step(counter);
        let value = self.index_value(counter);
        let start = self.builder.ins().splat(types::I64X2, value);
        let vectors = if step == 0 { 1 } else { self.chunk.vectors };
        let mut low = Group::uniform(start);
        low.values.clear();
        low.is_uniform = step == 0;
        let mut high = low.clone();
        for vector in 0..vectors {
            let halves = [0, 2].map(|lane| {
                let first = (vector * LANES + lane) as i64;
                let steps = [first.wrapping_mul(step), (first + 1).wrapping_mul(step)];
                let offsets = self.pair_constant(steps);
                self.builder.ins().iadd(start, offsets)
            });
            low.values.push(self.words_of_pairs(halves, false));
            high.values.push(self.words_of_pairs(halves, true));
        }
        [low, high]
    }

    fn pair_constant(&mut self, words: [i64; 2]) -> Value {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let pool = &mut self.builder.func.dfg.constants;
        let constant = pool.insert(ConstantData::from(bytes));
        self.builder.ins().vconst(types::I64X2, constant)
    }

    /// The upper and the lower words of the 64-bit products by `multiplier`.
    fn wide_product(&mut self, value: &Group, multiplier: u32) -> (Group, Group) {
        let factor = self.bits(multiplier).of(0);
        let products: Vec<[Value; 2]> = value
            .values
            .iter()
            .map(|&value| {
                let instructions = |emitter: &mut Self, is_high: bool| {
                    let widen = |emitter: &mut Self, value| match is_high {
                        true => emitter.builder.ins().uwiden_high(value),
                        false => emitter.builder.ins().uwiden_low(value),
                    };
                    let left = widen(emitter, value);
                    let right = widen(emitter, factor);
                    emitter.builder.ins().imul(left, right)
                };
                [instructions(self, false), instructions(self, true)]
            })
            .collect();
        let mut part = |is_high: bool| Group {
            values: products.iter().map(|&halves| self.words_of_pairs(halves, is_high)).collect(),
            is_uniform: value.is_uniform,
        };
        (part(true), part(false))
    }

    /// The low or the high words of four 64-bit lanes.
    fn words_of_pairs(&mut self, halves: [Value; 2], is_high: bool) -> Value {
        let [first, second] = halves.map(|half| self.reinterpret(types::I32X4, half));
        let lanes = if is_high { [1, 3, 5, 7] } else { [0, 2, 4, 6] };
        self.shuffle_words(first, second, lanes)
    }

    /// Words of two vectors by number: 0 to 3 of `first`, 4 to 7 of `second`.
    pub(super) fn shuffle_words(&mut self, first: Value, second: Value, lanes: [u8; LANES]) -> Value {
        let vector = self.builder.func.dfg.value_type(first);
        let bytes = lanes.iter().flat_map(|lane| (0..4).map(move |byte| lane * 4 + byte));
        let mask = ConstantData::from(bytes.collect::<Vec<u8>>());
        let mask = self.builder.func.dfg.immediates.push(mask);
        let first = self.reinterpret(types::I8X16, first);
        let second = self.reinterpret(types::I8X16, second);
        let shuffled = self.builder.ins().shuffle(first, second, mask);
        self.reinterpret(vector, shuffled)
    }
}
