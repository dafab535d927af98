//! Runs a compiled program: its format, ranks, memory arena, collectives, data and logs.
//!
//! Takes a [`program::Program`] from the compiler or from a file. Links no code generator and
//! knows neither the language nor the IR.

mod code;
mod collectives;
pub mod error;
mod health;
mod link;
mod memory;
pub mod program;
mod signal;
mod team;

pub use error::{Result, RuntimeError};
