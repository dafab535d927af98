//! Scalar operations as expressions.

use super::emit::Emitter;
use super::index::Width;
use super::math::Function;
use super::prelude::float_literal;
use crate::kir::{
    Access, BinaryOperator, Combination, Comparison, Constant, Draw, ElementType, Operation, Register,
    ScalarType, TensorParameter, UnaryOperator,
};

/// The type of a register in C++.
pub(super) fn scalar_name(scalar: ScalarType) -> &'static str {
    match scalar {
        ScalarType::F32 => "float",
        ScalarType::I32 => "int",
        ScalarType::U32 => "unsigned",
        ScalarType::Bool => "bool",
    }
}

/// The type of an element in memory.
pub(super) fn element_name(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "float",
        ElementType::Bf16 => "dtl::bf16",
        ElementType::F16 => "dtl::f16",
        ElementType::I32 => "int",
        ElementType::U32 => "unsigned",
        ElementType::Bool => "unsigned char",
    }
}

/// The type of a pointer to a tensor.
pub(super) fn pointer_name(tensor: &TensorParameter) -> String {
    let constant = if tensor.access == Access::Read { "const " } else { "" };
    format!("{constant}{}*", element_name(tensor.element))
}

/// A register's value from an element.
pub(super) fn widened(element: ElementType, text: &str) -> String {
    match element {
        ElementType::F32 | ElementType::I32 | ElementType::U32 => text.to_owned(),
        ElementType::Bf16 | ElementType::F16 => format!("dtl::widen({text})"),
        ElementType::Bool => format!("{text} != 0"),
    }
}

/// An element from a register's value.
pub(super) fn narrowed(element: ElementType, text: &str) -> String {
    match element {
        ElementType::F32 | ElementType::I32 | ElementType::U32 => text.to_owned(),
        ElementType::Bf16 => format!("dtl::narrow({text})"),
        ElementType::F16 => format!("dtl::narrow_to_f16({text})"),
        ElementType::Bool => format!("static_cast<unsigned char>({text})"),
    }
}

/// How values combine, as a type of the prelude.
pub(super) fn combination_name(combination: Combination) -> &'static str {
    match combination {
        Combination::Sum => "dtl::sum",
        Combination::Maximum => "dtl::maximum",
        Combination::Minimum => "dtl::minimum",
    }
}

/// What an accumulator starts from.
pub(super) fn identity(combination: Combination, scalar: ScalarType) -> String {
    match (combination, scalar) {
        (Combination::Sum, ScalarType::F32) => float_literal(0.0),
        (Combination::Maximum, ScalarType::F32) => float_literal(f32::NEG_INFINITY),
        (Combination::Minimum, ScalarType::F32) => float_literal(f32::INFINITY),
        (Combination::Sum, ScalarType::I32) => "0".to_owned(),
        (Combination::Maximum, ScalarType::I32) => int_literal(i32::MIN),
        (Combination::Minimum, ScalarType::I32) => int_literal(i32::MAX),
        (Combination::Sum | Combination::Maximum, ScalarType::U32 | ScalarType::Bool) => "0u".to_owned(),
        (Combination::Minimum, ScalarType::U32 | ScalarType::Bool) => format!("{}u", u32::MAX),
    }
}

fn int_literal(value: i32) -> String {
    // The least int has no literal of its own.
    if value == i32::MIN { "(-2147483647 - 1)".to_owned() } else { format!("{value}") }
}

impl Emitter<'_> {
    /// An operand: a literal or a name.
    pub(super) fn operand(&self, register: Register) -> String {
        match self.constants[register] {
            Some(Constant::F32(bits)) => float_literal(f32::from_bits(bits)),
            Some(Constant::I32(value)) => int_literal(value),
            Some(Constant::U32(value)) => format!("{value}u"),
            Some(Constant::Bool(value)) => format!("{value}"),
            None => self.names.register(register).to_owned(),
        }
    }

    /// An integer register's bits as an unsigned word.
    pub(super) fn word(&self, register: Register) -> String {
        let operand = self.operand(register);
        match self.kernel.registers[register] {
            ScalarType::I32 => format!("static_cast<unsigned>({operand})"),
            ScalarType::U32 | ScalarType::F32 | ScalarType::Bool => operand,
        }
    }

    /// The value of an operation.
    pub(super) fn expression(&mut self, operation: &Operation) -> String {
        match operation {
            Operation::Constant(constant) => match *constant {
                Constant::F32(bits) => float_literal(f32::from_bits(bits)),
                Constant::I32(value) => int_literal(value),
                Constant::U32(value) => format!("{value}u"),
                Constant::Bool(value) => format!("{value}"),
            },
            Operation::Unary(operator, value) => self.unary(*operator, *value),
            Operation::Binary(operator, left, right) => self.binary(*operator, *left, *right),
            Operation::MultiplyAdd { left, right, addend } => {
                let [left, right, addend] = [left, right, addend].map(|&operand| self.operand(operand));
                format!("__fmaf_rn({left}, {right}, {addend})")
            }
            Operation::Compare(comparison, left, right) => {
                let sign = match comparison {
                    Comparison::Equal => "==",
                    Comparison::NotEqual => "!=",
                    Comparison::Less => "<",
                    Comparison::LessOrEqual => "<=",
                    Comparison::Greater => ">",
                    Comparison::GreaterOrEqual => ">=",
                };
                format!("{} {sign} {}", self.operand(*left), self.operand(*right))
            }
            Operation::Select { condition, on_true, on_false } => {
                let [condition, on_true, on_false] =
                    [condition, on_true, on_false].map(|&operand| self.operand(operand));
                format!("{condition} ? {on_true} : {on_false}")
            }
            Operation::Cast(target, value) => self.cast(*target, *value),
            Operation::Coordinate(index) => self.coordinate(index),
            Operation::Random { key, counter, word, draw } => {
                let [low, high] = [&key[0], &key[1]]
                    .map(|index| format!("static_cast<unsigned>({})", self.index(index, Width::Wrapping)));
                let counter = self.index(counter, Width::Wrapping);
                let bits = format!("dtl::random_bits<{word}>({low}, {high}, {counter})");
                match draw {
                    Draw::Bits => bits,
                    Draw::Unit => format!("dtl::unit({bits})"),
                }
            }
        }
    }

    fn call(&mut self, function: Function, arguments: &str) -> String {
        self.functions.insert(function);
        format!("dtl::{}({arguments})", function.name())
    }

    fn unary(&mut self, operator: UnaryOperator, register: Register) -> String {
        let scalar = self.kernel.registers[register];
        let value = self.operand(register);
        match operator {
            UnaryOperator::Negate => match scalar {
                ScalarType::F32 => format!("-({value})"),
                ScalarType::I32 => format!("dtl::subtract(0, {value})"),
                ScalarType::U32 | ScalarType::Bool => format!("0u - {value}"),
            },
            UnaryOperator::Absolute => match scalar {
                ScalarType::F32 => format!("fabsf({value})"),
                ScalarType::I32 => format!("{value} < 0 ? dtl::subtract(0, {value}) : {value}"),
                ScalarType::U32 | ScalarType::Bool => value,
            },
            UnaryOperator::Not => match scalar {
                ScalarType::Bool => format!("!{value}"),
                ScalarType::I32 | ScalarType::U32 | ScalarType::F32 => format!("~{value}"),
            },
            UnaryOperator::Exp => self.call(Function::Exp, &value),
            UnaryOperator::Log => self.call(Function::Log, &value),
            UnaryOperator::Sqrt => format!("__fsqrt_rn({value})"),
            UnaryOperator::ReciprocalSqrt => self.call(Function::ReciprocalSqrt, &value),
            UnaryOperator::Tanh => self.call(Function::Tanh, &value),
            UnaryOperator::Sigmoid => self.call(Function::Sigmoid, &value),
            UnaryOperator::Erf => self.call(Function::Erf, &value),
            UnaryOperator::Sin => self.call(Function::Sin, &value),
            UnaryOperator::Cos => self.call(Function::Cos, &value),
            UnaryOperator::Floor => format!("floorf({value})"),
            UnaryOperator::RoundToBf16 => format!("dtl::round_to_bf16({value})"),
            UnaryOperator::RoundToF16 => format!("dtl::widen(dtl::narrow_to_f16({value}))"),
        }
    }

    fn binary(&mut self, operator: BinaryOperator, left: Register, right: Register) -> String {
        let scalar = self.kernel.registers[left];
        let (left, right) = (self.operand(left), self.operand(right));
        let wraps = scalar == ScalarType::I32;
        let is_bool = scalar == ScalarType::Bool;
        let is_float = scalar == ScalarType::F32;
        let infix = |sign: &str| format!("{left} {sign} {right}");
        let called = |name: &str| format!("dtl::{name}({left}, {right})");
        match operator {
            BinaryOperator::Add if wraps => called("add"),
            BinaryOperator::Add => infix("+"),
            BinaryOperator::Subtract if wraps => called("subtract"),
            BinaryOperator::Subtract => infix("-"),
            BinaryOperator::Multiply if wraps => called("multiply"),
            BinaryOperator::Multiply => infix("*"),
            BinaryOperator::Divide if is_float => infix("/"),
            BinaryOperator::Divide => called("quotient"),
            BinaryOperator::Remainder => called("remainder"),
            BinaryOperator::Power => self.call(Function::Power, &format!("{left}, {right}")),
            BinaryOperator::Minimum => called("minimum::of"),
            BinaryOperator::Maximum => called("maximum::of"),
            BinaryOperator::And if is_bool => infix("&&"),
            BinaryOperator::And => infix("&"),
            BinaryOperator::Or if is_bool => infix("||"),
            BinaryOperator::Or => infix("|"),
            BinaryOperator::Xor if is_bool => infix("!="),
            BinaryOperator::Xor => infix("^"),
        }
    }

    fn cast(&self, target: ScalarType, register: Register) -> String {
        let value = self.operand(register);
        match (self.kernel.registers[register], target) {
            (ScalarType::F32, ScalarType::I32) => format!("__float2int_rz({value})"),
            (ScalarType::F32, ScalarType::U32) => format!("__float2uint_rz({value})"),
            (ScalarType::F32, ScalarType::Bool) => format!("{value} != 0.0f"),
            (ScalarType::I32 | ScalarType::U32, ScalarType::Bool) => format!("{value} != 0"),
            (ScalarType::Bool, ScalarType::F32) => format!("{value} ? 1.0f : 0.0f"),
            (ScalarType::I32 | ScalarType::U32, ScalarType::F32) => format!("static_cast<float>({value})"),
            (ScalarType::I32 | ScalarType::U32 | ScalarType::Bool, ScalarType::I32 | ScalarType::U32) => {
                format!("static_cast<{}>({value})", scalar_name(target))
            }
            (ScalarType::F32, ScalarType::F32) | (ScalarType::Bool, ScalarType::Bool) => value,
        }
    }
}
