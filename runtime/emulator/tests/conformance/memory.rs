//! Loads, stores, atomic operations, asynchronous copies, local memory.

use super::{check, run, values};
use crate::support::{Bench, Numbers};
use dtlc_emulator::{Argument, CudaDriver, DriverError, FaultKind, LaunchShape, Stream};

#[test]
fn widening_loads_and_narrowing_stores() {
    let shared = |store: &str, load: &str| {
        format!(
            "mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 4; mov.u32 %r2, room; add.u32 %r1, %r1, %r2;\n\
             {store} [%r1], %a; {load} %x, [%r1];"
        )
    };
    let room = ".shared .align 16 .b8 room[1024];";
    let signed = |bits: u64, size: u32| ((bits as i64) << (64 - 8 * size) >> (64 - 8 * size)) as u64;
    for (size, bits) in [(1, 8), (2, 16), (4, 32), (8, 64)] {
        let body = format!("{room} {}", shared(&format!("st.shared.u{bits}"), &format!("ld.shared.u{bits}")));
        let mask = u64::MAX >> (64 - bits);
        check(&body, [8; 3], 8, |a, _, _| a & mask);
        let body = format!("{room} {}", shared(&format!("st.shared.u{bits}"), &format!("ld.shared.s{bits}")));
        check(&body, [8; 3], 8, |a, _, _| signed(a, size));
    }
}

#[test]
fn vectors_of_values() {
    let body = ".shared .align 16 .b8 room[1024]; mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 4; mov.u32 %r2, room; add.u32 %r1, %r1, %r2;\n\
                mov.b64 {%r3, %r4}, %a; mov.b64 {%r5, %r6}, %b; st.shared.v4.b32 [%r1], {%r3, %r4, %r5, %r6};\n\
                ld.volatile.shared.v2.u64 {%d0, %d1}, [%r1]; ld.shared.v2.u16 {%h0, _}, [%r1+8]; cvt.u64.u16 %d2, %h0;\n\
                xor.b64 %x, %d0, %d1; add.u64 %x, %x, %d2;";
    check(body, [8; 3], 8, |a, b, _| (a ^ b).wrapping_add(b & 0xffff));
}

#[test]
fn spaces_and_generic_addresses() {
    let body = ".local .align 8 .b8 mine[16]; .shared .align 8 .b8 room[512];\n\
                mov.u64 %d0, mine; cvta.local.u64 %d1, %d0; st.u64 [%d1+8], %a; ld.local.u64 %d2, [mine+8];\n\
                mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 8; mov.u64 %d4, room; add.u64 %d3, %d3, %d4; cvta.shared.u64 %d5, %d3;\n\
                st.u64 [%d5], %b; cvta.to.shared.u64 %d6, %d5; ld.shared.u64 %d7, [%d6];\n\
                isspacep.shared %p, %d5; isspacep.local %q, %d5; selp.u64 %x, 1, 0, %p; @%q add.u64 %x, %x, 2;\n\
                isspacep.global %p, %d1; @%p add.u64 %x, %x, 4; isspacep.local %p, %d1; @%p add.u64 %x, %x, 8;\n\
                add.u64 %x, %x, %d2; add.u64 %x, %x, %d7;";
    check(body, [8; 3], 8, |a, b, _| a.wrapping_add(b).wrapping_add(9));
}

/// An atomic operation on one shared word by all 32 lanes of a warp, which take turns from the lowest.
fn in_turns(operation: &str, size: usize, start: u64, change: impl Fn(u64, u64) -> u64) {
    for (space, address) in [("shared", "word"), ("global", "outside")] {
        let bits = 8 * size;
        let body = format!(
            ".shared .align 8 .b8 word[8]; mov.u64 %d0, {address}; setp.eq.u32 %p, %r0, 0;\n\
             @%p st.{space}.b{bits} [%d0], {start}; bar.sync 0; mov.u32 %r1, %r0; setp.lt.u32 %p, %r0, 32; mov.b{bits} %x, %a;\n\
             @%p atom.{space}.{operation} %x, [%d0], %a;"
        );
        let rows = values([size; 3], 99);
        let text = super::kernel_of(&body, [size; 3], size);
        let text = text.replace(".visible", ".global .align 8 .b8 outside[8];\n.visible");
        let bench = Bench::new(&text);
        let bytes: Vec<u8> =
            rows[..64].iter().flat_map(|row| row[0].to_le_bytes()[..size].to_vec()).collect();
        let input = Argument::Pointer(bench.buffer(&bytes));
        let out = bench.room::<u8>(64 * size);
        bench.run(
            "k",
            LaunchShape::linear(1, 64),
            &[input.clone(), input.clone(), input, Argument::Pointer(out)],
        );
        let found: Vec<u8> = bench.values(out, 64 * size);
        let mut held = start;
        for (lane, row) in rows.iter().take(32).enumerate() {
            let value = found[lane * size..][..size]
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte));
            assert_eq!(value, held, "{operation} in {space} memory, lane {lane}");
            held = super::cut(change(held, row[0]), size);
        }
    }
}

#[test]
fn atomic_operations() {
    for (size, bits) in [(4, 32), (8, 64)] {
        in_turns(&format!("add.u{bits}"), size, 7, u64::wrapping_add);
        in_turns(&format!("min.u{bits}"), size, 1000, u64::min);
        in_turns(&format!("max.u{bits}"), size, 1000, u64::max);
        in_turns(&format!("and.b{bits}"), size, u64::MAX >> 33, |x, y| x & y);
        in_turns(&format!("or.b{bits}"), size, 0, |x, y| x | y);
        in_turns(&format!("xor.b{bits}"), size, 5, |x, y| x ^ y);
        in_turns(&format!("exch.b{bits}"), size, 5, |_, y| y);
    }
    in_turns("max.s32", 4, 5, |x, y| (x as i32).max(y as i32) as u32 as u64);
    in_turns("min.s64", 8, 5, |x, y| (x as i64).min(y as i64) as u64);
    in_turns("inc.u32", 4, 3, |x, y| if x >= y { 0 } else { x + 1 });
    in_turns("dec.u32", 4, 3, |x, y| if x == 0 || x > y { y } else { x - 1 });
}

#[test]
fn atomic_float_sums_and_exchanges() {
    // Each thread adds its own number, small enough for the sum to be exact.
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p0) {\n\
                .reg .b64 %o; .reg .b32 %t, %f, %r; .reg .f64 %d; .reg .pred %p; ld.param.u64 %o, [p0]; mov.u32 %t, %tid.x;\n\
                cvt.rn.f32.u32 %f, %t; red.global.add.f32 [%o], %f; cvt.rn.f64.u32 %d, %t; atom.global.add.f64 %d, [%o+8], %d;\n\
                red.relaxed.gpu.global.add.u32 [%o+16], %t; atom.global.cas.b32 %r, [%o+20], %t, 7;\n\
                cvt.rn.bf16x2.f32 %r, %f, 0f3F800000; red.global.add.noftz.bf16x2 [%o+24], %r;\nret;\n}\n";
    let bench = Bench::new(text);
    let out = bench.buffer(&[0_u32; 7]);
    bench.run("k", LaunchShape::linear(1, 16), &[Argument::Pointer(out)]);
    let found: Vec<u32> = bench.values(out, 7);
    assert_eq!(f32::from_bits(found[0]), 120.0);
    assert_eq!(f64::from_bits(u64::from(found[2]) | u64::from(found[3]) << 32), 120.0);
    // Thread 0 finds zero and puts seven; thread 7 finds that and leaves seven.
    assert_eq!((found[4], found[5]), (120, 7));
    assert_eq!(
        (found[6] & 0xffff, found[6] >> 16),
        (u32::from(half::bf16::from_f32(16.0).to_bits()), u32::from(half::bf16::from_f32(120.0).to_bits()))
    );
}

#[test]
fn asynchronous_copies() {
    let in_two_groups = ".shared .align 16 .b8 room[1024]; mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 4; mov.u32 %r2, room; add.u32 %r1, %r1, %r2;\n\
                ld.param.u64 %d0, [p0]; mul.wide.u32 %d1, %i, 8; add.u64 %d0, %d0, %d1; ld.param.u64 %d2, [p1]; add.u64 %d2, %d2, %d1;\n\
                cp.async.ca.shared.global [%r1], [%d0], 8; cp.async.commit_group; cp.async.ca.shared.global [%r1+8], [%d2], 8, 4;\n\
                cp.async.commit_group; cp.async.wait_group 1; ld.shared.u64 %x, [%r1]; cp.async.wait_all; ld.shared.u64 %d3, [%r1+8];\n\
                add.u64 %x, %x, %d3;";
    check(in_two_groups, [8; 3], 8, |a, b, _| a.wrapping_add(b & 0xffff_ffff));
    // As many bytes as a register says, perhaps none, and zeros behind them.
    let body = ".shared .align 16 .b8 room[512]; mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 3; mov.u32 %r2, room; add.u32 %r1, %r1, %r2;\n\
                ld.param.u64 %d0, [p0]; mul.wide.u32 %d1, %i, 8; add.u64 %d0, %d0, %d1; cvt.u32.u64 %r3, %b; and.b32 %r3, %r3, 7;\n\
                cp.async.ca.shared.global [%r1], [%d0], 8, %r3; cp.async.wait_all; ld.shared.u64 %x, [%r1];";
    check(body, [8; 3], 8, |a, b, _| a & ((1 << (8 * (b & 7))) - 1));
    // Sixteen bytes, of which a lane takes its half.
    let body = ".shared .align 16 .b8 room[1024]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; and.b32 %r3, %r1, 1; shl.b32 %r3, %r3, 3;\n\
                mov.u32 %r1, room; add.u32 %r1, %r1, %r2; ld.param.u64 %d0, [p0]; mul.wide.u32 %d1, %i, 8; cvt.u64.u32 %d2, %r3;\n\
                sub.u64 %d1, %d1, %d2; add.u64 %d0, %d0, %d1; cp.async.cg.shared.global [%r1], [%d0], 16; cp.async.wait_all;\n\
                add.u32 %r1, %r1, %r3; ld.shared.u64 %x, [%r1];";
    check(body, [8; 3], 8, |a, _, _| a);
    // Only what is waited for is there.
    let text = super::kernel_of(&in_two_groups.replace("wait_group 1", "wait_group 2"), [8; 3], 8);
    let bench = Bench::new(&text);
    let input = Argument::Pointer(bench.buffer(&[0_u64; 64]));
    let out = Argument::Pointer(bench.room::<u64>(64));
    let kind = bench.fault_kind("k", LaunchShape::linear(1, 64), &[input.clone(), input.clone(), input, out]);
    assert!(matches!(kind, FaultKind::CopyNotAwaited { .. }), "{kind:?}");
}

#[test]
fn parameters_by_value() {
    // A structure that is indexed at run time.
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
                .visible .entry k(.param .align 8 .b8 p0[24], .param .u64 p1, .param .u16 p2, .param .u32 p3) {\n\
                .reg .b64 %a, %o, %b; .reg .b32 %t, %v, %w; .reg .b16 %h; mov.u32 %t, %tid.x; mov.b64 %a, p0; mul.wide.u32 %b, %t, 4;\n\
                add.u64 %a, %a, %b; ld.param.u32 %v, [%a+4]; ld.param.u16 %h, [p2]; cvt.u32.u16 %w, %h; add.u32 %v, %v, %w;\n\
                ld.param.u32 %w, [p3]; add.u32 %v, %v, %w; ld.param.u64 %o, [p1]; add.u64 %o, %o, %b; st.global.u32 [%o], %v;\nret;\n}\n";
    let bench = Bench::new(text);
    let out = bench.room::<u32>(5);
    let structure: Vec<u8> = (0..6_u32).flat_map(|value| (10 * value).to_le_bytes()).collect();
    let arguments = [
        Argument::Bytes(structure),
        Argument::Pointer(out),
        Argument::Bytes(vec![3, 1]),
        Argument::U32(1000),
    ];
    bench.run("k", LaunchShape::linear(1, 5), &arguments);
    let expected: Vec<u32> = (0..5).map(|t| 10 * (t + 1) + 259 + 1000).collect();
    assert_eq!(bench.values::<u32>(out, 5), expected);
}

#[test]
fn constants_are_read_only_and_globals_start_at_zero() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.const .align 4 .u32 fixed[3] = {5, -1, 0x10};\n\
                .global .align 4 .u32 zero[4];\n.global .align 4 .f32 half_pi = 0f3FC90FDB;\n\
                .visible .entry k(.param .u64 p0) { .reg .b64 %o, %a; .reg .b32 %r; ld.param.u64 %o, [p0];\n\
                ld.const.u32 %r, [fixed+4]; st.global.u32 [%o], %r; mov.u64 %a, fixed; ld.const.u32 %r, [%a+8]; st.global.u32 [%o+4], %r;\n\
                ld.global.u32 %r, [zero+12]; st.global.u32 [%o+8], %r; ld.global.f32 %r, [half_pi]; st.global.u32 [%o+12], %r; ret; }\n\
                .visible .entry bad() { .reg .b64 %a; mov.u64 %a, fixed; cvta.const.u64 %a, %a; st.u32 [%a], 1; ret; }\n";
    let bench = Bench::new(text);
    let out = bench.room::<u32>(4);
    bench.run("k", LaunchShape::linear(1, 1), &[Argument::Pointer(out)]);
    assert_eq!(bench.values::<u32>(out, 4), [u32::MAX, 16, 0, 0x3fc9_0fdb]);
    let kind = bench.fault_kind("bad", LaunchShape::linear(1, 1), &[]);
    assert!(matches!(kind, FaultKind::ReadOnly { .. }), "{kind:?}");
}

#[test]
fn what_was_freed_or_never_written_is_not_read() {
    let text = super::kernel_of("mov.b32 %x, %a;", [4; 3], 4);
    let bench = Bench::new(&text);
    let good = bench.buffer(&[1_u32; 64]);
    let gone = bench.buffer(&[1_u32; 64]);
    bench.device.free(gone).expect("it was allocated");
    assert_eq!(bench.device.free(gone), Err(DriverError::NotAllocated(gone)));
    let out = bench.room::<u32>(64);
    let empty = bench.room::<u32>(64);
    let shape = LaunchShape::linear(1, 64);
    let with = |first| [first, good, good, out].map(Argument::Pointer);
    bench.run("k", shape, &with(good));
    assert!(matches!(bench.fault_kind("k", shape, &with(gone)), FaultKind::OutOfBounds { .. }));
    let fault = bench.fault("k", shape, &with(empty));
    assert!(matches!(fault.kind, FaultKind::Uninitialised { .. }));
    assert_eq!(fault.thread, [0, 0, 0]);
    // Half a buffer is written: the first thread beyond is named.
    bench.device.fill(empty, 0, 40 * 4, Stream::DEFAULT).expect("in bounds");
    assert_eq!(bench.fault("k", shape, &with(empty)).thread, [40, 0, 0]);
    // The same holds for the host, and for copies on the device, which carry it along.
    let mut bytes = vec![0; 256];
    let copied = bench.room::<u32>(64);
    bench.device.copy_on_device(copied, empty, 256, Stream::DEFAULT).expect("in bounds");
    let refused = bench.device.copy_to_host(&mut bytes, copied, Stream::DEFAULT);
    assert_eq!(
        refused,
        Err(DriverError::Uninitialised { what: "a copy to the host", at: copied.offset(160) })
    );
    let short = bench.device.copy_to_host(&mut bytes, copied.offset(4), Stream::DEFAULT);
    assert!(matches!(short, Err(DriverError::OutOfBounds { .. })));
}

#[test]
fn random_numbers_differ() {
    // Keeps the helper of the other tests honest.
    let mut numbers = Numbers(1);
    assert_ne!(numbers.next(), numbers.next());
    assert_eq!(run("mov.b32 %x, %b;", [4; 3], 4, &values([4; 3], 1))[1], 1);
}
