//! f32 matrix product of strided operands with packing memory given by the caller.
//!
//! The loop structure is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008): panels
//! of both operands are packed (and bf16 widened) into scratch, then register tiles are computed by the microkernels of
//! `gemm-f32`. That crate's own driver allocates in each call, which a training step must not.
//!
//! Each output is one chain of fused multiply-adds per block of the contraction, in order; blocks are cut by the total
//! contraction extent alone. So an output's bits do not depend on which tile it falls in.

pub(crate) mod blocking;
mod microkernel;
mod pack;

use crate::{
    isa::Isa,
    signature::{Accumulation, ContractionLoop, Element},
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
    pub output: *mut f32,
    /// Elements between lanes of the output; stores are vectors only if it is 1.
    pub output_lane_stride: isize,
    pub output_column_stride: isize,
    pub accumulation: Accumulation,
    pub scale: f32,
}

/// Computes one product.
///
/// # Safety
/// `isa` must be available; the operands must be readable and the output writable at every index; `scratch` must be aligned
/// and hold [`blocking::scratch_bytes`] for the product's sizes; nothing else may access output or scratch meanwhile.
pub(crate) unsafe fn gemm(isa: Isa, product: &Product<'_>, scratch: *mut u8) {
    let k: usize = product
        .contraction
        .iter()
        .map(|contraction| contraction.extent)
        .product();
    let depth = blocking::depth(k);
    let packed_left = scratch.cast::<f32>();
    let packed_right = scratch
        .wrapping_add(blocking::left_bytes(product.lanes, k))
        .cast::<f32>();
    let kernels = microkernel::Microkernels::of(isa);

    // SAFETY: all pointers stay inside what the caller vouches for: blocks cover `0..columns`, `0..k`, `0..lanes` once, and the
    // packed panels fit the scratch sizes that `blocking` states for these extents.
    unsafe {
        if k == 0 {
            return clear(product);
        }
        for column in (0..product.columns).step_by(blocking::COLUMNS) {
            let columns = blocking::COLUMNS.min(product.columns - column);
            for start in (0..k).step_by(depth) {
                let block = Block {
                    kernels,
                    length: depth.min(k - start),
                    accumulation: if start == 0 {
                        product.accumulation
                    } else {
                        Accumulation::Add
                    },
                };
                let span = start..start + block.length;
                let right = pack::Panels {
                    first: column,
                    count: columns,
                    width: kernels.columns,
                };
                pack::pack(
                    isa,
                    &product.right,
                    product.contraction,
                    span.clone(),
                    right,
                    packed_right,
                );
                for lane in (0..product.lanes).step_by(blocking::LANES) {
                    let lanes = blocking::LANES.min(product.lanes - lane);
                    let left = pack::Panels {
                        first: lane,
                        count: lanes,
                        width: kernels.lanes(),
                    };
                    pack::pack(
                        isa,
                        &product.left,
                        product.contraction,
                        span.clone(),
                        left,
                        packed_left,
                    );
                    block.multiply(
                        product,
                        lane..lane + lanes,
                        column..column + columns,
                        packed_left,
                        packed_right,
                    );
                }
            }
        }
    }
}

/// One block of the contraction, with both operands packed.
struct Block {
    kernels: &'static microkernel::Microkernels,
    length: usize,
    accumulation: Accumulation,
}

impl Block {
    /// Runs the microkernel over every register tile of the block. A right panel stays in the first-level cache while the left
    /// panels pass by it.
    ///
    /// # Safety
    /// As [`gemm`]; the packed panels must hold the given lanes and columns.
    unsafe fn multiply(
        &self,
        product: &Product<'_>,
        lanes: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
        packed_left: *const f32,
        packed_right: *const f32,
    ) {
        let (tile_lanes, tile_columns) = (self.kernels.lanes(), self.kernels.columns);
        for column in columns.clone().step_by(tile_columns) {
            let right = packed_right.wrapping_add((column - columns.start) * self.length);
            for lane in lanes.clone().step_by(tile_lanes) {
                let left = packed_left.wrapping_add((lane - lanes.start) * self.length);
                let output = product.output.wrapping_offset(
                    lane as isize * product.output_lane_stride
                        + column as isize * product.output_column_stride,
                );
                let tile = microkernel::Tile {
                    lanes: tile_lanes.min(lanes.end - lane),
                    columns: tile_columns.min(columns.end - column),
                    depth: self.length,
                    left,
                    right,
                    output,
                    output_lane_stride: product.output_lane_stride,
                    output_column_stride: product.output_column_stride,
                    accumulation: self.accumulation,
                    scale: product.scale,
                };
                // SAFETY: the tile lies inside the packed panels and inside the output.
                unsafe { self.kernels.run(&tile) };
            }
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
            for lane in 0..product.lanes as isize {
                for column in 0..product.columns as isize {
                    let at =
                        lane * product.output_lane_stride + column * product.output_column_stride;
                    // SAFETY: the index is inside the output.
                    unsafe { *product.output.offset(at) = 0.0 };
                }
            }
        }
    }
}
