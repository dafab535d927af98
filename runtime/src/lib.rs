//! Runs a compiled program: its format, ranks, memory arena, collectives, data and logs.
//!
//! Takes a [`program::Program`] from the compiler or from a file. Links no code generator and
//! knows neither the language nor the IR.

pub mod error;
pub mod program;

pub use error::{Result, RuntimeError};
