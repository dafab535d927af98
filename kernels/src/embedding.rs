//! The embedding kernels: take rows of a vocabulary-sharded table by id, and its transpose, scatter-add.
//!
//! Scatter-add sorts the tokens by id first (counting sort in scratch, stable), then sums each row's tokens
//! in order: the result does not depend on the number of threads, and a narrow output is rounded once.

use crate::{
    isa::{Isa, for_each_isa},
    number::{Number, with_element},
    signature::{Accumulation, Part, ScatterAddSpec, TakeSpec, aligned},
};

/// Copies one part of the rows that `ids` name; ids outside `[offset, offset + vocabulary)` give zeros.
///
/// # Safety
/// `table` must be readable for `[vocabulary, width]`, `ids` for `tokens`, and `output` writable for
/// `[tokens, width]`, all aligned to their elements; `output` overlaps neither.
pub unsafe fn take(
    spec: &TakeSpec,
    table: *const u8,
    ids: *const u32,
    output: *mut u8,
    offset: i64,
    part: Part,
) {
    let row_bytes = spec.width * spec.element.bytes();
    for token in part.range(spec.tokens, 1) {
        // SAFETY: `token` and the row found are in range; both rows are `row_bytes` long.
        unsafe {
            let to = output.add(token * row_bytes);
            match local_row(*ids.add(token), offset, spec.vocabulary) {
                Some(row) => to.copy_from_nonoverlapping(table.add(row * row_bytes), row_bytes),
                None => to.write_bytes(0, row_bytes),
            }
        }
    }
}

/// Adds one part (a range of columns) of the source's rows to the output's rows that `ids` name.
///
/// # Safety
/// `source` must be readable for `[tokens, width]`, `ids` for `tokens`, and `output` writable for
/// `[vocabulary, width]`, all aligned to their elements; `output` overlaps neither. `scratch` must be aligned
/// to [`crate::signature::SCRATCH_ALIGNMENT`] and hold [`ScatterAddSpec::scratch_bytes`]. Calls with distinct
/// parts of one count may run at the same time with distinct scratch.
pub unsafe fn scatter_add(
    spec: &ScatterAddSpec,
    source: *const u8,
    ids: *const u32,
    output: *mut u8,
    offset: i64,
    scratch: *mut u8,
    part: Part,
) {
    let columns = spec.columns(part);
    if columns.is_empty() || spec.vocabulary == 0 {
        return;
    }
    // SAFETY: scratch holds both arrays; every token in `sorted` and every row is in range, and the columns
    // inside the width.
    unsafe {
        let ids = std::slice::from_raw_parts(ids, spec.tokens);
        let ends = scratch.cast::<u32>();
        let sorted = scratch.add(aligned(4 * (spec.vocabulary + 1))).cast::<u32>();
        ends.write_bytes(0, spec.vocabulary + 1);
        sorted.write_bytes(0, spec.tokens);
        let ends = std::slice::from_raw_parts_mut(ends, spec.vocabulary + 1);
        let sorted = std::slice::from_raw_parts_mut(sorted, spec.tokens);
        sort_by_row(ids, offset, ends, sorted);
        let mut start = 0;
        for (row, &end) in ends[..spec.vocabulary].iter().enumerate() {
            let end = end as usize;
            let at = row * spec.width + columns.start;
            let tokens = RowSum {
                tokens: &sorted[start..end],
                first: columns.start,
                stride: spec.width,
                count: columns.len(),
            };
            with_element!(spec.source, Source => with_element!(spec.output, Output => {
                add_rows::<Source, Output>(source.cast(), &tokens, output.cast::<Output>().add(at), spec.accumulation);
            }));
            start = end;
        }
    }
}

/// The shard's row that an id names.
fn local_row(id: u32, offset: i64, vocabulary: usize) -> Option<usize> {
    let row = i64::from(id as i32) - offset;
    (0..vocabulary as i64).contains(&row).then_some(row as usize)
}

/// Sorts the tokens whose row is local by row, keeping their order within a row. `ends`, zero on entry and
/// one longer than the vocabulary, holds on return for each row where its tokens end in `sorted`; they start
/// where the row before ends.
fn sort_by_row(ids: &[u32], offset: i64, ends: &mut [u32], sorted: &mut [u32]) {
    let vocabulary = ends.len() - 1;
    for &id in ids {
        if let Some(row) = local_row(id, offset, vocabulary) {
            ends[row + 1] += 1;
        }
    }
    for row in 0..vocabulary {
        ends[row + 1] += ends[row];
    }
    // `ends[row]` is now where the row starts; it moves on with each token placed.
    for (token, &id) in ids.iter().enumerate() {
        if let Some(row) = local_row(id, offset, vocabulary) {
            sorted[ends[row] as usize] = token as u32;
            ends[row] += 1;
        }
    }
}

/// Some columns of the source's rows that are summed into one row.
struct RowSum<'a> {
    tokens: &'a [u32],
    first: usize,
    stride: usize,
    count: usize,
}

/// Sums the tokens' columns and stores or adds them at `output`.
///
/// # Safety
/// The tokens' columns must be readable, `output` writable for `sum.count`.
unsafe fn add_rows<Source: Number, Output: Number>(
    source: *const Source,
    sum: &RowSum<'_>,
    output: *mut Output,
    accumulation: Accumulation,
) {
    const CHUNK: usize = 64;
    if sum.tokens.is_empty() && accumulation == Accumulation::Add {
        return;
    }
    let isa = Isa::detect();
    for first in (0..sum.count).step_by(CHUNK) {
        let count = CHUNK.min(sum.count - first);
        let mut total = [0.0f32; CHUNK];
        // SAFETY: `first + count <= sum.count`, inside source rows and output.
        unsafe {
            for &token in sum.tokens {
                add_widened::<Source>(
                    isa,
                    source.add(token as usize * sum.stride + sum.first + first),
                    &mut total[..count],
                );
            }
            let to = std::slice::from_raw_parts_mut(output.add(first), count);
            for (to, total) in to.iter_mut().zip(&total) {
                let old = match accumulation {
                    Accumulation::Overwrite => 0.0,
                    Accumulation::Add => to.widen(),
                };
                *to = Output::narrow(old + total);
            }
        }
    }
}

for_each_isa! {
    /// Adds stored numbers to f32 totals.
    fn add_widened<Source: Number>(source: *const Source, total: &mut [f32]) = add_widened_body
}

/// # Safety
/// `source` must be readable for `total.len()` numbers.
#[inline(always)]
unsafe fn add_widened_body<Source: Number>(source: *const Source, total: &mut [f32]) {
    // SAFETY: the caller's promise.
    let source = unsafe { std::slice::from_raw_parts(source, total.len()) };
    for (total, source) in total.iter_mut().zip(source) {
        *total += source.widen();
    }
}
