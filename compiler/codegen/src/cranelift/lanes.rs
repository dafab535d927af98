//! Basic vector operations as Cranelift instructions, so that the vector mathematics emits code.

use super::emit::Emitter;
use super::group::Group;
use crate::math::Lanes;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{ConstantData, InstBuilder, MemFlagsData, Type, Value, types};

/// Forwards methods of one and two operands to the instruction of the same meaning.
macro_rules! instructions {
    ($($method:ident($($operand:ident),*) = $instruction:ident;)*) => {$(
        instructions!(@ $method($($operand),*) = $instruction);
    )*};
    (@ $method:ident($left:ident, $right:ident) = $instruction:ident) => {
        fn $method(&mut self, $left: &Group, $right: &Group) -> Group {
            $left.zip($right, |left, right| self.builder.ins().$instruction(left, right))
        }
    };
    (@ $method:ident($value:ident) = $instruction:ident) => {
        fn $method(&mut self, $value: &Group) -> Group {
            $value.map(|value| self.builder.ins().$instruction(value))
        }
    };
}

impl Lanes for Emitter<'_, '_> {
    type Float = Group;
    type Bits = Group;
    type Mask = Group;

    fn is_fused(&self) -> bool {
        self.features.fma
    }

    fn float(&mut self, value: f32) -> Group {
        Group::uniform(self.vector_constant(types::F32X4, [value.to_bits(); 4]))
    }

    fn bits(&mut self, value: u32) -> Group {
        Group::uniform(self.vector_constant(types::I32X4, [value; 4]))
    }

    instructions! {
        add(left, right) = fadd;
        subtract(left, right) = fsub;
        multiply(left, right) = fmul;
        divide(left, right) = fdiv;
        negate(value) = fneg;
        absolute(value) = fabs;
        sqrt(value) = sqrt;
        floor(value) = floor;
        bits_add(left, right) = iadd;
        bits_subtract(left, right) = isub;
        bits_and(left, right) = band;
        bits_or(left, right) = bor;
        bits_xor(left, right) = bxor;
        mask_and(left, right) = band;
        mask_or(left, right) = bor;
        mask_not(mask) = bnot;
    }

    fn multiply_add(&mut self, left: &Group, right: &Group, addend: &Group) -> Group {
        if self.features.fma {
            return left
                .zip3(right, addend, |left, right, addend| self.builder.ins().fma(left, right, addend));
        }
        let product = self.multiply(left, right);
        self.add(&product, addend)
    }

    fn equal(&mut self, left: &Group, right: &Group) -> Group {
        self.float_compare(FloatCC::Equal, left, right)
    }

    fn less(&mut self, left: &Group, right: &Group) -> Group {
        self.float_compare(FloatCC::LessThan, left, right)
    }

    fn less_or_equal(&mut self, left: &Group, right: &Group) -> Group {
        self.float_compare(FloatCC::LessThanOrEqual, left, right)
    }

    fn select(&mut self, mask: &Group, on_true: &Group, on_false: &Group) -> Group {
        let mask = mask.map(|mask| self.reinterpret(types::F32X4, mask));
        mask.zip3(on_true, on_false, |mask, on_true, on_false| {
            self.builder.ins().bitselect(mask, on_true, on_false)
        })
    }

    fn bits_of(&mut self, value: &Group) -> Group {
        value.map(|value| self.reinterpret(types::I32X4, value))
    }

    fn float_of(&mut self, value: &Group) -> Group {
        value.map(|value| self.reinterpret(types::F32X4, value))
    }

    fn signed_to_float(&mut self, value: &Group) -> Group {
        value.map(|value| self.builder.ins().fcvt_from_sint(types::F32X4, value))
    }

    fn shift_left(&mut self, value: &Group, amount: u8) -> Group {
        value.map(|value| self.builder.ins().ishl_imm_u(value, i64::from(amount)))
    }

    fn shift_right(&mut self, value: &Group, amount: u8) -> Group {
        value.map(|value| self.builder.ins().ushr_imm_u(value, i64::from(amount)))
    }

    fn shift_right_signed(&mut self, value: &Group, amount: u8) -> Group {
        value.map(|value| self.builder.ins().sshr_imm_u(value, i64::from(amount)))
    }

    fn bits_equal(&mut self, left: &Group, right: &Group) -> Group {
        self.integer_compare(IntCC::Equal, left, right)
    }

    fn bits_select(&mut self, mask: &Group, on_true: &Group, on_false: &Group) -> Group {
        mask.zip3(on_true, on_false, |mask, on_true, on_false| {
            self.builder.ins().bitselect(mask, on_true, on_false)
        })
    }
}

impl Emitter<'_, '_> {
    /// Four words as a vector of type `vector`.
    pub(super) fn vector_constant(&mut self, vector: Type, words: [u32; 4]) -> Value {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let pool = &mut self.builder.func.dfg.constants;
        let constant = pool.insert(ConstantData::from(bytes));
        self.builder.ins().vconst(vector, constant)
    }

    /// The same 128 bits under another type.
    pub(super) fn reinterpret(&mut self, vector: Type, value: Value) -> Value {
        if self.builder.func.dfg.value_type(value) == vector {
            return value;
        }
        let flags = MemFlagsData::new().with_endianness(cranelift_codegen::ir::Endianness::Little);
        self.builder.ins().bitcast(vector, flags, value)
    }

    /// A mask of where a relation holds between floats.
    pub(super) fn float_compare(&mut self, relation: FloatCC, left: &Group, right: &Group) -> Group {
        left.zip(right, |left, right| self.builder.ins().fcmp(relation, left, right))
    }

    /// A mask of where a relation holds between integers.
    pub(super) fn integer_compare(&mut self, relation: IntCC, left: &Group, right: &Group) -> Group {
        left.zip(right, |left, right| self.builder.ins().icmp(relation, left, right))
    }
}
