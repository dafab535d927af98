//! Which elements of a block are contiguous in source and target.

use std::ops::Range;

use crate::program::Transfer;

/// A stretch of elements that is contiguous in source and target; offsets are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First element in the source, from the start of its block.
    pub source: usize,
    /// First element in the target, from the start of its block.
    pub target: usize,
    /// Number of elements.
    pub length: usize,
}

/// Calls `visit` for each run of the elements `range` of a block.
pub fn for_each_run(transfer: &Transfer, range: Range<usize>, mut visit: impl FnMut(Run)) {
    let inner = transfer.inner.block as usize;
    let middle_count = transfer.middle.block as usize;
    let mut next = range.start;
    while next < range.end {
        let (piece, within) = (next / inner, next % inner);
        let (outer, middle) = (piece / middle_count, piece % middle_count);
        let length = (inner - within).min(range.end - next);
        let source =
            outer * transfer.source.outer as usize + middle * transfer.source.middle as usize + within;
        let target =
            outer * transfer.target.outer as usize + middle * transfer.target.middle as usize + within;
        visit(Run { source, target, length });
        next += length;
    }
}
