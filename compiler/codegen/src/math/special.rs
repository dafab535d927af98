//! The error function, the reciprocal square root, and rounding to bf16.

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
