//! f16 and bf16 arithmetic, single and in pairs. Each operation is rounded once: f32 has more than twice their bits, so that a sum,
//! product or quotient may be rounded to f32 first, and a fused product is taken in f64 and rounded to odd.

use super::float::{exact_sum, exponential, flushed, maximum, maximum_nan, minimum, minimum_nan};
use super::lanes::{File, Lane, vectorised};
use crate::code::{FloatKind, FloatMode, HalfForm, LANES, Operands, Slot};
use ::half::f16;

vectorised! {
    /// Everything that [`FloatKind`] names, on halves.
    fn half(file: &mut File, mask: u32, kind: FloatKind, form: HalfForm, mode: FloatMode, o: Operands) {
        match form {
            HalfForm::F16 => single(file, mask, kind, mode, o, f16_to_f32, f32_to_f16),
            HalfForm::Bf16 => single(file, mask, kind, mode, o, bf16_to_f32, f32_to_bf16),
            HalfForm::F16Pair => pair(file, mask, kind, mode, o, f16_to_f32, f32_to_f16),
            HalfForm::Bf16Pair => pair(file, mask, kind, mode, o, bf16_to_f32, f32_to_bf16),
        }
    }
}

#[inline(always)]
pub(super) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To the nearest, ties to even; what isn't a number becomes the one that hardware gives.
#[inline(always)]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { 0x7fff } else { rounded as u16 }
}

#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

#[inline(always)]
pub(super) fn f32_to_f16(value: f32) -> u16 {
    if value.is_nan() { 0x7fff } else { f16::from_f32(value).to_bits() }
}

/// A value of f64, with the sign of what is missing from it, as the neighbour in f32 whose last bit is one unless f32 holds it.
/// Rounding that to a half is then as good as rounding the exact value.
#[inline(always)]
pub(super) fn to_odd(value: f64, missing: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if !nearest.is_finite() || (back == value && missing == 0.0) || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    let above = if back == value { missing < 0.0 } else { back > value };
    if above { nearest.next_down() } else { nearest.next_up() }
}

#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (sum, error) = exact_sum(f64::from(a) * f64::from(b), f64::from(c));
    if sum.is_finite() { to_odd(sum, error) } else { sum as f32 }
}

#[inline(always)]
fn compute(kind: FloatKind, a: f32, b: f32, c: f32) -> f32 {
    match kind {
        FloatKind::Add => a + b,
        FloatKind::Subtract => a - b,
        FloatKind::Multiply => a * b,
        FloatKind::Divide => a / b,
        FloatKind::FusedMultiplyAdd => fused(a, b, c),
        FloatKind::FusedMultiplyAddRelu => maximum_nan(fused(a, b, c), 0.0),
        FloatKind::Minimum => minimum(a, b),
        FloatKind::Maximum => maximum(a, b),
        FloatKind::MinimumNan => minimum_nan(a, b),
        FloatKind::MaximumNan => maximum_nan(a, b),
        FloatKind::Negate => -a,
        FloatKind::Absolute => a.abs(),
        FloatKind::CopySign => b.copysign(a),
        FloatKind::SquareRoot => a.sqrt(),
        FloatKind::ReciprocalSquareRoot => 1.0 / a.sqrt(),
        FloatKind::Reciprocal => 1.0 / a,
        FloatKind::ExponentialTwo => exponential(a),
        FloatKind::LogarithmTwo => a.log2(),
        FloatKind::Sine => a.sin(),
        FloatKind::Cosine => a.cos(),
        FloatKind::HyperbolicTangent => a.tanh(),
    }
}

/// One lane of halves as f32 lanes; of a register of single halves the low part.
#[inline(always)]
fn widen(words: &[u32; LANES], shift: u32, to_f32: impl Fn(u16) -> f32) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for lane in 0..LANES {
        lanes[lane] = to_f32((words[lane] >> shift) as u16);
    }
    lanes
}

#[inline(always)]
fn of_part(
    file: &File,
    shift: u32,
    (kind, mode): (FloatKind, FloatMode),
    (a, b, c): (Slot, Slot, Slot),
    to_f32: impl Fn(u16) -> f32 + Copy,
    from_f32: impl Fn(f32) -> u16,
) -> [u16; LANES] {
    let read = |slot| widen(&u32::read(file, slot), shift, to_f32);
    let (a, b, c) = (read(a), read(b), read(c));
    let mut result = [0; LANES];
    for lane in 0..LANES {
        let value = compute(kind, a[lane], b[lane], c[lane]);
        // Approximate functions of bf16 have this; halves are no subnormals of f32 otherwise.
        let value = if mode.flush { flushed(value) } else { value };
        let value = if mode.saturate { maximum(value, 0.0).min(1.0) } else { value };
        result[lane] = from_f32(value);
    }
    result
}

#[inline(always)]
fn single(
    file: &mut File,
    mask: u32,
    kind: FloatKind,
    mode: FloatMode,
    o: Operands,
    to_f32: impl Fn(u16) -> f32 + Copy,
    from_f32: impl Fn(f32) -> u16,
) {
    let result = of_part(file, 0, (kind, mode), (o.a, o.b, o.c), to_f32, from_f32);
    u16::write(file, o.to, &result, mask);
}

#[inline(always)]
fn pair(
    file: &mut File,
    mask: u32,
    kind: FloatKind,
    mode: FloatMode,
    o: Operands,
    to_f32: impl Fn(u16) -> f32 + Copy,
    from_f32: impl Fn(f32) -> u16 + Copy,
) {
    let sources = (o.a, o.b, o.c);
    let low = of_part(file, 0, (kind, mode), sources, to_f32, from_f32);
    let high = of_part(file, 16, (kind, mode), sources, to_f32, from_f32);
    let mut result = [0; LANES];
    for lane in 0..LANES {
        result[lane] = u32::from(low[lane]) | u32::from(high[lane]) << 16;
    }
    u32::write(file, o.to, &result, mask);
}

#[cfg(test)]
mod tests {
    use super::{bf16_to_f32, f32_to_bf16, fused, to_odd};

    #[test]
    fn bf16_agrees_with_the_plain_crate() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                if !value.is_nan() {
                    assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits(), "{value:e}");
                }
            }
            assert!(bf16_to_f32(high).to_bits() == u32::from(high) << 16);
        }
    }

    #[test]
    fn a_fused_product_is_rounded_once() {
        // One and a half units of the last place of f16 plus a trace: up, though f32 would drop the trace and f16 then tie to even.
        let unit = 2.0_f32.powi(-10);
        let exact = fused(1.0 + unit, 1.0 + unit, -(unit * unit) - 2.0 * unit - 1.0 + 1.0);
        assert_eq!(exact, 1.0);
        let trace = 2.0_f32.powi(-24);
        let sum = to_odd(1.0 + f64::from(unit) / 2.0, f64::from(trace) * 1e-9);
        assert!(sum > 1.0 + unit / 2.0);
        assert_eq!(half::f16::from_f32(sum).to_f32(), 1.0 + unit);
    }
}
