//! The machine form of a register: one vector of four lanes for each vector of the chunk that runs.

use cranelift_codegen::ir::{Type, Value, types};
use smallvec::SmallVec;

use crate::kir::ScalarType;

/// Lanes of a vector.
pub(super) const LANES: usize = 4;
/// Vectors of the widest chunk.
pub(super) const MOST_VECTORS: usize = 4;

/// Vectors that hold a register. Floats are `f32x4`, integers `i32x4`, bools `i32x4` of zeros or ones.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// One vector, or one for each vector of the chunk.
    pub values: SmallVec<[Value; MOST_VECTORS]>,
    /// All lanes of the one vector are equal, whatever the iteration of the vector loop.
    pub is_uniform: bool,
}

impl Group {
    /// The same in every lane.
    pub fn uniform(value: Value) -> Self {
        Self { values: SmallVec::from_slice(&[value]), is_uniform: true }
    }

    /// One vector for each of the chunk's.
    pub fn varying(values: SmallVec<[Value; MOST_VECTORS]>) -> Self {
        Self { values, is_uniform: false }
    }

    /// The part of vector `vector`.
    pub fn of(&self, vector: usize) -> Value {
        self.values[if self.is_uniform { 0 } else { vector }]
    }

    /// Applies `function` to each vector.
    pub fn map(&self, function: impl FnMut(Value) -> Value) -> Self {
        Self { values: self.values.iter().copied().map(function).collect(), is_uniform: self.is_uniform }
    }

    /// Applies `function` to the vectors of both, the uniform of them repeated.
    pub fn zip(&self, other: &Self, mut function: impl FnMut(Value, Value) -> Value) -> Self {
        let widest = if self.is_uniform { other } else { self };
        Self {
            values: (0..widest.values.len())
                .map(|vector| function(self.of(vector), other.of(vector)))
                .collect(),
            is_uniform: self.is_uniform && other.is_uniform,
        }
    }

    /// As [`Self::zip`], of three.
    pub fn zip3(
        &self,
        second: &Self,
        third: &Self,
        mut function: impl FnMut(Value, Value, Value) -> Value,
    ) -> Self {
        let all = [self, second, third];
        let widest = all.iter().find(|group| !group.is_uniform);
        Self {
            values: (0..widest.map_or(1, |group| group.values.len()))
                .map(|vector| function(self.of(vector), second.of(vector), third.of(vector)))
                .collect(),
            is_uniform: widest.is_none(),
        }
    }
}

/// The vector type that holds registers of type `scalar`.
pub(super) fn vector_type(scalar: ScalarType) -> Type {
    match scalar {
        ScalarType::F32 => types::F32X4,
        ScalarType::I32 | ScalarType::U32 | ScalarType::Bool => types::I32X4,
    }
}
