//! Products on the tensor cores of compute capability 9.0 whose tiles arrive in bulk: where tensor maps describe both factors, the launch that
//! takes the place of the one for every device. Tiles, parts and what becomes of sums are the same; steps are twice as long, since rows of 128 bytes
//! are what is copied and multiplied best, and there is room for them.

use super::layout::{Product, Sums};
use super::{Shape, TENSOR_TERMS, TensorTiles, group};
use crate::cuda::{DeviceArgument, DeviceLaunch, MappedTensor};
use crate::signature::{Element, InvalidSpec};

/// The terms of a step: as many as rows of 128 bytes have.
const BULK_TERMS: usize = 64;
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
        .constant("int", "WARP_COLUMNS", warp_columns)
        .constant("int", "STAGES", stages)
        .constant("int", "STEPS_OF_PART", (steps_of_part * TENSOR_TERMS).div_ceil(BULK_TERMS))
        .constant("Offset", "LEFT_PRODUCT_STRIDE", factors[0].product_stride)
        .constant("Offset", "RIGHT_PRODUCT_STRIDE", factors[1].product_stride)
        .file(include_str!("../output.cuh"))
        .file(include_str!("../tensor.cuh"))
        .file(include_str!("../matmul_stages.cuh"))
        .file(&group::group_multiplier(tiles.columns))
        .file(include_str!("../matmul_output.cuh"))
        .file(include_str!("../matmul_bulk.cu"));
    let shape = Shape {
        blocks: sums.parts() * product.tiles(tiles.rows, tiles.columns),
        threads: 128 * groups + BRINGING_THREADS,
        shared_bytes: stages * stage_bytes,
    };
    let maps = factors.map(|factor| DeviceArgument::Map(factor.map));
    let arguments = maps.into_iter().chain([target]).collect();
    shape.launch("matmul_bulk", source, product.spec, arguments).map(Some)
}

/// A factor as a tensor map describes it.
pub(super) struct MappedFactor {
    pub map: MappedTensor,
    /// Elements from each place of the map's last dimension to the next.
    pub product_stride: u64,
}

impl MappedFactor {
    /// Of an operand with this many lines and terms, as far apart as the strides say, and products at these offsets; boxes are of rows of 64 and
    /// as many of them as a tile has of lines or terms. None where no map describes it.
    pub fn new(
        buffer: u32,
        [lines, terms]: [(usize, isize); 2],
        products: &[(usize, isize)],
        tile_lines: usize,
        terms_are_neighbours: bool,
    ) -> Option<MappedFactor> {
        let (inner, outer) = if terms_are_neighbours { (terms, lines) } else { (lines, terms) };
        let product_stride =
            products.iter().filter(|(extent, _)| *extent > 1).try_fold(0, |stride, (_, next)| {
                Some(greatest_common_divisor(stride, u64::try_from(*next).ok()?))
            })?;
        let places: u64 = match product_stride {
            0 => 1,
            stride => {
                1 + products
                    .iter()
                    .map(|(extent, next)| (*extent as u64 - 1) * *next as u64 / stride)
                    .sum::<u64>()
            }
        };
        let bytes = Element::Bf16.bytes() as u64;
        // Where there is one place there is no next one.
        let stride_of =
            |places: u64, stride: u64| if places > 1 { stride.checked_mul(bytes) } else { Some(128) };
        let strides = [
            stride_of(outer.0 as u64, u64::try_from(outer.1).ok().or((outer.0 <= 1).then_some(0))?)?,
            stride_of(places, product_stride)?,
        ];
        let sizes = [inner.0 as u64, outer.0 as u64, places];
        let is_described = (inner.1 == 1 || inner.0 == 1)
            && sizes.iter().all(|size| (1..=i32::MAX as u64).contains(size))
            && strides.iter().all(|stride| (1..1 << 40).contains(stride) && stride.is_multiple_of(16));
        let rows = if terms_are_neighbours { tile_lines } else { BULK_TERMS };
        let map = MappedTensor { buffer, sizes, strides, box_sizes: [64, rows as u32, 1] };
        is_described.then_some(MappedFactor { map, product_stride: product_stride.max(1) })
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
