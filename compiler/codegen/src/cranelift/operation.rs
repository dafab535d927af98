//! Scalar operations as vector instructions.

use super::emit::Emitter;
use super::group::{Group, LANES};
use crate::kir::{
    BinaryOperator, Combination, Comparison, Constant, Index, Operation, Register, ScalarType, UnaryOperator,
};
use crate::math::{self, Lanes};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};

impl Emitter<'_, '_> {
    /// The value of an operation on registers that are known.
    pub(super) fn compute(&mut self, operation: &Operation) -> Group {
        match operation {
            Operation::Constant(constant) => self.constant(*constant),
            Operation::Unary(operator, value) => self.unary(*operator, *value),
            Operation::Binary(operator, left, right) => {
                let scalar = self.kernel.registers[*left];
                let (left, right) = (self.group(*left), self.group(*right));
                self.binary(*operator, scalar, &left, &right)
            }
            Operation::MultiplyAdd { left, right, addend } => {
                let [left, right, addend] = [left, right, addend].map(|&operand| self.group(operand));
                self.multiply_add(&left, &right, &addend)
            }
            Operation::Compare(comparison, left, right) => self.compare(*comparison, *left, *right),
            Operation::Select { condition, on_true, on_false } => {
                let scalar = self.kernel.registers[*on_true];
                let [condition, on_true, on_false] =
                    [condition, on_true, on_false].map(|&operand| self.group(operand));
                match scalar {
                    ScalarType::F32 => self.select(&condition, &on_true, &on_false),
                    ScalarType::I32 | ScalarType::U32 | ScalarType::Bool => {
                        self.bits_select(&condition, &on_true, &on_false)
                    }
                }
            }
            Operation::Cast(target, value) => self.cast(*target, *value),
            Operation::Coordinate(index) => self.coordinate(index),
            Operation::Random { key, counter, word, draw } => self.random(key, counter, *word, *draw),
        }
    }

    /// A literal in all lanes.
    pub(super) fn constant(&mut self, constant: Constant) -> Group {
        match constant {
            Constant::F32(bits) => self.float(f32::from_bits(bits)),
            Constant::I32(value) => self.bits(value.cast_unsigned()),
            Constant::U32(value) => self.bits(value),
            Constant::Bool(value) => self.bits(if value { u32::MAX } else { 0 }),
        }
    }

    /// Two values of a reduction combined.
    pub(super) fn combination(
        &mut self,
        combination: Combination,
        scalar: ScalarType,
        value: &Group,
        present: &Group,
    ) -> Group {
        let operator = match combination {
            Combination::Sum => BinaryOperator::Add,
            Combination::Maximum => BinaryOperator::Maximum,
            Combination::Minimum => BinaryOperator::Minimum,
        };
        self.binary(operator, scalar, value, present)
    }

    fn unary(&mut self, operator: UnaryOperator, register: Register) -> Group {
        let is_float = self.kernel.registers[register] == ScalarType::F32;
        let value = &self.group(register);
        match operator {
            UnaryOperator::Negate if is_float => self.negate(value),
            UnaryOperator::Negate => value.map(|value| self.builder.ins().ineg(value)),
            UnaryOperator::Absolute if is_float => self.absolute(value),
            UnaryOperator::Absolute => value.map(|value| self.builder.ins().iabs(value)),
            UnaryOperator::Not => self.mask_not(value),
            UnaryOperator::Exp => math::exp(self, value),
            UnaryOperator::Log => math::log(self, value),
            UnaryOperator::Sqrt => self.sqrt(value),
            UnaryOperator::ReciprocalSqrt => math::reciprocal_sqrt(self, value),
            UnaryOperator::Tanh => math::tanh(self, value),
            UnaryOperator::Sigmoid => math::sigmoid(self, value),
            UnaryOperator::Erf => math::erf(self, value),
            UnaryOperator::Sin => math::sin(self, value),
            UnaryOperator::Cos => math::cos(self, value),
            UnaryOperator::Floor => self.floor(value),
            UnaryOperator::RoundToBf16 => math::round_to_bf16(self, value),
            UnaryOperator::RoundToF16 => math::round_to_f16(self, value),
        }
    }

    fn binary(&mut self, operator: BinaryOperator, scalar: ScalarType, left: &Group, right: &Group) -> Group {
        match scalar {
            ScalarType::F32 => self.float_binary(operator, left, right),
            ScalarType::I32 | ScalarType::U32 | ScalarType::Bool => {
                self.integer_binary(operator, scalar == ScalarType::I32, left, right)
            }
        }
    }

    fn float_binary(&mut self, operator: BinaryOperator, left: &Group, right: &Group) -> Group {
        match operator {
            BinaryOperator::Add => self.add(left, right),
            BinaryOperator::Subtract => self.subtract(left, right),
            BinaryOperator::Multiply => self.multiply(left, right),
            BinaryOperator::Divide => self.divide(left, right),
            BinaryOperator::Power => math::power(self, left, right),
            BinaryOperator::Minimum => {
                let is_less = self.less(left, right);
                self.unless_nan(&is_less, left, right)
            }
            BinaryOperator::Maximum => {
                let is_greater = self.less(right, left);
                self.unless_nan(&is_greater, left, right)
            }
            BinaryOperator::Remainder | BinaryOperator::And | BinaryOperator::Or | BinaryOperator::Xor => {
                unreachable!("bug in dtlc: {operator:?} of floats passed the validator")
            }
        }
    }

    /// `left` where it was chosen or is a NaN, else `right`.
    fn unless_nan(&mut self, choose_left: &Group, left: &Group, right: &Group) -> Group {
        let chosen = self.select(choose_left, left, right);
        let is_number = self.equal(left, left);
        self.select(&is_number, &chosen, left)
    }

    fn integer_binary(
        &mut self,
        operator: BinaryOperator,
        is_signed: bool,
        left: &Group,
        right: &Group,
    ) -> Group {
        match operator {
            BinaryOperator::Add => self.bits_add(left, right),
            BinaryOperator::Subtract => self.bits_subtract(left, right),
            BinaryOperator::Multiply => self.product(left, right),
            BinaryOperator::Divide => self.quotient(is_signed, left, right),
            BinaryOperator::Remainder => {
                let quotient = self.quotient(is_signed, left, right);
                let whole = self.product(&quotient, right);
                self.bits_subtract(left, &whole)
            }
            BinaryOperator::Minimum => left.zip(right, |left, right| match is_signed {
                true => self.builder.ins().smin(left, right),
                false => self.builder.ins().umin(left, right),
            }),
            BinaryOperator::Maximum => left.zip(right, |left, right| match is_signed {
                true => self.builder.ins().smax(left, right),
                false => self.builder.ins().umax(left, right),
            }),
            BinaryOperator::And => self.bits_and(left, right),
            BinaryOperator::Or => self.bits_or(left, right),
            BinaryOperator::Xor => self.bits_xor(left, right),
            BinaryOperator::Power => {
                unreachable!("bug in dtlc: a power of integers passed the validator")
            }
        }
    }

    fn product(&mut self, left: &Group, right: &Group) -> Group {
        left.zip(right, |left, right| self.builder.ins().imul(left, right))
    }

    /// Integer division lane by lane in 64 bits, where neither overflow nor a divisor of 0 can trap.
    fn quotient(&mut self, is_signed: bool, left: &Group, right: &Group) -> Group {
        left.zip(right, |left, right| {
            let mut quotients = left;
            for lane in 0..LANES as u8 {
                let [dividend, divisor] = [left, right].map(|vector| {
                    let word = self.builder.ins().extractlane(vector, lane);
                    if is_signed {
                        self.builder.ins().sextend(types::I64, word)
                    } else {
                        self.builder.ins().uextend(types::I64, word)
                    }
                });
                let quotient = self.lane_quotient(dividend, divisor);
                quotients = self.builder.ins().insertlane(quotients, quotient, lane);
            }
            quotients
        })
    }

    fn lane_quotient(&mut self, dividend: Value, divisor: Value) -> Value {
        let zero = self.builder.ins().iconst(types::I64, 0);
        let one = self.builder.ins().iconst(types::I64, 1);
        let by_zero = self.builder.ins().icmp(IntCC::Equal, divisor, zero);
        let divisor = self.builder.ins().select(by_zero, one, divisor);
        let dividend = self.builder.ins().select(by_zero, zero, dividend);
        let quotient = self.builder.ins().sdiv(dividend, divisor);
        self.builder.ins().ireduce(types::I32, quotient)
    }

    fn compare(&mut self, comparison: Comparison, left: Register, right: Register) -> Group {
        let scalar = self.kernel.registers[left];
        let (left, right) = (self.group(left), self.group(right));
        if scalar == ScalarType::F32 {
            let relation = match comparison {
                Comparison::Equal => FloatCC::Equal,
                Comparison::NotEqual => FloatCC::NotEqual,
                Comparison::Less => FloatCC::LessThan,
                Comparison::LessOrEqual => FloatCC::LessThanOrEqual,
                Comparison::Greater => FloatCC::GreaterThan,
                Comparison::GreaterOrEqual => FloatCC::GreaterThanOrEqual,
            };
            return self.float_compare(relation, &left, &right);
        }
        let is_signed = scalar == ScalarType::I32;
        let relation = match comparison {
            Comparison::Equal => IntCC::Equal,
            Comparison::NotEqual => IntCC::NotEqual,
            Comparison::Less => IntCC::SignedLessThan,
            Comparison::LessOrEqual => IntCC::SignedLessThanOrEqual,
            Comparison::Greater => IntCC::SignedGreaterThan,
            Comparison::GreaterOrEqual => IntCC::SignedGreaterThanOrEqual,
        };
        let relation = if is_signed { relation } else { relation.unsigned() };
        self.integer_compare(relation, &left, &right)
    }

    fn cast(&mut self, target: ScalarType, register: Register) -> Group {
        let source = self.kernel.registers[register];
        let value = self.group(register);
        match (source, target) {
            (ScalarType::F32, ScalarType::I32) => {
                value.map(|value| self.builder.ins().fcvt_to_sint_sat(types::I32X4, value))
            }
            (ScalarType::F32, ScalarType::U32) => {
                value.map(|value| self.builder.ins().fcvt_to_uint_sat(types::I32X4, value))
            }
            (ScalarType::I32, ScalarType::F32) => self.signed_to_float(&value),
            (ScalarType::U32, ScalarType::F32) => {
                value.map(|value| self.builder.ins().fcvt_from_uint(types::F32X4, value))
            }
            (ScalarType::Bool, ScalarType::F32) => {
                let one = self.bits(1f32.to_bits());
                let bits = self.bits_and(&value, &one);
                self.float_of(&bits)
            }
            (ScalarType::Bool, ScalarType::I32 | ScalarType::U32) => {
                let one = self.bits(1);
                self.bits_and(&value, &one)
            }
            (ScalarType::F32, ScalarType::Bool) => {
                let zero = self.float(0.0);
                self.float_compare(FloatCC::NotEqual, &value, &zero)
            }
            (ScalarType::I32 | ScalarType::U32, ScalarType::Bool) => {
                let zero = self.bits(0);
                self.integer_compare(IntCC::NotEqual, &value, &zero)
            }
            (ScalarType::F32, ScalarType::F32)
            | (ScalarType::I32 | ScalarType::U32, ScalarType::I32 | ScalarType::U32)
            | (ScalarType::Bool, ScalarType::Bool) => value,
        }
    }

    fn coordinate(&mut self, index: &Index) -> Group {
        let step = self.lane_step(index);
        let value = self.index_value(index);
        let word = self.builder.ins().ireduce(types::I32, value);
        let start = self.builder.ins().splat(types::I32X4, word);
        if step == 0 {
            return Group::uniform(start);
        }
        let vectors = 0..self.chunk.vectors;
        let lanes = vectors.map(|vector| {
            let offsets: [u32; LANES] =
                std::array::from_fn(|lane| ((vector * LANES + lane) as i64).wrapping_mul(step) as u32);
            let offsets = self.vector_constant(types::I32X4, offsets);
            self.builder.ins().iadd(start, offsets)
        });
        Group::varying(lanes.collect())
    }
}
