//! What does not load, or does not start: each with the line and the reason.

use crate::support::Bench;
use dtlc_emulator::{Argument, CudaDriver, DriverError, Emulator, LaunchShape, ModuleImage};

fn refused(body: &str) -> String {
    let ptx = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{\n.reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<2>;\n{body}\nret;\n}}\n"
    );
    match Emulator::default().load(&ModuleImage { name: "bad", ptx: &ptx, cubin: &[] }) {
        Err(error @ DriverError::Module { .. }) => error.to_string(),
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn unknown_opcodes_and_modifiers_are_errors_with_their_line() {
    let expected =
        "module `bad` can't be loaded: PTX line 6: the opcode `frobnicate.b32` is not known to the emulator";
    assert_eq!(refused("frobnicate.b32 %r0, %r1;"), expected);
    let expected =
        "module `bad` can't be loaded: PTX line 6: `.wild` in `add.wild.s32` is not known to the emulator";
    assert_eq!(refused("add.wild.s32 %r0, %r1, %r2;"), expected);
}

#[test]
fn ill_formed_text() {
    for (body, reason) in [
        ("mov.u32 %r0, %r9;", "`%r9` is not declared"),
        ("bra nowhere;", "there is no label `nowhere`"),
        ("add.s32 %r0, %r1;", "`add` has 2 sources"),
        ("add.s32 %d0, %r1, %r2;", "a register of Double width is written as Word"),
        ("mov.u64 %d0, %r1;", "a register of Word width is read as Double"),
        ("@%r0 ret;", "`%r0` is not a predicate register"),
        ("here: here: ret;", "a second label `here`"),
        ("ld.global.v2.u32 %r0, [%d0];", "1 registers for 2 values"),
        ("cp.async.cg.shared.global [%r0], [%d0], 8;", "`cp.async` of 8 bytes"),
        ("sqrt.rz.f32 %r0, %r1;", "Zero rounding of SquareRoot on .f32 is not supported"),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r0}, {%r0}, {%r0}, {%r0};",
            "a fragment of 1 registers; it has 4",
        ),
        ("call.uni nothing;", "`nothing` is not a function; calls through a register are not supported"),
        ("/* no end", "a comment that does not end"),
    ] {
        let found = refused(body);
        assert!(found.ends_with(reason), "{body}: {found}");
    }
}

#[test]
fn a_module_for_a_later_device() {
    let ptx = ".version 8.0\n.target sm_90a\n.address_size 64\n";
    let found = Emulator::default().load(&ModuleImage { name: "new", ptx, cubin: &[] });
    let expected = "module `new` can't be loaded: PTX line 1: the module is for sm_90a; the device is sm_80";
    assert_eq!(found.map_err(|error| error.to_string()), Err(expected.to_owned()));
}

#[test]
fn launches_that_no_device_starts() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n) .maxntid 64, 1, 1 { ret; }\n\
                .visible .entry big() { .shared .align 4 .b8 room[40000]; ret; }\n";
    let bench = Bench::new(text);
    let one = LaunchShape::linear(1, 32);
    let shared = |shared_bytes| LaunchShape { shared_bytes, ..one };
    let n = [Argument::U32(1)];
    for (kernel, shape, arguments, reason) in [
        ("k", one, &[][..], "0 arguments; it takes 1"),
        ("k", one, &[Argument::U64(1)][..], "argument 0 has 8 bytes; it takes 4"),
        ("k", LaunchShape::linear(1, 128), &n[..], "a block of 128 threads; the kernel was compiled for 64"),
        ("k", LaunchShape::linear(0, 32), &n[..], "a grid of [0, 1, 1] blocks"),
        ("big", LaunchShape::linear(1, 1025), &[][..], "a block of [1025, 1, 1] threads; it has 1 to 1024"),
        ("big", shared(130_000), &[][..], "170000 bytes of shared memory; there are 166912"),
    ] {
        let found = bench.try_run(kernel, shape, arguments).map_err(|error| error.to_string());
        assert_eq!(found, Err(format!("`{kernel}` can't be launched: {reason}")));
    }
    assert!(matches!(bench.device.kernel(bench.module, "none"), Err(DriverError::NoSuchKernel(_))));
    bench.run("big", shared(100_000), &[]);
}
