//! Runs the sequences on one f32 here: the judge of emitted code, and the way to test the functions' errors.

use super::Lanes;

/// One lane, computed on the host.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Whether multiply-add rounds once, as the target that is imitated does.
    pub is_fused: bool,
}

impl Lanes for Host {
    type Float = f32;
    type Bits = u32;
    type Mask = bool;

    fn is_fused(&self) -> bool {
        self.is_fused
    }

    fn float(&mut self, value: f32) -> f32 {
        value
    }

    fn bits(&mut self, value: u32) -> u32 {
        value
    }

    fn add(&mut self, left: &f32, right: &f32) -> f32 {
        left + right
    }

    fn subtract(&mut self, left: &f32, right: &f32) -> f32 {
        left - right
    }

    fn multiply(&mut self, left: &f32, right: &f32) -> f32 {
        left * right
    }

    fn divide(&mut self, left: &f32, right: &f32) -> f32 {
        left / right
    }

    fn multiply_add(&mut self, left: &f32, right: &f32, addend: &f32) -> f32 {
        if self.is_fused { left.mul_add(*right, *addend) } else { left * right + addend }
    }

    fn negate(&mut self, value: &f32) -> f32 {
        -value
    }

    fn absolute(&mut self, value: &f32) -> f32 {
        value.abs()
    }

    fn sqrt(&mut self, value: &f32) -> f32 {
        value.sqrt()
    }

    fn floor(&mut self, value: &f32) -> f32 {
        value.floor()
    }

    fn equal(&mut self, left: &f32, right: &f32) -> bool {
        left == right
    }

    fn less(&mut self, left: &f32, right: &f32) -> bool {
        left < right
    }

    fn less_or_equal(&mut self, left: &f32, right: &f32) -> bool {
        left <= right
    }

    fn select(&mut self, mask: &bool, on_true: &f32, on_false: &f32) -> f32 {
        if *mask { *on_true } else { *on_false }
    }

    fn bits_of(&mut self, value: &f32) -> u32 {
        value.to_bits()
    }

    fn float_of(&mut self, value: &u32) -> f32 {
        f32::from_bits(*value)
    }

    fn signed_to_float(&mut self, value: &u32) -> f32 {
        value.cast_signed() as f32
    }

    fn bits_add(&mut self, left: &u32, right: &u32) -> u32 {
        left.wrapping_add(*right)
    }

    fn bits_subtract(&mut self, left: &u32, right: &u32) -> u32 {
        left.wrapping_sub(*right)
    }

    fn bits_and(&mut self, left: &u32, right: &u32) -> u32 {
        left & right
    }

    fn bits_or(&mut self, left: &u32, right: &u32) -> u32 {
        left | right
    }

    fn bits_xor(&mut self, left: &u32, right: &u32) -> u32 {
        left ^ right
    }

    fn shift_left(&mut self, value: &u32, amount: u8) -> u32 {
        value << amount
    }

    fn shift_right(&mut self, value: &u32, amount: u8) -> u32 {
        value >> amount
    }

    fn shift_right_signed(&mut self, value: &u32, amount: u8) -> u32 {
        (value.cast_signed() >> amount).cast_unsigned()
    }

    fn bits_equal(&mut self, left: &u32, right: &u32) -> bool {
        left == right
    }

    fn bits_select(&mut self, mask: &bool, on_true: &u32, on_false: &u32) -> u32 {
        if *mask { *on_true } else { *on_false }
    }

    fn mask_and(&mut self, left: &bool, right: &bool) -> bool {
        *left && *right
    }

    fn mask_or(&mut self, left: &bool, right: &bool) -> bool {
        *left || *right
    }

    fn mask_not(&mut self, mask: &bool) -> bool {
        !mask
    }
}
