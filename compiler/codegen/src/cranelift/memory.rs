//! Loads and stores of a chunk: whole vectors where elements lie side by side, else lane by lane.

use super::address::Address;
use super::emit::Emitter;
use super::group::{Group, LANES};
use crate::kir::{ElementType, Index, TensorId};
use crate::math::{Lanes, of_f16_bits, to_bf16_bits, to_f16_bits};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};

/// Every address is proved inside its tensor; vectors need not be aligned.
const FLAGS: MemFlagsData = MemFlagsData::new().with_notrap();

impl Emitter<'_, '_> {
    /// `tensor[index]` as a register's value.
    pub(super) fn load(&mut self, tensor: TensorId, index: &Index) -> Group {
        let element = self.kernel.tensors[tensor].element;
        let address = self.address(tensor, index);
        let raw = if address.stride == 0 && address.scattered.is_empty() {
            let word = self.load_word(element, &address, 0, 0);
            let vector = raw_vector(element);
            Group::uniform(self.builder.ins().splat(vector, word))
        } else {
            let vectors = 0..self.chunk.vectors;
            Group::varying(vectors.map(|vector| self.load_vector(element, &address, vector)).collect())
        };
        self.widen(element, &raw)
    }

    /// `tensor[index] = value`, for each iteration of the chunk.
    pub(super) fn store(&mut self, tensor: TensorId, index: &Index, value: &Group) {
        let element = self.kernel.tensors[tensor].element;
        let address = self.address(tensor, index);
        let raw = self.narrow(element, value);
        let is_whole = self.is_whole(element, &address);
        for vector in 0..self.chunk.vectors {
            if is_whole {
                self.store_vector(element, &address, vector, raw.of(vector));
            } else {
                for lane in 0..self.chunk.lanes {
                    self.store_lane(element, &address, vector, lane, raw.of(vector));
                }
            }
        }
    }

    fn is_whole(&self, element: ElementType, address: &Address) -> bool {
        self.chunk.lanes == LANES && address.stride == element.bytes() as i64 && address.scattered.is_empty()
    }

    /// Elements as they lie in memory, each in a lane of 32 bits.
    fn load_vector(&mut self, element: ElementType, address: &Address, vector: usize) -> Value {
        if !self.is_whole(element, address) {
            let first = self.load_word(element, address, vector, 0);
            let mut lanes = self.builder.ins().scalar_to_vector(raw_vector(element), first);
            for lane in 1..self.chunk.lanes {
                let word = self.load_word(element, address, vector, lane);
                lanes = self.builder.ins().insertlane(lanes, word, lane as u8);
            }
            return lanes;
        }
        let (pointer, offset) = self.place(address, vector, 0);
        match element {
            ElementType::F32 | ElementType::I32 | ElementType::U32 => {
                self.builder.ins().load(raw_vector(element), FLAGS, pointer, offset)
            }
            ElementType::Bf16 | ElementType::F16 => self.builder.ins().uload16x4(FLAGS, pointer, offset),
            ElementType::Bool => {
                let word = self.builder.ins().load(types::I32, FLAGS, pointer, offset);
                let bytes = self.builder.ins().scalar_to_vector(types::I32X4, word);
                let bytes = self.reinterpret(types::I8X16, bytes);
                let halves = self.builder.ins().uwiden_low(bytes);
                self.builder.ins().uwiden_low(halves)
            }
        }
    }

    fn load_word(&mut self, element: ElementType, address: &Address, vector: usize, lane: usize) -> Value {
        let (pointer, offset) = self.place(address, vector, lane);
        let instructions = self.builder.ins();
        match element {
            ElementType::F32 => instructions.load(types::F32, FLAGS, pointer, offset),
            ElementType::I32 | ElementType::U32 => instructions.load(types::I32, FLAGS, pointer, offset),
            ElementType::Bf16 | ElementType::F16 => instructions.uload16(types::I32, FLAGS, pointer, offset),
            ElementType::Bool => instructions.uload8(types::I32, FLAGS, pointer, offset),
        }
    }

    fn store_vector(&mut self, element: ElementType, address: &Address, vector: usize, raw: Value) {
        let (pointer, offset) = self.place(address, vector, 0);
        match element {
            ElementType::F32 | ElementType::I32 | ElementType::U32 => {
                self.builder.ins().store(FLAGS, raw, pointer, offset);
            }
            ElementType::Bf16 | ElementType::F16 => {
                let halves = self.builder.ins().unarrow(raw, raw);
                let pairs = self.reinterpret(types::I64X2, halves);
                let low = self.builder.ins().extractlane(pairs, 0);
                self.builder.ins().store(FLAGS, low, pointer, offset);
            }
            ElementType::Bool => {
                let halves = self.builder.ins().snarrow(raw, raw);
                let bytes = self.builder.ins().snarrow(halves, halves);
                let words = self.reinterpret(types::I32X4, bytes);
                let low = self.builder.ins().extractlane(words, 0);
                self.builder.ins().store(FLAGS, low, pointer, offset);
            }
        }
    }

    fn store_lane(
        &mut self,
        element: ElementType,
        address: &Address,
        vector: usize,
        lane: usize,
        raw: Value,
    ) {
        let (pointer, offset) = self.place(address, vector, lane);
        let word = self.builder.ins().extractlane(raw, lane as u8);
        let instructions = self.builder.ins();
        match element {
            ElementType::F32 | ElementType::I32 | ElementType::U32 => {
                instructions.store(FLAGS, word, pointer, offset);
            }
            ElementType::Bf16 | ElementType::F16 => {
                instructions.istore16(FLAGS, word, pointer, offset);
            }
            ElementType::Bool => {
                instructions.istore8(FLAGS, word, pointer, offset);
            }
        }
    }

    /// The pointer and offset of one element of the chunk.
    fn place(&mut self, address: &Address, vector: usize, lane: usize) -> (Value, i32) {
        let mut pointer = address.pointer;
        for (words, scale) in &address.scattered {
            pointer = self.displaced(pointer, words.of(vector), lane, *scale);
        }
        let iteration = (vector * LANES + lane) as i64;
        let offset = address.offset.wrapping_add(address.stride.wrapping_mul(iteration));
        match i32::try_from(offset) {
            Ok(offset) => (pointer, offset),
            Err(_) => {
                let offset = self.builder.ins().iconst(types::I64, offset);
                (self.builder.ins().iadd(pointer, offset), 0)
            }
        }
    }

    /// From elements in 32-bit lanes to a register's value.
    fn widen(&mut self, element: ElementType, raw: &Group) -> Group {
        match element {
            ElementType::F32 | ElementType::I32 | ElementType::U32 => raw.clone(),
            ElementType::Bf16 => {
                let bits = self.shift_left(raw, 16);
                self.float_of(&bits)
            }
            ElementType::F16 => of_f16_bits(self, raw),
            ElementType::Bool => {
                let zero = self.bits(0);
                self.integer_compare(IntCC::NotEqual, raw, &zero)
            }
        }
    }

    /// From a register's value to elements in 32-bit lanes.
    fn narrow(&mut self, element: ElementType, value: &Group) -> Group {
        match element {
            ElementType::F32 | ElementType::I32 | ElementType::U32 => value.clone(),
            ElementType::Bf16 => to_bf16_bits(self, value),
            ElementType::F16 => to_f16_bits(self, value),
            ElementType::Bool => {
                let one = self.bits(1);
                self.bits_and(value, &one)
            }
        }
    }
}

fn raw_vector(element: ElementType) -> cranelift_codegen::ir::Type {
    match element {
        ElementType::F32 => types::F32X4,
        ElementType::Bf16 | ElementType::F16 | ElementType::I32 | ElementType::U32 | ElementType::Bool => {
            types::I32X4
        }
    }
}
