//! Products that wait for nothing of each other and follow each other in a program: a device may make them at once.
//!
//! From a list of instructions to the runs that it falls into. Orders nothing anew, and knows nothing of launches.

use super::{BufferRef, Instruction, Operation, Program, Variable};
use std::ops::Range;

/// No run is longer.
const MOST_PRODUCTS: usize = 8;

impl Program {
    /// The pieces of a list of instructions inside of loops of these counts, outermost first: as many products as follow each other and wait for
    /// nothing of each other, and each other instruction by itself.
    #[must_use]
    pub fn runs<'a>(&self, mut body: &'a [Instruction], loops: &[u32]) -> Vec<&'a [Instruction]> {
        let mut runs = Vec::new();
        while !body.is_empty() {
            let (run, rest) = body.split_at(self.products_together(body, loops).max(1));
            runs.push(run);
            body = rest;
        }
        runs
    }

    /// How many of the first instructions are products none of which writes what another one reads or writes.
    fn products_together(&self, body: &[Instruction], loops: &[u32]) -> usize {
        let mut taken: Vec<Touched<'_>> = Vec::new();
        for instruction in body.iter().take(MOST_PRODUCTS) {
            let Some(touched) = self.touched(&instruction.operation) else { break };
            if taken.iter().any(|other| self.conflict(&touched, other, loops)) {
                break;
            }
            taken.push(touched);
        }
        taken.len()
    }

    /// What a product touches.
    fn touched<'a>(&self, operation: &'a Operation) -> Option<Touched<'a>> {
        let Operation::Matmul { spec: _, a, b, c, epilogue } = operation else { return None };
        let mut touched = Touched { read: vec![a, b], written: vec![c] };
        if let Some(epilogue) = epilogue {
            let call = &epilogue.call;
            let reads = self.kernels.get(call.kernel.index()).map_or(0, |kernel| kernel.reads as usize);
            let (read, written) = call.pointers.split_at(reads.min(call.pointers.len()));
            touched.read.extend(read);
            touched.written.extend(written);
        }
        Some(touched)
    }

    fn conflict(&self, one: &Touched<'_>, other: &Touched<'_>, loops: &[u32]) -> bool {
        let meet = |written: &[&BufferRef], touched: &[&BufferRef]| {
            written.iter().any(|written| touched.iter().any(|touched| self.overlap(written, touched, loops)))
        };
        meet(&one.written, &other.read)
            || meet(&one.written, &other.written)
            || meet(&one.read, &other.written)
    }

    /// Whether two pieces of memory may have a byte in common at some point of the loops.
    fn overlap(&self, one: &BufferRef, other: &BufferRef, loops: &[u32]) -> bool {
        // What moves both in the same way moves neither towards the other.
        let [one_reach, other_reach] = if one.terms == other.terms {
            [one, other].map(|buffer| buffer.offset..buffer.offset.saturating_add(buffer.bytes))
        } else {
            [one, other].map(|buffer| self.reach(buffer, loops))
        };
        one.space == other.space && one_reach.start < other_reach.end && other_reach.start < one_reach.end
    }

    /// All bytes that a piece of memory may have.
    fn reach(&self, buffer: &BufferRef, loops: &[u32]) -> Range<u64> {
        let last = |variable: Variable| match variable {
            Variable::MeshCoordinate(axis) => {
                self.mesh.axes.get(axis.index()).map_or(0, |axis| u64::from(axis.size).saturating_sub(1))
            }
            Variable::LoopIndex(depth) => {
                loops.get(depth as usize).map_or(0, |&count| u64::from(count).saturating_sub(1))
            }
            // No address has these.
            Variable::Step | Variable::SeedLow | Variable::SeedHigh => 0,
        };
        let moved = buffer.terms.iter().map(|term| term.stride.saturating_mul(last(term.variable)));
        let end = moved.fold(buffer.offset.saturating_add(buffer.bytes), u64::saturating_add);
        buffer.offset..end
    }
}

/// The memory that a product touches.
struct Touched<'a> {
    read: Vec<&'a BufferRef>,
    /// What may be written; perhaps it is read too.
    written: Vec<&'a BufferRef>,
}
