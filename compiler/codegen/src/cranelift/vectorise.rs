//! Vector loops: chunks of several vectors, then of one, then what is left.

use super::emit::{Chunk, Emitter, Range};
use super::group::MOST_VECTORS;
use crate::kir::{AccumulatorId, AxisId, Index, Loop, Register, Statement};
use rustc_hash::FxHashSet;

impl<'kernel> Emitter<'kernel, '_> {
    /// Emits a vector loop over `range`.
    pub(super) fn vector_loop(&mut self, nest: &'kernel Loop, range: Range) {
        let vectors = vectors_that_fit(nest);
        let set_aside = self.split_accumulators(nest, vectors);
        self.vector_axis = Some(nest.axis);
        match range.count {
            Some(count) => self.counted(nest, range, vectors, count),
            None => self.uncounted(nest, range, vectors),
        }
        self.vector_axis = None;
        self.chunk = Chunk::SCALAR;
        self.join_accumulators(set_aside);
    }

    fn counted(&mut self, nest: &'kernel Loop, mut range: Range, vectors: usize, count: u64) {
        let mut left = count as usize;
        for vectors in [vectors, 1] {
            self.chunk = Chunk::of_vectors(vectors);
            let width = self.chunk.width();
            if left >= width {
                range.start = self.run(nest, range, width);
                left %= width;
            }
        }
        if left > 0 {
            self.chunk = Chunk { vectors: 1, lanes: left };
            self.iteration(nest, range.start);
        }
    }

    fn uncounted(&mut self, nest: &'kernel Loop, mut range: Range, vectors: usize) {
        let single = Chunk::of_vectors(1);
        let mut chunks = vec![Chunk::of_vectors(vectors), single, Chunk::SCALAR];
        chunks.dedup();
        for chunk in chunks {
            self.chunk = chunk;
            range.start = self.run(nest, range, chunk.width());
        }
    }
}

/// How many vectors run side by side without running out of the 16 registers, by an estimate of how many values a
/// single iteration holds at once.
fn vectors_that_fit(nest: &Loop) -> usize {
    let mut pressure = Pressure {
        axis: nest.axis,
        varying: FxHashSet::default(),
        live: FxHashSet::default(),
        most: 0,
        accumulators: FxHashSet::default(),
    };
    pressure.forwards(&nest.body);
    pressure.backwards(&nest.body);
    match pressure.most + pressure.accumulators.len() {
        0..=4 => MOST_VECTORS,
        5..=8 => 2,
        _ => 1,
    }
}

struct Pressure {
    axis: AxisId,
    /// Registers that differ between iterations; the others are held once or in memory.
    varying: FxHashSet<Register>,
    live: FxHashSet<Register>,
    most: usize,
    accumulators: FxHashSet<AccumulatorId>,
}

impl Pressure {
    fn forwards(&mut self, statements: &[Statement]) {
        for statement in statements {
            match statement {
                Statement::Loop(nest) => self.forwards(&nest.body),
                Statement::Let { register, operation } => {
                    let operands = operation.operands();
                    if operands.iter().any(|operand| self.varying.contains(operand))
                        || operation.indices().iter().any(|index| self.moves(index))
                    {
                        self.varying.insert(*register);
                    }
                }
                Statement::Load { register, index, .. } => {
                    if self.moves(index) {
                        self.varying.insert(*register);
                    }
                }
                Statement::Total { register, .. } => {
                    self.varying.insert(*register);
                }
                Statement::Combine { accumulator, .. } => {
                    self.accumulators.insert(*accumulator);
                }
                Statement::Store { .. } | Statement::Accumulate { .. } | Statement::Start(_) => {}
            }
        }
    }

    fn moves(&self, index: &Index) -> bool {
        index.coefficient(self.axis) != 0 || index.data_registers().any(|data| self.varying.contains(&data))
    }

    fn backwards(&mut self, statements: &[Statement]) {
        for statement in statements.iter().rev() {
            match statement {
                Statement::Loop(nest) => self.backwards(&nest.body),
                Statement::Let { register, operation } => {
                    self.live.remove(register);
                    operation.operands().into_iter().for_each(|operand| self.read(operand));
                }
                Statement::Load { register, index, .. } => {
                    self.live.remove(register);
                    index.data_registers().for_each(|data| self.read(data));
                }
                Statement::Store { value, .. }
                | Statement::Accumulate { value, .. }
                | Statement::Combine { value, .. } => self.read(*value),
                Statement::Total { register, .. } => {
                    self.live.remove(register);
                }
                Statement::Start(_) => {}
            }
            self.most = self.most.max(self.live.len());
        }
    }

    fn read(&mut self, register: Register) {
        if self.varying.contains(&register) {
            self.live.insert(register);
        }
    }
}
