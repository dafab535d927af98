//! `mbarrier` and `cp.async.bulk.tensor`. Where an element of a box lies is written down here as row, piece and byte; how phases, arrivals and bytes
//! count, as the sequence of what each instruction must tell. A ring of two stages follows, right first, then with one thing wrong each.

use crate::support::{Bench, Numbers};
use dtlc_emulator::{
    Access, Argument, CudaDriver, DevicePointer, DriverError, Emulator, EmulatorOptions, FaultKind,
    LaunchShape, MbarrierFault, ModuleImage, Swizzle, TensorMap,
};

const HEAD: &str =
    ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 tile[];\n";

fn bench(text: &str) -> Bench {
    let options = EmulatorOptions { capability: (9, 0), budget: 1 << 20, ..EmulatorOptions::default() };
    let device = Emulator::new(options);
    let module = device.load(&ModuleImage { name: "phases", ptx: text, cubin: &[] });
    Bench { module: module.unwrap_or_else(|error| panic!("{error}\n{text}")), device }
}

fn argument(bench: &Bench, map: &TensorMap) -> Argument {
    Argument::Bytes(bench.device.tensor_map(map).unwrap_or_else(|error| panic!("{error}")).to_vec())
}

/// A tensor of 16-bit numbers whose rows lie apart, and boxes of it.
fn tensor(base: DevicePointer, sizes: &[u64], box_sizes: &[u32], swizzle: Swizzle) -> TensorMap {
    let mut strides = Vec::new();
    let mut bytes = (sizes[0] * 2).next_multiple_of(16) + 16;
    for size in &sizes[1..] {
        strides.push(bytes);
        bytes *= size + 1;
    }
    TensorMap { base, sizes: sizes.to_vec(), strides, box_sizes: box_sizes.to_vec(), swizzle }
}

/// Copies one box to this byte of shared memory and stores all that is there.
fn box_text(rank: usize, target: u32, bytes: u32) -> String {
    let loads: String =
        (0..rank).map(|axis| format!("ld.param.b32 %c{axis}, [at+{}];\n", 4 * axis)).collect();
    let at = (0..rank).map(|axis| format!("%c{axis}")).collect::<Vec<_>>().join(", ");
    format!(
        "{HEAD}.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .align 4 .b8 at[20]) {{\n\
         .reg .b32 %c<5>, %t, %v, %a, %i; .reg .b64 %m, %o, %w; .reg .pred %p, %q; .shared .align 8 .b64 full;\n\
         mov.b64 %m, map; cvta.param.u64 %m, %m; prefetch.tensormap [%m]; ld.param.u64 %o, [out]; {loads} mov.u32 %t, %tid.x;\n\
         setp.ne.u32 %p, %t, 0; @%p bra made;\n\
         mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster;\n\
         mov.u32 %a, tile; add.u32 %a, %a, {target};\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], {bytes};\n\
         cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%a], [%m, {{{at}}}], [full];\n\
         made: bar.sync 0;\n\
         wait: mbarrier.try_wait.parity.shared::cta.b64 %q, [full], 0; @!%q bra wait;\n\
         shl.b32 %i, %t, 2; mov.u32 %a, tile; add.u32 %a, %a, {target}; add.u32 %a, %a, %i;\n\
         next: setp.ge.u32 %p, %i, {bytes}; @%p bra end; ld.shared.b32 %v, [%a]; mul.wide.u32 %w, %i, 1; add.s64 %w, %o, %w; st.global.b32 [%w], %v;\n\
         add.u32 %a, %a, 256; add.u32 %i, %i, 256; bra next;\nend: ret;\n}}\n"
    )
}

/// Where the element at this place of a box lies from its target on, by the table of swizzles: rows of so many bytes, whose 16-byte pieces are
/// numbered anew by the number of 128 bytes.
fn place(map: &TensorMap, at: &[u64], target: u64) -> usize {
    let mut linear = 0;
    for axis in (0..at.len()).rev() {
        linear = linear * u64::from(map.box_sizes[axis]) + at[axis];
    }
    let byte = target + 2 * linear;
    let row = match map.swizzle {
        Swizzle::None => 16,
        Swizzle::Bytes32 => 32,
        Swizzle::Bytes64 => 64,
        Swizzle::Bytes128 => 128,
    };
    let (piece, turn) = (byte % row / 16, byte / 128 % (row / 16));
    (byte - byte % row + (piece ^ turn) * 16 + byte % 16 - target) as usize
}

fn check_box(sizes: &[u64], box_sizes: &[u32], swizzle: Swizzle, corner: &[i32], target: u32) {
    let shape = tensor(DevicePointer(0), sizes, box_sizes, swizzle);
    let bytes = shape.box_bytes() as u32;
    let bench = bench(&box_text(sizes.len(), target, bytes));
    let reach: u64 = sizes[1..].iter().zip(&shape.strides).map(|(size, stride)| (size - 1) * stride).sum();
    let mut numbers = Numbers(41);
    let elements: Vec<u16> = (0..reach / 2 + sizes[0]).map(|_| numbers.next() as u16 | 1).collect();
    let words: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    let map = TensorMap { base: bench.buffer(&words), ..shape };
    let out = bench.room::<u8>(bytes as usize);
    let at: Vec<u8> = (0..5).flat_map(|axis| corner.get(axis).unwrap_or(&0).to_le_bytes()).collect();
    let arguments = [argument(&bench, &map), Argument::Pointer(out), Argument::Bytes(at)];
    let shape = LaunchShape { shared_bytes: target + bytes, ..LaunchShape::linear(1, 64) };
    bench.run("k", shape, &arguments);
    let found: Vec<u8> = bench.values(out, bytes as usize);
    for number in 0..bytes as u64 / 2 {
        let (mut rest, mut inside, mut source) = (number, true, 0);
        let mut at = Vec::new();
        for (axis, size) in box_sizes.iter().enumerate() {
            at.push(rest % u64::from(*size));
            rest /= u64::from(*size);
            let index = i64::from(corner[axis]) + at[axis] as i64;
            inside &= (0..sizes[axis] as i64).contains(&index);
            source += index * if axis == 0 { 1 } else { map.strides[axis - 1] as i64 / 2 };
        }
        let expected = if inside { elements[source as usize] } else { 0 };
        let lies = place(&map, &at, u64::from(target));
        let value = u16::from_le_bytes([found[lies], found[lies + 1]]);
        assert_eq!(value, expected, "{sizes:?} {box_sizes:?} {swizzle:?} {corner:?} from {target}: {at:?}");
    }
}

#[test]
fn boxes_of_every_rank_inside_and_across_edges() {
    check_box(&[200], &[64], Swizzle::None, &[30], 0);
    check_box(&[200], &[64], Swizzle::None, &[-10], 128);
    check_box(&[70, 20], &[64, 16], Swizzle::Bytes128, &[0, 3], 0);
    check_box(&[70, 20], &[64, 16], Swizzle::Bytes128, &[20, 10], 1024);
    check_box(&[70, 20], &[64, 16], Swizzle::Bytes128, &[-3, -5], 0);
    check_box(&[70, 20], &[64, 16], Swizzle::Bytes128, &[500, 2], 0);
    check_box(&[70, 20, 5], &[32, 7, 3], Swizzle::Bytes64, &[40, 2, 1], 128);
    check_box(&[30, 20, 5], &[16, 9, 4], Swizzle::Bytes32, &[5, -1, 3], 256);
    check_box(&[30, 20, 5], &[24, 9, 4], Swizzle::None, &[5, 2, -1], 256);
    check_box(&[24, 5, 4, 3], &[8, 2, 3, 2], Swizzle::None, &[3, 4, -1, 2], 0);
    check_box(&[70, 3, 4, 3, 3], &[64, 2, 1, 2, 2], Swizzle::Bytes128, &[7, 1, 2, 2, 0], 384);
}

#[test]
fn maps_that_no_device_takes() {
    let device = Emulator::new(EmulatorOptions { capability: (9, 0), ..EmulatorOptions::default() });
    let good = tensor(DevicePointer(0x1000), &[70, 20], &[64, 16], Swizzle::Bytes128);
    assert!(device.tensor_map(&good).is_ok());
    let wrong: [(&str, TensorMap); 10] = [
        ("0x1008, which is not a multiple of 16", TensorMap { base: DevicePointer(0x1008), ..good.clone() }),
        ("a stride of 200 bytes", TensorMap { strides: vec![200], ..good.clone() }),
        ("a stride of 1099511627776 bytes", TensorMap { strides: vec![1 << 40], ..good.clone() }),
        ("a dimension of 0 elements", TensorMap { sizes: vec![70, 0], ..good.clone() }),
        ("a dimension of 4294967297 elements", TensorMap { sizes: vec![70, (1 << 32) + 1], ..good.clone() }),
        ("a box of 257 elements", TensorMap { box_sizes: vec![64, 257], ..good.clone() }),
        (
            "rows have 8 bytes, which is not a multiple of 16",
            TensorMap { box_sizes: vec![4, 1], ..good.clone() },
        ),
        (
            "rows have 64 bytes, which change places over 128",
            TensorMap { box_sizes: vec![32, 16], ..good.clone() },
        ),
        ("2 sizes, 0 strides and 2 sizes of a box", TensorMap { strides: vec![], ..good.clone() }),
        ("6 sizes", tensor(DevicePointer(0), &[8; 6], &[8; 6], Swizzle::None)),
    ];
    for (reason, map) in wrong {
        let error = device.tensor_map(&map).expect_err("there is no such map").to_string();
        assert!(
            error.starts_with("a tensor map can't be made: ") && error.contains(reason),
            "{reason}: {error}"
        );
    }
    let old = Emulator::default().tensor_map(&good).map_err(|error| error.to_string());
    assert_eq!(old, Err("a tensor map can't be made: the device has none, being older than 9.0".to_owned()));
}

/// Each instruction's form, by one thread: what arrivals and waits tell, step by step.
#[test]
fn phases_arrivals_and_bytes() {
    let steps = "
        mbarrier.init.shared::cta.b64 [one], 2; fence.proxy.async;
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 1; TELL
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 0; TELL
        mbarrier.arrive.shared.b64 %s, [one];
        mbarrier.test_wait.shared::cta.b64 %p, [one], %s; TELL
        mbarrier.arrive.release.cta.shared::cta.b64 _, [one], 1;
        mbarrier.test_wait.acquire.cta.shared::cta.b64 %p, [one], %s; TELL
        mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [one], 0, 1000; TELL
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 1; TELL
        mbarrier.arrive.b64 _, [%g], 2;
        mbarrier.try_wait.parity.b64 %p, [%g], 1; TELL
        mbarrier.arrive.shared::cta.b64 _, [one], 2;
        mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [one], 32;
        mbarrier.arrive.shared::cta.b64 _, [one];
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [one], 32;
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 1; TELL
        COPY
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 1; TELL
        COPY
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 1; TELL
        mbarrier.inval.shared::cta.b64 [one];
        mbarrier.init.shared::cta.b64 [one], 1;
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 0; TELL
        mbarrier.arrive.shared::cta.b64 _, [one];
        mbarrier.test_wait.parity.shared::cta.b64 %p, [one], 0; TELL";
    let tell = "selp.b32 %v, 1, 0, %p; st.global.b32 [%o], %v; add.s64 %o, %o, 4;";
    let mut body = steps.replace("TELL", tell);
    for target in [0, 128] {
        let copy = format!(
            "cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes [%a+{target}], [%m, {{0}}], [one];"
        );
        body = body.replacen("COPY", &copy, 1);
    }
    let text = format!(
        "{HEAD}.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out) {{\n\
         .reg .b64 %m, %o, %s, %g; .reg .b32 %v, %a; .reg .pred %p; .shared .align 8 .b64 one;\n\
         mov.b64 %m, map; cvta.param.u64 %m, %m; ld.param.u64 %o, [out]; mov.u64 %g, one; cvta.shared.u64 %g, %g;\n\
         mov.u32 %a, tile;\n{body}\nret;\n}}\n"
    );
    let bench = bench(&text);
    let map = tensor(bench.buffer(&[7_u8; 32]), &[16], &[16], Swizzle::None);
    let out = bench.room::<u32>(12);
    let shape = LaunchShape { shared_bytes: 256, ..LaunchShape::linear(1, 1) };
    bench.run("k", shape, &[argument(&bench, &map), Argument::Pointer(out)]);
    // The phase before the first counts as over; then phases 0, 1, 2 end in their order, and a barrier made anew begins with phase 0.
    assert_eq!(bench.values::<u32>(out, 12), [1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1]);
}

const STEPS: usize = 6;

/// A ring of two stages: thread 0 brings a box of 64 by 8 a step, and the second warp adds up its words, 32 bytes a lane.
fn ring() -> String {
    format!(
        "{HEAD}.visible .entry ring(.param .align 64 .b8 map[128], .param .u64 out) {{\n\
         .reg .b64 %m, %o, %w; .reg .b32 %t, %step, %stage, %parity, %full, %at, %a, %sum, %row, %v<4>; .reg .pred %p, %q;\n\
         .shared .align 8 .b64 bars[4];\n\
         mov.b64 %m, map; cvta.param.u64 %m, %m; mov.u32 %t, %tid.x; mov.u32 %step, 0; mov.u32 %sum, 0;\n\
         mov.u32 %at, tile; shl.b32 %a, %t, 2; add.u32 %at, %at, %a; st.shared.b32 [%at], %a;\n\
         fence.proxy.async;\n\
         setp.ne.u32 %p, %t, 0; @%p bra made;\n\
         mbarrier.init.shared::cta.b64 [bars], 1; mbarrier.init.shared::cta.b64 [bars+8], 1;\n\
         mbarrier.init.shared::cta.b64 [bars+16], 1; mbarrier.init.shared::cta.b64 [bars+24], 1;\n\
         fence.mbarrier_init.release.cluster;\n\
         made:\nbar.sync 0;\n\
         setp.gt.u32 %p, %t, 31; @%p bra consume; setp.ne.u32 %p, %t, 0; @%p bra end;\n\
         produce: and.b32 %stage, %step, 1; shr.u32 %parity, %step, 1; and.b32 %parity, %parity, 1; xor.b32 %parity, %parity, 1;\n\
         shl.b32 %full, %stage, 3; mov.u32 %a, bars; add.u32 %full, %full, %a;\n\
         free: mbarrier.try_wait.parity.shared::cta.b64 %q, [%full+16], %parity; @!%q bra free;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%full], 1024;\n\
         shl.b32 %at, %stage, 10; mov.u32 %a, tile; add.u32 %at, %at, %a; shl.b32 %row, %step, 3;\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%at], [%m, {{0, %row}}], [%full];\n\
         add.u32 %step, %step, 1; setp.lt.u32 %p, %step, {STEPS}; @%p bra produce; bra end;\n\
         consume: and.b32 %stage, %step, 1; shr.u32 %parity, %step, 1; and.b32 %parity, %parity, 1;\n\
         shl.b32 %full, %stage, 3; mov.u32 %a, bars; add.u32 %full, %full, %a;\n\
         ready: mbarrier.try_wait.parity.shared::cta.b64 %q, [%full], %parity; @!%q bra ready;\n\
         shl.b32 %at, %stage, 10; mov.u32 %a, tile; add.u32 %at, %at, %a; sub.u32 %a, %t, 32; shl.b32 %a, %a, 5; add.u32 %at, %at, %a;\n\
         ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%at];\n\
         add.u32 %sum, %sum, %v0; add.u32 %sum, %sum, %v1; add.u32 %sum, %sum, %v2; add.u32 %sum, %sum, %v3;\n\
         bar.warp.sync 0xffffffff; setp.eq.u32 %p, %t, 32;\n\
         @%p mbarrier.arrive.shared::cta.b64 _, [%full+16];\n\
         add.u32 %step, %step, 1; setp.lt.u32 %p, %step, {STEPS}; @%p bra consume;\n\
         ld.param.u64 %o, [out]; mul.wide.u32 %w, %t, 4; add.s64 %o, %o, %w; st.global.b32 [%o+-128], %sum;\n\
         end: ret;\n}}\n"
    )
}

/// Whether the ring's sums are right.
fn run(text: &str) -> Result<bool, FaultKind> {
    let bench = bench(text);
    let mut numbers = Numbers(43);
    let words: Vec<u32> = (0..32 * 8 * STEPS).map(|_| numbers.next() as u32).collect();
    let base = bench.buffer(&words);
    let (sizes, strides) = (vec![64, 8 * STEPS as u64], vec![128]);
    let map = TensorMap { base, sizes, strides, box_sizes: vec![64, 8], swizzle: Swizzle::None };
    let out = bench.room::<u32>(32);
    let shape = LaunchShape { shared_bytes: 2048, ..LaunchShape::linear(1, 64) };
    match bench.try_run("ring", shape, &[argument(&bench, &map), Argument::Pointer(out)]) {
        Ok(()) => {}
        Err(DriverError::Fault(fault)) => {
            assert!(fault.ptx_line > 0, "{fault}");
            return Err(fault.kind);
        }
        Err(other) => panic!("{other}"),
    }
    let sum = |lane: usize| {
        let of_step = |step: usize| words[step * 256 + lane * 8..][..4].iter().copied();
        (0..STEPS).flat_map(of_step).fold(0, u32::wrapping_add)
    };
    Ok(bench.values::<u32>(out, 32) == (0..32).map(sum).collect::<Vec<_>>())
}

#[test]
fn a_ring_of_two_stages() {
    assert_eq!(run(&ring()), Ok(true));
}

macro_rules! caught {
    ($name:ident, $from:expr => $to:expr, $expected:pat) => {
        #[test]
        fn $name() {
            let text = ring();
            assert_eq!(text.matches($from).count(), 1, "`{}`", $from);
            let found = run(&text.replace($from, $to));
            assert!(matches!(found, $expected), "{found:?}");
        }
    };
}

use FaultKind as Kind;
use MbarrierFault as Wrong;

caught!(no_wait_for_the_copy, "ready: mbarrier.try_wait.parity.shared::cta.b64 %q, [%full], %parity; @!%q bra ready;" => "",
    Err(Kind::CopyNotAwaited { access: Access::Read, .. }));
caught!(a_wait_for_the_other_parity, "and.b32 %parity, %parity, 1;\nshl" => "not.b32 %parity, %parity; and.b32 %parity, %parity, 1;\nshl",
    Err(Kind::CopyNotAwaited { access: Access::Read, .. } | Kind::PhaseOpen { .. }));
caught!(no_wait_for_a_free_stage, "free: mbarrier.try_wait.parity.shared::cta.b64 %q, [%full+16], %parity; @!%q bra free;" => "",
    Err(Kind::CopyNotAwaited { access: Access::Write, .. }));
caught!(the_other_parity_of_a_free_stage, "xor.b32 %parity, %parity, 1;" => "", Err(Kind::PhaseOpen { arrivals: 1, bytes: 0, .. }));
caught!(too_many_bytes_expected, "[%full], 1024;" => "[%full], 1040;", Err(Kind::PhaseOpen { arrivals: 0, bytes: 16, .. }));
caught!(too_few_bytes_expected, "[%full], 1024;" => "[%full], 1008;", Err(Kind::PhaseOpen { arrivals: 0, bytes: -16, .. }));
caught!(more_bytes_than_count, "[%full], 1024;" => "[%full], 1048576;", Err(Kind::Mbarrier { fault: Wrong::Bytes(1_048_576), .. }));
caught!(no_arrival_behind_reads, "@%p mbarrier.arrive.shared::cta.b64 _, [%full+16];" => "", Err(Kind::PhaseOpen { arrivals: 1, .. }));
caught!(an_arrival_that_releases_nothing, "@%p mbarrier.arrive.shared" => "@%p mbarrier.arrive.relaxed.cta.shared", Err(Kind::Race { other: Access::Read, .. }));
caught!(a_wait_that_acquires_nothing, "ready: mbarrier.try_wait.parity.shared" => "ready: mbarrier.try_wait.parity.relaxed.cta.shared",
    Err(Kind::Race { access: Access::Read, other: Access::Write, .. }));
caught!(arrivals_by_all_lanes, "@%p mbarrier.arrive" => "mbarrier.arrive", Err(Kind::PhaseOpen { .. }));
caught!(more_arrivals_than_a_phase_has, "_, [%full+16];" => "_, [%full+16], 2;", Err(Kind::Mbarrier { fault: Wrong::Arrivals { count: 2, pending: 1 }, .. }));
caught!(a_barrier_that_was_not_made, "mbarrier.init.shared::cta.b64 [bars+24], 1;" => "", Err(Kind::Mbarrier { fault: Wrong::NotMade, .. }));
caught!(a_barrier_for_nobody, "[bars+24], 1;" => "[bars+24], 0;", Err(Kind::Mbarrier { fault: Wrong::Count(0), .. }));
caught!(a_barrier_between_words, "[bars+24], 1;" => "[bars+20], 1;", Err(Kind::Misaligned { .. }));
caught!(a_barrier_made_twice, "[bars+24], 1;" => "[bars+24], 1; mbarrier.init.shared::cta.b64 [bars+24], 1;", Err(Kind::Mbarrier { fault: Wrong::InUse, .. }));
caught!(a_barrier_read_by_a_load, "made:\n" => "made:\nld.shared.b32 %a, [bars+4];", Err(Kind::Mbarrier { fault: Wrong::InUse, .. }));
caught!(a_barrier_overwritten_by_a_store, "made:\nbar.sync 0;" => "made:\nbar.sync 0; setp.eq.u32 %p, %t, 40; @%p st.shared.b32 [bars+12], %a;",
    Err(Kind::Mbarrier { fault: Wrong::InUse, .. }));
caught!(no_fence_behind_the_making, "fence.mbarrier_init.release.cluster;" => "", Err(Kind::Mbarrier { fault: Wrong::NotPublished { maker: 0 }, .. }));
caught!(a_fence_of_the_proxy_serves_too, "fence.mbarrier_init.release.cluster;" => "fence.proxy.async;", Ok(true));
caught!(no_barrier_behind_the_making, "made:\nbar.sync 0;" => "made:\n", Err(Kind::Race { .. }));
caught!(no_fence_behind_writes, "fence.proxy.async;" => "", Err(Kind::NotPublished { .. }));
caught!(a_stage_that_is_written_by_a_thread_under_way, "@%p mbarrier.arrive.shared::cta.b64 _, [%full+16];" => "@%p mbarrier.arrive.shared::cta.b64 _, [%full+16]; st.shared.b32 [tile+1020], %t;",
    Err(Kind::Race { .. } | Kind::CopyNotAwaited { .. } | Kind::LanesConflict { .. }));
caught!(a_copy_that_no_one_waits_for, "setp.lt.u32 %p, %step, 6; @%p bra consume;" => "setp.lt.u32 %p, %step, 5; @%p bra consume;", Err(Kind::CopyLeft { .. }));
caught!(another_row, "shl.b32 %row, %step, 3;" => "shl.b32 %row, %step, 2;", Ok(false));
caught!(coordinates_that_change_places, "{0, %row}" => "{%row, 0}", Ok(false));
caught!(the_other_stage, "shl.b32 %at, %stage, 10; mov.u32 %a, tile; add.u32 %at, %at, %a; shl" => "xor.b32 %at, %stage, 1; shl.b32 %at, %at, 10; mov.u32 %a, tile; add.u32 %at, %at, %a; shl",
    Err(Kind::CopyNotAwaited { access: Access::Read, .. }));
caught!(a_target_between_rows, "[%at], [%m" => "[%at+64], [%m", Err(Kind::Misaligned { align: 128, .. }));
caught!(a_target_past_the_end, "[%at], [%m" => "[%at+1152], [%m", Err(Kind::OutOfBounds { access: Access::Write, .. }));
caught!(no_map_there, "[%m, {" => "[%m+64, {", Err(Kind::BadOperand(_)));
caught!(a_map_between_words, "[%m, {" => "[%m+16, {", Err(Kind::Misaligned { align: 64, .. }));

#[test]
fn a_map_of_another_rank_than_the_copy() {
    let text = ring().replace("tensor.2d", "tensor.3d").replace("{0, %row}", "{0, %row, 0}");
    let found = run(&text);
    assert!(
        matches!(&found, Err(Kind::BadOperand(reason)) if reason.contains("3 coordinates of a map of 2")),
        "{found:?}"
    );
}

#[test]
fn an_arrival_before_reads() {
    let text = ring();
    let (start, end) =
        (text.find("ld.shared.v4").expect("there"), text.find("bar.warp.sync").expect("there"));
    let reads = &text[start..end];
    let found = run(&text
        .replace(reads, "")
        .replace("[%full+16];\nadd.u32 %step", &format!("[%full+16];\n{reads}add.u32 %step")));
    assert!(matches!(found, Err(Kind::Race { access: Access::Write, other: Access::Read, .. })), "{found:?}");
}

/// What a text is refused for.
fn refused(body: &str) -> String {
    let text = format!(
        "{HEAD}.visible .entry k() {{\n.reg .b64 %m; .reg .b32 %a; .reg .pred %p;\n{body}\nret;\n}}\n"
    );
    let device = Emulator::new(EmulatorOptions { capability: (9, 0), ..EmulatorOptions::default() });
    let loaded = device.load(&ModuleImage { name: "bad", ptx: &text, cubin: &[] });
    loaded.expect_err("it is refused").to_string()
}

#[test]
fn forms_that_are_not_known() {
    for (body, reason) in [
        (
            "mbarrier.arrive.noComplete.shared.b64 _, [%a], 1;",
            "`.noComplete` in `mbarrier.arrive.noComplete.shared.b64`",
        ),
        ("mbarrier.arrive.shared::cluster.b64 _, [%a];", "`.shared::cluster` in"),
        ("mbarrier.pending_count.b64 %a, %m;", "`.pending_count` in"),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%a], [%m], 16, [%a];",
            "`.shared::cluster` in",
        ),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%m, {%a, %a}], [%a];", "`.global` in"),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%a], [%m, {%a}], [%a];",
            "1 coordinates of 2 dimensions",
        ),
        (
            "setmaxnreg.inc.sync.aligned.u32 100;",
            "`setmaxnreg` of 100 registers; it takes multiples of 8 from 24 to 256",
        ),
        ("setmaxnreg.more.sync.aligned.u32 96;", "`.more` in"),
    ] {
        let found = refused(body);
        assert!(found.contains("PTX line 7: ") && found.contains(reason), "{body}: {found}");
    }
}

#[test]
fn a_group_agrees_on_its_registers() {
    let text = |guard: &str| {
        format!(
            "{HEAD}.visible .entry k() {{\n.reg .b32 %t; .reg .pred %p;\nmov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 96;\n\
             {guard} setmaxnreg.dec.sync.aligned.u32 40;\nret;\n}}\n"
        )
    };
    let shape = LaunchShape::linear(1, 128);
    bench(&text("")).run("k", shape, &[]);
    let found = bench(&text("@%p")).fault_kind("k", shape, &[]);
    assert!(matches!(found, Kind::GroupDiffers { arrived: 0b0111, .. }), "{found:?}");
}
