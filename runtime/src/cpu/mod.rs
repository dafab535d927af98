//! The CPU backend: machine code and hand-written kernels on memory of this process, divided over the rank's threads.
//!
//! Owns the threads, the memory and the loading of code. A step allocates nothing here.

pub mod code;
mod descriptors;
mod link;
pub mod memory;
mod rows;
pub mod team;
mod transfer;

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Result as RuntimeResult, RuntimeError};
use crate::executor::{Backend, Point, Products, StepNumbers, StepStart, Trouble};
use crate::files::values::{Refused, find_float};
use crate::link::{Address, LinkedFloats, Placer};
use crate::program::{DType, Instruction, Program, Reduction, Space, Transfer};
use code::LoadedCode;
use dtlc_emulator::Stream;
use link::{CpuOperation, LinkedKernel};
use memory::{RankMemory, Region};
use team::{Panicked, Team};
use transfer::{copy_block, reduce_block};

/// Parts of a loop for each thread, so that a thread that lost its core for a moment holds nobody up.
const PARTS_FOR_EACH_THREAD: usize = 4;
/// Fewer elements than this are not worth a thread of their own.
const GRAIN_ELEMENTS: usize = 16 * 1024;

impl From<Panicked> for Trouble {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

/// A pointer that threads of one rank share; they work on disjoint parts behind it.
#[derive(Clone, Copy)]
struct Shared<T>(T);

// SAFETY: the pointers stay valid for the whole job, and parts of a job touch disjoint memory.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(&self) -> T {
        self.0
    }
}

/// A rank's memory and threads.
pub struct Cpu {
    program: Arc<Program>,
    code: Arc<LoadedCode>,
    team: Arc<Team>,
    state: *mut u8,
    arena: *mut u8,
    arena_bytes: usize,
    input: *mut u8,
    /// Scratch of each thread.
    scratch: Vec<*mut u8>,
    /// Operands of a kernel; as long as the longest list.
    pointers: Vec<*mut u8>,
    integers: Vec<i64>,
    /// Where messages are packed and unpacked.
    staged: Option<Region>,
}

// SAFETY: the pointers lead into memory that the session keeps alive as long as the rank runs, and
// only the rank's thread and its team use them.
unsafe impl Send for Cpu {}

impl Cpu {
    /// For a rank of a program with this memory.
    #[must_use]
    pub fn new(program: Arc<Program>, code: Arc<LoadedCode>, memory: &RankMemory, team: Arc<Team>) -> Self {
        let most = |operands: fn(&crate::program::KernelEntry) -> u32| {
            program.kernels.iter().map(operands).max().unwrap_or(0) as usize
        };
        let (pointers, integers) = (most(|kernel| kernel.pointers), most(|kernel| kernel.integers));
        Self {
            state: memory.state.address(),
            arena: memory.arena.address(),
            arena_bytes: memory.arena.bytes(),
            input: memory.input.address(),
            scratch: memory.scratch.iter().map(|region| region.address()).collect(),
            pointers: vec![std::ptr::null_mut(); pointers],
            integers: vec![0; integers],
            staged: None,
            program,
            code,
            team,
        }
    }

    fn address(&self, address: &Address, point: &Point) -> *mut u8 {
        self.base(address.space).wrapping_add(address.at(point))
    }

    /// Calls a generated kernel, its outermost loop divided over the threads.
    fn kernel(&mut self, kernel: &LinkedKernel, point: &Point) -> Result<(), Trouble> {
        let threads = self.team.threads();
        for (index, integer) in kernel.integers.iter().enumerate() {
            self.integers[index] = integer.at(point);
        }
        for (index, pointer) in kernel.pointers.iter().enumerate() {
            self.pointers[index] = self.address(pointer, point);
        }
        let parts = parts_of(kernel.extent, kernel.grain, threads);
        let (pointers, integers) = (Shared(&self.pointers), &self.integers);
        self.team.run(parts, &|part, _| {
            let cut = |part: usize| (u128::from(kernel.extent) * part as u128 / parts as u128) as i64;
            let operands = pointers.get().as_ptr();
            // SAFETY: the compiler made the function for these operands, and validation checked
            // that they lie in the rank's memory. Parts of the loop write to disjoint memory.
            unsafe { (kernel.function)(operands, integers.as_ptr(), cut(part), cut(part + 1)) };
        })?;
        Ok(())
    }

    /// Divides a range of elements over the threads.
    fn in_ranges(&self, range: Range<usize>, work: impl Fn(Range<usize>) + Sync) -> Result<(), Trouble> {
        let parts = parts_of(range.len() as u64, GRAIN_ELEMENTS as u64, self.team.threads());
        self.team.run(parts, &|part, _| {
            let cut = |part: usize| range.start + range.len() * part / parts;
            work(cut(part)..cut(part + 1));
        })?;
        Ok(())
    }
}

impl Backend for Cpu {
    type Operation = CpuOperation;

    const PRODUCTS: Products = Products::Apart;

    fn link(&mut self, run: &[Instruction], placer: &Placer) -> RuntimeResult<CpuOperation> {
        let [instruction] = run else {
            return Err(RuntimeError::Bug("the CPU makes one thing after another".into()));
        };
        link::link(&self.program, &self.code, &instruction.operation, placer)
    }

    fn perform(&mut self, operation: &CpuOperation, point: &Point) -> Result<(), Trouble> {
        match operation {
            CpuOperation::Kernel(kernel) => self.kernel(kernel, point),
            CpuOperation::Matmul { spec, a, b, c } => self.matmul(spec, [a, b, c], point),
            CpuOperation::Attention { spec, tensors, documents, offsets } => {
                self.attention(spec, tensors, documents.as_deref(), offsets, point)
            }
            CpuOperation::AttentionBackward { spec, tensors, documents, offsets } => {
                self.attention_backward(spec, tensors, documents.as_deref(), offsets, point)
            }
            CpuOperation::Take { spec, table, ids, output, offset } => {
                self.take(spec, [table, ids, output], offset, point)
            }
            CpuOperation::ScatterAdd { spec, source, ids, output, offset } => {
                self.scatter_add(spec, [source, ids, output], offset, point)
            }
            CpuOperation::Copy(copy) => self.copy(copy, point),
            CpuOperation::Fill { target, bytes, pattern, width } => {
                self.fill(self.address(target, point), *bytes, &pattern[..*width])
            }
        }
    }

    fn base(&self, space: Space) -> *mut u8 {
        match space {
            Space::State => self.state,
            Space::Arena => self.arena,
            Space::Input => self.input,
        }
    }

    // Whatever is asked of the CPU is done when the call returns, so meeting and parting order all there is.
    fn announce(&mut self, _collective: u64) -> Result<(), Trouble> {
        Ok(())
    }

    fn expect(&mut self, _collective: u64, _rank: usize) -> Result<(), Trouble> {
        Ok(())
    }

    fn conclude(&mut self, _collective: u64) -> Result<(), Trouble> {
        Ok(())
    }

    fn finish(&mut self, _collective: u64, _rank: usize) -> Result<(), Trouble> {
        Ok(())
    }

    fn begin_step(&mut self, _numbers: StepNumbers) -> Result<StepStart, Trouble> {
        Ok(StepStart::Perform)
    }

    fn end_recording(&mut self) -> Result<(), Trouble> {
        // Nothing is ever recorded.
        Ok(())
    }

    fn movement(&self) -> Stream {
        Stream::DEFAULT
    }

    fn settle(&mut self) -> Result<(), Trouble> {
        // Whatever is asked of the CPU is done when the call returns.
        Ok(())
    }

    unsafe fn copy_block(
        &mut self,
        transfer: &Transfer,
        dtype: DType,
        source: *const u8,
        target: *mut u8,
    ) -> Result<(), Trouble> {
        let (ends, bytes) = (Shared((source, target)), dtype.bytes() as usize);
        self.in_ranges(0..transfer.block_elements() as usize, |range| {
            let (source, target) = ends.get();
            // SAFETY: the caller's promise, and each range is copied once.
            unsafe { copy_block(transfer, bytes, range, source, target) };
        })
    }

    unsafe fn reduce_block(
        &mut self,
        (transfer, dtype): (&Transfer, DType),
        reduction: Reduction,
        range: Range<usize>,
        sources: &[*const u8],
        targets: &[*mut u8],
    ) -> Result<(), Trouble> {
        let ends = Shared((sources, targets));
        self.in_ranges(range, |range| {
            let (sources, targets) = ends.get();
            // SAFETY: the caller's promise, and each element is reduced by one thread.
            unsafe { reduce_block(transfer, dtype, reduction, range, sources, targets) };
        })
    }

    fn stage(&mut self, bytes: usize) -> Result<*mut u8, Trouble> {
        match &self.staged {
            Some(staged) if staged.bytes() >= bytes => Ok(staged.address()),
            Some(_) | None => {
                let staged = Region::new(bytes as u64, "messages");
                let staged = staged.map_err(|error| Trouble::Machine(error.to_string()))?;
                Ok(self.staged.insert(staged).address())
            }
        }
    }

    unsafe fn fetch(&mut self, source: *const u8, bytes: &mut [u8]) -> Result<(), Trouble> {
        // SAFETY: the caller's promise; a message lies in memory of its own.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn store(&mut self, bytes: &[u8], target: *mut u8) -> Result<(), Trouble> {
        // SAFETY: the caller's promise; a message lies in memory of its own.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn clear(&mut self, target: *mut u8, bytes: usize) -> Result<(), Trouble> {
        // SAFETY: the caller's promise.
        unsafe { target.write_bytes(0, bytes) };
        Ok(())
    }

    fn find_not_finite(
        &mut self,
        floats: &LinkedFloats,
        point: &Point,
    ) -> Result<Option<(usize, f32)>, Trouble> {
        let start = self.address(&floats.address, point).cast_const();
        // SAFETY: validation checked that the buffer lies in the rank's memory, and nothing is running in it.
        let bytes = unsafe { std::slice::from_raw_parts(start, floats.bytes) };
        Ok(find_float(floats.dtype, bytes, Refused::NotFinite))
    }

    fn poison_arena(&mut self) -> Result<(), Trouble> {
        // SAFETY: the arena is this rank's own, and no instruction is running.
        unsafe { self.arena.write_bytes(0xff, self.arena_bytes) };
        Ok(())
    }

    fn close(&self) {
        self.team.close();
    }
}

/// Into how many parts to divide a loop.
fn parts_of(extent: u64, grain: u64, threads: usize) -> usize {
    let most = if threads == 1 { 1 } else { PARTS_FOR_EACH_THREAD * threads };
    (extent / grain.max(1)).clamp(1, most as u64) as usize
}
