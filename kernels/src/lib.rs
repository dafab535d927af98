//! Hand-written kernels: GEMM, flash attention and what else a compiler should not generate from scratch.
