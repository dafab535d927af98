//! What the compiler and the runtime share about each kernel: descriptors that are stored in a program.
//!
//! The compiler fills a descriptor, asks it for its scratch size and puts both in the program; the runtime
//! asks it for the number of parts and calls the kernel. Strides are in elements, not bytes, unless a name
//! says otherwise. Holds no pointers and no code of the kernels themselves.

mod attention;
mod embedding;
mod matmul;

use std::{error::Error, fmt, ops::Range};

use serde::{Deserialize, Serialize};

pub(crate) use attention::Head;
pub use attention::{AttentionBackwardSpec, AttentionSpec, Causality, Documents, HeadStrides};
pub use embedding::{ScatterAddSpec, TakeSpec};
pub use matmul::{BatchLoop, ContractionDim, ContractionLoop, Factors, MatmulSpec};
pub(crate) use matmul::{Orientation, Share};

/// Alignment in bytes that every scratch pointer given to a kernel must have.
pub const SCRATCH_ALIGNMENT: usize = 64;

/// Element type of a kernel's floating-point operand. Arithmetic is in f32 for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// IEEE binary32.
    F32,
    /// bfloat16; results are rounded to nearest, ties to even.
    Bf16,
    /// IEEE binary16, likewise.
    F16,
}

impl Element {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
        }
    }
}

/// Whether a kernel replaces its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Accumulation {
    /// The output's old content is not read.
    Overwrite,
    /// The result is added to the output's old content.
    Add,
}

/// One share of a kernel call: part `index` of `count`. Distinct parts of one call write disjoint memory and
/// may run at the same time, each with scratch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which part, `0..count`.
    pub index: usize,
    /// How many parts the call is divided into.
    pub count: usize,
}

impl Part {
    /// The call in one piece.
    pub const WHOLE: Part = Part { index: 0, count: 1 };

    /// This part's share of `0..extent`, cut at multiples of `granule`; empty if there are more parts than
    /// granules.
    pub fn range(self, extent: usize, granule: usize) -> Range<usize> {
        let granules = extent.div_ceil(granule);
        let cut = |index: usize| (granules * index / self.count * granule).min(extent);
        cut(self.index)..cut(self.index + 1)
    }
}

/// A descriptor that no kernel can run: the compiler wrote it, so it is a fault of the compiler's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSpec {
    /// Which rule the descriptor breaks.
    pub reason: &'static str,
}

impl fmt::Display for InvalidSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bug in dtlc: invalid kernel descriptor: {}", self.reason)
    }
}

impl Error for InvalidSpec {}

/// `bytes` rounded up so that what follows it in scratch is aligned again.
pub(crate) const fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(SCRATCH_ALIGNMENT)
}

/// `Ok` if `holds`, else the fault `reason`.
pub(crate) fn require(holds: bool, reason: &'static str) -> Result<(), InvalidSpec> {
    if holds { Ok(()) } else { Err(InvalidSpec { reason }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_extent_once() {
        for extent in [0, 1, 7, 64, 65, 1000] {
            for granule in [1, 6, 64] {
                for count in [1, 2, 3, 7, 16] {
                    let mut next = 0;
                    for index in 0..count {
                        let range = Part { index, count }.range(extent, granule);
                        assert_eq!(range.start, next);
                        next = range.end;
                    }
                    assert_eq!(next, extent);
                }
            }
        }
    }
}
