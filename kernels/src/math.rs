//! Branch-free exp and tanh in f32, written so that loops over them vectorise on every instruction set.
//!
//! Both give the same bits wherever they run: each step is a single IEEE operation (a fused multiply-add
//! counts as one).

use std::f32::consts::LOG2_E;

/// Adding and subtracting this rounds an f32 below 2²² to the nearest integer, which is then in its low
/// mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has few enough bits that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// eˣ with a relative error below 1.2e-7 where the result is a normal number, and an absolute error of at
/// most 2⁻¹⁴⁹ below that; 0 at -∞ and ∞ above 88.73; NaN for NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Past these the result is 0 or ∞ anyway; comparisons this way round keep NaN.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let (exponent, reduced) = reduce(x);
    let mantissa = reduced.mul_add(exp_minus_1_over_x(reduced), 1.0);
    // In two factors, so that results down to the smallest subnormal come out.
    let half = exponent >> 1;
    mantissa * power_of_2(half) * power_of_2(exponent.wrapping_sub(half))
}

/// tanh x with a relative error below 4e-7 for every finite x; ±1 at ±∞; NaN for NaN.
///
/// By e = exp(2|x|) - 1 and tanh |x| = e / (e + 2), which does not cancel near 0.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let magnitude = if magnitude > 10.0 { 10.0 } else { magnitude };
    let (exponent, reduced) = reduce(2.0 * magnitude);
    let power = power_of_2(exponent);
    let e = (power * reduced).mul_add(exp_minus_1_over_x(reduced), power - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// x = exponent · ln 2 + reduced, with |reduced| ≤ ln 2 / 2 (Cody and Waite).
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let rounded = shifted - ROUND;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let reduced = rounded.mul_add(-LN_2_HIGH, x);
    (exponent, rounded.mul_add(-LN_2_LOW, reduced))
}

/// (eˣ - 1) / x for |x| ≤ ln 2 / 2 by its Taylor polynomial; what is left out is below 1e-8 of the result.
#[inline(always)]
fn exp_minus_1_over_x(x: f32) -> f32 {
    let sum = x.mul_add(1.0 / 40_320.0, 1.0 / 5_040.0);
    let sum = x.mul_add(sum, 1.0 / 720.0);
    let sum = x.mul_add(sum, 1.0 / 120.0);
    let sum = x.mul_add(sum, 1.0 / 24.0);
    let sum = x.mul_add(sum, 1.0 / 6.0);
    let sum = x.mul_add(sum, 0.5);
    x.mul_add(sum, 1.0)
}

/// 2 to a power between -126 and 127.
#[inline(always)]
fn power_of_2(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Greatest relative error of `approximate` over every 97th f32 with magnitude in the range.
    fn worst(range: std::ops::Range<f32>, approximate: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        let bits = range.start.to_bits()..range.end.to_bits();
        bits.step_by(97)
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
            .map(|x| {
                let expected = exact(f64::from(x));
                (f64::from(approximate(x)) - expected).abs() / expected.abs()
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn exp_keeps_its_bound() {
        let error = worst(1e-9..87.3, exp, f64::exp);
        assert!(error < 1.2e-7, "{error}");
    }

    #[test]
    fn exp_at_the_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert!(exp(f32::NAN).is_nan());
        for step in 0..1700 {
            let x = -87.0 - step as f32 / 100.0;
            let error = f64::from(exp(x)) - f64::from(x).exp();
            assert!(error.abs() <= 2f64.powi(-149), "{x}");
        }
    }

    #[test]
    fn tanh_keeps_its_bound() {
        let error = worst(1e-37..30.0, tanh, f64::tanh);
        assert!(error < 4e-7, "{error}");
        assert_eq!(tanh(0.0), 0.0);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert!(tanh(f32::NAN).is_nan());
    }
}
