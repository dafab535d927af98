//! f32 and f64.

use super::{check, check_by};

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn b(value: f32) -> u64 {
    u64::from(value.to_bits())
}

/// Equal bits, or both not a number.
fn same(found: u64, expected: u64) -> bool {
    found == expected || (f(found).is_nan() && f(expected).is_nan())
}

fn same_wide(found: u64, expected: u64) -> bool {
    found == expected || (d(found).is_nan() && d(expected).is_nan())
}

fn check32(body: &str, define: impl Fn(f32, f32, f32) -> f32) {
    check_by(body, [4; 3], 4, |x, y, z| b(define(f(x), f(y), f(z))), same);
}

fn check64(body: &str, define: impl Fn(f64, f64, f64) -> f64) {
    check_by(body, [8; 3], 8, |x, y, z| define(d(x), d(y), d(z)).to_bits(), same_wide);
}

/// Within a share of the value, or both the same infinity or not a number.
fn check_near(body: &str, share: f64, define: impl Fn(f64) -> f64) {
    let near = |found: u64, expected: u64| {
        let (found, expected) = (f64::from(f(found)), f64::from(f(expected)));
        let gap = (found - expected).abs();
        found == expected
            || gap <= share * expected.abs()
            || gap < 1e-44
            || (found.is_nan() && expected.is_nan())
    };
    check_by(body, [4; 3], 4, |x, _, _| b(define(f64::from(f(x))) as f32), near);
}

fn plain_min(x: f32, y: f32) -> f32 {
    match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ if x == y => f32::from_bits(x.to_bits() | y.to_bits()),
        _ => {
            if x < y {
                x
            } else {
                y
            }
        }
    }
}

fn plain_max(x: f32, y: f32) -> f32 {
    match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ if x == y => f32::from_bits(x.to_bits() & y.to_bits()),
        _ => {
            if x > y {
                x
            } else {
                y
            }
        }
    }
}

#[test]
fn exactly_rounded() {
    check32("add.f32 %x, %a, %b;", |x, y, _| x + y);
    check32("sub.rn.f32 %x, %a, %b;", |x, y, _| x - y);
    check32("mul.f32 %x, %a, %b;", |x, y, _| x * y);
    check32("div.rn.f32 %x, %a, %b;", |x, y, _| x / y);
    check32("fma.rn.f32 %x, %a, %b, %c;", f32::mul_add);
    check32("sqrt.rn.f32 %x, %a;", |x, _, _| x.sqrt());
    check32("rcp.rn.f32 %x, %a;", |x, _, _| 1.0 / x);
    check64("add.f64 %x, %a, %b;", |x, y, _| x + y);
    check64("sub.f64 %x, %a, %b;", |x, y, _| x - y);
    check64("mul.f64 %x, %a, %b;", |x, y, _| x * y);
    check64("div.rn.f64 %x, %a, %b;", |x, y, _| x / y);
    check64("fma.rn.f64 %x, %a, %b, %c;", f64::mul_add);
    check64("sqrt.rn.f64 %x, %a;", |x, _, _| x.sqrt());
    check64("abs.f64 %x, %a;", |x, _, _| x.abs());
    check64("neg.f64 %x, %a;", |x, _, _| -x);
}

#[test]
fn order_and_signs() {
    check32("min.f32 %x, %a, %b;", |x, y, _| plain_min(x, y));
    check32("max.f32 %x, %a, %b;", |x, y, _| plain_max(x, y));
    check32(
        "max.NaN.f32 %x, %a, %b;",
        |x, y, _| if x.is_nan() || y.is_nan() { f32::NAN } else { plain_max(x, y) },
    );
    check32(
        "min.NaN.f32 %x, %a, %b;",
        |x, y, _| if x.is_nan() || y.is_nan() { f32::NAN } else { plain_min(x, y) },
    );
    check32("neg.f32 %x, %a;", |x, _, _| -x);
    check32("abs.f32 %x, %a;", |x, _, _| x.abs());
    check32("copysign.f32 %x, %a, %b;", |x, y, _| y.copysign(x));
    check64("max.f64 %x, %a, %b;", |x, y, _| {
        if x.is_nan() {
            y
        } else if y.is_nan() || x > y {
            x
        } else if x < y {
            y
        } else {
            d(x.to_bits() & y.to_bits())
        }
    });
}

#[test]
fn flushing_and_clamping() {
    let flush = |x: f32| if x.is_subnormal() { 0.0_f32.copysign(x) } else { x };
    let clamp = |x: f32| if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 };
    check32("add.ftz.f32 %x, %a, %b;", |x, y, _| flush(flush(x) + flush(y)));
    check32("mul.ftz.f32 %x, %a, %b;", |x, y, _| flush(flush(x) * flush(y)));
    check32("fma.rn.ftz.f32 %x, %a, %b, %c;", |x, y, z| flush(flush(x).mul_add(flush(y), flush(z))));
    check32("add.sat.f32 %x, %a, %b;", |x, y, _| clamp(x + y));
    check32("fma.rn.sat.f32 %x, %a, %b, %c;", |x, y, z| clamp(x.mul_add(y, z)));
}

/// The exact sum or product lies between a value and its neighbour: found by exact arithmetic in f64 where that holds it, so the operands
/// are cut to twelve bits and to exponents near one.
#[test]
fn directed_rounding() {
    let trim = "and.b32 %a, %a, 0x807ff000; or.b32 %a, %a, 0x3f800000; and.b32 %b, %b, 0x80fff000; or.b32 %b, %b, 0x3f000000; \
                and.b32 %c, %c, 0x80fff000; or.b32 %c, %c, 0x33000000;";
    let trimmed = |x: u64, keep: u64, set: u64| f64::from(f(x & keep | set));
    type Pick = fn(f64, f32) -> f32;
    let modes: [(&str, Pick); 3] =
        [
            ("rz", |exact, near| {
                if f64::from(near).abs() > exact.abs() { f32::from_bits(near.to_bits() - 1) } else { near }
            }),
            ("rm", |exact, near| if f64::from(near) > exact { near.next_down() } else { near }),
            ("rp", |exact, near| if f64::from(near) < exact { near.next_up() } else { near }),
        ];
    for (mode, pick) in modes {
        for (body, product) in [
            (format!("{trim} add.{mode}.f32 %x, %a, %c;"), false),
            (format!("{trim} fma.{mode}.f32 %x, %a, %b, %c;"), true),
        ] {
            check(&body, [4; 3], 4, |x, y, z| {
                let x = trimmed(x, 0x807f_f000, 0x3f80_0000);
                let y = trimmed(y, 0x80ff_f000, 0x3f00_0000);
                let z = trimmed(z, 0x80ff_f000, 0x3300_0000);
                let exact = if product { x * y + z } else { x + z };
                b(pick(exact, exact as f32))
            });
        }
    }
}

#[test]
fn approximate_functions() {
    check_near("ex2.approx.f32 %x, %a;", 3e-7, f64::exp2);
    check_near("lg2.approx.f32 %x, %a;", 3e-7, f64::log2);
    check_near("rsqrt.approx.f32 %x, %a;", 2e-7, |x| 1.0 / x.sqrt());
    check_near("sqrt.approx.f32 %x, %a;", 2e-7, f64::sqrt);
    check_near("rcp.approx.f32 %x, %a;", 2e-7, |x| 1.0 / x);
    check_near("tanh.approx.f32 %x, %a;", 5e-7, f64::tanh);
    check_near("div.full.f32 %x, %a, 3.0;", 2e-7, |x| x / 3.0);
    // Of large arguments hardware makes nothing useful; here the whole range is reduced.
    check_near("sin.approx.f32 %x, %a;", 1e-6, f64::sin);
    check_near("cos.approx.f32 %x, %a;", 1e-6, f64::cos);
    let near =
        |found: u64, expected: u64| same_wide(found, expected) || (d(found) / d(expected) - 1.0).abs() < 1e-6;
    check_by("rcp.approx.ftz.f64 %x, %a;", [8; 3], 8, |x, _, _| (1.0 / d(x)).to_bits(), near);
    check_by("rsqrt.approx.ftz.f64 %x, %a;", [8; 3], 8, |x, _, _| (1.0 / d(x).sqrt()).to_bits(), near);
}

#[test]
fn comparisons() {
    type Relation = fn(f32, f32) -> bool;
    let relations: [(&str, Relation); 14] = [
        ("eq", |x, y| x == y),
        ("ne", |x, y| x < y || y < x),
        ("lt", |x, y| x < y),
        ("le", |x, y| x <= y),
        ("gt", |x, y| x > y),
        ("ge", |x, y| x >= y),
        ("equ", |x, y| x == y || x.is_nan() || y.is_nan()),
        ("neu", |x, y| x != y),
        ("ltu", |x, y| x < y || x.is_nan() || y.is_nan()),
        ("leu", |x, y| x <= y || x.is_nan() || y.is_nan()),
        ("gtu", |x, y| x > y || x.is_nan() || y.is_nan()),
        ("geu", |x, y| x >= y || x.is_nan() || y.is_nan()),
        ("num", |x, y| !x.is_nan() && !y.is_nan()),
        ("nan", |x, y| x.is_nan() || y.is_nan()),
    ];
    for (name, holds) in relations {
        check(&format!("setp.{name}.f32 %p, %a, %b; selp.u32 %x, 1, 0, %p;"), [4; 3], 4, |x, y, _| {
            u64::from(holds(f(x), f(y)))
        });
    }
    check("set.gtu.f32.f32 %x, %a, %b;", [4; 3], 4, |x, y, _| {
        if f(x) > f(y) || f(x).is_nan() || f(y).is_nan() { b(1.0) } else { 0 }
    });
    check("setp.lt.f64 %p, %a, %b; selp.u32 %x, 1, 0, %p;", [8; 3], 4, |x, y, _| u64::from(d(x) < d(y)));
    check("setp.gt.ftz.f32 %p, %a, 0f00000000; selp.u32 %x, 1, 0, %p;", [4; 3], 4, |x, _, _| {
        u64::from(f(x) >= f32::MIN_POSITIVE)
    });
    check("testp.finite.f32 %p, %a; selp.u32 %x, 1, 0, %p;", [4; 3], 4, |x, _, _| {
        u64::from(f(x).is_finite())
    });
    check("testp.notanumber.f64 %p, %a; selp.u32 %x, 1, 0, %p;", [8; 3], 4, |x, _, _| {
        u64::from(d(x).is_nan())
    });
    check("testp.subnormal.f32 %p, %a; selp.u32 %x, 1, 0, %p;", [4; 3], 4, |x, _, _| {
        u64::from(f(x).is_subnormal())
    });
}
