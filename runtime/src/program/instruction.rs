//! The instructions of a program: what a rank does in a step, in order.
//!
//! Every size is static. Addresses and integers are affine in mesh coordinates and loop indices,
//! so one list serves every rank and every iteration.

use dtlc_kernels::signature::{AttentionBackwardSpec, AttentionSpec, MatmulSpec, ScatterAddSpec, TakeSpec};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::slice;

use super::{AxisId, DType, FlightId, KernelId, LocationId};

/// Loops may be nested this deep.
pub const LOOP_DEPTH_LIMIT: usize = 8;

/// A part of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Space {
    /// What lives from step to step.
    State,
    /// What lives within a step.
    Arena,
    /// What the caller gives.
    Input,
}

/// A number that is known only at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Variable {
    /// The rank's coordinate along an axis.
    MeshCoordinate(AxisId),
    /// The index of an enclosing loop; depth 0 is the outermost.
    LoopIndex(u32),
    /// The number of the step, from 1.
    Step,
    /// The lower 32 bits of the seed.
    SeedLow,
    /// The upper 32 bits of the seed.
    SeedHigh,
}

/// One term of an [`Affine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffineTerm {
    /// The variable.
    pub variable: Variable,
    /// What it is multiplied by.
    pub coefficient: i64,
}

/// A sum of a constant and multiples of variables; wraps in 64 bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affine {
    /// The constant.
    pub constant: i64,
    /// The terms.
    pub terms: Vec<AffineTerm>,
}

impl Affine {
    /// A constant.
    #[must_use]
    pub fn constant(constant: i64) -> Self {
        Self { constant, terms: Vec::new() }
    }

    /// The same plus `coefficient * variable`.
    #[must_use]
    pub fn plus(mut self, variable: Variable, coefficient: i64) -> Self {
        self.terms.push(AffineTerm { variable, coefficient });
        self
    }
}

/// One term of a [`BufferRef`]'s address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferTerm {
    /// A mesh coordinate or a loop index; no other variable may move an address.
    pub variable: Variable,
    /// Bytes for each unit of it.
    pub stride: u64,
}

/// A piece of a rank's memory: `bytes` bytes from `offset + Σ variable * stride`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferRef {
    /// The space it lies in.
    pub space: Space,
    /// Byte offset in that space where all variables are 0.
    pub offset: u64,
    /// What moves it.
    pub terms: Vec<BufferTerm>,
    /// Bytes from its address to the end of what the instruction touches.
    pub bytes: u64,
}

impl BufferRef {
    /// A piece that doesn't move.
    #[must_use]
    pub fn new(space: Space, offset: u64, bytes: u64) -> Self {
        Self { space, offset, terms: Vec::new(), bytes }
    }

    /// The same, moved by `stride` bytes for each unit of `variable`.
    #[must_use]
    pub fn moved(mut self, variable: Variable, stride: u64) -> Self {
        self.terms.push(BufferTerm { variable, stride });
        self
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instruction {
    /// The source line that a fault names.
    pub location: LocationId,
    /// What to do.
    pub operation: Operation,
}

impl Instruction {
    /// A product and what goes on with its result, as instructions of their own, where one is both; else the instruction itself.
    #[must_use]
    pub fn apart(&self) -> Cow<'_, [Instruction]> {
        let Operation::Matmul { spec, a, b, c, epilogue: Some(epilogue) } = &self.operation else {
            return Cow::Borrowed(slice::from_ref(self));
        };
        let [a, b, c] = [a, b, c].map(BufferRef::clone);
        let product = Operation::Matmul { spec: spec.clone(), a, b, c, epilogue: None };
        let rest = Operation::Kernel(epilogue.call.clone());
        Cow::Owned(vec![
            Instruction { location: self.location, operation: product },
            Instruction { location: epilogue.location, operation: rest },
        ])
    }
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// Runs a body several times.
    Loop(Loop),
    /// Calls a generated kernel.
    Kernel(KernelCall),
    /// A matrix product. Its scratch is the thread's.
    Matmul {
        /// Sizes, strides and types.
        spec: MatmulSpec,
        /// Left operand.
        a: BufferRef,
        /// Right operand.
        b: BufferRef,
        /// Result.
        c: BufferRef,
        /// What goes on with the result, if something does.
        epilogue: Option<Box<Epilogue>>,
    },
    /// Flash attention. Its scratch is the thread's.
    Attention(Box<AttentionCall>),
    /// The gradient of flash attention. Its scratch is the thread's.
    AttentionBackward(Box<AttentionBackwardCall>),
    /// Rows of a table by id; zeros for an id outside the table's shard.
    Take {
        /// Sizes and types.
        spec: TakeSpec,
        /// The local rows of the table.
        table: BufferRef,
        /// The ids, `I32` or `U32`.
        ids: BufferRef,
        /// A row for each id.
        output: BufferRef,
        /// The id of the first local row.
        offset: Affine,
    },
    /// The transpose of `Take`: adds rows to those that ids name. Its scratch is the thread's.
    ScatterAdd {
        /// Sizes and types.
        spec: ScatterAddSpec,
        /// A row for each id.
        source: BufferRef,
        /// The ids, `I32` or `U32`.
        ids: BufferRef,
        /// The local rows of the table.
        output: BufferRef,
        /// The id of the first local row.
        offset: Affine,
    },
    /// Moves rows of bytes within the rank. Source and target don't overlap.
    Copy {
        /// Where from.
        source: BufferRef,
        /// Where to.
        target: BufferRef,
        /// Number of rows.
        rows: u64,
        /// Bytes of a row.
        row_bytes: u64,
        /// Bytes from one row of the source to the next.
        source_pitch: u64,
        /// Bytes from one row of the target to the next.
        target_pitch: u64,
    },
    /// Sets every element of a buffer to one value.
    Fill {
        /// What to set; `bytes` is a whole number of elements.
        target: BufferRef,
        /// Element type.
        dtype: DType,
        /// The value, rounded to the element type.
        #[serde(with = "super::text::real")]
        value: f64,
    },
    /// Starts to exchange data with other ranks. Until it is done, nothing else writes what it reads, nor reads or
    /// writes what it brings.
    Collective(Collective),
    /// Waits for a collective that an earlier instruction of the same list started.
    Done(FlightId),
}

/// A generated kernel that goes on with each result of a product at its own point. A backend may run it on a result before that is
/// stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// The source line of what it computes.
    pub location: LocationId,
    /// The kernel's call.
    pub call: KernelCall,
    /// Which of the call's pointers is the result.
    pub position: u32,
    /// Whether it is there afterwards.
    pub sums: Sums,
}

/// What becomes of a product's result once a kernel went on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sums {
    /// It stays.
    Kept,
    /// Nobody reads it, and what the kernel stores may lie there.
    Passing,
}

/// Numbers of documents, `U32`, one for each position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentBuffers {
    /// Of queries.
    pub q: BufferRef,
    /// Of keys.
    pub k: BufferRef,
}

impl DocumentBuffers {
    /// In the order in which kernels take them.
    #[must_use]
    pub fn both(&self) -> [&BufferRef; 2] {
        [&self.q, &self.k]
    }
}

/// A call of flash attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionCall {
    /// Sizes, strides and types.
    pub spec: AttentionSpec,
    /// Queries.
    pub q: BufferRef,
    /// Keys.
    pub k: BufferRef,
    /// Values.
    pub v: BufferRef,
    /// Outputs.
    pub o: BufferRef,
    /// Log-sum-exps, `F32`.
    pub lse: BufferRef,
    /// The documents of positions, if the descriptor has them; kernels take them behind all tensors.
    pub documents: Option<DocumentBuffers>,
    /// Global coordinate of the first query.
    pub q_offset: Affine,
    /// Global coordinate of the first key.
    pub k_offset: Affine,
}

impl AttentionCall {
    /// Its tensors but for documents, in the order in which kernels take them.
    #[must_use]
    pub fn tensors(&self) -> [&BufferRef; 5] {
        [&self.q, &self.k, &self.v, &self.o, &self.lse]
    }
}

/// A call of the gradient of flash attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionBackwardCall {
    /// Sizes, strides and types.
    pub spec: AttentionBackwardSpec,
    /// Queries.
    pub q: BufferRef,
    /// Keys.
    pub k: BufferRef,
    /// Values.
    pub v: BufferRef,
    /// Outputs of the forward call.
    pub o: BufferRef,
    /// Log-sum-exps of the forward call, `F32`.
    pub lse: BufferRef,
    /// The documents of positions, if the descriptor has them; kernels take them behind all tensors.
    pub documents: Option<DocumentBuffers>,
    /// Gradient of the outputs.
    pub o_gradient: BufferRef,
    /// Gradient of the queries, replaced.
    pub q_gradient: BufferRef,
    /// Gradient of the keys, replaced.
    pub k_gradient: BufferRef,
    /// Gradient of the values, replaced.
    pub v_gradient: BufferRef,
    /// Global coordinate of the first query.
    pub q_offset: Affine,
    /// Global coordinate of the first key.
    pub k_offset: Affine,
}

impl AttentionBackwardCall {
    /// Its tensors but for documents, in the order in which kernels take them.
    #[must_use]
    pub fn tensors(&self) -> [&BufferRef; 9] {
        let Self { spec: _, q, k, v, o, lse, o_gradient, q_gradient, k_gradient, v_gradient, .. } = self;
        [q, k, v, o, lse, o_gradient, q_gradient, k_gradient, v_gradient]
    }
}

/// The order in which a loop's index runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoopOrder {
    /// 0, 1, …, count − 1.
    Forward,
    /// count − 1, …, 1, 0.
    Reverse,
}

/// A loop over a stack of layers or over micro-batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    /// Number of runs.
    pub count: u32,
    /// Order of the index.
    pub order: LoopOrder,
    /// What it runs.
    #[serde(deserialize_with = "nested_body")]
    pub body: Vec<Instruction>,
}

/// A call of a generated kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCall {
    /// Which one.
    pub kernel: KernelId,
    /// Tensor operands.
    pub pointers: Vec<BufferRef>,
    /// Integer operands.
    pub integers: Vec<Affine>,
    /// Which of the pointers lead to float results, of what type, and the source line of each: what a search for NaN reads.
    pub floats: Vec<(u32, DType, LocationId)>,
}

/// How partial values are combined, always in the order of the ranks in the group. Floating-point
/// sums are accumulated in f32 and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
}

/// What a collective does with the blocks of a [`Transfer`]. `n` is the size of the group, `i` a
/// rank's index in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Target block `j` becomes the only block of rank `j`'s source.
    AllGather,
    /// The only target block becomes the reduction over all ranks' source block `i`.
    ReduceScatter(Reduction),
    /// The only target block becomes the reduction over all ranks' only source block.
    AllReduce(Reduction),
    /// Target block `j` becomes source block `i` of rank `j`.
    AllToAll,
    /// The only target block becomes the only source block of the rank that the permutation says.
    Permute(Permutation),
}

/// For each index in the group, the index that it receives from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permutation {
    /// Source index of each index; each index stands once.
    pub sources: Vec<u32>,
}

/// An exchange between the ranks of a group: those that differ only in their coordinates on `axes`. Those over the
/// same axes share a stream: they are done in the order in which they start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Collective {
    /// What to wait for.
    pub flight: FlightId,
    /// What it does.
    pub kind: CollectiveKind,
    /// The group's axes; a rank's index in it is row-major in this order.
    pub axes: Vec<AxisId>,
    /// The tensors that it moves, in one call.
    pub tensors: Vec<CollectiveTensor>,
}

/// One tensor of a collective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveTensor {
    /// What this rank gives.
    pub source: BufferRef,
    /// Where it receives. It is the source itself (all-reduce only) or doesn't overlap it.
    pub target: BufferRef,
    /// Element type of both. Floating-point reductions are accumulated in f32 and rounded once.
    pub dtype: DType,
    /// The blocks in elements.
    pub transfer: Transfer,
}

/// Steps between pieces of a block and between blocks, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strides {
    /// From one outer piece to the next.
    pub outer: u64,
    /// From one middle piece to the next.
    pub middle: u64,
    /// From one rank's block to the next; 0 where there is one block only.
    pub block: u64,
}

/// A number of pieces or elements that a dimension split into blocks has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// In one block.
    pub block: u64,
    /// In all blocks together: less than the blocks say where pads cut the last ones short.
    pub whole: u64,
}

impl Part {
    /// Of which each of some blocks has all.
    #[must_use]
    pub fn even(block: u64, blocks: u64) -> Self {
        Self { block, whole: block.saturating_mul(blocks) }
    }

    /// What there is in a block.
    #[must_use]
    pub fn in_block(self, number: u64) -> u64 {
        self.whole.saturating_sub(number.saturating_mul(self.block)).min(self.block)
    }
}

/// How blocks lie in source and target: each is `outer × middle` pieces of `inner` contiguous
/// elements, but for those that pads cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Number of outer pieces.
    pub outer: u64,
    /// Number of middle pieces in each.
    pub middle: Part,
    /// Contiguous elements of a piece.
    pub inner: Part,
    /// Which of the two the blocks of the source split; those of the target split the other.
    pub position: Position,
    /// Steps in the source.
    pub source: Strides,
    /// Steps in the target.
    pub target: Strides,
}

/// Where the dimension that an all-to-all splits stands to the one that it gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Position {
    /// The split dimension is the outer one.
    SplitOutside,
    /// The split dimension is the inner one.
    SplitInside,
}

impl Transfer {
    /// Source `[outer, inner.block]`, target `[outer, inner.whole]`: `inner` is the gathered dimension times
    /// all behind it.
    #[must_use]
    pub fn all_gather(outer: u64, inner: Part) -> Self {
        Self::all_to_all(outer, Part::even(1, 1), inner, Position::SplitOutside)
    }

    /// Source `[outer, inner.whole]`, target `[outer, inner.block]`.
    #[must_use]
    pub fn reduce_scatter(outer: u64, inner: Part) -> Self {
        Self::all_to_all(outer, Part::even(1, 1), inner, Position::SplitInside)
    }

    /// Source and target `[elements]`: all-reduce and permute.
    #[must_use]
    pub fn whole(elements: u64) -> Self {
        Self::all_gather(1, Part::even(elements, 1))
    }

    /// All-to-all. With the split dimension outside, source `[outer, middle.whole, inner.block]` becomes
    /// `[outer, middle.block, inner.whole]`: `middle` is the split dimension times what stands between, `inner` the
    /// gathered dimension times all behind it. With the split dimension inside, it is the other way round: source
    /// `[outer, middle.block, inner.whole]`, target `[outer, middle.whole, inner.block]`.
    #[must_use]
    pub fn all_to_all(outer: u64, middle: Part, inner: Part, position: Position) -> Self {
        let strides = |middles: u64, inners: u64, block: u64| Strides {
            outer: middles.saturating_mul(inners),
            middle: inners,
            block,
        };
        let middle_split = strides(middle.whole, inner.block, middle.block.saturating_mul(inner.block));
        let inner_split = strides(middle.block, inner.whole, inner.block);
        let (source, target) = match position {
            Position::SplitOutside => (middle_split, inner_split),
            Position::SplitInside => (inner_split, middle_split),
        };
        Self { outer, middle, inner, position, source, target }
    }

    /// Rows of bytes as one block whose elements are single bytes.
    #[must_use]
    pub fn rows(rows: u64, row_bytes: u64, source_pitch: u64, target_pitch: u64) -> Self {
        let pitch = |pitch: u64| Strides { outer: pitch, middle: 0, block: 0 };
        let row = Self::all_gather(rows, Part::even(row_bytes, 1));
        Self { source: pitch(source_pitch), target: pitch(target_pitch), ..row }
    }

    /// What there is of the block that has these numbers in source and target.
    #[must_use]
    pub fn of_block(self, in_source: u64, in_target: u64) -> Self {
        let (middle, inner) = match self.position {
            Position::SplitOutside => (in_source, in_target),
            Position::SplitInside => (in_target, in_source),
        };
        let (middle, inner) = (self.middle.in_block(middle), self.inner.in_block(inner));
        Self { middle: Part::even(middle, 1), inner: Part::even(inner, 1), ..self }
    }

    /// Elements of one block, pads included; saturates.
    #[must_use]
    pub fn block_elements(&self) -> u64 {
        self.outer.saturating_mul(self.middle.block).saturating_mul(self.inner.block)
    }
}

/// Reads a loop's body and refuses nesting so deep that reading it would exhaust the stack.
fn nested_body<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Instruction>, D::Error> {
    use std::cell::Cell;
    thread_local!(static DEPTH: Cell<usize> = const { Cell::new(0) });
    let depth = DEPTH.get();
    if depth >= LOOP_DEPTH_LIMIT {
        return Err(serde::de::Error::custom("loops are nested too deep"));
    }
    DEPTH.set(depth + 1);
    let body = Vec::deserialize(deserializer);
    DEPTH.set(depth);
    body
}
