//! Products on the tensor cores of compute capability 9.0 whose tiles arrive in bulk: where tensor maps describe both factors, the launch that
//! takes the place of the one for every device. Tiles, parts and what becomes of sums are the same; steps are twice as long, since rows of 128 bytes
//! are what is copied and multiplied best, and there is room for them.

use super::layout::{Product, Sums};
use super::{Shape, TENSOR_TERMS, TensorTiles, group};
use crate::cuda::mapped::MappedRows;
use crate::cuda::{DeviceArgument, DeviceLaunch};
use crate::signature::{Element, InvalidSpec};

/// The terms of a step: as many as rows of 128 bytes have.
pub(super) const BULK_TERMS: usize = MappedRows::WIDTH;
/// Threads of the warp that brings tiles.
const BRINGING_THREADS: usize = 32;
/// About as much shared memory as a block has there.
const STAGE_ROOM: usize = 192 << 10;
/// More steps under way than this hide nothing more.
const MOST_STAGES: usize = 6;

/// The launch in place of one with these tiles, where there can be one.
pub(super) fn launch(
    tiles: &TensorTiles,
    product: &Product<'_>,
    sums: Sums,
    steps_of_part: usize,
    target: DeviceArgument,
) -> Result<Option<DeviceLaunch>, InvalidSpec> {
    let Some(factors) = product.mapped_factors([tiles.rows, tiles.columns]) else { return Ok(None) };
    // A warp's part of a tile is as wide as makes two groups of four of the largest tiles and one of the smallest.
    let groups = (tiles.rows / 64).min(2);
    let warp_columns = tiles.rows / tiles.warp_rows * tiles.columns / (4 * groups);
    let stage_bytes = BULK_TERMS * (tiles.rows + tiles.columns) * Element::Bf16.bytes();
    let stages = (STAGE_ROOM / stage_bytes).min(MOST_STAGES);
    let source = tiles
        .describe(product, sums, BULK_TERMS)
        .half(product.spec.a)
        .constant("int", "WARP_COLUMNS", warp_columns)
        .constant("int", "STAGES", stages)
        .constant("int", "STEPS_OF_PART", (steps_of_part * TENSOR_TERMS).div_ceil(BULK_TERMS))
        .constant("Offset", "LEFT_PRODUCT_STRIDE", factors[0].place_stride)
        .constant("Offset", "RIGHT_PRODUCT_STRIDE", factors[1].place_stride)
        .file(include_str!("../tensor.cuh"))
        .file(include_str!("../matmul_stages.cuh"))
        .file(&group::group_multiplier(tiles.columns))
        .file(include_str!("../matmul_output.cuh"))
        .file(include_str!("../bulk.cuh"))
        .file(include_str!("../matmul_bulk.cu"));
    let shape = Shape {
        blocks: sums.parts() * product.tiles(tiles.rows, tiles.columns),
        threads: 128 * groups + BRINGING_THREADS,
        shared_bytes: stages * stage_bytes,
    };
    let maps = factors.map(|factor| DeviceArgument::Map(factor.map));
    let arguments = maps.into_iter().chain(product.output_arguments(sums, target)).collect();
    shape.launch("matmul_bulk", source, product.spec, arguments).map(Some)
}
