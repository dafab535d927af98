//! The random numbers of a program. Whoever draws them (interpreter, kernels, runtime) draws these bits.
//!
//! The generator is Philox-4x32 with 10 rounds ("Parallel Random Numbers: As Easy as 1, 2, 3", Salmon
//! et al., SC 2011): a pure function of a counter and a key, so that an element's bits depend on where it
//! is in the unsharded tensor and on nothing else.

/// Added to the key per stream: the golden ratio's fraction, so that near streams and seeds stay apart.
pub const STREAM_STEP: u32 = 0x9e37_79b9;

/// 32 random bits for element `index` of stream `stream` at step `step`.
///
/// `index` is the row-major linear index over `Op::Random`'s dims at their unsharded sizes. The counter is
/// `[index low, index high, 0, 0]`, the key `[seed low + stream · STREAM_STEP, seed high + step]` modulo
/// 2^32, the result the first of the four words.
pub fn random_bits(seed: u64, step: u32, stream: u32, index: u64) -> u32 {
    let key = [
        (seed as u32).wrapping_add(stream.wrapping_mul(STREAM_STEP)),
        ((seed >> 32) as u32).wrapping_add(step),
    ];
    philox([index as u32, (index >> 32) as u32, 0, 0], key)[0]
}

/// Uniform in [0, 1) from random bits: the upper 24 bits, exact in f32.
pub fn uniform(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Philox-4x32-10 of a counter under a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        }
        let first = u64::from(counter[0]) * 0xd251_1f53;
        let second = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_the_paper() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let answer = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(philox(pi, [0xa409_3822, 0x299f_31d0]), answer);
    }

    #[test]
    fn the_key_mixes_seed_stream_and_step() {
        assert_eq!(random_bits(0, 0, 0, 0), 0x6627_e8d5);
        let drawn = [
            random_bits(7, 0, 0, 3),
            random_bits(8, 0, 0, 3),
            random_bits(7, 1, 0, 3),
            random_bits(7, 0, 1, 3),
            random_bits(7, 0, 0, 4),
            random_bits(7, 0, 0, 3 + (1 << 32)),
            random_bits(7 + (1 << 32), 0, 0, 3),
        ];
        for (index, bits) in drawn.iter().enumerate() {
            // One step on is one seed's upper half on: the last equals the third.
            let twin = if index == 6 { 2 } else { index };
            assert_eq!(drawn.iter().position(|other| other == bits), Some(twin));
        }
    }

    #[test]
    fn uniform_is_below_one() {
        assert_eq!(uniform(!0), 1.0 - 1.0 / 16_777_216.0);
        assert_eq!(uniform(0xff), 0.0);
        assert_eq!(uniform(1 << 31), 0.5);
    }
}
