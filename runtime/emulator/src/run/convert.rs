//! `cvt` in its forms, moves between widths, and addresses of other spaces. The common conversions have a loop of their own; all others
//! go lane by lane through a value that holds any source exactly.

use super::float::{flushed, maximum_nan, step_back};
use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, to_odd};
use super::lanes::{File, Lane, map, vectorised, zip};
use crate::code::{Convert, LANES, Rounding, Slot, Width};
use crate::ptx::Type;

vectorised! {
    /// Any conversion that a module may ask for.
    fn convert(file: &mut File, mask: u32, c: &Convert) {
        let plain = !c.saturate && !c.flush && !c.relu && !c.to_integral;
        let one = (c.to, c.a);
        let nearest = c.rounding == Rounding::NearestEven;
        match (c.from_type, c.to_type) {
            (Type::S32, Type::F32) if plain && nearest => map(file, mask, one, |a: i32| a as f32),
            (Type::U32, Type::F32) if plain && nearest => map(file, mask, one, |a: u32| a as f32),
            (Type::U32, Type::U64 | Type::S64) if plain => map(file, mask, one, |a: u32| u64::from(a)),
            (Type::S32, Type::S64 | Type::U64) if plain => map(file, mask, one, |a: i32| i64::from(a)),
            (Type::U64 | Type::S64, Type::U32 | Type::S32) if plain => map(file, mask, one, |a: u64| a as u32),
            (Type::U16, Type::U32 | Type::S32) if plain => map(file, mask, one, |a: u16| u32::from(a)),
            (Type::F32, Type::S32) if plain && c.rounding == Rounding::Zero => {
                map(file, mask, one, |a: f32| a as i32);
            }
            (Type::Bf16, Type::F32) if plain => map(file, mask, one, bf16_to_f32),
            (Type::F16, Type::F32) if plain => map(file, mask, one, f16_to_f32),
            (Type::F32, Type::Bf16) if plain && nearest => map(file, mask, one, f32_to_bf16),
            (Type::F32, Type::F16) if plain && nearest => map(file, mask, one, f32_to_f16),
            (Type::F32, Type::Bf16x2) if plain && nearest => pair(file, mask, c, f32_to_bf16),
            (Type::F32, Type::F16x2) if plain && nearest => pair(file, mask, c, f32_to_f16),
            _ => any(file, mask, c),
        }
    }
}

/// Two values into one register: a is the high half.
#[inline(always)]
fn pair(file: &mut File, mask: u32, c: &Convert, narrow: impl Fn(f32) -> u16) {
    let operands = (c.to, c.a, c.b.unwrap_or(c.a));
    zip(file, mask, operands, |a: f32, b: f32| u32::from(narrow(a)) << 16 | u32::from(narrow(b)));
}

/// A source of any type.
#[derive(Clone, Copy)]
enum Value {
    Integer(i128),
    Float(f64),
}

fn source(ty: Type, bits: u64, flush: bool) -> Value {
    let single = |value: f32| Value::Float(f64::from(if flush { flushed(value) } else { value }));
    match ty {
        Type::U8 | Type::B8 => Value::Integer(i128::from(bits as u8)),
        Type::S8 => Value::Integer(i128::from(bits as i8)),
        Type::U16 | Type::B16 => Value::Integer(i128::from(bits as u16)),
        Type::S16 => Value::Integer(i128::from(bits as i16)),
        Type::U32 | Type::B32 => Value::Integer(i128::from(bits as u32)),
        Type::S32 => Value::Integer(i128::from(bits as i32)),
        Type::U64 | Type::B64 | Type::B128 => Value::Integer(i128::from(bits)),
        Type::S64 => Value::Integer(i128::from(bits as i64)),
        Type::F16 | Type::F16x2 => Value::Float(f64::from(f16_to_f32(bits as u16))),
        Type::Bf16 | Type::Bf16x2 => Value::Float(f64::from(bf16_to_f32(bits as u16))),
        Type::F32 | Type::Tf32 | Type::Pred => single(f32::from_bits(bits as u32)),
        Type::F64 => Value::Float(f64::from_bits(bits)),
    }
}

fn integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => value.round_ties_even(),
        Rounding::NearestAway => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// The least and the greatest value of an integer type.
fn range(ty: Type) -> (i128, i128) {
    let bits = 8 * ty.bytes() as u32;
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn to_single(value: Value, rounding: Rounding) -> f32 {
    let (nearest, above, below) = match value {
        Value::Integer(value) => {
            let nearest = value as f32;
            // Every f32 of this range is an integer that i128 holds.
            (nearest, nearest as i128 > value, (nearest as i128) < value)
        }
        Value::Float(value) => {
            let nearest = value as f32;
            (nearest, f64::from(nearest) > value, f64::from(nearest) < value)
        }
    };
    step_back(nearest, above, below, rounding)
}

/// A half, given what it is in f32 and the way back to that.
fn to_half(value: Value, rounding: Rounding, to: fn(f32) -> u16, back: fn(u16) -> f32) -> u16 {
    let single = match value {
        Value::Integer(value) => {
            let nearest = value as f32;
            if nearest as i128 == value { nearest } else { to_odd(value as f64, 0.0) }
        }
        Value::Float(value) => to_odd(value, 0.0),
    };
    let nearest = to(single);
    let found = back(nearest);
    if rounding == Rounding::NearestEven || single.is_nan() || found == single {
        return nearest;
    }
    let (above, below) = (found > single, found < single);
    let toward_zero = nearest.wrapping_sub(1);
    match rounding {
        Rounding::Zero if above == (single > 0.0) => toward_zero,
        Rounding::Down if above => {
            if nearest & 0x8000 == 0 {
                toward_zero
            } else {
                nearest + 1
            }
        }
        Rounding::Up if below => {
            if nearest & 0x8000 == 0 {
                nearest + 1
            } else {
                toward_zero
            }
        }
        _ => nearest,
    }
}

fn target(value: Value, c: &Convert) -> u64 {
    let half = |to: fn(f32) -> u16, back: fn(u16) -> f32| u64::from(to_half(value, c.rounding, to, back));
    match (c.to_type, value) {
        (Type::F64, Value::Integer(value)) => (value as f64).to_bits(),
        (Type::F64, Value::Float(value)) => value.to_bits(),
        (Type::F32 | Type::Pred, _) => {
            let single = to_single(value, c.rounding);
            u64::from((if c.flush { flushed(single) } else { single }).to_bits())
        }
        (Type::Tf32, _) => u64::from(to_tf32(to_single(value, Rounding::NearestEven), c.rounding)),
        (Type::F16 | Type::F16x2, _) => half(f32_to_f16, f16_to_f32),
        (Type::Bf16 | Type::Bf16x2, _) => half(f32_to_bf16, bf16_to_f32),
        (ty, Value::Integer(value)) if c.saturate => {
            let (least, most) = range(ty);
            value.clamp(least, most) as u64
        }
        (_, Value::Integer(value)) => value as u64,
        // To an integer the range always holds, and what isn't a number becomes zero.
        (ty, Value::Float(value)) => {
            let (least, most) = range(ty);
            (integral(value, c.rounding) as i128).clamp(least, most) as u64
        }
    }
}

/// Ten bits behind the point; the nearest, or what is cut off.
fn to_tf32(value: f32, rounding: Rounding) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() || value.is_infinite() {
        return bits;
    }
    let added = match rounding {
        Rounding::NearestEven => 0xfff + (bits >> 13 & 1),
        Rounding::NearestAway => 0x1000,
        Rounding::Zero | Rounding::Down | Rounding::Up => 0,
    };
    (bits + added) & !0x1fff
}

fn converted(bits: u64, c: &Convert) -> u64 {
    let mut value = source(c.from_type, bits, c.flush);
    if let Value::Float(float) = &mut value {
        if c.to_integral {
            *float = integral(*float, c.rounding);
        }
        if c.to_type.is_float() && c.saturate {
            *float = if float.is_nan() { 0.0 } else { float.clamp(0.0, 1.0) };
        }
        if c.relu && !float.is_nan() {
            *float = f64::from(maximum_nan(0.0, 0.0)).max(*float);
        }
    }
    target(value, c)
}

/// Lane by lane. What is narrower than its register has zeros above, or its sign, as it came out.
fn any(file: &mut File, mask: u32, c: &Convert) {
    let read = |file: &File, slot| -> [u64; LANES] {
        if c.from_type.bytes() == 8 { u64::read(file, slot) } else { u32::read(file, slot).map(u64::from) }
    };
    let mut result = read(file, c.a).map(|bits| converted(bits, c));
    if let Some(b) = c.b {
        let low = read(file, b);
        for lane in 0..LANES {
            result[lane] = (result[lane] & 0xffff) << 16 | (converted(low[lane], c) & 0xffff);
        }
    }
    match c.to_type.bytes() {
        8 => u64::write(file, c.to, &result, mask),
        4 => u32::write(file, c.to, &result.map(|bits| bits as u32), mask),
        1 if c.to_type.is_signed() => i16::write(file, c.to, &result.map(|bits| i16::from(bits as i8)), mask),
        1 => u16::write(file, c.to, &result.map(|bits| u16::from(bits as u8)), mask),
        _ => u16::write(file, c.to, &result.map(|bits| bits as u16), mask),
    }
}

vectorised! {
    /// The same bits into another register.
    fn copy(file: &mut File, mask: u32, width: Width, to: Slot, from: Slot) {
        match width {
            Width::Half => map(file, mask, (to, from), |a: u16| a),
            Width::Word => map(file, mask, (to, from), |a: u32| a),
            Width::Double => map(file, mask, (to, from), |a: u64| a),
        }
    }
}

vectorised! {
    /// The low half of 64 bits.
    fn narrow(file: &mut File, mask: u32, to: Slot, from: Slot) {
        map(file, mask, (to, from), |a: u64| a as u32);
    }
}

vectorised! {
    /// One of two registers, by a mask.
    fn select(file: &mut File, mask: u32, width: Width, slots: (Slot, Slot, Slot), by: u32) {
        let (to, a, b) = slots;
        if width == Width::Double {
            let (mut chosen, a) = (u64::read(file, b), u64::read(file, a));
            for lane in 0..LANES {
                chosen[lane] = if by >> lane & 1 == 1 { a[lane] } else { chosen[lane] };
            }
            u64::write(file, to, &chosen, mask);
        } else {
            let (mut chosen, a) = (u32::read(file, b), u32::read(file, a));
            for lane in 0..LANES {
                chosen[lane] = if by >> lane & 1 == 1 { a[lane] } else { chosen[lane] };
            }
            u32::write(file, to, &chosen, mask);
        }
    }
}

vectorised! {
    /// Adds a constant to 64 bits.
    fn add_constant(file: &mut File, mask: u32, to: Slot, from: Slot, constant: u64) {
        map(file, mask, (to, from), |a: u64| a.wrapping_add(constant));
    }
}

vectorised! {
    /// Equal parts into one register, the lowest first.
    fn pack(file: &mut File, mask: u32, part: Width, parts: &[Slot], whole: Width, to: Slot) {
        let shift = if part == Width::Half { 16 } else { 32 };
        let mut result = [0_u64; LANES];
        for (index, slot) in parts.iter().enumerate() {
            let lanes = u32::read(file, *slot);
            for lane in 0..LANES {
                let value = if part == Width::Half { lanes[lane] & 0xffff } else { lanes[lane] };
                result[lane] |= u64::from(value) << (shift * index);
            }
        }
        if whole == Width::Double {
            u64::write(file, to, &result, mask);
        } else {
            u32::write(file, to, &result.map(|bits| bits as u32), mask);
        }
    }
}

vectorised! {
    /// One register into equal parts, the lowest first.
    fn unpack(file: &mut File, mask: u32, part: Width, parts: &[Option<Slot>], whole: Width, from: Slot) {
        let shift = if part == Width::Half { 16 } else { 32 };
        let lanes = if whole == Width::Double { u64::read(file, from) } else { u32::read(file, from).map(u64::from) };
        for (index, slot) in parts.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let mut result = [0_u32; LANES];
            for lane in 0..LANES {
                result[lane] = (lanes[lane] >> (shift * index)) as u32;
            }
            if part == Width::Half {
                u16::write(file, *slot, &result.map(|bits| bits as u16), mask);
            } else {
                u32::write(file, *slot, &result, mask);
            }
        }
    }
}
