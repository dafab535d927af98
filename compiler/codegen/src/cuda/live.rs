//! What of a part is needed: a compiler warns of a variable that nothing reads.

use super::mapping::Part;
use crate::kir::{
    AccumulatorId, AxisId, Index, Kernel, Loop, Operation, Register, Span, Statement, Variable,
};
use cranelift_entity::EntitySet;

/// Registers, accumulators and axes that what a part stores depends on.
#[derive(Default)]
pub(super) struct Live {
    pub registers: EntitySet<Register>,
    pub accumulators: EntitySet<AccumulatorId>,
    pub axes: EntitySet<AxisId>,
}

impl Live {
    /// Everything that `part` needs. Definitions stand before uses, so one pass from the end finds all.
    pub(super) fn of(kernel: &Kernel, part: &Part<'_>) -> Self {
        let mut live = Self::default();
        live.body(kernel, &part.leaf().body);
        let above = part.levels.iter().rev().skip(1);
        for statement in above.flat_map(|level| level.body.iter().rev()) {
            // Loops of other parts stand beside the one of this part.
            if !matches!(statement, Statement::Loop(_)) {
                live.statement(kernel, statement);
            }
        }
        live
    }

    /// What indices need.
    pub(super) fn of_indices<'a>(indices: impl Iterator<Item = &'a Index>) -> Self {
        let mut live = Self::default();
        indices.for_each(|index| live.index(index));
        live
    }

    fn body(&mut self, kernel: &Kernel, body: &[Statement]) {
        for statement in body.iter().rev() {
            self.statement(kernel, statement);
        }
    }

    fn statement(&mut self, kernel: &Kernel, statement: &Statement) {
        match statement {
            Statement::Loop(nest) => self.nest(kernel, nest),
            Statement::Let { register, operation } if self.registers.contains(*register) => {
                self.operation(operation);
            }
            Statement::Load { register, index, .. } if self.registers.contains(*register) => {
                self.index(index)
            }
            Statement::Let { .. } | Statement::Load { .. } => {}
            Statement::Store { index, value, .. } | Statement::Accumulate { index, value, .. } => {
                self.registers.insert(*value);
                self.index(index);
            }
            Statement::Start(_) => {}
            Statement::Combine { accumulator, value } if self.accumulators.contains(*accumulator) => {
                self.registers.insert(*value);
            }
            Statement::Combine { .. } => {}
            Statement::Total { register, accumulator } => {
                if self.registers.contains(*register) {
                    self.accumulators.insert(*accumulator);
                }
            }
        }
    }

    fn nest(&mut self, kernel: &Kernel, nest: &Loop) {
        self.body(kernel, &nest.body);
        if let Span::Tile { outer, .. } = kernel.axes[nest.axis].span {
            self.axes.insert(outer);
        }
    }

    fn operation(&mut self, operation: &Operation) {
        for operand in operation.operands() {
            self.registers.insert(operand);
        }
        for index in operation.indices() {
            self.index(index);
        }
    }

    fn index(&mut self, index: &Index) {
        for term in index.terms() {
            match term.variable {
                Variable::Axis(axis) => {
                    self.axes.insert(axis);
                }
                Variable::Data { register, .. } => {
                    self.registers.insert(register);
                }
                Variable::Integer(_) => {}
            }
        }
    }
}
