//! Holds the vector mathematics to its stated error bounds, over samples of all f32 and at the edges.

use dtlc_codegen::math::{self, Host};

const TARGETS: [Host; 2] = [Host { is_fused: true }, Host { is_fused: false }];

/// One f32 in about four thousand, over all bit patterns: every exponent, both signs, NaNs and infinities.
fn samples() -> impl Iterator<Item = f32> + Clone {
    (0..=u32::MAX).step_by(4093).map(f32::from_bits)
}

/// Evenly spaced numbers.
fn spread(low: f64, high: f64, count: u32) -> impl Iterator<Item = f32> + Clone {
    (0..count).map(move |step| (low + (high - low) * f64::from(step) / f64::from(count - 1)) as f32)
}

/// The distance of neighbouring f32 at `exact`.
fn ulp(exact: f64) -> f64 {
    let magnitude = (exact.abs() as f32).clamp(f32::MIN_POSITIVE, f32::MAX);
    2f64.powi((magnitude.to_bits() >> 23) as i32 - 150)
}

/// The error of `found` in ulp. Results that f32 holds only as subnormals may be 0.
fn error_in_ulp(found: f32, exact: f64) -> f64 {
    if exact.is_nan() || found.is_nan() {
        return if exact.is_nan() && found.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if exact.abs() > f64::from(f32::MAX) {
        let near = found.abs() >= f32::MAX && (found > 0.0) == (exact > 0.0);
        return if near { 0.0 } else { f64::INFINITY };
    }
    if exact.abs() < f64::from(f32::MIN_POSITIVE) {
        let near = (f64::from(found) - exact).abs() < f64::from(f32::MIN_POSITIVE);
        return if near { 0.0 } else { f64::INFINITY };
    }
    (f64::from(found) - exact).abs() / ulp(exact)
}

fn hold(
    name: &str,
    bound: f64,
    inputs: impl Iterator<Item = f32> + Clone,
    function: impl Fn(&mut Host, &f32) -> f32,
    exact: impl Fn(f64) -> f64,
) {
    for mut target in TARGETS {
        let mut worst = (0.0, 0.0, 0.0);
        for x in inputs.clone() {
            let found = function(&mut target, &x);
            let error = error_in_ulp(found, exact(f64::from(x)));
            if error > worst.0 {
                worst = (error, x, found);
            }
        }
        println!("{name} {target:?}: {:.3} ulp at {:e}", worst.0, worst.1);
        assert!(worst.0 <= bound, "{name} {target:?}: {worst:?}");
    }
}

#[test]
fn exp_is_within_its_bound() {
    let inputs = samples().chain(spread(-90.0, 90.0, 400_000));
    hold("exp", 1.2, inputs, math::exp, f64::exp);
}

#[test]
fn log_is_within_its_bound() {
    let inputs = samples().chain(spread(0.4, 2.5, 400_000));
    hold("log", 1.2, inputs, math::log, f64::ln);
}

#[test]
fn tanh_is_within_its_bound() {
    let inputs = samples().chain(spread(-9.0, 9.0, 400_000));
    hold("tanh", 1.5, inputs, math::tanh, f64::tanh);
}

#[test]
fn sigmoid_is_within_its_bound() {
    let inputs = samples().chain(spread(-90.0, 20.0, 400_000));
    hold("sigmoid", 2.5, inputs, math::sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
}

#[test]
fn erf_is_within_its_bound() {
    let inputs = samples().chain(spread(-4.5, 4.5, 200_000));
    hold("erf", 1.5, inputs, math::erf, exact_erf);
}

#[test]
fn reciprocal_sqrt_is_within_its_bound() {
    hold("reciprocal_sqrt", 1.5, samples(), math::reciprocal_sqrt, |x| 1.0 / x.sqrt());
}

#[test]
fn sine_and_cosine_are_within_their_bound() {
    for mut target in TARGETS {
        let inputs = spread(-1e6, 1e6, 1_000_000)
            .chain(spread(-10.0, 10.0, 400_000))
            .chain(samples().filter(|x| x.abs() <= 1e6))
            .chain((0..600_000).map(|turns| (f64::from(turns) * std::f64::consts::FRAC_PI_2) as f32));
        let mut worst = [0f64; 2];
        for x in inputs {
            let (sine, cosine) = f64::from(x).sin_cos();
            let errors = [
                (f64::from(math::sin(&mut target, &x)) - sine).abs(),
                (f64::from(math::cos(&mut target, &x)) - cosine).abs(),
            ];
            for (worst, error) in worst.iter_mut().zip(errors) {
                assert!(error <= 1.2e-7, "{target:?} at {x:e}: {errors:?}");
                *worst = worst.max(error);
            }
        }
        println!("sin, cos {target:?}: {worst:?}");
    }
}

#[test]
fn sine_and_cosine_refuse_what_they_cannot_reduce() {
    for mut target in TARGETS {
        for x in [5e6, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(math::sin(&mut target, &x).is_nan() && math::cos(&mut target, &x).is_nan());
        }
        assert_eq!(math::sin(&mut target, &0.0), 0.0);
        assert_eq!(math::cos(&mut target, &0.0), 1.0);
    }
}

#[test]
fn power_is_within_its_bound() {
    for mut target in TARGETS {
        let mut worst = (0.0, 0.0, 0.0, 0.0);
        let bases = samples().step_by(801).chain(spread(0.01, 4.0, 1500));
        for x in bases {
            for y in spread(-40.0, 40.0, 321).chain(samples().step_by(9973)) {
                let found = math::power(&mut target, &x, &y);
                let error = error_in_ulp(found, f64::from(x).powf(f64::from(y)));
                if error > worst.0 {
                    worst = (error, x, y, found);
                }
            }
        }
        println!("power {target:?}: {worst:?}");
        assert!(worst.0 <= 5.0, "power {target:?}: {worst:?}");
    }
}

#[test]
fn power_has_the_special_cases_of_c() {
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        0.5,
        -0.5,
        3.0,
        -3.0,
        1e-40,
        1e30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    for mut target in TARGETS {
        for x in edges {
            for y in edges {
                let found = math::power(&mut target, &x, &y);
                let exact = f64::from(x).powf(f64::from(y));
                assert!(error_in_ulp(found, exact) <= 5.0, "{x}^{y} = {found}, not {exact}");
                if exact == 0.0 || exact.is_infinite() {
                    assert_eq!(f64::from(found), exact, "{x}^{y}");
                }
            }
        }
    }
}

#[test]
fn edges_are_exact() {
    for mut target in TARGETS {
        let host = &mut target;
        assert_eq!(math::exp(host, &0.0), 1.0);
        assert_eq!(math::exp(host, &f32::NEG_INFINITY), 0.0);
        assert_eq!(math::exp(host, &f32::INFINITY), f32::INFINITY);
        assert_eq!(math::exp(host, &88.8), f32::INFINITY);
        assert_eq!(math::exp(host, &-87.5), 0.0);
        assert_eq!(math::log(host, &1.0), 0.0);
        assert_eq!(math::log(host, &0.0), f32::NEG_INFINITY);
        assert_eq!(math::log(host, &f32::INFINITY), f32::INFINITY);
        assert!(math::log(host, &-1.0).is_nan());
        assert_eq!(math::tanh(host, &f32::INFINITY), 1.0);
        assert_eq!(math::tanh(host, &-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(math::erf(host, &-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(math::erf(host, &f32::NEG_INFINITY), -1.0);
        assert_eq!(math::sigmoid(host, &f32::NEG_INFINITY), 0.0);
        assert_eq!(math::sigmoid(host, &f32::INFINITY), 1.0);
        assert_eq!(math::reciprocal_sqrt(host, &0.0), f32::INFINITY);
    }
}

#[test]
fn bf16_rounds_to_nearest_even() {
    let mut host = TARGETS[0];
    for x in samples() {
        let found = math::round_to_bf16(&mut host, &x);
        if x.is_nan() {
            assert!(found.is_nan());
            continue;
        }
        let below = f32::from_bits(x.to_bits() & 0xffff_0000);
        let above = f32::from_bits((x.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
        let middle = x.to_bits() & 0xffff;
        let up = middle > 0x8000 || (middle == 0x8000 && below.to_bits() & 0x1_0000 != 0);
        assert_eq!(found, if up { above } else { below }, "{x:e}");
    }
}

/// The number that an f16 is by its definition.
fn f16_value(bits: u16) -> f64 {
    let magnitude = match (bits >> 10 & 31, f64::from(bits & 0x3ff)) {
        (0, fraction) => fraction * 2f64.powi(-24),
        (31, 0.0) => f64::INFINITY,
        (31, _) => f64::NAN,
        (exponent, fraction) => (1024.0 + fraction) * 2f64.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

/// All finite f16 and infinity, and between two of them what lies in the middle and beside that: where rounding turns.
fn f16_boundaries() -> impl Iterator<Item = f32> {
    (0..=0x7c00u16).flat_map(|bits| {
        // Behind the largest number the next one would be 2^16.
        let next = if bits >= 0x7bff { 65_536.0 } else { f16_value(bits + 1) };
        let middle = ((f16_value(bits).min(65_536.0) + next) / 2.0) as f32;
        let numbers = [f16_value(bits) as f32, middle.next_down(), middle, middle.next_up()];
        numbers.into_iter().flat_map(|number| [number, -number])
    })
}

#[test]
fn f16_rounds_to_nearest_even_and_widens_exactly() {
    let mut host = TARGETS[0];
    for bits in 0..=u16::MAX {
        let (found, expected) = (math::of_f16_bits(&mut host, &u32::from(bits)), f16_value(bits));
        assert!(found.is_nan() && expected.is_nan() || f64::from(found) == expected, "{bits:#x}: {found}");
        assert!(found.is_nan() || found.is_sign_negative() == (bits >> 15 == 1), "{bits:#x}");
    }
    for x in samples().chain(f16_boundaries()) {
        let found = math::to_f16_bits(&mut host, &x) as u16;
        if x.is_nan() {
            assert_eq!(found, 0x7fff);
            continue;
        }
        // The nearest of its neighbours, of two the even one; beyond the largest number 2^16 stands for infinity.
        let magnitude = f64::from(x.abs());
        let value = |bits: u16| if bits == 0x7c00 { 65_536.0 } else { f16_value(bits) };
        let distance = |bits: u16| (magnitude.min(65_536.0) - value(bits)).abs();
        let near = found & 0x7fff;
        assert!(near <= 0x7c00 && found >> 15 == u16::from(x.is_sign_negative()), "{x:e}: {found:#x}");
        let others = [near.checked_sub(1), (near < 0x7c00).then_some(near + 1)];
        for other in others.into_iter().flatten() {
            let is_nearer = distance(near) < distance(other);
            let is_even = distance(near) == distance(other) && near.is_multiple_of(2);
            assert!(is_nearer || is_even, "{x:e}: {found:#x}, and not {other:#x}");
        }
        assert_eq!(math::round_to_f16(&mut host, &x).to_bits(), (f16_value(found) as f32).to_bits(), "{x:e}");
    }
}

/// The error function in f64: its series near zero, else the continued fraction of its complement.
fn exact_erf(x: f64) -> f64 {
    let scale = 2.0 / std::f64::consts::PI.sqrt();
    if x.is_nan() {
        return x;
    }
    if x.abs() > 7.0 {
        return x.signum();
    }
    if x.abs() < 2.5 {
        let mut term = x;
        let mut sum = x;
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * scale;
    }
    let z = x.abs();
    let fraction = (1..=80).rev().fold(z, |tail, n| z + f64::from(n) / 2.0 / tail);
    let complement = (-z * z).exp() / fraction / std::f64::consts::PI.sqrt();
    x.signum() * (1.0 - complement)
}
