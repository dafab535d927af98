//! What happens when a rank is late: the others leave, and the message names rank, place and line.

#![cfg(target_arch = "x86_64")]

mod support;

use std::time::{Duration, Instant};

use dtlc_runtime::RuntimeError;
use dtlc_runtime::program::*;
use dtlc_runtime::session::Options;
use support::*;

/// A program in which the ranks with dp = 1 spin for far longer than the others' time-out before
/// they come to a collective.
fn program_with_late_ranks() -> Program {
    let mut program = empty_program(&[("dp", 2), ("tp", 2)]);
    let integers = vec![Affine::constant(0).plus(Variable::MeshCoordinate(AxisId(0)), 10_000_000)];
    let call = KernelCall { kernel: KernelId(0), pointers: Vec::new(), integers };
    let buffer = BufferRef::new(Space::Arena, 0, 64);
    let kernel = only_kernel(&mut program, WAIT_CODE, call, 1);
    let tensor = CollectiveTensor {
        source: buffer.clone(),
        target: buffer,
        dtype: DType::F32,
        transfer: Transfer::whole(16),
    };
    let kind = CollectiveKind::AllReduce(Reduction::Sum);
    let collective = Collective { kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
    program.instructions = vec![at(0, kernel), at(1, Operation::Collective(collective))];
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
