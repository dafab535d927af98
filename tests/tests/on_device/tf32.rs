//! Plans that compute in tf32: the CPU and an emulated device, one rank and several, round the same factors to the same numbers.

use crate::library::nvrtc;
use crate::start::on_device;
use dtlc::pipeline::Mode;
use dtlc_kernels::signature::Factors;
use dtlc_runtime::program::StateId;
use dtlc_runtime::program::device::Work;
use dtlc_runtime::tensor::HostTensor;
use dtlc_tests::backend::{Start, on_cpu};
use dtlc_tests::chain::compile_text;
use dtlc_tests::random::judge::{Verdict, examine};

/// Plans of one rank and of four, of which all products are placed.
const PLANS: &str = "
plan one for M {
  mesh { dp: 1 }
  batch { seq 6, global 4 }
  precision { compute tf32 }
  optimizer adamw { lr 1e-2 }
}

plan many for M {
  mesh { dp: 2, tp: 2 }
  step data: acts B -> dp
  step tensor: F -> tp
  step zero(1): over dp
  batch { seq 6, global 4, micro 1 }
  precision { compute tf32 }
  optimizer adamw { lr 1e-2 }
}
";

/// A layer whose products read what products made, in a stack.
const LAYERS: &str = "
layer Block[D, F] {
  param up: [D, F]
  param down: [F, D]
  fn (x: [B, S, D]) -> [B, S, D] { x + dot[F](tanh(dot[D](x, up)), down) }
}

model M {
  dims B, S, D = 24, F = 40, L = 2
  layers = repeat[L] Block[D, F]

  fn loss(x: f32[B, S, D]) -> (f32[], f32[B, S, D]) {
    let y = layers(float(x))
    (mean(f32(y * y)), f32(y))
  }
}
";

#[test]
fn a_model_in_tf32_computes_what_one_rank_means() {
    let source = format!("{LAYERS}{PLANS}");
    let backends: &[Start] = if nvrtc().is_some() { &[on_cpu, on_device] } else { &[on_cpu] };
    for &backend in backends {
        assert_eq!(examine(&source, backend).verdict, Verdict::Agrees);
    }
}

/// Products of what is given: `y` over `D`, and for the gradient of `w` over positions.
const PRODUCTS: &str = "
model M {
  dims B, S, D = 64, F = 16
  param w: [D, F]

  fn loss(x: f32[B, S, D], pull: f32[B, S, F]) -> (f32[], f32[B, S, F]) {
    let y = dot[D](float(x), w)
    (sum(f32(y) * pull), f32(y))
  }
}
";

/// The nearest number of ten fraction bits, of two the one further from zero.
fn tf32(value: f32) -> f64 {
    f64::from(f32::from_bits((value.to_bits() + 0x1000) & !0x1fff))
}

/// The numbers of an operand: whole words of fraction bits, so that each is rounded.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let word = |index: usize| (index as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8;
    (0..count).map(|index| word(index) as f32 / 8_388_608.0 - 1.0).collect()
}

/// Whether numbers are sums of exact products in f32, each of which rounds once a term: off by so many roundings of the terms' magnitudes.
fn are_sums(found: &[f32], terms: &dyn Fn(usize) -> Vec<f64>) -> bool {
    found.iter().enumerate().all(|(index, &found)| {
        let terms = terms(index);
        let magnitude: f64 = terms.iter().map(|term| term.abs()).sum();
        let bound = (terms.len() + 1) as f64 * f64::exp2(-24.0) * magnitude;
        (f64::from(found) - terms.iter().sum::<f64>()).abs() <= bound
    })
}

#[test]
fn products_are_those_of_rounded_factors_everywhere() {
    const POSITIONS: usize = 24;
    let source = format!("{PRODUCTS}{PLANS}");
    let (x, pull, w) = (numbers(POSITIONS * 64, 1), numbers(POSITIONS * 16, 2), numbers(64 * 16, 3));
    let backends: &[Start] = if nvrtc().is_some() { &[on_cpu, on_device] } else { &[on_cpu] };
    for (plan, backend) in
        ["one", "many"].into_iter().flat_map(|plan| backends.iter().map(move |it| (plan, it)))
    {
        let made = compile_text("case.dtl", source.as_bytes(), plan, Mode::Gradients).assembled;
        let made = made.expect("the last stage");
        let works = made.program.works();
        let mut products = works.iter().flat_map(Work::products);
        assert!(products.all(|product| product.spec.factors == Factors::Tf32));
        let mut session = backend(made).unwrap_or_else(|error| panic!("{error}"));
        session.set_state(StateId(0), &HostTensor::from_f32(&[64, 16], &w)).expect("it fits");
        for (name, numbers) in [("x", &x), ("pull", &pull)] {
            let input = session.program().inputs.iter().find(|input| input.name == name).expect("an input");
            let shape = input.layout.global_shape();
            session.set_input(name, &HostTensor::from_f32(&shape, numbers)).expect("it fits");
        }
        session.step(1, 7).unwrap_or_else(|error| panic!("{error}"));
        let outputs = &session.program().outputs;
        let result = |is_it: &dyn Fn(&str) -> bool| {
            let output = outputs.iter().find(|output| is_it(&output.name.template)).expect("an output");
            session.output(output).expect("it can be read").to_f32()
        };
        let y = result(&|name| name != "loss" && !name.starts_with("grad."));
        let gradient = result(&|name| name == "grad.w");
        let y_terms = |read: fn(f32) -> f64, index: usize| -> Vec<f64> {
            let (row, column) = (index / 16, index % 16);
            (0..64).map(|term| read(x[row * 64 + term]) * read(w[term * 16 + column])).collect()
        };
        let gradient_terms = |read: fn(f32) -> f64, index: usize| -> Vec<f64> {
            let (row, column) = (index / 16, index % 16);
            (0..POSITIONS).map(|term| read(x[term * 64 + row]) * read(pull[term * 16 + column])).collect()
        };
        assert!(are_sums(&y, &|index| y_terms(tf32, index)), "{plan}: y");
        assert!(are_sums(&gradient, &|index| gradient_terms(tf32, index)), "{plan}: the gradient of w");
        // Neither are they those of factors that are not rounded, nor of factors cut off.
        let cut = |value: f32| f64::from(f32::from_bits(value.to_bits() & !0x1fff));
        for read in [f64::from as fn(f32) -> f64, cut] {
            assert!(!are_sums(&y, &|index| y_terms(read, index)), "{plan}: y");
            assert!(!are_sums(&gradient, &|index| gradient_terms(read, index)), "{plan}: the gradient of w");
        }
    }
}
