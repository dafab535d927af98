//! Addresses and 64-bit index values, each part computed in the outermost loop where it is known.

use super::emit::Emitter;
use super::group::Group;
use crate::kir::{Index, Statement, TensorId, Term, Variable};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use smallvec::SmallVec;

/// A sum already computed: the base (a tensor's address, or 0) and the terms added, outermost first.
pub(super) type AddressKey = (Option<TensorId>, SmallVec<[Term; 4]>);

/// Where the elements of a chunk lie.
pub(super) struct Address {
    /// Of the first element, less `offset`.
    pub pointer: Value,
    /// In bytes.
    pub offset: i64,
    /// Bytes from one iteration of the vector loop to the next.
    pub stride: i64,
    /// Bytes to add that differ by lane and are read from data: a register's clamped bits and what multiplies them.
    pub scattered: SmallVec<[(Group, i64); 1]>,
}

impl Emitter<'_, '_> {
    /// Computes, for all accesses in `statements` and loops in them, the part of the address that is known here.
    pub(super) fn prepare_addresses(&mut self, statements: &[Statement]) {
        for statement in statements {
            match statement {
                Statement::Loop(nest) => self.prepare_addresses(&nest.body),
                Statement::Load { tensor, index, .. }
                | Statement::Store { tensor, index, .. }
                | Statement::Accumulate { tensor, index, .. } => {
                    let terms = self.known_terms(index);
                    self.sum(Some(*tensor), &terms);
                }
                Statement::Let { .. }
                | Statement::Start(_)
                | Statement::Combine { .. }
                | Statement::Total { .. } => {}
            }
        }
    }

    /// Where `tensor[index]` lies for the iterations of the chunk.
    pub(super) fn address(&mut self, tensor: TensorId, index: &Index) -> Address {
        let size = self.kernel.tensors[tensor].element.bytes() as i64;
        let terms = self.known_terms(index);
        let mut address = Address {
            pointer: self.sum(Some(tensor), &terms),
            offset: index.constant_part().wrapping_mul(size),
            stride: self.lane_step(index).wrapping_mul(size),
            scattered: SmallVec::new(),
        };
        for term in index.terms() {
            if let Variable::Data { register, bound } = term.variable {
                let data = self.group(register);
                let most = crate::math::Lanes::bits(self, bound - 1);
                let clamped = data.zip(&most, |data, most| self.builder.ins().umin(data, most));
                let scale = term.coefficient.wrapping_mul(size);
                if clamped.is_uniform {
                    address.pointer = self.displaced(address.pointer, clamped.of(0), 0, scale);
                } else {
                    address.scattered.push((clamped, scale));
                }
            }
        }
        address
    }

    /// `pointer + scale · lane`, for a lane of unsigned words.
    pub(super) fn displaced(&mut self, pointer: Value, words: Value, lane: usize, scale: i64) -> Value {
        let word = self.builder.ins().extractlane(words, lane as u8);
        let word = self.builder.ins().uextend(types::I64, word);
        let bytes = self.scaled(word, scale);
        self.builder.ins().iadd(pointer, bytes)
    }

    /// The value of an index without data terms, for the chunk's first iteration.
    pub(super) fn index_value(&mut self, index: &Index) -> Value {
        let terms = self.known_terms(index);
        let constant = index.constant_part();
        if terms.is_empty() {
            return self.builder.ins().iconst(types::I64, constant);
        }
        let sum = self.sum(None, &terms);
        match constant {
            0 => sum,
            _ => {
                let constant = self.builder.ins().iconst(types::I64, constant);
                self.builder.ins().iadd(sum, constant)
            }
        }
    }

    /// By how much an index grows from one iteration of the vector loop to the next.
    pub(super) fn lane_step(&self, index: &Index) -> i64 {
        self.vector_axis.map_or(0, |axis| index.coefficient(axis))
    }

    /// The terms whose variables have values here, data left out, in the order in which they got them.
    fn known_terms(&self, index: &Index) -> SmallVec<[Term; 4]> {
        let depth = |term: &Term| match term.variable {
            Variable::Integer(_) => Some(0),
            Variable::Axis(axis) => {
                let position = self.walked.iter().position(|&walked| walked == axis);
                position.map(|position| position + 1)
            }
            Variable::Data { .. } => None,
        };
        let mut known: SmallVec<[(usize, Term); 4]> =
            index.terms().iter().filter_map(|term| Some((depth(term)?, *term))).collect();
        known.sort_by_key(|(depth, _)| *depth);
        known.into_iter().map(|(_, term)| term).collect()
    }

    /// The base and the terms added up; sums computed before are used again.
    fn sum(&mut self, tensor: Option<TensorId>, terms: &[Term]) -> Value {
        let Some((last, before)) = terms.split_last() else {
            return match tensor {
                Some(tensor) => self.pointers[tensor],
                None => self.builder.ins().iconst(types::I64, 0),
            };
        };
        let key = (tensor, SmallVec::from_slice(terms));
        let known = self.scopes.iter().rev().find_map(|scope| scope.addresses.get(&key));
        if let Some(&known) = known {
            return known;
        }
        let size = tensor.map_or(1, |tensor| self.kernel.tensors[tensor].element.bytes() as i64);
        let variable = match last.variable {
            Variable::Integer(integer) => self.integers[integer],
            Variable::Axis(axis) => self.axes[axis]
                .unwrap_or_else(|| unreachable!("bug in dtlc: {axis} passed the validator outside its loop")),
            Variable::Data { .. } => unreachable!("bug in dtlc: data among known terms"),
        };
        let scaled = self.scaled(variable, last.coefficient.wrapping_mul(size));
        let sum = if before.is_empty() && tensor.is_none() {
            scaled
        } else {
            let before = self.sum(tensor, before);
            self.builder.ins().iadd(before, scaled)
        };
        if let Some(scope) = self.scopes.last_mut() {
            scope.addresses.insert(key, sum);
        }
        sum
    }

    fn scaled(&mut self, value: Value, factor: i64) -> Value {
        if factor == 1 {
            return value;
        }
        if factor > 0 && factor.count_ones() == 1 {
            let amount = i64::from(factor.trailing_zeros());
            return self.builder.ins().ishl_imm_u(value, amount);
        }
        let factor = self.builder.ins().iconst(types::I64, factor);
        self.builder.ins().imul(value, factor)
    }
}
