//! Moves and reduces the blocks of a collective between buffers in host memory that all members can reach.
//!
//! Reductions go over the members in the order of the group and are computed once for each
//! element, so every member ends with the same bits. Every transfer divides into element ranges
//! that threads can do at the same time.

use std::ops::Range;

use dtlc_kernels::collective::{Reduction as FloatReduction, reduce};
use dtlc_kernels::signature::Element;

use crate::collectives::runs::for_each_run;
use crate::program::{DType, Reduction, Transfer};

/// Elements of a reduction that stay in the first-level cache while they are copied on.
const CHUNK: usize = 2048;

/// Copies the elements `range` of a block.
///
/// # Safety
/// Source and target hold the block as `transfer` says, in elements of `element_bytes`; they don't
/// overlap and nobody else touches these elements of the target.
pub unsafe fn copy_block(
    transfer: &Transfer,
    element_bytes: usize,
    range: Range<usize>,
    source: *const u8,
    target: *mut u8,
) {
    for_each_run(transfer, range, |run| {
        // SAFETY: the run lies in the block on both sides.
        unsafe {
            let from = source.add(run.source * element_bytes);
            let to = target.add(run.target * element_bytes);
            to.copy_from_nonoverlapping(from, run.length * element_bytes);
        }
    });
}

/// Reduces the elements `range` of a block over all sources, in their order, into every target.
///
/// # Safety
/// Each source and target holds the block as `transfer` says, aligned to the type. A target may be
/// one of the sources with the same strides, else it overlaps none. Nobody else touches these elements.
pub unsafe fn reduce_block(
    transfer: &Transfer,
    dtype: DType,
    reduction: Reduction,
    range: Range<usize>,
    sources: &[*const u8],
    targets: &[*mut u8],
) {
    let element_bytes = dtype.bytes() as usize;
    let Some((&first_target, other_targets)) = targets.split_first() else { return };
    for_each_run(transfer, range, |run| {
        for begin in (0..run.length).step_by(CHUNK) {
            let length = CHUNK.min(run.length - begin);
            let source = run.source + begin;
            let target = (run.target + begin) * element_bytes;
            // SAFETY: the chunk lies in the block of every source and target.
            unsafe {
                let to = first_target.add(target);
                reduce_chunk(dtype, reduction, sources, source..source + length, to);
                for other in other_targets {
                    other.add(target).copy_from_nonoverlapping(to, length * element_bytes);
                }
            }
        }
    });
}

/// Reduces elements `range` of the sources into the contiguous elements from `target`.
///
/// # Safety
/// As [`reduce_block`].
unsafe fn reduce_chunk(
    dtype: DType,
    reduction: Reduction,
    sources: &[*const u8],
    range: Range<usize>,
    target: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => reduce_floats(Element::F32, reduction, sources, range, target),
            DType::Bf16 => reduce_floats(Element::Bf16, reduction, sources, range, target),
            DType::F16 => reduce_floats(Element::F16, reduction, sources, range, target),
            DType::I32 => reduce_integers::<i32>(reduction, sources, range, target, i32::wrapping_add),
            DType::U32 => reduce_integers::<u32>(reduction, sources, range, target, u32::wrapping_add),
            DType::Bool => reduce_integers::<u8>(reduction, sources, range, target, u8::wrapping_add),
        }
    }
}

/// # Safety
/// As [`reduce_block`].
unsafe fn reduce_floats(
    element: Element,
    reduction: Reduction,
    sources: &[*const u8],
    range: Range<usize>,
    target: *mut u8,
) {
    let reduction = match reduction {
        Reduction::Sum => FloatReduction::Sum,
        Reduction::Max => FloatReduction::Maximum,
    };
    // The kernel uses one index for both sides, so the target is counted from where index 0 would be.
    let destination = target.wrapping_sub(range.start * element.bytes());
    // SAFETY: the caller's promise; the kernel touches only elements `range` of each.
    unsafe { reduce(destination, sources, element, reduction, range) }
}

/// # Safety
/// As [`reduce_block`].
unsafe fn reduce_integers<T: Copy + Ord>(
    reduction: Reduction,
    sources: &[*const u8],
    range: Range<usize>,
    target: *mut u8,
    add: fn(T, T) -> T,
) {
    let Some((first, rest)) = sources.split_first() else { return };
    for index in range.clone() {
        // SAFETY: the element lies in every source and in the target. It is read from all sources
        // before it is written.
        unsafe {
            let mut value = first.cast::<T>().add(index).read();
            for source in rest {
                let other = source.cast::<T>().add(index).read();
                value = match reduction {
                    Reduction::Sum => add(value, other),
                    Reduction::Max => value.max(other),
                };
            }
            target.cast::<T>().add(index - range.start).write(value);
        }
    }
}
