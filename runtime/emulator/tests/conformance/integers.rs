//! Integers and bits.

use super::{check, cut, signed, value};

/// Each integer type by name, size and sign.
const TYPES: [(&str, usize, bool); 6] = [
    ("u16", 2, false),
    ("s16", 2, true),
    ("u32", 4, false),
    ("s32", 4, true),
    ("u64", 8, false),
    ("s64", 8, true),
];

#[test]
fn sums_products_and_order() {
    for (name, size, sign) in TYPES {
        let v = |bits| value(bits, size, sign);
        let same = [size; 3];
        let bits = 8 * size as u32;
        check(&format!("add.{name} %x, %a, %b;"), same, size, |a, b, _| (v(a) + v(b)) as u64);
        check(&format!("sub.{name} %x, %a, %b;"), same, size, |a, b, _| (v(a) - v(b)) as u64);
        check(&format!("mul.lo.{name} %x, %a, %b;"), same, size, |a, b, _| v(a).wrapping_mul(v(b)) as u64);
        check(&format!("mul.hi.{name} %x, %a, %b;"), same, size, |a, b, _| {
            if sign { ((v(a) * v(b)) >> bits) as u64 } else { ((a as u128 * b as u128) >> bits) as u64 }
        });
        check(&format!("mad.lo.{name} %x, %a, %b, %c;"), same, size, |a, b, c| {
            v(a).wrapping_mul(v(b)).wrapping_add(v(c)) as u64
        });
        check(&format!("min.{name} %x, %a, %b;"), same, size, |a, b, _| v(a).min(v(b)) as u64);
        check(&format!("max.{name} %x, %a, %b;"), same, size, |a, b, _| v(a).max(v(b)) as u64);
        check(&format!("sad.{name} %x, %a, %b, %c;"), same, size, |a, b, c| {
            (v(c) + (v(a) - v(b)).abs()) as u64
        });
        // Division by zero has no meaning.
        check(&format!("or.b{bits} %b, %b, 1; div.{name} %x, %a, %b;"), same, size, |a, b, _| {
            (v(a) / v(b | 1)) as u64
        });
        check(&format!("or.b{bits} %b, %b, 1; rem.{name} %x, %a, %b;"), same, size, |a, b, _| {
            (v(a) % v(b | 1)) as u64
        });
    }
    check("mul24.lo.u32 %x, %a, %b;", [4; 3], 4, |a, b, _| (a & 0xff_ffff) * (b & 0xff_ffff));
    check("mad.hi.u32 %x, %a, %b, %c;", [4; 3], 4, |a, b, c| ((a * b) >> 32) + c);
}

#[test]
fn wide_products() {
    for (name, size, sign) in TYPES.into_iter().filter(|(_, size, _)| *size < 8) {
        let v = |bits| value(bits, size, sign);
        check(&format!("mul.wide.{name} %x, %a, %b;"), [size; 3], 2 * size, |a, b, _| (v(a) * v(b)) as u64);
        check(&format!("mad.wide.{name} %x, %a, %b, %c;"), [size, size, 2 * size], 2 * size, |a, b, c| {
            (v(a) * v(b)).wrapping_add(i128::from(c)) as u64
        });
    }
}

#[test]
fn one_operand() {
    for (name, size, _) in TYPES.into_iter().filter(|(_, _, sign)| *sign) {
        let v = |bits| value(bits, size, true);
        check(&format!("neg.{name} %x, %a;"), [size; 3], size, |a, _, _| (-v(a)) as u64);
        check(&format!("abs.{name} %x, %a;"), [size; 3], size, |a, _, _| v(a).unsigned_abs() as u64);
    }
    for size in [2, 4, 8] {
        let bits = 8 * size;
        check(&format!("not.b{bits} %x, %a;"), [size; 3], size, |a, _, _| !a);
        check(&format!("cnot.b{bits} %x, %a;"), [size; 3], size, |a, _, _| u64::from(a == 0));
    }
    for size in [4, 8] {
        let bits = 8 * size;
        let spare = 64 - bits as u32;
        check(&format!("popc.b{bits} %x, %a;"), [size; 3], 4, |a, _, _| u64::from(a.count_ones()));
        check(&format!("clz.b{bits} %x, %a;"), [size; 3], 4, move |a, _, _| {
            u64::from(a.leading_zeros() - spare)
        });
        check(&format!("brev.b{bits} %x, %a;"), [size; 3], size, move |a, _, _| a.reverse_bits() >> spare);
        for (sign, name) in [(false, 'u'), (true, 's')] {
            let place = move |a: u64| {
                let magnitude = if sign && signed(a, size) < 0 { cut(!a, size) } else { a };
                if magnitude == 0 { u64::MAX } else { u64::from(63 - magnitude.leading_zeros()) }
            };
            check(&format!("bfind.{name}{bits} %x, %a;"), [size; 3], 4, move |a, _, _| place(a));
            check(&format!("bfind.shiftamt.{name}{bits} %x, %a;"), [size; 3], 4, move |a, _, _| {
                if place(a) == u64::MAX { u64::MAX } else { bits as u64 - 1 - place(a) }
            });
        }
    }
}

#[test]
fn logic_and_shifts() {
    for size in [2, 4, 8] {
        let bits = 8 * size as u64;
        let both = [size; 3];
        check(&format!("and.b{bits} %x, %a, %b;"), both, size, |a, b, _| a & b);
        check(&format!("or.b{bits} %x, %a, %b;"), both, size, |a, b, _| a | b);
        check(&format!("xor.b{bits} %x, %a, %b;"), both, size, |a, b, _| a ^ b);
        let shift = [size, 4, size];
        check(&format!("shl.b{bits} %x, %a, %b;"), shift, size, |a, b, _| if b < bits { a << b } else { 0 });
        check(&format!("shr.u{bits} %x, %a, %b;"), shift, size, |a, b, _| if b < bits { a >> b } else { 0 });
        check(&format!("shr.s{bits} %x, %a, %b;"), shift, size, |a, b, _| {
            (signed(a, size) >> b.min(bits - 1)) as u64
        });
    }
    for (side, left) in [("l", true), ("r", false)] {
        for (mode, wraps) in [("wrap", true), ("clamp", false)] {
            check(&format!("shf.{side}.{mode}.b32 %x, %a, %b, %c;"), [4; 3], 4, |a, b, c| {
                let both = u128::from(b << 32 | a);
                let by = if wraps { c & 31 } else { c.min(32) };
                if left { (both << by >> 32) as u64 } else { (both >> by) as u64 }
            });
        }
    }
    for table in [0x00, 0x80, 0x96, 0xca, 0xe8, 0x1b] {
        check(&format!("lop3.b32 %x, %a, %b, %c, {table};"), [4; 3], 4, move |a, b, c| {
            (0..32).fold(0, |sum, bit| {
                let entry = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
                sum | (table as u64 >> entry & 1) << bit
            })
        });
    }
}

#[test]
fn bit_fields() {
    for (size, bits) in [(4, 32_u64), (8, 64)] {
        let field = move |start: u64, length: u64| (start & 255, length & 255);
        check(&format!("bfe.u{bits} %x, %a, %b, %c;"), [size, 4, 4], size, move |a, b, c| {
            let (start, length) = field(b, c);
            (0..length.min(bits)).fold(0, |sum, bit| {
                if start + bit < bits { sum | (a >> (start + bit) & 1) << bit } else { sum }
            })
        });
        check(&format!("bfe.s{bits} %x, %a, %b, %c;"), [size, 4, 4], size, move |a, b, c| {
            let (start, length) = field(b, c);
            let sign = if length == 0 { 0 } else { a >> (start + length - 1).min(bits - 1) & 1 };
            (0..bits).fold(0, |sum, bit| {
                let inside = bit < length && start + bit < bits;
                sum | (if inside { a >> (start + bit) & 1 } else { sign }) << bit
            })
        });
        check(
            &format!("mov.b32 %r1, %c; bfi.b{bits} %x, %a, %b, %r1, 7;"),
            [size, size, 4],
            size,
            move |a, b, c| {
                let (start, length) = field(c, 7);
                (0..bits).fold(0, |sum, bit| {
                    let inside = bit >= start && bit - start < length;
                    sum | (if inside { a >> (bit - start) & 1 } else { b >> bit & 1 }) << bit
                })
            },
        );
    }
}

#[test]
fn bytes() {
    check("prmt.b32 %x, %a, %b, %c;", [4; 3], 4, |a, b, c| {
        let bytes = [a.to_le_bytes()[..4].to_vec(), b.to_le_bytes()[..4].to_vec()].concat();
        (0..4).fold(0, |sum, place| {
            let choice = c >> (4 * place) & 15;
            let byte = bytes[(choice & 7) as usize];
            let byte = if choice & 8 == 0 {
                byte
            } else if byte & 128 == 0 {
                0
            } else {
                255
            };
            sum | u64::from(byte) << (8 * place)
        })
    });
    for (name, sign) in [("u32", false), ("s32", true)] {
        check(&format!("dp4a.{name}.{name} %x, %a, %b, %c;"), [4; 3], 4, move |a, b, c| {
            let byte = |word: u64, place: usize| value(u64::from(word.to_le_bytes()[place]), 1, sign);
            ((0..4).map(|place| byte(a, place) * byte(b, place)).sum::<i128>() + i128::from(c)) as u64
        });
        for (half, first) in [("lo", 0), ("hi", 2)] {
            check(&format!("dp2a.{half}.{name}.{name} %x, %a, %b, %c;"), [4; 3], 4, move |a, b, c| {
                let byte = |place: usize| value(u64::from(b.to_le_bytes()[first + place]), 1, sign);
                let half = |place: usize| value(a >> (16 * place) & 0xffff, 2, sign);
                (half(0) * byte(0) + half(1) * byte(1) + i128::from(c)) as u64
            });
        }
    }
}

#[test]
fn carries() {
    // A sum of 128 bits in two parts, whose upper half comes out.
    check("add.cc.u64 %d0, %a, %b; addc.u64 %x, %c, %c;", [8; 3], 8, |a, b, c| {
        c.wrapping_mul(2).wrapping_add(u64::from(a.checked_add(b).is_none()))
    });
    check("sub.cc.u32 %r1, %a, %b; subc.u32 %x, %c, 0;", [4; 3], 4, |a, b, c| {
        c.wrapping_sub(u64::from(b > a))
    });
    check("mad.lo.cc.u32 %r1, %a, %b, %c; madc.hi.u32 %x, %a, %b, 0;", [4; 3], 4, |a, b, c| {
        ((u128::from(a) * u128::from(b) + u128::from(c)) >> 32) as u64
    });
    check("add.sat.s32 %x, %a, %b;", [4; 3], 4, |a, b, _| {
        (signed(a, 4) + signed(b, 4)).clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u64
    });
}

#[test]
fn comparisons_and_selection() {
    for (name, size, sign) in TYPES {
        let v = move |bits| value(bits, size, sign);
        type Relation = fn(&i128, &i128) -> bool;
        let relations: [(&str, Relation); 6] = [
            ("eq", i128::eq),
            ("ne", i128::ne),
            ("lt", i128::lt),
            ("le", i128::le),
            ("gt", i128::gt),
            ("ge", i128::ge),
        ];
        for (relation, holds) in relations {
            let body = format!(
                "setp.{relation}.{name} %p|%q, %a, %b; selp.b{} %x, %a, %b, %p; @%q mov.b{} %x, %c;",
                8 * size,
                8 * size
            );
            check(&body, [size; 3], size, move |a, b, c| if holds(&v(a), &v(b)) { a } else { c });
        }
    }
    let body = "setp.lt.u32 %q, %a, %c; setp.gt.and.s32 %p, %a, %b, !%q; selp.u32 %x, 1, 0, %p;";
    check(body, [4; 3], 4, |a, b, c| u64::from(signed(a, 4) > signed(b, 4) && a >= c));
    check(
        "set.le.u32.s32 %x, %a, %b;",
        [4; 3],
        4,
        |a, b, _| if signed(a, 4) <= signed(b, 4) { u64::MAX } else { 0 },
    );
    let body = "setp.ne.s32 %p, %a, 0; setp.ne.s32 %q, %b, 0; xor.pred %p, %p, %q; not.pred %q, %q; or.pred %p, %p, %q; \
                and.pred %p, %p, !%q; selp.b32 %x, 1, 0, %p;";
    check(body, [4; 3], 4, |a, b, _| {
        let (p, q) = (a != 0, b != 0);
        let not_q = !q;
        u64::from(((p ^ q) || not_q) && q)
    });
}
