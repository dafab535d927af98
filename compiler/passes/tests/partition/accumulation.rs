//! Gradient accumulation: sums over micro-batches stay where they are until the last one.

use crate::llama::expand;
use crate::support::{calls, check, joint, with_update};
use dtlc_ir::Program;

/// Layers of two products, in a loop over micro-batches.
const MICRO: &str = r#"
program "micro" {
  dims { M = 3, B = 4, D = 8, F = 12, L = 2, V = 6 }
  scopes { /: Micro  layers: Block in / }
  states {
    embed = %embed, weight, constant(0.0);
    layers.w1 = %w1s, weight, constant(0.0), stack L;
    layers.w2 = %w2s, weight, constant(0.0), stack L;
    layers.g = %gs, norm, constant(0.0), stack L;
  }
  inputs { tokens = %tokens }
  outputs { loss = %loss }
  main(
    %embed: f32[V, D] param, %w1s: f32[L, D, F] param, %w2s: f32[L, F, D] param, %gs: f32[L, D] param,
    %tokens: u32[M, B],
  ) {
    # /
    %zero: f32[] = const 0.0
    %loss: f32[] = scan[M, carries 1, stacks 1] %zero, %tokens forward (
      %sum: f32[], %slice: u32[B]
    ) {
      %x0: f32[B, D] = take[V] %embed, %slice
      %y: f32[B, D] = scan[L, carries 1, stacks 3] %x0, %w1s, %w2s, %gs forward (
        %x: f32[B, D], %w1: f32[D, F] param, %w2: f32[F, D] param, %g: f32[D] param
      ) {
        # layers
        %xn: f32[B, D] = mul %x, %g
        %h: f32[B, F] = dot %xn, %w1
        %a: f32[B, F] = tanh %h
        %o: f32[B, D] = dot %a, %w2
        %next: f32[B, D] = add %x, %o
        yield %next
      }
      # /
      %q: f32[B, D] = mul %y, %y
      %part: f32[] = reduce_sum[B, D] %q
      %total: f32[] = add %sum, %part
      yield %total
    }
    yield %loss
  }
}
"#;

fn step() -> Program {
    with_update(joint(&expand(MICRO)))
}

#[test]
fn gradients_are_reduced_once_a_step() {
    let program = check(&step(), "mesh dp 2\ndata: acts B -> dp");
    assert_eq!(calls(&program, "step", "gradient"), ["all_reduce dp"]);
    assert_eq!(calls(&program, "step", "forward"), ["all_reduce dp"]);
    assert_eq!(calls(&program, "step", "backward"), [""; 0]);
    assert_eq!(calls(&program, "Block", "backward"), [""; 0]);
}

#[test]
fn optimizer_shards_take_their_part_of_the_sum() {
    let program = check(&step(), "mesh dp 2\ndata: acts B -> dp\nzero: store opt largest -> dp");
    assert_eq!(calls(&program, "step", "gradient"), ["reduce_scatter dp"]);
    assert_eq!(calls(&program, "step", "update"), ["all_reduce dp", "all_gather dp"]);
}

#[test]
fn gradient_shards_are_reduced_block_by_block() {
    let program = check(&step(), "mesh dp 2\ndata: acts B -> dp\nzero: store opt, grads largest -> dp");
    assert_eq!(calls(&program, "Block", "backward"), ["reduce_scatter dp"]);
    assert_eq!(calls(&program, "step", "backward"), ["reduce_scatter dp"]);
    assert_eq!(calls(&program, "step", "gradient"), [""; 0]);
}

#[test]
fn hybrid_shards_are_reduced_across_groups_once() {
    let plan =
        "mesh dp.outer 2, dp.inner 2\ndata: acts B -> dp\nhsdp: store opt, grads, params largest -> dp.inner";
    let program = check(&step(), plan);
    assert_eq!(calls(&program, "Block", "forward"), ["all_gather dp.inner"]);
    assert_eq!(calls(&program, "Block", "backward"), ["all_gather dp.inner", "reduce_scatter dp.inner"]);
    assert_eq!(calls(&program, "step", "gradient"), ["all_reduce dp.outer"]);
}
