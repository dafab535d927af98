//! Descriptor of the matrix product kernel, and how a general contraction of strided tensors becomes one.
//!
//! From the compiler's `dot` with concrete local strides to [`MatmulSpec`]. The arithmetic is in
//! `crate::matmul`.

use serde::{Deserialize, Serialize};

use super::{Accumulation, Element, InvalidSpec, Part, aligned, require};
use crate::gemm::blocking;

/// `C[batch, i, j] (+)= scale * sum over p of A[batch, i, p] * B[batch, p, j]`, with any strides.
///
/// `i` and `j` have one stride each per tensor; a row or column index made of several dims whose strides do
/// not nest is given as batch loops in which the other operand's stride is 0 (that operand is then packed
/// again in each iteration). The contraction may be made of several loops at no cost. Products are summed in
/// f32 in the order of `p`, in blocks whose size depends on the total contraction extent alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatmulSpec {
    /// Independent products, outermost loop first; may be empty.
    pub batch: Vec<BatchLoop>,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// The index summed over, outermost loop first; an empty list is one product per output.
    pub contraction: Vec<ContractionLoop>,
    /// Elements between successive rows of A.
    pub a_row_stride: isize,
    /// Elements between successive columns of B.
    pub b_column_stride: isize,
    /// Elements between successive rows of C.
    pub c_row_stride: isize,
    /// Elements between successive columns of C.
    pub c_column_stride: isize,
    /// Element type of A.
    pub a: Element,
    /// Element type of B.
    pub b: Element,
    /// Element type of C.
    pub c: Element,
    /// What is multiplied of A's and B's elements.
    pub factors: Factors,
    /// Whether C is replaced or added to.
    pub accumulation: Accumulation,
    /// Factor on the product (not on C's old content).
    pub scale: f32,
}

/// How a product reads the elements that it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Factors {
    /// As they are.
    AsStored,
    /// Those of f32 rounded to tf32: to ten fraction bits, to the nearest, of two to the one further from zero; what is beyond the largest is infinite.
    /// bf16 and f16 fit it as they are.
    Tf32,
}

/// One loop over independent products. Strides in elements; 0 where an operand does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLoop {
    /// Number of iterations.
    pub extent: usize,
    /// Elements between iterations in A.
    pub stride_a: isize,
    /// Elements between iterations in B.
    pub stride_b: isize,
    /// Elements between iterations in C; not 0 unless the extent is 1.
    pub stride_c: isize,
}

/// One loop of the index summed over. Strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractionLoop {
    /// Number of iterations.
    pub extent: usize,
    /// Elements between iterations in A.
    pub stride_a: isize,
    /// Elements between iterations in B.
    pub stride_b: isize,
}

/// One dim of a general contraction `C = A · B`: its extent and its stride in each tensor that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContractionDim {
    /// Size of the dim.
    pub extent: usize,
    /// Stride in A, if A has the dim.
    pub a: Option<isize>,
    /// Stride in B, if B has the dim.
    pub b: Option<isize>,
    /// Stride in C, if C has the dim; a dim without it is summed over.
    pub c: Option<isize>,
}

impl MatmulSpec {
    /// The product that contracts tensors with these dims, factors as they are stored, C replaced and `scale` 1.
    ///
    /// Neighbouring dims whose strides nest are merged; of what remains the most useful one becomes `m` and
    /// `n`, others become batch loops. Errors if a dim of extent above 1 is in one input alone and not in C
    /// (sum it before), or in C alone.
    pub fn contract(
        dims: &[ContractionDim],
        a: Element,
        b: Element,
        c: Element,
    ) -> Result<Self, InvalidSpec> {
        let mut spec = MatmulSpec {
            batch: Vec::new(),
            m: 1,
            n: 1,
            contraction: Vec::new(),
            a_row_stride: 0,
            b_column_stride: 0,
            c_row_stride: 1,
            c_column_stride: 1,
            a,
            b,
            c,
            factors: Factors::AsStored,
            accumulation: Accumulation::Overwrite,
            scale: 1.0,
        };
        let mut rows = Vec::new();
        let mut columns = Vec::new();
        for dim in merge_nested(dims) {
            let batch_loop = BatchLoop {
                extent: dim.extent,
                stride_a: dim.a.unwrap_or(0),
                stride_b: dim.b.unwrap_or(0),
                stride_c: dim.c.unwrap_or(0),
            };
            match (dim.a, dim.b, dim.c) {
                (Some(_), Some(_), Some(_)) => spec.batch.push(batch_loop),
                (Some(_), None, Some(_)) => rows.push(batch_loop),
                (None, Some(_), Some(_)) => columns.push(batch_loop),
                (Some(stride_a), Some(stride_b), None) => {
                    spec.contraction.push(ContractionLoop { extent: dim.extent, stride_a, stride_b });
                }
                (Some(_), None, None)
                | (None, Some(_), None)
                | (None, None, Some(_))
                | (None, None, None) => {
                    return Err(InvalidSpec { reason: "a contraction's dim is in one tensor only" });
                }
            }
        }
        if let Some(row) = take_best(&mut rows) {
            (spec.m, spec.a_row_stride, spec.c_row_stride) = (row.extent, row.stride_a, row.stride_c);
        }
        if let Some(column) = take_best(&mut columns) {
            (spec.n, spec.b_column_stride, spec.c_column_stride) =
                (column.extent, column.stride_b, column.stride_c);
        }
        spec.batch.extend(rows);
        spec.batch.extend(columns);
        spec.check()?;
        Ok(spec)
    }

    /// Checks what the kernel relies on and the types do not say.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        let batch_is_disjoint = self.batch.iter().all(|batch| batch.extent <= 1 || batch.stride_c != 0);
        require(batch_is_disjoint, "a matmul's batch loop has no stride in C")?;
        require(self.m <= 1 || self.c_row_stride != 0, "a matmul's C has row stride 0")?;
        require(self.n <= 1 || self.c_column_stride != 0, "a matmul's C has column stride 0")
    }

    /// Number of independent products.
    pub fn batch_extent(&self) -> usize {
        self.batch.iter().map(|batch| batch.extent).product()
    }

    /// Number of products summed in each output.
    pub fn k(&self) -> usize {
        self.contraction.iter().map(|contraction| contraction.extent).product()
    }

    /// Multiplications and additions of one call.
    pub fn floating_point_operations(&self) -> usize {
        2 * self.batch_extent() * self.m * self.n * self.k()
    }

    /// Number of parts worth running on `threads` threads.
    pub fn parts(&self, threads: usize) -> usize {
        const LEAST_OPERATIONS_OF_A_PART: usize = 1 << 20;
        (self.floating_point_operations() / LEAST_OPERATIONS_OF_A_PART).clamp(1, threads.max(1))
    }

    /// Scratch in bytes for each part that runs at the same time.
    pub fn scratch_bytes(&self) -> usize {
        let (lanes, columns) = match self.orientation() {
            Orientation::LanesAlongRows => (self.m, self.n),
            Orientation::LanesAlongColumns => (self.n, self.m),
        };
        let tile = match self.c {
            Element::F32 => 0,
            Element::Bf16 | Element::F16 => aligned(4 * blocking::tile_floats(lanes, columns)),
        };
        tile + blocking::scratch_bytes(lanes, columns, self.k())
    }

    /// Which output index runs along vector lanes: the one with unit stride in C, of two the longer.
    pub(crate) fn orientation(&self) -> Orientation {
        let score = |extent: usize, stride: isize| {
            if extent > 1 && stride == 1 { 1 + extent } else { 0 }
        };
        if score(self.m, self.c_row_stride) > score(self.n, self.c_column_stride) {
            Orientation::LanesAlongRows
        } else {
            Orientation::LanesAlongColumns
        }
    }

    /// The batch, row and column ranges that a part computes.
    pub(crate) fn share(&self, part: Part) -> Share {
        let grid = self.grid(part.count);
        let batch = Part { index: part.index / (grid.rows * grid.columns), count: grid.batch };
        let rows = Part { index: part.index / grid.columns % grid.rows, count: grid.rows };
        let columns = Part { index: part.index % grid.columns, count: grid.columns };
        let (row_granule, column_granule) = match self.orientation() {
            Orientation::LanesAlongRows => {
                (blocking::lane_granule(self.m, grid.rows), blocking::COLUMN_GRANULE)
            }
            Orientation::LanesAlongColumns => {
                (blocking::COLUMN_GRANULE, blocking::lane_granule(self.n, grid.columns))
            }
        };
        Share {
            batch: batch.range(self.batch_extent(), 1),
            rows: rows.range(self.m, row_granule),
            columns: columns.range(self.n, column_granule),
        }
    }

    /// Divides `parts` over batch, rows and columns: each prime factor goes to the batch while that divides
    /// well, else to the longer side of the tile.
    fn grid(&self, parts: usize) -> Grid {
        let mut grid = Grid { batch: 1, rows: 1, columns: 1 };
        let mut remaining = parts;
        let mut factor = 2;
        while remaining > 1 {
            if !remaining.is_multiple_of(factor) {
                factor += 1;
                continue;
            }
            remaining /= factor;
            let batch = grid.batch * factor;
            if self.batch_extent().is_multiple_of(batch) || self.batch_extent() >= 4 * batch {
                grid.batch = batch;
            } else if self.m / grid.rows >= self.n / grid.columns {
                grid.rows *= factor;
            } else {
                grid.columns *= factor;
            }
        }
        grid
    }
}

/// Which index of C runs along vector lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orientation {
    LanesAlongRows,
    LanesAlongColumns,
}

/// What one part computes.
pub(crate) struct Share {
    pub batch: std::ops::Range<usize>,
    pub rows: std::ops::Range<usize>,
    pub columns: std::ops::Range<usize>,
}

struct Grid {
    batch: usize,
    rows: usize,
    columns: usize,
}

/// Drops dims of extent 1 and merges each pair of dims that step through every tensor they are in as one
/// would.
fn merge_nested(dims: &[ContractionDim]) -> Vec<ContractionDim> {
    let mut merged: Vec<ContractionDim> = dims.iter().copied().filter(|dim| dim.extent != 1).collect();
    let mut outer = 0;
    while outer < merged.len() {
        match (0..merged.len()).find(|&inner| inner != outer && nests(&merged[outer], &merged[inner])) {
            Some(inner) => {
                merged[inner].extent *= merged[outer].extent;
                merged.remove(outer);
                outer = 0;
            }
            None => outer += 1,
        }
    }
    merged
}

/// Whether one step of `outer` is `inner.extent` steps of `inner` in each tensor, and both are in the same
/// tensors.
fn nests(outer: &ContractionDim, inner: &ContractionDim) -> bool {
    let in_tensor =
        |outer_stride: Option<isize>, inner_stride: Option<isize>| match (outer_stride, inner_stride) {
            (Some(outer_stride), Some(inner_stride)) => outer_stride == inner_stride * inner.extent as isize,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
    in_tensor(outer.a, inner.a) && in_tensor(outer.b, inner.b) && in_tensor(outer.c, inner.c)
}

/// Takes out the loop that makes the best row or column index: long, and better still with unit stride in C.
fn take_best(loops: &mut Vec<BatchLoop>) -> Option<BatchLoop> {
    const UNIT_STRIDE_BONUS: usize = 8;
    let score = |candidate: &BatchLoop| {
        candidate.extent * if candidate.stride_c == 1 { UNIT_STRIDE_BONUS } else { 1 }
    };
    let best = (0..loops.len()).max_by_key(|&index| score(&loops[index]))?;
    Some(loops.remove(best))
}
