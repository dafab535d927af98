//! f32 matrix product of strided operands with packing memory given by the caller.
//!
//! The loop structure is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
//! (2008): panels of both operands are packed (halves widened, factors rounded that a product reads as tf32) into scratch, then register tiles are
//! computed by the microkernels of `gemm-f32`, or by our own where both operands are bf16 and the processor multiplies
//! such pairs. That crate's own driver allocates in each call, which a training step must not.
//!
//! Each output is one chain of fused multiply-adds per block of the contraction, in order; blocks are cut by
//! the total contraction extent alone. So an output's bits do not depend on which tile it falls in.

pub(crate) mod blocking;
mod microkernel;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod transpose;

use std::ops::Range;

use microkernel::Microkernels;

use crate::{
    isa::Isa,
    signature::{Accumulation, ContractionLoop, Element, Factors},
};

/// One operand of [`gemm`]: `data[index * stride + position along the contraction]`.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub data: *const u8,
    pub element: Element,
    /// Elements between successive lanes (left operand) or columns (right operand).
    pub stride: isize,
    /// Which strides of the contraction loops are this operand's.
    pub side: Side,
    /// What is multiplied of its elements.
    pub factors: Factors,
}

impl Operand {
    /// Whether its numbers are multiplied rounded to tf32.
    fn is_rounded(&self) -> bool {
        self.factors == Factors::Tf32 && self.element == Element::F32
    }

    /// Whether microkernels can read numbers where they lie.
    fn is_as_multiplied(&self) -> bool {
        self.factors == Factors::AsStored && self.element == Element::F32
    }
}

/// Which strides of a [`ContractionLoop`] belong to an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) fn stride(self, contraction: &ContractionLoop) -> isize {
        match self {
            Side::A => contraction.stride_a,
            Side::B => contraction.stride_b,
        }
    }
}

/// `output[i, j] (+)= scale * sum over p of left[i, p] * right[p, j]` with `i` along vector lanes.
pub(crate) struct Product<'a> {
    pub lanes: usize,
    pub columns: usize,
    pub contraction: &'a [ContractionLoop],
    pub left: Operand,
    pub right: Operand,
    pub output: Output,
    pub accumulation: Accumulation,
    pub scale: f32,
}

/// Computes one product.
///
/// # Safety
/// `isa` must be available; the operands must be readable and the output writable at every index; `scratch`
/// must be aligned and hold [`blocking::scratch_bytes`] for the product's sizes; nothing else may access
/// output or scratch meanwhile.
pub(crate) unsafe fn gemm(isa: Isa, product: &Product<'_>, scratch: *mut u8) {
    let k: usize = product.contraction.iter().map(|contraction| contraction.extent).product();
    if k == 0 {
        // SAFETY: the caller's promise.
        return unsafe { clear(product) };
    }
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512Bf16
        && [&product.left, &product.right].iter().all(|side| side.element == Element::Bf16)
    {
        // SAFETY: the caller's promise.
        return unsafe { pairs::gemm(product, k, scratch) };
    }
    let depth = blocking::depth(k);
    let packed_left = scratch.cast::<f32>();
    let packed_right = scratch.wrapping_add(blocking::left_bytes(product.lanes, k)).cast::<f32>();
    for_each_block(
        product,
        k,
        depth,
        // SAFETY: all pointers stay inside what the caller vouches for, since blocks do, and the packed panels fit the
        // scratch sizes that `blocking` states for these extents.
        |span, columns| unsafe { block_of_right(isa, product, span, columns, packed_right) },
        // SAFETY: likewise.
        |right, place| unsafe {
            let left = block_of_left(isa, product, place.span.clone(), place.lanes.clone(), packed_left);
            let block = Block {
                lanes: place.lanes.len(),
                columns: place.columns.len(),
                depth: place.span.len(),
                left,
                right: *right,
                output: product.output.shifted(place.lanes.start, place.columns.start),
                accumulation: place.accumulation,
                scale: product.scale,
            };
            multiply(isa, &block);
        },
    );
}

/// Where a block lies in a product.
struct Place {
    lanes: Range<usize>,
    columns: Range<usize>,
    /// Contraction steps.
    span: Range<usize>,
    accumulation: Accumulation,
}

/// Cuts a product into blocks, which cover all lanes, columns and steps once: `right` makes a right operand ready for the
/// blocks that share it, `block` computes one.
fn for_each_block<Right>(
    product: &Product<'_>,
    k: usize,
    depth: usize,
    mut right: impl FnMut(Range<usize>, Range<usize>) -> Right,
    mut block: impl FnMut(&Right, &Place),
) {
    let cut = |start: usize, end: usize, length: usize| start..end.min(start + length);
    for column in (0..product.columns).step_by(blocking::COLUMNS) {
        let columns = cut(column, product.columns, blocking::COLUMNS);
        for start in (0..k).step_by(depth) {
            let span = cut(start, k, depth);
            let accumulation = if start == 0 { product.accumulation } else { Accumulation::Add };
            let shared = right(span.clone(), columns.clone());
            for lane in (0..product.lanes).step_by(blocking::LANES) {
                let lanes = cut(lane, product.lanes, blocking::LANES);
                let (columns, span) = (columns.clone(), span.clone());
                block(&shared, &Place { lanes, columns, span, accumulation });
            }
        }
    }
}

/// The left operand's block: where it lies if the microkernel can read it there at full speed, else packed.
///
/// # Safety
/// As [`gemm`].
unsafe fn block_of_left(
    isa: Isa,
    product: &Product<'_>,
    span: Range<usize>,
    lanes: Range<usize>,
    packed: *mut f32,
) -> Left {
    let operand = &product.left;
    let width = Microkernels::of(isa).lanes();
    if let ([contraction], true, 1) = (product.contraction, operand.is_as_multiplied(), operand.stride)
        // Many columns pay for packing: panels are read in order, and in place they are not.
        && product.columns < blocking::COLUMNS
        && blocking::stays_in_cache(operand.side.stride(contraction), span.len())
        // A microkernel reads whole vectors.
        && lanes.len().is_multiple_of(Microkernels::of(isa).vector())
    {
        let step_stride = operand.side.stride(contraction);
        let at = lanes.start as isize + span.start as isize * step_stride;
        let data = operand.data.cast::<f32>().wrapping_offset(at);
        return Left { data, step_stride, panel_stride: width };
    }
    // SAFETY: the caller's promise.
    unsafe { pack_left(isa, operand, product.contraction, span, lanes, packed) }
}

/// The right operand's block: where it lies if the microkernel can read it there at full speed, else packed.
///
/// # Safety
/// As [`gemm`].
unsafe fn block_of_right(
    isa: Isa,
    product: &Product<'_>,
    span: Range<usize>,
    columns: Range<usize>,
    packed: *mut f32,
) -> Right {
    let operand = &product.right;
    if let ([contraction], true) = (product.contraction, operand.is_as_multiplied())
        && operand.side.stride(contraction) == 1
    {
        let at = columns.start as isize * operand.stride + span.start as isize;
        return Right::in_place(operand.data.cast::<f32>().wrapping_offset(at), 1, operand.stride);
    }
    // SAFETY: the caller's promise.
    unsafe { pack_right(isa, operand, product.contraction, span, columns, packed) }
}

/// Packs lanes of a left operand over the contraction steps `span`. Needs `span.len()` floats for each lane,
/// lanes rounded up to 64.
///
/// # Safety
/// `isa` must be available, the operand readable at these indices, and the destination writable.
pub(crate) unsafe fn pack_left(
    isa: Isa,
    operand: &Operand,
    contraction: &[ContractionLoop],
    span: Range<usize>,
    lanes: Range<usize>,
    destination: *mut f32,
) -> Left {
    let width = Microkernels::of(isa).lanes();
    let panels = pack::Panels { first: lanes.start, count: lanes.len(), width };
    let left = Left::packed(isa, destination, span.len());
    // SAFETY: the caller's promise.
    unsafe { pack::pack(isa, operand, contraction, span, panels, destination) };
    left
}

/// A left operand that the microkernel reads, lanes of a step side by side: packed, or f32 in place.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    data: *const f32,
    /// Elements from a step to the next.
    step_stride: isize,
    /// Elements from a panel to the next.
    panel_stride: usize,
}

impl Left {
    /// What [`pack_left`] made of `depth` steps.
    pub(crate) fn packed(isa: Isa, data: *const f32, depth: usize) -> Left {
        let width = Microkernels::of(isa).lanes();
        Left { data, step_stride: width as isize, panel_stride: width * depth }
    }
}

/// Packs columns of a right operand over the contraction steps `span`. Needs `span.len()` floats for each
/// column, columns rounded up to 12.
///
/// # Safety
/// As [`pack_left`].
pub(crate) unsafe fn pack_right(
    isa: Isa,
    operand: &Operand,
    contraction: &[ContractionLoop],
    span: Range<usize>,
    columns: Range<usize>,
    destination: *mut f32,
) -> Right {
    let width = Microkernels::of(isa).columns;
    let panels = pack::Panels { first: columns.start, count: columns.len(), width };
    let length = span.len();
    // SAFETY: the caller's promise.
    unsafe { pack::pack(isa, operand, contraction, span, panels, destination) };
    Right { data: destination, step_stride: width as isize, column_stride: 1, tile_stride: length as isize }
}

/// A right operand that the microkernel reads: packed, or f32 in place.
#[derive(Clone, Copy)]
pub(crate) struct Right {
    data: *const f32,
    step_stride: isize,
    column_stride: isize,
    /// Elements from a tile's first column to the next tile's, for each column of the tile.
    tile_stride: isize,
}

impl Right {
    /// A right operand in place.
    pub(crate) fn in_place(data: *const f32, step_stride: isize, column_stride: isize) -> Right {
        Right { data, step_stride, column_stride, tile_stride: column_stride }
    }
}

/// An f32 matrix that is written.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub data: *mut f32,
    /// Elements between lanes; stores are vectors only if it is 1.
    pub lane_stride: isize,
    /// Elements between columns.
    pub column_stride: isize,
}

impl Output {
    /// The output from a lane and a column on.
    pub(crate) fn shifted(self, lane: usize, column: usize) -> Output {
        let at = lane as isize * self.lane_stride + column as isize * self.column_stride;
        Output { data: self.data.wrapping_offset(at), ..self }
    }
}

/// A product whose left operand is packed, summed in one chain of `depth` steps.
pub(crate) struct Block {
    pub lanes: usize,
    pub columns: usize,
    pub depth: usize,
    pub left: Left,
    pub right: Right,
    pub output: Output,
    pub accumulation: Accumulation,
    pub scale: f32,
}

/// Runs the microkernel over every register tile of the block. A right panel stays in the first-level cache
/// while the left panels pass by it.
///
/// # Safety
/// `isa` must be available, the operands readable (the left one packed by [`pack_left`] for the same `isa`)
/// and the output writable at every index.
pub(crate) unsafe fn multiply(isa: Isa, block: &Block) {
    let kernels = Microkernels::of(isa);
    for column in (0..block.columns).step_by(kernels.columns) {
        let right = block.right.data.wrapping_offset(column as isize * block.right.tile_stride);
        for lane in (0..block.lanes).step_by(kernels.lanes()) {
            let tile = microkernel::Tile {
                lanes: kernels.lanes().min(block.lanes - lane),
                columns: kernels.columns.min(block.columns - column),
                depth: block.depth,
                left: block.left.data.wrapping_add(lane / kernels.lanes() * block.left.panel_stride),
                left_step_stride: block.left.step_stride,
                right,
                right_step_stride: block.right.step_stride,
                right_column_stride: block.right.column_stride,
                output: block.output.shifted(lane, column),
                accumulation: block.accumulation,
                scale: block.scale,
            };
            // SAFETY: the tile lies inside the block.
            unsafe { kernels.run(&tile) };
        }
    }
}

/// The empty sum.
///
/// # Safety
/// The output must be writable.
unsafe fn clear(product: &Product<'_>) {
    match product.accumulation {
        Accumulation::Add => {}
        Accumulation::Overwrite => {
            for lane in 0..product.lanes {
                for column in 0..product.columns {
                    // SAFETY: the index is inside the output.
                    unsafe { *product.output.shifted(lane, column).data = 0.0 };
                }
            }
        }
    }
}
