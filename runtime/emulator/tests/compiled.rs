//! Kernels that NVRTC compiled, against the same arithmetic on the host.

mod support;

use dtlc_emulator::{Argument, LaunchShape};
use half::{bf16, f16};
use support::{Bench, Numbers, kernel_text};

fn basic() -> Bench {
    Bench::new(&kernel_text("basic"))
}

#[test]
fn elementwise_with_a_ragged_end() {
    let bench = basic();
    let mut numbers = Numbers(1);
    let (x, y) = (numbers.floats(1000), numbers.floats(1000));
    let (at_x, at_y) = (bench.buffer(&x), bench.buffer(&y));
    let arguments =
        [Argument::I32(1000), Argument::F32(0.5), Argument::Pointer(at_x), Argument::Pointer(at_y)];
    bench.run("saxpy", LaunchShape::linear(8, 128), &arguments);
    let found: Vec<f32> = bench.values(at_y, 1000);
    for index in 0..1000 {
        assert_eq!(found[index], 0.5_f32.mul_add(x[index], y[index]), "element {index}");
    }
}

#[test]
fn halves() {
    let bench = basic();
    let mut numbers = Numbers(2);
    let x: Vec<bf16> = numbers.floats(70).into_iter().map(bf16::from_f32).collect();
    let h: Vec<f16> = numbers.floats(70).into_iter().map(f16::from_f32).collect();
    let bits = |values: &[bf16]| values.iter().map(|value| value.to_bits()).collect::<Vec<u16>>();
    let at_x = bench.buffer(&bits(&x));
    let at_y = bench.room::<u16>(70);
    let at_h = bench.buffer(&h.iter().map(|value| value.to_bits()).collect::<Vec<u16>>());
    let pointers = [at_x, at_y, at_h].map(Argument::Pointer);
    let arguments: Vec<Argument> = std::iter::once(Argument::I32(70)).chain(pointers).collect();
    bench.run("halves", LaunchShape::linear(1, 96), &arguments);
    let (y, sums): (Vec<u16>, Vec<u16>) = (bench.values(at_y, 70), bench.values(at_h, 70));
    for index in 0..70 {
        let v = x[index].to_f32();
        let expected = (v.exp() + v.tanh()) * v;
        // Two roundings to eight bits.
        let found = bf16::from_bits(y[index]).to_f32();
        assert!((found - expected).abs() <= expected.abs() / 128.0, "{index}: {found} {expected}");
        let sum = f16::from_f32(h[index].to_f32() + f16::from_f32(v).to_f32());
        assert_eq!(f16::from_bits(sums[index]), sum, "element {index}");
    }
}

#[test]
fn a_sum_through_shared_memory_and_a_device_function() {
    for shift in [0, 2] {
        let bench = basic();
        let x = Numbers(3).floats(777);
        let weights = [0.1_f32, 0.2, 0.3, 0.4, 0.5];
        let (at_x, out) = (bench.buffer(&x), bench.buffer(&[1.0_f32]));
        let mut by_value: Vec<u8> = weights.iter().flat_map(|value| value.to_le_bytes()).collect();
        by_value.extend(i32::to_le_bytes(shift));
        let arguments =
            [Argument::Pointer(at_x), Argument::Pointer(out), Argument::I32(777), Argument::Bytes(by_value)];
        bench.run("sum", LaunchShape::linear(1, 256), &arguments);
        let one = |(index, x): (usize, &f32)| {
            let value = if shift > 0 { f64::from(*x) * 3.0 } else { f64::from(*x).sin() };
            value + f64::from(weights[index % 5])
        };
        let expected = 1.0 + x.iter().enumerate().map(one).sum::<f64>();
        let found = bench.values::<f32>(out, 1)[0];
        assert!((f64::from(found) - expected).abs() < 1e-3, "{found} {expected}");
        let counter = bench.room::<i32>(1);
        bench.run("counted", LaunchShape::linear(1, 1), &[Argument::Pointer(counter)]);
        assert_eq!(bench.values::<i32>(counter, 1), [4]);
    }
}

#[test]
fn functions_of_the_device_library() {
    let bench = basic();
    let x: Vec<f32> = (0..32).map(|index| 0.05 + 0.37 * index as f32).collect();
    let (at_x, out, wide) = (bench.buffer(&x), bench.room::<f32>(12 * 32), bench.room::<f64>(3 * 32));
    let arguments = [at_x, out, wide].map(Argument::Pointer);
    let arguments: Vec<Argument> = arguments.into_iter().chain([Argument::I32(32)]).collect();
    bench.run("functions", LaunchShape::linear(1, 32), &arguments);
    let found: Vec<f32> = bench.values(out, 12 * 32);
    let found_wide: Vec<f64> = bench.values(wide, 3 * 32);
    let functions: [fn(f64) -> f64; 11] = [
        f64::exp,
        f64::ln,
        |v| v.powf(f64::from(0.7_f32)),
        |v| f64::from(v as f32 * 1e6_f32).sin(),
        f64::cos,
        f64::tanh,
        error_function,
        |v| 1.0 / v.sqrt(),
        |v| v % 3.0,
        f64::cbrt,
        f64::ln_1p,
    ];
    for (number, function) in functions.iter().enumerate() {
        for (index, x) in x.iter().enumerate() {
            let (found, expected) = (f64::from(found[number * 32 + index]), function(f64::from(*x)));
            // The library says two units of the last place for most.
            assert!(
                (found - expected).abs() <= 5e-7 * expected.abs().max(0.1),
                "{number} of {x}: {found} {expected}"
            );
        }
    }
    for (index, x) in x.iter().enumerate() {
        let x = f64::from(*x);
        let expected = [x.exp(), x.powf(0.3) / 3.0, x.sin() + x.ln()];
        for (number, expected) in expected.into_iter().enumerate() {
            let found = found_wide[number * 32 + index];
            assert!(
                (found - expected).abs() <= 1e-14 * expected.abs().max(1.0),
                "{number} of {x}: {found} {expected}"
            );
        }
    }
}

/// By its series, which is exact enough for small arguments, and by its limit beyond.
fn error_function(x: f64) -> f64 {
    if x > 4.0 {
        return 1.0;
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..80 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn integers_bits_and_lanes() {
    let bench = basic();
    let mut numbers = Numbers(5);
    let x: Vec<u32> = (0..32).map(|_| numbers.next() as u32).collect();
    let (at_x, out) = (bench.buffer(&x), bench.room::<u32>(192));
    bench.run("integers", LaunchShape::linear(1, 32), &[Argument::Pointer(at_x), Argument::Pointer(out)]);
    let found: Vec<u32> = bench.values(out, 192);
    let ballot = (0..32).fold(0, |mask, lane| mask | (x[lane] & 1) << lane);
    let sum = x.iter().fold(0_u32, |sum, value| sum.wrapping_add(*value));
    for i in 0..32 {
        let (v, other) = (x[i], x[31 - i]);
        let first = if v == 0 { 0 } else { v.trailing_zeros() + 1 };
        assert_eq!(found[i], v.count_ones() + v.leading_zeros() + first);
        let high = ((u64::from(v) * 0x9e37_79b9) >> 32) as u32;
        assert_eq!(found[32 + i], v.reverse_bits() ^ high);
        assert_eq!(found[64 + i], ballot ^ sum);
        let bytes = [v as u8, (v >> 16) as u8, ballot as u8, (ballot >> 16) as u8];
        let permuted = u32::from_le_bytes(bytes);
        assert_eq!(found[96 + i], permuted.wrapping_add(v / (other | 1)).wrapping_add(v % 7));
        let product = ((u64::from(v) * u64::from(other)) >> 9) as u32;
        assert_eq!(found[128 + i], product.wrapping_add((v as i32 / 10) as u32));
        let up = if i < 3 { v } else { x[i - 3] };
        let indexed = x[(i & !7) | ((i * 7) & 7)];
        let same = (0..32).fold(0, |mask, lane| mask | u32::from(x[lane] & 3 == v & 3) << lane);
        assert_eq!(found[160 + i], up.wrapping_add(indexed).wrapping_add(same), "lane {i}");
    }
}

fn pointers(pointers: &[dtlc_emulator::DevicePointer]) -> Vec<Argument> {
    pointers.iter().map(|pointer| Argument::Pointer(*pointer)).collect()
}

fn bf16_of(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| bf16::from_f32(*value).to_bits()).collect()
}

/// C = A B in f64 of what the device sees.
fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize, seen: fn(f32) -> f32) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for row in 0..m {
        for depth in 0..k {
            for column in 0..n {
                c[row * n + column] +=
                    f64::from(seen(a[row * k + depth])) * f64::from(seen(b[depth * n + column]));
            }
        }
    }
    c
}

#[test]
fn a_bf16_product_with_a_pipeline() {
    let bench = Bench::new(&kernel_text("matmul"));
    let mut numbers = Numbers(7);
    for (m, n, k) in [(64, 64, 32), (128, 64, 96), (70, 88, 104), (1, 8, 8)] {
        let (a, b) = (numbers.floats(m * k), numbers.floats(k * n));
        let (at_a, at_b) = (bench.buffer(&bf16_of(&a)), bench.buffer(&bf16_of(&b)));
        let out = bench.room::<f32>(m * n);
        let sizes = [m, n, k].map(|size| Argument::I32(size as i32));
        let arguments = [pointers(&[at_a, at_b, out]), sizes.to_vec()].concat();
        let grid = [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1];
        bench.run("matmul_bf16", LaunchShape { grid, block: [128, 1, 1], shared_bytes: 0 }, &arguments);
        let expected = product(&a, &b, m, n, k, |value| bf16::from_f32(value).to_f32());
        for (found, expected) in bench.values::<f32>(out, m * n).into_iter().zip(expected) {
            // k sums in f32 of terms below one.
            assert!((f64::from(found) - expected).abs() < 1e-6 * k as f64, "{found} {expected}");
        }
    }
}

#[test]
fn a_tf32_product() {
    let bench = Bench::new(&kernel_text("matmul"));
    let (n, k) = (8, 24);
    let (a, b) = (Numbers(8).floats(16 * k), Numbers(9).floats(k * n));
    let (at_a, at_b, out) = (bench.buffer(&a), bench.buffer(&b), bench.room::<f32>(16 * n));
    let sizes = [n, k].map(|size| Argument::I32(size as i32));
    bench.run(
        "matmul_tf32",
        LaunchShape::linear(1, 32),
        &[pointers(&[at_a, at_b, out]), sizes.to_vec()].concat(),
    );
    let seen = |value: f32| f32::from_bits((value.to_bits() + 0x1000) & !0x1fff);
    let expected = product(&a, &b, 16, n, k, seen);
    for (found, expected) in bench.values::<f32>(out, 16 * n).into_iter().zip(expected) {
        assert!((f64::from(found) - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn a_norm_through_a_block() {
    let bench = Bench::new(&kernel_text("attention"));
    let (rows, n) = (3, 300);
    let x = Numbers(10).floats(rows * n);
    let (at_x, out) = (bench.buffer(&x), bench.room::<f32>(rows * n));
    let sizes = vec![Argument::I32(n as i32), Argument::F32(1e-5)];
    bench.run("rms_norm", LaunchShape::linear(rows as u32, 128), &[pointers(&[at_x, out]), sizes].concat());
    let found: Vec<f32> = bench.values(out, rows * n);
    for (row, found) in x.chunks(n).zip(found.chunks(n)) {
        let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
        for (x, found) in row.iter().zip(found) {
            let expected = f64::from(*x) / (mean + 1e-5).sqrt();
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}

#[test]
fn causal_attention_with_an_online_softmax() {
    let bench = Bench::new(&kernel_text("attention"));
    let (s, d) = (45, 32);
    let mut numbers = Numbers(11);
    let tensors: Vec<Vec<f32>> = (0..3).map(|_| numbers.floats(s * d)).collect();
    let mut places: Vec<_> = tensors.iter().map(|tensor| bench.buffer(tensor)).collect();
    places.push(bench.room::<f32>(s * d));
    let scale = 1.0 / (d as f32).sqrt();
    let arguments = [pointers(&places), vec![Argument::I32(s as i32), Argument::F32(scale)]].concat();
    let shape = LaunchShape { grid: [12, 1, 1], block: [128, 1, 1], shared_bytes: 2 * 32 * 33 * 4 };
    bench.run("attention", shape, &arguments);
    let found: Vec<f32> = bench.values(places[3], s * d);
    let [q, k, v] = [0, 1, 2].map(|which| &tensors[which]);
    for row in 0..s {
        let score = |key: usize| {
            let dot = |e| f64::from(q[row * d + e]) * f64::from(k[key * d + e]);
            ((0..d).map(dot).sum::<f64>() * f64::from(scale)).exp()
        };
        let weights: Vec<f64> = (0..=row).map(score).collect();
        let total: f64 = weights.iter().sum();
        for e in 0..d {
            let one = |(key, weight): (usize, &f64)| weight * f64::from(v[key * d + e]);
            let expected = weights.iter().enumerate().map(one).sum::<f64>() / total;
            assert!((f64::from(found[row * d + e]) - expected).abs() < 1e-5, "{row} {e}");
        }
    }
}
