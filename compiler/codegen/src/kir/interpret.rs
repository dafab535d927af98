//! Runs a kernel one iteration after another: the judge of emitted code. It is slow and obvious, and checks each access.

use super::{
    AccumulatorId, AxisId, BinaryOperator, Combination, Comparison, Constant, Draw, ElementType, Index,
    Kernel, KirError, Loop, Operation, Register, Result, ScalarType, Span, Statement, TensorId,
    UnaryOperator, Variable,
};
use crate::math::{self, Host};
use cranelift_entity::{EntityRef, SecondaryMap};
use std::ops::Range;

/// How floats are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// In f64; only stores round.
    Exact,
    /// As emitted code does: each operation rounds to f32 and the functions are those of [`crate::math`], so that
    /// elementwise results have the same bits. Sums are kept in f64 and rounded when they are read.
    Target {
        /// Whether the target has fused multiply-add.
        is_fused: bool,
    },
}

/// A tensor operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Buffer {
    /// Of [`ElementType::F32`].
    F32(Vec<f32>),
    /// Of [`ElementType::Bf16`], by their bits.
    Bf16(Vec<u16>),
    /// Of [`ElementType::I32`].
    I32(Vec<i32>),
    /// Of [`ElementType::U32`].
    U32(Vec<u32>),
    /// Of [`ElementType::Bool`].
    Bool(Vec<u8>),
}

/// Executes the part `range` of the parallel axis of a valid kernel.
///
/// # Errors
/// An operand that is missing or has another element type, or an access outside its buffer.
pub fn interpret(
    kernel: &Kernel,
    arithmetic: Arithmetic,
    buffers: &mut [Buffer],
    integers: &[i64],
    range: Range<u64>,
) -> Result<()> {
    let mut interpreter = Interpreter {
        kernel,
        arithmetic,
        buffers,
        integers,
        axes: SecondaryMap::new(),
        registers: SecondaryMap::new(),
        accumulators: SecondaryMap::new(),
    };
    interpreter.nest(&kernel.outer, range)
}

/// A value of a register.
#[derive(Clone, Copy, Debug)]
enum Value {
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
    fn float(self) -> f64 {
        match self {
            Self::Float(value) => value,
            Self::Signed(value) => f64::from(value),
            Self::Unsigned(value) => f64::from(value),
            Self::Truth(value) => f64::from(u8::from(value)),
        }
    }

    /// The bits of an integer; those of a bool are 0 or 1.
    fn word(self) -> u32 {
        match self {
            Self::Float(value) => value as u32,
            Self::Signed(value) => value.cast_unsigned(),
            Self::Unsigned(value) => value,
            Self::Truth(value) => u32::from(value),
        }
    }

    fn truth(self) -> bool {
        match self {
            Self::Float(value) => value != 0.0,
            Self::Signed(value) => value != 0,
            Self::Unsigned(value) => value != 0,
            Self::Truth(value) => value,
        }
    }

    /// The integer of type `scalar` that has these bits.
    fn of_word(scalar: ScalarType, word: u32) -> Self {
        match scalar {
            ScalarType::F32 => Self::Float(f64::from(word)),
            ScalarType::I32 => Self::Signed(word.cast_signed()),
            ScalarType::U32 => Self::Unsigned(word),
            ScalarType::Bool => Self::Truth(word & 1 != 0),
        }
    }
}

struct Interpreter<'run> {
    kernel: &'run Kernel,
    arithmetic: Arithmetic,
    buffers: &'run mut [Buffer],
    integers: &'run [i64],
    axes: SecondaryMap<AxisId, u64>,
    registers: SecondaryMap<Register, Value>,
    accumulators: SecondaryMap<AccumulatorId, Value>,
}

/// Loops and statements.
impl Interpreter<'_> {
    fn nest(&mut self, nest: &Loop, range: Range<u64>) -> Result<()> {
        for value in range {
            self.axes[nest.axis] = value;
            for statement in &nest.body {
                self.statement(statement)?;
            }
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        match statement {
            Statement::Loop(nest) => {
                let axis = &self.kernel.axes[nest.axis];
                let range = match axis.span {
                    Span::Whole => 0..axis.extent,
                    Span::Tile { outer, size } => {
                        let start = self.axes[outer] * size;
                        start..axis.extent.min(start + size)
                    }
                };
                self.nest(nest, range)?;
            }
            Statement::Let { register, operation } => {
                self.registers[*register] = self.operation(operation)?;
            }
            Statement::Load { register, tensor, index } => {
                self.registers[*register] = self.load(*tensor, index)?;
            }
            Statement::Store { tensor, index, value } => {
                self.store(*tensor, index, self.registers[*value])?;
            }
            Statement::Accumulate { tensor, index, combination, value } => {
                let scalar = self.kernel.registers[*value];
                let present = self.load(*tensor, index)?;
                let next = self.combination(*combination, scalar, self.registers[*value], present);
                self.store(*tensor, index, self.rounded(next))?;
            }
            Statement::Start(accumulator) => {
                self.accumulators[*accumulator] = self.identity(*accumulator);
            }
            Statement::Combine { accumulator, value } => {
                let description = self.kernel.accumulators[*accumulator];
                let present = self.accumulators[*accumulator];
                let value = self.registers[*value];
                self.accumulators[*accumulator] =
                    self.combination(description.combination, description.scalar, value, present);
            }
            Statement::Total { register, accumulator } => {
                self.registers[*register] = self.rounded(self.accumulators[*accumulator]);
            }
        }
        Ok(())
    }

    fn identity(&self, accumulator: AccumulatorId) -> Value {
        let description = self.kernel.accumulators[accumulator];
        match (description.scalar, description.combination) {
            (ScalarType::F32, Combination::Sum) => Value::Float(0.0),
            (ScalarType::F32, Combination::Maximum) => Value::Float(f64::NEG_INFINITY),
            (ScalarType::F32, Combination::Minimum) => Value::Float(f64::INFINITY),
            (ScalarType::I32, Combination::Maximum) => Value::Signed(i32::MIN),
            (ScalarType::I32, Combination::Minimum) => Value::Signed(i32::MAX),
            (ScalarType::U32, Combination::Minimum) => Value::Unsigned(u32::MAX),
            (scalar, _) => Value::of_word(scalar, 0),
        }
    }

    fn combination(
        &self,
        combination: Combination,
        scalar: ScalarType,
        value: Value,
        present: Value,
    ) -> Value {
        match (combination, scalar) {
            (Combination::Sum, ScalarType::F32) => Value::Float(value.float() + present.float()),
            (Combination::Sum, _) => self.binary(BinaryOperator::Add, scalar, value, present),
            (Combination::Maximum, _) => self.binary(BinaryOperator::Maximum, scalar, value, present),
            (Combination::Minimum, _) => self.binary(BinaryOperator::Minimum, scalar, value, present),
        }
    }

    fn fault(&self, message: String) -> KirError {
        KirError::new(&self.kernel.name, message)
    }
}

/// Memory.
impl Interpreter<'_> {
    fn index(&self, index: &Index) -> Result<i64> {
        let mut sum = index.constant_part();
        for term in index.terms() {
            let value = match term.variable {
                Variable::Integer(integer) => self.integers.get(integer.index()).copied(),
                Variable::Axis(axis) => Some(self.axes[axis] as i64),
                Variable::Data { register, bound } => {
                    Some(i64::from(self.registers[register].word().min(bound - 1)))
                }
            };
            let value = value.ok_or_else(|| self.fault("an integer is missing".to_owned()))?;
            sum = sum.wrapping_add(value.wrapping_mul(term.coefficient));
        }
        Ok(sum)
    }

    fn place(&self, tensor: TensorId, index: &Index) -> Result<usize> {
        let index = self.index(index)?;
        let place = usize::try_from(index).ok();
        let length = self.buffers.get(tensor.index()).map_or(0, Buffer::len);
        place
            .filter(|&place| place < length)
            .ok_or_else(|| self.fault(format!("element {index} of {tensor}, which has {length}")))
    }

    fn load(&self, tensor: TensorId, index: &Index) -> Result<Value> {
        let place = self.place(tensor, index)?;
        let element = self.kernel.tensors[tensor].element;
        match (&self.buffers[tensor.index()], element) {
            (Buffer::F32(data), ElementType::F32) => Ok(Value::Float(f64::from(data[place]))),
            (Buffer::Bf16(data), ElementType::Bf16) => {
                let bits = u32::from(data[place]) << 16;
                Ok(Value::Float(f64::from(f32::from_bits(bits))))
            }
            (Buffer::I32(data), ElementType::I32) => Ok(Value::Signed(data[place])),
            (Buffer::U32(data), ElementType::U32) => Ok(Value::Unsigned(data[place])),
            (Buffer::Bool(data), ElementType::Bool) => Ok(Value::Truth(data[place] != 0)),
            _ => Err(self.fault(format!("{tensor} does not hold {element:?}"))),
        }
    }

    fn store(&mut self, tensor: TensorId, index: &Index, value: Value) -> Result<()> {
        let place = self.place(tensor, index)?;
        let element = self.kernel.tensors[tensor].element;
        match (&mut self.buffers[tensor.index()], element) {
            (Buffer::F32(data), ElementType::F32) => data[place] = value.float() as f32,
            (Buffer::Bf16(data), ElementType::Bf16) => {
                let mut host = Host { is_fused: false };
                data[place] = math::to_bf16_bits(&mut host, &(value.float() as f32)) as u16;
            }
            (Buffer::I32(data), ElementType::I32) => data[place] = value.word().cast_signed(),
            (Buffer::U32(data), ElementType::U32) => data[place] = value.word(),
            (Buffer::Bool(data), ElementType::Bool) => data[place] = u8::from(value.truth()),
            _ => return Err(self.fault(format!("{tensor} does not hold {element:?}"))),
        }
        Ok(())
    }
}

impl Buffer {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::Bf16(data) => data.len(),
            Self::I32(data) => data.len(),
            Self::U32(data) => data.len(),
            Self::Bool(data) => data.len(),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Operations.
impl Interpreter<'_> {
    fn operation(&self, operation: &Operation) -> Result<Value> {
        let value = |register: &Register| self.registers[*register];
        Ok(match operation {
            Operation::Constant(Constant::F32(bits)) => Value::Float(f64::from(f32::from_bits(*bits))),
            Operation::Constant(Constant::I32(constant)) => Value::Signed(*constant),
            Operation::Constant(Constant::U32(constant)) => Value::Unsigned(*constant),
            Operation::Constant(Constant::Bool(constant)) => Value::Truth(*constant),
            Operation::Unary(operator, operand) => {
                self.unary(*operator, self.kernel.registers[*operand], value(operand))
            }
            Operation::Binary(operator, left, right) => {
                self.binary(*operator, self.kernel.registers[*left], value(left), value(right))
            }
            Operation::MultiplyAdd { left, right, addend } => {
                self.multiply_add(value(left).float(), value(right).float(), value(addend).float())
            }
            Operation::Compare(comparison, left, right) => {
                Value::Truth(compare(*comparison, value(left), value(right)))
            }
            Operation::Select { condition, on_true, on_false } => match value(condition).truth() {
                true => value(on_true),
                false => value(on_false),
            },
            Operation::Cast(target, operand) => self.cast(*target, value(operand)),
            Operation::Coordinate(index) => Value::Signed(self.index(index)? as i32),
            Operation::Random { key, counter, word, draw } => {
                let key = [self.index(&key[0])? as u32, self.index(&key[1])? as u32];
                let bits = philox(key, self.index(counter)? as u64)[usize::from(*word)];
                match draw {
                    Draw::Bits => Value::Unsigned(bits),
                    Draw::Unit => Value::Float(f64::from(bits >> 8) / 16_777_216.0),
                }
            }
        })
    }

    fn rounded(&self, value: Value) -> Value {
        match (value, self.arithmetic) {
            (Value::Float(float), Arithmetic::Target { .. }) => Value::Float(f64::from(float as f32)),
            (value, _) => value,
        }
    }

    fn multiply_add(&self, left: f64, right: f64, addend: f64) -> Value {
        let [left32, right32, addend32] = [left, right, addend].map(|value| value as f32);
        match self.arithmetic {
            Arithmetic::Exact => Value::Float(left.mul_add(right, addend)),
            Arithmetic::Target { is_fused: true } => {
                Value::Float(f64::from(left32.mul_add(right32, addend32)))
            }
            Arithmetic::Target { is_fused: false } => Value::Float(f64::from(left32 * right32 + addend32)),
        }
    }

    fn unary(&self, operator: UnaryOperator, scalar: ScalarType, value: Value) -> Value {
        match (scalar, self.arithmetic) {
            (ScalarType::F32, Arithmetic::Exact) => Value::Float(exact_function(operator, value.float())),
            (ScalarType::F32, Arithmetic::Target { is_fused }) => {
                let mut host = Host { is_fused };
                let result = target_function(operator, &mut host, value.float() as f32);
                Value::Float(f64::from(result))
            }
            (ScalarType::Bool, _) => Value::Truth(!value.truth()),
            (ScalarType::I32 | ScalarType::U32, _) => {
                let word = value.word();
                Value::of_word(
                    scalar,
                    match operator {
                        UnaryOperator::Negate => word.wrapping_neg(),
                        UnaryOperator::Absolute => word.cast_signed().wrapping_abs().cast_unsigned(),
                        _ => !word,
                    },
                )
            }
        }
    }

    fn binary(&self, operator: BinaryOperator, scalar: ScalarType, left: Value, right: Value) -> Value {
        match scalar {
            ScalarType::F32 => self.float_binary(operator, left.float(), right.float()),
            ScalarType::I32 => {
                let (left, right) = (left.word().cast_signed(), right.word().cast_signed());
                Value::Signed(match operator {
                    BinaryOperator::Divide if right == 0 => 0,
                    BinaryOperator::Remainder if right == 0 => left,
                    BinaryOperator::Divide => left.wrapping_div(right),
                    BinaryOperator::Remainder => left.wrapping_rem(right),
                    BinaryOperator::Minimum => left.min(right),
                    BinaryOperator::Maximum => left.max(right),
                    _ => word_binary(operator, left.cast_unsigned(), right.cast_unsigned()).cast_signed(),
                })
            }
            ScalarType::U32 | ScalarType::Bool => {
                Value::of_word(scalar, word_binary(operator, left.word(), right.word()))
            }
        }
    }

    fn float_binary(&self, operator: BinaryOperator, left: f64, right: f64) -> Value {
        if let (BinaryOperator::Power, Arithmetic::Target { is_fused }) = (operator, self.arithmetic) {
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
            BinaryOperator::Minimum if left < right || left.is_nan() => left,
            BinaryOperator::Maximum if left > right || left.is_nan() => left,
            _ => right,
        }))
    }

    fn cast(&self, target: ScalarType, value: Value) -> Value {
        match (target, value) {
            (ScalarType::F32, value) => self.rounded(Value::Float(value.float())),
            (ScalarType::I32, Value::Float(float)) => Value::Signed(float as i32),
            (ScalarType::U32, Value::Float(float)) => Value::Unsigned(float as u32),
            (ScalarType::Bool, value) => Value::Truth(value.truth()),
            (ScalarType::I32 | ScalarType::U32, value) => Value::of_word(target, value.word()),
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
        BinaryOperator::Xor | BinaryOperator::Power => left ^ right,
    }
}

fn compare(comparison: Comparison, left: Value, right: Value) -> bool {
    // All types embed in f64 in their order.
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
    }
}

/// The four words that Philox-4x32-10 makes of a key and a counter.
fn philox(mut key: [u32; 2], counter: u64) -> [u32; 4] {
    let mut state = [counter as u32, (counter >> 32) as u32, 0, 0];
    for _ in 0..10 {
        let first = u64::from(state[0]) * 0xd251_1f53;
        let second = u64::from(state[2]) * 0xcd9e_8d57;
        state = [
            (second >> 32) as u32 ^ state[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ state[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    state
}

#[cfg(test)]
mod tests {
    use super::philox;

    #[test]
    fn philox_gives_the_published_words() {
        let expected = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(philox([0, 0], 0), expected);
    }
}
