//! The passes that take a typed model to a scheduled program.

mod accumulate;
mod cheap;
mod chunk;
mod differentiate;
mod error;
pub mod expect;
mod flight;
mod fuse;
mod interface;
mod joint;
pub mod limits;
mod lower;
pub mod memory;
pub mod partition;
mod regions;
mod remat;
pub mod report;
mod simplify;
mod update;
mod uses;

pub use accumulate::accumulate;
pub use chunk::{ChunkBudget, Chunked, chunk};
pub use differentiate::differentiate;
pub use error::{PassError, PassErrorKind, Place};
pub use flight::start_collectives;
pub use fuse::fuse;
pub use joint::{Mode, joint};
pub use lower::{Atoms, Lowered, Pin, Position, lower};
pub use remat::{convert_weights_again, rematerialise};
pub use simplify::{Gradients, simplify};
pub use update::update;
