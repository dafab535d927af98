//! Where a product's elements lie, as the kernels see it, and the text that tells them.
//!
//! From a [`MatmulSpec`] to two factors of lines and terms and an output of rows and columns. Chooses no tiles.

use super::MatmulOf;
use super::bulk::BULK_TERMS;
use super::epilogue::{self, Epilogue};
use super::launch::Share;
use crate::cuda::DeviceArgument;
use crate::cuda::mapped::{Loop, MappedRows};
use crate::cuda::source::{Source, float, stored};
use crate::signature::{Accumulation, Element, Factors, MatmulSpec, Orientation};

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
pub(super) struct Product<'a> {
    pub(super) spec: &'a MatmulSpec,
    epilogue: Option<&'a Epilogue>,
    left: Operand,
    right: Operand,
    row_stride: isize,
    column_stride: isize,
    /// Buffers of left and right.
    pub(super) factors: [u32; 2],
    /// The output's buffer.
    pub(super) output: u32,
    /// The numbers of its first buffer and its first integer.
    first: [u32; 2],
}

impl<'a> Product<'a> {
    pub(super) fn of(matmul: &MatmulOf<'a>) -> Product<'a> {
        let MatmulOf { spec, epilogue, first_pointer, first_integer } = *matmul;
        let first = [first_pointer, first_integer];
        let [a_buffer, b_buffer, output] = [0, 1, 2].map(|buffer| first_pointer + buffer);
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
                epilogue,
                left: a,
                right: b,
                row_stride: spec.c_row_stride,
                column_stride: spec.c_column_stride,
                factors: [a_buffer, b_buffer],
                output,
                first,
            },
            Orientation::LanesAlongRows => Product {
                spec,
                epilogue,
                left: Operand { name: "Left", ..b },
                right: Operand { name: "Right", ..a },
                row_stride: spec.c_column_stride,
                column_stride: spec.c_row_stride,
                factors: [b_buffer, a_buffer],
                output,
                first,
            },
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.left.lines
    }

    pub(super) fn columns(&self) -> usize {
        self.right.lines
    }

    /// Tiles of this size that cover all products.
    pub(super) fn tiles(&self, rows: usize, columns: usize) -> usize {
        self.spec.batch_extent() * self.rows().div_ceil(rows) * self.columns().div_ceil(columns)
    }

    /// The factors as pointers to their elements.
    pub(super) fn pointers(&self) -> [(String, DeviceArgument); 2] {
        let pointer = |operand: &Operand, buffer| {
            (format!("const {}*", stored(operand.element)), DeviceArgument::Pointer(buffer))
        };
        [pointer(&self.left, self.factors[0]), pointer(&self.right, self.factors[1])]
    }

    /// An upper bound of the bytes that its arguments take up in a launch, behind those of any others.
    pub(super) fn argument_bytes(&self) -> usize {
        const MAP_BYTES: usize = 128;
        let outputs = epilogue::parameters(self.epilogue).len() * size_of::<u64>();
        2 * MAP_BYTES + outputs.next_multiple_of(MAP_BYTES)
    }

    /// What a launch makes of such sums, which belong at the target, with a source that takes these types and arguments for its factors.
    pub(super) fn share(
        &self,
        (sums, target): (Sums, DeviceArgument),
        source: Source,
        factors: [(String, DeviceArgument); 2],
        tiles: usize,
    ) -> Share {
        let outputs = epilogue::parameters(self.epilogue_of(sums)).into_iter().map(|(kind, _)| kind);
        let (kinds, arguments): (Vec<String>, Vec<DeviceArgument>) = factors.into_iter().unzip();
        Share {
            source,
            parameters: kinds.into_iter().chain(outputs).collect(),
            arguments: arguments.into_iter().chain(self.output_arguments(sums, target)).collect(),
            blocks: sums.parts() * tiles,
        }
    }

    /// The arguments of a kernel that are about outputs.
    pub(super) fn output_arguments(&self, sums: Sums, target: DeviceArgument) -> Vec<DeviceArgument> {
        epilogue::arguments(target, self.epilogue_of(sums), self.first)
    }

    /// Results have an epilogue, parts of sums have none.
    fn epilogue_of(&self, sums: Sums) -> Option<&'a Epilogue> {
        match sums {
            Sums::Whole => self.epilogue,
            Sums::Parts(_) => None,
        }
    }

    /// The factors as tensor maps describe them, of tiles of so many lines each; none where they can't.
    pub(super) fn mapped_factors(&self, [rows, columns]: [usize; 2]) -> Option<[MappedRows; 2]> {
        // What is rounded on its way passes through registers, where single warps multiply.
        if self.spec.factors == Factors::Tf32 && self.spec.a == Element::F32 {
            return None;
        }
        let left = self.left.mapped(self.factors[0], rows)?;
        Some([left, self.right.mapped(self.factors[1], columns)?])
    }

    /// The sums of a row of one part of a product, as they lie in scratch.
    pub(super) fn part_pitch(&self) -> usize {
        self.columns().next_multiple_of(vector(Element::F32))
    }

    /// The types, constants and functions that say where elements lie and what becomes of a sum.
    pub(super) fn describe(&self, sums: Sums) -> Source {
        let output = self.output(sums);
        let lines = [(self.rows(), output.row_stride), (self.columns(), output.column_stride)];
        let is_near = self.left.is_near()
            && self.right.is_near()
            && is_near(output.products.iter().copied().chain(lines));
        let source = Source::new()
            .alias("Offset", if is_near { "int" } else { "long long" })
            .constant("int", "TERMS", self.spec.k())
            .constant("float", "SCALE", float(output.scale))
            .constant("bool", "ACCUMULATES", output.accumulation == Accumulation::Add)
            .file(&self.left.describe())
            .file(&self.right.describe())
            .file(&output.describe(self.rows(), self.columns()));
        epilogue::outputs(source, self.epilogue_of(sums))
    }

    fn output(&self, sums: Sums) -> Output {
        match sums {
            Sums::Whole => Output {
                element: self.spec.c,
                row_stride: self.row_stride,
                column_stride: self.column_stride,
                products: self.spec.batch.iter().map(|each| (each.extent, each.stride_c)).collect(),
                scale: self.spec.scale,
                accumulation: self.spec.accumulation,
            },
            Sums::Parts(parts) => Output {
                element: Element::F32,
                row_stride: self.part_pitch() as isize,
                column_stride: 1,
                products: vec![(
                    self.spec.batch_extent() * parts,
                    (self.rows() * self.part_pitch()) as isize,
                )],
                scale: 1.0,
                accumulation: Accumulation::Overwrite,
            },
        }
    }
}

/// What a kernel makes of the sums over its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// Outputs.
    Whole,
    /// So many parts of each, in scratch.
    Parts(usize),
}

impl Sums {
    /// How many parts each sum has.
    pub(super) fn parts(self) -> usize {
        match self {
            Sums::Whole => 1,
            Sums::Parts(parts) => parts,
        }
    }
}

/// Where a kernel stores, and what.
struct Output {
    element: Element,
    row_stride: isize,
    column_stride: isize,
    products: Vec<Loop>,
    scale: f32,
    accumulation: Accumulation,
}

impl Output {
    /// As [`Operand::is_aligned`], for rows.
    fn is_aligned(&self, rows: usize, columns: usize) -> bool {
        let count = vector(self.element);
        (self.column_stride == 1 || columns <= 1)
            && are_multiples(&[(rows, self.row_stride)], count)
            && are_multiples(&self.products, count)
    }

    fn describe(&self, rows: usize, columns: usize) -> String {
        format!(
            "struct Output {{\n    using Element = {};\n    static constexpr Offset ROW_STRIDE = {};\n    \
             static constexpr Offset COLUMN_STRIDE = {};\n    static constexpr bool IS_ALIGNED = {};\n{}}};\n",
            stored(self.element),
            self.row_stride,
            self.column_stride,
            self.is_aligned(rows, columns),
            offset_function("of_product", &self.products),
        )
    }
}

impl Operand {
    /// Whether elements that lie beside each other start at a multiple of 16 bytes, wherever as many lines or terms as fill 16 bytes
    /// start, if the operand does so itself.
    fn is_aligned(&self) -> bool {
        let count = vector(self.element);
        let lines = [(self.lines, self.line_stride)];
        let terms: Vec<Loop> = self.terms.iter().copied().filter(|(extent, _)| *extent > 1).collect();
        let is_aligned = match (self.terms_are_neighbours(), terms.as_slice()) {
            (false, terms) => self.line_stride == 1 && are_multiples(terms, count),
            (true, []) => are_multiples(&lines, count),
            (true, [only]) => only.1 == 1 && are_multiples(&lines, count),
            (true, [others @ .., (extent, stride)]) => {
                *stride == 1
                    && extent.is_multiple_of(count)
                    && are_multiples(others, count)
                    && are_multiples(&lines, count)
            }
        };
        is_aligned && are_multiples(&self.products, count)
    }

    /// As a tensor map describes it, if terms are one dimension.
    fn mapped(&self, buffer: u32, tile_lines: usize) -> Option<MappedRows> {
        let mut terms = (1, 0);
        for &(extent, stride) in self.terms.iter().filter(|(extent, _)| *extent != 1) {
            let continues = terms.0 == 1 || terms.1 == stride * extent as isize;
            if extent == 0 || !continues {
                return None;
            }
            terms = (terms.0 * extent, stride);
        }
        let lines = (self.lines, self.line_stride);
        if self.terms_are_neighbours() {
            MappedRows::new(buffer, terms, lines, &self.products, tile_lines)
        } else {
            MappedRows::new(buffer, lines, terms, &self.products, BULK_TERMS)
        }
    }

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
             static constexpr Offset LINE_STRIDE = {};\n    static constexpr bool TERMS_ARE_NEIGHBOURS = {};\n    \
             static constexpr bool IS_ALIGNED = {};\n{}{}}};\n",
            self.name,
            stored(self.element),
            self.lines,
            self.line_stride,
            self.terms_are_neighbours(),
            self.is_aligned(),
            offset_function("of_term", &self.terms),
            offset_function("of_product", &self.products),
        )
    }
}

/// Elements of 16 bytes.
fn vector(element: Element) -> usize {
    16 / element.bytes()
}

fn are_multiples(loops: &[Loop], count: usize) -> bool {
    loops.iter().all(|(extent, stride)| *extent <= 1 || stride.unsigned_abs().is_multiple_of(count))
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
