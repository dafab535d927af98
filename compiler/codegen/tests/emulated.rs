//! Random kernels as CUDA C++, compiled by NVRTC and run on an emulated GPU with all checks, against the interpreter, bit
//! for bit.

#[path = "support/device.rs"]
mod device;
mod support;

use device::{Bench, Placing, nvrtc};
use dtlc_codegen::kir::{Buffer, ElementType, Kernel, TensorParameter, parse};
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

/// Two sums and a maximum down `columns` of `rows` rows in each of `layers` matrices, of which one goes into what is there.
fn sums_down_columns(layers: u64, rows: u64, columns: u64, element: &str) -> Kernel {
    let (matrix, all) = (rows * columns, layers * rows * columns);
    let text = format!(
        "kernel columns {{
  tensor left: {element}[{all}] read
  tensor right: f32[{all}] read
  tensor sums: f32[{sums}] write
  tensor greatest: {element}[{sums}] read_write
  axis layer: {layers} serial
  axis column: {columns} vector
  axis row: {rows} serial
  axis other: {rows} serial
  for layer {{
    for column {{
      start @0: f32 sum
      start @1: f32 maximum
      for row {{
        %0: f32 = load left[column + {columns} row + {matrix} layer]
        %1: f32 = load right[column + {columns} row + {matrix} layer]
        %2: f32 = multiply %0, %1
        combine @0, %2
        combine @1, %0
      }}
      start @2: f32 sum
      for other {{
        %3: f32 = load right[column + {columns} other + {matrix} layer]
        combine @2, %3
      }}
      %4: f32 = total @0
      %5: f32 = total @2
      %6: f32 = add %4, %5
      store sums[column + {columns} layer], %6
      %7: f32 = total @1
      accumulate sum greatest[column + {columns} layer], %7
    }}
  }}
}}
",
        sums = layers * columns,
    );
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Of few columns the threads of a block share out the rows. Sums of small whole numbers are the same in any order.
#[test]
fn columns_whose_rows_are_shared_out() {
    let Some(nvrtc) = nvrtc() else { return };
    let sizes = [(1, 64, 1), (2, 65, 24), (1, 200, 70), (3, 131, 8), (1, 1000, 40), (1, 64, 2200)];
    for placing in [Placing::Aligned, Placing::Odd] {
        let kernels: Vec<Kernel> = sizes
            .iter()
            .flat_map(|&(layers, rows, columns)| {
                ["f32", "bf16"].map(|element| sums_down_columns(layers, rows, columns, element))
            })
            .collect();
        let bench = Bench::new(nvrtc, &kernels, placing);
        for (number, kernel) in kernels.iter().enumerate() {
            let text = bench.emitted(number).to_string();
            assert!(text.matches("dtl::columns_total").count() == 3, "{text}");
            let whole = |tensor: &TensorParameter| {
                let values = (0..tensor.length).map(|at| ((at * 7 + 3) % 9) as f32 - 4.0);
                match tensor.element {
                    ElementType::F32 => Buffer::F32(values.collect()),
                    _ => Buffer::Bf16(values.map(|value| (value.to_bits() >> 16) as u16).collect()),
                }
            };
            let buffers: Vec<Buffer> = kernel.tensors.values().map(whole).collect();
            let expected = judge_gpu(kernel, &buffers, &[]);
            for blocks in [None, Some(1)] {
                let found = bench.run(kernel, number, &buffers, &[], blocks);
                if let Some(difference) = difference(&found, &expected, 0.0) {
                    panic!("{difference}\n{kernel}\n{text}");
                }
            }
        }
    }
}
