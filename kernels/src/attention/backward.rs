//! The backward pass of one key-value head: for each block of queries of its group, over blocks of keys.
//!
//! With P the probabilities and ∘ elementwise: dV += Pᵀ dO, dP = dO Vᵀ, dS = P ∘ (dP - rowsum(dO ∘ O)), dQ +=
//! scale · dS K, dK += scale · dSᵀ Q. P is computed anew from q, k and the log-sum-exp.

use super::{
    BackwardTensors,
    documents::{BlockDocuments, Overlap},
    layout::{BackwardLayout, KEYS, PITCH, QUERIES},
    matrix::{HeadTensor, Matrix},
    numbers,
    scores::{QueryTerms, Tile, Visibility, cap_scores, softmax_gradient},
};
use crate::{
    gemm::{Block, Left, Output, Right, multiply},
    isa::Isa,
    signature::{Accumulation, AttentionBackwardSpec, AttentionSpec, Element, Head, HeadStrides},
};

/// One backward call.
pub(super) struct Backward<'a> {
    pub isa: Isa,
    pub spec: &'a AttentionBackwardSpec,
    pub tensors: &'a BackwardTensors,
    pub scratch: *mut u8,
    pub layout: BackwardLayout,
}

/// A block of queries of one head.
struct Queries {
    head: Head,
    first: usize,
    count: usize,
}

impl Backward<'_> {
    /// Computes the gradients of one key-value head and of the queries of its group.
    ///
    /// # Safety
    /// As [`super::attention_backward`]; the head must be the spec's.
    pub(super) unsafe fn kv_head(&self, batch: usize, kv_head: usize) {
        let spec = self.forward();
        let head = Head { batch, kv_head, group: 0 };
        // SAFETY: all blocks fit the layout, which was made for this spec; the layout's pieces do not
        // overlap.
        unsafe {
            clear(&self.k_gradient(head), spec.k_len, spec.head_dim);
            clear(&self.v_gradient(head), spec.k_len, spec.value_dim);
            for group in 0..spec.group {
                for first in (0..spec.q_len).step_by(QUERIES) {
                    let count = QUERIES.min(spec.q_len - first);
                    self.block(&Queries { head: Head { group, ..head }, first, count });
                }
            }
            if spec.element != Element::F32 {
                let (k, v) = (self.tensors.k_gradient, self.tensors.v_gradient);
                let k = self.tensor(k, &self.spec.k_gradient, spec.head_dim).rows(head, 0..spec.k_len);
                k.store(self.isa, self.floats(self.layout.k_gradient), |_| 1.0);
                let v = self.tensor(v, &self.spec.v_gradient, spec.value_dim).rows(head, 0..spec.k_len);
                v.store(self.isa, self.floats(self.layout.v_gradient), |_| 1.0);
            }
        }
    }

    /// Computes the gradients of a block of queries and adds its share to those of keys and values.
    ///
    /// # Safety
    /// As [`Backward::kv_head`].
    unsafe fn block(&self, queries: &Queries) {
        let spec = self.forward();
        let first_query = self.tensors.q_offset + queries.first as i64;
        let visibility = Visibility::new(spec, first_query, queries.count, self.tensors.k_offset);
        let q_gradient = self.floats(self.layout.q_gradient);
        // SAFETY: the caller's promise.
        unsafe {
            q_gradient.write_bytes(0, queries.count * spec.head_dim);
            self.prepare(queries);
            let numbers = numbers(spec, self.tensors.q_documents, self.tensors.k_documents);
            let of_block = |numbers| BlockDocuments::of(numbers, queries.head, queries.first, queries.count);
            let mut documents = numbers.map(of_block);
            let seen = visibility.keys(spec.k_len);
            for first_key in seen.clone().step_by(KEYS) {
                let keys = KEYS.min(seen.end - first_key);
                let overlap = documents.as_mut().map(|documents| documents.meet(first_key, keys));
                if let Some(Overlap::None) = overlap {
                    continue;
                }
                let tile = |at| Tile { data: self.floats(at), queries: queries.count, keys, first_key };
                let (scores, gradients) = (tile(self.layout.scores), tile(self.layout.gradients));
                self.score_gradients(queries, &scores, &gradients, &visibility);
                if let (Some(documents), Some(Overlap::Some)) = (&documents, &overlap) {
                    documents.hide(&scores, 0.0);
                    documents.hide(&gradients, 0.0);
                }
                self.accumulate(queries, &scores, &gradients);
            }
            let rows = queries.first..queries.first + queries.count;
            let to = self.tensor(self.tensors.q_gradient, &self.spec.q_gradient, spec.head_dim);
            to.rows(queries.head, rows).store(self.isa, q_gradient, |_| 1.0);
        }
    }

    /// Packs what all blocks of keys share, and computes each query's terms.
    ///
    /// # Safety
    /// As [`Backward::kv_head`].
    unsafe fn prepare(&self, queries: &Queries) {
        let spec = self.forward();
        let rows = queries.first..queries.first + queries.count;
        let q = self.tensor(self.tensors.q, &spec.q, spec.head_dim).rows(queries.head, rows.clone());
        let o = self.tensor(self.tensors.o, &spec.o, spec.value_dim).rows(queries.head, rows.clone());
        let o_gradient = self
            .tensor(self.tensors.o_gradient, &self.spec.o_gradient, spec.value_dim)
            .rows(queries.head, rows);
        // SAFETY: the caller's promise.
        unsafe {
            q.pack_by_row(self.isa, self.floats(self.layout.q_by_query));
            q.pack_by_feature(self.isa, self.floats(self.layout.q_by_feature));
            o_gradient.pack_by_row(self.isa, self.floats(self.layout.o_gradient_by_query));
            o_gradient.pack_by_feature(self.isa, self.floats(self.layout.o_gradient_by_feature));
            let (lse, delta) = (&mut *self.queries(self.layout.lse), &mut *self.queries(self.layout.delta));
            for row in 0..queries.count {
                let stored = *self.tensors.lse.offset(spec.lse.offset(queries.head, queries.first + row));
                lse[row] = if stored == f32::NEG_INFINITY { 0.0 } else { stored };
                delta[row] = o.dot_row(self.isa, &o_gradient, row);
            }
        }
    }

    /// Fills `scores` with probabilities and `gradients` with the gradients of q · k · scale.
    ///
    /// # Safety
    /// As [`Backward::kv_head`].
    unsafe fn score_gradients(
        &self,
        queries: &Queries,
        scores: &Tile,
        gradients: &Tile,
        visibility: &Visibility,
    ) {
        let spec = self.forward();
        let keys = scores.first_key..scores.first_key + scores.keys;
        // SAFETY: the caller's promise.
        unsafe {
            let k = self.keys(queries).slice(keys.clone());
            let v = self.tensor(self.tensors.v, &spec.v, spec.value_dim).rows(queries.head, keys);
            self.by_query(self.layout.q_by_query, &k, self.layout.k, scores, spec.scale);
            self.by_query(self.layout.o_gradient_by_query, &v, self.layout.v, gradients, 1.0);
            if let Some(cap) = spec.softcap {
                cap_scores(self.isa, scores, cap);
            }
            let terms = QueryTerms {
                lse: &*self.queries(self.layout.lse),
                delta: &*self.queries(self.layout.delta),
                inverse_cap: spec.softcap.map_or(0.0, |cap| 1.0 / cap),
            };
            softmax_gradient(self.isa, scores, gradients, &terms);
            scores.hide(visibility, 0.0);
            gradients.hide(visibility, 0.0);
        }
    }

    /// One product into a tile: a packed left operand of queries by a right operand of keys.
    ///
    /// # Safety
    /// As [`Backward::kv_head`].
    unsafe fn by_query(&self, left: usize, right: &Matrix, packed_right: usize, tile: &Tile, scale: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let block = Block {
                lanes: tile.queries,
                columns: tile.keys,
                depth: right.features,
                left: Left::packed(self.isa, self.floats(left), right.features),
                right: right.columns(self.isa, self.floats(packed_right)),
                output: Output { data: tile.data, lane_stride: 1, column_stride: PITCH as isize },
                accumulation: Accumulation::Overwrite,
                scale,
            };
            multiply(self.isa, &block);
        }
    }

    /// Adds a tile's share to the gradients of queries, keys and values.
    ///
    /// # Safety
    /// As [`Backward::kv_head`].
    unsafe fn accumulate(&self, queries: &Queries, scores: &Tile, gradients: &Tile) {
        let spec = self.forward();
        let keys = scores.first_key..scores.first_key + scores.keys;
        let q_output = Output {
            data: self.floats(self.layout.q_gradient),
            lane_stride: 1,
            column_stride: spec.head_dim as isize,
        };
        // SAFETY: the caller's promise.
        unsafe {
            let by_key = |left: usize, lanes: usize, tile: &Tile, output: Output, scale: f32| Block {
                lanes,
                columns: tile.keys,
                depth: tile.queries,
                left: Left::packed(self.isa, self.floats(left), tile.queries),
                right: Right::in_place(tile.data, 1, PITCH as isize),
                output: output.shifted(0, tile.first_key),
                accumulation: Accumulation::Add,
                scale,
            };
            let (k_output, v_output) = (self.k_gradient(queries.head), self.v_gradient(queries.head));
            let left = self.layout.o_gradient_by_feature;
            multiply(self.isa, &by_key(left, spec.value_dim, scores, v_output, 1.0));
            multiply(
                self.isa,
                &by_key(self.layout.q_by_feature, spec.head_dim, gradients, k_output, spec.scale),
            );
            self.keys(queries).slice(keys).pack_by_feature(self.isa, self.floats(self.layout.k_by_feature));
            let q_block = Block {
                lanes: spec.head_dim,
                columns: gradients.queries,
                depth: gradients.keys,
                left: Left::packed(self.isa, self.floats(self.layout.k_by_feature), gradients.keys),
                right: Right::in_place(gradients.data, PITCH as isize, 1),
                output: q_output,
                accumulation: Accumulation::Add,
                scale: spec.scale,
            };
            multiply(self.isa, &q_block);
        }
    }

    /// All keys of the queries' head.
    fn keys(&self, queries: &Queries) -> Matrix {
        let spec = self.forward();
        self.tensor(self.tensors.k, &spec.k, spec.head_dim).rows(queries.head, 0..spec.k_len)
    }

    /// Where the keys' gradients are summed: in place if they are f32.
    fn k_gradient(&self, head: Head) -> Output {
        self.sums(
            self.tensors.k_gradient,
            &self.spec.k_gradient,
            self.forward().head_dim,
            self.layout.k_gradient,
            head,
        )
    }

    /// Where the values' gradients are summed: in place if they are f32.
    fn v_gradient(&self, head: Head) -> Output {
        self.sums(
            self.tensors.v_gradient,
            &self.spec.v_gradient,
            self.forward().value_dim,
            self.layout.v_gradient,
            head,
        )
    }

    fn sums(
        &self,
        tensor: *mut u8,
        strides: &HeadStrides,
        features: usize,
        scratch: usize,
        head: Head,
    ) -> Output {
        match self.forward().element {
            Element::F32 => Output {
                data: tensor.cast::<f32>().wrapping_offset(strides.offset(head, 0)),
                lane_stride: 1,
                column_stride: strides.sequence,
            },
            Element::Bf16 | Element::F16 => {
                Output { data: self.floats(scratch), lane_stride: 1, column_stride: features as isize }
            }
        }
    }

    fn forward(&self) -> &AttentionSpec {
        &self.spec.forward
    }

    fn tensor<'a>(&self, data: *const u8, strides: &'a HeadStrides, features: usize) -> HeadTensor<'a> {
        HeadTensor { data, element: self.forward().element, strides, features }
    }

    fn floats(&self, at: usize) -> *mut f32 {
        self.scratch.wrapping_add(at).cast()
    }

    fn queries(&self, at: usize) -> *mut [f32; QUERIES] {
        self.scratch.wrapping_add(at).cast()
    }
}

/// Zeroes `rows` rows of sums.
///
/// # Safety
/// The sums must be writable.
unsafe fn clear(sums: &Output, rows: usize, features: usize) {
    for row in 0..rows {
        // SAFETY: the row is inside the sums.
        unsafe { sums.shifted(0, row).data.write_bytes(0, features) };
    }
}
