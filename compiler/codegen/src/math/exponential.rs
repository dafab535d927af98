//! The exponential, the logarithm and the two functions made of the exponential.

use super::{Lanes, polynomial, with_sign};

/// 1.5 · 2^23: added to a number below 2^22 in magnitude, it leaves the nearest integer in the low bits.
pub(super) const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has 9 significant bits, so that its products with small integers are exact.
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
/// What `LN2_HIGH` lacks to ln 2.
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;

/// `e^x`.
pub fn exp<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    exp_of_sum(lanes, x, None)
}

/// `e^(x + low)` for a `low` of at most 1e-5 in magnitude.
///
/// `x = n ln 2 + r` with |r| ≤ ln 2 / 2; `e^r` by a polynomial of degree 6; `n` is added to its exponent bits.
pub(super) fn exp_of_sum<L: Lanes>(lanes: &mut L, x: &L::Float, low: Option<&L::Float>) -> L::Float {
    let log2_e = lanes.float(std::f32::consts::LOG2_E);
    let rounder = lanes.float(ROUNDER);
    let shifted = lanes.multiply_add(x, &log2_e, &rounder);
    let n = lanes.subtract(&shifted, &rounder);
    let minus_high = lanes.float(-LN2_HIGH);
    let minus_low = lanes.float(-LN2_LOW);
    let mut r = lanes.multiply_add(&n, &minus_high, x);
    r = lanes.multiply_add(&n, &minus_low, &r);
    if let Some(low) = low {
        r = lanes.add(&r, low);
    }
    let tail =
        polynomial(lanes, &r, &[0.499_999_94, 0.166_665_15, 0.041_668_087, 0.008_369_3, 0.001_383_833]);
    let square = lanes.multiply(&r, &r);
    let rest = lanes.multiply_add(&tail, &square, &r);
    let one = lanes.float(1.0);
    let significand = lanes.add(&rest, &one);
    let exponent = lanes.bits_of(&shifted);
    let exponent = lanes.shift_left(&exponent, 23);
    let significand = lanes.bits_of(&significand);
    let scaled = lanes.bits_add(&significand, &exponent);
    let scaled = lanes.float_of(&scaled);
    exp_edges(lanes, x, &scaled)
}

/// Replaces results outside the normal range: 0 below it, infinity above it, NaN for NaN.
fn exp_edges<L: Lanes>(lanes: &mut L, x: &L::Float, scaled: &L::Float) -> L::Float {
    let least = lanes.float(-87.336_54);
    let greatest = lanes.float(88.722_83);
    let zero = lanes.float(0.0);
    let infinity = lanes.float(f32::INFINITY);
    let is_low = lanes.less(x, &least);
    let in_range = lanes.less_or_equal(x, &greatest);
    let above = lanes.add(x, &infinity);
    let result = lanes.select(&in_range, scaled, &above);
    lanes.select(&is_low, &zero, &result)
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    let negated = lanes.negate(x);
    let exponential = exp(lanes, &negated);
    let one = lanes.float(1.0);
    let denominator = lanes.add(&exponential, &one);
    lanes.divide(&one, &denominator)
}

/// The hyperbolic tangent: an odd polynomial below 0.625 in magnitude, else `1 - 2 / (e^2|x| + 1)`.
pub fn tanh<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    let magnitude = lanes.absolute(x);
    let square = lanes.multiply(&magnitude, &magnitude);
    let series = polynomial(
        lanes,
        &square,
        &[-0.333_332_8, 0.133_314_06, -0.053_736_515, 0.020_628_167, -0.005_692_296_7],
    );
    let cube = lanes.multiply(&square, &magnitude);
    let small = lanes.multiply_add(&series, &cube, &magnitude);

    let doubled = lanes.add(&magnitude, &magnitude);
    let exponential = exp(lanes, &doubled);
    let one = lanes.float(1.0);
    let two = lanes.float(2.0);
    let denominator = lanes.add(&exponential, &one);
    let quotient = lanes.divide(&two, &denominator);
    let large = lanes.subtract(&one, &quotient);

    let boundary = lanes.float(0.625);
    let is_small = lanes.less(&magnitude, &boundary);
    let result = lanes.select(&is_small, &small, &large);
    with_sign(lanes, &result, x)
}

/// A positive number as `2^exponent · (1 + fraction)` with `fraction` in [-1/3, 1/3], exactly; anything for other input.
pub(super) struct Decomposed<F> {
    pub(super) exponent: F,
    pub(super) fraction: F,
}

/// Takes a positive finite number apart, subnormal or not.
pub(super) fn decompose<L: Lanes>(lanes: &mut L, x: &L::Float) -> Decomposed<L::Float> {
    let least_normal = lanes.float(f32::MIN_POSITIVE);
    let is_subnormal = lanes.less(x, &least_normal);
    let up = lanes.float(8_388_608.0);
    let raised = lanes.multiply(x, &up);
    let normal = lanes.select(&is_subnormal, &raised, x);
    let correction = lanes.float(-23.0);
    let zero = lanes.float(0.0);
    let correction = lanes.select(&is_subnormal, &correction, &zero);

    let bits = lanes.bits_of(&normal);
    let two_thirds = lanes.bits(0x3f2a_aaab);
    let distance = lanes.bits_subtract(&bits, &two_thirds);
    let exponent = lanes.shift_right_signed(&distance, 23);
    let exponent_bits = lanes.shift_left(&exponent, 23);
    let significand = lanes.bits_subtract(&bits, &exponent_bits);
    let significand = lanes.float_of(&significand);
    let one = lanes.float(1.0);
    let fraction = lanes.subtract(&significand, &one);
    let exponent = lanes.signed_to_float(&exponent);
    let exponent = lanes.add(&exponent, &correction);
    Decomposed { exponent, fraction }
}

/// `(ln(1 + f) - f + f²/2) / f³` for f in [-1/3, 1/3].
pub(super) fn log_tail<L: Lanes>(lanes: &mut L, fraction: &L::Float) -> L::Float {
    polynomial(
        lanes,
        fraction,
        &[
            0.333_333_34,
            -0.249_998_2,
            0.199_995_98,
            -0.166_795_94,
            0.143_044_72,
            -0.121_955_335,
            0.107_540_295,
            -0.128_462_79,
            0.120_080_67,
        ],
    )
}

/// The natural logarithm.
pub fn log<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    let Decomposed { exponent, fraction } = decompose(lanes, x);
    let tail = log_tail(lanes, &fraction);
    let square = lanes.multiply(&fraction, &fraction);
    let cube = lanes.multiply(&square, &fraction);
    let minus_half = lanes.float(-0.5);
    let half_square = lanes.multiply(&square, &minus_half);
    let curve = lanes.multiply_add(&tail, &cube, &half_square);
    let ln2_low = lanes.float(LN2_LOW);
    let ln2_high = lanes.float(LN2_HIGH);
    let low = lanes.multiply_add(&exponent, &ln2_low, &curve);
    let low = lanes.add(&low, &fraction);
    let result = lanes.multiply_add(&exponent, &ln2_high, &low);
    log_edges(lanes, x, &result)
}

fn log_edges<L: Lanes>(lanes: &mut L, x: &L::Float, result: &L::Float) -> L::Float {
    let zero = lanes.float(0.0);
    let greatest = lanes.float(f32::MAX);
    let minus_infinity = lanes.float(f32::NEG_INFINITY);
    let not_a_number = lanes.float(f32::NAN);
    let is_finite = lanes.less_or_equal(x, &greatest);
    let is_zero = lanes.equal(x, &zero);
    let is_negative = lanes.less(x, &zero);
    let result = lanes.select(&is_finite, result, x);
    let result = lanes.select(&is_zero, &minus_infinity, &result);
    lanes.select(&is_negative, &not_a_number, &result)
}
