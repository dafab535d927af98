//! Runs one rank's linked instructions.
//!
//! Allocates nothing and takes no lock while all goes well: operands go into buffers made at start.

mod descriptors;
mod exchange;
mod rows;

use std::sync::Arc;
use std::time::Duration;

use crate::collectives::{Refusal, Seat};
use crate::files::values::{Refused, find_float};
use crate::health::Health;
use crate::link::{Address, Integer, Linked, LinkedFloats, LinkedKernel, LinkedOperation, OpenVariable};
use crate::memory::RankMemory;
use crate::program::instruction::LOOP_DEPTH_LIMIT;
use crate::program::{LocationId, LoopOrder};
use crate::team::{Panicked, Team};

/// Parts of a loop for each thread, so that a thread that lost its core for a moment holds nobody up.
const PARTS_FOR_EACH_THREAD: usize = 4;

/// Why a rank left its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interruption {
    /// The instruction that it was in.
    pub location: LocationId,
    /// What happened there.
    pub trouble: Trouble,
}

/// What can go wrong in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A collective failed.
    Refused {
        /// The group, as one of the rank's seats.
        seat: usize,
        /// How.
        refusal: Refusal,
    },
    /// Code of ours panicked.
    Panicked,
    /// A value that it computed is no number, or infinite.
    NotFinite {
        /// Which.
        value: NotFinite,
        /// Index of the element in the result.
        element: usize,
    },
}

/// A float that is none of the finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFinite {
    /// Not-a-number.
    Nan,
    /// Positive infinity.
    Infinity,
    /// Negative infinity.
    NegativeInfinity,
}

impl From<Panicked> for Trouble {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

/// What is watched while instructions run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Whether to look for values that are not finite behind each instruction.
    pub finite: bool,
    /// Called before each instruction with the rank and the instruction's place.
    pub probe: Option<Probe>,
}

/// See [`Watch::probe`]. It serves tests, which make a rank panic or stall with it.
pub type Probe = fn(usize, LocationId);

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepNumbers {
    /// Number of the step, from 1.
    pub step: u64,
    /// Seed of all random numbers.
    pub seed: u64,
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

/// Runs steps of one rank.
pub struct Executor {
    rank: usize,
    body: Box<[Linked]>,
    /// Address and bytes.
    arena: (*mut u8, usize),
    frame: Frame,
}

/// What running instructions changes.
struct Frame {
    rank: usize,
    team: Arc<Team>,
    health: Arc<Health>,
    spin: u32,
    timeout: Duration,
    watch: Watch,
    seats: Vec<Seat>,
    numbers: StepNumbers,
    /// Indices of the enclosing loops.
    loops: [u64; LOOP_DEPTH_LIMIT],
    /// Kernel operands.
    pointers: Vec<*mut u8>,
    integers: Vec<i64>,
    /// Scratch of each thread.
    scratch: Vec<*mut u8>,
    /// Members' buffers of the tensor that is being reduced.
    sources: Vec<*const u8>,
    targets: Vec<*mut u8>,
}

// SAFETY: the pointers lead into memory that the session keeps alive as long as the executor, and
// only the executor's thread and its team use them.
unsafe impl Send for Executor {}

impl Executor {
    /// An executor for linked instructions, which refer to `memory` and `seats`.
    #[must_use]
    pub fn new(
        rank: usize,
        body: Box<[Linked]>,
        memory: &RankMemory,
        seats: Vec<Seat>,
        team: Arc<Team>,
        health: Arc<Health>,
        (spin, timeout, watch): (u32, Duration, Watch),
    ) -> Self {
        let (pointers, integers) = most_operands(&body);
        let members = seats.iter().map(Seat::members).max().unwrap_or(0);
        let frame = Frame {
            rank,
            health,
            spin,
            timeout,
            watch,
            seats,
            numbers: StepNumbers { step: 0, seed: 0 },
            loops: [0; LOOP_DEPTH_LIMIT],
            pointers: vec![std::ptr::null_mut(); pointers],
            integers: vec![0; integers],
            scratch: memory.scratch.iter().map(|region| region.address()).collect(),
            sources: vec![std::ptr::null(); members],
            targets: vec![std::ptr::null_mut(); members],
            team,
        };
        Self { rank, body, arena: (memory.arena.address(), memory.arena.bytes()), frame }
    }

    /// Fills the arena with bytes that are NaN as floats.
    pub fn poison_arena(&mut self) {
        let (address, bytes) = self.arena;
        // SAFETY: the arena is this rank's own, and no instruction is running.
        unsafe { address.write_bytes(0xff, bytes) };
    }

    /// The seats, for messages.
    #[must_use]
    pub fn seats(&self) -> &[Seat] {
        &self.frame.seats
    }

    /// Runs one step.
    ///
    /// # Errors
    /// What stopped it.
    pub fn step(&mut self, numbers: StepNumbers) -> Result<(), Interruption> {
        self.frame.numbers = numbers;
        let result = self.frame.run(&self.body);
        self.frame.health.leave(self.rank);
        result
    }
}

impl Frame {
    fn run(&mut self, body: &[Linked]) -> Result<(), Interruption> {
        for instruction in body {
            if let LinkedOperation::Loop { count, order, depth, body } = &instruction.operation {
                for iteration in 0..*count {
                    self.loops[*depth] = u64::from(match order {
                        LoopOrder::Forward => iteration,
                        LoopOrder::Reverse => count - 1 - iteration,
                    });
                    self.run(body)?;
                }
                continue;
            }
            let location = instruction.location;
            self.health.enter(self.rank, location);
            let interrupted = |trouble| Interruption { location, trouble };
            if let Some(probe) = self.watch.probe {
                let rank = self.rank;
                self.team.run(1, &|_, _| probe(rank, location)).map_err(|panic| interrupted(panic.into()))?;
            }
            self.operate(&instruction.operation).map_err(interrupted)?;
            if self.watch.finite {
                self.look_for_not_finite(&instruction.floats).map_err(interrupted)?;
            }
        }
        Ok(())
    }

    /// Looks at the results of an instruction that has just run.
    fn look_for_not_finite(&self, floats: &[LinkedFloats]) -> Result<(), Trouble> {
        for tensor in floats {
            let start = self.address(&tensor.address).cast_const();
            // SAFETY: validation checked that the buffer lies in the rank's memory, and nothing is running in it.
            let bytes = unsafe { std::slice::from_raw_parts(start, tensor.bytes) };
            if let Some((element, value)) = find_float(tensor.dtype, bytes, Refused::NotFinite) {
                let value = match value {
                    value if value.is_nan() => NotFinite::Nan,
                    value if value > 0.0 => NotFinite::Infinity,
                    _ => NotFinite::NegativeInfinity,
                };
                return Err(Trouble::NotFinite { value, element });
            }
        }
        Ok(())
    }

    fn operate(&mut self, operation: &LinkedOperation) -> Result<(), Trouble> {
        match operation {
            // `run` has dealt with it.
            LinkedOperation::Loop { .. } => Ok(()),
            LinkedOperation::Kernel(kernel) => self.kernel(kernel),
            LinkedOperation::Matmul { spec, a, b, c } => self.matmul(spec, [a, b, c]),
            LinkedOperation::Attention { spec, tensors, offsets } => self.attention(spec, tensors, offsets),
            LinkedOperation::AttentionBackward { spec, tensors, offsets } => {
                self.attention_backward(spec, tensors, offsets)
            }
            LinkedOperation::Take { spec, table, ids, output, offset } => {
                self.take(spec, [table, ids, output], offset)
            }
            LinkedOperation::ScatterAdd { spec, source, ids, output, offset } => {
                self.scatter_add(spec, [source, ids, output], offset)
            }
            LinkedOperation::Copy(copy) => self.copy(copy),
            LinkedOperation::Fill { target, bytes, pattern, width } => {
                self.fill(self.address(target), *bytes, &pattern[..*width])
            }
            LinkedOperation::Collective(collective) => self.exchange(collective),
            // The exchange through shared memory has ended when its start returns.
            LinkedOperation::Done => Ok(()),
        }
    }

    /// Calls a generated kernel, its outermost loop divided over the threads.
    fn kernel(&mut self, kernel: &LinkedKernel) -> Result<(), Trouble> {
        let threads = self.team.threads();
        for index in 0..kernel.integers.len() {
            self.integers[index] = self.integer(&kernel.integers[index]);
        }
        for (index, pointer) in kernel.pointers.iter().enumerate() {
            self.pointers[index] = self.address(pointer);
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

    fn address(&self, address: &Address) -> *mut u8 {
        let moved = |base: *mut u8, &(depth, stride): &(usize, usize)| {
            base.wrapping_add(self.loops[depth] as usize * stride)
        };
        address.strides.iter().fold(address.base, moved)
    }

    fn integer(&self, integer: &Integer) -> i64 {
        integer.terms.iter().fold(integer.constant, |sum, &(variable, coefficient)| {
            let value = match variable {
                OpenVariable::LoopIndex(depth) => self.loops[depth],
                OpenVariable::Step => self.numbers.step,
                OpenVariable::SeedLow => self.numbers.seed & 0xffff_ffff,
                OpenVariable::SeedHigh => self.numbers.seed >> 32,
            };
            sum.wrapping_add(coefficient.wrapping_mul(value as i64))
        })
    }
}

/// Into how many parts to divide a loop.
fn parts_of(extent: u64, grain: u64, threads: usize) -> usize {
    let most = if threads == 1 { 1 } else { PARTS_FOR_EACH_THREAD * threads };
    (extent / grain.max(1)).clamp(1, most as u64) as usize
}

/// The most pointers and integers that one kernel call has.
fn most_operands(body: &[Linked]) -> (usize, usize) {
    let of_one = |instruction: &Linked| match &instruction.operation {
        LinkedOperation::Loop { body, .. } => most_operands(body),
        LinkedOperation::Kernel(kernel) => (kernel.pointers.len(), kernel.integers.len()),
        LinkedOperation::Matmul { .. }
        | LinkedOperation::Attention { .. }
        | LinkedOperation::AttentionBackward { .. }
        | LinkedOperation::Take { .. }
        | LinkedOperation::ScatterAdd { .. }
        | LinkedOperation::Copy(_)
        | LinkedOperation::Fill { .. }
        | LinkedOperation::Collective(_)
        | LinkedOperation::Done => (0, 0),
    };
    let larger = |most: (usize, usize), one: (usize, usize)| (most.0.max(one.0), most.1.max(one.1));
    body.iter().map(of_one).fold((0, 0), larger)
}
