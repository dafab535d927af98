//! Resident memory stays within what the program says a rank touches.

mod support;

use dtlc_runtime::program::*;
use dtlc_runtime::session::Options;
use support::*;

/// Bytes of this process that are resident.
fn resident() -> u64 {
    let statistics = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statistics.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("the second number is there") * 4096
}

#[test]
fn a_step_touches_what_the_program_says() {
    let mut program = empty_program(&[("dp", 2)]);
    let bytes = 32 << 20;
    program.arena_bytes = 2 * bytes;
    let (first, second) =
        (BufferRef::new(Space::Arena, 0, bytes), BufferRef::new(Space::Arena, bytes, bytes));
    let copy = Operation::Copy {
        source: first.clone(),
        target: second.clone(),
        rows: 1,
        row_bytes: bytes,
        source_pitch: 0,
        target_pitch: 0,
    };
    let tensor = CollectiveTensor {
        source: first.clone(),
        target: second,
        dtype: DType::F32,
        transfer: Transfer::whole(bytes / 4),
    };
    let kind = CollectiveKind::AllReduce(Reduction::Sum);
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
    let fill = Operation::Fill { target: first, dtype: DType::F32, value: 1.5 };
    program.instructions =
        with_dones(vec![at(0, fill), at(1, copy), at(2, Operation::Collective(collective))]);
    let before = resident();
    let mut session = start(&program, Options { threads: Some(2), ..Options::default() });
    for step in 1..=3 {
        session.step(step, 0).expect("the step runs");
    }
    let touched = resident() - before;
    let promised = 2 * session.rank_bytes();
    assert!(touched <= promised + promised / 20, "{touched} bytes are resident, {promised} were promised");
    assert!(touched >= 4 * bytes, "the arenas were touched");
}
