//! The tiles that attention's kernels on the tensor cores work on, by the widths of heads.
//!
//! From a descriptor to the constants of `attention_tensor.cuh`. Launches nothing.

use super::CHUNK;
use super::group::{group_multipliers, multipliers};
use crate::cuda::mapped::MappedRows;
use crate::cuda::source::Source;
use crate::signature::{AttentionSpec, Element};

/// Warps of a block, or of each group that multiplies together.
const WARPS: usize = 4;
/// Tiles of columns in shared memory: while one is multiplied, the other is on its way.
const STAGES: usize = 2;
/// Lines and terms that a product on the tensor cores takes at least.
const FRAGMENT: usize = 16;
/// The most features that a warp has sums of, in registers, beside those of scores.
const WIDEST: usize = 256;

/// As much shared memory as a block has on devices of compute capability 9.0, less some for barriers.
const BULK_ROOM: usize = 224 << 10;
/// More steps under way than this hide nothing more.
const MOST_STAGES: usize = 4;

/// Whether the tensor cores compute it: floats of 16 bits of heads that fit into registers.
pub(super) fn is_for_tensor_cores(spec: &AttentionSpec) -> bool {
    let fits = |features: usize| (1..=WIDEST).contains(&features);
    spec.element != Element::F32 && fits(spec.head_dim) && fits(spec.value_dim)
}

/// How tiles get to shared memory, and for whom.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// By copies of all threads, on every device.
    Copied,
    /// In bulk, on devices where four warps multiply together: rows of 128 bytes.
    InBulk,
}

/// The part of the scores that a block works on at a time, and how heads lie in its shared memory.
pub(super) struct Tiles {
    arrival: Arrival,
    /// Warps that multiply.
    warps: usize,
    stages: usize,
    warp_rows: usize,
    columns: usize,
    head_width: usize,
    value_width: usize,
    /// Blocks that compute the same scores, each for as many features of the outputs.
    pub(super) parts: usize,
    /// Features of a row that stay in shared memory.
    kept: Vec<usize>,
    /// Features of each output that a block makes.
    summed: Vec<usize>,
}

impl Tiles {
    /// Those of the forward kernel, which keeps queries and sums up values. The more rows a warp has, the fewer fragments of keys and
    /// values it loads for each product: as many as registers hold, where there are queries for that and no documents to keep apart.
    pub(super) fn forward(spec: &AttentionSpec) -> Tiles {
        let tiles = Tiles::of(spec, 1);
        let short = Tiles { kept: vec![tiles.head_width], summed: vec![tiles.value_width], ..tiles };
        let are_many = spec.q_len > short.rows() && spec.documents.is_none();
        match short.head_width.max(short.value_width) {
            ..=64 if are_many => Tiles { warp_rows: 2 * FRAGMENT, columns: 64, ..short },
            65..=128 if are_many => Tiles { warp_rows: 2 * FRAGMENT, columns: 32, ..short },
            ..=128 => Tiles { columns: 64, ..short },
            _ => Tiles { columns: 32, ..short },
        }
    }

    /// Those of the forward kernel where they arrive in bulk, with as many columns as scores have registers for beside the outputs.
    pub(super) fn forward_in_bulk(spec: &AttentionSpec) -> Tiles {
        let tiles = Tiles { warp_rows: FRAGMENT, ..Tiles::forward(spec) };
        let is_narrow = tiles.head_width.max(tiles.value_width) <= 64;
        let is_full = tiles.is_wide() || spec.documents.is_some() && !is_narrow;
        let columns = if is_full { 64 } else { 128 };
        Tiles { columns, ..tiles }.in_bulk(spec.q_len)
    }

    /// Those of the gradient of queries where they arrive in bulk.
    pub(super) fn query_gradient_in_bulk(spec: &AttentionSpec) -> Tiles {
        let tiles = Tiles::query_gradient(spec);
        let columns = if tiles.is_wide() { 32 } else { 64 };
        Tiles { columns, ..tiles }.in_bulk(spec.q_len)
    }

    /// Those of the gradients of keys and values where they arrive in bulk. None where two blocks that share keys would share a row of 128 bytes.
    pub(super) fn key_gradient_in_bulk(spec: &AttentionSpec) -> Option<Tiles> {
        let tiles = Tiles::key_gradient(spec);
        let is_whole = |features: &usize| tiles.parts == 1 || features.is_multiple_of(MappedRows::WIDTH);
        if !tiles.summed.iter().all(is_whole) {
            return None;
        }
        let columns = tiles.columns.max(32);
        Some(Tiles { columns, ..tiles }.in_bulk(spec.k_len))
    }

    /// The same in bulk: two groups of four warps where there are `lines` enough for both, and as many stages as there is room for.
    fn in_bulk(self, lines: usize) -> Tiles {
        let warps = if lines > self.rows() { 2 * WARPS } else { WARPS };
        let tiles = Tiles { arrival: Arrival::InBulk, warps, ..self };
        let left = BULK_ROOM - tiles.kept_bytes();
        Tiles { stages: (left / tiles.stage_bytes()).min(MOST_STAGES), ..tiles }
    }

    /// Whether a row's outputs take most of a thread's registers.
    fn is_wide(&self) -> bool {
        self.head_width.max(self.value_width) > WIDEST / 2
    }

    /// Those of the gradient of queries, which keeps queries and gradients of outputs and sums up keys.
    pub(super) fn query_gradient(spec: &AttentionSpec) -> Tiles {
        let tiles = Tiles::of(spec, 1);
        Tiles { summed: vec![tiles.head_width], ..tiles }
    }

    /// Those of the gradients of keys and values, which keeps both and has sums for both.
    pub(super) fn key_gradient(spec: &AttentionSpec) -> Tiles {
        let widest = spec.head_dim.max(spec.value_dim);
        Tiles::of(spec, if widest <= WIDEST / 2 { 1 } else { 2 })
    }

    /// Tiles that keep all features of rows and sum up as many as a part has. The wider they are, the fewer columns have room beside
    /// them in the 99 KiB that the smallest device gives a block.
    fn of(spec: &AttentionSpec, parts: usize) -> Tiles {
        let width = |features: usize| features.next_multiple_of(FRAGMENT * parts);
        let (head_width, value_width) = (width(spec.head_dim), width(spec.value_dim));
        let columns = match head_width.max(value_width) {
            ..=64 => 64,
            65..=128 => 32,
            _ => 16,
        };
        Tiles {
            arrival: Arrival::Copied,
            warps: WARPS,
            stages: STAGES,
            warp_rows: FRAGMENT,
            columns,
            head_width,
            value_width,
            parts,
            kept: vec![head_width, value_width],
            summed: vec![head_width / parts, value_width / parts],
        }
    }

    /// Threads that multiply.
    pub(super) fn threads(&self) -> u32 {
        32 * self.warps as u32
    }

    /// Queries, or keys, of a block.
    pub(super) fn rows(&self) -> usize {
        self.warps * self.warp_rows
    }

    /// Keys, or queries, of a step.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes for what is kept and for each stage; outputs pass through them at last.
    pub(super) fn shared_bytes(&self) -> usize {
        let tiles = self.kept_bytes() + self.stages * self.stage_bytes();
        tiles.max(self.rows() * self.value_width * Element::Bf16.bytes())
    }

    fn kept_bytes(&self) -> usize {
        self.rows() * self.kept.iter().map(|width| self.row_bytes(*width)).sum::<usize>()
    }

    fn stage_bytes(&self) -> usize {
        self.columns * (self.row_bytes(self.head_width) + self.row_bytes(self.value_width))
    }

    /// Bytes of a row of so many features in shared memory.
    fn row_bytes(&self, width: usize) -> usize {
        width.next_multiple_of(CHUNK * self.row_chunks()) * Element::Bf16.bytes()
    }

    /// Chunks that rows in shared memory have a multiple of.
    fn row_chunks(&self) -> usize {
        match self.arrival {
            Arrival::Copied => 1,
            Arrival::InBulk => MappedRows::WIDTH / CHUNK,
        }
    }

    /// Goes on with the tiles' constants.
    pub(super) fn describe(&self, source: Source) -> Source {
        let multipliers = match self.arrival {
            Arrival::Copied => multipliers(self.columns, &self.summed),
            Arrival::InBulk => group_multipliers(self.columns, &self.summed),
        };
        source
            .constant("unsigned", "WARPS", self.warps)
            .constant("int", "STAGES", self.stages)
            .constant("int", "ROW_CHUNKS", self.row_chunks())
            .constant("int", "WARP_ROWS", self.warp_rows)
            .constant("int", "COLUMNS", self.columns)
            .constant("int", "HEAD_WIDTH", self.head_width)
            .constant("int", "VALUE_WIDTH", self.value_width)
            .constant("unsigned", "PARTS", self.parts)
            .constant("unsigned", "SHARED_BYTES", self.shared_bytes())
            .file(include_str!("../tensor.cuh"))
            .file(include_str!("../attention_tensor.cuh"))
            .file(&multipliers)
    }
}
