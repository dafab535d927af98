//! Chunks, on a program with planned collectives: a product too large to hold, of which only statistics and sums
//! are ever needed, is computed a part at a time.
//!
//! ```text
//! before:  %y: f32[B, S, V] = dot %x, %w      after:  %c, %m = scan[B.chunks](%zeros; %x) {
//!          %m: f32[B, S] = reduce_max[V] %y             %y: f32[B.rows, S, V] = dot %x#, %w
//!          … %d: f32[B, S, V] = …                       … yield add %carry, (dot %x#, %d); %m# }
//!          %c: f32[D, V] = dot %x, %d
//! ```
//!
//! The case in point are the logits of a large vocabulary under a cross-entropy, with their gradient. What has the
//! size of the product moves into a loop over rows of one of its dims, and what lies between; results of rows are
//! stacked, sums over rows are carried. Where a collective stands between (statistics under a sharded vocabulary) there
//! is a loop before it and one behind it, which computes the product again: the collective itself runs once, for
//! all chunks together.
//!
//! It works on each rank's own rows, so placement never matters: a dim that is split over ranks comes apart into
//! ranks, chunks and rows. Small products stay as they are, and so do those that something needs whole.

mod group;
mod roll;
mod shift;

use crate::simplify::remove_dead;
use dtlc_ir::{Dim, Inst, Op, Origin, Program, Region, Value};
use group::Group;
use rustc_hash::FxHashSet;

/// How much of a product a rank may hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkBudget {
    /// Up to this many bytes it stays whole.
    pub whole: u64,
    /// Otherwise a chunk has at most this many,
    pub chunk: u64,
    /// or this many rows if that is more, since each chunk reads all of the other factor.
    pub rows: u64,
}

impl Default for ChunkBudget {
    fn default() -> ChunkBudget {
        ChunkBudget { whole: 8 << 20, chunk: 8 << 20, rows: 512 }
    }
}

/// A product that is never whole in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunked {
    /// What it is called.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// The dim whose rows are cut into chunks.
    pub dim: String,
    /// Chunks on a rank.
    pub chunks: u64,
    /// Bytes of the product on a rank, if it were whole.
    pub whole: u64,
}

/// Computes large products in chunks; says which.
pub fn chunk(program: &mut Program, budget: &ChunkBudget) -> Vec<Chunked> {
    let mut made = Vec::new();
    let mut main = std::mem::take(&mut program.main);
    in_region(program, &mut main, budget, &mut made);
    program.main = main;
    if !made.is_empty() {
        // Loops compute again what they need of earlier ones, so some of that was in vain.
        remove_dead(program);
    }
    made
}

fn in_region(program: &mut Program, region: &mut Region, budget: &ChunkBudget, made: &mut Vec<Chunked>) {
    let mut refused: FxHashSet<Value> = FxHashSet::default();
    if large_product(program, region, budget, &refused).is_some() {
        shift::by_local_maximum(program, region);
    }
    while let Some(at) = large_product(program, region, budget, &refused) {
        let product = region.insts[at].results[0];
        let dims = program.ty(product).dims.clone();
        let cut = dims.iter().find_map(|&dim| {
            let rows = rows_of_chunk(program, &region.insts[at], dim, budget)?;
            Some((rows, Group::new(program, region, product, dim)?))
        });
        let Some((rows, group)) = cut else {
            refused.insert(product);
            continue;
        };
        made.push(describe(program, product, group.dim, rows));
        roll::roll(program, region, &group, rows);
        roll::start_from_carries(program, region, &group);
    }
    for inst in &mut region.insts {
        if let Op::Scan(scan) = &mut inst.op {
            in_region(program, &mut scan.body, budget, made);
        }
    }
}

/// The first product that is too large and wasn't refused.
fn large_product(
    program: &Program,
    region: &Region,
    budget: &ChunkBudget,
    refused: &FxHashSet<Value>,
) -> Option<usize> {
    region.insts.iter().position(|inst| {
        let result = inst.results[0];
        matches!(inst.op, Op::Dot(_))
            && program.ty(result).local_bytes(program) > budget.whole
            && !refused.contains(&result)
    })
}

/// How many rows of `dim` fit into a chunk; none where they can't be told apart.
fn rows_of_chunk(program: &Program, product: &Inst, dim: Dim, budget: &ChunkBudget) -> Option<u64> {
    let ty = program.ty(product.results[0]);
    let rows = ty.local_size(program, dim);
    if program.dims[dim].pad || rows < 2 {
        return None;
    }
    // The factor with this dim may have others that the product keeps.
    let factor = product.args.iter().map(|&arg| program.ty(arg)).find(|arg| arg.has(dim))?;
    let beside = factor.dims.iter().filter(|&&other| other != dim && ty.has(other));
    let beside: u64 = beside.map(|&other| ty.local_size(program, other)).product();
    let fitting = budget.chunk / (ty.local_bytes(program) / rows).max(1);
    let fitting = fitting.max(budget.rows / beside.max(1));
    if rows <= fitting {
        return None;
    }
    (1..=fitting.max(1)).rev().find(|part| rows.is_multiple_of(*part))
}

fn describe(program: &Program, product: Value, dim: Dim, rows: u64) -> Chunked {
    let ty = program.ty(product);
    let info = &program.values[product];
    Chunked {
        name: program.display_value(product),
        origin: info.origin,
        dim: program.dims[dim].name.clone(),
        chunks: ty.local_size(program, dim) / rows,
        whole: ty.local_bytes(program),
    }
}
