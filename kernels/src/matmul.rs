//! The matrix product kernel: from a [`MatmulSpec`], pointers and a part of the work to calls of the GEMM.
//!
//! Does batching, the division among threads and narrow outputs; cache blocking and arithmetic are
//! `crate::gemm`'s.

use std::ops::Range;

use crate::{
    gemm::{Operand, Output, Product, Side, blocking, gemm},
    isa::{Isa, for_each_isa},
    number::{Number, offset, offset_mut},
    signature::{Accumulation, Element, MatmulSpec, Orientation, Part, Share, aligned},
};

use half::{bf16, f16};

/// Computes one part of the product that `spec` describes.
///
/// # Safety
/// `spec` must pass [`MatmulSpec::check`]. `a` and `b` must be readable and `c` writable at every index that
/// `spec` reaches from them, aligned to their elements, and `c` must overlap neither. `scratch` must be
/// aligned to [`crate::signature::SCRATCH_ALIGNMENT`] and hold [`MatmulSpec::scratch_bytes`]. Calls with
/// distinct parts of one count may run at the same time with distinct scratch.
pub unsafe fn matmul(
    spec: &MatmulSpec,
    a: *const u8,
    b: *const u8,
    c: *mut u8,
    scratch: *mut u8,
    part: Part,
) {
    // SAFETY: the instruction set was detected; the rest is the caller's promise.
    unsafe { matmul_with(Isa::detect(), spec, a, b, c, scratch, part) }
}

/// [`matmul`] with a given instruction set.
///
/// # Safety
/// As [`matmul`], and `isa` must be available.
pub unsafe fn matmul_with(
    isa: Isa,
    spec: &MatmulSpec,
    a: *const u8,
    b: *const u8,
    c: *mut u8,
    scratch: *mut u8,
    part: Part,
) {
    let Share { batch, rows, columns } = spec.share(part);
    if rows.is_empty() || columns.is_empty() {
        return;
    }
    for index in batch {
        let at = batch_offsets(spec, index);
        let call = Call {
            isa,
            spec,
            a: offset(a, spec.a, at.a + rows.start as isize * spec.a_row_stride),
            b: offset(b, spec.b, at.b + columns.start as isize * spec.b_column_stride),
            c: offset_mut(
                c,
                spec.c,
                at.c + rows.start as isize * spec.c_row_stride
                    + columns.start as isize * spec.c_column_stride,
            ),
            scratch,
        };
        // SAFETY: the share is inside the product, so the call is inside what the caller vouches for.
        unsafe { call.run(rows.len(), columns.len()) };
    }
}

/// Element offsets of one product of the batch.
struct BatchOffsets {
    a: isize,
    b: isize,
    c: isize,
}

fn batch_offsets(spec: &MatmulSpec, index: usize) -> BatchOffsets {
    let mut offsets = BatchOffsets { a: 0, b: 0, c: 0 };
    let mut remaining = index;
    for batch in spec.batch.iter().rev() {
        let step = (remaining % batch.extent) as isize;
        remaining /= batch.extent;
        offsets.a += step * batch.stride_a;
        offsets.b += step * batch.stride_b;
        offsets.c += step * batch.stride_c;
    }
    offsets
}

/// One product of the batch, cut to a part's rows and columns.
struct Call<'a> {
    isa: Isa,
    spec: &'a MatmulSpec,
    a: *const u8,
    b: *const u8,
    c: *mut u8,
    scratch: *mut u8,
}

impl Call<'_> {
    /// # Safety
    /// As [`matmul`], for `m` rows and `n` columns from the pointers on.
    unsafe fn run(&self, m: usize, n: usize) {
        let spec = self.spec;
        let operand = |data: *const u8, element: Element, stride: isize, side: Side| {
            let factors = spec.factors;
            Operand { data, element, stride, side, factors }
        };
        let rows = operand(self.a, spec.a, spec.a_row_stride, Side::A);
        let columns = operand(self.b, spec.b, spec.b_column_stride, Side::B);
        let by_rows = spec.orientation() == Orientation::LanesAlongRows;
        let (left, right) = if by_rows { (rows, columns) } else { (columns, rows) };
        let (lanes, lane_stride) = if by_rows { (m, spec.c_row_stride) } else { (n, spec.c_column_stride) };
        let (width, column_stride) = if by_rows { (n, spec.c_column_stride) } else { (m, spec.c_row_stride) };
        let product = Product {
            lanes,
            columns: width,
            contraction: &spec.contraction,
            left,
            right,
            output: Output { data: self.c.cast::<f32>(), lane_stride, column_stride },
            accumulation: spec.accumulation,
            scale: spec.scale,
        };
        // SAFETY: the product's indices are the call's; a narrow output is never used as the f32 pointer
        // above.
        unsafe {
            match spec.c {
                Element::F32 => gemm(self.isa, &product, self.scratch),
                Element::Bf16 => self.run_narrow::<bf16>(&product),
                Element::F16 => self.run_narrow::<f16>(&product),
            }
        }
    }

    /// Computes an output of 16 bits tile by tile in f32 scratch, so that it is rounded once.
    ///
    /// # Safety
    /// As [`Call::run`].
    unsafe fn run_narrow<Stored: Number>(&self, product: &Product<'_>) {
        let tile = self.scratch.cast::<f32>();
        let packing =
            self.scratch.wrapping_add(aligned(4 * blocking::tile_floats(product.lanes, product.columns)));
        for lane in (0..product.lanes).step_by(blocking::TILE) {
            for column in (0..product.columns).step_by(blocking::TILE) {
                let lanes = lane..product.lanes.min(lane + blocking::TILE);
                let columns = column..product.columns.min(column + blocking::TILE);
                let in_tile = Product {
                    lanes: lanes.len(),
                    columns: columns.len(),
                    left: shifted(&product.left, lane),
                    right: shifted(&product.right, column),
                    output: Output { data: tile, lane_stride: 1, column_stride: lanes.len() as isize },
                    accumulation: Accumulation::Overwrite,
                    ..*product
                };
                // SAFETY: the tile fits its scratch, and the tile's place in C is inside C.
                unsafe {
                    gemm(self.isa, &in_tile, packing);
                    self.store_narrow::<Stored>(product, lanes, columns, tile);
                }
            }
        }
    }

    /// Rounds a tile into C.
    ///
    /// # Safety
    /// The tile must hold the lanes and columns, and C be writable there.
    unsafe fn store_narrow<Stored: Number>(
        &self,
        product: &Product<'_>,
        lanes: Range<usize>,
        columns: Range<usize>,
        tile: *const f32,
    ) {
        for column in columns.clone() {
            let at = lanes.start as isize * product.output.lane_stride
                + column as isize * product.output.column_stride;
            let line = NarrowLine {
                from: tile.wrapping_add((column - columns.start) * lanes.len()),
                to: self.c.cast::<Stored>().wrapping_offset(at),
                count: lanes.len(),
                stride: product.output.lane_stride,
                accumulation: product.accumulation,
            };
            // SAFETY: one column of the tile and of C.
            unsafe { store_line(self.isa, &line) };
        }
    }
}

fn shifted(operand: &Operand, index: usize) -> Operand {
    Operand { data: offset(operand.data, operand.element, index as isize * operand.stride), ..*operand }
}

/// One column of a tile on its way to C.
struct NarrowLine<Stored> {
    from: *const f32,
    to: *mut Stored,
    count: usize,
    stride: isize,
    accumulation: Accumulation,
}

for_each_isa! {
    /// Rounds one column of a tile into C.
    fn store_line<Stored: Number>(line: &NarrowLine<Stored>) = store_line_body
}

/// # Safety
/// The line must be readable and writable.
#[inline(always)]
unsafe fn store_line_body<Stored: Number>(line: &NarrowLine<Stored>) {
    // SAFETY: the slices and offsets are inside the line.
    unsafe {
        let from = std::slice::from_raw_parts(line.from, line.count);
        if line.stride == 1 && line.accumulation == Accumulation::Overwrite {
            let to = std::slice::from_raw_parts_mut(line.to, line.count);
            for (to, from) in to.iter_mut().zip(from) {
                *to = Number::narrow(*from);
            }
            return;
        }
        for (index, from) in from.iter().enumerate() {
            let to = line.to.offset(index as isize * line.stride);
            let old = match line.accumulation {
                Accumulation::Overwrite => 0.0,
                Accumulation::Add => (*to).widen(),
            };
            *to = Number::narrow(old + from);
        }
    }
}
