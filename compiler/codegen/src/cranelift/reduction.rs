//! Accumulators: one vector for each place that a chunk's values go to, combined in a fixed order.

use super::emit::Emitter;
use super::group::{Group, LANES, MOST_VECTORS, vector_type};
use crate::kir::{AccumulatorId, Combination, Constant, Loop, Register, ScalarType, Statement};
use crate::math::Lanes;
use cranelift_codegen::ir::types;
use cranelift_frontend::Variable;
use smallvec::SmallVec;

/// The running vectors of an accumulator.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    variables: SmallVec<[Variable; MOST_VECTORS]>,
    kind: SlotKind,
}

/// What the lanes of an accumulator's vectors stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotKind {
    /// All lanes hold the one value: started outside a vector loop and not being combined in one.
    #[default]
    Whole,
    /// Each lane holds a part, started outside the vector loop that runs.
    Partial,
    /// Each lane is an accumulator of its own, started in the vector loop that runs.
    PerIteration,
}

/// Accumulators set aside while a vector loop runs.
pub(super) type SetAside = Vec<(AccumulatorId, Slots)>;

impl Emitter<'_, '_> {
    /// Sets an accumulator to its identity.
    pub(super) fn start(&mut self, accumulator: AccumulatorId) {
        let (kind, count) = match self.vector_axis {
            None => (SlotKind::Whole, 1),
            Some(_) => (SlotKind::PerIteration, self.chunk.vectors),
        };
        self.install(accumulator, kind, count);
    }

    /// Enters a register into an accumulator.
    pub(super) fn combine(&mut self, accumulator: AccumulatorId, register: Register) {
        let kind = self.accumulators[accumulator].kind;
        let mut value = self.group(register);
        if kind == SlotKind::Partial && self.chunk.lanes < LANES {
            value = self.keep_lanes_in_use(accumulator, &value);
        }
        let present = self.present(accumulator);
        let description = self.kernel.accumulators[accumulator];
        let next = self.combination(description.combination, description.scalar, &value, &present);
        for vector in 0..present.values.len() {
            let variable = self.accumulators[accumulator].variables[vector];
            self.builder.def_var(variable, next.of(vector));
        }
    }

    /// The value of an accumulator.
    pub(super) fn total(&mut self, accumulator: AccumulatorId) -> Group {
        self.present(accumulator)
    }

    /// Gives the accumulators that `nest`, a vector loop, combines into but does not start `vectors` partial vectors.
    pub(super) fn split_accumulators(&mut self, nest: &Loop, vectors: usize) -> SetAside {
        let mut found = Vec::new();
        combined_from_outside(&nest.body, &mut Vec::new(), &mut found);
        found
            .into_iter()
            .map(|accumulator| {
                let whole = self.accumulators[accumulator].clone();
                self.install(accumulator, SlotKind::Partial, vectors);
                (accumulator, whole)
            })
            .collect()
    }

    /// Combines the partial vectors into the accumulators that were set aside.
    pub(super) fn join_accumulators(&mut self, set_aside: SetAside) {
        for (accumulator, whole) in set_aside {
            let parts = std::mem::replace(&mut self.accumulators[accumulator], whole);
            let parts = parts.variables.iter().map(|&part| Group::uniform(self.builder.use_var(part)));
            let parts: Vec<Group> = parts.collect();
            let total = self.across_lanes(accumulator, parts);
            let present = self.present(accumulator);
            let description = self.kernel.accumulators[accumulator];
            let next = self.combination(description.combination, description.scalar, &total, &present);
            self.builder.def_var(self.accumulators[accumulator].variables[0], next.of(0));
        }
    }

    fn install(&mut self, accumulator: AccumulatorId, kind: SlotKind, count: usize) {
        let scalar = self.kernel.accumulators[accumulator].scalar;
        let identity = self.identity(accumulator).of(0);
        let variables = (0..count).map(|_| {
            let variable = self.builder.declare_var(vector_type(scalar));
            self.builder.def_var(variable, identity);
            variable
        });
        let variables = variables.collect();
        self.accumulators[accumulator] = Slots { variables, kind };
    }

    /// The vectors of an accumulator that belong to the chunk's.
    fn present(&mut self, accumulator: AccumulatorId) -> Group {
        let slots = self.accumulators[accumulator].clone();
        let vectors = match slots.kind {
            SlotKind::Whole => 1,
            SlotKind::Partial | SlotKind::PerIteration => self.chunk.vectors,
        };
        Group {
            values: slots.variables[..vectors]
                .iter()
                .map(|&variable| self.builder.use_var(variable))
                .collect(),
            is_uniform: slots.kind == SlotKind::Whole,
        }
    }

    /// All lanes of all vectors combined, in every lane: neighbouring vectors first, then lanes two apart, then one.
    fn across_lanes(&mut self, accumulator: AccumulatorId, mut parts: Vec<Group>) -> Group {
        let description = self.kernel.accumulators[accumulator];
        while parts.len() > 1 {
            parts = parts
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => {
                        self.combination(description.combination, description.scalar, left, right)
                    }
                    single => single[0].clone(),
                })
                .collect();
        }
        let mut total = parts.swap_remove(0);
        for lanes in [[2, 3, 0, 1], [1, 0, 3, 2]] {
            let swapped = total.map(|value| self.shuffle_words(value, value, lanes));
            total = self.combination(description.combination, description.scalar, &total, &swapped);
        }
        total
    }

    /// `value` with the identity in the lanes that the chunk does not use.
    fn keep_lanes_in_use(&mut self, accumulator: AccumulatorId, value: &Group) -> Group {
        let in_use: [u32; LANES] =
            std::array::from_fn(|lane| if lane < self.chunk.lanes { u32::MAX } else { 0 });
        let mask = Group::uniform(self.vector_constant(types::I32X4, in_use));
        let identity = self.identity(accumulator);
        match self.kernel.accumulators[accumulator].scalar {
            ScalarType::F32 => self.select(&mask, value, &identity),
            ScalarType::I32 | ScalarType::U32 | ScalarType::Bool => self.bits_select(&mask, value, &identity),
        }
    }

    fn identity(&mut self, accumulator: AccumulatorId) -> Group {
        let description = self.kernel.accumulators[accumulator];
        self.constant(identity(description.combination, description.scalar))
    }
}

/// The value that changes nothing when it is combined.
fn identity(combination: Combination, scalar: ScalarType) -> Constant {
    match (scalar, combination) {
        (ScalarType::F32, Combination::Sum) => Constant::f32(0.0),
        (ScalarType::F32, Combination::Maximum) => Constant::f32(f32::NEG_INFINITY),
        (ScalarType::F32, Combination::Minimum) => Constant::f32(f32::INFINITY),
        (ScalarType::I32, Combination::Maximum) => Constant::I32(i32::MIN),
        (ScalarType::I32, Combination::Minimum) => Constant::I32(i32::MAX),
        (ScalarType::U32 | ScalarType::Bool, Combination::Minimum) => Constant::U32(u32::MAX),
        (ScalarType::I32 | ScalarType::U32 | ScalarType::Bool, Combination::Sum)
        | (ScalarType::U32 | ScalarType::Bool, Combination::Maximum) => Constant::U32(0),
    }
}

fn combined_from_outside(
    statements: &[Statement],
    started: &mut Vec<AccumulatorId>,
    found: &mut Vec<AccumulatorId>,
) {
    for statement in statements {
        match statement {
            Statement::Loop(nest) => combined_from_outside(&nest.body, started, found),
            Statement::Start(accumulator) => started.push(*accumulator),
            Statement::Combine { accumulator, .. } => {
                if !started.contains(accumulator) && !found.contains(accumulator) {
                    found.push(*accumulator);
                }
            }
            Statement::Let { .. }
            | Statement::Load { .. }
            | Statement::Store { .. }
            | Statement::Accumulate { .. }
            | Statement::Total { .. } => {}
        }
    }
}
