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
