//! The error function, the reciprocal square root, and the floats of 16 bits.

use super::{Lanes, exp, polynomial, with_sign};

/// The error function: an odd polynomial below 0.92 in magnitude, else `1 - e^-q(|x|)` with a polynomial `q` fitted to
/// `-ln erfc`.
pub fn erf<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    let magnitude = lanes.absolute(x);
    let square = lanes.multiply(&magnitude, &magnitude);
    let series = polynomial(
        lanes,
        &square,
        &[0.128_379_15, -0.376_124_9, 0.112_817_3, -0.026_762_916, 0.004_987_252_4, -5.958_971e-4],
    );
    let small = lanes.multiply_add(&series, &magnitude, &magnitude);

    // From 4 on the result rounds to 1; the fit does not hold there.
    let four = lanes.float(4.0);
    let is_far = lanes.less(&four, &magnitude);
    let near = lanes.select(&is_far, &four, &magnitude);
    let exponent = polynomial(
        lanes,
        &near,
        &[
            1.957_098_4e-4,
            1.127_675_5,
            0.637_182_3,
            0.103_931_68,
            -0.022_227_04,
            0.003_043_273_2,
            -1.959_463_7e-4,
        ],
    );
    let exponent = lanes.negate(&exponent);
    let complement = exp(lanes, &exponent);
    let one = lanes.float(1.0);
    let large = lanes.subtract(&one, &complement);

    let boundary = lanes.float(0.92);
    let is_small = lanes.less(&magnitude, &boundary);
    let result = lanes.select(&is_small, &small, &large);
    with_sign(lanes, &result, x)
}

/// `1 / sqrt(x)`.
pub fn reciprocal_sqrt<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    let one = lanes.float(1.0);
    let root = lanes.sqrt(x);
    lanes.divide(&one, &root)
}

/// The nearest bf16 in the low 16 bits of each word, ties to even; a NaN stays one.
pub fn to_bf16_bits<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Bits {
    let bits = lanes.bits_of(x);
    let upper = lanes.shift_right(&bits, 16);
    let one = lanes.bits(1);
    let is_odd = lanes.bits_and(&upper, &one);
    let below_half = lanes.bits(0x7fff);
    let increment = lanes.bits_add(&is_odd, &below_half);
    let raised = lanes.bits_add(&bits, &increment);
    let rounded = lanes.shift_right(&raised, 16);
    let quiet = lanes.bits(0x40);
    let quiet = lanes.bits_or(&upper, &quiet);
    let is_number = lanes.equal(x, x);
    lanes.bits_select(&is_number, &rounded, &quiet)
}

/// The nearest bf16 as an f32, ties to even.
pub fn round_to_bf16<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    let short = to_bf16_bits(lanes, x);
    let bits = lanes.shift_left(&short, 16);
    lanes.float_of(&bits)
}

/// The nearest f16 in the low 16 bits of each word, ties to even; a NaN becomes the one that processors make of it, 0x7fff.
pub fn to_f16_bits<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Bits {
    let magnitude = lanes.absolute(x);
    let word = lanes.bits_of(&magnitude);
    // Exponents count from 127 there, from 15 here.
    let upper = lanes.shift_right(&word, 13);
    let one = lanes.bits(1);
    let is_odd = lanes.bits_and(&upper, &one);
    let below_half = lanes.bits(0xfff_u32.wrapping_sub(112 << 23));
    let increment = lanes.bits_add(&is_odd, &below_half);
    let raised = lanes.bits_add(&word, &increment);
    let normal = lanes.shift_right(&raised, 13);
    // Beside 0.5 an f32 has the steps of a subnormal f16, 2^-24: the sum rounds to them.
    let half = lanes.float(0.5);
    let beside_half = lanes.add(&magnitude, &half);
    let beside_half = lanes.bits_of(&beside_half);
    let half = lanes.bits_of(&half);
    let subnormal = lanes.bits_subtract(&beside_half, &half);
    let least_normal = lanes.float(f32::exp2(-14.0));
    let is_subnormal = lanes.less(&magnitude, &least_normal);
    let finite = lanes.bits_select(&is_subnormal, &subnormal, &normal);
    // From half a step above the largest number on.
    let bound = lanes.float(65_520.0);
    let is_finite = lanes.less(&magnitude, &bound);
    let infinity = lanes.bits(0x7c00);
    let number = lanes.bits_select(&is_finite, &finite, &infinity);
    let sign = lanes.bits_of(x);
    let sign = lanes.shift_right(&sign, 16);
    let sign_bit = lanes.bits(0x8000);
    let sign = lanes.bits_and(&sign, &sign_bit);
    let signed = lanes.bits_or(&number, &sign);
    let nan = lanes.bits(0x7fff);
    let is_number = lanes.equal(x, x);
    lanes.bits_select(&is_number, &signed, &nan)
}

/// The f32 that the f16 in the low 16 bits of each word is; the bits above are 0.
pub fn of_f16_bits<L: Lanes>(lanes: &mut L, bits: &L::Bits) -> L::Float {
    let sign_bit = lanes.bits(0x8000);
    let sign = lanes.bits_and(bits, &sign_bit);
    let magnitude = lanes.bits_xor(bits, &sign);
    let shifted = lanes.shift_left(&magnitude, 13);
    let rebias = lanes.bits(112 << 23);
    let normal = lanes.bits_add(&shifted, &rebias);
    // Infinities and NaN have the greatest exponent on both sides.
    let special = lanes.bits_add(&normal, &rebias);
    // A subnormal is what the least normal number with these digits exceeds that number by.
    let step = lanes.bits(1 << 23);
    let raised = lanes.bits_add(&normal, &step);
    let raised = lanes.float_of(&raised);
    let least_normal = lanes.float(f32::exp2(-14.0));
    let subnormal = lanes.subtract(&raised, &least_normal);
    let subnormal = lanes.bits_of(&subnormal);
    let exponent_bits = lanes.bits(0x7c00);
    let exponent = lanes.bits_and(bits, &exponent_bits);
    let zero = lanes.bits(0);
    let is_subnormal = lanes.bits_equal(&exponent, &zero);
    let is_special = lanes.bits_equal(&exponent, &exponent_bits);
    let finite = lanes.bits_select(&is_subnormal, &subnormal, &normal);
    let number = lanes.bits_select(&is_special, &special, &finite);
    let sign = lanes.shift_left(&sign, 16);
    let signed = lanes.bits_or(&number, &sign);
    lanes.float_of(&signed)
}

/// The nearest f16 as an f32, ties to even.
pub fn round_to_f16<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    let short = to_f16_bits(lanes, x);
    of_f16_bits(lanes, &short)
}
