//! The passes that take a typed model to a scheduled program.

mod fuse;
pub mod memory;
mod uses;

pub use fuse::fuse;
