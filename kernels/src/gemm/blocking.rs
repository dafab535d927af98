//! Cache block sizes of the GEMM and the scratch they need. The same on every host, so that a program's
//! memory plan holds wherever it runs.

use crate::signature::aligned;

/// Lanes of the output per packed left block: with [`DEPTH`], 3/4 of a 1 MiB second-level cache. A multiple
/// of every microkernel's lanes.
pub(crate) const LANES: usize = 384;
/// Columns of the output per packed right block. A multiple of every microkernel's columns.
pub(crate) const COLUMNS: usize = 768;
/// Most contraction steps per block.
const DEPTH: usize = 512;
/// Lanes and columns of the f32 tile that a narrower output is computed in.
pub(crate) const TILE: usize = 768;
/// Work is divided among threads at multiples of this many columns: a register tile's.
pub(crate) const COLUMN_GRANULE: usize = 6;

/// Lanes at whose multiples work is divided among threads: whole panels where each part gets several, else vectors.
pub(crate) fn lane_granule(lanes: usize, parts: usize) -> usize {
    const VECTOR: usize = 16;
    const FEW_PANELS: usize = 8;
    if lanes >= FEW_PANELS * LANE_PANEL * parts { LANE_PANEL } else { VECTOR }
}

/// Every microkernel's lanes divide this.
const LANE_PANEL: usize = 64;
/// Every microkernel's columns divide this.
const COLUMN_PANEL: usize = 12;

/// Contraction steps per block for a contraction of `k`: the fewest blocks, evenly filled.
pub(crate) fn depth(k: usize) -> usize {
    if k == 0 { 1 } else { k.div_ceil(k.div_ceil(DEPTH)) }
}

/// Contraction steps per block where a pair of bf16 takes one word: twice as many, and whole pairs but in the last block.
pub(crate) fn depth_of_pairs(k: usize) -> usize {
    let blocks = k.div_ceil(2 * DEPTH).max(1);
    k.div_ceil(blocks).next_multiple_of(2)
}

/// Bytes of the packed left operand.
pub(crate) fn left_bytes(lanes: usize, k: usize) -> usize {
    aligned(4 * depth(k) * lanes.min(LANES).next_multiple_of(LANE_PANEL))
}

/// Bytes of scratch that one product needs.
pub(crate) fn scratch_bytes(lanes: usize, columns: usize, k: usize) -> usize {
    left_bytes(lanes, k) + aligned(4 * depth(k) * columns.min(COLUMNS).next_multiple_of(COLUMN_PANEL))
}

/// Floats of the tile that a narrower output is computed in.
pub(crate) fn tile_floats(lanes: usize, columns: usize) -> usize {
    lanes.min(TILE) * columns.min(TILE)
}

/// Whether `steps` rows of a left block, which lie `stride` floats apart, stay in the second-level cache where they lie. Rows
/// whose distance has a high power of two in it meet in the same few sets.
pub(crate) fn stays_in_cache(stride: isize, steps: usize) -> bool {
    /// Bytes of a way: 1 MiB in eight.
    const WAY: usize = 128 << 10;
    const WAYS: usize = 5;
    let power = 1 << (4 * stride).trailing_zeros().min(WAY.trailing_zeros());
    steps * power <= WAYS * WAY
}
