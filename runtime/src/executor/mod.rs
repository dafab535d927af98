//! Runs one rank's linked instructions on a backend: the loops, the collectives' meetings, and what is watched.
//!
//! A [`Backend`] holds the rank's memory and does what a rank does by itself. Allocates nothing and takes no lock while all goes
//! well.

mod exchange;
mod letters;
mod messages;
mod parcels;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::collectives::{Refusal, Seat};
use crate::error::Result as RuntimeResult;
use crate::health::Health;
use crate::link::{Linked, LinkedFloats, LinkedOperation, Placer};
use crate::network::{Broken, Message, Network};
use crate::processes::Transport;
use crate::program::instruction::LOOP_DEPTH_LIMIT;
use crate::program::{DType, Instruction, LocationId, LoopOrder, Reduction, Space, Transfer};
use dtlc_emulator::{DriverError, Stream};
use letters::Letters;
use parcels::Parcels;

/// Why a rank left its step.
#[derive(Clone, Debug, PartialEq)]
pub struct Interruption {
    /// The instruction that it was in.
    pub location: LocationId,
    /// What happened there.
    pub trouble: Trouble,
}

/// What can go wrong in an instruction.
#[derive(Clone, Debug, PartialEq)]
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
    /// A device says so.
    Device(Box<DriverError>),
    /// This machine says so.
    Machine(String),
    /// What moves bytes between devices says so.
    Network(Box<Broken>),
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

impl NotFinite {
    /// What a float is that is not finite.
    fn of(value: f32) -> Self {
        match value {
            value if value.is_nan() => Self::Nan,
            value if value > 0.0 => Self::Infinity,
            _ => Self::NegativeInfinity,
        }
    }
}

impl From<DriverError> for Trouble {
    fn from(error: DriverError) -> Self {
        Self::Device(Box::new(error))
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepNumbers {
    /// Number of the step, from 1.
    pub step: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// How far a rank is in its step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// Indices of the enclosing loops.
    pub loops: [u64; LOOP_DEPTH_LIMIT],
    /// Step and seed.
    pub numbers: StepNumbers,
}

/// How a step's work gets to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStart {
    /// Instruction by instruction.
    Perform,
    /// So too, though it is only recorded.
    Record,
    /// It was recorded before, and is under way.
    Replayed,
}

/// How a backend makes products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// Each by itself, and what goes on with its result behind it, as an instruction of its own.
    Apart,
    /// With what goes on with their results, and those together that wait for nothing of each other.
    Together,
}

/// What holds a rank's memory and does its work. An address means what the backend says: in host memory, or in a device's,
/// where it must not be followed here. The members of a group have backends of one kind.
pub trait Backend: Send {
    /// What an operation becomes, ready to run.
    type Operation: Send;

    /// What it does with products at once.
    const PRODUCTS: Products;

    /// Makes an instruction ready to run, or several products ([`Program::runs`]) if they are made together.
    ///
    /// # Errors
    /// The backend has no code for it: a bug, or a program without a part for the device.
    fn link(&mut self, run: &[Instruction], placer: &Placer) -> RuntimeResult<Self::Operation>;

    /// Does, or starts, what the rank does by itself.
    ///
    /// # Errors
    /// What went wrong, or what went wrong before and shows now.
    fn perform(&mut self, operation: &Self::Operation, point: &Point) -> Result<(), Trouble>;

    /// What this rank offers to a collective is there once all is done that was started so far. Called ahead of the meeting.
    ///
    /// # Errors
    /// What went wrong, or what went wrong before and shows now.
    fn announce(&mut self, collective: u64) -> Result<(), Trouble>;

    /// The collective's movements, which are started next, come behind what a rank of this process has announced.
    ///
    /// # Errors
    /// As above.
    fn expect(&mut self, collective: u64, rank: usize) -> Result<(), Trouble>;

    /// The movements of this rank in a collective are started. Called ahead of the parting.
    ///
    /// # Errors
    /// As above.
    fn conclude(&mut self, collective: u64) -> Result<(), Trouble>;

    /// What the rank does by itself from now on comes behind a rank's movements in a collective.
    ///
    /// # Errors
    /// As above.
    fn finish(&mut self, collective: u64, rank: usize) -> Result<(), Trouble>;

    /// A step begins: says whether its work has to be asked for, or is under way.
    ///
    /// # Errors
    /// As above.
    fn begin_step(&mut self, numbers: StepNumbers) -> Result<StepStart, Trouble>;

    /// Ends the recording that [`StepStart::Record`] began, and starts what was recorded.
    ///
    /// # Errors
    /// As above.
    fn end_recording(&mut self) -> Result<(), Trouble>;

    /// Where a space begins.
    fn base(&self, space: Space) -> *mut u8;

    /// The stream that its movements are on, for what moves bytes between devices; the default where it has none.
    fn movement(&self) -> Stream;

    /// Returns when all that was started is done.
    ///
    /// # Errors
    /// What went wrong on the way.
    fn settle(&mut self) -> Result<(), Trouble>;

    /// Copies a block.
    ///
    /// # Safety
    /// Source and target hold the block as `transfer` says, and don't overlap; no other rank touches the block in the target.
    unsafe fn copy_block(
        &mut self,
        transfer: &Transfer,
        dtype: DType,
        source: *const u8,
        target: *mut u8,
    ) -> Result<(), Trouble>;

    /// Reduces the elements `range` of a block over all sources, in their order, into every target.
    ///
    /// # Safety
    /// Each source and target holds the block as `transfer` says, aligned to the type. A target may be
    /// one of the sources with the same strides, else it overlaps none. No other rank touches these elements.
    unsafe fn reduce_block(
        &mut self,
        block: (&Transfer, DType),
        reduction: Reduction,
        range: Range<usize>,
        sources: &[*const u8],
        targets: &[*mut u8],
    ) -> Result<(), Trouble>;

    /// A place in its memory for blocks on their way to or from other processes, aligned to every type. What the last one
    /// held is lost. It grows in the first step, and later steps find it as large as they need.
    ///
    /// # Errors
    /// There is no room.
    fn stage(&mut self, bytes: usize) -> Result<*mut u8, Trouble>;

    /// Copies bytes of its memory out, behind the movements that were started.
    ///
    /// # Safety
    /// They lie in memory that is this rank's own.
    unsafe fn fetch(&mut self, source: *const u8, bytes: &mut [u8]) -> Result<(), Trouble>;

    /// Copies bytes into its memory, behind the movements that were started. They may be gone when it returns.
    ///
    /// # Safety
    /// The target lies in memory that is this rank's own.
    unsafe fn store(&mut self, bytes: &[u8], target: *mut u8) -> Result<(), Trouble>;

    /// Sets bytes to zero.
    ///
    /// # Safety
    /// They lie in memory that is this rank's own.
    unsafe fn clear(&mut self, target: *mut u8, bytes: usize) -> Result<(), Trouble>;

    /// The first float of a result that is not finite: its index and value.
    ///
    /// # Errors
    /// What went wrong on the way.
    fn find_not_finite(
        &mut self,
        floats: &LinkedFloats,
        point: &Point,
    ) -> Result<Option<(usize, f32)>, Trouble>;

    /// Fills the arena with bytes that are NaN as floats.
    ///
    /// # Errors
    /// What the device says.
    fn poison_arena(&mut self) -> Result<(), Trouble>;

    /// Ends what works for the rank beside its own thread.
    fn close(&self);
}

/// How what a rank offers in a collective gets to the others.
#[derive(Clone)]
pub enum Way {
    /// They read it in memory that all of them reach.
    Memory,
    /// They are in other processes, and it goes there through the host's memory.
    Messages(Arc<dyn Transport>),
    /// They are in other processes, and it goes from device to device.
    Network(Arc<dyn Network>),
}

/// Runs steps of one rank.
pub struct Executor<B: Backend> {
    body: Box<[Linked<B::Operation>]>,
    frame: Frame<B>,
}

/// What running instructions changes.
struct Frame<B> {
    rank: usize,
    backend: B,
    health: Arc<Health>,
    spin: u32,
    timeout: Duration,
    watch: Watch,
    seats: Vec<Seat>,
    point: Point,
    /// Members' buffers of the tensor that is being reduced.
    sources: Vec<*const u8>,
    targets: Vec<*mut u8>,
    way: Way,
    letters: Letters,
    /// What is under way in the collective at hand; these keep their room from one to the next.
    parcels: Parcels,
    messages: Vec<Message>,
    /// Where parcels lie that do not in the buffers themselves.
    staged: *mut u8,
}

// SAFETY: the pointers lead into memory that the session keeps alive as long as the executor, and
// only the executor's thread and its backend use them.
unsafe impl<B: Backend> Send for Executor<B> {}

impl<B: Backend> Executor<B> {
    /// An executor for linked instructions, which refer to the memory of `backend` and to `seats`.
    #[must_use]
    pub fn new(
        rank: usize,
        body: Box<[Linked<B::Operation>]>,
        backend: B,
        seats: Vec<Seat>,
        health: Arc<Health>,
        (spin, timeout, watch): (u32, Duration, Watch),
        way: Way,
    ) -> Self {
        let members = seats.iter().map(Seat::members).max().unwrap_or(0);
        let frame = Frame {
            rank,
            backend,
            health,
            spin,
            timeout,
            watch,
            seats,
            point: Point::default(),
            sources: vec![std::ptr::null(); members],
            targets: vec![std::ptr::null_mut(); members],
            way,
            letters: Letters::new(members),
            parcels: Parcels::default(),
            messages: Vec::new(),
            staged: std::ptr::null_mut(),
        };
        Self { body, frame }
    }

    /// The seats, for messages.
    #[must_use]
    pub fn seats(&self) -> &[Seat] {
        &self.frame.seats
    }

    /// Runs one step; with a poisoned arena, if so wanted.
    ///
    /// # Errors
    /// What stopped it.
    pub fn step(&mut self, numbers: StepNumbers, poison: bool) -> Result<(), Interruption> {
        self.frame.point.numbers = numbers;
        let result = self.frame.step(&self.body, poison);
        self.frame.health.leave(self.frame.rank);
        result
    }

    /// Ends what works for the rank beside its own thread.
    pub fn close(&self) {
        self.frame.backend.close();
    }
}

impl<B: Backend> Frame<B> {
    fn step(&mut self, body: &[Linked<B::Operation>], poison: bool) -> Result<(), Interruption> {
        // No instruction's place.
        let outside = |trouble| Interruption { location: LocationId(u32::MAX), trouble };
        if poison {
            self.backend.poison_arena().map_err(outside)?;
        }
        match self.backend.begin_step(self.point.numbers).map_err(outside)? {
            StepStart::Perform => self.run(body)?,
            StepStart::Record => {
                self.run(body)?;
                self.backend.end_recording().map_err(outside)?;
            }
            StepStart::Replayed => {}
        }
        self.backend.settle().map_err(outside)
    }

    fn run(&mut self, body: &[Linked<B::Operation>]) -> Result<(), Interruption> {
        for instruction in body {
            if let LinkedOperation::Loop { count, order, depth, body } = &instruction.operation {
                for iteration in 0..*count {
                    self.point.loops[*depth] = u64::from(match order {
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
                catch_unwind(AssertUnwindSafe(|| probe(rank, location)))
                    .map_err(|_| interrupted(Trouble::Panicked))?;
            }
            self.operate(&instruction.operation).map_err(interrupted)?;
            if self.watch.finite {
                if let LinkedOperation::Collective(collective) = &instruction.operation {
                    // Its results are looked at, though nothing may use them yet.
                    self.finish(collective.number, collective.seat).map_err(interrupted)?;
                }
                self.look_for_not_finite(&instruction.floats)?;
            }
        }
        Ok(())
    }

    /// Looks at the results of an instruction that has just run.
    fn look_for_not_finite(&mut self, floats: &[LinkedFloats]) -> Result<(), Interruption> {
        for tensor in floats {
            let interrupted = |trouble| Interruption { location: tensor.location, trouble };
            let found = self.backend.find_not_finite(tensor, &self.point).map_err(interrupted)?;
            if let Some((element, value)) = found {
                return Err(interrupted(Trouble::NotFinite { value: NotFinite::of(value), element }));
            }
        }
        Ok(())
    }

    fn operate(&mut self, operation: &LinkedOperation<B::Operation>) -> Result<(), Trouble> {
        match operation {
            // `run` has dealt with it.
            LinkedOperation::Loop { .. } => Ok(()),
            LinkedOperation::Alone(operation) => self.backend.perform(operation, &self.point),
            LinkedOperation::Collective(collective) => self.exchange(collective),
            &LinkedOperation::Done { number, seat } => self.finish(number, seat),
        }
    }
}
