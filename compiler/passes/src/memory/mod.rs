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

use dtlc_ir::Program;
use dtlc_ir::memory::MemoryPlan;

/// Every buffer starts at a multiple of this many bytes.
pub const ALIGNMENT: u64 = 64;

/// Plans the memory of a fused program.
pub fn plan_memory(program: &Program) -> MemoryPlan {
    plan::plan(program)
}
