//! Compiled programs on devices of 9.0, where tiles of products and of attention arrive in bulk: as part of a graph, within a rounding of what
//! older devices compute.

use crate::library::nvrtc;
use dtlc::pipeline::{Mode, Stage, compile};
use dtlc_codegen::cuda::nvrtc::{Architecture, Nvrtc};
use dtlc_codegen::device::add_device_code;
use dtlc_emulator::{Emulator, EmulatorOptions};
use dtlc_lang::{Loaded, Options as Choice, PlanChoice};
use dtlc_runtime::program::Program;
use dtlc_runtime::program::device::{DeviceCall, Work};
use dtlc_runtime::session::{Graphs, Options, Session};
use dtlc_runtime::tensor::HostTensor;
use dtlc_tests::backend::reread;
use dtlc_tests::golden::relative_error;
use std::sync::Arc;

const PRODUCTS: &str = "
model M {
  dims B, S, D = 40, F = 72
  param up: [D, F]
  param down: [F, D]

  fn loss(x: f32[B, S, D]) -> (f32[], f32[B, S, D]) {
    let y = dot[F](dot[D](float(x), up), down)
    (mean(f32(y)), f32(y))
  }
}

plan one for M {
  batch { seq 24, global 2 }
  precision { compute bf16, params bf16, grads bf16, master f32, reduce f32 }
}
";

const ATTENTION: &str = "
model M {
  dims B, S, D = 40, KV = 2, G = 2, K = 24, H = KV * G
  param wq: [D, H, K]
  param wk: [D, KV, K]
  param wv: [D, KV, K]
  param wo: [H, K, D]

  fn loss(x: f32[B, S, D]) -> (f32[], f32[B, S, D]) {
    let y = float(x)
    let mixed = attention[S, K](dot[D](y, wq), dot[D](y, wk), dot[D](y, wv), mask = true)
    let o = dot[H, K](mixed, wo)
    (mean(f32(o)), f32(o))
  }
}

plan one for M {
  batch { seq 70, global 2 }
  precision { compute bf16, params bf16, grads bf16, master f32, reduce f32 }
}
";

/// The program, with machine code for sm_90a and so with what only its devices run.
fn program(nvrtc: &Nvrtc, source: &str) -> Program {
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let choice = Choice { plan: PlanChoice::Named("one".to_owned()), overrides: Vec::new() };
    let typed =
        dtlc_lang::compile(&nothing, "case.dtl", source.as_bytes(), &choice).expect("it is well typed");
    let compilation = compile(&typed, Mode::Gradients, Stage::Program).expect("it compiles");
    let mut assembled = compilation.assembled.expect("the last stage was asked for");
    add_device_code(&mut assembled, nvrtc, &[Architecture::Sm90a]).unwrap_or_else(|error| panic!("{error}"));
    reread(&assembled).expect("it reads back")
}

#[test]
fn products_arrive_in_bulk_in_a_graph() {
    let Some(nvrtc) = nvrtc() else { return };
    let program = program(nvrtc, PRODUCTS);
    let section = program.device.as_ref().expect("there is code");
    let products: Vec<_> =
        section.calls.iter().filter(|call| matches!(call.work, Work::Products(_))).collect();
    let counts: Vec<usize> = products.iter().map(|call| call.work.products().len()).collect();
    assert!(counts.iter().sum::<usize>() >= 4, "{counts:?}");
    assert!(
        products.iter().all(|call| call.alternatives.len() == 1),
        "a product that does not arrive in bulk"
    );
    check(program, "matmul_bulk_", "bar.sync 1, 128;");
}

#[test]
fn attention_arrives_in_bulk_in_a_graph() {
    let Some(nvrtc) = nvrtc() else { return };
    let program = program(nvrtc, ATTENTION);
    let section = program.device.as_ref().expect("there is code");
    let launches = |call: &DeviceCall| match call.work {
        Work::Attention(_) => Some(("forward", call.alternatives.len())),
        Work::AttentionBackward(_) => Some(("backward", call.alternatives.len())),
        Work::Kernel(_) | Work::Products(_) | Work::Take(_) | Work::ScatterAdd(_) => None,
    };
    let found: Vec<_> = section.calls.iter().filter_map(launches).collect();
    assert_eq!(found, [("forward", 1), ("backward", 2)]);
    // Two groups: products have one.
    check(program, "attention_forward_bulk_", "bar.sync 1, 256;");
}

/// The documents of queries and keys reach the kernels that stand in for others too.
#[test]
fn attention_of_documents_arrives_in_bulk() {
    let Some(nvrtc) = nvrtc() else { return };
    let packed = ATTENTION.replace("mask = true", "mask = true, documents = u32((iota[S] + iota[B]) / 30)");
    let packed = program(nvrtc, &packed.replace("seq 70", "seq 40"));
    let (expected, _) = steps(&packed, (8, 0), Graphs::Record).expect("it runs");
    let (found, _) = steps(&packed, (9, 0), Graphs::Record).expect("it runs");
    let worst =
        expected.iter().zip(&found).map(|(one, other)| relative_error(one, other)).fold(0.0, f64::max);
    assert!(worst < 1.0 / 256.0, "off by {worst}");
}

/// Runs a program as newer and older devices do, and again with a trap where a kernel in bulk has this text.
fn check(mut program: Program, kernel: &str, text: &str) {
    let (expected, _) = steps(&program, (8, 0), Graphs::Record).expect("it runs");
    let (found, none) = steps(&program, (9, 0), Graphs::Never).expect("it runs");
    let (replayed, graphs) = steps(&program, (9, 0), Graphs::Record).expect("it runs");
    assert!(found == replayed, "a graph computes something else");
    assert_eq!((none, graphs), (0, 2), "all steps but the first are one graph");
    for (expected, found) in expected.iter().zip(&found) {
        // Sums in another order may round the other way, to bf16.
        let error = relative_error(expected, found);
        assert!(error < 1.0 / 256.0, "off by {error}");
    }

    let only = program.device.iter_mut().flat_map(|section| &mut section.modules);
    for module in only.filter(|module| module.capability == Some([9, 0])) {
        module.ptx = module.ptx.replace(text, "trap;");
    }
    steps(&program, (8, 0), Graphs::Record).expect("older devices don't run it");
    let error = steps(&program, (9, 0), Graphs::Record).expect_err("it is what 9.0 runs");
    assert!(error.contains(&format!("kernel `{kernel}")) && error.contains("a trap"), "{error}");
}

/// All outputs of three steps, and how many graphs were launched.
fn steps(program: &Program, capability: (u32, u32), graphs: Graphs) -> Result<(Vec<Vec<f32>>, u64), String> {
    let device = Arc::new(Emulator::new(EmulatorOptions { capability, ..EmulatorOptions::default() }));
    let options = Options { graphs, ..Options::default() };
    let mut session = Session::start_on(device.clone(), program.clone(), options).expect("it starts");
    session.initialise(3).expect("it starts");
    let shape = session.program().inputs[0].layout.global_shape();
    let count: u64 = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|index| (index % 101) as f32 / 100.0 - 0.5).collect();
    let name = session.program().inputs[0].name.clone();
    session.set_input(&name, &HostTensor::from_f32(&shape, &values)).expect("it fits");
    let mut found = Vec::new();
    for step in 1..=3 {
        session.step(step, 7).map_err(|error| error.to_string())?;
        let outputs = session.program().outputs.iter();
        found.extend(outputs.map(|output| session.output(output).expect("it can be read").to_f32()));
    }
    Ok((found, device.graph_launches()))
}
