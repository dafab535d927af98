//! Checks of the hand-written kernels' descriptors: what they reach lies in the buffers they get.
//!
//! A descriptor's own arithmetic is unchecked, so its extents are bounded here before it is asked
//! for anything.

use dtlc_kernels::signature::{
    AttentionSpec, HeadStrides, InvalidSpec, MatmulSpec, ScatterAddSpec, TakeSpec,
};

use super::{
    AttentionBackwardCall, AttentionCall, BYTES_LIMIT, BufferRef, Check, DocumentBuffers, Program,
    check_reach, require,
};

/// Bytes of an id.
const ID_BYTES: u64 = 4;

impl Program {
    pub(super) fn check_matmul(&self, spec: &MatmulSpec, operands: [&BufferRef; 3], loops: &[u32]) -> Check {
        let batch = spec.batch.iter().map(|step| step.extent);
        let contraction = spec.contraction.iter().map(|step| step.extent);
        check_product(batch.chain(contraction).chain([spec.m, spec.n]))?;
        spec.check().map_err(reason)?;
        self.check_scratch(spec.scratch_bytes())?;
        let mut steps = [Vec::new(), Vec::new(), Vec::new()];
        for step in &spec.batch {
            steps[0].push((step.extent, step.stride_a));
            steps[1].push((step.extent, step.stride_b));
            steps[2].push((step.extent, step.stride_c));
        }
        for step in &spec.contraction {
            steps[0].push((step.extent, step.stride_a));
            steps[1].push((step.extent, step.stride_b));
        }
        steps[0].push((spec.m, spec.a_row_stride));
        steps[1].push((spec.n, spec.b_column_stride));
        steps[2].extend([(spec.m, spec.c_row_stride), (spec.n, spec.c_column_stride)]);
        let elements = [spec.a, spec.b, spec.c];
        for ((buffer, steps), element) in operands.into_iter().zip(&steps).zip(elements) {
            self.check_operand(buffer, steps, element.bytes(), loops)?;
        }
        Ok(())
    }

    pub(super) fn check_take(&self, spec: &TakeSpec, operands: [&BufferRef; 3], loops: &[u32]) -> Check {
        let [table, ids, output] = operands;
        let element = spec.element.bytes() as u64;
        self.check_dense(table, &[spec.vocabulary, spec.width], element, loops)?;
        self.check_dense(ids, &[spec.tokens], ID_BYTES, loops)?;
        self.check_dense(output, &[spec.tokens, spec.width], element, loops)
    }

    pub(super) fn check_scatter_add(
        &self,
        spec: &ScatterAddSpec,
        operands: [&BufferRef; 3],
        loops: &[u32],
    ) -> Check {
        let [source, ids, output] = operands;
        self.check_dense(source, &[spec.tokens, spec.width], spec.source.bytes() as u64, loops)?;
        self.check_dense(ids, &[spec.tokens], ID_BYTES, loops)?;
        self.check_dense(output, &[spec.vocabulary, spec.width], spec.output.bytes() as u64, loops)?;
        self.check_scratch(spec.scratch_bytes())
    }

    pub(super) fn check_attention(&self, call: &AttentionCall, loops: &[u32]) -> Check {
        let spec = &call.spec;
        check_attention_sizes(spec)?;
        spec.check().map_err(reason)?;
        self.check_scratch(spec.scratch_bytes())?;
        self.check_affine(&call.q_offset, loops)?;
        self.check_affine(&call.k_offset, loops)?;
        self.check_documents(spec, &call.documents, loops)?;
        self.check_attention_tensors(spec, [&call.q, &call.k, &call.v, &call.o, &call.lse], loops)
    }

    pub(super) fn check_attention_backward(&self, call: &AttentionBackwardCall, loops: &[u32]) -> Check {
        let (spec, forward) = (&call.spec, &call.spec.forward);
        check_attention_sizes(forward)?;
        spec.check().map_err(reason)?;
        self.check_scratch(spec.scratch_bytes())?;
        self.check_affine(&call.q_offset, loops)?;
        self.check_affine(&call.k_offset, loops)?;
        self.check_documents(forward, &call.documents, loops)?;
        self.check_attention_tensors(forward, [&call.q, &call.k, &call.v, &call.o, &call.lse], loops)?;
        let element = forward.element.bytes();
        let (q_len, k_len) = (forward.q_len, forward.k_len);
        let gradients = [
            (&call.o_gradient, spec.o_gradient, q_len, forward.value_dim),
            (&call.q_gradient, spec.q_gradient, q_len, forward.head_dim),
            (&call.k_gradient, spec.k_gradient, k_len, forward.head_dim),
            (&call.v_gradient, spec.v_gradient, k_len, forward.value_dim),
        ];
        gradients.into_iter().try_for_each(|(buffer, strides, length, features)| {
            self.check_operand(buffer, &head_steps(forward, strides, length, features), element, loops)
        })
    }

    fn check_attention_tensors(
        &self,
        spec: &AttentionSpec,
        tensors: [&BufferRef; 5],
        loops: &[u32],
    ) -> Check {
        let element = spec.element.bytes();
        let described = [
            (spec.q, spec.q_len, spec.head_dim, element),
            (spec.k, spec.k_len, spec.head_dim, element),
            (spec.v, spec.k_len, spec.value_dim, element),
            (spec.o, spec.q_len, spec.value_dim, element),
            (spec.lse, spec.q_len, 1, 4),
        ];
        tensors.into_iter().zip(described).try_for_each(|(buffer, (strides, length, features, element))| {
            self.check_operand(buffer, &head_steps(spec, strides, length, features), element, loops)
        })
    }

    /// A call has documents where its descriptor has them, a number for each position.
    fn check_documents(
        &self,
        spec: &AttentionSpec,
        documents: &Option<DocumentBuffers>,
        loops: &[u32],
    ) -> Check {
        match (&spec.documents, documents) {
            (None, None) => Ok(()),
            (Some(strides), Some(DocumentBuffers { q, k })) => {
                let described = [(q, strides.q, spec.q_len), (k, strides.k, spec.k_len)];
                described.into_iter().try_for_each(|(buffer, strides, length)| {
                    let steps = head_steps(spec, strides, length, 1);
                    self.check_operand(buffer, &steps, ID_BYTES as usize, loops)
                })
            }
            (Some(_), None) | (None, Some(_)) => {
                Err("an attention's documents are not those of its descriptor".into())
            }
        }
    }

    fn check_scratch(&self, bytes: usize) -> Check {
        let fits = bytes as u64 <= self.thread_scratch_bytes;
        require(fits, || "needs more scratch than the program has".into())
    }

    /// Checks a strided operand; `steps` are extents and strides in elements.
    fn check_operand(
        &self,
        buffer: &BufferRef,
        steps: &[(usize, isize)],
        element: usize,
        loops: &[u32],
    ) -> Check {
        self.check_buffer(buffer, element as u64, loops)?;
        let upwards = steps.iter().all(|&(extent, stride)| stride >= 0 || extent <= 1);
        require(upwards, || "an operand has a negative stride".into())?;
        let step = |&(extent, stride): &(usize, isize)| (extent as u64, stride.unsigned_abs() as u64);
        let steps: Vec<(u64, u64)> = steps.iter().map(step).filter(|&(extent, _)| extent > 1).collect();
        check_reach(&steps, 1, element as u64, buffer.bytes)
    }

    /// Checks a dense operand.
    fn check_dense(&self, buffer: &BufferRef, shape: &[usize], element: u64, loops: &[u32]) -> Check {
        let elements = check_product(shape.iter().copied())?;
        self.check_buffer(buffer, element, loops)?;
        require(elements * element <= buffer.bytes, || {
            "an operand is smaller than its descriptor says".into()
        })
    }
}

/// Extents and strides of an attention tensor with `length` positions of `features` elements.
fn head_steps(
    spec: &AttentionSpec,
    strides: HeadStrides,
    length: usize,
    features: usize,
) -> [(usize, isize); 5] {
    [
        (spec.batch, strides.batch),
        (length, strides.sequence),
        (spec.kv_heads, strides.kv_head),
        (spec.group, strides.group),
        (features, 1),
    ]
}

fn check_attention_sizes(spec: &AttentionSpec) -> Check {
    let heads = [spec.batch, spec.kv_heads, spec.group];
    let features = [spec.head_dim, spec.value_dim];
    check_product(heads.into_iter().chain(features).chain([spec.q_len]))?;
    check_product(heads.into_iter().chain(features).chain([spec.k_len]))?;
    Ok(())
}

/// The product of some extents, if none is 0 and it is not impossibly large.
fn check_product(extents: impl Iterator<Item = usize>) -> Result<u64, String> {
    let product = extents.fold(1u64, |product, extent| product.saturating_mul(extent as u64));
    require(product <= BYTES_LIMIT, || "a kernel's extents are impossibly large".into())?;
    require(product > 0, || "a kernel has an extent of 0".into())?;
    Ok(product)
}

fn reason(invalid: InvalidSpec) -> String {
    invalid.reason.to_owned()
}
