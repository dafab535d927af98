//! The passes that take a typed model to a scheduled program.

mod differentiate;
mod error;
mod fuse;
mod interface;
mod lower;
pub mod memory;
mod regions;
mod update;
mod uses;

pub use differentiate::differentiate;
pub use error::{PassError, PassErrorKind, Place};
pub use fuse::fuse;
pub use lower::{Atoms, Lowered, Pin, Position, lower};
pub use update::update;
