//! The GPU's hand-written kernels on the emulator, every check on, against the CPU's: odd shapes, all layouts, and faults
//! seeded into their sources.

#[path = "../../../compiler/codegen/tests/support/device.rs"]
#[allow(dead_code, reason = "only the library is used")]
mod library;

mod bench;
mod collective;
