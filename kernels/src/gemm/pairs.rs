//! The product of two bf16 operands by AVX-512's dot products of pairs, `vdpbf16ps`.
//!
//! Packs pairs of contraction steps side by side, a lane's two numbers in one word; a pair past the end is filled up with
//! zero. Each output is one chain in f32 over pairs, the later step of a pair first. Products are exact; the instruction
//! takes denormal numbers as zero. Blocks are [`super::gemm`]'s.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Operand, Output, Product, blocking, pack, transpose};
use crate::{
    isa::{Isa, for_each_isa},
    number::offset,
    signature::{Accumulation, ContractionLoop, Element},
};

/// Numbers in a vector of sums.
const VECTOR: usize = 16;
/// Lanes of the largest tile: with its columns 24 sums, four vectors of lanes and one of a column, of 32 registers.
const LANES: usize = VECTORS * VECTOR;
/// Vectors of its lanes.
const VECTORS: usize = 4;
/// Columns of the largest tile.
const COLUMNS: usize = 6;

/// Computes one product of bf16 operands.
///
/// # Safety
/// As [`super::gemm`]; the host must have AVX-512 with bf16.
pub(crate) unsafe fn gemm(product: &Product<'_>, k: usize, scratch: *mut u8) {
    let depth = blocking::depth_of_pairs(k);
    let packed_left = scratch.cast::<u16>();
    let packed_right = scratch.wrapping_add(blocking::left_bytes(product.lanes, k)).cast::<u16>();
    super::for_each_block(
        product,
        k,
        depth,
        // SAFETY: the caller's promise; blocks lie in the product, packed ones in scratch.
        |span, columns| unsafe { right_block(product, span, columns, packed_right) },
        // SAFETY: likewise.
        |right, place| unsafe {
            let lanes = place.lanes.clone();
            let left = &product.left;
            pack_pairs(left, product.contraction, place.span.clone(), panels(lanes, LANES), packed_left);
            multiply(product, right, packed_left, place);
        },
    );
}

/// A right operand as the microkernel reads it; strides are in bytes.
struct Right {
    data: *const u8,
    pair_stride: isize,
    column_stride: isize,
    /// From a tile's first column to the next tile's.
    tile_stride: isize,
}

/// The right operand's block: where it lies if pairs lie side by side there, else packed.
///
/// # Safety
/// As [`gemm`].
unsafe fn right_block(
    product: &Product<'_>,
    span: Range<usize>,
    columns: Range<usize>,
    packed: *mut u16,
) -> Right {
    let operand = &product.right;
    let bytes = Element::Bf16.bytes() as isize;
    if let [contraction] = product.contraction
        && operand.side.stride(contraction) == 1
        && span.len().is_multiple_of(2)
    {
        let at = columns.start as isize * operand.stride + span.start as isize;
        let column_stride = operand.stride * bytes;
        let tile_stride = COLUMNS as isize * column_stride;
        return Right {
            data: offset(operand.data, Element::Bf16, at),
            pair_stride: 2 * bytes,
            column_stride,
            tile_stride,
        };
    }
    let pair_stride = (2 * COLUMNS) as isize * bytes;
    let tile_stride = span.len().div_ceil(2) as isize * pair_stride;
    // SAFETY: the caller's promise.
    unsafe { pack_pairs(operand, product.contraction, span, panels(columns, COLUMNS), packed) };
    Right { data: packed.cast(), pair_stride, column_stride: 2 * bytes, tile_stride }
}

fn panels(lanes: Range<usize>, width: usize) -> pack::Panels {
    pack::Panels { first: lanes.start, count: lanes.len(), width }
}

/// Packs panels over the contraction steps `span`: for each pair of steps the panel's lanes side by side.
///
/// # Safety
/// As [`pack::pack`]; the destination must hold whole panels, the span rounded up to pairs.
unsafe fn pack_pairs(
    operand: &Operand,
    contraction: &[ContractionLoop],
    span: Range<usize>,
    panels: pack::Panels,
    destination: *mut u16,
) {
    let pairs = span.len().div_ceil(2);
    for start in (0..panels.count).step_by(panels.width) {
        let lanes = panels.width.min(panels.count - start);
        let panel = destination.wrapping_add(start * 2 * pairs);
        if lanes < panels.width || span.len() % 2 == 1 {
            // SAFETY: the panel is inside the destination.
            unsafe { panel.write_bytes(0, panels.width * 2 * pairs) };
        }
        let base = offset(operand.data, Element::Bf16, (panels.first + start) as isize * operand.stride);
        let mut step = span.start;
        while step < span.end {
            let run = pack::run_from(contraction, operand, step, span.end - step);
            let piece = Piece {
                lanes,
                width: panels.width,
                first: step - span.start,
                length: run.length,
                lane_stride: operand.stride,
                step_stride: run.stride,
            };
            let source = offset(base, Element::Bf16, run.start).cast::<u16>();
            // SAFETY: the piece lies inside the operand and inside the panel.
            unsafe { pack_piece(source, &piece, panel) };
            step += run.length;
        }
    }
}

/// Part of a panel with one stride in each direction.
struct Piece {
    lanes: usize,
    width: usize,
    /// First step, counted from the panel's.
    first: usize,
    length: usize,
    lane_stride: isize,
    step_stride: isize,
}

/// # Safety
/// As [`pack_pairs`].
unsafe fn pack_piece(source: *const u16, piece: &Piece, panel: *mut u16) {
    // Single numbers where a pair is cut by the end of a run, whole pairs between.
    let head = (piece.first % 2).min(piece.length);
    let tail = (piece.length - head) % 2;
    let pairs = (piece.length - head - tail) / 2;
    // SAFETY: all steps are the piece's.
    unsafe {
        if head == 1 {
            pack_step(source, piece, 0, panel);
        }
        if tail == 1 {
            pack_step(source, piece, piece.length - 1, panel);
        }
        let source = source.wrapping_offset(head as isize * piece.step_stride);
        let panel = panel.wrapping_add((piece.first + head) * piece.width).cast::<u32>();
        if piece.step_stride == 1 && piece.lanes.is_multiple_of(transpose::BLOCK) {
            pack_transposed(source.cast(), piece, pairs, panel);
        } else {
            pack_words(Isa::Avx512, source, piece, pairs, panel);
        }
    }
}

/// Packs one step of a piece, which has only half of a pair.
///
/// # Safety
/// As [`pack_pairs`].
unsafe fn pack_step(source: *const u16, piece: &Piece, step: usize, panel: *mut u16) {
    let (pair, half) = ((piece.first + step) / 2, (piece.first + step) % 2);
    for lane in 0..piece.lanes {
        let from =
            source.wrapping_offset(lane as isize * piece.lane_stride + step as isize * piece.step_stride);
        // SAFETY: the lane and the step are the piece's.
        unsafe { *panel.add((pair * piece.width + lane) * 2 + half) = from.read() };
    }
}

/// Packs whole pairs of a piece whose steps lie side by side: blocks of words are transposed.
///
/// # Safety
/// As [`pack_pairs`]; lanes come in whole blocks.
unsafe fn pack_transposed(source: *const u8, piece: &Piece, pairs: usize, panel: *mut u32) {
    let row_bytes = piece.lane_stride * 2;
    let whole = pairs - pairs % transpose::BLOCK;
    for lane in (0..piece.lanes).step_by(transpose::BLOCK) {
        let row = source.wrapping_offset(lane as isize * row_bytes);
        for pair in (0..whole).step_by(transpose::BLOCK) {
            // SAFETY: the block lies in the piece and in the panel.
            unsafe {
                let to = panel.add(pair * piece.width + lane);
                transpose::transpose_block(row.wrapping_add(4 * pair), row_bytes, to, piece.width);
            }
        }
        for offset in 0..transpose::BLOCK {
            let row = row.wrapping_offset(offset as isize * row_bytes).cast::<u32>();
            for pair in whole..pairs {
                // SAFETY: the pair lies in the piece and in the panel.
                unsafe { *panel.add(pair * piece.width + lane + offset) = row.add(pair).read_unaligned() };
            }
        }
    }
}

for_each_isa! {
    /// Packs whole pairs of a piece, number by number.
    fn pack_words(source: *const u16, piece: &Piece, pairs: usize, panel: *mut u32) = pack_words_body
}

/// # Safety
/// As [`pack_pairs`].
#[inline(always)]
unsafe fn pack_words_body(source: *const u16, piece: &Piece, pairs: usize, panel: *mut u32) {
    for pair in 0..pairs {
        let from = source.wrapping_offset(2 * pair as isize * piece.step_stride);
        let next = from.wrapping_offset(piece.step_stride);
        // SAFETY: both steps of all lanes are in the source, the pair in the panel.
        unsafe {
            let to = panel.add(pair * piece.width);
            if piece.lane_stride == 1 {
                if piece.lanes == LANES {
                    join(from, next, 1, to, LANES);
                } else {
                    join(from, next, 1, to, piece.lanes);
                }
            } else {
                join(from, next, piece.lane_stride, to, piece.lanes);
            }
        }
    }
}

/// Words of a lane's number at `from`, low, and at `next`, high.
///
/// # Safety
/// `lanes` numbers must be readable `stride` apart, as many words writable.
#[inline(always)]
unsafe fn join(from: *const u16, next: *const u16, stride: isize, to: *mut u32, lanes: usize) {
    for lane in 0..lanes {
        let at = lane as isize * stride;
        // SAFETY: `lane < lanes`.
        unsafe { *to.add(lane) = u32::from(*from.offset(at)) | u32::from(*next.offset(at)) << 16 };
    }
}

/// Runs the microkernel over every register tile of a block.
///
/// # Safety
/// As [`gemm`]; the left operand is packed.
unsafe fn multiply(product: &Product<'_>, right: &Right, left: *const u16, place: &super::Place) {
    let pairs = place.span.len().div_ceil(2);
    let (lanes, columns) = (place.lanes.len(), place.columns.len());
    for (index, column) in (0..columns).step_by(COLUMNS).enumerate() {
        for lane in (0..lanes).step_by(LANES) {
            let tile = Tile {
                lanes: LANES.min(lanes - lane),
                pairs,
                left: left.wrapping_add(lane * 2 * pairs).cast(),
                right: right.data.wrapping_offset(index as isize * right.tile_stride),
                pair_stride: right.pair_stride,
                column_stride: right.column_stride,
                output: product.output.shifted(place.lanes.start + lane, place.columns.start + column),
                accumulation: place.accumulation,
                scale: product.scale,
            };
            // SAFETY: the tile lies inside the block.
            unsafe { tile.run(COLUMNS.min(columns - column)) };
        }
    }
}

/// Repeats a block with a constant that counts, below a constant bound. Sums that are indexed by such constants stay in
/// registers; those that a loop goes over do not.
macro_rules! unrolled {
    ($index:ident < $bound:ident in [$($value:literal)*] $body:block) => {
        $(
            if $value < $bound {
                const $index: usize = $value;
                $body
            }
        )*
    };
}

/// One register tile.
struct Tile {
    lanes: usize,
    pairs: usize,
    left: *const u32,
    right: *const u8,
    pair_stride: isize,
    column_stride: isize,
    output: Output,
    accumulation: Accumulation,
    scale: f32,
}

impl Tile {
    /// # Safety
    /// As [`gemm`].
    unsafe fn run(&self, columns: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match columns {
                1 => self.run_columns::<1>(),
                2 => self.run_columns::<2>(),
                3 => self.run_columns::<3>(),
                4 => self.run_columns::<4>(),
                5 => self.run_columns::<5>(),
                _ => self.run_columns::<COLUMNS>(),
            }
        }
    }

    /// # Safety
    /// As [`gemm`].
    unsafe fn run_columns<const C: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.lanes.div_ceil(VECTOR) {
                1 => self.compute::<1, C>(),
                2 => self.compute::<2, C>(),
                3 => self.compute::<3, C>(),
                _ => self.compute::<4, C>(),
            }
        }
    }

    /// # Safety
    /// As [`gemm`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn compute<const V: usize, const C: usize>(&self) {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; COLUMNS];
        let (mut left, mut right) = (self.left, self.right);
        for _ in 0..self.pairs {
            let mut lanes = [_mm512_setzero_si512(); VECTORS];
            unrolled!(AT < V in [0 1 2 3] {
                // SAFETY: `pairs` rows of the packed panel are readable.
                lanes[AT] = unsafe { _mm512_loadu_si512(left.add(VECTOR * AT).cast()) };
            });
            unrolled!(COLUMN < C in [0 1 2 3 4 5] {
                let word = right.wrapping_offset(COLUMN as isize * self.column_stride).cast::<i32>();
                // SAFETY: `pairs` rows of the right operand are readable.
                let word = as_pairs(_mm512_set1_epi32(unsafe { word.read_unaligned() }));
                unrolled!(AT < V in [0 1 2 3] {
                    sums[COLUMN][AT] = _mm512_dpbf16_ps(sums[COLUMN][AT], as_pairs(lanes[AT]), word);
                });
            });
            left = left.wrapping_add(LANES);
            right = right.wrapping_offset(self.pair_stride);
        }
        unrolled!(COLUMN < C in [0 1 2 3 4 5] {
            unrolled!(AT < V in [0 1 2 3] {
                // SAFETY: the output is writable at the tile's lanes and columns.
                unsafe { self.store(AT * VECTOR, COLUMN, sums[COLUMN][AT]) };
            });
        });
    }

    /// Writes or adds a vector of sums, as far as it has lanes.
    ///
    /// # Safety
    /// As [`gemm`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn store(&self, lane: usize, column: usize, sum: __m512) {
        let count = VECTOR.min(self.lanes - lane);
        let mask = (u32::MAX >> (32 - count as u32)) as __mmask16;
        let to = self.output.shifted(lane, column);
        let sum = _mm512_mul_ps(sum, _mm512_set1_ps(self.scale));
        // SAFETY: only lanes of the tile are touched.
        unsafe {
            if to.lane_stride == 1 {
                let old = match self.accumulation {
                    Accumulation::Overwrite => _mm512_setzero_ps(),
                    Accumulation::Add => _mm512_maskz_loadu_ps(mask, to.data),
                };
                _mm512_mask_storeu_ps(to.data, mask, _mm512_add_ps(old, sum));
                return;
            }
            let mut sums = [0.0f32; VECTOR];
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
            for (index, sum) in sums[..count].iter().enumerate() {
                let to = to.shifted(index, 0).data;
                *to = match self.accumulation {
                    Accumulation::Overwrite => *sum,
                    Accumulation::Add => *to + sum,
                };
            }
        }
    }
}

/// Words as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn as_pairs(words: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, any of which are valid.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
}
