//! Files: tensors in safetensors, weights by name, checkpoints, training data.
//!
//! Everything a user gives is checked here and ends in an error that names the file. Nothing is
//! mapped, so a file that shrinks while we read it is an error too.

pub mod checkpoint;
pub mod data;
pub mod digest;
pub mod names;
mod order;
pub mod output;
pub mod safetensors;
mod steps;
mod text;
pub mod values;
pub mod weights;
