//! `x^y`, through a logarithm carried in two f32.

use super::exponential::{Decomposed, LN2_HIGH, LN2_LOW, decompose, exp_of_sum, log_tail};
use super::{Lanes, product_residual};

/// A number as the unevaluated sum of two.
struct Pair<F> {
    high: F,
    low: F,
}

/// `x^y` with the special cases of C's `pow`.
pub fn power<L: Lanes>(lanes: &mut L, x: &L::Float, y: &L::Float) -> L::Float {
    let magnitude = lanes.absolute(x);
    let logarithm = log_pair(lanes, &magnitude);
    let product = lanes.multiply(y, &logarithm.high);
    let residual = product_residual(lanes, y, &logarithm.high, &product);
    let low = lanes.multiply_add(y, &logarithm.low, &residual);
    let result = exp_of_sum(lanes, &product, Some(&low));
    let result = signed(lanes, x, y, &result);
    let is_one = is_always_one(lanes, x, y);
    let one = lanes.float(1.0);
    lanes.select(&is_one, &one, &result)
}

/// The logarithm of a number that is at least 0, to about 1e-9 relative.
fn log_pair<L: Lanes>(lanes: &mut L, x: &L::Float) -> Pair<L::Float> {
    let Decomposed { exponent, fraction } = decompose(lanes, x);
    let tail = log_tail(lanes, &fraction);
    let square = lanes.multiply(&fraction, &fraction);
    let square_low = product_residual(lanes, &fraction, &fraction, &square);
    let half = lanes.float(0.5);
    let half_square = lanes.multiply(&square, &half);
    let half_square_low = lanes.multiply(&square_low, &half);
    let cube = lanes.multiply(&square, &fraction);
    let curve = lanes.multiply(&tail, &cube);

    let start = lanes.subtract(&fraction, &half_square);
    let lost = lanes.subtract(&fraction, &start);
    let lost = lanes.subtract(&lost, &half_square);
    let lost = lanes.subtract(&lost, &half_square_low);
    let low = lanes.add(&lost, &curve);

    let ln2_high = lanes.float(LN2_HIGH);
    let ln2_low = lanes.float(LN2_LOW);
    let whole = lanes.multiply(&exponent, &ln2_high);
    let high = lanes.add(&whole, &start);
    let kept = lanes.subtract(&high, &whole);
    let lost = lanes.subtract(&start, &kept);
    let low = lanes.multiply_add(&exponent, &ln2_low, &low);
    let low = lanes.add(&low, &lost);
    let total = lanes.add(&high, &low);
    let kept = lanes.subtract(&total, &high);
    let low = lanes.subtract(&low, &kept);
    log_pair_edges(lanes, x, Pair { high: total, low })
}

fn log_pair_edges<L: Lanes>(lanes: &mut L, x: &L::Float, pair: Pair<L::Float>) -> Pair<L::Float> {
    let zero = lanes.float(0.0);
    let infinity = lanes.float(f32::INFINITY);
    let minus_infinity = lanes.float(f32::NEG_INFINITY);
    let is_finite = lanes.less(x, &infinity);
    let is_zero = lanes.equal(x, &zero);
    let high = lanes.select(&is_finite, &pair.high, x);
    let high = lanes.select(&is_zero, &minus_infinity, &high);
    Pair { high, low: pair.low }
}

/// Negates for a negative base and an odd exponent; NaN for a finite negative base and a fractional exponent.
fn signed<L: Lanes>(lanes: &mut L, x: &L::Float, y: &L::Float, result: &L::Float) -> L::Float {
    let half = lanes.float(0.5);
    let zero = lanes.float(0.0);
    let minus_infinity = lanes.float(f32::NEG_INFINITY);
    let not_a_number = lanes.float(f32::NAN);
    let floor = lanes.floor(y);
    let is_whole = lanes.equal(&floor, y);
    let halved = lanes.multiply(y, &half);
    let halved_floor = lanes.floor(&halved);
    let is_even = lanes.equal(&halved_floor, &halved);
    let is_fraction = lanes.mask_not(&is_whole);
    let is_even_or_fraction = lanes.mask_or(&is_even, &is_fraction);

    let bits = lanes.bits_of(x);
    let sign = lanes.shift_right(&bits, 31);
    let no_sign = lanes.bits(0);
    let is_plus = lanes.bits_equal(&sign, &no_sign);
    let stays = lanes.mask_or(&is_even_or_fraction, &is_plus);
    let negated = lanes.negate(result);
    let result = lanes.select(&stays, result, &negated);

    let is_below = lanes.less(x, &zero);
    let is_finite = lanes.less(&minus_infinity, x);
    let undefined = lanes.mask_and(&is_below, &is_fraction);
    let undefined = lanes.mask_and(&undefined, &is_finite);
    lanes.select(&undefined, &not_a_number, &result)
}

/// Where the result is 1 whatever the other operand: exponent 0, base 1, base -1 to an infinite exponent.
fn is_always_one<L: Lanes>(lanes: &mut L, x: &L::Float, y: &L::Float) -> L::Mask {
    let zero = lanes.float(0.0);
    let one = lanes.float(1.0);
    let minus_one = lanes.float(-1.0);
    let infinity = lanes.float(f32::INFINITY);
    let to_nothing = lanes.equal(y, &zero);
    let of_one = lanes.equal(x, &one);
    let of_minus_one = lanes.equal(x, &minus_one);
    let exponent = lanes.absolute(y);
    let to_infinity = lanes.equal(&exponent, &infinity);
    let alternating = lanes.mask_and(&of_minus_one, &to_infinity);
    let is_one = lanes.mask_or(&to_nothing, &of_one);
    lanes.mask_or(&is_one, &alternating)
}
