//! Where the values of a scheduled program are stored: what the memory plan is, as data.
//!
//! Made by the last pass of stage `scheduled`, printed and read with the program's text, and followed by code
//! generation. Decides nothing: see `memory` in the crate of passes.

use crate::program::Value;
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

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

impl Space {
    /// Every space.
    pub const ALL: [Space; 3] = [Space::State, Space::Arena, Space::Input];

    /// The name in IR text.
    pub fn name(self) -> &'static str {
        match self {
            Space::State => "state",
            Space::Arena => "arena",
            Space::Input => "input",
        }
    }
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Size of the state space.
    pub state_bytes: u64,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Size of the input space.
    pub input_bytes: u64,
    /// See [`MemoryPlan::place`].
    pub places: SecondaryMap<Value, Option<Place>>,
    /// At the moment when the arena is fullest, the first value of each buffer that is alive, largest first. What else
    /// the arena takes are gaps.
    pub peak: Vec<Value>,
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

    /// The size of a space.
    pub fn bytes_of(&self, space: Space) -> u64 {
        match space {
            Space::State => self.state_bytes,
            Space::Arena => self.arena_bytes,
            Space::Input => self.input_bytes,
        }
    }

    /// Bytes of the three spaces. What kernels need while they run (packing buffers and the like) is each
    /// thread's own and comes on top.
    pub fn peak_bytes(&self) -> u64 {
        self.state_bytes + self.arena_bytes + self.input_bytes
    }
}
