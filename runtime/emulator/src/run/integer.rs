//! Integer arithmetic and bits, on 16, 32 and 64 bits.

use super::lanes::{File, map, vectorised, zip, zip3};
use crate::code::{ByteFactors, Carry, CarryKind, IntegerKind, Operands, Sign, Slot, Width};

vectorised! {
    /// Everything that [`IntegerKind`] names.
    fn integer(file: &mut File, mask: u32, kind: IntegerKind, width: Width, sign: Sign, o: Operands) {
        match (width, sign) {
            (Width::Half, Sign::Unsigned) => unsigned16(file, mask, kind, o),
            (Width::Half, Sign::Signed) => signed16(file, mask, kind, o),
            (Width::Word, Sign::Unsigned) => unsigned32(file, mask, kind, o),
            (Width::Word, Sign::Signed) => signed32(file, mask, kind, o),
            (Width::Double, Sign::Unsigned) => unsigned64(file, mask, kind, o),
            (Width::Double, Sign::Signed) => signed64(file, mask, kind, o),
        }
    }
}

/// A bit field, for a start and a length of which only the low bytes count.
trait Field: Copy {
    fn field(self, start: u32, length: u32) -> Self;
    fn leading(self) -> u32;
}

macro_rules! unsigned_field {
    ($ty:ty) => {
        impl Field for $ty {
            #[inline(always)]
            fn field(self, start: u32, length: u32) -> $ty {
                let (start, length) = (start & 255, length & 255);
                let shifted = self.checked_shr(start).unwrap_or(0);
                let mask = (1 as $ty).checked_shl(length).map_or(<$ty>::MAX, |top| top.wrapping_sub(1));
                shifted & mask
            }

            #[inline(always)]
            fn leading(self) -> u32 {
                if self == 0 { u32::MAX } else { <$ty>::BITS - 1 - self.leading_zeros() }
            }
        }
    };
}

macro_rules! signed_field {
    ($ty:ty) => {
        impl Field for $ty {
            /// Filled above with the field's top bit; past the end of the word that is the word's.
            #[inline(always)]
            fn field(self, start: u32, length: u32) -> $ty {
                let (start, length) = (start & 255, length & 255);
                if length == 0 {
                    return 0;
                }
                let shifted = self >> start.min(<$ty>::BITS - 1);
                let unused = <$ty>::BITS.saturating_sub(length);
                if unused == 0 { shifted } else { shifted << unused >> unused }
            }

            #[inline(always)]
            fn leading(self) -> u32 {
                let magnitude = if self < 0 { !self } else { self };
                if magnitude == 0 { u32::MAX } else { <$ty>::BITS - 1 - magnitude.leading_zeros() }
            }
        }
    };
}

unsigned_field!(u16);
unsigned_field!(u32);
unsigned_field!(u64);
signed_field!(i16);
signed_field!(i32);
signed_field!(i64);

fn wrapped(a: u32, b: u32, by: u32) -> u64 {
    (u64::from(a) | u64::from(b) << 32) >> by
}

/// One function a type: the operations are the same words over another type and its double.
macro_rules! integer_of {
    ($name:ident, $ty:ty, $unsigned:ty, $wide:ty) => {
        #[inline(always)]
        fn $name(file: &mut File, mask: u32, kind: IntegerKind, o: Operands) {
            use IntegerKind as Kind;
            const BITS: u32 = <$ty>::BITS;
            let one = (o.to, o.a);
            let two = (o.to, o.a, o.b);
            let three = (o.to, o.a, o.b, o.c);
            let high = |a: $ty, b: $ty| ((a as $wide * b as $wide) >> BITS) as $ty;
            let low24 = |a: $ty, b: $ty| {
                let cut = |x: $ty| if BITS >= 32 { x << (BITS - 24) >> (BITS - 24) } else { x };
                cut(a).wrapping_mul(cut(b))
            };
            match kind {
                Kind::Add => zip(file, mask, two, |a: $ty, b: $ty| a.wrapping_add(b)),
                Kind::AddSaturating => zip(file, mask, two, |a: $ty, b: $ty| a.saturating_add(b)),
                Kind::Subtract => zip(file, mask, two, |a: $ty, b: $ty| a.wrapping_sub(b)),
                Kind::SubtractSaturating => zip(file, mask, two, |a: $ty, b: $ty| a.saturating_sub(b)),
                Kind::MultiplyLow => zip(file, mask, two, |a: $ty, b: $ty| a.wrapping_mul(b)),
                Kind::MultiplyHigh => zip(file, mask, two, high),
                Kind::MultiplyAddLow => {
                    zip3(file, mask, three, |a: $ty, b: $ty, c: $ty| a.wrapping_mul(b).wrapping_add(c));
                }
                Kind::MultiplyAddHigh => {
                    zip3(file, mask, three, |a: $ty, b: $ty, c: $ty| high(a, b).wrapping_add(c));
                }
                Kind::Multiply24 => zip(file, mask, two, low24),
                Kind::MultiplyAdd24 => {
                    zip3(file, mask, three, |a: $ty, b: $ty, c: $ty| low24(a, b).wrapping_add(c));
                }
                Kind::MultiplyWide | Kind::MultiplyAddWide => {
                    wide(file, mask, kind, width_of(BITS), <$ty>::MIN != 0, o)
                }
                // Division by zero has no meaning and gives all ones here.
                Kind::Divide => {
                    zip(file, mask, two, |a: $ty, b: $ty| if b == 0 { !0 } else { a.wrapping_div(b) })
                }
                Kind::Remainder => {
                    zip(file, mask, two, |a: $ty, b: $ty| if b == 0 { a } else { a.wrapping_rem(b) })
                }
                Kind::Minimum => zip(file, mask, two, |a: $ty, b: $ty| a.min(b)),
                Kind::Maximum => zip(file, mask, two, |a: $ty, b: $ty| a.max(b)),
                Kind::And => zip(file, mask, two, |a: $ty, b: $ty| a & b),
                Kind::Or => zip(file, mask, two, |a: $ty, b: $ty| a | b),
                Kind::ExclusiveOr => zip(file, mask, two, |a: $ty, b: $ty| a ^ b),
                Kind::ShiftLeft => zip(file, mask, two, |a: $ty, b: u32| if b >= BITS { 0 } else { a << b }),
                // The sign fills where there is one.
                Kind::ShiftRight => zip(file, mask, two, |a: $ty, b: u32| {
                    if b < BITS {
                        a >> b
                    } else if <$ty>::MIN == 0 {
                        0
                    } else {
                        a >> (BITS - 1)
                    }
                }),
                Kind::Not => map(file, mask, one, |a: $ty| !a),
                Kind::LogicalNot => map(file, mask, one, |a: $ty| <$ty>::from(a == 0)),
                Kind::Negate => map(file, mask, one, |a: $ty| (0 as $ty).wrapping_sub(a)),
                Kind::Absolute => {
                    map(file, mask, one, |a: $ty| if a < (0 as $ty) { (0 as $ty).wrapping_sub(a) } else { a })
                }
                Kind::PopulationCount => map(file, mask, one, |a: $ty| a.count_ones()),
                Kind::LeadingZeros => map(file, mask, one, |a: $ty| a.leading_zeros()),
                Kind::FindLeading => map(file, mask, one, |a: $ty| a.leading()),
                Kind::FindLeadingShift => map(file, mask, one, |a: $ty| {
                    let place = a.leading();
                    if place == u32::MAX { place } else { BITS - 1 - place }
                }),
                Kind::ReverseBits => map(file, mask, one, |a: $ty| a.reverse_bits()),
                Kind::ExtractBits => {
                    zip3(file, mask, three, |a: $ty, start: u32, length: u32| a.field(start, length));
                }
                Kind::DistanceAdd => {
                    zip3(file, mask, three, |a: $ty, b: $ty, c: $ty| c.wrapping_add(a.abs_diff(b) as $ty))
                }
                Kind::FunnelLeftWrap => {
                    zip3(file, mask, three, |a: u32, b: u32, c: u32| (wrapped(a, b, 32 - (c & 31))) as u32)
                }
                Kind::FunnelLeftClamp => {
                    zip3(file, mask, three, |a: u32, b: u32, c: u32| (wrapped(a, b, 32 - c.min(32))) as u32)
                }
                Kind::FunnelRightWrap => {
                    zip3(file, mask, three, |a: u32, b: u32, c: u32| wrapped(a, b, c & 31) as u32);
                }
                Kind::FunnelRightClamp => {
                    zip3(file, mask, three, |a: u32, b: u32, c: u32| wrapped(a, b, c.min(32)) as u32);
                }
            }
        }
    };
}

integer_of!(unsigned16, u16, u16, u32);
integer_of!(signed16, i16, u16, i32);
integer_of!(unsigned32, u32, u32, u64);
integer_of!(signed32, i32, u32, i64);
integer_of!(unsigned64, u64, u64, u128);
integer_of!(signed64, i64, u64, i128);

const fn width_of(bits: u32) -> Width {
    match bits {
        16 => Width::Half,
        32 => Width::Word,
        _ => Width::Double,
    }
}

/// Products as wide as both factors together. Those of 64 bits don't exist in PTX.
#[inline(always)]
fn wide(file: &mut File, mask: u32, kind: IntegerKind, width: Width, signed: bool, o: Operands) {
    let two = (o.to, o.a, o.b);
    let three = (o.to, o.a, o.b, o.c);
    if kind == IntegerKind::MultiplyWide {
        match (width, signed) {
            (Width::Half, false) => zip(file, mask, two, |a: u16, b: u16| u32::from(a) * u32::from(b)),
            (Width::Half, true) => zip(file, mask, two, |a: i16, b: i16| i32::from(a) * i32::from(b)),
            (_, false) => zip(file, mask, two, |a: u32, b: u32| u64::from(a) * u64::from(b)),
            (_, true) => zip(file, mask, two, |a: i32, b: i32| i64::from(a) * i64::from(b)),
        }
        return;
    }
    match (width, signed) {
        (Width::Half, false) => {
            zip3(file, mask, three, |a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c))
        }
        (Width::Half, true) => {
            zip3(file, mask, three, |a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c))
        }
        (_, false) => {
            zip3(file, mask, three, |a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c))
        }
        (_, true) => {
            zip3(file, mask, three, |a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c))
        }
    }
}

vectorised! {
    /// `bfi`: a's low bits over a field of b.
    fn insert_bits(file: &mut File, mask: u32, width: Width, o: Operands, length: Slot) {
        use super::lanes::Lane;
        let lengths = u32::read(file, length);
        let starts = u32::read(file, o.c);
        let field = |lane: usize, bits: u32| -> u64 {
            let (start, length) = (starts[lane] & 255, lengths[lane] & 255);
            let ones = 1_u64.checked_shl(length.min(bits)).map_or(u64::MAX, |top| top - 1);
            ones.checked_shl(start).unwrap_or(0)
        };
        if width == Width::Double {
            let (a, mut b) = (u64::read(file, o.a), u64::read(file, o.b));
            for lane in 0..32 {
                let field = field(lane, 64);
                let moved = a[lane].checked_shl(starts[lane] & 255).unwrap_or(0);
                b[lane] = (b[lane] & !field) | (moved & field);
            }
            u64::write(file, o.to, &b, mask);
        } else {
            let (a, mut b) = (u32::read(file, o.a), u32::read(file, o.b));
            for lane in 0..32 {
                let field = field(lane, 32) as u32;
                let moved = a[lane].checked_shl(starts[lane] & 255).unwrap_or(0);
                b[lane] = (b[lane] & !field) | (moved & field);
            }
            u32::write(file, o.to, &b, mask);
        }
    }
}

vectorised! {
    /// `prmt`: four bytes chosen out of eight, each perhaps its sign alone.
    fn permute(file: &mut File, mask: u32, o: Operands) {
        zip3(file, mask, (o.to, o.a, o.b, o.c), |a: u32, b: u32, selector: u32| {
            let bytes = u64::from(a) | u64::from(b) << 32;
            let mut result = 0;
            for place in 0..4 {
                let choice = selector >> (4 * place) & 15;
                let byte = (bytes >> (8 * (choice & 7))) as u8;
                let byte = if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
                result |= u32::from(byte) << (8 * place);
            }
            result
        });
    }
}

vectorised! {
    /// `lop3`: any function of three bits.
    fn logic_table(file: &mut File, mask: u32, table: u8, o: Operands) {
        zip3(file, mask, (o.to, o.a, o.b, o.c), |a: u32, b: u32, c: u32| {
            let mut result = 0;
            for entry in 0..8 {
                if table >> entry & 1 == 1 {
                    let a = if entry & 4 == 0 { !a } else { a };
                    let b = if entry & 2 == 0 { !b } else { b };
                    let c = if entry & 1 == 0 { !c } else { c };
                    result |= a & b & c;
                }
            }
            result
        });
    }
}

vectorised! {
    /// `dp4a` and `dp2a`: the sum of products with bytes, added to c.
    fn byte_products(file: &mut File, mask: u32, factors: ByteFactors, a_sign: Sign, b_sign: Sign, o: Operands) {
        let byte = |word: u32, place: u32, sign: Sign| -> i32 {
            let byte = (word >> (8 * place)) as u8;
            if sign == Sign::Signed { i32::from(byte as i8) } else { i32::from(byte) }
        };
        let half = |word: u32, place: u32| -> i32 {
            let half = (word >> (16 * place)) as u16;
            if a_sign == Sign::Signed { i32::from(half as i16) } else { i32::from(half) }
        };
        zip3(file, mask, (o.to, o.a, o.b, o.c), |a: u32, b: u32, c: i32| {
            let by_half = |first: u32| {
                (0..2).fold(c, |sum, place| {
                    sum.wrapping_add(half(a, place) * byte(b, first + place, b_sign))
                })
            };
            match factors {
                ByteFactors::Bytes => (0..4).fold(c, |sum, place| {
                    sum.wrapping_add(byte(a, place, a_sign) * byte(b, place, b_sign))
                }),
                ByteFactors::HalvesByLow => by_half(0),
                ByteFactors::HalvesByHigh => by_half(2),
            }
        });
    }
}

/// One part of a long sum; `carries` has the lanes that bring one in, and the lanes that hand one on come back.
pub(super) fn carry(file: &mut File, mask: u32, c: &Carry, carries: u32) -> u32 {
    use super::lanes::Lane;
    let bits = if c.width == Width::Double { 64 } else { 32 };
    let read = |file: &File, slot| -> [u64; 32] {
        if bits == 64 { u64::read(file, slot) } else { u32::read(file, slot).map(u64::from) }
    };
    let o = c.operands;
    let (a, b, third) = (read(file, o.a), read(file, o.b), read(file, o.c));
    let mut result = [0_u64; 32];
    let mut out = 0;
    for lane in 0..32 {
        let carry = u128::from(carries >> lane & 1);
        let (a, b, addend) = (u128::from(a[lane]), u128::from(b[lane]), u128::from(third[lane]));
        let product = if c.sign == Sign::Signed {
            let extend = |value: u128| (value as i128) << (128 - bits) >> (128 - bits);
            (extend(a) * extend(b)) as u128
        } else {
            a * b
        };
        let low = u128::from(u64::MAX >> (64 - bits));
        let sum = match c.kind {
            CarryKind::Add => a + b + carry,
            // The borrow shows above the word.
            CarryKind::Subtract => a.wrapping_sub(b + carry),
            CarryKind::MultiplyAddLow => (product & low) + addend + carry,
            CarryKind::MultiplyAddHigh => (product >> bits & low) + addend + carry,
        };
        result[lane] = (sum & low) as u64;
        out |= ((sum >> bits & 1) as u32) << lane;
    }
    if bits == 64 {
        u64::write(file, o.to, &result, mask);
    } else {
        u32::write(file, o.to, &result.map(|value| value as u32), mask);
    }
    out
}
