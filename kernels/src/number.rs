//! The storage types of floating-point tensors, as a trait that inner loops are generic over.

use half::{bf16, f16};

use crate::signature::Element;

/// A stored number that widens to f32 exactly and narrows from it to nearest even.
pub(crate) trait Number: Copy {
    fn widen(self) -> f32;
    fn narrow(value: f32) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Branch-free, so that loops over it vectorise: adds half a unit of the last kept place, one less if
    /// that place is even.
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        let quiet_nan = (bits >> 16) as u16 | 0x40;
        bf16::from_bits(if value.is_nan() { quiet_nan } else { rounded })
    }
}

/// Branch-free in both directions, so that loops over it vectorise.
impl Number for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let magnitude = u32::from(self.to_bits() & 0x7fff);
        // Exponents count from 15 there, from 127 here; the greatest stays the greatest.
        let normal = (magnitude << 13) + (112 << 23);
        let special = normal + (112 << 23);
        // A subnormal is what the least normal number with these digits exceeds that number by.
        let subnormal = (f32::from_bits(normal + (1 << 23)) - LEAST_NORMAL_F16).to_bits();
        let finite = if magnitude < 0x400 { subnormal } else { normal };
        let bits = if magnitude >= 0x7c00 { special } else { finite };
        f32::from_bits(bits | u32::from(self.to_bits() & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let magnitude = value.abs();
        let bits = magnitude.to_bits();
        let normal = bits.wrapping_add(0xfff + ((bits >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
        // Beside 0.5 an f32 has the steps of a subnormal f16: the sum rounds to them.
        let subnormal = (magnitude + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if magnitude < LEAST_NORMAL_F16 { subnormal } else { normal };
        // From half a step above the largest number on.
        let number = if magnitude < 65_520.0 { finite } else { 0x7c00 };
        let signed = number as u16 | (value.to_bits() >> 16) as u16 & 0x8000;
        f16::from_bits(if value.is_nan() { 0x7fff } else { signed })
    }
}

/// 2^-14.
const LEAST_NORMAL_F16: f32 = 1.0 / 16_384.0;

/// The nearest number of ten fraction bits, of two the one further from zero. Branch-free, so that loops over it vectorise.
#[inline(always)]
pub(crate) fn tf32(value: f32) -> f32 {
    let rounded = f32::from_bits(value.to_bits().wrapping_add(0x1000) & !0x1fff);
    if value.is_nan() { value } else { rounded }
}

/// Runs `$body` with `$name` naming the Rust type that `$element` stores.
macro_rules! with_element {
    ($element:expr, $name:ident => $body:expr) => {
        match $element {
            $crate::signature::Element::F32 => {
                type $name = f32;
                $body
            }
            $crate::signature::Element::Bf16 => {
                type $name = half::bf16;
                $body
            }
            $crate::signature::Element::F16 => {
                type $name = half::f16;
                $body
            }
        }
    };
}

pub(crate) use with_element;

/// `base` moved by `elements` elements of type `element`.
#[inline(always)]
pub(crate) fn offset(base: *const u8, element: Element, elements: isize) -> *const u8 {
    base.wrapping_offset(elements * element.bytes() as isize)
}

/// `base` moved by `elements` elements of type `element`.
#[inline(always)]
pub(crate) fn offset_mut(base: *mut u8, element: Element, elements: isize) -> *mut u8 {
    base.wrapping_offset(elements * element.bytes() as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_is_to_nearest_even() {
        let hard = [
            0x3f80_8000,
            0x3f81_8000,
            0x3f80_8001,
            0x7f7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x0000_8000,
            0x8000_0001,
        ];
        let spread = (0..1_000_000u32).map(|index| index.wrapping_mul(2_654_435_761));
        for bits in hard.into_iter().chain(spread) {
            let value = f32::from_bits(bits);
            let narrowed = <bf16 as Number>::narrow(value);
            let expected = bf16::from_f32(value);
            assert!(narrowed == expected || (narrowed.is_nan() && expected.is_nan()), "{bits:#x}");
            assert!(narrowed.is_nan() || narrowed.to_bits() == expected.to_bits(), "{bits:#x}");
        }
    }

    /// What an f16 widens to is the same number as another crate's, and halfway to the next one, and a little beside that, narrows alike.
    #[test]
    fn f16_widens_exactly_and_narrows_to_nearest_even() {
        let narrows = |value: f32| {
            let (narrowed, expected) = (<f16 as Number>::narrow(value), f16::from_f32(value));
            let is_same = narrowed.to_bits() == expected.to_bits();
            assert!(is_same || narrowed.is_nan() && expected.is_nan(), "{value:e}");
        };
        for bits in 0..=u16::MAX {
            let (widened, expected) = (f16::from_bits(bits).widen(), f16::from_bits(bits).to_f32());
            let is_same = widened.to_bits() == expected.to_bits();
            assert!(is_same || widened.is_nan() && expected.is_nan(), "{bits:#x}");
            narrows(widened);
            let next = if bits & 0x7fff == 0x7bff {
                65_536f32.copysign(widened)
            } else {
                f16::from_bits(bits.wrapping_add(1)).to_f32()
            };
            let middle = (widened + next) / 2.0;
            [middle, middle.next_up(), middle.next_down()].into_iter().for_each(narrows);
        }
        (0..1_000_000u32).for_each(|index| narrows(f32::from_bits(index.wrapping_mul(2_654_435_761))));
    }
}
