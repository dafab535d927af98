//! Matrix products: which kernel, with which tiles, and where the operands' elements lie.
//!
//! The longer of the output's unit strides runs along a tile's columns; where that is the rows' the operands change places, which
//! makes the transposed product.

use super::source::{Source, float, stored};
use super::{DeviceArgument, DeviceCall, DeviceLaunch};
use crate::signature::{Accumulation, Element, InvalidSpec, MatmulSpec, Orientation, require};

/// The parts that a block of threads and a thread take of a product on the ordinary cores.
struct Tiles {
    rows: usize,
    columns: usize,
    terms: usize,
    thread_rows: usize,
    thread_columns: usize,
}

/// For products that give every multiprocessor some: most arithmetic for what is read.
const LARGE: Tiles = Tiles { rows: 128, columns: 128, terms: 8, thread_rows: 8, thread_columns: 8 };
/// For all others.
const SMALL: Tiles = Tiles { rows: 64, columns: 64, terms: 16, thread_rows: 4, thread_columns: 4 };
/// Fewer tiles of the large kind than this leave too much of a device idle.
const LEAST_LARGE_TILES: usize = 64;

/// Computes the product of buffers 0 (A) and 1 (B) into buffer 2 (C).
///
/// # Errors
/// The descriptor is not valid, or sizes are beyond what a launch can have.
pub fn matmul(spec: &MatmulSpec) -> Result<DeviceCall, InvalidSpec> {
    spec.check()?;
    require(spec.scale.is_finite(), "a matmul's scale is not finite")?;
    let product = Product::of(spec);
    if product.rows() == 0 || product.columns() == 0 || spec.batch_extent() == 0 {
        return Ok(DeviceCall::default());
    }
    let tiles = product.tiles();
    let blocks = product.blocks(tiles);
    require(blocks <= i32::MAX as usize, "a matmul of more tiles than a launch has")?;
    require(spec.k() <= i32::MAX as usize / 2, "a matmul of more terms than an index holds")?;
    let source = product
        .describe()
        .constant("int", "TILE_ROWS", tiles.rows)
        .constant("int", "TILE_COLUMNS", tiles.columns)
        .constant("int", "TILE_TERMS", tiles.terms)
        .constant("int", "THREAD_ROWS", tiles.thread_rows)
        .constant("int", "THREAD_COLUMNS", tiles.thread_columns)
        .file(include_str!("output.cuh"))
        .file(include_str!("tiles.cuh"))
        .file(include_str!("matmul_tiles.cu"));
    let stem = format!("matmul_tiles_{}x{}x{}", spec.m, spec.n, spec.k());
    let (name, source) = source.finish(&stem);
    let threads = tiles.rows / tiles.thread_rows * (tiles.columns / tiles.thread_columns);
    Ok(DeviceCall::of(DeviceLaunch {
        name,
        source,
        grid: [blocks as u32, 1, 1],
        block: [threads as u32, 1, 1],
        shared_bytes: 0,
        arguments: product.pointers.map(DeviceArgument::Pointer).to_vec(),
    }))
}

/// One loop of an index: how often, and the elements between iterations.
type Loop = (usize, isize);

/// An operand as the kernels see it.
struct Operand {
    name: &'static str,
    element: Element,
    lines: usize,
    line_stride: isize,
    terms: Vec<Loop>,
    products: Vec<Loop>,
}

/// A product whose columns run along the output's unit stride.
struct Product<'a> {
    spec: &'a MatmulSpec,
    left: Operand,
    right: Operand,
    row_stride: isize,
    column_stride: isize,
    /// Buffers of left, right and output.
    pointers: [u32; 3],
}

impl<'a> Product<'a> {
    fn of(spec: &'a MatmulSpec) -> Product<'a> {
        let a = Operand {
            name: "Left",
            element: spec.a,
            lines: spec.m,
            line_stride: spec.a_row_stride,
            terms: spec.contraction.iter().map(|each| (each.extent, each.stride_a)).collect(),
            products: spec.batch.iter().map(|each| (each.extent, each.stride_a)).collect(),
        };
        let b = Operand {
            name: "Right",
            element: spec.b,
            lines: spec.n,
            line_stride: spec.b_column_stride,
            terms: spec.contraction.iter().map(|each| (each.extent, each.stride_b)).collect(),
            products: spec.batch.iter().map(|each| (each.extent, each.stride_b)).collect(),
        };
        match spec.orientation() {
            Orientation::LanesAlongColumns => Product {
                spec,
                left: a,
                right: b,
                row_stride: spec.c_row_stride,
                column_stride: spec.c_column_stride,
                pointers: [0, 1, 2],
            },
            Orientation::LanesAlongRows => Product {
                spec,
                left: Operand { name: "Left", ..b },
                right: Operand { name: "Right", ..a },
                row_stride: spec.c_column_stride,
                column_stride: spec.c_row_stride,
                pointers: [1, 0, 2],
            },
        }
    }

    fn rows(&self) -> usize {
        self.left.lines
    }

    fn columns(&self) -> usize {
        self.right.lines
    }

    fn tiles(&self) -> &'static Tiles {
        let fits = self.rows() >= LARGE.rows && self.columns() >= LARGE.columns;
        if fits && self.blocks(&LARGE) >= LEAST_LARGE_TILES { &LARGE } else { &SMALL }
    }

    fn blocks(&self, tiles: &Tiles) -> usize {
        self.spec.batch_extent() * self.rows().div_ceil(tiles.rows) * self.columns().div_ceil(tiles.columns)
    }

    /// The types and constants that say where elements lie and what becomes of a sum.
    fn describe(&self) -> Source {
        let spec = self.spec;
        let output: Vec<Loop> = spec.batch.iter().map(|each| (each.extent, each.stride_c)).collect();
        let is_near = self.left.is_near()
            && self.right.is_near()
            && is_near(
                output
                    .iter()
                    .copied()
                    .chain([(self.rows(), self.row_stride), (self.columns(), self.column_stride)]),
            );
        let accumulates = spec.accumulation == Accumulation::Add;
        Source::new()
            .alias("Offset", if is_near { "int" } else { "long long" })
            .constant("int", "TERMS", spec.k())
            .constant("float", "SCALE", float(spec.scale))
            .constant("bool", "ACCUMULATES", accumulates)
            .file(&self.left.describe())
            .file(&self.right.describe())
            .file(&format!(
                "struct Output {{\n    using Element = {};\n    static constexpr Offset ROW_STRIDE = {};\n    \
                 static constexpr Offset COLUMN_STRIDE = {};\n{}}};\n",
                stored(spec.c),
                self.row_stride,
                self.column_stride,
                offset_function("of_product", &output),
            ))
    }
}

impl Operand {
    /// Whether every element is fewer than 2³¹ elements from the first.
    fn is_near(&self) -> bool {
        let lines = [(self.lines, self.line_stride)];
        is_near(self.terms.iter().chain(&self.products).copied().chain(lines))
    }

    /// Whether the step from term to term is shorter than that from line to line.
    fn terms_are_neighbours(&self) -> bool {
        let step = self.terms.iter().rfind(|(extent, _)| *extent > 1).map_or(0, |(_, stride)| *stride);
        self.lines <= 1 || step != 0 && (step.abs() < self.line_stride.abs() || self.line_stride == 0)
    }

    fn describe(&self) -> String {
        format!(
            "struct {} {{\n    using Element = {};\n    static constexpr int LINES = {};\n    \
             static constexpr Offset LINE_STRIDE = {};\n    static constexpr bool TERMS_ARE_NEIGHBOURS = {};\n{}{}}};\n",
            self.name,
            stored(self.element),
            self.lines,
            self.line_stride,
            self.terms_are_neighbours(),
            offset_function("of_term", &self.terms),
            offset_function("of_product", &self.products),
        )
    }
}

fn is_near(mut loops: impl Iterator<Item = Loop>) -> bool {
    let reach = loops.try_fold(0_usize, |reach, (extent, stride)| {
        reach.checked_add(extent.saturating_sub(1).checked_mul(stride.unsigned_abs())?)
    });
    reach.is_some_and(|reach| reach < i32::MAX as usize)
}

/// A function from the number of an iteration of nested loops, outermost first, to its offset in elements.
fn offset_function(name: &str, loops: &[Loop]) -> String {
    let loops: Vec<Loop> = loops.iter().copied().filter(|(extent, _)| *extent != 1).collect();
    let mut steps = Vec::new();
    let mut inside = 1_usize;
    for (position, (extent, stride)) in loops.iter().enumerate().rev() {
        let divided = if inside == 1 { String::new() } else { format!(" / {inside}u") };
        let wrapped = if position == 0 { String::new() } else { format!(" % {extent}u") };
        if *stride != 0 {
            steps.push(format!("static_cast<Offset>(number{divided}{wrapped}) * {stride}"));
        }
        inside *= extent;
    }
    let body = if steps.is_empty() { "0".to_owned() } else { steps.join(" + ") };
    let parameter = if steps.is_empty() { "unsigned" } else { "unsigned number" };
    format!("    static DTL_INLINE Offset {name}({parameter}) {{\n        return {body};\n    }}\n")
}
