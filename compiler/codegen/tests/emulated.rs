//! Random kernels as CUDA C++, compiled by NVRTC and run on an emulated GPU with all checks, against the interpreter, bit
//! for bit.

#[path = "support/device.rs"]
mod device;
mod support;

use device::{Bench, Placing, nvrtc};
use dtlc_codegen::kir::Kernel;
use support::generator::{Generator, inputs};
use support::{difference, judge_gpu};

/// Kernels that are compiled together.
const KERNELS_OF_A_FILE: usize = 25;

fn numbers(seed: u32, count: usize) -> Vec<u32> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..count).map(|_| next()).collect()
}

fn judge(placing: Placing, seeds: std::ops::Range<u32>) {
    let Some(nvrtc) = nvrtc() else { return };
    let seeds: Vec<u32> = seeds.collect();
    for seeds in seeds.chunks(KERNELS_OF_A_FILE) {
        let kernels: Vec<Kernel> = seeds
            .iter()
            .map(|&seed| Generator::new(numbers(seed, 8 + seed as usize * 7 % 212)).kernel())
            .collect();
        let bench = Bench::new(nvrtc, &kernels, placing);
        for (number, (kernel, &seed)) in kernels.iter().zip(seeds).enumerate() {
            let shift = i64::from(seed % 9);
            let buffers = inputs(kernel, seed);
            let expected = judge_gpu(kernel, &buffers, &[shift]);
            for blocks in [None, Some(3)] {
                let found = bench.run(kernel, number, &buffers, &[shift], blocks);
                if let Some(difference) = difference(&found, &expected, 0.0) {
                    panic!("seed {seed}, {difference}\n{kernel}\n{}", bench.emitted(number));
                }
            }
        }
    }
}

#[test]
fn kernels_on_aligned_tensors_have_the_bits_of_the_interpreter() {
    judge(Placing::Aligned, 0..100);
}

#[test]
fn kernels_on_tensors_that_begin_anywhere_have_the_bits_of_the_interpreter() {
    judge(Placing::Odd, 100..150);
}
