//! Prints kernels.

use super::names::Named;
use crate::kir::{
    AccumulatorId, Constant, Index, Kernel, Loop, Operation, Register, Span, Statement, TensorId, Variable,
};
use std::fmt::{self, Display, Formatter};

impl Display for Kernel {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "kernel {} {{", self.name)?;
        for tensor in self.tensors.values() {
            let (element, access) = (tensor.element.word(), tensor.access.word());
            writeln!(out, "  tensor {}: {element}[{}] {access}", tensor.name, tensor.length)?;
        }
        for integer in self.integers.values() {
            write!(out, "  integer {}", integer.name)?;
            if let Some((low, high)) = integer.range {
                write!(out, " in {low}..={high}")?;
            }
            writeln!(out)?;
        }
        for axis in self.axes.values() {
            write!(out, "  axis {}: {} {}", axis.name, axis.extent, axis.kind.word())?;
            if let Span::Tile { outer, size } = axis.span {
                write!(out, " by {size} of {}", self.axes[outer].name)?;
            }
            writeln!(out)?;
        }
        Printer { kernel: self, out }.nest(&self.outer, 1)?;
        write!(out, "}}")
    }
}

struct Printer<'kernel, 'out, 'buffer> {
    kernel: &'kernel Kernel,
    out: &'out mut Formatter<'buffer>,
}

impl Printer<'_, '_, '_> {
    fn nest(&mut self, nest: &Loop, depth: usize) -> fmt::Result {
        let indent = depth * 2;
        writeln!(self.out, "{:indent$}for {} {{", "", self.kernel.axes[nest.axis].name)?;
        for statement in &nest.body {
            self.statement(statement, depth + 1)?;
        }
        writeln!(self.out, "{:indent$}}}", "")
    }

    fn statement(&mut self, statement: &Statement, depth: usize) -> fmt::Result {
        if let Statement::Loop(nest) = statement {
            return self.nest(nest, depth);
        }
        write!(self.out, "{:indent$}", "", indent = depth * 2)?;
        match statement {
            Statement::Loop(_) => {}
            Statement::Let { register, operation } => {
                self.definition(*register)?;
                self.operation(operation)?;
            }
            Statement::Load { register, tensor, index } => {
                self.definition(*register)?;
                write!(self.out, "load ")?;
                self.element(*tensor, index)?;
            }
            Statement::Store { tensor, index, value } => {
                write!(self.out, "store ")?;
                self.element(*tensor, index)?;
                write!(self.out, ", {value}")?;
            }
            Statement::Accumulate { tensor, index, combination, value } => {
                write!(self.out, "accumulate {} ", combination.word())?;
                self.element(*tensor, index)?;
                write!(self.out, ", {value}")?;
            }
            Statement::Start(accumulator) => self.start(*accumulator)?,
            Statement::Combine { accumulator, value } => {
                write!(self.out, "combine {accumulator}, {value}")?;
            }
            Statement::Total { register, accumulator } => {
                self.definition(*register)?;
                write!(self.out, "total {accumulator}")?;
            }
        }
        writeln!(self.out)
    }

    fn definition(&mut self, register: Register) -> fmt::Result {
        write!(self.out, "{register}: {} = ", self.kernel.registers[register].word())
    }

    fn start(&mut self, accumulator: AccumulatorId) -> fmt::Result {
        let description = self.kernel.accumulators[accumulator];
        let (scalar, combination) = (description.scalar.word(), description.combination.word());
        write!(self.out, "start {accumulator}: {scalar} {combination}")
    }

    fn operation(&mut self, operation: &Operation) -> fmt::Result {
        match operation {
            Operation::Constant(constant) => self.constant(*constant),
            Operation::Unary(operator, value) => write!(self.out, "{} {value}", operator.word()),
            Operation::Binary(operator, left, right) => {
                write!(self.out, "{} {left}, {right}", operator.word())
            }
            Operation::MultiplyAdd { left, right, addend } => {
                write!(self.out, "multiply_add {left}, {right}, {addend}")
            }
            Operation::Compare(comparison, left, right) => {
                write!(self.out, "{} {left}, {right}", comparison.word())
            }
            Operation::Select { condition, on_true, on_false } => {
                write!(self.out, "select {condition}, {on_true}, {on_false}")
            }
            Operation::Cast(_, value) => write!(self.out, "cast {value}"),
            Operation::Coordinate(index) => {
                write!(self.out, "coordinate ")?;
                self.index(index)
            }
            Operation::Random { key, counter, word, draw } => {
                write!(self.out, "random {} {word} ", draw.word())?;
                for index in key {
                    self.index(index)?;
                    write!(self.out, ", ")?;
                }
                self.index(counter)
            }
        }
    }

    fn constant(&mut self, constant: Constant) -> fmt::Result {
        match constant {
            Constant::F32(bits) if f32::from_bits(bits).is_finite() => {
                write!(self.out, "{:?}", f32::from_bits(bits))
            }
            Constant::F32(bits) => write!(self.out, "bits {bits}"),
            Constant::I32(value) => write!(self.out, "{value}"),
            Constant::U32(value) => write!(self.out, "{value}"),
            Constant::Bool(value) => write!(self.out, "{value}"),
        }
    }

    fn element(&mut self, tensor: TensorId, index: &Index) -> fmt::Result {
        write!(self.out, "{}", self.kernel.tensors[tensor].name)?;
        self.index(index)
    }

    fn index(&mut self, index: &Index) -> fmt::Result {
        write!(self.out, "[")?;
        let mut is_first = true;
        for term in index.terms() {
            let magnitude = term.coefficient.unsigned_abs();
            self.sign(term.coefficient < 0, is_first)?;
            is_first = false;
            if magnitude != 1 {
                write!(self.out, "{magnitude} ")?;
            }
            match term.variable {
                Variable::Integer(integer) => write!(self.out, "{}", self.kernel.integers[integer].name)?,
                Variable::Axis(axis) => write!(self.out, "{}", self.kernel.axes[axis].name)?,
                Variable::Data { register, bound } => write!(self.out, "({register} below {bound})")?,
            }
        }
        let constant = index.constant_part();
        if constant != 0 || is_first {
            self.sign(constant < 0, is_first)?;
            write!(self.out, "{}", constant.unsigned_abs())?;
        }
        write!(self.out, "]")
    }

    fn sign(&mut self, is_negative: bool, is_first: bool) -> fmt::Result {
        let sign = match (is_negative, is_first) {
            (false, true) => "",
            (true, true) => "-",
            (false, false) => " + ",
            (true, false) => " - ",
        };
        write!(self.out, "{sign}")
    }
}
