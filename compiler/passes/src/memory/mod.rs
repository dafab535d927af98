//! The memory plan of a `scheduled` program: where every stored value lies, decided before anything runs.
//!
//! Each rank has three spaces: the state, the inputs of a step, and one arena for all else. Offsets in the
//! arena follow from liveness; the body of a loop has a block of its own in the arena of what
//! surrounds it. Values are stored in place of others where that is safe: carries, accumulators, updated
//! state, and results of kernels over arguments that nobody needs any more. The plan changes no
//! instruction; where a carry could not be computed in place its places differ, and whoever runs the program
//! copies (see [`MemoryPlan::place`]).

mod in_place;
mod liveness;
mod pack;
mod plan;
mod report;

pub use report::{MemoryReport, PeakItem};

use cranelift_entity::SecondaryMap;
use dtlc_ir::{Program, Value};
use smallvec::SmallVec;

/// Every buffer starts at a multiple of this many bytes.
pub const ALIGNMENT: u64 = 64;

/// A part of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// What lives from step to step.
    State,
    /// What lives within a step.
    Arena,
    /// What each step is given.
    Input,
}

/// How the instruction that defines a value stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Over whatever was there.
    Replace,
    /// Added to what is there.
    Accumulate,
}

/// Where a value is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The space.
    pub space: Space,
    /// Bytes from its start, in iteration 0 of all loops.
    pub offset: u64,
    /// Bytes that the value takes.
    pub bytes: u64,
    /// Bytes to add for each unit of a loop's index: (nesting depth of the loop, 0 the outermost; bytes).
    pub strides: SmallVec<[(u32, u64); 2]>,
    /// How it is written.
    pub write: Write,
}

impl Place {
    /// Whether both are the same memory.
    pub fn same_memory(&self, other: &Place) -> bool {
        (self.space, self.offset, &self.strides) == (other.space, other.offset, &other.strides)
    }
}

/// Where everything is.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// Size of the state space.
    pub state_bytes: u64,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Size of the input space.
    pub input_bytes: u64,
    places: SecondaryMap<Value, Option<Place>>,
    /// What lives at the moment when most is live.
    pub report: MemoryReport,
}

impl MemoryPlan {
    /// Where a value outside of kernels is stored.
    ///
    /// A scan's carries: if the initial value lies elsewhere than the carry (the body's parameter and the
    /// result lie together), it must be copied before the first iteration; if what the body yields lies
    /// elsewhere, it must be copied at the end of each. The same holds for initial stacks of accumulated outputs,
    /// and for updated state at the end of a step. An accumulated output's yield has [`Write::Accumulate`].
    pub fn place(&self, value: Value) -> Option<&Place> {
        self.places[value].as_ref()
    }

    /// Bytes of the three spaces. What kernels need while they run (packing buffers and the like) is each
    /// thread's own and comes on top.
    pub fn peak_bytes(&self) -> u64 {
        self.state_bytes + self.arena_bytes + self.input_bytes
    }
}

/// Plans the memory of a fused program.
pub fn plan_memory(program: &Program) -> MemoryPlan {
    plan::plan(program)
}
