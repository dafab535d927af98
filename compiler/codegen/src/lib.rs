//! Code generation: the loop-level kernel IR, its emitters, and the assembly of a runnable program.
pub mod assemble;
pub mod cranelift;
pub mod cuda;
pub mod device;
pub mod kir;
pub mod lower;
pub mod math;
