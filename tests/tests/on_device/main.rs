//! Whole programs on an emulated GPU, every check on, against the same programs on the CPU.

#[path = "../../../compiler/codegen/tests/support/device.rs"]
mod library;

mod bulk;
mod collectives;
mod epilogues;
mod golden;
mod graphs;
mod machine_code;
mod network;
mod random;
mod start;
mod switch;
mod tf32;
