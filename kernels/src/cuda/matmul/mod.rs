//! Matrix products: which kernel, with which tiles.
//!
//! Products of two factors of one type of 16 bits run on the tensor cores, all others on the ordinary ones. On those of sm_90a four warps multiply together
//! (`wgmma`), on all others each for itself (`mma`); tiles and launches are the same. Where tensor maps describe both factors, a launch for devices
//! of 9.0 alone stands beside that, whose tiles arrive in bulk (TMA). Where there are few tiles and many terms
//! several blocks share a tile: each makes a part of its sums, which a second launch adds up in their order. The longer of the output's unit strides
//! runs along a tile's columns; where that is the rows' the factors change places, which makes the transposed product. An [`Epilogue`] goes with
//! whichever launch makes outputs.

mod bulk;
mod epilogue;
mod group;
mod layout;

pub use self::epilogue::{BUFFERS_OF_A_PRODUCT, Epilogue, Keeps};

use self::layout::{Product, Sums};
use super::source::{Source, linear};
use super::{DeviceArgument, DeviceCall, DeviceLaunch};
use crate::signature::{Accumulation, Element, InvalidSpec, MatmulSpec, require};

/// The parts that a block of threads and a thread take of a product on the ordinary cores.
struct Tiles {
    rows: usize,
    columns: usize,
    terms: usize,
    thread_rows: usize,
    thread_columns: usize,
}

/// The most arithmetic for what is read.
const LARGE: Tiles = Tiles { rows: 128, columns: 128, terms: 8, thread_rows: 8, thread_columns: 8 };
/// For products that have few of the large.
const SMALL: Tiles = Tiles { rows: 64, columns: 64, terms: 16, thread_rows: 4, thread_columns: 4 };

/// The parts that a block of threads and a warp take of a product on the tensor cores, and for how many steps there is room.
struct TensorTiles {
    rows: usize,
    columns: usize,
    warp_rows: usize,
    warp_columns: usize,
    stages: usize,
}

/// The terms of a step on the tensor cores.
const TENSOR_TERMS: usize = 32;
/// The tiles for the tensor cores, the largest first: the larger, the less is read for each product. A block has at most the 99 KiB
/// of shared memory that the smallest device gives it.
const TENSOR_TILES: [TensorTiles; 3] = [
    TensorTiles { rows: 128, columns: 256, warp_rows: 64, warp_columns: 64, stages: 4 },
    TensorTiles { rows: 128, columns: 128, warp_rows: 64, warp_columns: 64, stages: 4 },
    TensorTiles { rows: 64, columns: 64, warp_rows: 32, warp_columns: 32, stages: 6 },
];

/// Fewer steps than this are not worth adding up their sums.
const LEAST_STEPS: usize = 16;
/// About as many as a device has: fewer tiles leave some idle.
const MULTIPROCESSORS: usize = 128;

/// Computes the product of buffers 0 (A) and 1 (B) into buffer 2 (C), and what an epilogue makes of its results. Of the epilogue's kernel, tensor `i`
/// is buffer `3 + i`, and integers are those of the operation. Its iterations are numbered as C's elements lie, which must be dense.
///
/// # Errors
/// The descriptor is not valid, or sizes are beyond what a launch can have; with an epilogue, if results are added to C's old content or C is
/// not dense.
pub fn matmul(spec: &MatmulSpec, epilogue: Option<&Epilogue>) -> Result<DeviceCall, InvalidSpec> {
    spec.check()?;
    require(spec.scale.is_finite(), "a matmul's scale is not finite")?;
    let product = Product::of(spec, epilogue);
    if product.rows() == 0 || product.columns() == 0 || spec.batch_extent() == 0 {
        return Ok(DeviceCall::default());
    }
    if epilogue.is_some() {
        require(spec.accumulation == Accumulation::Overwrite, "an epilogue of a matmul that adds to C")?;
        require(epilogue::is_dense(spec), "an epilogue of a matmul whose C is not dense")?;
    }
    require(spec.k() <= i32::MAX as usize / 2, "a matmul of more terms than an index holds")?;
    match (spec.a, spec.b) {
        (Element::Bf16, Element::Bf16) | (Element::F16, Element::F16) => on_tensor_cores(&product),
        (Element::F32, _)
        | (_, Element::F32)
        | (Element::Bf16, Element::F16)
        | (Element::F16, Element::Bf16) => on_ordinary_cores(&product).map(DeviceCall::of),
    }
}

fn on_ordinary_cores(product: &Product<'_>) -> Result<DeviceLaunch, InvalidSpec> {
    let tiles = if fills(product, LARGE.rows, LARGE.columns) { &LARGE } else { &SMALL };
    let source = product
        .describe(Sums::Whole)
        .constant("int", "TILE_ROWS", tiles.rows)
        .constant("int", "TILE_COLUMNS", tiles.columns)
        .constant("int", "TILE_TERMS", tiles.terms)
        .constant("int", "THREAD_ROWS", tiles.thread_rows)
        .constant("int", "THREAD_COLUMNS", tiles.thread_columns)
        .file(include_str!("../tiles.cuh"))
        .file(include_str!("../matmul_tiles.cu"));
    let shape = Shape {
        blocks: product.tiles(tiles.rows, tiles.columns),
        threads: tiles.rows / tiles.thread_rows * (tiles.columns / tiles.thread_columns),
        shared_bytes: 0,
    };
    shape.launch(
        "matmul_tiles",
        source,
        product.spec,
        product.arguments(Sums::Whole, DeviceArgument::Pointer(product.output)),
    )
}

fn on_tensor_cores(product: &Product<'_>) -> Result<DeviceCall, InvalidSpec> {
    let [larger @ .., smallest] = &TENSOR_TILES;
    let tiles = larger.iter().find(|tiles| fills(product, tiles.rows, tiles.columns)).unwrap_or(smallest);
    let steps_of_part = tiles.steps_of_part(product);
    let parts = product.spec.k().div_ceil(TENSOR_TERMS).div_ceil(steps_of_part);
    if parts <= 1 {
        let launch =
            tiles.launch(product, Sums::Whole, steps_of_part, DeviceArgument::Pointer(product.output))?;
        return Ok(DeviceCall::of(launch));
    }
    let sums = DeviceArgument::Scratch(0);
    let outputs = product.spec.batch_extent() * product.rows() * product.columns();
    let source = product
        .describe(Sums::Whole)
        .constant("int", "PARTS", parts)
        .constant("int", "PRODUCTS", product.spec.batch_extent())
        .constant("int", "PART_PITCH", product.part_pitch())
        .file(include_str!("../matmul_parts.cu"));
    let target = DeviceArgument::Pointer(product.output);
    let arguments = [sums].into_iter().chain(product.output_arguments(Sums::Whole, target)).collect();
    let sums_of_part = product.rows() * product.part_pitch();
    Ok(DeviceCall {
        scratch_bytes: (product.spec.batch_extent() * parts * sums_of_part * Element::F32.bytes()) as u64,
        launches: vec![
            tiles.launch(product, Sums::Parts(parts), steps_of_part, sums)?,
            linear("matmul_parts", source, outputs as u64, arguments),
        ],
    })
}

impl TensorTiles {
    /// The steps that one block makes: all, but where that leaves most of a device idle fewer, so that several share a tile.
    fn steps_of_part(&self, product: &Product<'_>) -> usize {
        let steps = product.spec.k().div_ceil(TENSOR_TERMS).max(1);
        let blocks_of_tile = MULTIPROCESSORS / product.tiles(self.rows, self.columns).max(1);
        // An even number, for steps that are twice as long.
        steps.div_ceil(blocks_of_tile.max(1)).max(LEAST_STEPS).next_multiple_of(2).min(steps)
    }

    fn launch(
        &self,
        product: &Product<'_>,
        sums: Sums,
        steps_of_part: usize,
        target: DeviceArgument,
    ) -> Result<DeviceLaunch, InvalidSpec> {
        let source = self
            .describe(product, sums, TENSOR_TERMS)
            .half(product.spec.a)
            .constant("int", "WARP_COLUMNS", self.warp_columns)
            .constant("int", "STAGES", self.stages)
            .constant("int", "STEPS_OF_PART", steps_of_part)
            .file(include_str!("../tensor.cuh"))
            .file(include_str!("../matmul_stages.cuh"))
            .file(&group::multipliers(self.columns))
            .file(include_str!("../matmul_output.cuh"))
            .file(include_str!("../matmul_tensor.cu"));
        let warps = self.rows / self.warp_rows * (self.columns / self.warp_columns);
        let shape = Shape {
            blocks: sums.parts() * product.tiles(self.rows, self.columns),
            threads: 32 * warps,
            shared_bytes: self.stages * TENSOR_TERMS * (self.rows + self.columns) * Element::Bf16.bytes(),
        };
        let launch = shape.launch("matmul_tensor", source, product.spec, product.arguments(sums, target))?;
        let alternative = bulk::launch(self, product, sums, steps_of_part, target)?.map(Box::new);
        Ok(DeviceLaunch { alternative, ..launch })
    }

    /// What a source says of the product and of the tiles that it is made of.
    fn describe(&self, product: &Product<'_>, sums: Sums, terms: usize) -> Source {
        product
            .describe(sums)
            .constant("int", "TILE_ROWS", self.rows)
            .constant("int", "TILE_COLUMNS", self.columns)
            .constant("int", "TILE_TERMS", terms)
            .constant("int", "WARP_ROWS", self.warp_rows)
            .constant("int", "PARTS", sums.parts())
    }
}

/// Whether a product has room for such tiles, and one for each multiprocessor.
fn fills(product: &Product<'_>, rows: usize, columns: usize) -> bool {
    let fits = product.rows() >= rows && product.columns() >= columns;
    fits && product.tiles(rows, columns) >= MULTIPROCESSORS
}

/// The sizes of a launch.
struct Shape {
    blocks: usize,
    threads: usize,
    shared_bytes: usize,
}

impl Shape {
    fn launch(
        &self,
        kind: &str,
        source: Source,
        spec: &MatmulSpec,
        arguments: Vec<DeviceArgument>,
    ) -> Result<DeviceLaunch, InvalidSpec> {
        require(self.blocks <= i32::MAX as usize, "a matmul of more tiles than a launch has")?;
        let (name, source) = source.finish(&format!("{kind}_{}x{}x{}", spec.m, spec.n, spec.k()));
        Ok(DeviceLaunch {
            name,
            source,
            grid: [self.blocks as u32, 1, 1],
            block: [self.threads as u32, 1, 1],
            shared_bytes: self.shared_bytes as u32,
            arguments,
            alternative: None,
        })
    }
}
