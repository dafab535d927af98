//! Rows of a table by id, and the transpose: rows added to those that ids name, in the order of the tokens.

use super::collective::{Pattern, fill_launch};
use super::source::{Source, linear, stored};
use super::{DeviceArgument, DeviceCall, SCRATCH_ALIGNMENT};
use crate::signature::{Accumulation, InvalidSpec, ScatterAddSpec, TakeSpec, require};

/// Threads that share a row.
const WARP: u64 = 32;
/// Columns that a warp adds up at a time, as in `scatter_sum.cu`.
const WARP_COLUMNS: usize = 128;

/// Takes rows of buffer 0 (the table) by the ids of buffer 1 into buffer 2; integer 0 is the id of the table's first row.
pub fn take(spec: &TakeSpec) -> DeviceCall {
    if spec.tokens == 0 || spec.width == 0 {
        return DeviceCall::default();
    }
    let source = Source::new()
        .constant("long long", "TOKENS", spec.tokens)
        .constant("long long", "VOCABULARY", spec.vocabulary)
        .constant("unsigned long long", "ROW_BYTES", spec.width * spec.element.bytes())
        .alias("Unit", stored(spec.element))
        .file(include_str!("take.cu"));
    let pointers = [0, 1, 2].map(DeviceArgument::Pointer);
    let arguments = pointers.into_iter().chain([DeviceArgument::Integer(0)]).collect();
    DeviceCall::of(linear("take", source, spec.tokens as u64 * WARP, arguments))
}

/// Adds the rows of buffer 0 to those of buffer 2 that the ids of buffer 1 name; integer 0 is the id of the first row.
///
/// # Errors
/// Sizes are beyond what an index holds.
pub fn scatter_add(spec: &ScatterAddSpec) -> Result<DeviceCall, InvalidSpec> {
    if spec.vocabulary == 0 || spec.width == 0 {
        return Ok(DeviceCall::default());
    }
    require(spec.tokens <= i32::MAX as usize, "a scatter of more tokens than an index holds")?;
    let bytes = 4 * spec.vocabulary as u64;
    let (first, count) = (0, bytes.next_multiple_of(SCRATCH_ALIGNMENT));
    let sizes = || {
        let source = Source::new().constant("long long", "TOKENS", spec.tokens);
        source.constant("long long", "VOCABULARY", spec.vocabulary)
    };
    let find = sizes().file(include_str!("scatter_find.cu"));
    let sum = sizes()
        .constant("long long", "WIDTH", spec.width)
        .constant("bool", "ACCUMULATES", spec.accumulation == Accumulation::Add)
        .alias("Source", stored(spec.source))
        .alias("Output", stored(spec.output))
        .file(include_str!("scatter_sum.cu"));
    let warps = spec.vocabulary * spec.width.div_ceil(WARP_COLUMNS);
    let (first_of_row, count_of_row) = (DeviceArgument::Scratch(first), DeviceArgument::Scratch(count));
    let [source, ids, output] = [0, 1, 2].map(DeviceArgument::Pointer);
    let offset = DeviceArgument::Integer(0);
    let find_arguments = vec![ids, first_of_row, count_of_row, offset];
    let sum_arguments = vec![source, ids, output, first_of_row, count_of_row, offset];
    Ok(DeviceCall {
        scratch_bytes: count + bytes,
        launches: vec![
            fill_launch(Pattern::Word(spec.tokens as u32), first_of_row, bytes),
            fill_launch(Pattern::Word(0), count_of_row, bytes),
            linear("scatter_find", find, spec.tokens as u64, find_arguments),
            linear("scatter_sum", sum, warps as u64 * WARP, sum_arguments),
        ],
    })
}
