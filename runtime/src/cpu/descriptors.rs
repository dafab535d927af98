//! Calls of the hand-written kernels, their parts divided over the rank's threads.

use dtlc_kernels::attention::{BackwardTensors, ForwardTensors, attention, attention_backward};
use dtlc_kernels::embedding::{scatter_add, take};
use dtlc_kernels::matmul::matmul;
use dtlc_kernels::signature::{
    AttentionBackwardSpec, AttentionSpec, MatmulSpec, Part, ScatterAddSpec, TakeSpec,
};

use super::{Cpu, Shared};
use crate::executor::{Point, Trouble};
use crate::link::{Address, Integer};

impl Cpu {
    pub(super) fn matmul(
        &self,
        spec: &MatmulSpec,
        operands: [&Address; 3],
        point: &Point,
    ) -> Result<(), Trouble> {
        let operands = Shared(operands.map(|operand| self.address(operand, point)));
        self.in_parts(spec.parts(self.team.threads()), |part, scratch| {
            let [a, b, c] = operands.get();
            // SAFETY: validation checked that the operands hold what the descriptor says.
            unsafe { matmul(spec, a, b, c, scratch, part) }
        })
    }

    pub(super) fn take(
        &self,
        spec: &TakeSpec,
        operands: [&Address; 3],
        offset: &Integer,
        point: &Point,
    ) -> Result<(), Trouble> {
        let operands = Shared(operands.map(|operand| self.address(operand, point)));
        let offset = offset.at(point);
        self.in_parts(spec.parts(self.team.threads()), |part, _| {
            let [table, ids, output] = operands.get();
            // SAFETY: validation checked that the operands hold what the descriptor says.
            unsafe { take(spec, table, ids.cast(), output, offset, part) }
        })
    }

    pub(super) fn scatter_add(
        &self,
        spec: &ScatterAddSpec,
        operands: [&Address; 3],
        offset: &Integer,
        point: &Point,
    ) -> Result<(), Trouble> {
        let operands = Shared(operands.map(|operand| self.address(operand, point)));
        let offset = offset.at(point);
        self.in_parts(spec.parts(self.team.threads()), |part, scratch| {
            let [source, ids, output] = operands.get();
            // SAFETY: validation checked that the operands hold what the descriptor says.
            unsafe { scatter_add(spec, source, ids.cast(), output, offset, scratch, part) }
        })
    }

    pub(super) fn attention(
        &self,
        spec: &AttentionSpec,
        tensors: &[Address; 5],
        documents: Option<&[Address; 2]>,
        offsets: &[Integer; 2],
        point: &Point,
    ) -> Result<(), Trouble> {
        let [q, k, v, o, lse] = tensors.each_ref().map(|tensor| self.address(tensor, point));
        let [q_offset, k_offset] = offsets.each_ref().map(|offset| offset.at(point));
        let [q_documents, k_documents] = self.documents(documents, point);
        let tensors = Shared(&ForwardTensors {
            q,
            k,
            v,
            o,
            lse: lse.cast(),
            q_documents,
            k_documents,
            q_offset,
            k_offset,
        });
        self.in_parts(spec.parts(self.team.threads()), |part, scratch| {
            // SAFETY: validation checked that the operands hold what the descriptor says.
            unsafe { attention(spec, tensors.get(), scratch, part) }
        })
    }

    pub(super) fn attention_backward(
        &self,
        spec: &AttentionBackwardSpec,
        tensors: &[Address; 9],
        documents: Option<&[Address; 2]>,
        offsets: &[Integer; 2],
        point: &Point,
    ) -> Result<(), Trouble> {
        let [q, k, v, o, lse, o_gradient, q_gradient, k_gradient, v_gradient] =
            tensors.each_ref().map(|tensor| self.address(tensor, point));
        let [q_offset, k_offset] = offsets.each_ref().map(|offset| offset.at(point));
        let [q_documents, k_documents] = self.documents(documents, point);
        let tensors = Shared(&BackwardTensors {
            q,
            k,
            v,
            o,
            lse: lse.cast_const().cast(),
            o_gradient,
            q_gradient,
            k_gradient,
            v_gradient,
            q_documents,
            k_documents,
            q_offset,
            k_offset,
        });
        self.in_parts(spec.parts(self.team.threads()), |part, scratch| {
            // SAFETY: validation checked that the operands hold what the descriptor says.
            unsafe { attention_backward(spec, tensors.get(), scratch, part) }
        })
    }

    /// The addresses of the documents of queries and of keys, if there are any.
    fn documents(&self, documents: Option<&[Address; 2]>, point: &Point) -> [*const u32; 2] {
        match documents {
            Some(documents) => {
                documents.each_ref().map(|tensor| self.address(tensor, point).cast_const().cast())
            }
            None => [std::ptr::null(); 2],
        }
    }

    /// Runs the parts of a kernel, each with its thread's scratch.
    fn in_parts(&self, parts: usize, work: impl Fn(Part, *mut u8) + Sync) -> Result<(), Trouble> {
        let scratch = Shared(&self.scratch);
        self.team.run(parts, &|part, thread| {
            work(Part { index: part, count: parts }, scratch.get()[thread]);
        })?;
        Ok(())
    }
}
