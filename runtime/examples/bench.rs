//! Times the runtime's parts that are not kernels: `cargo run --release -p dtlc-runtime --example bench`.
//!
//! Prints the time of a 4 MiB all-reduce over 2 ranks beside that of copying 4 MiB, best of several
//! alternating rounds, and the time of a collective too small for its bytes to matter.

use std::time::Instant;

use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session};

const ROUNDS: usize = 200;
const REPEATS: u32 = 10;

fn main() -> dtlc_runtime::Result<()> {
    let bytes = 4 << 20;
    let mut large = Session::start(all_reduce(bytes), Options::default())?;
    let mut small = Session::start(all_reduce(256), Options::default())?;
    let source = vec![1u8; bytes as usize];
    let mut target = vec![0u8; bytes as usize];
    let mut best = [f64::INFINITY; 3];
    for _ in 0..ROUNDS {
        for (index, session) in [&mut large, &mut small].into_iter().enumerate() {
            let start = Instant::now();
            session.step(1, 0)?;
            best[index] = best[index].min(start.elapsed().as_secs_f64() / f64::from(REPEATS));
        }
        let start = Instant::now();
        for _ in 0..REPEATS {
            std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
        }
        best[2] = best[2].min(start.elapsed().as_secs_f64() / f64::from(REPEATS));
    }
    let [reduce, latency, copy] = best.map(|seconds| seconds * 1e6);
    println!(
        "all-reduce of 4 MiB over 2 ranks: {reduce:.0} µs, {:.2} times a copy ({copy:.0} µs)",
        reduce / copy
    );
    println!("all-reduce of 256 bytes over 2 ranks: {latency:.1} µs");
    Ok(())
}

/// A step of many all-reduces in place over two ranks.
fn all_reduce(bytes: u64) -> Program {
    let buffer = BufferRef::new(Space::Arena, 0, bytes);
    let tensor = CollectiveTensor {
        source: buffer.clone(),
        target: buffer,
        dtype: DType::F32,
        transfer: Transfer::whole(bytes / 4),
    };
    let kind = CollectiveKind::AllReduce(Reduction::Sum);
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
    let at = |operation| Instruction { location: LocationId(0), operation };
    let body = vec![at(Operation::Collective(collective)), at(Operation::Done(FlightId(0)))];
    let steps = Loop { count: REPEATS, order: LoopOrder::Forward, body };
    Program {
        name: "bench".into(),
        mesh: Mesh { axes: vec![MeshAxis { name: "dp".into(), size: 2 }] },
        cpu_features: CpuFeatures::default(),
        arena_bytes: bytes,
        state_bytes: 0,
        input_bytes: 0,
        thread_scratch_bytes: 0,
        state: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        kernels: Vec::new(),
        code: Vec::new(),
        locations: vec![Location { file: "bench".into(), line: 0, column: 0, text: "all-reduce".into() }],
        instructions: vec![at(Operation::Loop(steps))],
        device: None,
    }
}
