//! Measures emitted kernels against copying the same number of bytes: `cargo run --release -p dtlc-codegen --example bench`.
//!
//! Each kernel alternates with the copy in one run, so that the ratio holds on a noisy machine. A ratio of 1 means that
//! the kernel runs as fast as memory allows. All of it on one thread, then on every core, as a rank runs its kernels.

#[path = "../tests/support/mod.rs"]
mod support;

use dtlc_codegen::cranelift::{TargetFeatures, compile};
use dtlc_codegen::kir::{
    Access, AxisKind, Buffer, Combination, ElementType, Index, Kernel, KernelBuilder, Register, ScalarType,
    TensorId, UnaryOperator,
};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use support::{Loaded, pointer};

/// Rows and their width, and in how many parts they are timed: a large case from memory and a small one in cache.
const CASES: [Case; 2] = [
    Case { place: "memory", rows: 4096, width: 2048, parts: 64, repeats: 1, rounds: 20 },
    Case { place: "cache", rows: 8, width: 1024, parts: 1, repeats: 20, rounds: 500 },
];

/// A size and how it is timed. The least time of each part counts, so that being interrupted does not.
struct Case {
    place: &'static str,
    rows: u64,
    width: u64,
    parts: u64,
    repeats: u32,
    rounds: u32,
}

fn main() {
    let features = TargetFeatures::host().expect("a host that runs kernels");
    println!("{features:?}");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in BTreeSet::from([1, cores]) {
        for case in CASES {
            let (rows, width) = (case.rows, case.width);
            for kernel in
                [silu(rows * width), rms_norm(rows, width), softmax(rows, width), adamw(rows * width)]
            {
                measure(&case, &kernel, features, threads);
            }
        }
    }
}

fn measure(case: &Case, kernel: &Kernel, features: TargetFeatures, threads: usize) {
    let start = Instant::now();
    let compiled = compile(kernel, features).unwrap_or_else(|error| panic!("{error}"));
    let compile_time = start.elapsed();
    let loaded = Loaded::new(kernel, &compiled);
    let mut buffers: Vec<Buffer> =
        kernel.tensors.values().map(|tensor| Buffer::F32(vec![0.5; tensor.length as usize])).collect();
    let pointers: Shared<Vec<*mut u8>> = Shared(buffers.iter_mut().map(pointer).collect());

    // What goes over the bus: every element read, every element written.
    let passes = |access| if access == Access::ReadWrite { 2 } else { 1 };
    let bytes: u64 = kernel.tensors.values().map(|tensor| tensor.length * 4 * passes(tensor.access)).sum();
    let copied = bytes / 2;
    let source = vec![1u8; copied as usize];
    let mut target = vec![0u8; copied as usize];
    let target = Shared(target.as_mut_ptr());

    let line = StartLine { threads, arrived: AtomicUsize::new(0) };
    let run = |thread: usize| {
        let share_of = |whole: u64, part: u64| {
            let shares = case.parts * threads as u64;
            let share = part * threads as u64 + thread as u64;
            whole * share / shares..whole * (share + 1) / shares
        };
        let mut kernel_times = vec![f64::MAX; case.parts as usize];
        let mut copy_times = kernel_times.clone();
        for _ in 0..case.rounds {
            for part in 0..case.parts {
                let range = share_of(kernel.parallel_extent(), part);
                let time = line.timed(case.repeats, || loaded.call(pointers.get(), &[], range.clone()));
                kernel_times[part as usize] = kernel_times[part as usize].min(time);
            }
            for part in 0..case.parts {
                let range = share_of(copied, part);
                let source = &source[range.start as usize..range.end as usize];
                let time = line.timed(case.repeats, || {
                    let target = black_box(target.get().wrapping_add(range.start as usize));
                    // SAFETY: the range lies in both, and each thread has its own.
                    unsafe {
                        std::ptr::copy_nonoverlapping(black_box(source).as_ptr(), target, source.len())
                    };
                });
                copy_times[part as usize] = copy_times[part as usize].min(time);
            }
        }
        [kernel_times, copy_times].map(|times| times.iter().sum::<f64>())
    };
    let [kernel_time, copy_time] = std::thread::scope(|scope| {
        (1..threads).for_each(|thread| drop(scope.spawn(move || run(thread))));
        run(0)
    });
    println!(
        "{threads} x {:>6} {:>9}: {:.3} of copy, {:6.2} GB/s, {:.3} ns an element, {} bytes of code in {compile_time:?}",
        case.place,
        kernel.name,
        copy_time / kernel_time,
        bytes as f64 / kernel_time / 1e9,
        kernel_time * 1e9 / (case.rows * case.width) as f64,
        compiled.code.len(),
    );
}

/// Lets threads share what each uses a part of its own of.
struct Shared<T>(T);

// SAFETY: the threads of this program write to parts that don't overlap.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(&self) -> &T {
        &self.0
    }
}

/// Where threads wait for each other before and after what is timed.
struct StartLine {
    threads: usize,
    arrived: AtomicUsize,
}

impl StartLine {
    /// Seconds that one of `repeats` runs takes until the last thread has done it.
    fn timed(&self, repeats: u32, mut run: impl FnMut()) -> f64 {
        self.meet();
        let start = Instant::now();
        for _ in 0..repeats {
            run();
        }
        self.meet();
        start.elapsed().as_secs_f64() / f64::from(repeats)
    }

    fn meet(&self) {
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::Acquire) < all {
            std::hint::spin_loop();
        }
    }
}

/// `out = silu(a) · b`.
fn silu(extent: u64) -> Kernel {
    let mut k = KernelBuilder::new("silu_mul");
    let [a, b] = ["a", "b"].map(|name| k.tensor(name, ElementType::F32, Access::Read, extent));
    let out = k.tensor("out", ElementType::F32, Access::Write, extent);
    let i = k.axis("i", extent, AxisKind::Vector);
    k.nest(i, |k| {
        let (x, y) = (k.load(a, i), k.load(b, i));
        let gate = k.unary(UnaryOperator::Sigmoid, x);
        let silu = k.multiply(x, gate);
        let product = k.multiply(silu, y);
        k.store(out, i, product);
    });
    finish(k)
}

/// `y = x / sqrt(mean(x²) + 1e-5) · weight` for rows.
fn rms_norm(rows: u64, width: u64) -> Kernel {
    let mut k = KernelBuilder::new("rms_norm");
    let x = k.tensor("x", ElementType::F32, Access::Read, rows * width);
    let weight = k.tensor("weight", ElementType::F32, Access::Read, width);
    let y = k.tensor("y", ElementType::F32, Access::Write, rows * width);
    let row = k.axis("row", rows, AxisKind::Serial);
    let d = k.axis("d", width, AxisKind::Vector);
    let at = Index::from(d).plus(width as i64, row);
    k.nest(row, |k| {
        let sum = k.start(Combination::Sum, ScalarType::F32);
        k.nest(d, |k| {
            let value = k.load(x, at.clone());
            let square = k.multiply(value, value);
            k.combine(sum, square);
        });
        let total = k.total(sum);
        let scale = k.f32(1.0 / width as f32);
        let epsilon = k.f32(1e-5);
        let mean = k.multiply_add(total, scale, epsilon);
        let scale = k.unary(UnaryOperator::ReciprocalSqrt, mean);
        k.nest(d, |k| {
            let (value, weight) = (k.load(x, at.clone()), k.load(weight, d));
            let value = k.multiply(value, scale);
            let value = k.multiply(value, weight);
            k.store(y, at.clone(), value);
        });
    });
    finish(k)
}

/// `y = softmax(x)` for rows.
fn softmax(rows: u64, width: u64) -> Kernel {
    let mut k = KernelBuilder::new("softmax");
    let x = k.tensor("x", ElementType::F32, Access::Read, rows * width);
    let y = k.tensor("y", ElementType::F32, Access::ReadWrite, rows * width);
    let row = k.axis("row", rows, AxisKind::Serial);
    let d = k.axis("d", width, AxisKind::Vector);
    let at = Index::from(d).plus(width as i64, row);
    k.nest(row, |k| {
        let most = k.start(Combination::Maximum, ScalarType::F32);
        k.nest(d, |k| {
            let value = k.load(x, at.clone());
            k.combine(most, value);
        });
        let most = k.total(most);
        let sum = k.start(Combination::Sum, ScalarType::F32);
        k.nest(d, |k| {
            let value = k.load(x, at.clone());
            let value = k.subtract(value, most);
            let value = k.unary(UnaryOperator::Exp, value);
            k.combine(sum, value);
            k.store(y, at.clone(), value);
        });
        let sum = k.total(sum);
        let one = k.f32(1.0);
        let scale = k.divide(one, sum);
        k.nest(d, |k| {
            let value = k.load(y, at.clone());
            let value = k.multiply(value, scale);
            k.store(y, at.clone(), value);
        });
    });
    finish(k)
}

/// One AdamW step with the learning rate and bias corrections in a small tensor.
fn adamw(extent: u64) -> Kernel {
    let mut k = KernelBuilder::new("adamw");
    let gradient = k.tensor("gradient", ElementType::F32, Access::Read, extent);
    let [weight, first, second] =
        ["weight", "first", "second"].map(|name| k.tensor(name, ElementType::F32, Access::ReadWrite, extent));
    let factors = k.tensor("factors", ElementType::F32, Access::Read, 4);
    let i = k.axis("i", extent, AxisKind::Vector);
    k.nest(i, |k| {
        let [rate, first_correction, second_correction, decay] =
            [0, 1, 2, 3].map(|place| k.load(factors, Index::constant(place)));
        let g = k.load(gradient, i);
        let m = moving_average(k, first, Index::from(i), g, 0.9);
        let square = k.multiply(g, g);
        let v = moving_average(k, second, Index::from(i), square, 0.95);
        let m = k.multiply(m, first_correction);
        let v = k.multiply(v, second_correction);
        let root = k.unary(UnaryOperator::Sqrt, v);
        let epsilon = k.f32(1e-8);
        let denominator = k.add(root, epsilon);
        let step = k.divide(m, denominator);
        let w = k.load(weight, i);
        let step = k.multiply_add(w, decay, step);
        let step = k.multiply(step, rate);
        let w = k.subtract(w, step);
        k.store(weight, i, w);
    });
    finish(k)
}

fn moving_average(
    k: &mut KernelBuilder,
    average: TensorId,
    at: Index,
    value: Register,
    kept: f32,
) -> Register {
    let before = k.load(average, at.clone());
    let kept_factor = k.f32(kept);
    let new_factor = k.f32(1.0 - kept);
    let part = k.multiply(value, new_factor);
    let after = k.multiply_add(before, kept_factor, part);
    k.store(average, at, after);
    after
}

fn finish(k: KernelBuilder) -> Kernel {
    k.finish().unwrap_or_else(|error| panic!("{error}"))
}
