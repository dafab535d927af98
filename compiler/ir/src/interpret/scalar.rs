//! Scalar functions in f64, and rounding to storage types.

use crate::op::{Literal, ScalarOp};
use crate::types::{DType, FloatFormat, ReduceOp};

/// `op` on arguments of type `from` (the first's), with a result of type `to`.
pub fn apply(op: ScalarOp, from: DType, to: DType, args: [f64; 3]) -> f64 {
    let [a, b, c] = args;
    if let (DType::I32 | DType::U32, Some(result)) = (to, integer(op, a, b)) {
        return wrap(result, to);
    }
    match op {
        ScalarOp::Neg => -a,
        ScalarOp::Abs => a.abs(),
        ScalarOp::Exp => a.exp(),
        ScalarOp::Log => a.ln(),
        ScalarOp::Sqrt => a.sqrt(),
        ScalarOp::Rsqrt => 1.0 / a.sqrt(),
        ScalarOp::Tanh => a.tanh(),
        ScalarOp::Sigmoid => 1.0 / (1.0 + (-a).exp()),
        ScalarOp::Erf => erf(a),
        ScalarOp::Sin => a.sin(),
        ScalarOp::Cos => a.cos(),
        ScalarOp::Floor => a.floor(),
        ScalarOp::Not => truth(a == 0.0),
        ScalarOp::Cast => cast(a, from, to),
        ScalarOp::Add => a + b,
        ScalarOp::Sub => a - b,
        ScalarOp::Mul => a * b,
        ScalarOp::Div => a / b,
        ScalarOp::Rem => a - b * (a / b).floor(),
        ScalarOp::Pow => a.powf(b),
        ScalarOp::Min => -maximum(-a, -b),
        ScalarOp::Max => maximum(a, b),
        ScalarOp::Equal => truth(a == b),
        ScalarOp::NotEqual => truth(a != b),
        ScalarOp::Less => truth(a < b),
        ScalarOp::LessEqual => truth(a <= b),
        ScalarOp::Greater => truth(a > b),
        ScalarOp::GreaterEqual => truth(a >= b),
        ScalarOp::And => truth(a != 0.0 && b != 0.0),
        ScalarOp::Or => truth(a != 0.0 || b != 0.0),
        ScalarOp::Select if a != 0.0 => b,
        ScalarOp::Select => c,
    }
}

/// A constant of element type `dtype`.
pub fn literal(literal: Literal) -> f64 {
    match literal {
        Literal::Float(value) => value,
        Literal::Int(value) => value as f64,
        Literal::Bool(value) => truth(value),
    }
}

/// Combines two elements.
pub(super) fn combine(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Max => maximum(a, b),
    }
}

/// What changes nothing it is combined with.
pub(super) fn identity(op: ReduceOp) -> f64 {
    match op {
        ReduceOp::Sum => 0.0,
        ReduceOp::Max => f64::NEG_INFINITY,
    }
}

/// `value` as an element of type `dtype` stores it.
pub fn stored(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::Bf16 => f64::from(to_bf16(value as f32)),
        DType::F16 => to_f16(f64::from(value as f32)),
        DType::I32 | DType::U32 | DType::Bool => value,
    }
}

/// A float as its type holds it, rounded up or down by chance, either the likelier the nearer it is; equal numbers
/// alike. A number of another type stays.
pub(super) fn stored_by_chance(value: f64, dtype: DType, seed: u64) -> f64 {
    match dtype.float_format() {
        Some(format) if value.abs() <= format.largest => by_chance(value, format, seed),
        Some(_) => stored(value, dtype),
        None => value,
    }
}

/// The nearest tf32, of two the one further from zero, through f32 as kernels do it.
pub(super) fn tf32(value: f64) -> f64 {
    let single = value as f32;
    if !single.is_finite() {
        return f64::from(single);
    }
    f64::from(f32::from_bits((single.to_bits() + 0x1000) & !0x1fff))
}

/// A float as tf32 holds it, rounded up or down by chance as [`stored_by_chance`] does.
pub(super) fn tf32_by_chance(value: f64, seed: u64) -> f64 {
    let largest = f64::from(f32::from_bits(0x7f7f_e000));
    let format = FloatFormat { fraction_bits: 10, least_exponent: -126, largest };
    if value.abs() <= largest { by_chance(value, format, seed) } else { tf32(value) }
}

/// A number that a format's largest reaches, rounded to the format.
fn by_chance(value: f64, format: FloatFormat, seed: u64) -> f64 {
    if value == 0.0 {
        return value;
    }
    let (digits, least) = (format.fraction_bits, format.least_exponent);
    // Below the least normal number the type has fewer digits.
    let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let dropped = (52 - digits + (least - exponent).max(0)).min(62) as u32;
    if dropped > 52 {
        let step = f64::from(least - digits).exp2();
        let below = (value / step).trunc() * step;
        let up = unit(value.to_bits(), seed) < ((value - below) / step).abs();
        return if up { below + step.copysign(value) } else { below };
    }
    let mask = (1u64 << dropped) - 1;
    let (below, rest) = (value.to_bits() & !mask, value.to_bits() & mask);
    let up = mixed(value.to_bits(), seed) & mask < rest;
    f64::from_bits(if up { below + mask + 1 } else { below })
}

/// An f64 or one of the two beside it, by chance.
pub(super) fn beside(value: f64, seed: u64) -> f64 {
    match mixed(value.to_bits(), seed) % 4 {
        _ if value == 0.0 || !value.is_finite() => value,
        0 => value.next_up(),
        1 => value.next_down(),
        _ => value,
    }
}

/// A number in [0, 1) that depends on `bits` and `seed`.
fn unit(bits: u64, seed: u64) -> f64 {
    (mixed(bits, seed) >> 11) as f64 * f64::exp2(-53.0)
}

/// Bits that look random (SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
fn mixed(bits: u64, seed: u64) -> u64 {
    let mixed = bits ^ (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The nearest bf16, ties to even, through f32 as kernels do it.
fn to_bf16(value: f32) -> f32 {
    if value.is_nan() {
        return value;
    }
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    f32::from_bits(rounded & 0xffff_0000)
}

/// The nearest f16, ties to even: a whole number of steps of its exponent, which is at least that of subnormals.
fn to_f16(value: f64) -> f64 {
    if value.abs() >= 65_520.0 {
        return f64::INFINITY.copysign(value);
    }
    let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let step = f64::from(exponent.max(-14) - 10).exp2();
    (value / step).round_ties_even() * step
}

/// Integer arithmetic, before it wraps; none if `op` needs none of its own. Pads may hold what is far from any integer.
fn integer(op: ScalarOp, a: f64, b: f64) -> Option<i128> {
    let (a, b) = (a as i128, b as i128);
    match op {
        ScalarOp::Neg => Some(a.wrapping_neg()),
        ScalarOp::Abs => Some(a.wrapping_abs()),
        ScalarOp::Add => Some(a.wrapping_add(b)),
        ScalarOp::Sub => Some(a.wrapping_sub(b)),
        ScalarOp::Mul => Some(a.wrapping_mul(b)),
        // As in C, and 0 where that is undefined.
        ScalarOp::Div => Some(a.checked_div(b).unwrap_or(0)),
        ScalarOp::Rem => Some(a.checked_rem(b).unwrap_or(0)),
        ScalarOp::Exp | ScalarOp::Log | ScalarOp::Sqrt | ScalarOp::Rsqrt | ScalarOp::Tanh => None,
        ScalarOp::Sigmoid | ScalarOp::Erf | ScalarOp::Sin | ScalarOp::Cos | ScalarOp::Floor => None,
        ScalarOp::Not | ScalarOp::Cast | ScalarOp::Pow | ScalarOp::Min | ScalarOp::Max => None,
        ScalarOp::Equal | ScalarOp::NotEqual | ScalarOp::Less | ScalarOp::LessEqual => None,
        ScalarOp::Greater | ScalarOp::GreaterEqual | ScalarOp::And | ScalarOp::Or => None,
        ScalarOp::Select => None,
    }
}

/// An integer modulo 2^32, in the range of `dtype`.
fn wrap(value: i128, dtype: DType) -> f64 {
    let bits = value as u32;
    if dtype == DType::I32 { f64::from(bits as i32) } else { f64::from(bits) }
}

fn cast(value: f64, from: DType, to: DType) -> f64 {
    match (from.is_float(), to) {
        (_, DType::Bool) => truth(value != 0.0),
        (_, DType::F32 | DType::Bf16 | DType::F16) => value,
        (true, DType::I32) => f64::from(value as i32),
        (true, DType::U32) => f64::from(value as u32),
        (false, DType::I32 | DType::U32) => wrap(value as i128, to),
    }
}

fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// The error function: the series of all-positive terms
/// `2/√π · exp(-x²) · Σ 2^n x^(2n+1) / (2n+1)!!`, which loses nothing to cancellation.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_tables() {
        for (x, y) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (-1.0, -0.842_700_792_949_714_9),
            (3.0, 0.999_977_909_503_001_4),
            (7.0, 1.0),
        ] {
            assert!((erf(x) - y).abs() < 1e-15, "erf({x}) = {}", erf(x));
        }
    }

    #[test]
    fn integers_wrap_and_floats_truncate() {
        let apply2 = |op, dtype, a, b| apply(op, dtype, dtype, [a, b, 0.0]);
        assert_eq!(apply2(ScalarOp::Add, DType::U32, 4_294_967_295.0, 2.0), 1.0);
        assert_eq!(apply2(ScalarOp::Sub, DType::U32, 0.0, 1.0), 4_294_967_295.0);
        assert_eq!(apply2(ScalarOp::Mul, DType::I32, 65_536.0, 32_768.0), -2_147_483_648.0);
        assert_eq!(apply2(ScalarOp::Div, DType::I32, -7.0, 2.0), -3.0);
        assert_eq!(apply2(ScalarOp::Rem, DType::F32, -1.0, 3.0), 2.0);
        assert_eq!(apply(ScalarOp::Cast, DType::F32, DType::I32, [-1.9, 0.0, 0.0]), -1.0);
        assert_eq!(apply(ScalarOp::Cast, DType::I32, DType::U32, [-1.0, 0.0, 0.0]), 4_294_967_295.0);
        assert_eq!(apply(ScalarOp::Cast, DType::F32, DType::Bool, [0.5, 0.0, 0.0]), 1.0);
        assert!(apply2(ScalarOp::Max, DType::F32, f64::NAN, 1.0).is_nan());
        assert!(apply2(ScalarOp::Max, DType::F32, 1.0, f64::NAN).is_nan());
    }

    #[test]
    fn storage_rounds_to_nearest_even() {
        assert_eq!(stored(1.0 + 1.0 / 256.0, DType::Bf16), 1.0);
        assert_eq!(stored(1.0 + 3.0 / 256.0, DType::Bf16), 1.0 + 4.0 / 256.0);
        assert_eq!(stored(0.1, DType::F32), f64::from(0.1_f32));
        let unit = f64::exp2(-10.0);
        let cases = [
            (1.0 + unit / 2.0, 1.0),
            (1.0 + 1.5 * unit, 1.0 + 2.0 * unit),
            (65_519.0, 65_504.0),
            (65_520.0, f64::INFINITY),
            (-1e9, f64::NEG_INFINITY),
            (f64::exp2(-25.0), 0.0),
            (1.5 * f64::exp2(-24.0), 2.0 * f64::exp2(-24.0)),
        ];
        for (value, expected) in cases {
            assert_eq!(stored(value, DType::F16), expected, "{value}");
        }
        assert_eq!(stored(-f64::exp2(-26.0), DType::F16).to_bits(), (-0.0f64).to_bits());
        assert!(stored(f64::NAN, DType::F16).is_nan());
    }

    #[test]
    fn tf32_has_ten_bits_and_ties_go_away_from_zero() {
        let unit = f64::exp2(-10.0);
        let least = f64::exp2(-136.0);
        let cases = [
            (1.0 + unit / 2.0, 1.0 + unit),
            (-1.0 - unit / 2.0, -1.0 - unit),
            (1.0 + 0.499 * unit, 1.0),
            (1.0 + 1.5 * unit, 1.0 + 2.0 * unit),
            (2.0 - unit / 4.0, 2.0),
            (least / 2.0, least),
            (0.49 * least, 0.0),
            (f64::from(f32::MAX), f64::INFINITY),
            (f64::NEG_INFINITY, f64::NEG_INFINITY),
        ];
        for (value, expected) in cases {
            assert_eq!(tf32(value), expected, "{value}");
        }
        assert!(tf32(f64::NAN).is_nan());
        // By chance, one of the two beside it; what is one stays.
        for seed in 0..100 {
            let beside = [1.0, 1.0 + unit].contains(&tf32_by_chance(1.0 + 0.3 * unit, seed));
            assert!(beside);
            assert_eq!(tf32_by_chance(-1.0 - unit, seed), -1.0 - unit);
        }
        let ups = (0..1000).filter(|&seed| tf32_by_chance(1.0 + 0.25 * unit, seed) > 1.0).count();
        assert!((150..350).contains(&ups), "a quarter of 1000 goes up: {ups}");
    }

    #[test]
    fn every_f16_is_stored_as_it_is() {
        for bits in 0..0x7c00u16 {
            // A number as its definition has it.
            let (exponent, fraction) = (i32::from(bits >> 10), f64::from(bits & 0x3ff) / 1024.0);
            let value = match exponent {
                0 => fraction * f64::exp2(-14.0),
                _ => (1.0 + fraction) * f64::from(exponent - 15).exp2(),
            };
            assert_eq!(stored(value, DType::F16), value);
            assert_eq!(stored_by_chance(-value, DType::F16, u64::from(bits)), -value);
        }
    }
}
