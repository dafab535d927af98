//! A compiled step as one graph against the same step launch by launch: the same bits, also of what depends on step and seed.

use crate::library::nvrtc;
use dtlc::pipeline::{Mode, Stage, compile};
use dtlc_codegen::device::add_device_code;
use dtlc_emulator::Emulator;
use dtlc_lang::{Loaded, Options as Choice, PlanChoice};
use dtlc_runtime::program::Program;
use dtlc_runtime::session::{Graphs, Options, Session};
use dtlc_runtime::tensor::HostTensor;
use dtlc_tests::backend::reread;
use std::collections::BTreeSet;
use std::sync::Arc;

const SOURCE: &str = "
use std::dropout::dropout

model M {
  dims B, S, D = 6
  param weight: [S, D]

  fn loss(x: f32[B, S, D]) -> (f32[], f32[B, S, D]) {
    let kept = dropout(float(x), 0.4)
    (mean(f32(kept * weight)), f32(kept))
  }
}

plan one for M {
  batch { seq 8, global 4, micro 2 }
}
";

#[test]
fn a_compiled_step_as_a_graph_gives_the_same_bits() {
    let Some(nvrtc) = nvrtc() else { return };
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let choice = Choice { plan: PlanChoice::Named("one".to_owned()), overrides: Vec::new() };
    let typed =
        dtlc_lang::compile(&nothing, "case.dtl", SOURCE.as_bytes(), &choice).expect("it is well typed");
    let compilation = compile(&typed, Mode::Gradients, Stage::Program).expect("it compiles");
    let mut assembled = compilation.assembled.expect("the last stage was asked for");
    add_device_code(&mut assembled, nvrtc, &[]).unwrap_or_else(|error| panic!("{error}"));
    let program = reread(&assembled).expect("it reads back");
    let (expected, none) = steps(&program, Graphs::Never);
    let (found, graphs) = steps(&program, Graphs::Record);
    assert!(expected == found, "a graph computes something else");
    assert_eq!((none, graphs), (0, 3), "all steps but the first are one graph");
    let distinct: BTreeSet<&Vec<Vec<u8>>> = expected.iter().collect();
    assert_eq!(distinct.len(), expected.len(), "each step drops other elements");
}

/// All outputs of four steps, and how many graphs were launched.
fn steps(program: &Program, graphs: Graphs) -> (Vec<Vec<Vec<u8>>>, u64) {
    let device = Arc::new(Emulator::default());
    let options = Options { graphs, ..Options::default() };
    let mut session = Session::start_on(device.clone(), program.clone(), options).expect("it starts");
    session.initialise(3).expect("it starts");
    let shape = session.program().inputs[0].layout.global_shape();
    let count: u64 = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|index| (index % 101) as f32 / 100.0 + 0.5).collect();
    let name = session.program().inputs[0].name.clone();
    session.set_input(&name, &HostTensor::from_f32(&shape, &values)).expect("it fits");
    let all = (1..=4).map(|step| {
        session.step(step, 7 + step / 4).unwrap_or_else(|error| panic!("{error}"));
        let outputs = session.program().outputs.iter();
        outputs.map(|output| session.output(output).expect("it can be read").bytes).collect()
    });
    (all.collect(), device.graph_launches())
}
