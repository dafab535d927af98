//! `cvt` between all types, `mov` with vectors.

use super::{check, check_by, cut, value};
use half::{bf16, f16};

const INTEGERS: [(&str, usize, bool); 8] = [
    ("u8", 1, false),
    ("s8", 1, true),
    ("u16", 2, false),
    ("s16", 2, true),
    ("u32", 4, false),
    ("s32", 4, true),
    ("u64", 8, false),
    ("s64", 8, true),
];

fn range(size: usize, sign: bool) -> (i128, i128) {
    let bits = 8 * size as u32;
    if sign { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The size of the register that holds a type.
fn held(size: usize) -> usize {
    size.max(2)
}

#[test]
fn integers_to_integers() {
    for (from, from_size, from_sign) in INTEGERS {
        for (to, to_size, to_sign) in INTEGERS {
            let sizes = [held(from_size); 3];
            // What is narrower than its register is filled above by its sign.
            let fill = |value: i128| {
                if to_size == 1 && to_sign {
                    i64::from(value as i8) as u64
                } else {
                    cut(value as u64, to_size)
                }
            };
            check(&format!("cvt.{to}.{from} %x, %a;"), sizes, held(to_size), |a, _, _| {
                fill(value(a, from_size, from_sign))
            });
            let (least, most) = range(to_size, to_sign);
            check(&format!("cvt.sat.{to}.{from} %x, %a;"), sizes, held(to_size), |a, _, _| {
                fill(value(a, from_size, from_sign).clamp(least, most))
            });
        }
    }
}

#[test]
fn floats_to_integers() {
    type Round = fn(f64) -> f64;
    let modes: [(&str, Round); 4] =
        [("rni", f64::round_ties_even), ("rzi", f64::trunc), ("rmi", f64::floor), ("rpi", f64::ceil)];
    type Widen = fn(u64) -> f64;
    let sources: [(&str, usize, Widen); 4] = [
        ("f16", 2, |bits| f16::from_bits(bits as u16).to_f64()),
        ("bf16", 2, |bits| bf16::from_bits(bits as u16).to_f64()),
        ("f32", 4, |bits| f64::from(f32::from_bits(bits as u32))),
        ("f64", 8, f64::from_bits),
    ];
    for (from, size, widen) in sources {
        for (to, to_size, sign) in INTEGERS.into_iter().filter(|(_, size, _)| *size > 1) {
            for (mode, round) in modes {
                let (least, most) = range(to_size, sign);
                check(&format!("cvt.{mode}.{to}.{from} %x, %a;"), [size; 3], to_size, |a, _, _| {
                    let value = round(widen(a));
                    if value.is_nan() { 0 } else { (value as i128).clamp(least, most) as u64 }
                });
            }
        }
    }
}

#[test]
fn integers_to_floats() {
    for (from, size, sign) in INTEGERS {
        let sizes = [held(size); 3];
        let v = |a: u64| value(a, size, sign);
        check(&format!("cvt.rn.f32.{from} %x, %a;"), sizes, 4, |a, _, _| u64::from((v(a) as f32).to_bits()));
        check(&format!("cvt.rn.f64.{from} %x, %a;"), sizes, 8, |a, _, _| (v(a) as f64).to_bits());
        // The greatest f32 that isn't above, the least that isn't below.
        let down = |a: u64| {
            let near = v(a) as f32;
            if near as i128 > v(a) { near.next_down() } else { near }
        };
        let up = |a: u64| {
            let near = v(a) as f32;
            if (near as i128) < v(a) { near.next_up() } else { near }
        };
        check(&format!("cvt.rm.f32.{from} %x, %a;"), sizes, 4, |a, _, _| u64::from(down(a).to_bits()));
        check(&format!("cvt.rp.f32.{from} %x, %a;"), sizes, 4, |a, _, _| u64::from(up(a).to_bits()));
        check(&format!("cvt.rz.f32.{from} %x, %a;"), sizes, 4, |a, _, _| {
            u64::from(if v(a) < 0 { up(a) } else { down(a) }.to_bits())
        });
    }
    check("cvt.rn.f16.s32 %x, %a;", [4; 3], 2, |a, _, _| {
        // Every integer of 32 bits is exact in f64, and f16 is finite below 65520.
        let value = f64::from(a as u32 as i32);
        u64::from(if value.abs() >= 65_520.0 {
            f16::INFINITY.to_bits() | ((value < 0.0) as u16) << 15
        } else {
            f16::from_f32(value as f32).to_bits()
        })
    });
}

fn both_nan(found: u64, expected: u64, exponent: u64) -> bool {
    let nan = |bits: u64| bits & exponent == exponent && bits & !exponent & (exponent - 1) != 0;
    found == expected || (nan(found & 0x7fff_ffff_ffff_ffff) && nan(expected & 0x7fff_ffff_ffff_ffff))
}

fn single(found: u64, expected: u64) -> bool {
    both_nan(found, expected, 0x7f80_0000)
}

fn double(found: u64, expected: u64) -> bool {
    both_nan(found, expected, 0x7ff0_0000_0000_0000)
}

fn short(found: u64, expected: u64) -> bool {
    both_nan(found, expected, 0x7c00)
}

fn brain(found: u64, expected: u64) -> bool {
    both_nan(found, expected, 0x7f80)
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn b(value: f32) -> u64 {
    u64::from(value.to_bits())
}

#[test]
fn floats_to_wider_and_narrower_floats() {
    let to_short = |value: f32| u64::from(f16::from_f32(value).to_bits());
    let to_brain = |value: f32| u64::from(bf16::from_f32(value).to_bits());
    let of_brain = |bits: u64| bf16::from_bits(bits as u16).to_f32();
    check_by("cvt.f32.f16 %x, %a;", [2; 3], 4, |a, _, _| b(f16::from_bits(a as u16).to_f32()), single);
    check_by("cvt.f32.bf16 %x, %a;", [2; 3], 4, |a, _, _| a << 16, single);
    check_by("cvt.f64.f32 %x, %a;", [4; 3], 8, |a, _, _| f64::from(f(a)).to_bits(), double);
    check_by("cvt.rn.f32.f64 %x, %a;", [8; 3], 4, |a, _, _| b(f64::from_bits(a) as f32), single);
    check_by("cvt.rn.f16.f32 %x, %a;", [4; 3], 2, |a, _, _| to_short(f(a)), short);
    check_by("cvt.rn.bf16.f32 %x, %a;", [4; 3], 2, |a, _, _| to_brain(f(a)), brain);
    check_by("cvt.rz.bf16.f32 %x, %a;", [4; 3], 2, |a, _, _| a >> 16, brain);
    check_by("cvt.rn.f16.bf16 %x, %a;", [2; 3], 2, |a, _, _| to_short(of_brain(a)), short);
}

#[test]
fn floats_to_floats_of_the_same_width() {
    let clamped = |x: f32| if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 };
    let flushed = |a: u64| if f(a).is_subnormal() { a & 0x8000_0000 } else { a };
    let to_tf32 = |a: u64| if f(a).is_finite() { (a + 0x1000) & 0xffff_e000 } else { a };
    check_by("cvt.sat.f32.f32 %x, %a;", [4; 3], 4, |a, _, _| b(clamped(f(a))), |x, y| f(x) == f(y));
    check_by("cvt.ftz.f32.f32 %x, %a;", [4; 3], 4, |a, _, _| flushed(a), single);
    check_by("cvt.rni.f32.f32 %x, %a;", [4; 3], 4, |a, _, _| b(f(a).round_ties_even()), single);
    check_by("cvt.rzi.f32.f32 %x, %a;", [4; 3], 4, |a, _, _| b(f(a).trunc()), single);
    check_by("cvt.rmi.f32.f32 %x, %a;", [4; 3], 4, |a, _, _| b(f(a).floor()), single);
    check_by("cvt.rpi.f64.f64 %x, %a;", [8; 3], 8, |a, _, _| f64::from_bits(a).ceil().to_bits(), double);
    check_by("cvt.rna.tf32.f32 %x, %a;", [4; 3], 4, |a, _, _| to_tf32(a), single);
}

#[test]
fn packed() {
    let halves = |exponent: u64| {
        move |found: u64, expected: u64| {
            both_nan(found & 0xffff, expected & 0xffff, exponent)
                && both_nan(found >> 16, expected >> 16, exponent)
        }
    };
    check_by(
        "cvt.rn.bf16x2.f32 %x, %a, %b;",
        [4; 3],
        4,
        |a, b, _| u64::from(bf16::from_f32(f(a)).to_bits()) << 16 | u64::from(bf16::from_f32(f(b)).to_bits()),
        halves(0x7f80),
    );
    check_by(
        "cvt.rn.f16x2.f32 %x, %a, %b;",
        [4; 3],
        4,
        |a, b, _| u64::from(f16::from_f32(f(a)).to_bits()) << 16 | u64::from(f16::from_f32(f(b)).to_bits()),
        halves(0x7c00),
    );
    check_by(
        "cvt.rn.relu.bf16x2.f32 %x, %a, %b;",
        [4; 3],
        4,
        |a, b, _| {
            let relu = |x: f32| bf16::from_f32(if x.is_nan() { x } else { x.max(0.0) + 0.0 });
            u64::from(relu(f(a)).to_bits()) << 16 | u64::from(relu(f(b)).to_bits())
        },
        halves(0x7f80),
    );
}

#[test]
fn moves_with_vectors() {
    check("mov.b32 {%h0, %h1}, %a; mov.b32 %x, {%h1, %h0};", [4; 3], 4, |a, _, _| a >> 16 | a << 16);
    check("mov.b64 {%r1, %r2}, %a; mov.b64 %x, {%r2, %r1};", [8; 3], 8, |a, _, _| a.rotate_left(32));
    check("mov.b64 {_, %r2}, %a; mov.b32 %x, %r2;", [8; 3], 4, |a, _, _| a >> 32);
    check("mov.b64 {%h0, %h1, %h2, %h3}, %a; mov.b64 %x, {%h3, %h2, %h1, %h0};", [8; 3], 8, |a, _, _| {
        (0..4).fold(0, |sum, part| sum | (a >> (16 * part) & 0xffff) << (48 - 16 * part))
    });
    check("mov.f32 %x, 0f40490FDB;", [4; 3], 4, |_, _, _| 0x4049_0fdb);
    check("mov.f64 %x, 0d400921FB54442D18;", [8; 3], 8, |_, _, _| 0x4009_21fb_5444_2d18);
    check("mov.u64 %x, -2;", [8; 3], 8, |_, _, _| -2_i64 as u64);
    check("cvt.u32.u16 %x, %a;", [4; 3], 4, |a, _, _| a & 0xffff);
}
