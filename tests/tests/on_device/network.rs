//! Whole trainings of ranks that have a device each and exchange from device to device, against ranks that share one: the same bits; and
//! against the CPU.

use crate::library::nvrtc;
use crate::switch::spread;
use dtlc::pipeline::{Mode, Stage, compile};
use dtlc_codegen::device::add_device_code;
use dtlc_emulator::{CudaDriver, Emulator};
use dtlc_lang::{Loaded, Options as Choice, PlanChoice};
use dtlc_runtime::program::{Program, StateId};
use dtlc_runtime::session::{Options, Session};
use dtlc_runtime::tensor::HostTensor;
use dtlc_tests::backend::reread;
use std::sync::Arc;

const MODEL: &str = "
use std::attention::GroupedQuery
use std::loss::cross_entropy
use std::nn::{Embedding, Linear, RmsNorm, SwiGlu}

layer Block[D, KV, G, K, F] {
  norm_attn = RmsNorm[D]
  attn = GroupedQuery[D, KV, G, K]
  norm_mlp = RmsNorm[D]
  mlp = SwiGlu[D, F]

  fn (x: [B, S, D]) -> [B, S, D] {
    let h = x + attn(norm_attn(x))
    h + mlp(norm_mlp(h))
  }
}

model M {
  dims B, S, D = 16, KV = 2, G = 1, H = KV * G, K = 8, F = 24, V = 40, L = 2
  embed = Embedding[V, D]
  layers = repeat[L] Block[D, KV, G, K, F]
  norm = RmsNorm[D]
  head = Linear[D -> V]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    mean(cross_entropy[V](head(norm(layers(embed(tokens)))), labels))
  }
}
";

const PLANS: [&str; 4] = [
    "mesh { dp: 2 }\nstep data: acts B -> dp",
    "mesh { tp: 2 }\nstep tensor: H, KV, F, V -> tp\nstep sequence: acts S -> tp at Block.x",
    "mesh { dp: 4 }\nstep data: acts B -> dp\nstep zero(3): over dp",
    "mesh { dp: 2, tp: 2 }\nstep data: acts B -> dp\nstep tensor: H, KV, F, V -> tp\nstep zero(1): over dp",
];

const PRECISIONS: [&str; 2] =
    ["", "precision { compute bf16, params bf16, grads bf16, master f32, reduce f32 }"];

fn program(plan: &str, precision: &str) -> Program {
    let rest = "batch { seq 4, global 4 }\noptimizer adamw { lr 1e-2, clip 1.0 }";
    let source = format!("{MODEL}\nplan p for M {{\n{plan}\n{rest}\n{precision}\n}}\n");
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let choice = Choice { plan: PlanChoice::Named("p".to_owned()), overrides: Vec::new() };
    let typed = dtlc_lang::compile(&nothing, "m.dtl", source.as_bytes(), &choice).expect("it is well typed");
    let compilation = compile(&typed, Mode::Train, Stage::Program).expect("it compiles");
    let mut assembled = compilation.assembled.expect("the last stage was asked for");
    let nvrtc = nvrtc().expect("it was there before");
    add_device_code(&mut assembled, nvrtc, &[]).unwrap_or_else(|error| panic!("{error}"));
    reread(&assembled).expect("it reads back")
}

/// The losses of two steps, and all state behind them; that only in the process of rank 0.
fn training(mut session: Session) -> (Vec<f32>, Vec<Vec<u8>>) {
    session.initialise(5).expect("it starts");
    let mut losses = Vec::new();
    for step in 1..=2 {
        for (name, shift) in [("tokens", 0), ("labels", 1)] {
            let numbers: Vec<u32> = (0..16).map(|at| ((at + shift) * 7919 + step * 31) % 40).collect();
            session.set_input(name, &HostTensor::from_u32(&[4, 4], &numbers)).expect("it fits");
        }
        session.step(step.into(), 5).unwrap_or_else(|error| panic!("{error}"));
        let loss = session.scalar("loss").expect("it can be read");
        losses.push(loss.expect("there is one"));
    }
    let states = (0..session.program().state.len() as u32).map(StateId);
    let collect = |state| session.collect_state(state).unwrap_or_else(|error| panic!("{error}"));
    let states = states.filter_map(|state| Some(collect(state)?.bytes)).collect();
    session.part();
    (losses, states)
}

#[test]
fn training_over_a_network_has_the_bits_of_ranks_on_one_device() {
    if nvrtc().is_none() {
        return;
    }
    for plan in PLANS {
        for precision in PRECISIONS {
            let program = program(plan, precision);
            let options = Options { threads: Some(1), ..Options::default() };
            let (on_cpu, _) = training(Session::start(program.clone(), options).expect("it starts"));
            let device = Arc::new(Emulator::default());
            let together = Session::start_on(device, program.clone(), options).expect("it starts");
            let (losses, states) = training(together);
            let devices = (0..program.mesh.ranks()).map(|_| Arc::new(Emulator::default()) as _);
            let apart = spread(devices.collect::<Vec<Arc<dyn CudaDriver>>>(), |process| {
                let (transport, network, device) = (process.transport, process.network, process.device);
                let session = Session::start_on_network(transport, network, device, program.clone(), options);
                training(session.expect("it starts"))
            });
            assert!(losses.iter().all(|loss| loss.is_finite()) && losses[0] != losses[1], "{losses:?}");
            assert!(apart.iter().all(|(other, _)| *other == losses), "{plan} {precision}: {losses:?}");
            if precision.is_empty() {
                // A CPU adds in an order of its own, within a kernel.
                let is_near = |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-5 * one.abs();
                assert!(on_cpu.iter().zip(&losses).all(is_near), "{plan}: {on_cpu:?} and {losses:?}");
            }
            assert!(states == apart[0].1, "{plan} {precision}: the states differ");
        }
    }
}
