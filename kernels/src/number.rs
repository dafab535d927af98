//! The two storage types of floating-point tensors, as a trait that inner loops are generic over.

use half::bf16;

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
}
