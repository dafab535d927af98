//! Block sizes of the attention kernels and where each block lies in scratch. The same on every host.

use crate::signature::{AttentionSpec, Element, aligned};

/// Queries in a block: the lanes of a score tile.
pub(crate) const QUERIES: usize = 128;
/// Keys in a block: the rows of a score tile.
pub(crate) const KEYS: usize = 128;
/// Floats between rows of a score tile. Nine cache lines: a power of 2 would put all rows into few cache
/// sets.
pub(crate) const PITCH: usize = QUERIES + 16;

/// Every microkernel's lanes divide this.
const LANE_PANEL: usize = 64;
/// Every microkernel's columns divide this.
const COLUMN_PANEL: usize = 12;

/// Byte offsets in the scratch of a forward call.
#[derive(Clone, Copy)]
pub(crate) struct ForwardLayout {
    /// Queries as a left operand, lanes along queries.
    pub q: usize,
    /// Keys as a right operand (halves only).
    pub k: usize,
    /// Values as a left operand, lanes along features.
    pub v: usize,
    /// Scores, then probabilities.
    pub scores: usize,
    /// Outputs, not yet divided by the sums: `[QUERIES, value_dim]`.
    pub o: usize,
    /// Greatest score of each query so far.
    pub maximum: usize,
    /// Sum of each query's exponentials so far.
    pub sum: usize,
    /// What each query's old outputs and sum count for.
    pub decay: usize,
    /// Size of all.
    pub bytes: usize,
}

impl ForwardLayout {
    pub(crate) fn of(spec: &AttentionSpec) -> ForwardLayout {
        let mut next = Next(0);
        ForwardLayout {
            q: next.floats(QUERIES * spec.head_dim),
            k: next.floats(narrow_only(spec, columns(KEYS) * spec.head_dim)),
            v: next.floats(KEYS * lanes(spec.value_dim)),
            scores: next.floats(KEYS * PITCH),
            o: next.floats(QUERIES * spec.value_dim),
            maximum: next.floats(QUERIES),
            sum: next.floats(QUERIES),
            decay: next.floats(QUERIES),
            bytes: next.0,
        }
    }
}

/// Byte offsets in the scratch of a backward call.
#[derive(Clone, Copy)]
pub(crate) struct BackwardLayout {
    /// Queries as a left operand, lanes along queries.
    pub q_by_query: usize,
    /// Gradients of outputs as a left operand, lanes along queries.
    pub o_gradient_by_query: usize,
    /// Queries as a left operand, lanes along features.
    pub q_by_feature: usize,
    /// Gradients of outputs as a left operand, lanes along features.
    pub o_gradient_by_feature: usize,
    /// Keys as a left operand, lanes along features.
    pub k_by_feature: usize,
    /// Keys as a right operand (halves only).
    pub k: usize,
    /// Values as a right operand (halves only).
    pub v: usize,
    /// Scores, then probabilities.
    pub scores: usize,
    /// Gradients of probabilities, then of scores.
    pub gradients: usize,
    /// Sums of the queries' gradients: `[QUERIES, head_dim]`.
    pub q_gradient: usize,
    /// Sums of the keys' gradients (halves only): `[k_len, head_dim]`.
    pub k_gradient: usize,
    /// Sums of the values' gradients (halves only): `[k_len, value_dim]`.
    pub v_gradient: usize,
    /// Log-sum-exp of each query, 0 where it sees no key.
    pub lse: usize,
    /// Output times its gradient, summed over features, of each query.
    pub delta: usize,
    /// Size of all.
    pub bytes: usize,
}

impl BackwardLayout {
    pub(crate) fn of(spec: &AttentionSpec) -> BackwardLayout {
        let mut next = Next(0);
        BackwardLayout {
            q_by_query: next.floats(QUERIES * spec.head_dim),
            o_gradient_by_query: next.floats(QUERIES * spec.value_dim),
            q_by_feature: next.floats(QUERIES * lanes(spec.head_dim)),
            o_gradient_by_feature: next.floats(QUERIES * lanes(spec.value_dim)),
            k_by_feature: next.floats(KEYS * lanes(spec.head_dim)),
            k: next.floats(narrow_only(spec, columns(KEYS) * spec.head_dim)),
            v: next.floats(narrow_only(spec, columns(KEYS) * spec.value_dim)),
            scores: next.floats(KEYS * PITCH),
            gradients: next.floats(KEYS * PITCH),
            q_gradient: next.floats(QUERIES * spec.head_dim),
            k_gradient: next.floats(narrow_only(spec, spec.k_len * spec.head_dim)),
            v_gradient: next.floats(narrow_only(spec, spec.k_len * spec.value_dim)),
            lse: next.floats(QUERIES),
            delta: next.floats(QUERIES),
            bytes: next.0,
        }
    }
}

/// Hands out scratch from the front.
struct Next(usize);

impl Next {
    fn floats(&mut self, count: usize) -> usize {
        let offset = self.0;
        self.0 += aligned(4 * count);
        offset
    }
}

/// What tensors that are not f32 already need.
fn narrow_only(spec: &AttentionSpec, floats: usize) -> usize {
    match spec.element {
        Element::F32 => 0,
        Element::Bf16 | Element::F16 => floats,
    }
}

fn lanes(count: usize) -> usize {
    count.next_multiple_of(LANE_PANEL)
}

fn columns(count: usize) -> usize {
    count.next_multiple_of(COLUMN_PANEL)
}
