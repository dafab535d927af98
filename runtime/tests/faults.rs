//! What happens when a rank is late, panics, never comes back or computes NaN: the others leave, and the message names
//! rank, place and line.

#![cfg(target_arch = "x86_64")]

mod support;

use std::time::{Duration, Instant};

use dtlc_runtime::RuntimeError;
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Probe, Session, Watch};
use support::*;

/// A program in which the ranks with dp = 1 spin for far longer than the others' time-out before
/// they come to a collective.
fn program_with_late_ranks() -> Program {
    let mut program = empty_program(&[("dp", 2), ("tp", 2)]);
    let integers = vec![Affine::constant(0).plus(Variable::MeshCoordinate(AxisId(0)), 10_000_000)];
    let call = KernelCall { kernel: KernelId(0), pointers: Vec::new(), integers, floats: Vec::new() };
    let buffer = BufferRef::new(Space::Arena, 0, 64);
    let kernel = only_kernel(&mut program, WAIT_CODE, call, 1);
    let tensor = CollectiveTensor {
        source: buffer.clone(),
        target: buffer,
        dtype: DType::F32,
        transfer: Transfer::whole(16),
    };
    let kind = CollectiveKind::AllReduce(Reduction::Sum);
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
    program.instructions = with_dones(vec![at(0, kernel), at(1, Operation::Collective(collective))]);
    program
}

#[test]
fn a_late_rank_is_named_with_both_places() {
    let program = program_with_late_ranks();
    let mut session = start(&program, Options { timeout: Duration::from_millis(150), ..Options::default() });
    let start = Instant::now();
    let error = session.step(1, 0).expect_err("two ranks are late");
    assert!(start.elapsed() < Duration::from_secs(60), "the others left");
    let text = error.to_string();
    assert_eq!(error.exit_status(), 3);
    assert!(text.contains("rank 2 (dp 1, tp 0)") || text.contains("rank 3 (dp 1, tp 1)"), "{text}");
    assert!(text.contains("test.dtl:7:3 (second)"), "{text}");
    assert!(text.contains("test.dtl:1:3 (first)"), "{text}");
    assert_eq!(session.step(2, 0), Err(error), "no further step");
}

#[test]
fn a_kernel_with_the_wrong_operands_is_refused_before_it_runs() {
    let mut program = program_with_late_ranks();
    program.kernels[0].integers = 2;
    assert!(matches!(program.to_bytes(), Err(RuntimeError::Bug(_))));
}

/// A program in which all ranks come to a collective after an instruction that does nothing.
fn program_that_meets() -> Program {
    let mut program = program_with_late_ranks();
    program.instructions[0].operation =
        Operation::Fill { target: BufferRef::new(Space::Arena, 1024, 64), dtype: DType::F32, value: 0.0 };
    program
}

fn probed(probe: Probe, timeout: Duration) -> Session {
    let watch = Watch { probe: Some(probe), ..Watch::default() };
    start(&program_that_meets(), Options { timeout, watch, ..Options::default() })
}

#[test]
fn a_rank_that_panics_is_named_and_the_others_leave() {
    let probe = |rank, location: LocationId| assert!(rank != 1 || location.0 != 1, "part of a test");
    let mut session = probed(probe, Duration::from_secs(300));
    let start = Instant::now();
    let error = session.step(1, 0).expect_err("a rank panics");
    assert_eq!(error.exit_status(), 4);
    let text = error.to_string();
    assert!(text.contains("rank 1 (dp 0, tp 1) panicked at test.dtl:7:3 (second)"), "{text}");
    drop(session);
    assert!(start.elapsed() < Duration::from_secs(60), "the others wait for the one that panicked");
}

#[test]
fn a_rank_that_never_comes_back_holds_nobody_up() {
    let probe = |rank, location: LocationId| {
        if rank == 2 && location.0 == 0 {
            loop {
                std::thread::park();
            }
        }
    };
    let mut session = probed(probe, Duration::from_millis(150));
    let start = Instant::now();
    let error = session.step(1, 0).expect_err("a rank stalls");
    assert_eq!(error.exit_status(), 3);
    let text = error.to_string();
    assert!(text.contains("rank 2 (dp 1, tp 0) did not arrive at test.dtl:7:3 (second)"), "{text}");
    assert!(text.contains("it is at test.dtl:1:3 (first)"), "{text}");
    assert_eq!(session.step(2, 0), Err(error), "no further step");
    drop(session);
    assert!(start.elapsed() < Duration::from_secs(60), "the session waits for a rank that never comes");
}

#[test]
fn a_rank_that_is_starved_is_waited_for_within_the_time_out() {
    let probe = |rank, _| {
        if rank == 3 {
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    assert_eq!(probed(probe, Duration::from_secs(120)).step(1, 0), Ok(()));
    let error = probed(probe, Duration::from_millis(10)).step(1, 0).expect_err("it is too slow");
    assert!(error.to_string().contains("rank 3 (dp 1, tp 1)"), "{error}");
}

#[test]
fn the_first_value_that_is_not_finite_is_named_on_request() {
    let mut program = empty_program(&[("dp", 2)]);
    // Two floats a word: 1.0, and on the second rank a quiet NaN.
    let one = 0x3f80_0000_i64;
    let values = Affine::constant(one).plus(Variable::MeshCoordinate(AxisId(0)), 0x7fc0_0000 << 32);
    let buffer = BufferRef::new(Space::Arena, 0, 32);
    let floats = vec![(0, DType::F32, LocationId(1))];
    let call = KernelCall { kernel: KernelId(0), pointers: vec![buffer], integers: vec![values], floats };
    let kernel = only_kernel(&mut program, STORE_CODE, call, 4);
    // Each result has a place of its own.
    program.instructions = vec![at(0, kernel)];
    assert_eq!(start(&program, Options::default()).step(1, 0), Ok(()), "nobody asked");
    let watch = Watch { finite: true, ..Watch::default() };
    let error = start(&program, Options { watch, ..Options::default() }).step(5, 0).expect_err("a NaN");
    assert_eq!(error.exit_status(), 3);
    let text = error.to_string();
    assert!(
        text.contains("step 5: rank 1 (dp 1) computes NaN at test.dtl:7:3 (second) (element 1"),
        "{text}"
    );
}
