//! Copies, fills and reductions as kernels: which a program needs, and the launches for each size, made once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::load::{Loaded, ReadyLaunch};
use crate::program::{Collective, CollectiveKind, DType, Operation, Program, Reduction, Transfer};
use dtlc_emulator::DriverError;
use dtlc_kernels::collective::{BlockCopy, Reduction as KernelReduction};
use dtlc_kernels::cuda::{self, BlockReduction, DeviceCall, DeviceLaunch, Pattern, ReducedElement};
use dtlc_kernels::signature::Element;

/// The kernels that move data in a program, each once: their names and sources.
#[must_use]
pub fn movement_kernels(program: &Program) -> Vec<DeviceLaunch> {
    let mut found = BTreeMap::new();
    let mut note = |call: DeviceCall| {
        found.extend(call.launches.into_iter().map(|launch| (launch.name.clone(), launch)));
    };
    for operation in program.operations() {
        match operation {
            Operation::Copy { rows, row_bytes, source_pitch, target_pitch, .. } => {
                let rows = Transfer::rows(*rows, *row_bytes, *source_pitch, *target_pitch);
                note(cuda::copy_blocks(&block_copy(&rows, 1)));
            }
            Operation::Fill { target, dtype, value } => {
                let bytes = dtype.pattern(*value);
                if let Some(pattern) = pattern(&bytes[..dtype.bytes() as usize]) {
                    note(cuda::fill(pattern, target.bytes));
                }
            }
            Operation::Collective(collective) => {
                of_collective(program, collective).into_iter().for_each(&mut note)
            }
            Operation::Loop(_)
            | Operation::Kernel(_)
            | Operation::Matmul { .. }
            | Operation::Attention(_)
            | Operation::AttentionBackward(_)
            | Operation::Take { .. }
            | Operation::ScatterAdd { .. }
            | Operation::Done(_) => {}
        }
    }
    found.into_values().collect()
}

fn of_collective(program: &Program, collective: &Collective) -> Vec<DeviceCall> {
    let members = program.mesh.group_size(&collective.axes) as u32;
    let tensors = collective.tensors.iter();
    let calls = tensors.flat_map(|tensor| {
        let copied = || Some(cuda::copy_blocks(&block_copy(&tensor.transfer, tensor.dtype.bytes())));
        let reduced = |reduction, targets| {
            let range = 0..tensor.transfer.block_elements();
            let members = [members, targets];
            cuda::reduce(&block_reduction(&tensor.transfer, tensor.dtype, reduction, range, members)).ok()
        };
        match collective.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => {
                [copied(), None, None]
            }
            // Between processes each packs its own block beside those that come in.
            CollectiveKind::ReduceScatter(reduction) => [copied(), reduced(reduction, 1), None],
            // Between processes each reduces its share into its own target alone.
            CollectiveKind::AllReduce(reduction) => {
                [copied(), reduced(reduction, members), reduced(reduction, 1)]
            }
        }
    });
    calls.flatten().collect()
}

/// A block as a copy of pieces.
pub fn block_copy(transfer: &Transfer, element_bytes: u64) -> BlockCopy {
    let bytes = |elements: u64| (elements * element_bytes) as usize;
    BlockCopy {
        rows: transfer.outer as usize,
        columns: transfer.middle.block as usize,
        block_bytes: bytes(transfer.inner.block),
        destination_row_stride: bytes(transfer.target.outer),
        destination_column_stride: bytes(transfer.target.middle),
        source_row_stride: bytes(transfer.source.outer),
        source_column_stride: bytes(transfer.source.middle),
    }
}

/// The reduction of a range of a block over so many sources into so many targets.
pub fn block_reduction(
    transfer: &Transfer,
    dtype: DType,
    reduction: Reduction,
    range: Range<u64>,
    [sources, targets]: [u32; 2],
) -> BlockReduction {
    BlockReduction {
        sources,
        targets,
        element: match dtype {
            DType::F32 => ReducedElement::Float(Element::F32),
            DType::Bf16 => ReducedElement::Float(Element::Bf16),
            DType::F16 => ReducedElement::Float(Element::F16),
            DType::I32 => ReducedElement::I32,
            DType::U32 => ReducedElement::U32,
            DType::Bool => ReducedElement::U8,
        },
        reduction: match reduction {
            Reduction::Sum => KernelReduction::Sum,
            Reduction::Max => KernelReduction::Maximum,
        },
        range,
        inner: transfer.inner.block,
        middle: transfer.middle.block,
        source_outer_stride: transfer.source.outer,
        source_middle_stride: transfer.source.middle,
        target_outer_stride: transfer.target.outer,
        target_middle_stride: transfer.target.middle,
    }
}

/// What a fill with these bytes needs a kernel for; none where all of them are equal.
pub fn pattern(bytes: &[u8]) -> Option<Pattern> {
    match *bytes {
        [first, ref rest @ ..] if rest.iter().all(|&byte| byte == first) => None,
        [a, b] => Some(Pattern::Half(u16::from_le_bytes([a, b]))),
        [a, b, c, d] => Some(Pattern::Word(u32::from_le_bytes([a, b, c, d]))),
        // No element has another size.
        _ => None,
    }
}

/// The launches of movements, by their sizes.
pub struct Mover {
    loaded: Arc<Loaded>,
    copies: Made<BlockCopy>,
    fills: Made<(Pattern, u64)>,
    reductions: Made<BlockReduction>,
}

/// Launches by what they were made for. There are few, so they are searched from the first on.
type Made<K> = Vec<(K, Arc<[ReadyLaunch]>)>;
type Ready = Result<Arc<[ReadyLaunch]>, DriverError>;

impl Mover {
    /// Of a program's code.
    pub fn new(loaded: Arc<Loaded>) -> Self {
        Self { loaded, copies: Vec::new(), fills: Vec::new(), reductions: Vec::new() }
    }

    /// A copy, of buffer 0 to buffer 1.
    pub fn copy(&mut self, copy: &BlockCopy) -> Ready {
        remembered(&mut self.copies, copy, || self.loaded.ready(&cuda::copy_blocks(copy)))
    }

    /// A fill of buffer 0.
    pub fn fill(&mut self, pattern: Pattern, bytes: u64) -> Ready {
        remembered(&mut self.fills, &(pattern, bytes), || self.loaded.ready(&cuda::fill(pattern, bytes)))
    }

    /// A reduction of the first buffers into those behind.
    pub fn reduce(&mut self, spec: &BlockReduction) -> Ready {
        remembered(&mut self.reductions, spec, || {
            let call = cuda::reduce(spec).map_err(|error| DriverError::Device(error.to_string()))?;
            self.loaded.ready(&call)
        })
    }
}

/// What was made for a key, now or before.
fn remembered<K: PartialEq + Clone>(made: &mut Made<K>, key: &K, make: impl FnOnce() -> Ready) -> Ready {
    if let Some((_, launches)) = made.iter().find(|(known, _)| known == key) {
        return Ok(Arc::clone(launches));
    }
    let launches = make()?;
    made.push((key.clone(), Arc::clone(&launches)));
    Ok(launches)
}
