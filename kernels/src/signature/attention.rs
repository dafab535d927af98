//! Descriptors of the flash attention kernels, forward and backward. The arithmetic is in `crate::attention`.

use serde::{Deserialize, Serialize};

use super::{Element, InvalidSpec, require};
use crate::attention::layout;

/// Softmax attention of grouped queries, with no score matrix in memory.
///
/// For each batch, key-value head `h` and query head `g` of its group, query `i` attends to the keys `j` that
/// it sees: `score = cap(scale * q[i] · k[j])`, `o[i] = sum of softmax(score)[j] * v[j]`, and `lse[i] = ln
/// sum exp(score[j])`. Queries and keys have global coordinates: their index plus an offset that comes at run
/// time. Query `i` sees key `j` if, in global coordinates, `j <= i` (where causal) and `i - j < window`
/// (where there is one), and where sequences are packed if both belong to one document. A query that sees no key gives `o = 0` and `lse = -∞`, and zero gradients.
///
/// Query, key and output features have stride 1. All tensors but `lse` (f32) and the numbers of documents (u32) have one element type; scores,
/// sums and `o` are computed in f32. A kernel may round the probabilities that it multiplies values by to the
/// element type, but sums them up as they were.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Independent sequences.
    pub batch: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Query heads for each key-value head.
    pub group: usize,
    /// Queries in a sequence.
    pub q_len: usize,
    /// Keys in a sequence.
    pub k_len: usize,
    /// Features of a query and a key.
    pub head_dim: usize,
    /// Features of a value and an output.
    pub value_dim: usize,
    /// Where queries lie.
    pub q: HeadStrides,
    /// Where keys lie; `group` is 0.
    pub k: HeadStrides,
    /// Where values lie; `group` is 0.
    pub v: HeadStrides,
    /// Where outputs lie.
    pub o: HeadStrides,
    /// Where the log-sum-exps (f32, one for each query) lie.
    pub lse: HeadStrides,
    /// Where the numbers of documents lie, if sequences are packed of several.
    pub documents: Option<Documents>,
    /// Element type of all tensors but `lse` and the numbers of documents.
    pub element: Element,
    /// Whether a query sees keys after its own coordinate.
    pub causality: Causality,
    /// Sliding window: how many keys up to its own coordinate a query sees.
    pub window: Option<u64>,
    /// Scores are capped to `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Factor on q · k.
    pub scale: f32,
}

/// Whether a query sees keys after its own coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Causality {
    /// Every key.
    Bidirectional,
    /// Only keys at or before its own coordinate.
    Causal,
}

/// Where the numbers of documents (u32, one for each position) lie: a query sees keys of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Documents {
    /// Those of queries; `group` is 0.
    pub q: HeadStrides,
    /// Those of keys; `group` is 0.
    pub k: HeadStrides,
}

/// Strides, in elements, of a tensor with features (stride 1) for each position of each head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadStrides {
    /// Between sequences of the batch.
    pub batch: isize,
    /// Between positions of a sequence.
    pub sequence: isize,
    /// Between key-value heads.
    pub kv_head: isize,
    /// Between query heads of one key-value head.
    pub group: isize,
}

/// The gradient of [`AttentionSpec`]: from q, k, v, o, lse and the gradient of o to those of q, k and v.
///
/// Gradients have the element type of the tensors. Those of k and v are summed over the group, then over
/// queries, in that fixed order, in f32. A kernel may round the probabilities and the gradients of scores that it
/// multiplies elements by to the element type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionBackwardSpec {
    /// The attention that was computed.
    pub forward: AttentionSpec,
    /// Where the gradient of o lies.
    pub o_gradient: HeadStrides,
    /// Where the gradient of q goes.
    pub q_gradient: HeadStrides,
    /// Where the gradient of k goes; `group` is 0.
    pub k_gradient: HeadStrides,
    /// Where the gradient of v goes; `group` is 0.
    pub v_gradient: HeadStrides,
}

impl AttentionSpec {
    /// Checks what the kernel relies on and the types do not say.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        require(self.k.group == 0 && self.v.group == 0, "attention keys with a stride between query heads")?;
        let of_groups =
            self.documents.is_some_and(|documents| documents.q.group != 0 || documents.k.group != 0);
        require(!of_groups, "documents with a stride between query heads")?;
        require(self.window != Some(0), "an attention window of 0 keys")?;
        require(self.softcap.is_none_or(|cap| cap > 0.0), "an attention softcap that is not positive")
    }

    /// Number of parts worth running on `threads` threads: parts divide batch, heads and blocks of queries.
    pub fn parts(&self, threads: usize) -> usize {
        self.units().clamp(1, threads.max(1))
    }

    /// Scratch in bytes for each part that runs at the same time.
    pub fn scratch_bytes(&self) -> usize {
        layout::ForwardLayout::of(self).bytes
    }

    /// Independent pieces of work: a block of queries of one head.
    pub(crate) fn units(&self) -> usize {
        self.batch * self.kv_heads * self.group * self.q_blocks()
    }

    /// Blocks of queries in a sequence.
    pub(crate) fn q_blocks(&self) -> usize {
        self.q_len.div_ceil(layout::QUERIES)
    }
}

impl AttentionBackwardSpec {
    /// Checks what the kernel relies on and the types do not say.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        let shared = self.k_gradient.group == 0 && self.v_gradient.group == 0;
        require(shared, "attention key gradients with a stride between query heads")?;
        self.forward.check()
    }

    /// Number of parts worth running on `threads` threads: parts divide batch and key-value heads.
    pub fn parts(&self, threads: usize) -> usize {
        (self.forward.batch * self.forward.kv_heads).clamp(1, threads.max(1))
    }

    /// Scratch in bytes for each part that runs at the same time. In 16 bits it includes f32 sums for the
    /// gradients of k and v of one head: `4 * k_len * (head_dim + value_dim)`.
    pub fn scratch_bytes(&self) -> usize {
        layout::BackwardLayout::of(&self.forward).bytes
    }
}

impl HeadStrides {
    /// The strides of a dense tensor `[batch, sequence, kv_heads, group, features]`.
    pub fn dense(sequence: usize, kv_heads: usize, group: usize, features: usize) -> HeadStrides {
        HeadStrides {
            batch: (sequence * kv_heads * group * features) as isize,
            sequence: (kv_heads * group * features) as isize,
            kv_head: (group * features) as isize,
            group: features as isize,
        }
    }

    /// Element offset of a position of a head.
    pub(crate) fn offset(&self, head: Head, position: usize) -> isize {
        head.batch as isize * self.batch
            + head.kv_head as isize * self.kv_head
            + head.group as isize * self.group
            + position as isize * self.sequence
    }
}

/// One query head.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub batch: usize,
    pub kv_head: usize,
    pub group: usize,
}
