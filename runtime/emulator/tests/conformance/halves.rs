//! f16 and bf16, single and in pairs.

use super::check_by;
use half::{bf16, f16};

/// A form of half: its name, its values as f64, and the nearest half to an f64 value with ties to even, found by trying neighbours.
struct Form {
    name: &'static str,
    widen: fn(u64) -> f64,
    narrow: fn(f64) -> u64,
}

fn f16_value(bits: u64) -> f64 {
    f16::from_bits(bits as u16).to_f64()
}

fn bf16_value(bits: u64) -> f64 {
    bf16::from_bits(bits as u16).to_f64()
}

/// The nearest of all halves: the magnitude's place among them is found by halving.
fn nearest(value: f64, infinity: u64, widen: fn(u64) -> f64) -> u64 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = u64::from(value.is_sign_negative()) << 15;
    let magnitude = value.abs();
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if widen(middle) <= magnitude { low = middle } else { high = middle }
    }
    // What comes after the greatest number would be twice its power of two.
    let above = if high == infinity { 2.0 * widen(low) - widen(low - 1) } else { widen(high) };
    let (down, up) = (magnitude - widen(low), above - magnitude);
    let up_wins = magnitude >= above || up < down || (up == down && low & 1 == 1);
    sign | if up_wins { high } else { low }
}

const FORMS: [Form; 2] = [
    Form { name: "f16", widen: f16_value, narrow: |value| nearest(value, 0x7c00, f16_value) },
    Form { name: "bf16", widen: bf16_value, narrow: |value| nearest(value, 0x7f80, bf16_value) },
];

fn is_nan(bits: u64, form: &Form) -> bool {
    (form.widen)(bits).is_nan()
}

/// Tries an instruction on single halves and on pairs.
fn check_form(form: &Form, opcode: &str, operands: &str, define: impl Fn(f64, f64, f64) -> f64) {
    let name = form.name;
    let one =
        |x: u64, y: u64, z: u64| (form.narrow)(define((form.widen)(x), (form.widen)(y), (form.widen)(z)));
    let same =
        |found: u64, expected: u64| found == expected || (is_nan(found, form) && is_nan(expected, form));
    check_by(&format!("{opcode}.{name} {operands};"), [2; 3], 2, one, same);
    let both = |x: u64, y: u64, z: u64| {
        let part = |shift: u32| one(x >> shift & 0xffff, y >> shift & 0xffff, z >> shift & 0xffff);
        part(0) | part(16) << 16
    };
    let same_both = |found: u64, expected: u64| {
        same(found & 0xffff, expected & 0xffff) && same(found >> 16, expected >> 16)
    };
    check_by(&format!("{opcode}.{name}x2 {operands};"), [4; 3], 4, both, same_both);
}

#[test]
fn sums_and_products() {
    for form in &FORMS {
        check_form(form, "add", "%x, %a, %b", |x, y, _| x + y);
        check_form(form, "sub", "%x, %a, %b", |x, y, _| x - y);
        check_form(form, "mul", "%x, %a, %b", |x, y, _| x * y);
    }
}

/// In f64 the product is exact and the sum is not. What the sum loses only decides ties, so the value is moved off by a trace of it.
#[test]
fn fused_products() {
    for form in &FORMS {
        check_form(form, "fma.rn", "%x, %a, %b, %c", |x, y, z| {
            let (product, value) = (x * y, x * y + z);
            let of_z = value - product;
            let lost = (product - (value - of_z)) + (z - of_z);
            if lost == 0.0 || !value.is_finite() {
                return value;
            }
            value + (value * 1e-15).abs().copysign(lost)
        });
    }
}

#[test]
fn order_and_signs() {
    let min = |x: f64, y: f64| match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ if x == y => f64::from_bits(x.to_bits() | y.to_bits()),
        _ => x.min(y),
    };
    let max = |x: f64, y: f64| match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ if x == y => f64::from_bits(x.to_bits() & y.to_bits()),
        _ => x.max(y),
    };
    for form in &FORMS {
        check_form(form, "min", "%x, %a, %b", |x, y, _| min(x, y));
        check_form(form, "max", "%x, %a, %b", |x, y, _| max(x, y));
        check_form(form, "max.NaN", "%x, %a, %b", |x, y, _| {
            if x.is_nan() || y.is_nan() { f64::NAN } else { max(x, y) }
        });
        check_form(form, "neg", "%x, %a", |x, _, _| -x);
        check_form(form, "abs", "%x, %a", |x, _, _| x.abs());
        check_form(form, "fma.rn.relu", "%x, %a, %b, 0", |x, y, _| {
            if (x * y).is_nan() { f64::NAN } else { max(x * y, 0.0) }
        });
    }
}

/// Within two units of the last place.
#[test]
fn approximate_functions() {
    for form in &FORMS {
        let flush = if form.name == "bf16" { ".ftz" } else { "" };
        for (opcode, function) in [
            (format!("ex2.approx{flush}"), f64::exp2 as fn(f64) -> f64),
            ("tanh.approx".to_owned(), f64::tanh),
        ] {
            let near = |found: u64, expected: u64| {
                found.abs_diff(expected) <= 2 || (is_nan(found, form) && is_nan(expected, form))
            };
            let define = |x: u64, _, _| (form.narrow)(function((form.widen)(x)));
            check_by(&format!("{opcode}.{} %x, %a;", form.name), [2; 3], 2, define, near);
        }
    }
}

#[test]
fn comparisons() {
    for form in &FORMS {
        let name = form.name;
        let less = |x: u64, y: u64| (form.widen)(x) < (form.widen)(y);
        let exact = |found, expected| found == expected;
        check_by(
            &format!("setp.lt.{name} %p, %a, %b; selp.u32 %x, 1, 0, %p;"),
            [2; 3],
            4,
            |x, y, _| u64::from(less(x, y)),
            exact,
        );
        let body = format!(
            "setp.lt.{name}x2 %p|%q, %a, %b; selp.u32 %r1, 1, 0, %p; selp.u32 %x, 2, 0, %q; or.b32 %x, %x, %r1;"
        );
        let both = |x: u64, y: u64| (less(x & 0xffff, y & 0xffff), less(x >> 16, y >> 16));
        check_by(&body, [4; 3], 4, |x, y, _| u64::from(both(x, y).0) | u64::from(both(x, y).1) << 1, exact);
        let mask = |x, y| {
            let (low, high) = both(x, y);
            (if low { 0xffff } else { 0 }) | if high { 0xffff_0000 } else { 0 }
        };
        check_by(&format!("set.lt.u32.{name}x2 %x, %a, %b;"), [4; 3], 4, |x, y, _| mask(x, y), exact);
        let one = (form.narrow)(1.0);
        let ones = |x, y| mask(x, y) & (one | one << 16);
        check_by(&format!("set.lt.{name}x2.{name}x2 %x, %a, %b;"), [4; 3], 4, |x, y, _| ones(x, y), exact);
    }
}
