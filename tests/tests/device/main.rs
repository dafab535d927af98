//! The GPU's hand-written kernels on the emulator, every check on, against the CPU's: odd shapes, all layouts, and faults
//! seeded into their sources.

#[path = "../../../compiler/codegen/tests/support/device.rs"]
mod library;

mod bench;
mod collective;
mod matmul;
mod tensor;
