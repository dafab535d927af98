//! Comparisons: lanes in, a mask out.

use super::float::flushed;
use super::half::{bf16_to_f32, f16_to_f32};
use super::lanes::{File, Lane, mask_of, vectorised};
use crate::code::{Compare, FloatTest, LANES, Logic, Relation, Slot};
use crate::ptx::Type;

vectorised! {
    /// The lanes where the relation holds; for packed types of the low and of the high halves.
    fn compare(file: &File, c: &Compare) -> (u32, u32) {
        let (a, b, relation) = (c.a, c.b, c.relation);
        let whole = match c.ty {
            Type::U16 | Type::B16 | Type::U8 | Type::B8 => {
                ordered(u16::read(file, a), u16::read(file, b), relation)
            }
            Type::S16 | Type::S8 => ordered(i16::read(file, a), i16::read(file, b), relation),
            Type::U32 | Type::B32 | Type::Pred => ordered(u32::read(file, a), u32::read(file, b), relation),
            Type::S32 => ordered(i32::read(file, a), i32::read(file, b), relation),
            Type::U64 | Type::B64 | Type::B128 => ordered(u64::read(file, a), u64::read(file, b), relation),
            Type::S64 => ordered(i64::read(file, a), i64::read(file, b), relation),
            Type::F32 | Type::Tf32 => {
                let enter = |lanes: [f32; LANES]| if c.flush { lanes.map(flushed) } else { lanes };
                ordered(enter(f32::read(file, a)), enter(f32::read(file, b)), relation)
            }
            Type::F64 => ordered(f64::read(file, a), f64::read(file, b), relation),
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => halves(file, c, 0),
        };
        let high = if matches!(c.ty, Type::F16x2 | Type::Bf16x2) { halves(file, c, 16) } else { !whole };
        (whole, high)
    }
}

#[inline(always)]
fn halves(file: &File, c: &Compare, shift: u32) -> u32 {
    let brain = matches!(c.ty, Type::Bf16 | Type::Bf16x2);
    let read = |slot| {
        u32::read(file, slot).map(|word| {
            let bits = (word >> shift) as u16;
            if brain { bf16_to_f32(bits) } else { f16_to_f32(bits) }
        })
    };
    ordered(read(c.a), read(c.b), c.relation)
}

/// Any relation, on a type whose values may be unordered.
#[inline(always)]
fn ordered<T: PartialOrd + Copy>(a: [T; LANES], b: [T; LANES], relation: Relation) -> u32 {
    match relation {
        Relation::Equal => mask_of(|lane| a[lane] == b[lane]),
        // Ordered: false where either isn't a number.
        Relation::NotEqual => mask_of(|lane| (a[lane] < b[lane]) | (a[lane] > b[lane])),
        Relation::Less => mask_of(|lane| a[lane] < b[lane]),
        Relation::LessEqual => mask_of(|lane| a[lane] <= b[lane]),
        Relation::Greater => mask_of(|lane| a[lane] > b[lane]),
        Relation::GreaterEqual => mask_of(|lane| a[lane] >= b[lane]),
        Relation::EqualUnordered => !mask_of(|lane| (a[lane] < b[lane]) | (a[lane] > b[lane])),
        Relation::NotEqualUnordered => !mask_of(|lane| a[lane] == b[lane]),
        Relation::LessUnordered => !mask_of(|lane| a[lane] >= b[lane]),
        Relation::LessEqualUnordered => !mask_of(|lane| a[lane] > b[lane]),
        Relation::GreaterUnordered => !mask_of(|lane| a[lane] <= b[lane]),
        Relation::GreaterEqualUnordered => !mask_of(|lane| a[lane] < b[lane]),
        Relation::Ordered => mask_of(|lane| a[lane].partial_cmp(&b[lane]).is_some()),
        Relation::Unordered => mask_of(|lane| a[lane].partial_cmp(&b[lane]).is_none()),
    }
}

/// Two masks in one.
pub(super) fn combine(logic: Logic, a: u32, b: u32) -> u32 {
    match logic {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::ExclusiveOr => a ^ b,
    }
}

/// Where the relation holds, `one`; of packed types half by half.
pub(super) fn set(file: &mut File, mask: u32, to: Slot, one: u32, packed: bool, (low, high): (u32, u32)) {
    let mut result = [0; LANES];
    for (lane, result) in result.iter_mut().enumerate() {
        let (low, high) = (low >> lane & 1 == 1, high >> lane & 1 == 1);
        *result = match (packed, low, high) {
            (false, true, _) | (true, true, true) => one,
            (false, false, _) | (true, false, false) => 0,
            (true, true, false) => one & 0xffff,
            (true, false, true) => one & 0xffff_0000,
        };
    }
    u32::write(file, to, &result, mask);
}

/// `testp`.
pub(super) fn test(file: &File, kind: FloatTest, ty: Type, a: Slot) -> u32 {
    use std::num::FpCategory;
    let category: [FpCategory; LANES] = if ty == Type::F64 {
        f64::read(file, a).map(f64::classify)
    } else {
        f32::read(file, a).map(f32::classify)
    };
    mask_of(|lane| match kind {
        FloatTest::Finite => !matches!(category[lane], FpCategory::Nan | FpCategory::Infinite),
        FloatTest::Infinite => category[lane] == FpCategory::Infinite,
        FloatTest::Number => category[lane] != FpCategory::Nan,
        FloatTest::NotANumber => category[lane] == FpCategory::Nan,
        // Zero counts as normal.
        FloatTest::Normal => matches!(category[lane], FpCategory::Normal | FpCategory::Zero),
        FloatTest::Subnormal => category[lane] == FpCategory::Subnormal,
    })
}
