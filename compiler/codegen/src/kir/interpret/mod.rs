//! Runs a kernel one iteration after another: the judge of emitted code. It is slow and obvious, and checks each access.

mod arithmetic;

use super::{
    AccumulatorId, AxisId, Combination, Constant, Draw, ElementType, Index, Kernel, KirError, Loop,
    Operation, Register, Result, ScalarType, Span, Statement, TensorId, Variable,
};
use crate::math::{self, Host};
use arithmetic::{Value, compare};
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
    /// Of [`ElementType::F16`], by their bits.
    F16(Vec<u16>),
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
                let next = self.arithmetic.combination(*combination, scalar, self.registers[*value], present);
                self.store(*tensor, index, self.arithmetic.rounded(next))?;
            }
            Statement::Start(accumulator) => {
                self.accumulators[*accumulator] = self.identity(*accumulator);
            }
            Statement::Combine { accumulator, value } => {
                let description = self.kernel.accumulators[*accumulator];
                let present = self.accumulators[*accumulator];
                let value = self.registers[*value];
                self.accumulators[*accumulator] =
                    self.arithmetic.combination(description.combination, description.scalar, value, present);
            }
            Statement::Total { register, accumulator } => {
                self.registers[*register] = self.arithmetic.rounded(self.accumulators[*accumulator]);
            }
        }
        Ok(())
    }

    fn identity(&self, accumulator: AccumulatorId) -> Value {
        let description = self.kernel.accumulators[accumulator];
        match (description.combination, description.scalar) {
            (Combination::Sum, ScalarType::F32) => Value::Float(0.0),
            (Combination::Maximum, ScalarType::F32) => Value::Float(f64::NEG_INFINITY),
            (Combination::Minimum, ScalarType::F32) => Value::Float(f64::INFINITY),
            (Combination::Maximum, ScalarType::I32) => Value::Signed(i32::MIN),
            (Combination::Minimum, ScalarType::I32) => Value::Signed(i32::MAX),
            (Combination::Minimum, ScalarType::U32 | ScalarType::Bool) => Value::Unsigned(u32::MAX),
            (Combination::Sum, ScalarType::I32) => Value::Signed(0),
            (Combination::Sum | Combination::Maximum, ScalarType::U32 | ScalarType::Bool) => {
                Value::Unsigned(0)
            }
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
            (Buffer::F16(data), ElementType::F16) => {
                let mut host = Host { is_fused: false };
                Ok(Value::Float(f64::from(math::of_f16_bits(&mut host, &u32::from(data[place])))))
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
            (Buffer::F16(data), ElementType::F16) => {
                let mut host = Host { is_fused: false };
                data[place] = math::to_f16_bits(&mut host, &(value.float() as f32)) as u16;
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
            Self::Bf16(data) | Self::F16(data) => data.len(),
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
                self.arithmetic.unary(*operator, self.kernel.registers[*operand], value(operand))
            }
            Operation::Binary(operator, left, right) => {
                self.arithmetic.binary(*operator, self.kernel.registers[*left], value(left), value(right))
            }
            Operation::MultiplyAdd { left, right, addend } => {
                self.arithmetic.multiply_add(value(left).float(), value(right).float(), value(addend).float())
            }
            Operation::Compare(comparison, left, right) => {
                Value::Truth(compare(*comparison, value(left), value(right)))
            }
            Operation::Select { condition, on_true, on_false } => match value(condition).truth() {
                true => value(on_true),
                false => value(on_false),
            },
            Operation::Cast(target, operand) => self.arithmetic.cast(*target, value(operand)),
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
