//! The forward pass of one block of queries: online softmax over blocks of keys.

use super::{
    ForwardTensors,
    documents::{BlockDocuments, Overlap},
    layout::{ForwardLayout, KEYS, PITCH, QUERIES},
    matrix::HeadTensor,
    numbers,
    scores::{Running, Tile, Visibility, cap_scores, online_softmax, scale_rows},
};
use crate::{
    gemm::{Block, Left, Output, Right, multiply},
    isa::Isa,
    signature::{Accumulation, AttentionSpec, Head},
};

/// One forward call.
pub(super) struct Forward<'a> {
    pub isa: Isa,
    pub spec: &'a AttentionSpec,
    pub tensors: &'a ForwardTensors,
    pub scratch: *mut u8,
    pub layout: ForwardLayout,
}

impl Forward<'_> {
    /// Computes outputs and log-sum-exps of the block of queries that starts at `first` of one head.
    ///
    /// # Safety
    /// As [`super::attention`]; `head` and `first` must be the spec's.
    pub(super) unsafe fn block(&self, head: Head, first: usize) {
        let spec = self.spec;
        let queries = QUERIES.min(spec.q_len - first);
        let first_query = self.tensors.q_offset + first as i64;
        let visibility = Visibility::new(spec, first_query, queries, self.tensors.k_offset);
        let o = self.floats(self.layout.o);
        // SAFETY: all blocks fit the layout, which was made for this spec; the layout's pieces do not
        // overlap.
        unsafe {
            (*self.queries(self.layout.maximum)).fill(f32::NEG_INFINITY);
            (*self.queries(self.layout.sum)).fill(0.0);
            o.write_bytes(0, queries * spec.value_dim);
            let q = self.tensor(self.tensors.q, &spec.q, spec.head_dim).rows(head, first..first + queries);
            q.pack_by_row(self.isa, self.floats(self.layout.q));
            let numbers = numbers(spec, self.tensors.q_documents, self.tensors.k_documents);
            let mut documents = numbers.map(|numbers| BlockDocuments::of(numbers, head, first, queries));
            let seen = visibility.keys(spec.k_len);
            for first_key in seen.clone().step_by(KEYS) {
                let keys = KEYS.min(seen.end - first_key);
                let overlap = documents.as_mut().map(|documents| documents.meet(first_key, keys));
                if let Some(Overlap::None) = overlap {
                    continue;
                }
                let tile = Tile { data: self.floats(self.layout.scores), queries, keys, first_key };
                self.scores(head, &tile, &visibility);
                if let (Some(documents), Some(Overlap::Some)) = (&documents, &overlap) {
                    documents.hide(&tile, f32::NEG_INFINITY);
                }
                self.soften(&tile);
                self.accumulate(head, &tile);
            }
            self.finish(head, first, queries);
        }
    }

    /// Fills the tile with scores.
    ///
    /// # Safety
    /// As [`Forward::block`].
    unsafe fn scores(&self, head: Head, tile: &Tile, visibility: &Visibility) {
        let keys = tile.first_key..tile.first_key + tile.keys;
        // SAFETY: the caller's promise.
        unsafe {
            let k = self.tensor(self.tensors.k, &self.spec.k, self.spec.head_dim).rows(head, keys);
            multiply(
                self.isa,
                &Block {
                    lanes: tile.queries,
                    columns: tile.keys,
                    depth: self.spec.head_dim,
                    left: Left::packed(self.isa, self.floats(self.layout.q), self.spec.head_dim),
                    right: k.columns(self.isa, self.floats(self.layout.k)),
                    output: Output { data: tile.data, lane_stride: 1, column_stride: PITCH as isize },
                    accumulation: Accumulation::Overwrite,
                    scale: self.spec.scale,
                },
            );
            if let Some(cap) = self.spec.softcap {
                cap_scores(self.isa, tile, cap);
            }
            tile.hide(visibility, f32::NEG_INFINITY);
        }
    }

    /// Makes exponentials of the tile's scores and takes them into the running softmax.
    ///
    /// # Safety
    /// As [`Forward::block`].
    unsafe fn soften(&self, tile: &Tile) {
        // SAFETY: the caller's promise.
        unsafe {
            let running = Running {
                maximum: self.queries(self.layout.maximum),
                sum: self.queries(self.layout.sum),
                decay: self.queries(self.layout.decay),
            };
            online_softmax(self.isa, tile, &running);
        }
    }

    /// Adds the tile's share to the outputs.
    ///
    /// # Safety
    /// As [`Forward::block`].
    unsafe fn accumulate(&self, head: Head, tile: &Tile) {
        let value_dim = self.spec.value_dim;
        let o = self.floats(self.layout.o);
        let keys = tile.first_key..tile.first_key + tile.keys;
        // SAFETY: the caller's promise.
        unsafe {
            let decay = &*self.queries(self.layout.decay);
            scale_rows(self.isa, o, value_dim, &decay[..tile.queries]);
            let v = self.tensor(self.tensors.v, &self.spec.v, value_dim).rows(head, keys);
            v.pack_by_feature(self.isa, self.floats(self.layout.v));
            multiply(
                self.isa,
                &Block {
                    lanes: value_dim,
                    columns: tile.queries,
                    depth: tile.keys,
                    left: Left::packed(self.isa, self.floats(self.layout.v), tile.keys),
                    right: Right::in_place(tile.data, PITCH as isize, 1),
                    output: Output { data: o, lane_stride: 1, column_stride: value_dim as isize },
                    accumulation: Accumulation::Add,
                    scale: 1.0,
                },
            );
        }
    }

    /// Divides the outputs by the sums and writes them and the log-sum-exps.
    ///
    /// # Safety
    /// As [`Forward::block`].
    unsafe fn finish(&self, head: Head, first: usize, queries: usize) {
        let spec = self.spec;
        // SAFETY: the caller's promise.
        unsafe {
            let (maximum, sum) = (&*self.queries(self.layout.maximum), &*self.queries(self.layout.sum));
            let o = self.tensor(self.tensors.o, &spec.o, spec.value_dim).rows(head, first..first + queries);
            // Only a query that saw no key has sum 0.
            let inverse = |row: usize| if sum[row] == 0.0 { 0.0 } else { 1.0 / sum[row] };
            o.store(self.isa, self.floats(self.layout.o), inverse);
            for row in 0..queries {
                let lse = if sum[row] == 0.0 { f32::NEG_INFINITY } else { maximum[row] + sum[row].ln() };
                *self.tensors.lse.offset(spec.lse.offset(head, first + row)) = lse;
            }
        }
    }

    fn tensor<'a>(
        &self,
        data: *const u8,
        strides: &'a crate::signature::HeadStrides,
        features: usize,
    ) -> HeadTensor<'a> {
        HeadTensor { data, element: self.spec.element, strides, features }
    }

    fn floats(&self, at: usize) -> *mut f32 {
        self.scratch.wrapping_add(at).cast()
    }

    fn queries(&self, at: usize) -> *mut [f32; QUERIES] {
        self.scratch.wrapping_add(at).cast()
    }
}
