//! Straight-line products under data and tensor parallelism.

use crate::support::{calls, check, joint};

const MLP: &str = r#"
program "mlp" {
  dims { B = 4, S = 4, D = 8, F = 12 }
  scopes { /: Model }
  states { w1 = %w1, weight, constant(0.0); w2 = %w2, weight, constant(0.0); }
  inputs { x = %x }
  outputs { loss = %loss }
  main(%w1: f32[D, F] param, %w2: f32[F, D] param, %x: f32[B, S, D]) {
    %h: f32[B, S, F] = dot %x, %w1 forward
    %a: f32[B, S, F] = tanh %h forward
    %y: f32[B, S, D] = dot %a, %w2 forward
    %z: f32[B, S, D] = add %y, %x forward
    %q: f32[B, S, D] = mul %z, %z forward
    %loss: f32[] = reduce_sum[B, S, D] %q forward
    yield %loss
  }
}
"#;

#[test]
fn tensor_parallel_mlp_sums_once_forward() {
    let program = check(&joint(MLP), "mesh tp 2\ntensor: F -> tp");
    assert_eq!(calls(&program, "step", "forward"), ["all_reduce tp"]);
    assert_eq!(calls(&program, "step", "backward"), [""; 0]);
}

#[test]
fn data_parallel_mlp_sums_gradients() {
    let program = check(&joint(MLP), "mesh dp 2\ndata: acts B -> dp");
    assert_eq!(calls(&program, "step", "forward"), ["all_reduce dp"]);
    assert_eq!(calls(&program, "step", "backward"), ["all_reduce dp"]);
}

#[test]
fn dropout_draws_the_same_bits_under_every_placement() {
    let source = MLP
        .replace("inputs { x = %x }", "inputs { x = %x, step = %step }")
        .replace("%x: f32[B, S, D])", "%x: f32[B, S, D], %step: u32[])")
        .replace(
            "%y: f32[B, S, D] = dot %a, %w2 forward",
            "%half: f32[] = const 0.5 forward\n%drawn: f32[B, S, F] = random[stream 1 over B, S, F] %step forward\n\
             %keep: bool[B, S, F] = less %drawn, %half forward\n%mask: f32[B, S, F] = cast %keep forward\n\
             %d: f32[B, S, F] = mul %a, %mask forward\n%y: f32[B, S, D] = dot %d, %w2 forward",
        );
    let program = joint(&source);
    for plan in ["mesh x 2\nall: F -> x", "mesh x 2\nall: acts B -> x", "mesh x 2, y 2\nall: S -> x; F -> y"]
    {
        check(&program, plan);
    }
}
