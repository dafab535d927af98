//! Emitted kernels against the interpreter: the shapes that fusion produces, with odd extents, strides and types, as
//! machine code on this host and as CUDA C++ on an emulated GPU.

#[path = "support/device.rs"]
mod device;
mod support;

use device::{Bench, Placing, nvrtc};
use dtlc_codegen::kir::{
    Access, AxisKind, Buffer, Combination, Comparison, Constant, Draw, ElementType, Index, Kernel,
    KernelBuilder, ScalarType, UnaryOperator, Variable, parse,
};
use dtlc_codegen::math::{self, Host};
use support::{assert_close, execute, judge, judge_gpu, targets};

/// Numbers in [-4, 4) that look random and never change.
fn floats(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 2_097_152.0 - 4.0
    };
    (0..count).map(|_| next()).collect()
}

fn f32s(count: usize, seed: u32) -> Buffer {
    Buffer::F32(floats(count, seed))
}

fn bf16s(count: usize, seed: u32) -> Buffer {
    let bits = |value: f32| (value.to_bits() >> 16) as u16;
    Buffer::Bf16(floats(count, seed).into_iter().map(bits).collect())
}

/// The nearest f16, by its bits.
fn f16_bits(number: f32) -> u16 {
    math::to_f16_bits(&mut Host { is_fused: true }, &number) as u16
}

/// Compares emitted code with the interpreter on every target, and split with whole calls bit for bit; a GPU's too, over
/// all blocks and over two.
fn check(kernel: &Kernel, buffers: &[Buffer], integers: &[i64], tolerance: f64) -> Vec<Buffer> {
    assert_eq!(parse(&kernel.to_string()).as_ref(), Ok(kernel), "{kernel}");
    let mut last = Vec::new();
    for target in targets() {
        let found = execute(kernel, target, buffers, integers, &[]);
        assert_close(&found, &judge(kernel, target, buffers, integers), tolerance);
        let extent = kernel.parallel_extent();
        let splits = [extent / 7, extent / 3, extent - extent / 5];
        let parts = execute(kernel, target, buffers, integers, &splits);
        assert_close(&parts, &found, 0.0);
        last = found;
    }
    if let Some(nvrtc) = nvrtc() {
        for placing in [Placing::Aligned, Placing::Odd] {
            let bench = Bench::new(nvrtc, std::slice::from_ref(kernel), placing);
            let found = bench.run(kernel, 0, buffers, integers, None);
            assert_close(&found, &judge_gpu(kernel, buffers, integers), tolerance);
            assert_close(&bench.run(kernel, 0, buffers, integers, Some(2)), &found, 0.0);
        }
    }
    last
}

/// `out = silu(a) · b` over one flat vector axis.
fn gated(extent: u64, element: ElementType) -> Kernel {
    let mut k = KernelBuilder::new("gated");
    let a = k.tensor("a", element, Access::Read, extent);
    let b = k.tensor("b", element, Access::Read, extent);
    let out = k.tensor("out", element, Access::Write, extent);
    let i = k.axis("i", extent, AxisKind::Vector);
    k.nest(i, |k| {
        let x = k.load(a, i);
        let y = k.load(b, i);
        let gate = k.unary(UnaryOperator::Sigmoid, x);
        let silu = k.multiply(x, gate);
        let product = k.multiply(silu, y);
        k.store(out, i, product);
    });
    k.finish().expect("a valid kernel")
}

#[test]
fn elementwise_kernels_of_any_extent() {
    for extent in [1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 64, 67, 1000] {
        let kernel = gated(extent, ElementType::F32);
        let count = extent as usize;
        check(&kernel, &[f32s(count, 1), f32s(count, 2), f32s(count, 3)], &[], 0.0);
        let halves = floats(count, 4).into_iter().map(f16_bits);
        let halves = Buffer::F16(halves.collect());
        check(&gated(extent, ElementType::F16), &[halves.clone(), halves.clone(), halves], &[], 0.0);
        let kernel = gated(extent, ElementType::Bf16);
        check(&kernel, &[bf16s(count, 1), bf16s(count, 2), bf16s(count, 3)], &[], 0.0);
    }
}

/// `to = from`, element by element.
fn converted(from: ElementType, to: ElementType, count: u64) -> Kernel {
    let mut k = KernelBuilder::new("converted");
    let source = k.tensor("from", from, Access::Read, count);
    let target = k.tensor("to", to, Access::Write, count);
    let i = k.axis("i", count, AxisKind::Vector);
    k.nest(i, |k| {
        let value = k.load(source, i);
        k.store(target, i, value);
    });
    k.finish().expect("a valid kernel")
}

/// Every f16, and between any two what lies in the middle and beside that, of either sign, through emitted code, a vector at a time and one by one: the
/// bits that the interpreter has, which `math.rs` holds to their definition.
#[test]
fn f16_is_converted_to_the_bit() {
    let widened = |bits: u32| math::of_f16_bits(&mut Host { is_fused: true }, &bits);
    let between = |bits: u32| {
        let middle = (widened(bits) + widened(bits + 1)) / 2.0;
        let middle = if bits == 0x7bff { 65_520.0 } else { middle };
        [middle.next_down(), -middle, middle.next_up()]
    };
    let special = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN, 1e-40, -1e-40, 65_536.0];
    let floats: Vec<f32> = (0..0x7c00).flat_map(between).chain(special).collect();
    let halves: Vec<u16> = (0..=u16::MAX).chain([0x3c00; 3]).collect();
    let count = halves.len();
    let kernel = converted(ElementType::F16, ElementType::F32, count as u64);
    check(&kernel, &[Buffer::F16(halves), f32s(count, 1)], &[], 0.0);
    let count = floats.len();
    let kernel = converted(ElementType::F32, ElementType::F16, count as u64);
    check(&kernel, &[Buffer::F32(floats), Buffer::F16(vec![0; count])], &[], 0.0);
}

/// RMSNorm of rows: a sum over the row, then the row again.
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
        let count = k.f32(width as f32);
        let mean = k.divide(total, count);
        let epsilon = k.f32(1e-5);
        let mean = k.add(mean, epsilon);
        let scale = k.unary(UnaryOperator::ReciprocalSqrt, mean);
        k.nest(d, |k| {
            let value = k.load(x, at.clone());
            let value = k.multiply(value, scale);
            let weight = k.load(weight, d);
            let value = k.multiply(value, weight);
            k.store(y, at.clone(), value);
        });
    });
    k.finish().expect("a valid kernel")
}

#[test]
fn rows_are_reduced_and_read_again() {
    for (rows, width) in [(1, 1), (3, 2), (5, 7), (4, 16), (7, 33), (9, 130), (3, 512), (3, 515), (2, 2048)] {
        let count = (rows * width) as usize;
        let buffers = [f32s(count, 4), f32s(width as usize, 5), f32s(count, 6)];
        check(&rms_norm(rows, width), &buffers, &[], 3e-6);
    }
}

/// Softmax of rows: maximum, sum of exponentials, then the quotient, in place where `x` and `y` are one buffer.
fn softmax(rows: u64, width: u64) -> Kernel {
    let mut k = KernelBuilder::new("softmax");
    let x = k.tensor("x", ElementType::F32, Access::ReadWrite, rows * width);
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
            k.store(x, at.clone(), value);
        });
        let sum = k.total(sum);
        let one = k.f32(1.0);
        let scale = k.divide(one, sum);
        k.nest(d, |k| {
            let value = k.load(x, at.clone());
            let value = k.multiply(value, scale);
            k.store(x, at.clone(), value);
        });
    });
    k.finish().expect("a valid kernel")
}

#[test]
fn softmax_rows_sum_to_one() {
    for (rows, width) in [(2, 1), (3, 5), (4, 19), (2, 257), (2, 777), (1, 4096)] {
        let found = check(&softmax(rows, width), &[f32s((rows * width) as usize, 7)], &[], 3e-6);
        let Buffer::F32(data) = &found[0] else { panic!() };
        for row in data.chunks(width as usize) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }
}

#[test]
fn a_not_a_number_reaches_the_whole_row() {
    for position in 0..37 {
        let mut data = floats(3 * 37, 8);
        data[37 + position] = f32::NAN;
        for target in targets() {
            let found = execute(&softmax(3, 37), target, &[Buffer::F32(data.clone())], &[], &[]);
            let Buffer::F32(found) = &found[0] else { panic!() };
            let is_poisoned: Vec<bool> = found.chunks(37).map(|row| row.iter().all(|x| x.is_nan())).collect();
            assert_eq!(is_poisoned, [false, true, false]);
            assert!(found[..37].iter().chain(&found[74..]).all(|x| x.is_finite()));
        }
    }
}

/// Rows written in a first phase and read backwards in a second: on a GPU by threads that did not write them.
fn reversed(rows: u64, width: u64) -> Kernel {
    let mut k = KernelBuilder::new("reversed");
    let x = k.tensor("x", ElementType::F32, Access::ReadWrite, rows * width);
    let first = k.tensor("first", ElementType::F32, Access::ReadWrite, rows);
    let out = k.tensor("out", ElementType::F32, Access::Write, rows * width);
    let row = k.axis("row", rows, AxisKind::Serial);
    let d = k.axis("d", width, AxisKind::Vector);
    let at = Index::from(d).plus(width as i64, row);
    k.nest(row, |k| {
        k.nest(d, |k| {
            let value = k.load(x, at.clone());
            let value = k.multiply(value, value);
            k.store(x, at.clone(), value);
        });
        // One thread's store, which all of them read.
        let last = k.load(x, Index::constant(width as i64 - 1).plus(width as i64, row));
        k.store(first, row, last);
        k.nest(d, |k| {
            let backwards = Index::constant(width as i64 - 1).plus(-1, d).plus(width as i64, row);
            let value = k.load(x, backwards);
            let factor = k.load(first, row);
            let product = k.multiply(value, factor);
            k.store(out, at.clone(), product);
        });
    });
    k.finish().expect("a valid kernel")
}

#[test]
fn a_row_is_read_by_others_than_wrote_it() {
    for (rows, width) in [(5, 3), (3, 37), (2, 700), (2, 1027)] {
        let count = (rows * width) as usize;
        let buffers = [f32s(count, 24), f32s(rows as usize, 25), f32s(count, 26)];
        check(&reversed(rows, width), &buffers, &[], 0.0);
    }
}

/// Several accumulators of all kinds at once, over an inner serial and vector loop.
#[test]
fn several_accumulators_run_at_once() {
    let (planes, rows, width) = (3, 4, 21);
    let mut k = KernelBuilder::new("statistics");
    let x = k.tensor("x", ElementType::F32, Access::Read, planes * rows * width);
    let n = k.tensor("n", ElementType::I32, Access::Read, planes * rows * width);
    let out = k.tensor("out", ElementType::F32, Access::Write, planes * 3);
    let counts = k.tensor("counts", ElementType::I32, Access::Write, planes * 3);
    let plane = k.axis("plane", planes, AxisKind::Serial);
    let row = k.axis("row", rows, AxisKind::Serial);
    let d = k.axis("d", width, AxisKind::Vector);
    let at = Index::from(d).plus(width as i64, row).plus((rows * width) as i64, plane);
    k.nest(plane, |k| {
        let kinds = [Combination::Sum, Combination::Maximum, Combination::Minimum];
        let of_floats = kinds.map(|kind| k.start(kind, ScalarType::F32));
        let of_integers = kinds.map(|kind| k.start(kind, ScalarType::I32));
        k.nest(row, |k| {
            k.nest(d, |k| {
                let value = k.load(x, at.clone());
                let count = k.load(n, at.clone());
                of_floats.iter().for_each(|&accumulator| k.combine(accumulator, value));
                of_integers.iter().for_each(|&accumulator| k.combine(accumulator, count));
            });
        });
        for (place, (float, integer)) in of_floats.into_iter().zip(of_integers).enumerate() {
            let at = Index::constant(place as i64).plus(3, plane);
            let float = k.total(float);
            k.store(out, at.clone(), float);
            let integer = k.total(integer);
            k.store(counts, at, integer);
        }
    });
    let kernel = k.finish().expect("a valid kernel");
    let count = (planes * rows * width) as usize;
    let integers = floats(count, 10).into_iter().map(|x| (x * 1e8) as i32).collect();
    let buffers = [f32s(count, 9), Buffer::I32(integers), f32s(9, 1), Buffer::I32(vec![0; 9])];
    check(&kernel, &buffers, &[], 1e-5);
}

/// A norm weight's gradient: columns reduced over rows, in memory by tiles, or in accumulators of each column.
#[test]
fn columns_are_reduced_over_rows() {
    let (rows, width) = (13, 150);
    let build = |in_memory: bool| {
        let mut k = KernelBuilder::new("columns");
        let x = k.tensor("x", ElementType::Bf16, Access::Read, rows * width);
        let g = k.tensor("g", ElementType::F32, Access::Read, rows * width);
        let out = k.tensor("out", ElementType::F32, Access::ReadWrite, width);
        let row = k.axis("row", rows, AxisKind::Serial);
        let product = |k: &mut KernelBuilder, d| {
            let at = Index::from(d).plus(width as i64, row);
            let x = k.load(x, at.clone());
            let g = k.load(g, at);
            k.multiply(x, g)
        };
        if in_memory {
            let (tile, d) = k.tiled_axis("d", width, 64, AxisKind::Vector);
            k.nest(tile, |k| {
                k.nest(row, |k| {
                    k.nest(d, |k| {
                        let product = product(k, d);
                        k.accumulate(out, d, Combination::Sum, product);
                    });
                });
            });
        } else {
            let d = k.axis("d", width, AxisKind::Vector);
            k.nest(d, |k| {
                let sum = k.start(Combination::Sum, ScalarType::F32);
                k.nest(row, |k| {
                    let product = product(k, d);
                    k.combine(sum, product);
                });
                let before = k.load(out, d);
                let sum = k.total(sum);
                let after = k.add(before, sum);
                k.store(out, d, after);
            });
        }
        k.finish().expect("a valid kernel")
    };
    let count = (rows * width) as usize;
    let buffers = [bf16s(count, 11), f32s(count, 12), f32s(width as usize, 13)];
    for in_memory in [false, true] {
        check(&build(in_memory), &buffers, &[], 3e-6);
    }
}

/// A full sum: tiles of fixed size into partial sums, so that the split of the work does not matter.
#[test]
fn a_whole_tensor_is_reduced_by_tiles() {
    let extent = 1003;
    let mut k = KernelBuilder::new("partial_sums");
    let x = k.tensor("x", ElementType::F32, Access::Read, extent);
    let out = k.tensor("out", ElementType::F32, Access::Write, extent.div_ceil(100));
    let (tile, i) = k.tiled_axis("i", extent, 100, AxisKind::Vector);
    k.nest(tile, |k| {
        let sum = k.start(Combination::Sum, ScalarType::F32);
        k.nest(i, |k| {
            let value = k.load(x, i);
            let square = k.multiply(value, value);
            k.combine(sum, square);
        });
        let sum = k.total(sum);
        k.store(out, tile, sum);
    });
    let kernel = k.finish().expect("a valid kernel");
    check(&kernel, &[f32s(extent as usize, 14), f32s(11, 0)], &[], 3e-6);
}

#[test]
fn strides_integers_and_transposes() {
    let (rows, width) = (6, 29);
    let mut k = KernelBuilder::new("transpose");
    let x = k.tensor("x", ElementType::Bf16, Access::Read, rows * width + 40);
    let bias = k.tensor("bias", ElementType::F32, Access::Read, rows);
    let out = k.tensor("out", ElementType::Bf16, Access::Write, rows * width);
    let shift = k.integer("shift", Some((0, 40)));
    let row = k.axis("row", rows, AxisKind::Serial);
    let d = k.axis("d", width, AxisKind::Vector);
    k.nest(row, |k| {
        k.nest(d, |k| {
            let bias = k.load(bias, row);
            let last = (rows * width - 1) as i64;
            let backwards = Index::constant(last).plus(-1, d).plus(-(width as i64), row).plus(1, shift);
            let value = k.load(x, backwards);
            let sum = k.add(value, bias);
            k.store(out, Index::from(row).plus(rows as i64, d), sum);
        });
    });
    let kernel = k.finish().expect("a valid kernel");
    let count = (rows * width) as usize;
    for shift in [0, 17, 40] {
        let buffers = [bf16s(count + 40, 15), f32s(rows as usize, 16), bf16s(count, 17)];
        check(&kernel, &buffers, &[shift], 0.0);
    }
}

/// Labels and masks: coordinates compared with integers from data.
#[test]
fn coordinates_compare_with_labels() {
    let (rows, width) = (5, 23);
    let mut k = KernelBuilder::new("pick");
    let x = k.tensor("x", ElementType::F32, Access::Read, rows * width);
    let labels = k.tensor("labels", ElementType::U32, Access::Read, rows);
    let mask = k.tensor("mask", ElementType::Bool, Access::Read, rows * width);
    let picked = k.tensor("picked", ElementType::F32, Access::Write, rows);
    let hit = k.tensor("hit", ElementType::Bool, Access::Write, rows * width);
    let start = k.integer("start", None);
    let row = k.axis("row", rows, AxisKind::Serial);
    let v = k.axis("v", width, AxisKind::Vector);
    let at = Index::from(v).plus(width as i64, row);
    k.nest(row, |k| {
        let sum = k.start(Combination::Sum, ScalarType::F32);
        k.nest(v, |k| {
            let label = k.load(labels, row);
            let coordinate = k.coordinate(Index::from(v).plus(1, start));
            let coordinate = k.cast(ScalarType::U32, coordinate);
            let is_label = k.compare(Comparison::Equal, label, coordinate);
            let value = k.load(x, at.clone());
            let zero = k.f32(0.0);
            let value = k.select(is_label, value, zero);
            k.combine(sum, value);
            let allowed = k.load(mask, at.clone());
            let both = k.binary(dtlc_codegen::kir::BinaryOperator::And, allowed, is_label);
            k.store(hit, at.clone(), both);
        });
        let sum = k.total(sum);
        k.store(picked, row, sum);
    });
    let kernel = k.finish().expect("a valid kernel");
    let count = (rows * width) as usize;
    let mask = (0..count).map(|n| (n % 3) as u8).collect();
    let buffers = [
        f32s(count, 18),
        Buffer::U32(vec![100, 122, u32::MAX, 111, 5]),
        Buffer::Bool(mask),
        f32s(rows as usize, 0),
        Buffer::Bool(vec![7; count]),
    ];
    let found = check(&kernel, &buffers, &[100], 0.0);
    let (Buffer::F32(x), Buffer::F32(picked)) = (&buffers[0], &found[3]) else { panic!() };
    assert_eq!(picked, &[x[0], x[23 + 22], 0.0, x[3 * 23 + 11], 0.0]);
}

/// An embedding row, its scattered gradient, and a gather that differs by lane; out-of-range data stays inside.
#[test]
fn data_chooses_rows() {
    let (rows, width, vocabulary) = (7, 19, 11);
    let mut k = KernelBuilder::new("take");
    let table = k.tensor("table", ElementType::F32, Access::Read, vocabulary * width);
    let tokens = k.tensor("tokens", ElementType::U32, Access::Read, rows);
    let out = k.tensor("out", ElementType::F32, Access::Write, rows * width);
    let gradient = k.tensor("gradient", ElementType::F32, Access::ReadWrite, vocabulary * width);
    let columns = k.tensor("columns", ElementType::U32, Access::Read, width);
    let d = k.axis("d", width, AxisKind::Vector);
    let row = k.axis("row", rows, AxisKind::Serial);
    k.nest(d, |k| {
        let column = k.load(columns, d);
        k.nest(row, |k| {
            let token = k.load(tokens, row);
            let chosen = Variable::Data { register: token, bound: vocabulary as u32 };
            let value = k.load(table, Index::from(d).plus(width as i64, chosen));
            let column = Variable::Data { register: column, bound: width as u32 };
            let other = k.load(table, Index::from(column).plus(width as i64, chosen));
            let sum = k.add(value, other);
            k.store(out, Index::from(d).plus(width as i64, row), sum);
            k.accumulate(gradient, Index::from(d).plus(width as i64, chosen), Combination::Sum, sum);
        });
    });
    let kernel = k.finish().expect("a valid kernel");
    let columns = (0..19).map(|n| (n * 7 + 3) % 23).collect();
    let buffers = [
        f32s((vocabulary * width) as usize, 19),
        Buffer::U32(vec![3, 0, 10, 3, u32::MAX, 11, 3]),
        f32s((rows * width) as usize, 20),
        f32s((vocabulary * width) as usize, 21),
        Buffer::U32(columns),
    ];
    check(&kernel, &buffers, &[], 0.0);
}

#[test]
fn random_draws_depend_on_the_coordinate_alone() {
    let extent = 45;
    let mut k = KernelBuilder::new("random");
    let bits = k.tensor("bits", ElementType::U32, Access::Write, extent * 4);
    let unit = k.tensor("unit", ElementType::F32, Access::Write, extent);
    let key = [k.integer("seed", None), k.integer("stream", None)];
    let start = k.integer("start", None);
    let i = k.axis("i", extent, AxisKind::Vector);
    k.nest(i, |k| {
        let key = key.map(Index::from);
        let counter = Index::from(start).plus(3, i);
        for word in 0..4 {
            let drawn = k.random(key.clone(), counter.clone(), word, Draw::Bits);
            k.store(bits, Index::constant(i64::from(word)).plus(4, i), drawn);
        }
        let drawn = k.random(key, counter, 1, Draw::Unit);
        k.store(unit, i, drawn);
    });
    let kernel = k.finish().expect("a valid kernel");
    let buffers = [Buffer::U32(vec![0; 180]), f32s(45, 0)];
    for integers in [[0, 0, 0], [-5, 1 << 40, (1 << 32) - 20]] {
        let found = check(&kernel, &buffers, &integers, 0.0);
        let Buffer::F32(unit) = &found[1] else { panic!() };
        assert!(unit.iter().all(|x| (0.0..1.0).contains(x)));
    }
    let found = check(&kernel, &buffers, &[0, 0, 0], 0.0);
    let Buffer::U32(bits) = &found[0] else { panic!() };
    assert_eq!(bits[..4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
}

#[test]
fn invariant_work_is_done_once_and_equal_work_shared() {
    let mut k = KernelBuilder::new("invariant");
    let x = k.tensor("x", ElementType::F32, Access::Read, 64);
    let scale = k.tensor("scale", ElementType::F32, Access::Read, 1);
    let out = k.tensor("out", ElementType::F32, Access::Write, 64);
    let i = k.axis("i", 64, AxisKind::Vector);
    k.nest(i, |k| {
        let scale = k.load(scale, Index::constant(0));
        let constant = k.constant(Constant::f32(3.0));
        let root = k.divide(constant, scale);
        let value = k.load(x, i);
        let again = k.load(x, i);
        let left = k.multiply(value, root);
        let right = k.multiply(again, root);
        let sum = k.add(left, right);
        k.store(out, i, sum);
    });
    let kernel = k.finish().expect("a valid kernel");
    check(&kernel, &[f32s(64, 22), f32s(1, 23), f32s(64, 0)], &[], 0.0);
    let compiled = dtlc_codegen::cranelift::compile(&kernel, targets()[0]).unwrap();
    assert_eq!(compiled.clif.matches("fdiv").count(), 1, "{}", compiled.clif);
    // Chunks of four vectors, one vector and one lane: the product once in each, for each of their vectors.
    assert_eq!(compiled.clif.matches("fmul").count(), 6, "{}", compiled.clif);
}
