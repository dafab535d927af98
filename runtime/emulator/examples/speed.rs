//! How many instructions of warps a core emulates in a second, on the kernels of the tests, with and without the host's vector instructions, the race
//! check and the check between streams. The four ways of each kernel alternate, and the best of some rounds counts.

use dtlc_emulator::{
    Argument, CudaDriver, DriverError, Emulator, EmulatorOptions, Isa, LaunchShape, ModuleImage, RaceCheck,
    Stream, StreamCheck,
};
use std::time::Duration;

/// A kernel, its launch, and the bytes of its buffers, which come before the numbers among its arguments.
struct Case {
    text: &'static str,
    kernel: &'static str,
    shape: LaunchShape,
    buffers: &'static [usize],
    numbers: &'static [Argument],
}

const ROUNDS: usize = 5;

fn cases() -> [Case; 4] {
    let basic = include_str!("../tests/kernels/basic.ptx");
    let matmul = include_str!("../tests/kernels/matmul.ptx");
    let attention = include_str!("../tests/kernels/attention.ptx");
    [
        Case {
            text: basic,
            kernel: "saxpy",
            shape: LaunchShape::linear(4096, 256),
            buffers: &[4 << 20, 4 << 20],
            numbers: &[Argument::I32(1 << 20), Argument::F32(0.5)],
        },
        Case {
            text: attention,
            kernel: "rms_norm",
            shape: LaunchShape::linear(256, 256),
            buffers: &[4 << 20, 4 << 20],
            numbers: &[Argument::I32(4096), Argument::F32(1e-5)],
        },
        Case {
            text: attention,
            kernel: "attention",
            shape: LaunchShape { grid: [64, 1, 1], block: [128, 1, 1], shared_bytes: 8448 },
            buffers: &[32 << 10, 32 << 10, 32 << 10, 32 << 10],
            numbers: &[Argument::I32(256), Argument::F32(0.2)],
        },
        Case {
            text: matmul,
            kernel: "matmul_bf16",
            shape: LaunchShape { grid: [4, 4, 1], block: [128, 1, 1], shared_bytes: 0 },
            buffers: &[128 << 10, 128 << 10, 256 << 10],
            numbers: &[Argument::I32(256), Argument::I32(256), Argument::I32(256)],
        },
    ]
}

/// The host's instructions, and what is looked for.
type Way = (Isa, RaceCheck, StreamCheck);

/// Instructions of warps in a second.
fn rate(case: &Case, (isa, races, streams): Way) -> Result<f64, DriverError> {
    let device = Emulator::new(EmulatorOptions { isa, races, streams, ..EmulatorOptions::default() });
    let module = device.load(&ModuleImage { name: case.kernel, ptx: case.text, cubin: &[] })?;
    let kernel = device.kernel(module, case.kernel)?;
    let mut pointers = Vec::new();
    for bytes in case.buffers {
        let pointer = device.allocate(*bytes as u64)?;
        device.fill(pointer, 0, *bytes as u64, Stream::DEFAULT)?;
        pointers.push(Argument::Pointer(pointer));
    }
    // Of these kernels only the first takes its numbers before its pointers.
    let arguments = if case.kernel == "saxpy" {
        [case.numbers, &pointers].concat()
    } else {
        [&pointers, case.numbers].concat()
    };
    let begun = processor_time();
    device.launch(kernel, case.shape, &arguments, Stream::DEFAULT)?;
    Ok(device.instructions() as f64 / (processor_time() - begun).as_secs_f64())
}

/// The time that this thread has had a processor, which a busy machine does not distort; the kernel says it in nanoseconds.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn main() -> Result<(), DriverError> {
    let ways = [
        (Isa::detect(), RaceCheck::On, StreamCheck::On),
        (Isa::detect(), RaceCheck::Off, StreamCheck::On),
        (Isa::detect(), RaceCheck::On, StreamCheck::Off),
        (Isa::Plain, RaceCheck::On, StreamCheck::On),
    ];
    println!(
        "million warp instructions a second; {:?} with all checks, without that of races, without that of streams; plain",
        Isa::detect()
    );
    for case in cases() {
        let mut best = [0.0_f64; 4];
        for _ in 0..ROUNDS {
            for (best, way) in best.iter_mut().zip(ways) {
                *best = best.max(rate(&case, way)?);
            }
        }
        let [all, no_races, no_streams, plain] = best.map(|rate| rate / 1e6);
        println!("{:12} {all:6.1} {no_races:6.1} {no_streams:6.1} {plain:6.1}", case.kernel);
    }
    Ok(())
}
