//! f32 and f64 arithmetic. Sums, products, quotients and roots are exactly rounded; functions that PTX calls approximate are as close as
//! f32 gets or nearly so, which hardware is not.

use super::lanes::{File, Lane, map, vectorised, zip, zip3};
use crate::code::{FloatKind, FloatMode, LANES, Operands, Rounding};

vectorised! {
    /// f32.
    fn float32(file: &mut File, mask: u32, kind: FloatKind, mode: FloatMode, o: Operands) {
        if mode.rounding != Rounding::NearestEven {
            return directed(file, mask, kind, mode, o);
        }
        if mode == FloatMode::PLAIN {
            apply32(file, mask, kind, o, |a| a, |a| a);
        } else {
            apply32(file, mask, kind, o, |a| enter(mode, a), |a| leave(mode, a));
        }
    }
}

#[inline(always)]
fn apply32(
    file: &mut File,
    mask: u32,
    kind: FloatKind,
    o: Operands,
    enter: impl Fn(f32) -> f32 + Copy,
    leave: impl Fn(f32) -> f32 + Copy,
) {
    let two = (o.to, o.a, o.b);
    let unary = |file: &mut File, f: fn(f32) -> f32| map(file, mask, (o.to, o.a), |a| leave(f(enter(a))));
    match kind {
        FloatKind::Add => zip(file, mask, two, |a, b| leave(enter(a) + enter(b))),
        FloatKind::Subtract => zip(file, mask, two, |a, b| leave(enter(a) - enter(b))),
        FloatKind::Multiply => zip(file, mask, two, |a, b| leave(enter(a) * enter(b))),
        FloatKind::Divide => zip(file, mask, two, |a, b| leave(enter(a) / enter(b))),
        FloatKind::FusedMultiplyAdd => {
            zip3(file, mask, (o.to, o.a, o.b, o.c), |a, b, c| leave(enter(a).mul_add(enter(b), enter(c))))
        }
        FloatKind::FusedMultiplyAddRelu => zip3(file, mask, (o.to, o.a, o.b, o.c), |a, b, c| {
            maximum_nan(leave(enter(a).mul_add(enter(b), enter(c))), 0.0)
        }),
        FloatKind::Minimum => zip(file, mask, two, |a, b| leave(minimum(enter(a), enter(b)))),
        FloatKind::Maximum => zip(file, mask, two, |a, b| leave(maximum(enter(a), enter(b)))),
        FloatKind::MinimumNan => zip(file, mask, two, |a, b| leave(minimum_nan(enter(a), enter(b)))),
        FloatKind::MaximumNan => zip(file, mask, two, |a, b| leave(maximum_nan(enter(a), enter(b)))),
        FloatKind::CopySign => zip(file, mask, two, |a: f32, b: f32| b.copysign(a)),
        FloatKind::Negate => map(file, mask, (o.to, o.a), |a: f32| leave(-enter(a))),
        FloatKind::Absolute => map(file, mask, (o.to, o.a), |a: f32| leave(enter(a).abs())),
        FloatKind::SquareRoot => map(file, mask, (o.to, o.a), |a: f32| leave(enter(a).sqrt())),
        FloatKind::Reciprocal => map(file, mask, (o.to, o.a), |a: f32| leave(1.0 / enter(a))),
        FloatKind::ReciprocalSquareRoot => {
            map(file, mask, (o.to, o.a), |a: f32| leave(reciprocal_root(enter(a))));
        }
        FloatKind::ExponentialTwo => map(file, mask, (o.to, o.a), |a: f32| leave(exponential(enter(a)))),
        FloatKind::LogarithmTwo => unary(file, f32::log2),
        FloatKind::Sine => unary(file, f32::sin),
        FloatKind::Cosine => unary(file, f32::cos),
        FloatKind::HyperbolicTangent => unary(file, f32::tanh),
    }
}

vectorised! {
    /// f64; modes other than the plain one are refused when a module is loaded, except flushing, which f64 does not have.
    fn float64(file: &mut File, mask: u32, kind: FloatKind, o: Operands) {
        let two = (o.to, o.a, o.b);
        let one = (o.to, o.a);
        match kind {
            FloatKind::Add => zip(file, mask, two, |a: f64, b: f64| a + b),
            FloatKind::Subtract => zip(file, mask, two, |a: f64, b: f64| a - b),
            FloatKind::Multiply => zip(file, mask, two, |a: f64, b: f64| a * b),
            FloatKind::Divide => zip(file, mask, two, |a: f64, b: f64| a / b),
            FloatKind::FusedMultiplyAdd | FloatKind::FusedMultiplyAddRelu => {
                zip3(file, mask, (o.to, o.a, o.b, o.c), f64::mul_add);
            }
            FloatKind::Minimum => zip(file, mask, two, |a: f64, b: f64| {
                if a.is_nan() || b < a || (a == b && b.is_sign_negative()) { b } else { a }
            }),
            FloatKind::Maximum => zip(file, mask, two, |a: f64, b: f64| {
                if a.is_nan() || b > a || (a == b && b.is_sign_positive()) { b } else { a }
            }),
            FloatKind::MinimumNan => zip(file, mask, two, |a: f64, b: f64| {
                if b.is_nan() || b < a { b } else { a }
            }),
            FloatKind::MaximumNan => zip(file, mask, two, |a: f64, b: f64| {
                if b.is_nan() || b > a { b } else { a }
            }),
            FloatKind::CopySign => zip(file, mask, two, |a: f64, b: f64| b.copysign(a)),
            FloatKind::Negate => map(file, mask, one, |a: f64| -a),
            FloatKind::Absolute => map(file, mask, one, f64::abs),
            FloatKind::SquareRoot => map(file, mask, one, f64::sqrt),
            FloatKind::Reciprocal => map(file, mask, one, |a: f64| 1.0 / a),
            FloatKind::ReciprocalSquareRoot => map(file, mask, one, |a: f64| 1.0 / a.sqrt()),
            FloatKind::ExponentialTwo => map(file, mask, one, f64::exp2),
            FloatKind::LogarithmTwo => map(file, mask, one, f64::log2),
            FloatKind::Sine => map(file, mask, one, f64::sin),
            FloatKind::Cosine => map(file, mask, one, f64::cos),
            FloatKind::HyperbolicTangent => map(file, mask, one, f64::tanh),
        }
    }
}

#[inline(always)]
pub(super) fn flushed(a: f32) -> f32 {
    if a.abs() < f32::MIN_POSITIVE { f32::from_bits(a.to_bits() & 0x8000_0000) } else { a }
}

#[inline(always)]
fn enter(mode: FloatMode, a: f32) -> f32 {
    if mode.flush { flushed(a) } else { a }
}

/// A value that isn't a number saturates to zero.
#[inline(always)]
fn leave(mode: FloatMode, a: f32) -> f32 {
    let a = if mode.flush { flushed(a) } else { a };
    if mode.saturate { maximum(a, 0.0).min(1.0) } else { a }
}

/// The smaller one, minus zero below plus zero; the other one where one isn't a number.
#[inline(always)]
pub(super) fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b < a || (a == b && b.is_sign_negative()) { b } else { a }
}

#[inline(always)]
pub(super) fn maximum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b > a || (a == b && b.is_sign_positive()) { b } else { a }
}

#[inline(always)]
pub(super) fn minimum_nan(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        a
    } else if b.is_nan() {
        b
    } else {
        minimum(a, b)
    }
}

#[inline(always)]
pub(super) fn maximum_nan(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        a
    } else if b.is_nan() {
        b
    } else {
        maximum(a, b)
    }
}

#[inline(always)]
fn reciprocal_root(a: f32) -> f32 {
    (1.0 / f64::from(a).sqrt()) as f32
}

/// Two to the power of `a`: the power of the nearest integer by its bits, the rest by a polynomial (Taylor's of degree seven,
/// whose error on half a unit is below a tenth of the last place).
#[inline(always)]
pub(super) fn exponential(a: f32) -> f32 {
    const COEFFICIENTS: [f32; 7] = [
        1.525_273_4e-5,
        1.540_353_e-4,
        1.333_355_8e-3,
        9.618_129e-3,
        5.550_411e-2,
        0.240_226_5,
        std::f32::consts::LN_2,
    ];
    let clamped = a.clamp(-252.0, 129.0);
    let whole = clamped.round_ties_even();
    let rest = clamped - whole;
    let mut power = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        power = power.mul_add(rest, *coefficient);
    }
    power = power.mul_add(rest, 1.0);
    // In two factors, since one alone may leave the range of normal numbers. What isn't a number becomes zero here.
    let whole = whole as i32;
    let half = whole >> 1;
    let factor = |by: i32| f32::from_bits(((by + 127) as u32) << 23);
    let result = power * factor(half) * factor(whole - half);
    if a.is_nan() { a } else { result }
}

/// Rounding towards zero, up or down: the nearest value, then one step back if it lies on the wrong side.
fn directed(file: &mut File, mask: u32, kind: FloatKind, mode: FloatMode, o: Operands) {
    let (a, b, c) = (f32::read(file, o.a), f32::read(file, o.b), f32::read(file, o.c));
    let mut result = [0.0; LANES];
    for lane in 0..LANES {
        let (a, b) = (enter(mode, a[lane]), enter(mode, b[lane]));
        let (x, y, z) = match kind {
            FloatKind::Subtract => (a, 1.0, -b),
            FloatKind::Multiply => (a, b, if a * b == 0.0 { a * b } else { 0.0 }),
            FloatKind::FusedMultiplyAdd | FloatKind::FusedMultiplyAddRelu => (a, b, enter(mode, c[lane])),
            // All others are refused when a module is loaded, but the sum.
            _ => (a, 1.0, b),
        };
        result[lane] = leave(mode, directed_fused(x, y, z, mode.rounding));
    }
    f32::write(file, o.to, &result, mask);
}

fn directed_fused(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    let nearest = a.mul_add(b, c);
    if !nearest.is_finite() {
        return nearest;
    }
    // The product is exact in f64; the sum is, together with its error.
    let (product, addend) = (f64::from(a) * f64::from(b), f64::from(c));
    let (sum, error) = exact_sum(product, addend);
    let candidate = f64::from(nearest);
    let above = if candidate == sum { error < 0.0 } else { candidate > sum };
    let below = if candidate == sum { error > 0.0 } else { candidate < sum };
    step_back(nearest, above, below, rounding)
}

/// A sum, and what rounding took from it.
pub(super) fn exact_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// Makes the nearest value the one that a directed rounding wants, given on which side of the exact one it lies.
pub(super) fn step_back(nearest: f32, above: bool, below: bool, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::Down if above => nearest.next_down(),
        Rounding::Up if below => nearest.next_up(),
        Rounding::Zero if above && nearest > 0.0 => nearest.next_down(),
        Rounding::Zero if below && nearest < 0.0 => nearest.next_up(),
        Rounding::Down | Rounding::Up | Rounding::Zero | Rounding::NearestEven | Rounding::NearestAway => {
            nearest
        }
    }
}
