//! The arithmetic and copies under collectives: reduction of several buffers in a fixed order, and blocked
//! copies.
//!
//! Owns no communication: the runtime says which buffers and which elements.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    isa::{Isa, for_each_isa},
    number::{Number, with_element},
    signature::Element,
};

/// How [`reduce`] combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduction {
    /// Sum, in f32.
    Sum,
    /// Greatest; NaN if any is NaN.
    Maximum,
}

/// `destination[i] = sources[0][i] (+) sources[1][i] (+) …` for `i` in `range`, combined in the order of the
/// list in f32 and rounded once. No source is an error in the caller and gives the reduction's identity.
///
/// # Safety
/// Each source must be readable and `destination` writable for elements `range`, aligned to the element.
/// `destination` may be one of the sources, but not overlap one otherwise.
pub unsafe fn reduce(
    destination: *mut u8,
    sources: &[*const u8],
    element: Element,
    reduction: Reduction,
    range: Range<usize>,
) {
    // SAFETY: the instruction set was detected; the rest is the caller's promise.
    unsafe {
        with_element!(element, Stored => match reduction {
            Reduction::Sum => reduce_sum::<Stored>(Isa::detect(), destination, sources, range),
            Reduction::Maximum => reduce_maximum::<Stored>(Isa::detect(), destination, sources, range),
        });
    }
}

for_each_isa! {
    /// [`reduce`] by sum.
    fn reduce_sum<Stored: Number>(destination: *mut u8, sources: &[*const u8], range: Range<usize>) = reduce_sum_body
}

for_each_isa! {
    /// [`reduce`] by maximum.
    fn reduce_maximum<Stored: Number>(destination: *mut u8, sources: &[*const u8], range: Range<usize>) = reduce_maximum_body
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn reduce_sum_body<Stored: Number>(destination: *mut u8, sources: &[*const u8], range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { reduce_with::<Stored>(destination, sources, range, 0.0, |total, value| total + value) }
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn reduce_maximum_body<Stored: Number>(
    destination: *mut u8,
    sources: &[*const u8],
    range: Range<usize>,
) {
    let greater = |total: f32, value: f32| {
        if value > total || value.is_nan() { value } else { total }
    };
    // SAFETY: the caller's promise.
    unsafe { reduce_with::<Stored>(destination, sources, range, f32::NEG_INFINITY, greater) }
}

/// Works in chunks that stay in registers or the first-level cache while the sources pass by. Reads a chunk
/// of every source before it writes that chunk, so the destination may be a source.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn reduce_with<Stored: Number>(
    destination: *mut u8,
    sources: &[*const u8],
    range: Range<usize>,
    identity: f32,
    combine: impl Fn(f32, f32) -> f32 + Copy,
) {
    const CHUNK: usize = 256;
    for first in range.clone().step_by(CHUNK) {
        let count = CHUNK.min(range.end - first);
        let mut total = [identity; CHUNK];
        // SAFETY: `first..first + count` is inside `range`.
        unsafe {
            for (index, source) in sources.iter().enumerate() {
                let source = std::slice::from_raw_parts(source.cast::<Stored>().add(first), count);
                for (total, value) in total.iter_mut().zip(source) {
                    // The first source is taken as it is: -0.0 stays -0.0.
                    *total = if index == 0 { value.widen() } else { combine(*total, value.widen()) };
                }
            }
            let to = std::slice::from_raw_parts_mut(destination.cast::<Stored>().add(first), count);
            for (to, total) in to.iter_mut().zip(&total) {
                *to = Stored::narrow(*total);
            }
        }
    }
}

/// A strided copy of equal blocks: `rows × columns` blocks of `block_bytes`. Strides are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCopy {
    /// Outer number of blocks.
    pub rows: usize,
    /// Inner number of blocks; 1 for a two-dimensional copy.
    pub columns: usize,
    /// Bytes of a block, contiguous on both sides.
    pub block_bytes: usize,
    /// Bytes between rows in the destination.
    pub destination_row_stride: usize,
    /// Bytes between columns in the destination.
    pub destination_column_stride: usize,
    /// Bytes between rows in the source.
    pub source_row_stride: usize,
    /// Bytes between columns in the source.
    pub source_column_stride: usize,
}

/// Copies the blocks in rows `rows` of the copy.
///
/// # Safety
/// Source and destination must be readable and writable at the copy's blocks and not overlap.
pub unsafe fn copy_blocks(copy: &BlockCopy, destination: *mut u8, source: *const u8, rows: Range<usize>) {
    for row in rows {
        for column in 0..copy.columns {
            let to = row * copy.destination_row_stride + column * copy.destination_column_stride;
            let from = row * copy.source_row_stride + column * copy.source_column_stride;
            // SAFETY: the block is one of the copy's.
            unsafe { destination.add(to).copy_from_nonoverlapping(source.add(from), copy.block_bytes) };
        }
    }
}
