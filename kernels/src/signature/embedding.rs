//! Descriptors of the embedding kernels: rows of a vocabulary-sharded table by id, and the transpose.

use serde::{Deserialize, Serialize};

use super::{Accumulation, Element, Part, aligned};

/// Columns of a row are divided among threads at multiples of this: a cache line of f32.
const COLUMN_GRANULE: usize = 16;

/// `output[t, :] = table[ids[t] - offset, :]`, or zeros if the table's shard does not hold that row.
///
/// Table `[vocabulary, width]` and output `[tokens, width]` are dense; ids are i32 or u32 (ids are below 2³¹,
/// so both have the same bits; a negative id is in no shard). `offset`, the global id of the shard's first
/// row, comes at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeSpec {
    /// Number of ids.
    pub tokens: usize,
    /// Rows of the local table.
    pub vocabulary: usize,
    /// Elements of a row.
    pub width: usize,
    /// Element type of table and output.
    pub element: Element,
}

impl TakeSpec {
    /// Number of parts worth running on `threads` threads.
    pub fn parts(&self, threads: usize) -> usize {
        parts_by_bytes(self.tokens * self.width * self.element.bytes(), threads)
    }
}

/// `output[v, :] (+)= sum of source[t, :] over the t with ids[t] - offset = v`, in the order of `t`.
///
/// Source `[tokens, width]` and output `[vocabulary, width]` are dense. The sum of a row is in f32 and meets
/// the output once, so an output of 16 bits is rounded once. Ids outside the shard are skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScatterAddSpec {
    /// Number of ids.
    pub tokens: usize,
    /// Rows of the local output.
    pub vocabulary: usize,
    /// Elements of a row.
    pub width: usize,
    /// Element type of the source.
    pub source: Element,
    /// Element type of the output.
    pub output: Element,
    /// `Overwrite` sets rows that no id names to zero.
    pub accumulation: Accumulation,
}

impl ScatterAddSpec {
    /// Number of parts worth running on `threads` threads. Parts divide the columns, so skewed ids do not
    /// unbalance them.
    pub fn parts(&self, threads: usize) -> usize {
        let bytes = self.tokens * self.width * self.source.bytes();
        parts_by_bytes(bytes, threads).min(self.width.div_ceil(COLUMN_GRANULE).max(1))
    }

    /// Scratch in bytes for each part that runs at the same time: the tokens sorted by id.
    pub fn scratch_bytes(&self) -> usize {
        aligned(4 * (self.vocabulary + 1)) + aligned(4 * self.tokens)
    }

    /// The columns that a part computes.
    pub(crate) fn columns(&self, part: Part) -> std::ops::Range<usize> {
        part.range(self.width, COLUMN_GRANULE)
    }
}

fn parts_by_bytes(bytes: usize, threads: usize) -> usize {
    const LEAST_BYTES_OF_A_PART: usize = 1 << 16;
    (bytes / LEAST_BYTES_OF_A_PART).clamp(1, threads.max(1))
}
