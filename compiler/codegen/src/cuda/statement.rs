//! Statements and loops, done by one thread or by the threads of a unit together.
//!
//! A unit computes values in every thread, stores the row's own values with its first, gives the iterations of a vector
//! loop to its threads in turn, and waits for all of them wherever one could meet what another has read or written.

use super::emit::{Emitter, Pending};
use super::mapping::{BLOCK, WARP, Worker, each_statement};
use super::operation::{combination_name, identity, narrowed, scalar_name, widened};
use crate::kir::{
    AccumulatorId, AxisKind, Combination, Index, Loop, Operation, Register, Span, Statement, TensorId,
};

impl Emitter<'_> {
    pub(super) fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    pub(super) fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Loop(nest) => self.nest(nest),
            Statement::Let { register, operation } => self.assignment(*register, operation),
            Statement::Load { register, tensor, index } => {
                if self.live.registers.contains(*register) {
                    self.before(Pending { loads: true, ..Pending::default() });
                    let value = match &self.in_hand {
                        Some(in_hand) if in_hand.tensor == *tensor => in_hand.one.clone(),
                        Some(_) | None => {
                            widened(self.kernel.tensors[*tensor].element, &self.element(*tensor, index))
                        }
                    };
                    self.define(*register, &value);
                }
            }
            Statement::Store { tensor, index, value } => self.store(*tensor, index, *value),
            Statement::Accumulate { tensor, index, combination, value } => {
                self.accumulate(*tensor, index, *combination, *value);
            }
            Statement::Start(accumulator) => self.start(*accumulator, None),
            Statement::Combine { accumulator, value } => {
                if self.live.accumulators.contains(*accumulator) {
                    let combined = self.combined(*accumulator, *value);
                    self.effect(None, &combined);
                }
            }
            Statement::Total { register, accumulator } => self.total(*register, *accumulator),
        }
    }

    fn assignment(&mut self, register: Register, operation: &Operation) {
        if !self.live.registers.contains(register) {
            return;
        }
        match operation {
            Operation::Constant(constant) => self.constants[register] = Some(*constant),
            Operation::Unary(..)
            | Operation::Binary(..)
            | Operation::MultiplyAdd { .. }
            | Operation::Compare(..)
            | Operation::Select { .. }
            | Operation::Cast(..)
            | Operation::Coordinate(_)
            | Operation::Random { .. } => {
                let value = self.expression(operation);
                self.define(register, &value);
            }
        }
    }

    /// A new variable for a register.
    pub(super) fn define(&mut self, register: Register, value: &str) {
        let kind = scalar_name(self.kernel.registers[register]);
        let line = format!("const {kind} {} = {value};", self.names.register(register));
        self.text.line_at(self.origins[register].as_ref(), line);
    }

    fn store(&mut self, tensor: TensorId, index: &Index, value: Register) {
        self.before(Pending { row_stores: true, ..Pending::default() });
        let target = self.element(tensor, index);
        let value_text = narrowed(self.kernel.tensors[tensor].element, &self.operand(value));
        self.effect(Some(value), &format!("{target} = {value_text};"));
    }

    fn accumulate(&mut self, tensor: TensorId, index: &Index, combination: Combination, value: Register) {
        self.before(Pending { row_stores: true, ..Pending::default() });
        let element = self.kernel.tensors[tensor].element;
        let target = self.element(tensor, index);
        let present = widened(element, &target);
        let combined = format!("{}::of({}, {present})", combination_name(combination), self.operand(value));
        self.effect(Some(value), &format!("{target} = {};", narrowed(element, &combined)));
    }

    /// Something that must happen once: in a unit the first thread does it.
    fn effect(&mut self, origin: Option<Register>, line: &str) {
        let origin = origin.and_then(|register| self.origins[register].as_ref());
        if self.is_private {
            self.text.line_at(origin, line);
        } else {
            self.text.open("if (lane == 0) {");
            self.text.line_at(origin, line);
            self.text.close();
        }
    }

    /// Declares an accumulator, or one for each of so many columns.
    pub(super) fn start(&mut self, accumulator: AccumulatorId, columns: Option<u64>) {
        if self.live.accumulators.contains(accumulator) {
            let description = self.kernel.accumulators[accumulator];
            let kind = scalar_name(description.scalar);
            let identity = identity(description.combination, description.scalar);
            let name = self.names.accumulator(accumulator);
            let line = match columns {
                None => format!("{kind} {name} = {identity};"),
                Some(columns) => {
                    let identities = vec![identity.as_str(); columns as usize].join(", ");
                    format!("{kind} {name}[{columns}] = {{{identities}}};")
                }
            };
            self.text.line(line);
            if !self.is_private {
                self.shared.insert(accumulator);
            }
        }
    }

    pub(super) fn combined(&self, accumulator: AccumulatorId, value: Register) -> String {
        let name = self.accumulator_text(accumulator);
        let combination = combination_name(self.kernel.accumulators[accumulator].combination);
        format!("{name} = {combination}::of({}, {name});", self.operand(value))
    }

    /// The variable of an accumulator, of the column at hand where a thread has several.
    fn accumulator_text(&self, accumulator: AccumulatorId) -> String {
        let name = self.names.accumulator(accumulator);
        self.column.as_ref().map_or_else(|| name.to_owned(), |column| format!("{name}[{column}]"))
    }

    fn total(&mut self, register: Register, accumulator: AccumulatorId) {
        if !self.live.registers.contains(register) {
            return;
        }
        let name = self.accumulator_text(accumulator);
        let combination = combination_name(self.kernel.accumulators[accumulator].combination);
        let value = match self.worker {
            _ if !self.shared.contains(accumulator) => name,
            Worker::Thread | Worker::Columns => name,
            Worker::Warp => format!("dtl::warp_total<{combination}>({name})"),
            Worker::Block => {
                self.pending = Pending::default();
                format!("dtl::block_total<{combination}, {}>({name})", BLOCK / WARP)
            }
        };
        self.define(register, &value);
    }

    fn nest(&mut self, nest: &Loop) {
        if !self.has_effects(nest) {
            return;
        }
        let axis = &self.kernel.axes[nest.axis];
        match (self.is_private, axis.kind) {
            (true, _) => {
                self.open_loop(nest, "0", "1");
                self.statements(&nest.body);
                self.text.close();
            }
            (false, AxisKind::Serial) => {
                // The next iteration meets what this one has done.
                let accesses = accesses(nest);
                if accesses.stores {
                    self.pending = Pending { loads: true, stores: true, row_stores: true };
                }
                self.open_loop(nest, "0", "1");
                self.statements(&nest.body);
                self.text.close();
            }
            (false, AxisKind::Vector) => self.distributed(nest),
        }
    }

    /// A vector loop whose iterations the unit's threads take in turn.
    fn distributed(&mut self, nest: &Loop) {
        self.before(accesses(nest));
        self.is_private = true;
        let threads = self.worker.threads();
        match self.chunk(nest, false) {
            Some(chunk) => {
                let width = chunk.width();
                self.open_loop(nest, &format!("lane * {width}"), &format!("{}", threads * width));
                self.chunk_body(nest, &chunk, nest.axis);
            }
            None => {
                self.open_loop(nest, "lane", &format!("{threads}"));
                self.statements(&nest.body);
            }
        }
        self.text.close();
        self.is_private = false;
    }

    /// Whether a loop stores anything or enters an accumulator that is needed.
    pub(super) fn has_effects(&self, nest: &Loop) -> bool {
        let mut found = false;
        each_statement(&nest.body, &mut |statement| {
            found |= match statement {
                Statement::Store { .. } | Statement::Accumulate { .. } => true,
                Statement::Combine { accumulator, .. } => self.live.accumulators.contains(*accumulator),
                Statement::Loop(_)
                | Statement::Let { .. }
                | Statement::Load { .. }
                | Statement::Start(_)
                | Statement::Total { .. } => false,
            };
        });
        found
    }

    pub(super) fn open_loop(&mut self, nest: &Loop, offset: &str, step: &str) {
        let axis = &self.kernel.axes[nest.axis];
        let (name, kind) = (self.names.axis(nest.axis).to_owned(), self.width.name());
        let (start, end) = match axis.span {
            Span::Whole => (String::new(), format!("{}", axis.extent)),
            Span::Tile { outer, size } => {
                let start = format!("{} * {size}", self.axis_text(outer));
                let end = match axis.extent.is_multiple_of(size) {
                    true => format!("{start} + {size}"),
                    false => format!("dtl::least<{kind}>({start} + {size}, {})", axis.extent),
                };
                (start, end)
            }
        };
        let start = match (start.as_str(), offset) {
            ("", offset) => offset.to_owned(),
            (start, "0") => start.to_owned(),
            (start, offset) => format!("{start} + {offset}"),
        };
        let next = if step == "1" { format!("++{name}") } else { format!("{name} += {step}") };
        self.text.open(format!("for ({kind} {name} = {start}; {name} < {end}; {next}) {{"));
    }

    /// Waits for the unit's other threads where `next` could meet what they do, and notes `next`.
    fn before(&mut self, next: Pending) {
        if self.is_private {
            return;
        }
        let Pending { loads, stores, row_stores } = self.pending;
        let meets = (next.loads && (stores || row_stores))
            || (next.stores && (loads || stores || row_stores))
            // A thread sees its own stores.
            || (next.row_stores && (loads || stores));
        if meets {
            self.text.line(match self.worker {
                Worker::Block | Worker::Columns => "__syncthreads();",
                Worker::Warp | Worker::Thread => "__syncwarp();",
            });
            self.pending = Pending::default();
        }
        self.pending.loads |= next.loads;
        self.pending.stores |= next.stores;
        self.pending.row_stores |= next.row_stores;
    }
}

/// What a loop does to memory, all of its threads taken together.
fn accesses(nest: &Loop) -> Pending {
    let mut accesses = Pending::default();
    each_statement(&nest.body, &mut |statement| {
        let (loads, stores) = match statement {
            Statement::Load { .. } => (true, false),
            Statement::Store { .. } => (false, true),
            Statement::Accumulate { .. } => (true, true),
            Statement::Loop(_)
            | Statement::Let { .. }
            | Statement::Start(_)
            | Statement::Combine { .. }
            | Statement::Total { .. } => (false, false),
        };
        accesses.loads |= loads;
        accesses.stores |= stores;
    });
    accesses
}
