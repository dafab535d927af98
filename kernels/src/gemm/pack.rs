//! Packs a block of an operand into panels: for each contraction step, the panel's lanes side by side, in
//! f32.

use std::ops::Range;

use super::Operand;
use crate::{
    isa::{Isa, for_each_isa},
    number::{Number, offset, tf32, with_element},
    signature::{ContractionLoop, Element},
};

/// Which lanes or columns to pack, `width` to a panel. The last panel is filled up with zeros.
pub(crate) struct Panels {
    pub first: usize,
    pub count: usize,
    pub width: usize,
}

/// Packs `panels` of `operand` over the contraction steps `span`; panel `i` starts at `i * width *
/// span.len()`.
///
/// # Safety
/// `isa` must be available, the operand readable at these indices, and the destination writable for whole
/// panels.
pub(crate) unsafe fn pack(
    isa: Isa,
    operand: &Operand,
    contraction: &[ContractionLoop],
    span: Range<usize>,
    panels: Panels,
    destination: *mut f32,
) {
    // Narrow panels whose lanes lie side by side share cache lines: a few steps of all of them before the next steps.
    let shares_lines = operand.stride == 1 && panels.width * operand.element.bytes() < LINE;
    let steps = if shares_lines { STEPS } else { span.len().max(1) };
    for first in span.clone().step_by(steps) {
        let part = first..span.end.min(first + steps);
        for start in (0..panels.count).step_by(panels.width) {
            let panel = destination.wrapping_add(start * span.len() + (first - span.start) * panels.width);
            // SAFETY: these steps of the panel are among the caller's.
            unsafe { pack_panel(isa, operand, contraction, part.clone(), &panels, start, panel) };
            if operand.is_rounded() {
                // SAFETY: they have all been written.
                let packed = unsafe { std::slice::from_raw_parts_mut(panel, part.len() * panels.width) };
                // SAFETY: the caller's promise.
                unsafe { round_to_tf32(isa, packed) };
            }
        }
    }
}

for_each_isa! {
    /// Rounds packed numbers to tf32.
    fn round_to_tf32(numbers: &mut [f32]) = round_to_tf32_body
}

/// # Safety
/// None: as `for_each_isa` calls it.
#[inline(always)]
unsafe fn round_to_tf32_body(numbers: &mut [f32]) {
    numbers.iter_mut().for_each(|number| *number = tf32(*number));
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Steps of all narrow panels before the next steps.
const STEPS: usize = 16;

/// Packs the panel that starts at lane `start` over the contraction steps `span`.
///
/// # Safety
/// As [`pack`], with the destination at the panel's place for the span.
unsafe fn pack_panel(
    isa: Isa,
    operand: &Operand,
    contraction: &[ContractionLoop],
    span: Range<usize>,
    panels: &Panels,
    start: usize,
    mut panel: *mut f32,
) {
    let lanes = panels.width.min(panels.count - start);
    let base = offset(operand.data, operand.element, (panels.first + start) as isize * operand.stride);
    let mut step = span.start;
    while step < span.end {
        let run = run_from(contraction, operand, step, span.end - step);
        let source = offset(base, operand.element, run.start);
        let piece = Piece {
            lanes,
            width: panels.width,
            length: run.length,
            lane_stride: operand.stride,
            step_stride: run.stride,
        };
        // SAFETY: the piece lies inside the operand and inside the panel.
        unsafe {
            let done = pack_transposed(isa, operand.element, source, &piece, panel);
            let rest = Piece { length: piece.length - done, ..piece };
            let source = offset(source, operand.element, done as isize * run.stride);
            let panel = panel.wrapping_add(done * piece.width);
            with_element!(operand.element, Stored => pack_piece::<Stored>(isa, source.cast::<Stored>(), &rest, panel));
        }
        panel = panel.wrapping_add(run.length * panels.width);
        step += run.length;
    }
}

/// Contraction steps that one stride reaches.
pub(super) struct Run {
    pub start: isize,
    pub stride: isize,
    pub length: usize,
}

/// The longest run of at most `limit` steps from flat step `step` on: the rest of the innermost loop.
pub(super) fn run_from(contraction: &[ContractionLoop], operand: &Operand, step: usize, limit: usize) -> Run {
    let Some((innermost, outer)) = contraction.split_last() else {
        return Run { start: 0, stride: 0, length: limit };
    };
    let within = step % innermost.extent;
    let mut remaining = step / innermost.extent;
    let mut start = within as isize * operand.side.stride(innermost);
    for contraction_loop in outer.iter().rev() {
        start += (remaining % contraction_loop.extent) as isize * operand.side.stride(contraction_loop);
        remaining /= contraction_loop.extent;
    }
    Run { start, stride: operand.side.stride(innermost), length: limit.min(innermost.extent - within) }
}

/// Part of a panel with one stride in each direction.
struct Piece {
    lanes: usize,
    width: usize,
    length: usize,
    lane_stride: isize,
    step_stride: isize,
}

/// Packs as many of a piece's first steps as vector registers transpose in blocks, and returns their number: for f32 whose
/// steps lie side by side, in whole panels.
///
/// # Safety
/// As [`pack`].
#[cfg(target_arch = "x86_64")]
unsafe fn pack_transposed(
    isa: Isa,
    element: Element,
    source: *const u8,
    piece: &Piece,
    panel: *mut f32,
) -> usize {
    use super::transpose::{BLOCK, transpose_block};
    let has_avx512 = match isa {
        Isa::Avx512Bf16 | Isa::Avx512 => true,
        Isa::Avx2 | Isa::Baseline => false,
    };
    let whole_panel = piece.lanes == piece.width && piece.width.is_multiple_of(BLOCK);
    if !has_avx512 || element != Element::F32 || piece.step_stride != 1 || !whole_panel {
        return 0;
    }
    let row_bytes = piece.lane_stride * element.bytes() as isize;
    let steps = piece.length - piece.length % BLOCK;
    for lane in (0..piece.lanes).step_by(BLOCK) {
        let row = offset(source, element, lane as isize * piece.lane_stride);
        for step in (0..steps).step_by(BLOCK) {
            // SAFETY: the block lies in the piece and in the panel.
            unsafe {
                let to = panel.add(step * piece.width + lane).cast();
                transpose_block(offset(row, element, step as isize), row_bytes, to, piece.width);
            }
        }
    }
    steps
}

/// # Safety
/// As [`pack`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn pack_transposed(_: Isa, _: Element, _: *const u8, _: &Piece, _: *mut f32) -> usize {
    0
}

for_each_isa! {
    /// Packs one piece.
    fn pack_piece<Stored: Number>(source: *const Stored, piece: &Piece, panel: *mut f32) = pack_piece_body
}

/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_piece_body<Stored: Number>(source: *const Stored, piece: &Piece, panel: *mut f32) {
    // SAFETY: lanes < width and steps < length, so all reads and writes are in the piece.
    unsafe {
        if piece.lane_stride == 1 {
            pack_lane_major(source, piece, panel);
        } else {
            pack_step_major(source, piece, panel);
        }
        if piece.lanes < piece.width {
            for step in 0..piece.length {
                std::slice::from_raw_parts_mut(
                    panel.add(step * piece.width + piece.lanes),
                    piece.width - piece.lanes,
                )
                .fill(0.0);
            }
        }
    }
}

/// Lanes lie side by side in memory: each step is one copy.
///
/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_lane_major<Stored: Number>(source: *const Stored, piece: &Piece, panel: *mut f32) {
    const WIDE: usize = 64;
    const NARROW: usize = 6;
    /// Steps between a number that is asked for and one that is read: as many as share lines.
    const AHEAD: isize = STEPS as isize;
    for step in 0..piece.length {
        // SAFETY: the step's lanes are inside source and panel.
        unsafe {
            let from = source.wrapping_offset(step as isize * piece.step_stride);
            let to = panel.add(step * piece.width);
            let ahead = from.wrapping_offset(AHEAD * piece.step_stride);
            match piece.lanes {
                WIDE => {
                    (0..WIDE * size_of::<Stored>())
                        .step_by(LINE)
                        .for_each(|byte| prefetch(ahead.wrapping_byte_add(byte)));
                    copy_array::<Stored, WIDE>(from, to);
                }
                NARROW => {
                    prefetch(ahead);
                    copy_array::<Stored, NARROW>(from, to);
                }
                lanes => {
                    for lane in 0..lanes {
                        *to.add(lane) = (*from.add(lane)).widen();
                    }
                }
            }
        }
    }
}

/// Copies as many numbers as fit registers: all are read before one is written, so that vectors do it.
///
/// # Safety
/// `N` numbers must be readable and writable.
#[inline(always)]
unsafe fn copy_array<Stored: Number, const N: usize>(from: *const Stored, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let numbers = from.cast::<[Stored; N]>().read_unaligned();
        to.cast::<[f32; N]>().write_unaligned(numbers.map(Number::widen));
    }
}

/// Asks for the line of an address, which may lie anywhere.
#[inline(always)]
fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Lanes lie apart: reads runs of steps lane by lane, few enough steps that the panel's lines stay in the
/// first-level cache.
///
/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_step_major<Stored: Number>(source: *const Stored, piece: &Piece, panel: *mut f32) {
    const STEPS: usize = 16;
    for first in (0..piece.length).step_by(STEPS) {
        let steps = STEPS.min(piece.length - first);
        for lane in 0..piece.lanes {
            let from = source
                .wrapping_offset(lane as isize * piece.lane_stride + first as isize * piece.step_stride);
            let to = panel.wrapping_add(first * piece.width + lane);
            for step in 0..steps {
                // SAFETY: `first + step < length`.
                unsafe {
                    *to.add(step * piece.width) = (*from.offset(step as isize * piece.step_stride)).widen()
                };
            }
        }
    }
}
