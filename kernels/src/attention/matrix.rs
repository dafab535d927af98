//! A block of positions of one head, `[rows, features]` with features side by side, in the forms that the
//! GEMM takes.

use crate::{
    gemm::{Operand, Right, Side, pack_left, pack_right},
    isa::{Isa, for_each_isa},
    number::{Number, with_element},
    signature::{ContractionLoop, Element, Factors, Head, HeadStrides},
};

/// A block of positions of one head.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub data: *const u8,
    pub element: Element,
    pub row_stride: isize,
    pub rows: usize,
    pub features: usize,
}

/// Where a tensor of heads lies.
#[derive(Clone, Copy)]
pub(super) struct HeadTensor<'a> {
    pub data: *const u8,
    pub element: Element,
    pub strides: &'a HeadStrides,
    pub features: usize,
}

impl HeadTensor<'_> {
    /// The positions `rows` of one head.
    pub(super) fn rows(&self, head: Head, rows: std::ops::Range<usize>) -> Matrix {
        let at = self.strides.offset(head, rows.start);
        Matrix {
            data: crate::number::offset(self.data, self.element, at),
            element: self.element,
            row_stride: self.strides.sequence,
            rows: rows.len(),
            features: self.features,
        }
    }
}

impl Matrix {
    /// Some of the matrix's rows.
    pub(super) fn slice(&self, rows: std::ops::Range<usize>) -> Matrix {
        let data = crate::number::offset(self.data, self.element, rows.start as isize * self.row_stride);
        Matrix { data, rows: rows.len(), ..*self }
    }

    /// Packs a left operand with lanes along rows, to be summed over features.
    ///
    /// # Safety
    /// The matrix must be readable and `packed` hold `features` floats for each row, rows rounded up to 64.
    pub(super) unsafe fn pack_by_row(&self, isa: Isa, packed: *mut f32) {
        let operand = self.operand(self.row_stride);
        // SAFETY: the caller's promise.
        unsafe {
            pack_left(isa, &operand, &[steps(self.features, 1)], 0..self.features, 0..self.rows, packed);
        }
    }

    /// Packs a left operand with lanes along features, to be summed over rows.
    ///
    /// # Safety
    /// The matrix must be readable and `packed` hold `rows` floats for each feature, features rounded up to
    /// 64.
    pub(super) unsafe fn pack_by_feature(&self, isa: Isa, packed: *mut f32) {
        let operand = self.operand(1);
        let contraction = [steps(self.rows, self.row_stride)];
        // SAFETY: the caller's promise.
        unsafe { pack_left(isa, &operand, &contraction, 0..self.rows, 0..self.features, packed) };
    }

    /// The right operand with columns along rows, to be summed over features; `packed` is used unless the
    /// matrix is f32.
    ///
    /// # Safety
    /// The matrix must be readable and, unless it is f32, `packed` hold `features` floats for each row, rows
    /// rounded up to 12.
    pub(super) unsafe fn columns(&self, isa: Isa, packed: *mut f32) -> Right {
        let operand = self.operand(self.row_stride);
        match self.element {
            Element::F32 => Right::in_place(self.data.cast(), 1, self.row_stride),
            // SAFETY: the caller's promise.
            Element::Bf16 | Element::F16 => unsafe {
                pack_right(isa, &operand, &[steps(self.features, 1)], 0..self.features, 0..self.rows, packed)
            },
        }
    }

    /// The matrix as the GEMM reads it, so many elements from lane to lane.
    fn operand(&self, stride: isize) -> Operand {
        Operand { data: self.data, element: self.element, stride, side: Side::A, factors: Factors::AsStored }
    }

    /// Writes `factors[row] * source[row]`, rounded, to this matrix's memory.
    ///
    /// # Safety
    /// The matrix must be writable and the source hold `[rows, features]`.
    pub(super) unsafe fn store(&self, isa: Isa, source: *const f32, factor: impl Fn(usize) -> f32) {
        for row in 0..self.rows {
            let at =
                crate::number::offset(self.data, self.element, row as isize * self.row_stride).cast_mut();
            // SAFETY: the row is inside both.
            unsafe {
                let source = std::slice::from_raw_parts(source.add(row * self.features), self.features);
                with_element!(self.element, Stored => store_row::<Stored>(isa, source, factor(row), at.cast()));
            }
        }
    }

    /// The sum over features of this row times the same row of `other`.
    ///
    /// # Safety
    /// Both must be readable and have one element type and size.
    pub(super) unsafe fn dot_row(&self, isa: Isa, other: &Matrix, row: usize) -> f32 {
        let at = |matrix: &Matrix| {
            crate::number::offset(matrix.data, matrix.element, row as isize * matrix.row_stride)
        };
        // SAFETY: the row is inside both.
        unsafe {
            with_element!(self.element, Stored => dot::<Stored>(isa, at(self).cast(), at(other).cast(), self.features))
        }
    }
}

fn steps(extent: usize, stride: isize) -> ContractionLoop {
    ContractionLoop { extent, stride_a: stride, stride_b: stride }
}

for_each_isa! {
    /// Stores a row times a factor.
    fn store_row<Stored: Number>(source: &[f32], factor: f32, destination: *mut Stored) = store_row_body
}

/// # Safety
/// The destination must be writable for the source's length.
#[inline(always)]
unsafe fn store_row_body<Stored: Number>(source: &[f32], factor: f32, destination: *mut Stored) {
    // SAFETY: the caller's promise.
    let destination = unsafe { std::slice::from_raw_parts_mut(destination, source.len()) };
    for (to, from) in destination.iter_mut().zip(source) {
        *to = Stored::narrow(from * factor);
    }
}

for_each_isa! {
    /// Sum of products of two rows.
    fn dot<Stored: Number>(left: *const Stored, right: *const Stored, count: usize) -> f32 = dot_body
}

/// Sums in 16 chains, so that it vectorises and gives the same bits on every instruction set with fused
/// multiply-add.
///
/// # Safety
/// Both rows must be readable for `count` numbers.
#[inline(always)]
unsafe fn dot_body<Stored: Number>(left: *const Stored, right: *const Stored, count: usize) -> f32 {
    const CHAINS: usize = 16;
    // SAFETY: the caller's promise.
    let (left, right) =
        unsafe { (std::slice::from_raw_parts(left, count), std::slice::from_raw_parts(right, count)) };
    let mut sums = [0.0f32; CHAINS];
    let (left, left_rest) = left.as_chunks::<CHAINS>();
    let (right, right_rest) = right.as_chunks::<CHAINS>();
    for (left, right) in left.iter().zip(right) {
        for lane in 0..CHAINS {
            sums[lane] = left[lane].widen().mul_add(right[lane].widen(), sums[lane]);
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left.widen() * right.widen()).sum();
    sums.iter().sum::<f32>() + rest
}
