//! Products on the tensor cores of compute capability 9.0 whose tiles arrive in bulk: where tensor maps describe both factors, the launch that
//! takes the place of the one for every device. Tiles, parts and what becomes of sums are the same; steps are twice as long, since rows of 128 bytes
//! are what is copied and multiplied best, and there is room for them.

use super::launch::{Block, Share};
use super::layout::{Product, Sums};
use super::{TensorTiles, group, terms_of_step};
use crate::cuda::DeviceArgument;
use crate::cuda::mapped::MappedRows;
use crate::signature::Element;

/// The terms of a step: as many as rows of 128 bytes have.
pub(super) const BULK_TERMS: usize = MappedRows::WIDTH;
/// Threads of the warp that brings tiles.
const BRINGING_THREADS: usize = 32;
/// About as much shared memory as a block has there.
const STAGE_ROOM: usize = 192 << 10;
/// More steps under way than this hide nothing more.
const MOST_STAGES: usize = 6;

/// Groups of four warps that multiply in a block.
fn groups(tiles: &TensorTiles) -> usize {
    (tiles.rows / 64).min(2)
}

fn stage_bytes(tiles: &TensorTiles) -> usize {
    BULK_TERMS * (tiles.rows + tiles.columns) * Element::Bf16.bytes()
}

fn stages(tiles: &TensorTiles) -> usize {
    (STAGE_ROOM / stage_bytes(tiles)).min(MOST_STAGES)
}

pub(super) fn block(tiles: &TensorTiles) -> Block {
    Block {
        threads: 128 * groups(tiles) + BRINGING_THREADS,
        shared_bytes: stages(tiles) * stage_bytes(tiles),
    }
}

/// What stands in such a launch in place of a product's share with these tiles, where maps describe its factors.
pub(super) fn share(
    tiles: &TensorTiles,
    product: &Product<'_>,
    (sums, target): (Sums, DeviceArgument),
    steps_of_part: usize,
) -> Option<Share> {
    let factors = product.mapped_factors([tiles.rows, tiles.columns])?;
    // A warp's part of a tile is as wide as makes two groups of four of the largest tiles and one of the smallest.
    let warp_columns = tiles.rows / tiles.warp_rows * tiles.columns / (4 * groups(tiles));
    let source = tiles
        .describe(product, sums, BULK_TERMS)
        .factor(product.spec.a)
        .constant("int", "WARP_COLUMNS", warp_columns)
        .constant("int", "STAGES", stages(tiles))
        .constant("int", "STEPS_OF_PART", (steps_of_part * terms_of_step(product)).div_ceil(BULK_TERMS))
        .constant("Offset", "LEFT_PRODUCT_STRIDE", factors[0].place_stride)
        .constant("Offset", "RIGHT_PRODUCT_STRIDE", factors[1].place_stride)
        .file(include_str!("../tensor.cuh"))
        .file(include_str!("../matmul_stages.cuh"))
        .file(&group::group_multiplier(tiles.columns))
        .file(include_str!("../matmul_output.cuh"))
        .file(include_str!("../bulk.cuh"))
        .file(include_str!("../matmul_bulk.cu"));
    let maps = factors.map(|factor| ("TensorMap".to_owned(), DeviceArgument::Map(factor.map)));
    Some(product.share((sums, target), source, maps, product.tiles(tiles.rows, tiles.columns)))
}
