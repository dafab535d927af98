//! Attention and its gradient in f64, one query at a time, and random cases to hold the kernels against.

use dtlc_kernels::{
    attention::{BackwardTensors, ForwardTensors, attention_backward_with, attention_with},
    isa::Isa,
    signature::{AttentionBackwardSpec, AttentionSpec, Causality, Documents, Element, HeadStrides},
};

use super::{Numbers, Stored, run_parts};

/// Sizes and features of a case.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batch: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub q_len: usize,
    pub k_len: usize,
    pub head_dim: usize,
    pub value_dim: usize,
    pub q_offset: i64,
    pub k_offset: i64,
    pub causality: Causality,
    pub window: Option<u64>,
    pub softcap: Option<f32>,
    pub packing: Packing,
    pub element: Element,
}

/// The documents of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Packing {
    /// There are none.
    Whole,
    /// Every sequence is the same one.
    One,
    /// Runs of this many positions at most, of queries and keys at the same coordinates; numbers come in any order and again.
    Runs(usize),
    /// Each position has any of so many.
    Mixed(usize),
}

/// A case with its inputs.
pub struct Case {
    pub shape: Shape,
    pub spec: AttentionBackwardSpec,
    pub q: Stored,
    pub k: Stored,
    pub v: Stored,
    pub o_gradient: Stored,
    pub q_documents: Vec<u32>,
    pub k_documents: Vec<u32>,
}

/// What the kernels give, gaps between elements included.
#[derive(PartialEq)]
pub struct Outputs {
    pub o: Stored,
    pub lse: Stored,
    pub q_gradient: Stored,
    pub k_gradient: Stored,
    pub v_gradient: Stored,
}

impl Case {
    /// Inputs at random, each tensor in a layout of its own.
    pub fn random(shape: Shape, numbers: &mut Numbers) -> Case {
        Case::stepping(shape, 1, numbers)
    }

    /// The same with strides that are multiples of `step`.
    pub fn stepping(shape: Shape, step: usize, numbers: &mut Numbers) -> Case {
        let Shape { batch, kv_heads, group, q_len, k_len, head_dim, value_dim, element, .. } = shape;
        let mut query = |features| layout([batch, q_len, kv_heads, group], features, step, numbers);
        let (q, q_gradient) = (query(head_dim), query(head_dim));
        let (o, o_gradient, lse) = (query(value_dim), query(value_dim), query(1));
        let mut key = |features| layout([batch, k_len, kv_heads, 1], features, step, numbers);
        let (k, k_gradient) = (key(head_dim), key(head_dim));
        let (v, v_gradient) = (key(value_dim), key(value_dim));
        let forward = AttentionSpec {
            batch,
            kv_heads,
            group,
            q_len,
            k_len,
            head_dim,
            value_dim,
            q: q.0,
            k: k.0,
            v: v.0,
            o: o.0,
            lse: lse.0,
            documents: None,
            element,
            causality: shape.causality,
            window: shape.window,
            softcap: shape.softcap,
            scale: 1.5 / (head_dim as f32).sqrt(),
        };
        let mut spec = AttentionBackwardSpec {
            forward,
            o_gradient: o_gradient.0,
            q_gradient: q_gradient.0,
            k_gradient: k_gradient.0,
            v_gradient: v_gradient.0,
        };
        let [q_documents, k_documents] = documents(&shape, &mut spec.forward, numbers);
        spec.check().expect("valid");
        Case {
            shape,
            spec,
            q: Stored::random(element, q.1, numbers),
            k: Stored::random(element, k.1, numbers),
            v: Stored::random(element, v.1, numbers),
            o_gradient: Stored::random(element, o_gradient.1, numbers),
            q_documents,
            k_documents,
        }
    }

    /// Runs forward and backward.
    pub fn run(&self, isa: Isa, parts: usize) -> Outputs {
        let element = self.shape.element;
        let forward = &self.spec.forward;
        let query = |strides: &HeadStrides, features| {
            Stored::zeros(element, self.size(strides, self.shape.q_len, features))
        };
        let key = |strides: &HeadStrides, features| {
            Stored::zeros(element, self.size(strides, self.shape.k_len, features))
        };
        let mut outputs = Outputs {
            o: query(&forward.o, forward.value_dim),
            lse: Stored::zeros(Element::F32, self.size(&forward.lse, self.shape.q_len, 1)),
            q_gradient: query(&self.spec.q_gradient, forward.head_dim),
            k_gradient: key(&self.spec.k_gradient, forward.head_dim),
            v_gradient: key(&self.spec.v_gradient, forward.value_dim),
        };
        let tensors = ForwardTensors {
            q: self.q.pointer(),
            k: self.k.pointer(),
            v: self.v.pointer(),
            o: outputs.o.pointer_mut(),
            lse: outputs.lse.pointer_mut().cast(),
            q_documents: self.q_documents.as_ptr(),
            k_documents: self.k_documents.as_ptr(),
            q_offset: self.shape.q_offset,
            k_offset: self.shape.k_offset,
        };
        run_parts(parts, forward.scratch_bytes(), |part, scratch| {
            // SAFETY: every buffer was sized by its strides, scratch by the spec.
            unsafe { attention_with(isa, forward, &tensors, scratch, part) };
        });
        let tensors = BackwardTensors {
            q: self.q.pointer(),
            k: self.k.pointer(),
            v: self.v.pointer(),
            o: outputs.o.pointer(),
            lse: outputs.lse.pointer().cast(),
            o_gradient: self.o_gradient.pointer(),
            q_gradient: outputs.q_gradient.pointer_mut(),
            k_gradient: outputs.k_gradient.pointer_mut(),
            v_gradient: outputs.v_gradient.pointer_mut(),
            q_documents: self.q_documents.as_ptr(),
            k_documents: self.k_documents.as_ptr(),
            q_offset: self.shape.q_offset,
            k_offset: self.shape.k_offset,
        };
        run_parts(parts, self.spec.scratch_bytes(), |part, scratch| {
            // SAFETY: every buffer was sized by its strides, scratch by the spec.
            unsafe { attention_backward_with(isa, &self.spec, &tensors, scratch, part) };
        });
        outputs
    }

    /// Elements from a tensor's start to its end.
    fn size(&self, strides: &HeadStrides, length: usize, features: usize) -> usize {
        let Shape { batch, kv_heads, group, .. } = self.shape;
        let last = |extent: usize, stride: isize| extent.saturating_sub(1) * stride as usize;
        last(batch, strides.batch)
            + last(length, strides.sequence)
            + last(kv_heads, strides.kv_head)
            + last(group, strides.group)
            + features
    }

    /// Every query: batch, key-value head, group, position.
    pub fn queries(&self) -> impl Iterator<Item = [usize; 4]> + use<> {
        let Shape { batch, kv_heads, group, q_len, .. } = self.shape;
        (0..batch * kv_heads * group * q_len).map(move |index| {
            let rest = index / q_len;
            [rest / (kv_heads * group), rest / group % kv_heads, rest % group, index % q_len]
        })
    }

    /// Probabilities, derivatives of the cap, and log-sum-exp of one query, in f64.
    pub fn softmax(&self, [batch, kv_head, group, query]: [usize; 4]) -> (Vec<f64>, Vec<f64>, f64) {
        let shape = &self.shape;
        let mut scores = vec![f64::NEG_INFINITY; shape.k_len];
        let mut slopes = vec![0.0; shape.k_len];
        for key in 0..shape.k_len {
            let distance = (shape.q_offset + query as i64) - (shape.k_offset + key as i64);
            let seen = (shape.causality == Causality::Bidirectional || distance >= 0)
                && shape.window.is_none_or(|window| i128::from(distance) < i128::from(window))
                && self.is_one_document([batch, kv_head], query, key);
            if !seen {
                continue;
            }
            let score: f64 = (0..shape.head_dim)
                .map(|feature| {
                    let q = self.q.get(at(&self.spec.forward.q, [batch, kv_head, group, query], feature));
                    q * self.k.get(at(&self.spec.forward.k, [batch, kv_head, 0, key], feature))
                })
                .sum();
            let score = score * f64::from(self.spec.forward.scale);
            (scores[key], slopes[key]) = match shape.softcap.map(f64::from) {
                Some(cap) => (cap * (score / cap).tanh(), 1.0 - (score / cap).tanh().powi(2)),
                None => (score, 1.0),
            };
        }
        let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if maximum == f64::NEG_INFINITY {
            return (vec![0.0; shape.k_len], slopes, maximum);
        }
        let sum: f64 = scores.iter().map(|score| (score - maximum).exp()).sum();
        let probabilities = scores.iter().map(|score| (score - maximum).exp() / sum).collect();
        (probabilities, slopes, maximum + sum.ln())
    }

    /// Whether a query and a key of a head belong to one document.
    fn is_one_document(&self, [batch, kv_head]: [usize; 2], query: usize, key: usize) -> bool {
        self.spec.forward.documents.is_none_or(|Documents { q, k }| {
            self.q_documents[at(&q, [batch, kv_head, 0, query], 0)]
                == self.k_documents[at(&k, [batch, kv_head, 0, key], 0)]
        })
    }

    /// The sum of outputs times the gradient of the outputs: a loss whose gradients are the backward
    /// kernel's.
    pub fn loss(&self) -> f64 {
        let mut loss = 0.0;
        for query in self.queries() {
            let (probabilities, _, _) = self.softmax(query);
            for feature in 0..self.shape.value_dim {
                let gradient = self.o_gradient.get(at(&self.spec.o_gradient, query, feature));
                loss += gradient * self.output(query, &probabilities, feature).0;
            }
        }
        loss
    }

    /// One output in f64, and the sum of its terms' magnitudes.
    pub fn output(
        &self,
        [batch, kv_head, _, _]: [usize; 4],
        probabilities: &[f64],
        feature: usize,
    ) -> (f64, f64) {
        let value = |key| self.v.get(at(&self.spec.forward.v, [batch, kv_head, 0, key], feature));
        let terms = probabilities.iter().enumerate().map(|(key, p)| p * value(key));
        terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
    }
}

/// Where a feature of a position (batch, key-value head, group, position) lies.
pub fn at(strides: &HeadStrides, [batch, kv_head, group, position]: [usize; 4], feature: usize) -> usize {
    batch * strides.batch as usize
        + kv_head * strides.kv_head as usize
        + group * strides.group as usize
        + position * strides.sequence as usize
        + feature
}

/// The documents of queries and of keys, some of them shared by the sequences of the batch, and where they lie.
fn documents(shape: &Shape, spec: &mut AttentionSpec, numbers: &mut Numbers) -> [Vec<u32>; 2] {
    if shape.packing == Packing::Whole {
        return [Vec::new(), Vec::new()];
    }
    let by_head = if numbers.below(4) == 0 { shape.kv_heads } else { 1 };
    let by_batch = if numbers.below(4) == 0 { 1 } else { shape.batch };
    let (q, q_size) = layout([by_batch, shape.q_len, by_head, 1], 1, 1, numbers);
    let (k, k_size) = layout([by_batch, shape.k_len, by_head, 1], 1, 1, numbers);
    spec.documents = Some(Documents { q, k });
    let (mut of_queries, mut of_keys) = (vec![u32::MAX; q_size], vec![u32::MAX - 1; k_size]);
    for head in 0..by_batch * by_head {
        let place = |position| [head / by_head, head % by_head, 0, position];
        let first = shape.q_offset.min(shape.k_offset);
        let mut by_coordinate = Vec::new();
        let mut of = |coordinate: i64, numbers: &mut Numbers| match shape.packing {
            Packing::Whole | Packing::One => 7,
            Packing::Mixed(count) => numbers.below(count) as u32,
            Packing::Runs(longest) => {
                let index = (coordinate - first) as usize;
                while by_coordinate.len() <= index {
                    let document = numbers.pick(&[0, 1, 5, u32::MAX, 1 << 31]);
                    by_coordinate.extend(vec![document; 1 + numbers.below(longest)]);
                }
                by_coordinate[index]
            }
        };
        for position in 0..shape.q_len {
            of_queries[at(&q, place(position), 0)] = of(shape.q_offset + position as i64, numbers);
        }
        for position in 0..shape.k_len {
            of_keys[at(&k, place(position), 0)] = of(shape.k_offset + position as i64, numbers);
        }
    }
    [of_queries, of_keys]
}

/// Strides of dims (batch, sequence, key-value head, group) in a random order with padding, multiples of `step`,
/// and the memory they span.
fn layout(extents: [usize; 4], features: usize, step: usize, numbers: &mut Numbers) -> (HeadStrides, usize) {
    let mut order = [0, 1, 2, 3];
    for index in (1..4).rev() {
        order.swap(index, numbers.below(index + 1));
    }
    let mut strides = [0; 4];
    let mut stride = features.next_multiple_of(step);
    for dim in order {
        if extents[dim] > 1 {
            strides[dim] = stride as isize;
            stride = stride * extents[dim] + numbers.pick(&[0_usize, 0, 3]).next_multiple_of(step);
        }
    }
    let [batch, sequence, kv_head, group] = strides;
    (HeadStrides { batch, sequence, kv_head, group }, stride)
}
