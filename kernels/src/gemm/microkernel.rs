//! The register tile: picks `gemm-f32`'s microkernel for an instruction set and a tile's size, and calls it.

use gemm_common::microkernel::MicroKernelFn;

use super::Output;
use crate::{isa::Isa, signature::Accumulation};

/// The microkernels of one instruction set.
pub(crate) struct Microkernels {
    /// f32 numbers in a vector.
    vector: usize,
    /// Vectors along the lanes of the largest tile.
    vectors: usize,
    /// Columns of the largest tile.
    pub columns: usize,
    /// The kernel for `v` vectors and `c` columns is at `(v - 1) * columns + c - 1`.
    functions: &'static [MicroKernelFn<f32>],
}

/// One register tile: packed panels in, part of the output out.
pub(crate) struct Tile {
    pub lanes: usize,
    pub columns: usize,
    pub depth: usize,
    pub left: *const f32,
    pub left_step_stride: isize,
    pub right: *const f32,
    pub right_step_stride: isize,
    pub right_column_stride: isize,
    pub output: Output,
    pub accumulation: Accumulation,
    pub scale: f32,
}

#[cfg(target_arch = "x86_64")]
mod tables {
    use super::{MicroKernelFn, Microkernels};
    use gemm_f32::microkernel::{avx512f, fma};

    static AVX512_FUNCTIONS: [[MicroKernelFn<f32>; avx512f::f32::NR]; avx512f::f32::MR_DIV_N] =
        avx512f::f32::UKR;
    static AVX2_FUNCTIONS: [[MicroKernelFn<f32>; fma::f32::NR]; fma::f32::MR_DIV_N] = fma::f32::UKR;

    pub(super) static AVX512: Microkernels = Microkernels {
        vector: 16,
        vectors: avx512f::f32::MR_DIV_N,
        columns: avx512f::f32::NR,
        functions: AVX512_FUNCTIONS.as_flattened(),
    };
    pub(super) static AVX2: Microkernels = Microkernels {
        vector: 8,
        vectors: fma::f32::MR_DIV_N,
        columns: fma::f32::NR,
        functions: AVX2_FUNCTIONS.as_flattened(),
    };
}

use gemm_f32::microkernel::scalar;

static SCALAR_FUNCTIONS: [[MicroKernelFn<f32>; scalar::f32::NR]; scalar::f32::MR_DIV_N] = scalar::f32::UKR;

static SCALAR: Microkernels = Microkernels {
    vector: 1,
    vectors: scalar::f32::MR_DIV_N,
    columns: scalar::f32::NR,
    functions: SCALAR_FUNCTIONS.as_flattened(),
};

impl Microkernels {
    /// The microkernels of an instruction set.
    pub(crate) fn of(isa: Isa) -> &'static Microkernels {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 | Isa::Avx512 => &tables::AVX512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &tables::AVX2,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512Bf16 | Isa::Avx512 | Isa::Avx2 => &SCALAR,
            Isa::Baseline => &SCALAR,
        }
    }

    /// f32 numbers in a vector.
    pub(crate) fn vector(&self) -> usize {
        self.vector
    }

    /// Lanes of the largest tile.
    pub(crate) fn lanes(&self) -> usize {
        self.vector * self.vectors
    }

    /// Computes one tile.
    ///
    /// # Safety
    /// The instruction set must be available; the left panel must be readable for `depth` rows of
    /// [`Self::lanes`], the right one at the tile's indices; the output must be writable there.
    pub(crate) unsafe fn run(&self, tile: &Tile) {
        let vectors = tile.lanes.div_ceil(self.vector);
        let function = self.functions[(vectors - 1) * self.columns + tile.columns - 1];
        // What the output's old content counts for: not read, or once.
        let (alpha, alpha_status) = match tile.accumulation {
            Accumulation::Overwrite => (0.0, 0),
            Accumulation::Add => (1.0, 1),
        };
        // SAFETY: the kernel reads `depth` steps of both panels at the strides given and writes lanes ×
        // columns outputs.
        unsafe {
            function(
                tile.lanes,
                tile.columns,
                tile.depth,
                tile.output.data,
                tile.left,
                tile.right,
                tile.output.column_stride,
                tile.output.lane_stride,
                tile.left_step_stride,
                tile.right_step_stride,
                tile.right_column_stride,
                alpha,
                tile.scale,
                alpha_status,
                false,
                false,
                false,
                std::ptr::null(),
            );
        }
    }
}
