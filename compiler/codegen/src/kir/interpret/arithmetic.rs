//! Scalar arithmetic of the interpreter, exact or as a target computes.

use super::Arithmetic;
use crate::kir::{BinaryOperator, Combination, Comparison, ScalarType, UnaryOperator};
use crate::math::{self, Host};

/// A value of a register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Float(f64),
    Signed(i32),
    Unsigned(u32),
    Truth(bool),
}

impl Default for Value {
    fn default() -> Self {
        Self::Truth(false)
    }
}

impl Value {
    pub fn float(self) -> f64 {
        match self {
            Self::Float(value) => value,
            Self::Signed(value) => f64::from(value),
            Self::Unsigned(value) => f64::from(value),
            Self::Truth(value) => f64::from(u8::from(value)),
        }
    }

    /// The bits of an integer; those of a bool are 0 or 1.
    pub fn word(self) -> u32 {
        match self {
            Self::Float(value) => value as u32,
            Self::Signed(value) => value.cast_unsigned(),
            Self::Unsigned(value) => value,
            Self::Truth(value) => u32::from(value),
        }
    }

    pub fn truth(self) -> bool {
        match self {
            Self::Float(value) => value != 0.0,
            Self::Signed(value) => value != 0,
            Self::Unsigned(value) => value != 0,
            Self::Truth(value) => value,
        }
    }

    /// The integer of type `scalar` that has these bits.
    pub fn of_word(scalar: ScalarType, word: u32) -> Self {
        match scalar {
            ScalarType::F32 => Self::Float(f64::from(word)),
            ScalarType::I32 => Self::Signed(word.cast_signed()),
            ScalarType::U32 => Self::Unsigned(word),
            ScalarType::Bool => Self::Truth(word & 1 != 0),
        }
    }
}

impl Arithmetic {
    /// An f32 that was computed in f64, as a register holds it.
    pub(super) fn rounded(self, value: Value) -> Value {
        match (value, self) {
            (Value::Float(float), Self::Target { .. }) => Value::Float(f64::from(float as f32)),
            (value, Self::Exact | Self::Target { .. }) => value,
        }
    }

    /// `left · right + addend`.
    pub(super) fn multiply_add(self, left: f64, right: f64, addend: f64) -> Value {
        let [left32, right32, addend32] = [left, right, addend].map(|value| value as f32);
        Value::Float(match self {
            Self::Exact => left.mul_add(right, addend),
            Self::Target { is_fused: true } => f64::from(left32.mul_add(right32, addend32)),
            Self::Target { is_fused: false } => f64::from(left32 * right32 + addend32),
        })
    }

    /// A value of a reduction and what it held before.
    pub(super) fn combination(
        self,
        combination: Combination,
        scalar: ScalarType,
        value: Value,
        present: Value,
    ) -> Value {
        let operator = match combination {
            // Sums keep their f64 until they are read.
            Combination::Sum if scalar == ScalarType::F32 => {
                return Value::Float(value.float() + present.float());
            }
            Combination::Sum => BinaryOperator::Add,
            Combination::Maximum => BinaryOperator::Maximum,
            Combination::Minimum => BinaryOperator::Minimum,
        };
        self.binary(operator, scalar, value, present)
    }

    /// An operator on one value of type `scalar`.
    pub(super) fn unary(self, operator: UnaryOperator, scalar: ScalarType, value: Value) -> Value {
        match (scalar, self) {
            (ScalarType::F32, Self::Exact) => Value::Float(exact_function(operator, value.float())),
            (ScalarType::F32, Self::Target { is_fused }) => {
                let mut host = Host { is_fused };
                let result = target_function(operator, &mut host, value.float() as f32);
                Value::Float(f64::from(result))
            }
            (ScalarType::I32 | ScalarType::U32 | ScalarType::Bool, _) => {
                Value::of_word(scalar, word_function(operator, value.word()))
            }
        }
    }

    /// An operator on two values of type `scalar`.
    pub(super) fn binary(
        self,
        operator: BinaryOperator,
        scalar: ScalarType,
        left: Value,
        right: Value,
    ) -> Value {
        match scalar {
            ScalarType::F32 => self.float_binary(operator, left.float(), right.float()),
            ScalarType::I32 => {
                Value::Signed(signed_binary(operator, left.word().cast_signed(), right.word().cast_signed()))
            }
            ScalarType::U32 | ScalarType::Bool => {
                Value::of_word(scalar, word_binary(operator, left.word(), right.word()))
            }
        }
    }

    fn float_binary(self, operator: BinaryOperator, left: f64, right: f64) -> Value {
        if let (BinaryOperator::Power, Self::Target { is_fused }) = (operator, self) {
            let power = math::power(&mut Host { is_fused }, &(left as f32), &(right as f32));
            return Value::Float(f64::from(power));
        }
        // Rounding the f64 result to f32 gives what f32 arithmetic gives: f64 has more than twice the digits.
        self.rounded(Value::Float(match operator {
            BinaryOperator::Add => left + right,
            BinaryOperator::Subtract => left - right,
            BinaryOperator::Multiply => left * right,
            BinaryOperator::Divide => left / right,
            BinaryOperator::Power => left.powf(right),
            BinaryOperator::Minimum => {
                if left < right || left.is_nan() {
                    left
                } else {
                    right
                }
            }
            BinaryOperator::Maximum => {
                if left > right || left.is_nan() {
                    left
                } else {
                    right
                }
            }
            BinaryOperator::Remainder | BinaryOperator::And | BinaryOperator::Or | BinaryOperator::Xor => {
                unreachable!("bug in dtlc: {operator:?} of floats passed the validator")
            }
        }))
    }

    /// Conversion to another type.
    pub(super) fn cast(self, target: ScalarType, value: Value) -> Value {
        match (target, value) {
            (ScalarType::F32, value) => self.rounded(Value::Float(value.float())),
            (ScalarType::I32, Value::Float(float)) => Value::Signed(float as i32),
            (ScalarType::U32, Value::Float(float)) => Value::Unsigned(float as u32),
            (ScalarType::Bool, value) => Value::Truth(value.truth()),
            (ScalarType::I32 | ScalarType::U32, value) => Value::of_word(target, value.word()),
        }
    }
}

/// Whether a relation holds. All types embed in f64 in their order.
pub(super) fn compare(comparison: Comparison, left: Value, right: Value) -> bool {
    let (left, right) = (left.float(), right.float());
    match comparison {
        Comparison::Equal => left == right,
        Comparison::NotEqual => left != right,
        Comparison::Less => left < right,
        Comparison::LessOrEqual => left <= right,
        Comparison::Greater => left > right,
        Comparison::GreaterOrEqual => left >= right,
    }
}

fn signed_binary(operator: BinaryOperator, left: i32, right: i32) -> i32 {
    match operator {
        BinaryOperator::Divide if right == 0 => 0,
        BinaryOperator::Divide => left.wrapping_div(right),
        BinaryOperator::Remainder if right == 0 => left,
        BinaryOperator::Remainder => left.wrapping_rem(right),
        BinaryOperator::Minimum => left.min(right),
        BinaryOperator::Maximum => left.max(right),
        BinaryOperator::Add
        | BinaryOperator::Subtract
        | BinaryOperator::Multiply
        | BinaryOperator::Power
        | BinaryOperator::And
        | BinaryOperator::Or
        | BinaryOperator::Xor => {
            word_binary(operator, left.cast_unsigned(), right.cast_unsigned()).cast_signed()
        }
    }
}

fn word_binary(operator: BinaryOperator, left: u32, right: u32) -> u32 {
    match operator {
        BinaryOperator::Add => left.wrapping_add(right),
        BinaryOperator::Subtract => left.wrapping_sub(right),
        BinaryOperator::Multiply => left.wrapping_mul(right),
        BinaryOperator::Divide => left.checked_div(right).unwrap_or(0),
        BinaryOperator::Remainder => left.checked_rem(right).unwrap_or(left),
        BinaryOperator::Minimum => left.min(right),
        BinaryOperator::Maximum => left.max(right),
        BinaryOperator::And => left & right,
        BinaryOperator::Or => left | right,
        BinaryOperator::Xor => left ^ right,
        BinaryOperator::Power => {
            unreachable!("bug in dtlc: a power of integers passed the validator")
        }
    }
}

/// On integers bit by bit; a bool is its lowest bit.
fn word_function(operator: UnaryOperator, word: u32) -> u32 {
    match operator {
        UnaryOperator::Negate => word.wrapping_neg(),
        UnaryOperator::Absolute => word.cast_signed().wrapping_abs().cast_unsigned(),
        UnaryOperator::Not => !word,
        UnaryOperator::Exp
        | UnaryOperator::Log
        | UnaryOperator::Sqrt
        | UnaryOperator::ReciprocalSqrt
        | UnaryOperator::Tanh
        | UnaryOperator::Sigmoid
        | UnaryOperator::Erf
        | UnaryOperator::Sin
        | UnaryOperator::Cos
        | UnaryOperator::Floor
        | UnaryOperator::RoundToBf16
        | UnaryOperator::RoundToF16 => {
            unreachable!("bug in dtlc: {operator:?} of an integer passed the validator")
        }
    }
}

fn target_function(operator: UnaryOperator, host: &mut Host, value: f32) -> f32 {
    match operator {
        UnaryOperator::Negate | UnaryOperator::Not => -value,
        UnaryOperator::Absolute => value.abs(),
        UnaryOperator::Exp => math::exp(host, &value),
        UnaryOperator::Log => math::log(host, &value),
        UnaryOperator::Sqrt => value.sqrt(),
        UnaryOperator::ReciprocalSqrt => math::reciprocal_sqrt(host, &value),
        UnaryOperator::Tanh => math::tanh(host, &value),
        UnaryOperator::Sigmoid => math::sigmoid(host, &value),
        UnaryOperator::Erf => math::erf(host, &value),
        UnaryOperator::Sin => math::sin(host, &value),
        UnaryOperator::Cos => math::cos(host, &value),
        UnaryOperator::Floor => value.floor(),
        UnaryOperator::RoundToBf16 => math::round_to_bf16(host, &value),
        UnaryOperator::RoundToF16 => math::round_to_f16(host, &value),
    }
}

fn exact_function(operator: UnaryOperator, value: f64) -> f64 {
    match operator {
        UnaryOperator::Negate | UnaryOperator::Not => -value,
        UnaryOperator::Absolute => value.abs(),
        UnaryOperator::Exp => value.exp(),
        UnaryOperator::Log => value.ln(),
        UnaryOperator::Sqrt => value.sqrt(),
        UnaryOperator::ReciprocalSqrt => 1.0 / value.sqrt(),
        UnaryOperator::Tanh => value.tanh(),
        UnaryOperator::Sigmoid => 1.0 / (1.0 + (-value).exp()),
        UnaryOperator::Sin => value.sin(),
        UnaryOperator::Cos => value.cos(),
        UnaryOperator::Floor => value.floor(),
        // The standard library has no error function: the one of the target serves, within its bound.
        UnaryOperator::Erf => f64::from(math::erf(&mut Host { is_fused: false }, &(value as f32))),
        UnaryOperator::RoundToBf16 => {
            f64::from(math::round_to_bf16(&mut Host { is_fused: false }, &(value as f32)))
        }
        UnaryOperator::RoundToF16 => {
            f64::from(math::round_to_f16(&mut Host { is_fused: false }, &(value as f32)))
        }
    }
}
