//! Flash attention on the CPU, forward and backward, in blocks of queries by blocks of keys.
//!
//! After Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023). Scores of a block lie key by key
//! with the queries along vector lanes, so that the softmax over keys needs no operation across lanes. Blocks
//! with no visible pair of query and key are skipped, also where they have no document in common. Owns pointers and the division among threads; the block
//! arithmetic is in `forward` and `backward`.

mod backward;
mod documents;
mod forward;
pub(crate) mod layout;
mod matrix;
mod scores;

use crate::{
    isa::Isa,
    signature::{AttentionBackwardSpec, AttentionSpec, Head, Part},
};

/// What a forward call works on, besides its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct ForwardTensors {
    /// Queries.
    pub q: *const u8,
    /// Keys.
    pub k: *const u8,
    /// Values.
    pub v: *const u8,
    /// Outputs.
    pub o: *mut u8,
    /// Log-sum-exp of each query's scores.
    pub lse: *mut f32,
    /// Numbers of the queries' documents; not read where the descriptor has none.
    pub q_documents: *const u32,
    /// Numbers of the keys' documents; not read where the descriptor has none.
    pub k_documents: *const u32,
    /// Global coordinate of the first query.
    pub q_offset: i64,
    /// Global coordinate of the first key.
    pub k_offset: i64,
}

/// What a backward call works on, besides its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct BackwardTensors {
    /// Queries.
    pub q: *const u8,
    /// Keys.
    pub k: *const u8,
    /// Values.
    pub v: *const u8,
    /// Outputs of the forward call.
    pub o: *const u8,
    /// Log-sum-exps of the forward call.
    pub lse: *const f32,
    /// Gradient of the outputs.
    pub o_gradient: *const u8,
    /// Gradient of the queries, replaced.
    pub q_gradient: *mut u8,
    /// Gradient of the keys, replaced.
    pub k_gradient: *mut u8,
    /// Gradient of the values, replaced.
    pub v_gradient: *mut u8,
    /// Numbers of the queries' documents; not read where the descriptor has none.
    pub q_documents: *const u32,
    /// Numbers of the keys' documents; not read where the descriptor has none.
    pub k_documents: *const u32,
    /// Global coordinate of the first query.
    pub q_offset: i64,
    /// Global coordinate of the first key.
    pub k_offset: i64,
}

/// Computes one part of the attention that `spec` describes: outputs and log-sum-exps.
///
/// # Safety
/// `spec` must pass [`AttentionSpec::check`]. Each tensor must be readable or writable at every index that
/// its strides reach, aligned to its element; outputs overlap nothing. `scratch` must be aligned to
/// [`crate::signature::SCRATCH_ALIGNMENT`] and hold [`AttentionSpec::scratch_bytes`]. Calls with distinct
/// parts of one count may run at the same time with distinct scratch.
pub unsafe fn attention(spec: &AttentionSpec, tensors: &ForwardTensors, scratch: *mut u8, part: Part) {
    // SAFETY: the instruction set was detected; the rest is the caller's promise.
    unsafe { attention_with(Isa::detect(), spec, tensors, scratch, part) }
}

/// [`attention`] with a given instruction set.
///
/// # Safety
/// As [`attention`], and `isa` must be available.
pub unsafe fn attention_with(
    isa: Isa,
    spec: &AttentionSpec,
    tensors: &ForwardTensors,
    scratch: *mut u8,
    part: Part,
) {
    let call = forward::Forward { isa, spec, tensors, scratch, layout: layout::ForwardLayout::of(spec) };
    let blocks = spec.q_blocks();
    // Blocks are dealt out in turn: under a causal mask later blocks see more keys.
    for unit in (part.index..spec.units()).step_by(part.count) {
        let head = head(spec, unit / blocks);
        // SAFETY: the head and the block are the spec's.
        unsafe { call.block(head, unit % blocks * layout::QUERIES) };
    }
}

/// Computes one part of the gradient that `spec` describes.
///
/// # Safety
/// As [`attention`], with the scratch of [`AttentionBackwardSpec::scratch_bytes`]. `o` and `lse` must be what
/// the forward call gave for the same tensors and offsets.
pub unsafe fn attention_backward(
    spec: &AttentionBackwardSpec,
    tensors: &BackwardTensors,
    scratch: *mut u8,
    part: Part,
) {
    // SAFETY: the instruction set was detected; the rest is the caller's promise.
    unsafe { attention_backward_with(Isa::detect(), spec, tensors, scratch, part) }
}

/// [`attention_backward`] with a given instruction set.
///
/// # Safety
/// As [`attention_backward`], and `isa` must be available.
pub unsafe fn attention_backward_with(
    isa: Isa,
    spec: &AttentionBackwardSpec,
    tensors: &BackwardTensors,
    scratch: *mut u8,
    part: Part,
) {
    let layout = layout::BackwardLayout::of(&spec.forward);
    let call = backward::Backward { isa, spec, tensors, scratch, layout };
    for unit in (part.index..spec.forward.batch * spec.forward.kv_heads).step_by(part.count) {
        // SAFETY: the key-value head is the spec's.
        unsafe { call.kv_head(unit / spec.forward.kv_heads, unit % spec.forward.kv_heads) };
    }
}

/// Where the numbers of documents lie, if there are any.
fn numbers(spec: &AttentionSpec, q: *const u32, k: *const u32) -> Option<documents::Numbers> {
    spec.documents.map(|strides| documents::Numbers { strides, q, k })
}

/// The query head at a flat index.
fn head(spec: &AttentionSpec, index: usize) -> Head {
    Head {
        batch: index / (spec.kv_heads * spec.group),
        kv_head: index / spec.group % spec.kv_heads,
        group: index % spec.group,
    }
}
