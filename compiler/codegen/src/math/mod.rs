//! Vector mathematics: each function as one sequence of basic operations over an abstract vector of f32.
//!
//! Owns the functions that no processor has as an instruction, for every emitter without a mathematics library of its
//! own. The same sequence makes machine code and runs on the host ([`Host`]), so full vectors, tails and the kernel
//! interpreter give the same bits. It knows neither kernels nor Cranelift.
//!
//! Error bounds over all of f32, with or without fused multiply-add, held by `tests/math.rs`. An ulp is the distance
//! of neighbouring f32 at the exact result.
//!
//! | function | bound | at the edges |
//! | --- | --- | --- |
//! | `exp` | 1.2 ulp | a result below 2^-126 is 0; infinite from 88.7229 |
//! | `log` | 1.2 ulp | 0 gives -inf, below 0 NaN; subnormals are exact inputs |
//! | `tanh` | 1.5 ulp | ±1 at ±inf; ±0 keeps its sign |
//! | `sigmoid` | 2.5 ulp | 0 at -88.8 and below |
//! | `erf` | 1.5 ulp | ±1 from ±4; ±0 keeps its sign |
//! | `sin`, `cos` | 1.2e-7 absolute for \|x\| ≤ 1e6 | NaN above 2^22 in magnitude, infinities included |
//! | `reciprocal_sqrt` | 1.5 ulp | 0 gives inf, below 0 NaN |
//! | `power` | 5 ulp | as C's `pow`, results below 2^-126 are 0 |
//!
//! A NaN that enters any function comes out as a NaN (but for `power` with exponent 0 or base 1, as in C).

mod exponential;
mod host;
mod power;
mod special;
mod trigonometric;

pub use exponential::{exp, log, sigmoid, tanh};
pub use host::Host;
pub use power::power;
pub use special::{
    erf, of_f16_bits, reciprocal_sqrt, round_to_bf16, round_to_f16, to_bf16_bits, to_f16_bits,
};
pub use trigonometric::{cos, sin};

/// Basic operations on vectors of 32-bit lanes, in terms of which the functions are written.
///
/// All methods work lane by lane. `Float` lanes are f32 with IEEE 754 semantics, `Bits` lanes are 32-bit words that
/// wrap, `Mask` lanes are true or false.
pub trait Lanes {
    /// A vector of f32.
    type Float: Clone;
    /// A vector of 32-bit words.
    type Bits: Clone;
    /// A vector of truth values.
    type Mask: Clone;

    /// Whether [`Self::multiply_add`] rounds once.
    fn is_fused(&self) -> bool;
    /// The same number in each lane.
    fn float(&mut self, value: f32) -> Self::Float;
    /// The same word in each lane.
    fn bits(&mut self, value: u32) -> Self::Bits;

    /// `left + right`.
    fn add(&mut self, left: &Self::Float, right: &Self::Float) -> Self::Float;
    /// `left - right`.
    fn subtract(&mut self, left: &Self::Float, right: &Self::Float) -> Self::Float;
    /// `left · right`.
    fn multiply(&mut self, left: &Self::Float, right: &Self::Float) -> Self::Float;
    /// `left / right`.
    fn divide(&mut self, left: &Self::Float, right: &Self::Float) -> Self::Float;
    /// `left · right + addend`, rounded once where [`Self::is_fused`], else twice.
    fn multiply_add(&mut self, left: &Self::Float, right: &Self::Float, addend: &Self::Float) -> Self::Float;
    /// `-value`.
    fn negate(&mut self, value: &Self::Float) -> Self::Float;
    /// `|value|`.
    fn absolute(&mut self, value: &Self::Float) -> Self::Float;
    /// The square root.
    fn sqrt(&mut self, value: &Self::Float) -> Self::Float;
    /// The greatest whole number that isn't greater.
    fn floor(&mut self, value: &Self::Float) -> Self::Float;
    /// `left = right`.
    fn equal(&mut self, left: &Self::Float, right: &Self::Float) -> Self::Mask;
    /// `left < right`.
    fn less(&mut self, left: &Self::Float, right: &Self::Float) -> Self::Mask;
    /// `left ≤ right`.
    fn less_or_equal(&mut self, left: &Self::Float, right: &Self::Float) -> Self::Mask;
    /// `on_true` where `mask`, else `on_false`.
    fn select(&mut self, mask: &Self::Mask, on_true: &Self::Float, on_false: &Self::Float) -> Self::Float;

    /// The words of f32 lanes.
    fn bits_of(&mut self, value: &Self::Float) -> Self::Bits;
    /// The f32 lanes of words.
    fn float_of(&mut self, value: &Self::Bits) -> Self::Float;
    /// Words as signed integers, converted to f32.
    fn signed_to_float(&mut self, value: &Self::Bits) -> Self::Float;
    /// `left + right`.
    fn bits_add(&mut self, left: &Self::Bits, right: &Self::Bits) -> Self::Bits;
    /// `left - right`.
    fn bits_subtract(&mut self, left: &Self::Bits, right: &Self::Bits) -> Self::Bits;
    /// Bitwise and.
    fn bits_and(&mut self, left: &Self::Bits, right: &Self::Bits) -> Self::Bits;
    /// Bitwise or.
    fn bits_or(&mut self, left: &Self::Bits, right: &Self::Bits) -> Self::Bits;
    /// Bitwise exclusive or.
    fn bits_xor(&mut self, left: &Self::Bits, right: &Self::Bits) -> Self::Bits;
    /// `value · 2^amount`.
    fn shift_left(&mut self, value: &Self::Bits, amount: u8) -> Self::Bits;
    /// Shifts zeros in from the left.
    fn shift_right(&mut self, value: &Self::Bits, amount: u8) -> Self::Bits;
    /// Shifts copies of the sign in from the left.
    fn shift_right_signed(&mut self, value: &Self::Bits, amount: u8) -> Self::Bits;
    /// `left = right`.
    fn bits_equal(&mut self, left: &Self::Bits, right: &Self::Bits) -> Self::Mask;
    /// `on_true` where `mask`, else `on_false`.
    fn bits_select(&mut self, mask: &Self::Mask, on_true: &Self::Bits, on_false: &Self::Bits) -> Self::Bits;

    /// Both.
    fn mask_and(&mut self, left: &Self::Mask, right: &Self::Mask) -> Self::Mask;
    /// Either.
    fn mask_or(&mut self, left: &Self::Mask, right: &Self::Mask) -> Self::Mask;
    /// The contrary.
    fn mask_not(&mut self, mask: &Self::Mask) -> Self::Mask;
}

/// `Σ coefficients[i] · x^i` by Horner's rule.
fn polynomial<L: Lanes>(lanes: &mut L, x: &L::Float, coefficients: &[f32]) -> L::Float {
    let mut descending = coefficients.iter().rev();
    let first = descending.next().copied().unwrap_or(0.0);
    let mut sum = lanes.float(first);
    for &coefficient in descending {
        let addend = lanes.float(coefficient);
        sum = lanes.multiply_add(&sum, x, &addend);
    }
    sum
}

/// What `product`, the rounded `left · right`, lacks to the exact product. Exact where nothing under- or overflows.
fn product_residual<L: Lanes>(
    lanes: &mut L,
    left: &L::Float,
    right: &L::Float,
    product: &L::Float,
) -> L::Float {
    if lanes.is_fused() {
        let negated = lanes.negate(product);
        return lanes.multiply_add(left, right, &negated);
    }
    // Dekker's product: halves of 12 bits, whose products are exact.
    let (left_high, left_low) = halves(lanes, left);
    let (right_high, right_low) = halves(lanes, right);
    let high = lanes.multiply(&left_high, &right_high);
    let mut residual = lanes.subtract(&high, product);
    for (first, second) in [(&left_high, &right_low), (&left_low, &right_high), (&left_low, &right_low)] {
        let part = lanes.multiply(first, second);
        residual = lanes.add(&residual, &part);
    }
    residual
}

/// The upper 12 bits of the significand, and the rest.
fn halves<L: Lanes>(lanes: &mut L, value: &L::Float) -> (L::Float, L::Float) {
    let kept = lanes.bits(0xffff_f000);
    let bits = lanes.bits_of(value);
    let high_bits = lanes.bits_and(&bits, &kept);
    let high = lanes.float_of(&high_bits);
    let low = lanes.subtract(value, &high);
    (high, low)
}

/// `magnitude`, which is at least +0, with the sign of `sign`.
fn with_sign<L: Lanes>(lanes: &mut L, magnitude: &L::Float, sign: &L::Float) -> L::Float {
    let sign_bit = lanes.bits(0x8000_0000);
    let sign_bits = lanes.bits_of(sign);
    let sign_bits = lanes.bits_and(&sign_bits, &sign_bit);
    let magnitude_bits = lanes.bits_of(magnitude);
    let bits = lanes.bits_or(&magnitude_bits, &sign_bits);
    lanes.float_of(&bits)
}
