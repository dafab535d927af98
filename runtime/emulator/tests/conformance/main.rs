//! Opcode by opcode: hand-written PTX of one instruction over edge values and random ones, against the instruction's definition written out
//! here in plain Rust.

#[path = "../support/mod.rs"]
mod support;

mod control;
mod conversions;
mod floats;
mod groups;
mod halves;
mod integers;
mod lanes;
mod matrices;
mod memory;
mod phases;
mod refusals;

use dtlc_emulator::{Argument, LaunchShape};
use support::{Bench, Numbers};

/// Lanes that each instruction is tried on.
const COUNT: usize = 256;

/// A kernel of one instruction: a, b and c of these sizes in bytes are read by each thread into `%a`, `%b`, `%c`, and `%x` is stored.
/// Predicates `%p`, `%q` and scratch `%r…` are there.
fn kernel_of(body: &str, sizes: [usize; 3], result: usize) -> String {
    let loads: String = ["a", "b", "c"]
        .iter()
        .zip(sizes)
        .enumerate()
        .map(|(index, (name, size))| {
            format!(
                "ld.param.u64 %at, [p{index}]; mul.wide.u32 %by, %i, {size}; add.s64 %at, %at, %by; \
                 ld.global.b{} %{name}, [%at];\n",
                8 * size
            )
        })
        .collect();
    let width = |size: usize| 8 * size.max(2);
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{\n\
         .reg .b{} %a; .reg .b{} %b; .reg .b{} %c; .reg .b{} %x;\n\
         .reg .b32 %i, %n, %r<8>; .reg .b64 %at, %by, %d<8>; .reg .b16 %h<8>; .reg .pred %p, %q;\n\
         mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %r0, %tid.x; mad.lo.u32 %i, %i, %n, %r0;\n\
         {loads}{body}\n\
         ld.param.u64 %at, [p3]; mul.wide.u32 %by, %i, {result}; add.s64 %at, %at, %by; \
         st.global.b{} [%at], %x;\nret;\n}}\n",
        width(sizes[0]),
        width(sizes[1]),
        width(sizes[2]),
        width(result),
        8 * result,
    )
}

fn cut(bits: u64, size: usize) -> u64 {
    bits & (u64::MAX >> (64 - 8 * size))
}

/// The value of a pattern as a signed integer of so many bytes.
fn signed(bits: u64, size: usize) -> i128 {
    let shift = 128 - 8 * size as u32;
    i128::from(bits) << shift >> shift
}

/// The value of a pattern as an integer of so many bytes.
fn value(bits: u64, size: usize, sign: bool) -> i128 {
    if sign { signed(bits, size) } else { i128::from(cut(bits, size)) }
}

/// Runs the kernel over these values; the results in order.
fn run(body: &str, sizes: [usize; 3], result: usize, values: &[[u64; 3]]) -> Vec<u64> {
    let bench = Bench::new(&kernel_of(body, sizes, result));
    let mut arguments = Vec::new();
    for (column, size) in sizes.into_iter().enumerate() {
        let bytes: Vec<u8> =
            values.iter().flat_map(|row| row[column].to_le_bytes()[..size].to_vec()).collect();
        arguments.push(Argument::Pointer(bench.buffer(&bytes)));
    }
    let out = bench.room::<u8>(values.len() * result);
    arguments.push(Argument::Pointer(out));
    bench.run("k", LaunchShape::linear((values.len() / 64) as u32, 64), &arguments);
    let bytes: Vec<u8> = bench.values(out, values.len() * result);
    let value = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    bytes.chunks(result).map(value).collect()
}

/// Values of a size in bytes: the edges of integers and floats in all combinations of a and b first, then random ones.
fn values(sizes: [usize; 3], seed: u64) -> Vec<[u64; 3]> {
    let mut numbers = Numbers(seed);
    let edges = |size: usize| -> Vec<u64> {
        let top = 1_u64 << (8 * size - 1);
        let (one, infinity, nan) = match size {
            2 => (0x3c00, 0x7c00, 0x7e00),
            4 => (0x3f80_0000, 0x7f80_0000, 0x7fc0_0000),
            8 => (0x3ff0_0000_0000_0000, 0x7ff0_0000_0000_0000, 0x7ff8_0000_0000_0000),
            _ => (0x3c, 0x7c, 0x7e),
        };
        [0, 1, 3, 31, top, top - 1, u64::MAX, one, one | top, infinity, infinity | top, nan]
            .map(|bits| cut(bits, size))
            .to_vec()
    };
    let (a, b, c) = (edges(sizes[0]), edges(sizes[1]), edges(sizes[2]));
    let mut rows = Vec::new();
    for (i, a) in a.iter().enumerate() {
        for (j, b) in b.iter().enumerate() {
            rows.push([*a, *b, c[(i + 2 * j) % c.len()]]);
        }
    }
    while rows.len() < COUNT {
        let row = sizes.map(|size| {
            let bits = numbers.next();
            // Some small, some of ordinary size as floats, some anything.
            match bits >> 62 {
                0 => cut(bits & 63, size),
                1 => cut((bits & !(0x7ff << (8 * size - 12))) | (0x3f0 << (8 * size - 12)), size),
                _ => cut(bits, size),
            }
        });
        rows.push(row);
    }
    rows.truncate(COUNT);
    rows
}

/// Tries an instruction against its definition, by bits.
fn check(body: &str, sizes: [usize; 3], result: usize, define: impl Fn(u64, u64, u64) -> u64) {
    check_by(body, sizes, result, define, |found, expected| found == expected);
}

/// Tries an instruction against its definition, by a rule of its own for what is equal.
fn check_by(
    body: &str,
    sizes: [usize; 3],
    result: usize,
    define: impl Fn(u64, u64, u64) -> u64,
    equal: impl Fn(u64, u64) -> bool,
) {
    let rows = values(sizes, body.len() as u64);
    let found = run(body, sizes, result, &rows);
    for (row, found) in rows.iter().zip(found) {
        let expected = cut(define(row[0], row[1], row[2]), result);
        assert!(
            equal(found, expected),
            "`{body}` of {:#x}, {:#x}, {:#x} is {found:#x}, not {expected:#x}",
            row[0],
            row[1],
            row[2]
        );
    }
}
