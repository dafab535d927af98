//! Fills, copies and the reductions under collectives. Sizes are arguments, so all calls share a few sources.

use super::source::{Source, linear, stored};
use super::{DeviceArgument, DeviceCall, DeviceLaunch};
use crate::collective::{BlockCopy, Reduction};
use crate::signature::{Element, InvalidSpec, require};

/// What a fill repeats; the buffer is aligned to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte.
    Byte(u8),
    /// Two bytes.
    Half(u16),
    /// Four bytes.
    Word(u32),
}

/// The element type of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReducedElement {
    /// Combined in f32 and rounded once.
    Float(Element),
    /// Sums wrap.
    I32,
    /// Sums wrap.
    U32,
    /// Sums wrap.
    U8,
}

/// A range of a block's elements combined over sources, in their order, into every target.
///
/// Element `e` lies in piece `e / inner`, at `e % inner`; piece `p` starts at `p / middle` outer strides and `p % middle` middle
/// strides. Strides are in elements. A target may be one of the sources, with the same strides; else it overlaps none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReduction {
    /// Number of sources, 1 at least.
    pub sources: u32,
    /// Number of targets, 1 at least.
    pub targets: u32,
    /// Type of an element.
    pub element: ReducedElement,
    /// How they combine.
    pub reduction: Reduction,
    /// The elements to do.
    pub range: std::ops::Range<u64>,
    /// Contiguous elements of a piece.
    pub inner: u64,
    /// Pieces for each outer one.
    pub middle: u64,
    /// From one outer piece to the next in a source.
    pub source_outer_stride: u64,
    /// From one middle piece to the next in a source.
    pub source_middle_stride: u64,
    /// From one outer piece to the next in a target.
    pub target_outer_stride: u64,
    /// From one middle piece to the next in a target.
    pub target_middle_stride: u64,
}

/// Sets `bytes` bytes of buffer 0, a whole number of patterns.
pub fn fill(pattern: Pattern, bytes: u64) -> DeviceCall {
    match bytes {
        0 => DeviceCall::default(),
        _ => DeviceCall::of(fill_launch(pattern, DeviceArgument::Pointer(0), bytes)),
    }
}

/// Sets `bytes` bytes at `target`, a whole number of patterns.
pub(super) fn fill_launch(pattern: Pattern, target: DeviceArgument, bytes: u64) -> DeviceLaunch {
    let word = match pattern {
        Pattern::Byte(byte) => u32::from_ne_bytes([byte; 4]),
        Pattern::Half(half) => u32::from(half) | u32::from(half) << 16,
        Pattern::Word(word) => word,
    };
    let sizes = [bytes, u64::from(word)];
    let source = Source::new().file(include_str!("fill.cu"));
    linear("fill", source, bytes.div_ceil(16), with_sizes([target], &sizes))
}

/// Copies blocks from buffer 0 to buffer 1, which do not overlap.
pub fn copy_blocks(copy: &BlockCopy) -> DeviceCall {
    let bytes = (copy.rows * copy.columns * copy.block_bytes) as u64;
    let sizes = [
        copy.rows,
        copy.columns,
        copy.block_bytes,
        copy.source_row_stride,
        copy.source_column_stride,
        copy.destination_row_stride,
        copy.destination_column_stride,
    ];
    let source = Source::new().file(include_str!("copy_blocks.cu"));
    if bytes == 0 {
        return DeviceCall::default();
    }
    let pointers = [0, 1].map(DeviceArgument::Pointer);
    let arguments = with_sizes(pointers, &sizes.map(|size| size as u64));
    DeviceCall::of(linear("copy_blocks", source, bytes.div_ceil(16), arguments))
}

/// Copies `rows` rows of `row_bytes` bytes from buffer 0 to buffer 1; pitches are the bytes from row to row.
pub fn copy_rows(rows: usize, row_bytes: usize, source_pitch: usize, target_pitch: usize) -> DeviceCall {
    copy_blocks(&BlockCopy {
        rows,
        columns: 1,
        block_bytes: row_bytes,
        destination_row_stride: target_pitch,
        destination_column_stride: 0,
        source_row_stride: source_pitch,
        source_column_stride: 0,
    })
}

/// A launch takes 32,764 bytes of arguments; a reduction has eight numbers beside its pointers.
const MOST_POINTERS: u32 = (32_764 - 8 * 8) / 8;

/// Combines the sources, buffers `0..sources`, into the targets, the buffers behind them.
///
/// # Errors
/// A reduction without sources, targets or pieces.
pub fn reduce(spec: &BlockReduction) -> Result<DeviceCall, InvalidSpec> {
    require(spec.sources > 0 && spec.targets > 0, "a reduction without sources or targets")?;
    require(spec.inner > 0 && spec.middle > 0, "a reduction of empty pieces")?;
    require(
        spec.sources + spec.targets <= MOST_POINTERS,
        "a reduction of more parts than a launch can be given",
    )?;
    let (element, total) = match spec.element {
        ReducedElement::Float(element) => (stored(element), "float"),
        ReducedElement::I32 => ("int", "int"),
        ReducedElement::U32 => ("unsigned", "unsigned"),
        ReducedElement::U8 => ("unsigned char", "unsigned char"),
    };
    let source = Source::new()
        .constant("int", "SOURCES", spec.sources)
        .constant("int", "TARGETS", spec.targets)
        .alias("T", element)
        .alias("Total", total)
        .file(&combination(spec.element, spec.reduction))
        .file(include_str!("reduce.cu"));
    let elements = spec.range.end.saturating_sub(spec.range.start);
    let sizes = [
        spec.range.start,
        spec.range.end,
        spec.inner,
        spec.middle,
        spec.source_outer_stride,
        spec.source_middle_stride,
        spec.target_outer_stride,
        spec.target_middle_stride,
    ];
    let stem = format!("reduce_{}_{}", element.replace(' ', "_"), reduction_name(spec.reduction));
    if elements == 0 {
        return Ok(DeviceCall::default());
    }
    let pointers = [(0, spec.sources), (spec.sources, spec.targets)];
    let pointers = pointers.map(|(first, count)| DeviceArgument::Pointers { first, count });
    Ok(DeviceCall::of(linear(&stem, source, elements.div_ceil(4), with_sizes(pointers, &sizes))))
}

fn reduction_name(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::Sum => "sum",
        Reduction::Maximum => "maximum",
    }
}

/// The functions that `reduce.cu` reads, combines and writes elements with.
fn combination(element: ReducedElement, reduction: Reduction) -> String {
    let (read, written) = match element {
        ReducedElement::Float(_) => ("widen(x)", "narrow<T>(x)"),
        ReducedElement::I32 | ReducedElement::U32 | ReducedElement::U8 => ("x", "x"),
    };
    let combined = match (reduction, element) {
        (Reduction::Sum, ReducedElement::Float(_)) => "total + value",
        // Of signed numbers a sum that wraps is not defined.
        (Reduction::Sum, ReducedElement::I32 | ReducedElement::U32 | ReducedElement::U8) => {
            "static_cast<Total>(static_cast<unsigned>(total) + static_cast<unsigned>(value))"
        }
        // A NaN stays.
        (Reduction::Maximum, ReducedElement::Float(_)) => "value > total || value != value ? value : total",
        (Reduction::Maximum, ReducedElement::I32 | ReducedElement::U32 | ReducedElement::U8) => {
            "value > total ? value : total"
        }
    };
    format!(
        "DTL_INLINE Total read(T x) {{\n    return {read};\n}}\n\n\
         DTL_INLINE Total combine(Total total, Total value) {{\n    return {combined};\n}}\n\n\
         DTL_INLINE T written(Total x) {{\n    return {written};\n}}\n"
    )
}

fn with_sizes(pointers: impl IntoIterator<Item = DeviceArgument>, sizes: &[u64]) -> Vec<DeviceArgument> {
    let sizes = sizes.iter().map(|&size| DeviceArgument::Constant(size.cast_signed()));
    pointers.into_iter().chain(sizes).collect()
}
