//! Matrix products: which kernel, with which tiles.
//!
//! Products of two factors of one type of 16 bits run on the tensor cores, and of f32 that are read as tf32; all others on the ordinary ones. On those of
//! sm_90a four warps multiply halves together (`wgmma`), on all others, and what is tf32, each for itself (`mma`); tiles and launches are the same. Where tensor maps describe both factors, a launch for devices
//! of 9.0 alone stands beside that, whose tiles arrive in bulk (TMA). Where there are few tiles and many terms
//! several blocks share a tile: each makes a part of its sums, which a second launch adds up in their order. The longer of the output's unit strides
//! runs along a tile's columns; where that is the rows' the factors change places, which makes the transposed product. An [`Epilogue`] goes with
//! whichever launch makes outputs.
//!
//! Products that wait for nothing of each other share a launch, of whatever sizes they are: the blocks of each follow those of the one before, so that none
//! leaves a device half idle while another could begin. Their number decides tiles and parts together with their sizes.

mod bulk;
mod epilogue;
mod group;
mod launch;
mod layout;

pub use self::epilogue::{BUFFERS_OF_A_PRODUCT, Epilogue, Keeps};

use self::launch::{Block, Share};
use self::layout::{Product, Sums};
use super::source::{Source, linear};
use super::{DeviceArgument, DeviceCall, DeviceLaunch, SCRATCH_ALIGNMENT};
use crate::signature::{Accumulation, Element, Factors, InvalidSpec, MatmulSpec, require};
use std::cmp::Reverse;

/// The parts that a block of threads and a thread take of a product on the ordinary cores.
struct Tiles {
    rows: usize,
    columns: usize,
    terms: usize,
    thread_rows: usize,
    thread_columns: usize,
}

/// The tiles for the ordinary cores: those with the most arithmetic for what is read, and those for products that have few of them.
const ORDINARY_TILES: [Tiles; 2] = [
    Tiles { rows: 128, columns: 128, terms: 8, thread_rows: 8, thread_columns: 8 },
    Tiles { rows: 64, columns: 64, terms: 16, thread_rows: 4, thread_columns: 4 },
];

/// The parts that a block of threads and a warp take of a product on the tensor cores, and for how many steps there is room.
struct TensorTiles {
    rows: usize,
    columns: usize,
    warp_rows: usize,
    warp_columns: usize,
    stages: usize,
}

/// The bytes of a line's terms of a step on the tensor cores.
const STEP_BYTES: usize = 64;
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
/// Bytes of the arguments of a launch that every device takes.
const MOST_ARGUMENT_BYTES: usize = 4096;

/// Computes the product of buffers 0 (A) and 1 (B) into buffer 2 (C), and what an epilogue makes of its results. Of the epilogue's kernel, tensor `i`
/// is buffer `3 + i`, and integers are those of the operation. Its iterations are numbered as C's elements lie, which must be dense.
///
/// # Errors
/// The descriptor is not valid, or sizes are beyond what a launch can have; with an epilogue, if results are added to C's old content or C is
/// not dense.
pub fn matmul(spec: &MatmulSpec, epilogue: Option<&Epilogue>) -> Result<DeviceCall, InvalidSpec> {
    matmuls(&[MatmulOf { spec, epilogue, first_pointer: 0, first_integer: 0 }])
}

/// One product of a call that makes several.
#[derive(Clone, Copy, Debug)]
pub struct MatmulOf<'a> {
    /// Sizes, strides and types.
    pub spec: &'a MatmulSpec,
    /// What it does with its results.
    pub epilogue: Option<&'a Epilogue>,
    /// The number of its A among the call's buffers. Its others follow as [`matmul`] says.
    pub first_pointer: u32,
    /// The number of its first integer among the call's.
    pub first_integer: u32,
}

/// Computes several products, none of which writes what another one reads or writes.
///
/// # Errors
/// As [`matmul`], of any of them.
pub fn matmuls(products: &[MatmulOf<'_>]) -> Result<DeviceCall, InvalidSpec> {
    let mut kinds: Vec<(Kind, Vec<Product<'_>>)> = Vec::new();
    for matmul in products {
        let &MatmulOf { spec, epilogue, .. } = matmul;
        check(spec, epilogue)?;
        let product = Product::of(matmul);
        if product.rows() == 0 || product.columns() == 0 || spec.batch_extent() == 0 {
            continue;
        }
        let kind = Kind::of(&product);
        let together = |(known, alike): &&mut (Kind, Vec<Product<'_>>)| {
            let bytes: usize = alike.iter().chain([&product]).map(Product::argument_bytes).sum();
            *known == kind && bytes <= MOST_ARGUMENT_BYTES
        };
        match kinds.iter_mut().find(together) {
            Some((_, alike)) => alike.push(product),
            None => kinds.push((kind, vec![product])),
        }
    }
    let mut call = DeviceCall::default();
    for (kind, mut alike) in kinds {
        // Blocks begin in their order: those that take the longest first, so that none of them is the last to begin.
        alike.sort_by_key(|product| Reverse(product.spec.k()));
        match kind.cores {
            Cores::Tensor => on_tensor_cores(&alike, &TENSOR_TILES[kind.largest..], &mut call)?,
            Cores::Ordinary => on_ordinary_cores(&alike, &ORDINARY_TILES[kind.largest..], &mut call)?,
        }
    }
    Ok(call)
}

fn check(spec: &MatmulSpec, epilogue: Option<&Epilogue>) -> Result<(), InvalidSpec> {
    spec.check()?;
    require(spec.scale.is_finite(), "a matmul's scale is not finite")?;
    if epilogue.is_some() {
        require(spec.accumulation == Accumulation::Overwrite, "an epilogue of a matmul that adds to C")?;
        require(epilogue::is_dense(spec), "an epilogue of a matmul whose C is not dense")?;
    }
    require(spec.k() <= i32::MAX as usize / 2, "a matmul of more terms than an index holds")
}

/// Products of one kind can share a launch.
#[derive(PartialEq, Eq)]
struct Kind {
    cores: Cores,
    /// The largest tiles for them that the product has room for.
    largest: usize,
    /// Whether there is a launch for tiles that arrive in bulk.
    in_bulk: bool,
}

#[derive(PartialEq, Eq)]
enum Cores {
    Ordinary,
    Tensor,
}

impl Kind {
    fn of(product: &Product<'_>) -> Kind {
        match (product.spec.a, product.spec.b, product.spec.factors) {
            (Element::Bf16, Element::Bf16, _)
            | (Element::F16, Element::F16, _)
            | (Element::F32, Element::F32, Factors::Tf32) => Kind {
                cores: Cores::Tensor,
                largest: largest(product, TENSOR_TILES.map(|tiles| [tiles.rows, tiles.columns])),
                // The same for tiles of any size.
                in_bulk: product.mapped_factors([64, 64]).is_some(),
            },
            (Element::F32, _, _)
            | (_, Element::F32, _)
            | (Element::Bf16, Element::F16, _)
            | (Element::F16, Element::Bf16, _) => Kind {
                cores: Cores::Ordinary,
                largest: largest(product, ORDINARY_TILES.map(|tiles| [tiles.rows, tiles.columns])),
                in_bulk: false,
            },
        }
    }
}

/// The first of these tiles that a product has room for, or the last.
fn largest<const N: usize>(product: &Product<'_>, tiles: [[usize; 2]; N]) -> usize {
    let has_room = |[rows, columns]: &[usize; 2]| product.rows() >= *rows && product.columns() >= *columns;
    tiles.iter().position(has_room).unwrap_or(N - 1)
}

/// The tiles that all of some products have.
fn tiles_of(products: &[Product<'_>], rows: usize, columns: usize) -> usize {
    products.iter().map(|product| product.tiles(rows, columns)).sum()
}

/// The first of these tiles of which there is one for each multiprocessor, or the last.
fn filling<'a, T>(products: &[Product<'_>], tiles: &'a [T], size: impl Fn(&T) -> [usize; 2]) -> &'a T {
    let fill = |tiles: &&T| {
        let [rows, columns] = size(tiles);
        tiles_of(products, rows, columns) >= MULTIPROCESSORS
    };
    tiles.iter().find(fill).unwrap_or(&tiles[tiles.len() - 1])
}

/// `tiles` are those that all of the products have room for, the largest first.
fn on_ordinary_cores(
    products: &[Product<'_>],
    tiles: &[Tiles],
    call: &mut DeviceCall,
) -> Result<(), InvalidSpec> {
    let tiles = filling(products, tiles, |tiles| [tiles.rows, tiles.columns]);
    let shares = products.iter().map(|product| tiles.share(product)).collect();
    call.launches.push(launch::launch(&stem("matmul_tiles", products), shares, &tiles.block())?);
    Ok(())
}

/// `tiles` are those that all of the products have room for, the largest first.
fn on_tensor_cores(
    products: &[Product<'_>],
    tiles: &[TensorTiles],
    call: &mut DeviceCall,
) -> Result<(), InvalidSpec> {
    let tiles = filling(products, tiles, |tiles| [tiles.rows, tiles.columns]);
    // Where tiles leave most of a device idle several blocks share one.
    let blocks_of_tile = (MULTIPROCESSORS / tiles_of(products, tiles.rows, tiles.columns)).max(1);
    let (mut shares, mut in_bulk, mut sums_of_parts) = (Vec::new(), Vec::new(), Vec::new());
    for product in products {
        let steps_of_part = TensorTiles::steps_of_part(product, blocks_of_tile);
        let parts = product.spec.k().div_ceil(terms_of_step(product)).div_ceil(steps_of_part);
        let target = if parts <= 1 {
            (Sums::Whole, DeviceArgument::Pointer(product.output))
        } else {
            let scratch = DeviceArgument::Scratch(call.scratch_bytes);
            sums_of_parts.push(sum_of_parts(product, parts, scratch));
            let sums = product.spec.batch_extent() * parts * product.rows() * product.part_pitch();
            call.scratch_bytes += ((sums * Element::F32.bytes()) as u64).next_multiple_of(SCRATCH_ALIGNMENT);
            (Sums::Parts(parts), scratch)
        };
        shares.push(tiles.share(product, target, steps_of_part));
        in_bulk.extend(bulk::share(tiles, product, target, steps_of_part));
    }
    let mut all = launch::launch(&stem("matmul_tensor", products), shares, &tiles.block())?;
    if in_bulk.len() == products.len() {
        let alternative = launch::launch(&stem("matmul_bulk", products), in_bulk, &bulk::block(tiles))?;
        all.alternative = Some(Box::new(alternative));
    }
    call.launches.extend([all].into_iter().chain(sums_of_parts));
    Ok(())
}

/// How the name of a kernel for such products opens.
fn stem(kind: &str, products: &[Product<'_>]) -> String {
    let first = products.first().map(|product| product.spec);
    let sizes = first.map_or(String::new(), |spec| format!("_{}x{}x{}", spec.m, spec.n, spec.k()));
    let others = if products.len() > 1 { format!("_and_{}", products.len() - 1) } else { String::new() };
    format!("{kind}{sizes}{others}")
}

/// The launch that adds up the parts of a product's sums, which are in scratch.
fn sum_of_parts(product: &Product<'_>, parts: usize, sums: DeviceArgument) -> DeviceLaunch {
    let outputs = product.spec.batch_extent() * product.rows() * product.columns();
    let source = product
        .describe(Sums::Whole)
        .constant("int", "PARTS", parts)
        .constant("int", "PRODUCTS", product.spec.batch_extent())
        .constant("int", "PART_PITCH", product.part_pitch())
        .file(include_str!("../matmul_parts.cu"));
    let target = DeviceArgument::Pointer(product.output);
    let arguments = [sums].into_iter().chain(product.output_arguments(Sums::Whole, target)).collect();
    linear("matmul_parts", source, outputs as u64, arguments)
}

impl Tiles {
    fn block(&self) -> Block {
        // Two pairs of tiles, with a gap of four numbers behind each term.
        let numbers = 2 * self.terms * (self.rows + 4 + self.columns + 4);
        Block {
            threads: self.rows / self.thread_rows * (self.columns / self.thread_columns),
            shared_bytes: numbers * Element::F32.bytes(),
        }
    }

    fn share(&self, product: &Product<'_>) -> Share {
        let source = product
            .describe(Sums::Whole)
            .constant("int", "TILE_ROWS", self.rows)
            .constant("int", "TILE_COLUMNS", self.columns)
            .constant("int", "TILE_TERMS", self.terms)
            .constant("int", "THREAD_ROWS", self.thread_rows)
            .constant("int", "THREAD_COLUMNS", self.thread_columns)
            .constant("bool", "ROUNDS_FACTORS", product.spec.factors == Factors::Tf32)
            .file(include_str!("../tiles.cuh"))
            .file(include_str!("../matmul_tiles.cu"));
        let target = (Sums::Whole, DeviceArgument::Pointer(product.output));
        product.share(target, source, product.pointers(), product.tiles(self.rows, self.columns))
    }
}

impl TensorTiles {
    /// The steps that one block makes, of so many that share a tile at most.
    fn steps_of_part(product: &Product<'_>, blocks_of_tile: usize) -> usize {
        let steps = product.spec.k().div_ceil(terms_of_step(product)).max(1);
        // An even number, for steps that are twice as long.
        steps.div_ceil(blocks_of_tile).max(LEAST_STEPS).next_multiple_of(2).min(steps)
    }

    fn block(&self) -> Block {
        let warps = self.rows / self.warp_rows * (self.columns / self.warp_columns);
        Block { threads: 32 * warps, shared_bytes: self.stages * STEP_BYTES * (self.rows + self.columns) }
    }

    fn share(
        &self,
        product: &Product<'_>,
        (sums, target): (Sums, DeviceArgument),
        steps_of_part: usize,
    ) -> Share {
        let source = self
            .describe(product, sums, terms_of_step(product))
            .factor(product.spec.a)
            .constant("int", "WARP_COLUMNS", self.warp_columns)
            .constant("int", "STAGES", self.stages)
            .constant("int", "STEPS_OF_PART", steps_of_part)
            .file(include_str!("../tensor.cuh"))
            .file(include_str!("../matmul_stages.cuh"))
            .file(&group::multipliers(product.spec.a, self.columns))
            .file(include_str!("../matmul_output.cuh"))
            .file(include_str!("../matmul_tensor.cu"));
        product.share((sums, target), source, product.pointers(), product.tiles(self.rows, self.columns))
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

/// The terms of a step on the tensor cores.
fn terms_of_step(product: &Product<'_>) -> usize {
    STEP_BYTES / product.spec.a.bytes()
}
