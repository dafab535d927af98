//! Value types: an element type, named dimensions, and where each of them lives.

use crate::dim::{Axis, Dim};
use crate::program::Program;
use smallvec::SmallVec;

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32. All arithmetic on floats happens in it.
    F32,
    /// bfloat16: a storage and operand type, accumulated in f32.
    Bf16,
    /// IEEE binary16: likewise.
    F16,
    /// Signed 32-bit integers.
    I32,
    /// Unsigned 32-bit integers.
    U32,
    /// Truth values, one byte each.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 6] = [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::U32, DType::Bool];

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::Bool => 1,
        }
    }

    /// The name in source and IR text.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::Bool => "bool",
        }
    }

    /// How many digits floats of this type have, if it is one.
    pub fn float_format(self) -> Option<FloatFormat> {
        let (fraction_bits, least_exponent, largest) = match self {
            DType::F32 => (23, -126, f64::from(f32::MAX)),
            DType::Bf16 => (7, -126, f64::from(f32::from_bits(0x7f7f_0000))),
            DType::F16 => (10, -14, 65_504.0),
            DType::I32 | DType::U32 | DType::Bool => return None,
        };
        Some(FloatFormat { fraction_bits, least_exponent, largest })
    }

    /// Whether it is a float of 16 bits: stored and multiplied so, computed with and summed in f32.
    pub fn is_half(self) -> bool {
        match self {
            DType::Bf16 | DType::F16 => true,
            DType::F32 | DType::I32 | DType::U32 | DType::Bool => false,
        }
    }

    /// Whether gradients can flow through values of this type.
    pub fn is_float(self) -> bool {
        match self {
            DType::F32 | DType::Bf16 | DType::F16 => true,
            DType::I32 | DType::U32 | DType::Bool => false,
        }
    }
}

/// The floats of a type: those of `fraction_bits` behind the first digit, subnormal below `2^least_exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloatFormat {
    /// Bits behind the leading one.
    pub fraction_bits: i32,
    /// The exponent of the least normal number.
    pub least_exponent: i32,
    /// The largest finite number.
    pub largest: f64,
}

/// How several numbers become one, within a tensor or across ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceOp {
    /// Sum, accumulated in f32.
    Sum,
    /// Maximum; NaN wins.
    Max,
}

impl ReduceOp {
    /// The name in source and IR text.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "max",
        }
    }
}

/// One dimension split over one mesh axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    /// The dimension that is split.
    pub dim: Dim,
    /// The axis that its parts lie along, contiguous and in order.
    pub axis: Axis,
}

/// A value each rank along `axis` holds only a part of: the whole is `op` over the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partial {
    /// The axis to combine over.
    pub axis: Axis,
    /// How to combine.
    pub op: ReduceOp,
}

/// Where a value lives: per mesh axis replicated (not mentioned), sharded, or partial.
///
/// Kept canonical, so that equal placements compare equal: shards are grouped by dimension in id
/// order, and within one dimension stand major to minor; partials are in axis order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Placement {
    shards: SmallVec<[Shard; 4]>,
    partials: SmallVec<[Partial; 2]>,
}

impl Placement {
    /// Replicated everywhere.
    pub fn replicated() -> Placement {
        Placement::default()
    }

    /// The shards, grouped by dimension, major axis first within one.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The axes along which this value is still a partial result.
    pub fn partials(&self) -> &[Partial] {
        &self.partials
    }

    /// Splits `dim` further, over `axis`, as the minor-most split of that dimension.
    pub fn add_shard(&mut self, dim: Dim, axis: Axis) {
        let at = self.shards.partition_point(|shard| shard.dim <= dim);
        self.shards.insert(at, Shard { dim, axis });
    }

    /// Marks the value partial along `axis`.
    pub fn add_partial(&mut self, axis: Axis, op: ReduceOp) {
        let at = self.partials.partition_point(|partial| partial.axis < axis);
        self.partials.insert(at, Partial { axis, op });
    }

    /// Forgets whatever this placement says of `axis`.
    pub fn remove_axis(&mut self, axis: Axis) {
        self.shards.retain(|shard| shard.axis != axis);
        self.partials.retain(|partial| partial.axis != axis);
    }

    /// The axes that split `dim`, major first.
    pub fn axes_of(&self, dim: Dim) -> impl Iterator<Item = Axis> + '_ {
        self.shards.iter().filter(move |shard| shard.dim == dim).map(|shard| shard.axis)
    }

    /// The dimension that `axis` splits, if any.
    pub fn dim_on(&self, axis: Axis) -> Option<Dim> {
        self.shards.iter().find(|shard| shard.axis == axis).map(|shard| shard.dim)
    }

    /// The reduction still owed along `axis`, if any.
    pub fn partial_on(&self, axis: Axis) -> Option<ReduceOp> {
        self.partials.iter().find(|partial| partial.axis == axis).map(|partial| partial.op)
    }

    /// Whether every rank holds the whole value.
    pub fn is_replicated(&self) -> bool {
        self.shards.is_empty() && self.partials.is_empty()
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, each at most once. Their order is the row-major order in memory.
    pub dims: SmallVec<[Dim; 6]>,
    /// Where it lives; replicated before the `sharded` stage.
    pub placement: Placement,
}

impl Type {
    /// A replicated type.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Type {
        Type { dtype, dims: dims.into_iter().collect(), placement: Placement::replicated() }
    }

    /// A type without dimensions.
    pub fn scalar(dtype: DType) -> Type {
        Type::new(dtype, [])
    }

    /// The same elements placed elsewhere.
    pub fn with_placement(&self, placement: Placement) -> Type {
        Type { placement, ..self.clone() }
    }

    /// The position of `dim`, if the type has it.
    pub fn position(&self, dim: Dim) -> Option<usize> {
        self.dims.iter().position(|&other| other == dim)
    }

    /// Whether the type has `dim`.
    pub fn has(&self, dim: Dim) -> bool {
        self.dims.contains(&dim)
    }

    /// Elements of the unsharded value; `u64::MAX` if there are more.
    pub fn elements(&self, program: &Program) -> u64 {
        self.dims.iter().fold(1, |elements, &dim| elements.saturating_mul(program.dims[dim].size))
    }

    /// Elements that each rank holds, pads included.
    pub fn local_elements(&self, program: &Program) -> u64 {
        self.dims.iter().fold(1, |elements, &dim| elements.saturating_mul(self.local_size(program, dim)))
    }

    /// Bytes that each rank holds, pads included.
    pub fn local_bytes(&self, program: &Program) -> u64 {
        self.local_elements(program).saturating_mul(self.dtype.bytes())
    }

    /// How much of `dim` each rank holds: its size over the product of its axes, rounded up.
    pub fn local_size(&self, program: &Program, dim: Dim) -> u64 {
        let ways = program.mesh.group_size(self.placement.axes_of(dim));
        program.dims[dim].size.div_ceil(ways)
    }
}
