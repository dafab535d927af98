//! Seeded faults: a kernel that is right, one thing in its PTX made wrong, and what must notice. Each run without the fault passes first, so
//! that it is the fault that is caught.

mod support;

use dtlc_emulator::{
    Access, Argument, CudaDriver, DriverError, Emulator, EmulatorOptions, FaultKind, LaunchShape, ModuleImage,
};
use half::bf16;
use support::{Bench, Numbers, kernel_text};

/// What a run came to.
#[derive(Debug)]
enum Outcome {
    Right,
    WrongNumbers,
    Fault(FaultKind),
}

/// Replaces the occurrence of this number, counted from zero, which must be there.
fn replace(text: &str, nth: usize, from: &str, to: &str) -> String {
    let found = text.match_indices(from).nth(nth);
    let (at, _) = found.unwrap_or_else(|| panic!("`{from}` is not there {} times", nth + 1));
    format!("{}{to}{}", &text[..at], &text[at + from.len()..])
}

fn bench_of(ptx: &str) -> Bench {
    // A seeded endless loop should end soon.
    let device = Emulator::new(EmulatorOptions { budget: 1 << 20, ..EmulatorOptions::default() });
    let module = device.load(&ModuleImage { name: "mutant", ptx, cubin: &[] });
    Bench { module: module.unwrap_or_else(|error| panic!("{error}")), device }
}

/// Runs one kernel over buffers and compares the last of them.
fn outcome(
    bench: &Bench,
    kernel: &str,
    shape: LaunchShape,
    arguments: &[Argument],
    close: impl FnOnce() -> bool,
) -> Outcome {
    match bench.try_run(kernel, shape, arguments) {
        Ok(()) if close() => Outcome::Right,
        Ok(()) => WrongNumbers,
        Err(DriverError::Fault(fault)) => {
            assert_eq!(fault.kernel, kernel);
            assert!(fault.ptx_line > 0 && fault.source.is_some(), "a fault without a place: {fault}");
            Fault(fault.kind)
        }
        Err(other) => panic!("{other}"),
    }
}

fn close(found: &[f32], expected: &[f64]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (f64::from(*found) - expected).abs() < 1e-3)
}

/// A product of 64 by 64 by 96, or with ragged edges.
fn matmul_sized(ptx: &str, [m, n, k]: [usize; 3]) -> Outcome {
    let bench = bench_of(ptx);
    let mut numbers = Numbers(21);
    let mut draw = |count| (0..count).map(|_| bf16::from_f32(numbers.float())).collect::<Vec<_>>();
    let (a, b) = (draw(m * k), draw(k * n));
    let bits = |values: &[bf16]| values.iter().map(|value| value.to_bits()).collect::<Vec<u16>>();
    let (at_a, at_b) = (bench.buffer(&bits(&a)), bench.buffer(&bits(&b)));
    let out = bench.room::<f32>(m * n);
    let mut arguments = [at_a, at_b, out].map(Argument::Pointer).to_vec();
    arguments.extend([m, n, k].map(|size| Argument::I32(size as i32)));
    let mut expected = vec![0.0; m * n];
    for (index, sum) in expected.iter_mut().enumerate() {
        let one = |depth: usize| a[index / n * k + depth].to_f64() * b[depth * n + index % n].to_f64();
        *sum = (0..k).map(one).sum();
    }
    let grid = [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1];
    let shape = LaunchShape { grid, block: [128, 1, 1], shared_bytes: 0 };
    outcome(&bench, "matmul_bf16", shape, &arguments, || close(&bench.values(out, m * n), &expected))
}

fn matmul(ptx: &str) -> Outcome {
    matmul_sized(ptx, [64, 64, 96])
}

fn ragged_matmul(ptx: &str) -> Outcome {
    matmul_sized(ptx, [40, 24, 40])
}

fn saxpy(ptx: &str) -> Outcome {
    let bench = bench_of(ptx);
    let (x, y) = (vec![1.0_f32; 100], vec![2.0_f32; 100]);
    let (at_x, at_y) = (bench.buffer(&x), bench.buffer(&y));
    let arguments =
        [Argument::I32(100), Argument::F32(3.0), Argument::Pointer(at_x), Argument::Pointer(at_y)];
    let right = || close(&bench.values(at_y, 100), &[5.0; 100]);
    outcome(&bench, "saxpy", LaunchShape::linear(1, 128), &arguments, right)
}

fn norm(ptx: &str) -> Outcome {
    let bench = bench_of(ptx);
    let (x, out) = (bench.buffer(&[2.0_f32; 400]), bench.room::<f32>(400));
    let arguments = [Argument::Pointer(x), Argument::Pointer(out), Argument::I32(200), Argument::F32(0.0)];
    let right = || close(&bench.values(out, 400), &[1.0; 400]);
    outcome(&bench, "rms_norm", LaunchShape::linear(2, 128), &arguments, right)
}

fn attention_with(ptx: &str, shared_bytes: u32) -> Outcome {
    let bench = bench_of(ptx);
    // Equal keys weigh all values alike, so that a row is the mean of the values up to it.
    let s = 40;
    let values: Vec<f32> = (0..s * 32).map(|index| (index / 32) as f32).collect();
    let (q, k, v) =
        (bench.buffer(&vec![0.5_f32; s * 32]), bench.buffer(&vec![0.25_f32; s * 32]), bench.buffer(&values));
    let out = bench.room::<f32>(s * 32);
    let mut arguments = [q, k, v, out].map(Argument::Pointer).to_vec();
    arguments.extend([Argument::I32(s as i32), Argument::F32(0.1)]);
    let shape = LaunchShape { grid: [10, 1, 1], block: [128, 1, 1], shared_bytes };
    let expected: Vec<f64> = (0..s * 32).map(|index| (index / 32) as f64 / 2.0).collect();
    outcome(&bench, "attention", shape, &arguments, || close(&bench.values(out, s * 32), &expected))
}

fn attention(ptx: &str) -> Outcome {
    attention_with(ptx, 2 * 32 * 33 * 4)
}

fn attention_short_of_memory(ptx: &str) -> Outcome {
    attention_with(ptx, 2 * 32 * 33 * 4 - 8)
}

fn histogram(ptx: &str) -> Outcome {
    let bench = bench_of(ptx);
    let x: Vec<u32> = (0..256).map(|index| index * index).collect();
    let (at_x, counts) = (bench.buffer(&x), bench.room::<u32>(16));
    let mut expected = [0_u32; 16];
    for value in &x {
        expected[(value & 15) as usize] += 1;
    }
    let arguments = [Argument::Pointer(at_x), Argument::Pointer(counts), Argument::I32(256)];
    let right = || bench.values::<u32>(counts, 16) == expected;
    outcome(&bench, "histogram", LaunchShape::linear(1, 64), &arguments, right)
}

fn transpose(ptx: &str) -> Outcome {
    let bench = bench_of(ptx);
    let x: Vec<f32> = (0..2048).map(|index| index as f32).collect();
    let (at_x, out) = (bench.buffer(&x), bench.room::<f32>(2048));
    let expected: Vec<f64> = (0..2048)
        .map(|index| f64::from(x[index / 1024 * 1024 + index % 32 * 32 + index % 1024 / 32]))
        .collect();
    let arguments = [Argument::Pointer(at_x), Argument::Pointer(out)];
    outcome(&bench, "transpose", LaunchShape::linear(1, 64), &arguments, || {
        close(&bench.values(out, 2048), &expected)
    })
}

fn hand_over(ptx: &str) -> Outcome {
    let bench = bench_of(ptx);
    let x: Vec<f32> = (0..7 * 32).map(|index| index as f32).collect();
    let (at_x, out) = (bench.buffer(&x), bench.room::<f32>(32));
    let expected: Vec<f64> =
        (0..32).map(|lane| (0..7).map(|round| f64::from(x[round * 32 + 31 - lane])).sum()).collect();
    let arguments = [Argument::Pointer(at_x), Argument::Pointer(out), Argument::I32(7)];
    outcome(&bench, "hand_over", LaunchShape::linear(1, 64), &arguments, || {
        close(&bench.values(out, 32), &expected)
    })
}

/// Runs the kernel as it is, which must be right, and with one replacement.
fn seeded(file: &str, run: fn(&str) -> Outcome, nth: usize, from: &str, to: &str) -> Outcome {
    let text = kernel_text(file);
    let unchanged = run(&text);
    assert!(matches!(unchanged, Outcome::Right), "{file} without a fault: {unchanged:?}");
    run(&replace(&text, nth, from, to))
}

macro_rules! caught {
    ($name:ident, $file:literal, $run:ident, $nth:literal, $from:literal => $to:literal, $expected:pat) => {
        #[test]
        fn $name() {
            let outcome = seeded($file, $run, $nth, $from, $to);
            assert!(matches!(outcome, $expected), "{outcome:?}");
        }
    };
}

use FaultKind as Kind;
use Outcome::{Fault, WrongNumbers};

// Barriers.
caught!(no_barrier_after_the_copies, "matmul", matmul, 0, "bar.sync \t0;" => "",
    Fault(Kind::Race { access: Access::Read, .. } | Kind::CopyNotAwaited { .. }));
caught!(no_barrier_before_the_next_copies, "matmul", matmul, 1, "bar.sync \t0;" => "",
    Fault(Kind::Race { access: Access::Write, other: Access::Read, .. } | Kind::CopyNotAwaited { .. }));
caught!(no_barrier_before_a_partial_sum_is_read, "attention", norm, 0, "bar.sync \t0;" => "",
    Fault(Kind::Race { .. } | Kind::Uninitialised { .. }));
caught!(no_barrier_before_scratch_is_used_again, "attention", attention, 4, "bar.sync \t0;" => "",
    Fault(Kind::Race { .. }));
caught!(no_barrier_after_bins_are_cleared, "exchange", histogram, 0, "bar.sync \t0;" => "",
    Fault(Kind::Race { .. } | Kind::Uninitialised { .. }));
caught!(no_barrier_of_the_warp, "exchange", transpose, 0, "bar.warp.sync \t-1;" => "",
    Fault(Kind::Race { other_lane: Some(_), .. }));
caught!(the_writer_does_not_wait_for_the_reader, "exchange", hand_over, 1, "bar.sync 2, 64;" => "bar.arrive 2, 64;",
    Fault(Kind::Race { .. }));
caught!(a_barrier_of_too_many_threads, "attention", norm, 0, "bar.sync \t0;" => "bar.sync 0, 160;",
    Fault(Kind::Deadlock { .. }));
caught!(a_barrier_for_some_threads_only, "attention", norm, 0, "bar.sync \t0;" => "@%p8 bar.sync 0;",
    Fault(Kind::DivergentBarrier { .. }));

// Asynchronous copies.
caught!(a_wait_that_leaves_too_many, "matmul", matmul, 0, "cp.async.wait_group 1;" => "cp.async.wait_group 2;",
    Fault(Kind::CopyNotAwaited { .. }));
caught!(a_last_wait_that_leaves_one, "matmul", matmul, 0, "cp.async.wait_group 0;" => "cp.async.wait_group 1;",
    Fault(Kind::CopyNotAwaited { .. }));
caught!(a_group_that_is_not_committed, "matmul", matmul, 1, "cp.async.commit_group;" => "",
    Fault(Kind::CopyNotAwaited { .. }));
caught!(a_copy_to_a_crooked_address, "matmul", matmul, 0, "shared.global [%r57]" => "shared.global [%r57+8]",
    Fault(Kind::Misaligned { align: 16, .. }));
caught!(a_copy_past_the_edge, "matmul", ragged_matmul, 0, "[%rd104], 16, %r58;" => "[%rd104+8192], 16;",
    Fault(Kind::OutOfBounds { .. }));

// Memory.
caught!(no_check_of_the_end, "basic", saxpy, 0, "@%p1 bra" => "@!%p1 bra",
    WrongNumbers | Fault(Kind::OutOfBounds { .. }));
caught!(an_element_too_far, "basic", saxpy, 0, "st.global.f32 \t[%rd7]" => "st.global.f32 \t[%rd7+4]",
    Fault(Kind::OutOfBounds { .. }) | WrongNumbers);
caught!(a_load_that_is_not_aligned, "basic", saxpy, 0, "ld.global.nc.f32 \t%f2, [%rd6]" => "ld.global.nc.f32 \t%f2, [%rd6+2]",
    Fault(Kind::Misaligned { align: 4, .. }));
caught!(a_tile_that_is_never_stored, "exchange", transpose, 0, "st.shared.f32 \t[%rd11+924], %f8;" => "",
    Fault(Kind::Uninitialised { .. }));
caught!(a_store_past_a_variable, "attention", norm, 0, "st.shared.f32 \t[%rd12], %f4;" => "st.shared.f32 \t[%rd12+128], %f4;",
    Fault(Kind::OutOfBounds { .. }));
caught!(a_sum_that_is_not_atomic, "exchange", histogram, 0, "atom.shared.add.u32 \t%r9, [%rd13], 1;" => "st.shared.u32 [%rd13], %r11;",
    Fault(Kind::LanesConflict { .. } | Kind::Race { .. }));

// Lanes.
caught!(a_shuffle_that_some_lanes_skip, "attention", norm, 6, "shfl.sync.bfly.b32" => "@%p8 shfl.sync.bfly.b32",
    Fault(Kind::DivergentLanes { .. }));
caught!(a_shuffle_that_names_half_a_warp, "attention", norm, 1, "%r14;" => "65535;",
    Fault(Kind::DivergentLanes { .. }));
caught!(swapped_fragments_of_a, "matmul", matmul, 0, "{%r99,%r100,%r101,%r102}, {%r109,%r110}" => "{%r99,%r101,%r100,%r102}, {%r109,%r110}",
    WrongNumbers);
caught!(swapped_fragments_of_b, "matmul", matmul, 0, "{%r109,%r110}, {%f304" => "{%r110,%r109}, {%f304",
    WrongNumbers);
caught!(a_matrix_that_is_not_transposed, "matmul", matmul, 0, "x2.trans.shared" => "x2.shared", WrongNumbers);

// Control.
caught!(a_loop_that_does_not_end, "exchange", histogram, 0, "@%p3 bra" => "bra", Fault(Kind::BudgetSpent { .. } | Kind::OutOfBounds { .. }));

#[test]
fn too_little_dynamic_memory() {
    let text = kernel_text("attention");
    assert!(matches!(attention(&text), Outcome::Right));
    let outcome = attention_short_of_memory(&text);
    assert!(matches!(outcome, Fault(Kind::OutOfBounds { .. })), "{outcome:?}");
}
