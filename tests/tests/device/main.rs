//! The GPU's hand-written kernels on the emulator, every check on, against the CPU's: odd shapes, all layouts, and faults
//! seeded into their sources.

#[path = "../../../compiler/codegen/tests/support/device.rs"]
mod library;

#[path = "../../../kernels/tests/support/mod.rs"]
mod support;

mod attention;
mod attention_bulk;
mod attention_documents;
mod attention_tensor;
mod bench;
mod collective;
mod embedding;
mod epilogue;
mod epilogue_kernels;
mod faults;
mod faults_attention;
mod faults_epilogue;
mod matmul;
mod products;
mod tensor;
mod tensor_cores;
mod tf32;
