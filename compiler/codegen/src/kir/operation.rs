//! Scalar operations of the kernel IR and their typing.

use super::{Index, Register, ScalarType};
use cranelift_entity::PrimaryMap;
use smallvec::SmallVec;

/// How the value of a register is computed. All are pure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A literal.
    Constant(Constant),
    /// An operator on one value.
    Unary(UnaryOperator, Register),
    /// An operator on two values of one type.
    Binary(BinaryOperator, Register, Register),
    /// `left · right + addend` on f32, rounded once where the target has a fused instruction, else twice.
    MultiplyAdd {
        /// Multiplied.
        left: Register,
        /// Multiplied.
        right: Register,
        /// Added to the product.
        addend: Register,
    },
    /// Whether a relation holds between two values of one type.
    Compare(Comparison, Register, Register),
    /// One of two values.
    Select {
        /// A bool.
        condition: Register,
        /// The value where it is true.
        on_true: Register,
        /// The value where it is false.
        on_false: Register,
    },
    /// Conversion between types. f32 to an integer truncates and saturates (NaN gives 0), integers reinterpret their
    /// bits, bools are 0 and 1, a number is true where it isn't 0 (NaN is true).
    Cast(ScalarType, Register),
    /// The low 32 bits of an index as an i32: a loop variable, a coordinate in the whole (unsharded) dimension.
    Coordinate(Index),
    /// Random bits from Philox-4x32-10, "Parallel random numbers: as easy as 1, 2, 3" (Salmon et al., SC 2011).
    Random {
        /// The two words of the key: the low 32 bits of each.
        key: [Index; 2],
        /// The low two of the four counter words; the other two are 0.
        counter: Index,
        /// Which of the four words that come out, 0 to 3.
        word: u8,
        /// What the word is turned into.
        draw: Draw,
    },
}

impl Operation {
    /// The type of the result, or the rule that the operands break.
    pub fn result(&self, types: &PrimaryMap<Register, ScalarType>) -> Result<ScalarType, String> {
        let defined = match self {
            Self::Constant(constant) => Some(constant.scalar()),
            Self::Unary(operator, value) => operator.result(types[*value]),
            Self::Binary(operator, left, right) => {
                same(types, *left, *right).and_then(|operands| operator.result(operands))
            }
            Self::MultiplyAdd { left, right, addend } => [left, right, addend]
                .iter()
                .all(|&&operand| types[operand] == ScalarType::F32)
                .then_some(ScalarType::F32),
            Self::Compare(comparison, left, right) => same(types, *left, *right)
                .filter(|&operands| comparison.is_defined_on(operands))
                .map(|_| ScalarType::Bool),
            Self::Select { condition, on_true, on_false } => {
                same(types, *on_true, *on_false).filter(|_| types[*condition] == ScalarType::Bool)
            }
            Self::Cast(target, _) => Some(*target),
            Self::Coordinate(_) => Some(ScalarType::I32),
            Self::Random { word, draw, .. } => (*word < 4).then_some(match draw {
                Draw::Bits => ScalarType::U32,
                Draw::Unit => ScalarType::F32,
            }),
        };
        defined.ok_or_else(|| self.refusal(types))
    }

    /// The registers it reads, in order, those of its indices included.
    pub fn operands(&self) -> SmallVec<[Register; 4]> {
        let mut operands = SmallVec::new();
        match self {
            Self::Constant(_) => {}
            Self::Unary(_, value) | Self::Cast(_, value) => operands.push(*value),
            Self::Binary(_, left, right) | Self::Compare(_, left, right) => {
                operands.extend([*left, *right]);
            }
            Self::MultiplyAdd { left, right, addend } => operands.extend([*left, *right, *addend]),
            Self::Select { condition, on_true, on_false } => {
                operands.extend([*condition, *on_true, *on_false])
            }
            Self::Coordinate(_) | Self::Random { .. } => {
                for index in self.indices() {
                    operands.extend(index.data_registers());
                }
            }
        }
        operands
    }

    /// The same operation on `renamed` registers, those of its indices left as they are.
    pub fn with_operands(&self, renamed: impl Fn(Register) -> Register) -> Self {
        match self {
            Self::Unary(operator, value) => Self::Unary(*operator, renamed(*value)),
            Self::Binary(operator, left, right) => Self::Binary(*operator, renamed(*left), renamed(*right)),
            Self::MultiplyAdd { left, right, addend } => {
                Self::MultiplyAdd { left: renamed(*left), right: renamed(*right), addend: renamed(*addend) }
            }
            Self::Compare(comparison, left, right) => {
                Self::Compare(*comparison, renamed(*left), renamed(*right))
            }
            Self::Select { condition, on_true, on_false } => Self::Select {
                condition: renamed(*condition),
                on_true: renamed(*on_true),
                on_false: renamed(*on_false),
            },
            Self::Cast(target, value) => Self::Cast(*target, renamed(*value)),
            Self::Constant(_) | Self::Coordinate(_) | Self::Random { .. } => self.clone(),
        }
    }

    /// The indices it reads.
    pub fn indices(&self) -> SmallVec<[&Index; 3]> {
        match self {
            Self::Coordinate(index) => SmallVec::from_slice(&[index]),
            Self::Random { key, counter, .. } => SmallVec::from_slice(&[&key[0], &key[1], counter]),
            Self::Constant(_)
            | Self::Unary(..)
            | Self::Binary(..)
            | Self::MultiplyAdd { .. }
            | Self::Compare(..)
            | Self::Select { .. }
            | Self::Cast(..) => SmallVec::new(),
        }
    }

    fn refusal(&self, types: &PrimaryMap<Register, ScalarType>) -> String {
        let operands: Vec<_> = self.operands().iter().map(|&operand| types[operand]).collect();
        format!("{self:?} is not defined on operands of types {operands:?}")
    }
}

fn same(types: &PrimaryMap<Register, ScalarType>, left: Register, right: Register) -> Option<ScalarType> {
    (types[left] == types[right]).then_some(types[left])
}

/// A literal value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// The bits of an f32; see [`Constant::f32`].
    F32(u32),
    /// A signed integer.
    I32(i32),
    /// An unsigned integer.
    U32(u32),
    /// True or false.
    Bool(bool),
}

impl Constant {
    /// A floating-point literal.
    pub fn f32(value: f32) -> Self {
        Self::F32(value.to_bits())
    }

    /// The literal's type.
    pub fn scalar(self) -> ScalarType {
        match self {
            Self::F32(_) => ScalarType::F32,
            Self::I32(_) => ScalarType::I32,
            Self::U32(_) => ScalarType::U32,
            Self::Bool(_) => ScalarType::Bool,
        }
    }
}

/// Operators on one value. The error bounds of the functions are stated in [`crate::math`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnaryOperator {
    /// `-x`, of any number.
    Negate,
    /// `|x|`, of an f32 or i32.
    Absolute,
    /// Of a bool the contrary, of an integer all bits flipped.
    Not,
    /// `e^x`.
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root, correctly rounded.
    Sqrt,
    /// `1 / sqrt(x)`.
    ReciprocalSqrt,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The error function.
    Erf,
    /// The sine of radians.
    Sin,
    /// The cosine of radians.
    Cos,
    /// The greatest whole number that isn't greater.
    Floor,
    /// The nearest bf16 as an f32, ties to even.
    RoundToBf16,
    /// The nearest f16 as an f32, ties to even.
    RoundToF16,
}

impl UnaryOperator {
    /// The type of the result on a value of type `argument`, or `None` where it isn't defined.
    pub fn result(self, argument: ScalarType) -> Option<ScalarType> {
        let defined = match self {
            Self::Negate => argument != ScalarType::Bool,
            Self::Absolute => matches!(argument, ScalarType::F32 | ScalarType::I32),
            Self::Not => argument != ScalarType::F32,
            Self::Exp
            | Self::Log
            | Self::Sqrt
            | Self::ReciprocalSqrt
            | Self::Tanh
            | Self::Sigmoid
            | Self::Erf
            | Self::Sin
            | Self::Cos
            | Self::Floor
            | Self::RoundToBf16
            | Self::RoundToF16 => argument == ScalarType::F32,
        };
        defined.then_some(argument)
    }
}

/// Operators on two values of one type, with a result of that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BinaryOperator {
    /// `x + y`.
    Add,
    /// `x - y`.
    Subtract,
    /// `x · y`.
    Multiply,
    /// `x / y`. Integers truncate; by 0 they give 0.
    Divide,
    /// What integer division leaves, with the sign of `x`; by 0 it is `x`.
    Remainder,
    /// `x` to the power `y`, of f32.
    Power,
    /// The lesser of two numbers; NaN if either is.
    Minimum,
    /// The greater of two numbers; NaN if either is.
    Maximum,
    /// Of bools and, of integers bit by bit.
    And,
    /// Of bools or, of integers bit by bit.
    Or,
    /// Of bools exclusive or, of integers bit by bit.
    Xor,
}

impl BinaryOperator {
    /// The type of the result on two values of type `argument`, or `None` where it isn't defined.
    pub fn result(self, argument: ScalarType) -> Option<ScalarType> {
        let defined = match self {
            Self::Add | Self::Subtract | Self::Multiply | Self::Divide | Self::Minimum | Self::Maximum => {
                argument != ScalarType::Bool
            }
            Self::Remainder => matches!(argument, ScalarType::I32 | ScalarType::U32),
            Self::Power => argument == ScalarType::F32,
            Self::And | Self::Or | Self::Xor => argument != ScalarType::F32,
        };
        defined.then_some(argument)
    }
}

/// Relations between two values of one type. With a NaN only `NotEqual` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Comparison {
    /// `x = y`, of any type.
    Equal,
    /// `x ≠ y`, of any type.
    NotEqual,
    /// `x < y`, of numbers.
    Less,
    /// `x ≤ y`, of numbers.
    LessOrEqual,
    /// `x > y`, of numbers.
    Greater,
    /// `x ≥ y`, of numbers.
    GreaterOrEqual,
}

impl Comparison {
    /// Whether it is defined on two values of type `argument`.
    pub fn is_defined_on(self, argument: ScalarType) -> bool {
        match self {
            Self::Equal | Self::NotEqual => true,
            Self::Less | Self::LessOrEqual | Self::Greater | Self::GreaterOrEqual => {
                argument != ScalarType::Bool
            }
        }
    }
}

/// What 32 random bits are turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Draw {
    /// A u32: the bits themselves.
    Bits,
    /// An f32 in `[0, 1)`: the upper 24 bits times 2^-24.
    Unit,
}
