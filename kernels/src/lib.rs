//! Hand-written kernels: what a compiler should not generate from scratch.
//!
//! Owns GEMM, flash attention, embedding take and its transpose, and the reductions and copies under
//! collectives, each with a descriptor ([`signature`]) that the compiler writes into a program and the
//! runtime hands back here. Sizes, strides and element types are in the descriptor; pointers, global offsets
//! and the [`signature::Part`] of the work come at run time.
//!
//! [`cuda`] has the same kernels for GPUs, as sources and launches. Three rules hold for every kernel of the CPU:
//!
//! * No kernel allocates. Scratch comes from the caller; its size is a pure function of the descriptor, the
//!   same on every host, so the memory plan includes it.
//! * The result has the same bits for any number of parts.
//! * The best instruction set is found at run time ([`isa::Isa::detect`]).
//!
//! Knows nothing of models, ranks, or the IR.

pub mod attention;
pub mod collective;
pub mod cuda;
pub mod embedding;
mod gemm;
pub mod isa;
pub mod math;
pub mod matmul;
mod number;
pub mod signature;
