//! From the text of a model to its whole step: the examples under every plan, and AdamW by hand.

mod support;

use dtlc_ir::interpret::{Options, Rounding, interpret, stored};
use dtlc_ir::{DType, Program, StateKind, text, verify};
use dtlc_lang::{Compiled, Loaded, PlanChoice, check_all, compile};
use dtlc_passes::{Lowered, Mode, PassError, Position, joint, lower};
use std::path::Path;
use support::{arguments, difference, output, run};

fn nothing(_: &str, _: &[&str]) -> Loaded {
    Loaded::Missing
}

fn read(example: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(example);
    std::fs::read(path).expect("the example is there")
}

fn compiled(example: &str, text: &[u8], plan: Option<&str>, overrides: &[(&str, &str)]) -> Compiled {
    let plan = plan.map_or(PlanChoice::None, |plan| PlanChoice::Named(plan.to_string()));
    let overrides = overrides.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    match compile(&nothing, example, text, &dtlc_lang::Options { plan, overrides }) {
        Ok(compiled) => compiled,
        Err(rejected) => panic!("{example}: {:?}", rejected.diagnostics),
    }
}

fn lowered(compiled: &Compiled) -> Result<Lowered, PassError> {
    let locate = |span| {
        let (position, file) = (compiled.sources.position(span), compiled.sources.file(span.file));
        Position { file: file.name.clone(), line: position.line, column: position.column }
    };
    lower(&compiled.model, compiled.plan.as_ref(), &locate)
}

fn program(compiled: &Compiled, mode: Mode) -> Program {
    let mut lowered = lowered(compiled).expect("it can be lowered");
    if let Err(fault) = verify::logical(&lowered.program) {
        panic!("{fault:?}");
    }
    joint(&mut lowered, compiled.plan.as_ref(), mode).expect("it can be completed");
    if let Err(fault) = verify::joint(&lowered.program) {
        panic!("{fault:?}");
    }
    let printed = text::print(&lowered.program);
    assert!(text::parse(&printed).is_ok_and(|parsed| text::print(&parsed) == printed), "{printed}");
    lowered.program
}

#[test]
fn every_example_under_every_plan() {
    let examples = [
        "bert.dtl",
        "bytes.dtl",
        "gpt2.dtl",
        "llama3.dtl",
        "golden/gpt2.dtl",
        "golden/llama.dtl",
        "papers/zero.dtl",
    ];
    for example in examples {
        let text = read(example);
        let plans = check_all(&nothing, example, &text).plans;
        assert!(!plans.is_empty(), "{example} has plans");
        for (plan, _) in &plans {
            let compiled = compiled(example, &text, Some(plan), &[]);
            let train = program(&compiled, Mode::Train);
            assert!(train.states.iter().all(|state| state.updated.is_some()), "{example} {plan}");
            program(&compiled, Mode::Gradients);
            program(&compiled, Mode::Evaluate);
        }
    }
}

/// Sizes that the interpreter is quick with.
const SMALL: [(&str, &str); 7] =
    [("D", "4"), ("K", "4"), ("F", "6"), ("V", "7"), ("seq", "5"), ("global", "4"), ("micro", "2")];

#[test]
fn micro_batches_change_nothing() {
    let text = read("golden/llama.dtl");
    let [once, twice] = [("one", &SMALL[..6]), ("accum2", &SMALL[..])].map(|(plan, overrides)| {
        program(&compiled("llama.dtl", &text, Some(plan), overrides), Mode::Gradients)
    });
    let inputs = arguments(&once, -0.5, 0.5);
    // The batch is the product of micro-batches and sequences, elements in the same order.
    let mut split = arguments(&twice, -0.5, 0.5);
    for (split, whole) in split.iter_mut().zip(&inputs) {
        split.data.clone_from(&whole.data);
    }
    for named in &once.outputs {
        let [expected, found] = [(&once, &inputs), (&twice, &split)]
            .map(|(program, arguments)| output(program, arguments, &named.name));
        assert!(difference(&found, &expected) < 1e-10, "{}", named.name);
    }
}

#[test]
fn one_step_of_adamw() {
    let text = read("golden/llama.dtl");
    let compiled = compiled("llama.dtl", &text, Some("one"), &SMALL[..6]);
    let [gradients, train] = [Mode::Gradients, Mode::Train].map(|mode| program(&compiled, mode));
    let inputs = arguments(&train, 0.0, 0.5);
    let position = |index: usize| (train.main.params[index], &inputs[index]);
    let count = gradients.states.len();
    let mut plain: Vec<_> = inputs[..count].to_vec();
    plain.extend(inputs[train.states.len()..].iter().take(gradients.inputs.len()).cloned());
    let gradient = |path: &str| output(&gradients, &plain, &format!("grad.{path}"));
    let all: Vec<Vec<f64>> = gradients.states.iter().map(|state| gradient(&state.path)).collect();
    let norm = all.iter().flatten().map(|slope| slope * slope).sum::<f64>().sqrt();
    assert!((output(&train, &inputs, "grad_norm")[0] - norm).abs() < 1e-9 * norm);
    assert_eq!(output(&train, &inputs, "lr"), [1e-3]);
    let outcome = run(&train, &inputs);
    let held = |path: &str| {
        let index = train.states.iter().position(|state| state.path == path).expect("it is a state");
        position(index).1.data.clone()
    };
    for (state, gradient) in gradients.states.iter().zip(&all) {
        let path = &state.path;
        let decay = if path.contains("norm") { 0.0 } else { 0.1 };
        let [p, m, v] = [held(path), held(&format!("{path}.m")), held(&format!("{path}.v"))];
        let step: i32 = 7;
        let after = |index: usize| {
            let g = gradient[index] * (1.0 / (norm + 1e-6)).min(1.0);
            let m = 0.9 * m[index] + 0.1 * g;
            let v = 0.95 * v[index] + 0.05 * g * g;
            let scaled = m / (1.0 - 0.9f64.powi(step)) / ((v / (1.0 - 0.95f64.powi(step))).sqrt() + 1e-8);
            [p[index] * (1.0 - 1e-3 * decay) - 1e-3 * scaled, m, v]
        };
        for (slot, name) in [path.clone(), format!("{path}.m"), format!("{path}.v")].iter().enumerate() {
            let expected: Vec<f64> = (0..p.len()).map(|index| after(index)[slot]).collect();
            let found = &outcome.state(&train, name).expect("it is updated").data;
            assert!(difference(found, &expected) < 1e-9, "{name}");
        }
    }
}

/// The golden model in bf16, under its first plan.
fn low_precision() -> Compiled {
    let text = String::from_utf8(read("golden/llama.dtl")).expect("it is text");
    let precision = "precision { compute bf16, params bf16, grads bf16, master f32, reduce f32 }";
    let text = text.replacen(
        "batch { seq 64, global 8 }",
        &format!("batch {{ seq 64, global 8 }}\n  {precision}"),
        1,
    );
    compiled("llama.dtl", text.as_bytes(), Some("one"), &SMALL[..6])
}

#[test]
fn low_precision_has_master_weights() {
    let train = program(&low_precision(), Mode::Train);
    let masters = train.states.iter().filter(|state| matches!(state.kind, StateKind::Master(_))).count();
    let parameters =
        train.states.iter().filter(|state| matches!(state.kind, StateKind::Parameter(_))).count();
    assert_eq!(masters, parameters);
    assert_eq!(train.states.len(), 4 * parameters);
    let inputs = arguments(&train, 0.0, 0.5);
    assert!(output(&train, &inputs, "loss")[0].is_finite());
}

#[test]
fn low_precision_rounds_but_little() {
    let exact =
        program(&compiled("llama.dtl", &read("golden/llama.dtl"), Some("one"), &SMALL[..6]), Mode::Gradients);
    let rounded = program(&low_precision(), Mode::Gradients);
    let mut inputs = arguments(&exact, -0.5, 0.5);
    for state in inputs.iter_mut().take(exact.states.len()) {
        state.data.iter_mut().for_each(|value| *value = stored(*value, DType::Bf16));
    }
    let options = Options { rounding: Rounding::Storage, ..Options::default() };
    let found = interpret(&rounded, &inputs, &options).expect("it runs");
    for named in &exact.outputs {
        let expected = output(&exact, &inputs, &named.name);
        let found = &found.output(&rounded, &named.name).expect("both have it").data;
        let error = difference(found, &expected);
        // Eight units in the last place of bf16, after some thirty roundings on the way.
        assert!(error < 8.0 / 256.0, "{}: {error}", named.name);
    }
}

#[test]
fn a_batch_that_does_not_divide_is_an_error() {
    let text = read("golden/llama.dtl");
    let mut compiled = compiled("llama.dtl", &text, Some("accum2"), &[]);
    let batch = compiled.plan.as_mut().and_then(|plan| plan.batch.as_mut()).expect("the plan has a batch");
    batch.micro = Some(3);
    let error = lowered(&compiled).expect_err("8 is no multiple of 3");
    assert_eq!(error.kind, dtlc_passes::PassErrorKind::Batch);
}

/// Everything that moves elements, along a dimension that is a product or is not.
const MOVEMENTS: &str = "
use std::nn::Embedding
use std::dropout::dropout

layer Mover[D, H, J, R, Q, T, O](rate: f32 = 0.5) {
  param w: [D, H]
  param t: [H]

  fn (x: [B, S, D], labels: u32[B, S]) -> [B, S] {
    let y = dropout(dot[D](x, w), rate)
    let part = slice[H -> J](y, start = 2)
    let one = slice[H = 1](y)
    let pairs = split[H -> R, J](y)
    let turned = split[H -> J, R](y)
    let flat = merge[J, R -> T](turned * pairs) * concat[J -> T](part, slice[R = 1](pairs))
    let renamed = rename[H -> O](y) * float(iota[O])
    let row = take[H](t, labels)
    let place = float(iota[B]) * 0.01
    sum[H](y * float(iota[H])) + one * sum[T](flat) + sum[O](renamed) * row * max[H](y * t) + place
  }
}

model Odd {
  dims B, S, D = 3, KV = 2, G = 3, H = PRODUCT, J = 3, R = 2, Q = 3, T = 6, O = 6, V = 4, L = 2
  embed = Embedding[V, D]
  odd = Mover[D, H, J, R, Q, T, O]()

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    f32(mean[B, S](odd(embed(tokens), labels)))
  }
}

plan once for Odd {
  mesh { dp: 1 }
  batch { seq 3, global 4 }
}
plan twice for Odd {
  mesh { dp: 1 }
  batch { seq 3, global 4, micro 2 }
}
";

#[test]
fn products_and_micro_batches_mean_what_plain_dimensions_do() {
    let programs =
        [("6", "once"), ("KV * G", "once"), ("6", "twice"), ("KV * G", "twice")].map(|(product, plan)| {
            let text = MOVEMENTS.replace("PRODUCT", product);
            program(&compiled("odd.dtl", text.as_bytes(), Some(plan), &[]), Mode::Gradients)
        });
    let plain = arguments(&programs[0], -0.7, 0.7);
    for other in &programs[1..] {
        let mut same = arguments(other, -0.7, 0.7);
        same.iter_mut().zip(&plain).for_each(|(same, plain)| same.data.clone_from(&plain.data));
        for named in &programs[0].outputs {
            let [expected, found] = [(&programs[0], &plain), (other, &same)]
                .map(|(program, inputs)| output(program, inputs, &named.name));
            assert!(difference(&found, &expected) < 1e-10, "{}", named.name);
        }
    }
}

#[test]
fn a_plan_without_an_optimizer_does_not_train() {
    let text = MOVEMENTS.replace("PRODUCT", "6");
    let compiled = compiled("odd.dtl", text.as_bytes(), Some("once"), &[]);
    let mut lowered = lowered(&compiled).expect("it can be lowered");
    let error = joint(&mut lowered, compiled.plan.as_ref(), Mode::Train).expect_err("there is no optimizer");
    assert_eq!(error.kind, dtlc_passes::PassErrorKind::NoOptimizer);
}
