//! Runs a compiled program: its format, ranks, memory arena, collectives, data and logs.
//!
//! Takes a [`program::Program`] from the compiler or from a file. Links no code generator and
//! knows neither the language nor the IR.

mod collectives;
mod cpu;
mod device;
pub mod error;
mod executor;
pub mod files;
pub mod gpu;
mod health;
mod link;
pub mod nccl;
pub mod network;
pub mod processes;
pub mod program;
mod random;
pub mod session;
mod shards;
mod signal;
pub mod tensor;
pub mod train;

pub use device::movement_kernels;
pub use error::{Result, RuntimeError};
