//! The elementwise part of attention on one tile of scores: cap, mask, online softmax, and the softmax's
//! gradient.
//!
//! A tile holds a row of query lanes for each key, [`PITCH`] apart. Lanes past the block's queries hold
//! rubbish that no one reads.

use std::ops::Range;

use super::layout::{KEYS, PITCH, QUERIES};
use crate::{
    isa::for_each_isa,
    math::{exp, tanh},
    signature::{AttentionSpec, Causality},
};

/// Lanes that the loops here work on at once.
const LANES: usize = 16;

/// Which keys each query sees, for one block of queries.
#[derive(Clone, Copy)]
pub(super) struct Visibility {
    /// Global coordinate of the block's first query.
    pub first_query: i64,
    /// Queries in the block.
    pub queries: usize,
    /// Global coordinate of key 0.
    pub key_offset: i64,
    causality: Causality,
    window: Option<i64>,
}

impl Visibility {
    pub(super) fn new(spec: &AttentionSpec, first_query: i64, queries: usize, key_offset: i64) -> Visibility {
        let window = spec.window.and_then(|window| i64::try_from(window).ok());
        Visibility { first_query, queries, key_offset, causality: spec.causality, window }
    }

    /// The keys, of `count`, that some query of the block sees: none outside this range is seen.
    pub(super) fn keys(&self, count: usize) -> Range<usize> {
        let last_query = self.first_query + self.queries as i64 - 1;
        let first = match self.window {
            Some(window) => self.first_query.saturating_sub(window) + 1 - self.key_offset,
            None => 0,
        };
        let end = match self.causality {
            Causality::Bidirectional => count as i64,
            Causality::Causal => last_query + 1 - self.key_offset,
        };
        let end = end.clamp(0, count as i64);
        first.clamp(0, end) as usize..end as usize
    }

    /// The block's lanes that see a key.
    pub(super) fn lanes(&self, key: usize) -> Range<usize> {
        let key = self.key_offset + key as i64;
        let lane = |query: i64| (query - self.first_query).clamp(0, self.queries as i64) as usize;
        let start = match self.causality {
            Causality::Bidirectional => 0,
            Causality::Causal => lane(key),
        };
        let end = match self.window {
            Some(window) => lane(key.saturating_add(window)),
            None => self.queries,
        };
        start.min(end)..end
    }
}

/// A block of scores.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub data: *mut f32,
    /// Lanes in use.
    pub queries: usize,
    /// Rows in use; the first is key `first_key` of the sequence.
    pub keys: usize,
    pub first_key: usize,
}

impl Tile {
    /// One key's lanes, unused ones included.
    ///
    /// # Safety
    /// The tile must be valid, `row` in use, and no other reference to the row alive.
    #[inline(always)]
    pub(super) unsafe fn row<'a>(&self, row: usize) -> &'a mut [f32; QUERIES] {
        debug_assert!(row < KEYS);
        // SAFETY: the caller's promise; rows do not overlap since the pitch is above the row's length.
        unsafe { &mut *self.data.add(row * PITCH).cast() }
    }

    /// Sets the lanes that do not see a row's key to `value`.
    ///
    /// # Safety
    /// The tile must be valid.
    pub(super) unsafe fn hide(&self, visibility: &Visibility, value: f32) {
        for row in 0..self.keys {
            let seen = visibility.lanes(self.first_key + row);
            if seen != (0..self.queries) {
                // SAFETY: the row is in use.
                let lanes = unsafe { self.row(row) };
                lanes[..seen.start].fill(value);
                lanes[seen.end..self.queries].fill(value);
            }
        }
    }
}

for_each_isa! {
    /// Caps scores to `cap * tanh(score / cap)`.
    pub(super) fn cap_scores(tile: &Tile, cap: f32) = cap_scores_body
}

/// # Safety
/// The tile must be valid.
#[inline(always)]
unsafe fn cap_scores_body(tile: &Tile, cap: f32) {
    for row in 0..tile.keys {
        // SAFETY: the row is in use.
        let row = unsafe { tile.row(row) };
        for score in &mut row[..tile.queries.next_multiple_of(LANES)] {
            *score = cap * tanh(*score / cap);
        }
    }
}

/// The online softmax's state, one value a query.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub maximum: *mut [f32; QUERIES],
    pub sum: *mut [f32; QUERIES],
    pub decay: *mut [f32; QUERIES],
}

for_each_isa! {
    /// Takes a tile's scores into the running maximum and sum, turns them into exponentials relative to the
    /// new maximum, and sets `decay` to what sums relative to the old maximum are worth now.
    pub(super) fn online_softmax(tile: &Tile, running: &Running) = online_softmax_body
}

/// # Safety
/// The tile and the state must be valid.
#[inline(always)]
unsafe fn online_softmax_body(tile: &Tile, running: &Running) {
    for vector in 0..tile.queries.div_ceil(LANES) {
        // SAFETY: the caller's promise; the three are distinct, and so are they from the tile.
        unsafe {
            let maximum = &mut (*running.maximum).as_chunks_mut::<LANES>().0[vector];
            let sum = &mut (*running.sum).as_chunks_mut::<LANES>().0[vector];
            let decay = &mut (*running.decay).as_chunks_mut::<LANES>().0[vector];
            softmax_lanes(tile, vector, maximum, sum, decay);
        }
    }
}

/// [`online_softmax`] for one vector of queries.
///
/// # Safety
/// The tile must be valid.
#[inline(always)]
unsafe fn softmax_lanes(
    tile: &Tile,
    vector: usize,
    maximum: &mut [f32; LANES],
    sum: &mut [f32; LANES],
    decay: &mut [f32; LANES],
) {
    let mut greatest = *maximum;
    for key in 0..tile.keys {
        // SAFETY: the row is in use.
        let scores = unsafe { &tile.row(key).as_chunks::<LANES>().0[vector] };
        for lane in 0..LANES {
            greatest[lane] = if scores[lane] > greatest[lane] { scores[lane] } else { greatest[lane] };
        }
    }
    // A query that has seen no key yet: any finite number makes its exponentials 0 rather than NaN.
    let reference = greatest.map(|score| if score == f32::NEG_INFINITY { 0.0 } else { score });
    for lane in 0..LANES {
        decay[lane] = exp(maximum[lane] - reference[lane]);
    }
    let mut total = [0.0f32; LANES];
    for lane in 0..LANES {
        total[lane] = sum[lane] * decay[lane];
    }
    for key in 0..tile.keys {
        // SAFETY: the row is in use.
        let scores = unsafe { &mut tile.row(key).as_chunks_mut::<LANES>().0[vector] };
        for lane in 0..LANES {
            scores[lane] = exp(scores[lane] - reference[lane]);
        }
        for lane in 0..LANES {
            total[lane] += scores[lane];
        }
    }
    *maximum = greatest;
    *sum = total;
}

for_each_isa! {
    /// Multiplies each row of `matrix` (`[factors, features]`) by its factor.
    pub(super) fn scale_rows(matrix: *mut f32, features: usize, factors: &[f32]) = scale_rows_body
}

/// # Safety
/// The matrix must be writable.
#[inline(always)]
unsafe fn scale_rows_body(matrix: *mut f32, features: usize, factors: &[f32]) {
    for (row, factor) in factors.iter().enumerate() {
        // SAFETY: the row is inside the matrix.
        let row = unsafe { std::slice::from_raw_parts_mut(matrix.add(row * features), features) };
        for value in row {
            *value *= factor;
        }
    }
}

/// What the softmax's gradient needs of each query.
#[derive(Clone, Copy)]
pub(super) struct QueryTerms<'a> {
    pub lse: &'a [f32; QUERIES],
    pub delta: &'a [f32; QUERIES],
    /// The reciprocal of the softcap, 0 if there is none.
    pub inverse_cap: f32,
}

for_each_isa! {
    /// Turns `scores` into probabilities, and `gradients` from those of the probabilities into those of the
    /// scores before the cap.
    pub(super) fn softmax_gradient(scores: &Tile, gradients: &Tile, terms: &QueryTerms<'_>) = softmax_gradient_body
}

/// # Safety
/// Both tiles must be valid and distinct.
#[inline(always)]
unsafe fn softmax_gradient_body(scores: &Tile, gradients: &Tile, terms: &QueryTerms<'_>) {
    let vectors = scores.queries.div_ceil(LANES);
    for row in 0..scores.keys {
        // SAFETY: the rows are in use, and of distinct tiles.
        let (scores, gradients) = unsafe { (scores.row(row), gradients.row(row)) };
        let rows = scores.as_chunks_mut::<LANES>().0.iter_mut().zip(gradients.as_chunks_mut::<LANES>().0);
        let terms_of_queries =
            terms.lse.as_chunks::<LANES>().0.iter().zip(terms.delta.as_chunks::<LANES>().0);
        for ((score, gradient), (lse, delta)) in rows.zip(terms_of_queries).take(vectors) {
            for lane in 0..LANES {
                let probability = exp(score[lane] - lse[lane]);
                let tanh = score[lane] * terms.inverse_cap;
                let cap_slope = tanh.mul_add(-tanh, 1.0);
                gradient[lane] = probability * (gradient[lane] - delta[lane]) * cap_slope;
                score[lane] = probability;
            }
        }
    }
}
