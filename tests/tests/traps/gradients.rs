//! Traps in which a gradient, a loss or a norm counts something twice or not at all.

use crate::support::{Plan, Tensors, assert_close, evaluate, file, rows, session, step};
use dtlc::pipeline::Mode;

/// What f32 sums in another order may differ by, relative to a tensor's largest element.
const ROUNDING: f32 = 1e-5;

/// Norms in front of everything, norms of queries and keys, two key heads.
const BLOCK: &str = "
use std::attention::GroupedQuery
use std::loss::cross_entropy
use std::nn::{Embedding, Linear, RmsNorm, SwiGlu}

layer Block[D, KV, G, K, F] {
  norm_attn = RmsNorm[D]
  attn = GroupedQuery[D, KV, G, K](qk_norm = true)
  norm_mlp = RmsNorm[D]
  mlp = SwiGlu[D, F]

  fn (x: [B, S, D]) -> [B, S, D] {
    let h = x + attn(norm_attn(x))
    h + mlp(norm_mlp(h))
  }
}

model M {
  dims B, S, D = 16, KV = 2, G = 2, H = KV * G, K = 4, F = 24, V = 32, L = 2

  embed = Embedding[V, D]
  layers = repeat[L] Block[D, KV, G, K, F]
  norm = RmsNorm[D]
  head = Linear[D -> V]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    let logits = head(norm(layers(embed(tokens))))
    mean(cross_entropy[V](logits, labels), over = labels != 0xffffffff)
  }
}
";

#[test]
fn mega_443_a_replicated_weight_s_gradient_is_summed() {
    let plans = [
        Plan { name: "one", entries: "mesh { tp: 1 }\nbatch { seq 8, global 4 }" },
        Plan { name: "tp2", entries: "mesh { tp: 2 }\nstep t: H, KV, F, V -> tp\nbatch { seq 8, global 4 }" },
        Plan {
            name: "tp2_sp",
            entries: "mesh { tp: 2 }\nstep t: H, KV, F, V -> tp\nstep s: acts S -> tp at Block.x\n\
                      batch { seq 8, global 4 }",
        },
        // Fewer key heads than ranks.
        Plan { name: "tp4", entries: "mesh { tp: 4 }\nstep t: H, KV, F, V -> tp\nbatch { seq 8, global 4 }" },
        Plan {
            name: "tp4_sp",
            entries: "mesh { tp: 4 }\nstep t: H, KV, F, V -> tp\nstep s: acts S -> tp at Block.x\n\
                      batch { seq 8, global 4 }",
        },
    ];
    let source = file(BLOCK, &plans);
    let inputs = rows(8, 32, &[8, 8, 5, 3]);
    let expected = evaluate(&source, "one", &inputs);
    for name in ["norm_attn.weight", "norm_mlp.weight", "attn.norm_q.weight", "attn.norm_k.weight", "attn.wk"]
    {
        assert!(expected.contains_key(&format!("grad.layers.1.{name}")), "{:?}", expected.keys());
    }
    for plan in &plans[1..] {
        assert_close(&expected, &evaluate(&source, plan.name, &inputs), ROUNDING, plan.name);
    }
}

#[test]
fn tt_4245_a_row_parallel_bias_counts_once() {
    // The bias is what the trap counts `tp` times, so it does not start at zero.
    let model = "
use std::nn::Linear

model M {
  dims B, D = 6, F = 8, O = 5
  up = Linear[D -> F](bias = true)
  param down: [F, O]
  param offset: [O] = constant(0.75) kind bias

  fn loss(x: [B, D], weights: f32[B, O]) -> (f32[], f32[B, O]) {
    let y = dot[F](tanh(up(x)), down) + offset
    (mean(f32(y) * weights), f32(y))
  }
}
";
    let plans = [
        Plan { name: "one", entries: "mesh { tp: 1 }\nbatch { global 4 }" },
        Plan { name: "tp2", entries: "mesh { tp: 2 }\nstep t: F -> tp\nbatch { global 4 }" },
        Plan { name: "tp4", entries: "mesh { tp: 4 }\nstep t: F -> tp\nbatch { global 4 }" },
    ];
    let source = file(model, &plans);
    let inputs = [("x", 6, 7), ("weights", 5, 13)]
        .map(|(name, size, by)| (name.to_owned(), crate::support::wave(&[4, size], by)))
        .into();
    let expected = evaluate(&source, "one", &inputs);
    for plan in &plans[1..] {
        assert_close(&expected, &evaluate(&source, plan.name, &inputs), ROUNDING, plan.name);
    }
}

#[test]
fn xla_42481_untouched_embedding_rows_are_exactly_zero() {
    let plans = [
        Plan { name: "one", entries: "mesh { tp: 1 }\nbatch { seq 8, global 4 }" },
        Plan { name: "vocabulary", entries: "mesh { tp: 2 }\nstep t: V -> tp\nbatch { seq 8, global 4 }" },
        Plan {
            name: "positions",
            entries: "mesh { tp: 4 }\nstep t: V -> tp\nstep s: acts S -> tp at Block.x\nbatch { seq 8, global 4 }",
        },
        Plan {
            name: "both",
            entries: "mesh { dp: 2, tp: 2 }\nstep d: acts B -> dp\nstep t: H, KV, F, V -> tp\n\
                      step s: acts S -> tp at Block.x\nstep zero(3): over dp\nbatch { seq 8, global 4, micro 1 }",
        },
    ];
    let source = file(BLOCK, &plans);
    let inputs = rows(8, 32, &[8, 8, 8, 8]);
    let used: Vec<u32> = words(&inputs["tokens"].bytes);
    let expected = evaluate(&source, "one", &inputs);
    for plan in &plans {
        let got = evaluate(&source, plan.name, &inputs);
        assert_close(&expected, &got, ROUNDING, plan.name);
        let rows = words(&got["grad.embed.weight"].bytes);
        let rows: Vec<&[u32]> = rows.chunks_exact(16).collect();
        assert!(used.iter().all(|&token| rows[token as usize].iter().any(|&bits| bits != 0)));
        let untouched: Vec<usize> = (0..32).filter(|row| !used.contains(&(*row as u32))).collect();
        assert!(untouched.len() >= 3, "{used:?}");
        for row in untouched {
            assert!(rows[row].iter().all(|&bits| bits == 0), "{}: row {row} is {:x?}", plan.name, rows[row]);
        }
    }
}

/// The bits of numbers of four bytes.
fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

#[test]
fn tt_1842_a_mean_is_one_sum_over_one_count() {
    let plans = [
        Plan { name: "one", entries: "mesh { dp: 1 }\nbatch { seq 8, global 8 }" },
        Plan { name: "dp2", entries: "mesh { dp: 2 }\nstep d: acts B -> dp\nbatch { seq 8, global 8 }" },
        Plan { name: "dp8", entries: "mesh { dp: 8 }\nstep d: acts B -> dp\nbatch { seq 8, global 8 }" },
        Plan { name: "accum", entries: "mesh { dp: 1 }\nbatch { seq 8, global 8, micro 2 }" },
        Plan { name: "accum8", entries: "mesh { dp: 1 }\nbatch { seq 8, global 8, micro 1 }" },
        Plan {
            name: "dp2_accum2",
            entries: "mesh { dp: 2 }\nstep d: acts B -> dp\nbatch { seq 8, global 8, micro 2 }",
        },
        Plan {
            name: "positions",
            entries: "mesh { dp: 2, tp: 2 }\nstep d: acts B -> dp\nstep s: acts S -> tp at Block.x\n\
                      step zero(2): over dp\nbatch { seq 8, global 8, micro 1 }",
        },
    ];
    let source = file(BLOCK, &plans);
    // One to seven valid tokens a row, and a row with none: each split has another mean of means.
    let inputs = rows(8, 32, &[1, 7, 2, 6, 0, 5, 3, 4]);
    let expected = evaluate(&source, "one", &inputs);
    for plan in &plans[1..] {
        assert_close(&expected, &evaluate(&source, plan.name, &inputs), ROUNDING, plan.name);
    }
    // Where nothing is valid the mean is zero and not a number over zero.
    let nothing = rows(8, 32, &[0; 8]);
    for plan in &plans {
        for (name, tensor) in evaluate(&source, plan.name, &nothing) {
            assert!(tensor.to_f32().iter().all(|&number| number == 0.0), "{}: {name}", plan.name);
        }
    }
}

#[test]
fn nemo_rl_3788_the_clip_norm_counts_each_value_once() {
    let optimizer = "optimizer sgd { lr 0.5, clip 0.01 }";
    let shapes = [
        ("one", "mesh { tp: 1 }\nbatch { seq 8, global 4 }"),
        ("tp2", "mesh { tp: 2 }\nstep t: H, KV, F, V -> tp\nbatch { seq 8, global 4 }"),
        ("tp4", "mesh { tp: 4 }\nstep t: H, KV, F, V -> tp\nbatch { seq 8, global 4 }"),
        (
            "sp",
            "mesh { tp: 2 }\nstep t: H, KV, F, V -> tp\nstep s: acts S -> tp at Block.x\nbatch { seq 8, global 4 }",
        ),
        ("dp2", "mesh { dp: 2 }\nstep d: acts B -> dp\nbatch { seq 8, global 4 }"),
        (
            "zero1",
            "mesh { dp: 2 }\nstep d: acts B -> dp\nstep zero(1): over dp\nbatch { seq 8, global 4, micro 1 }",
        ),
        ("zero2", "mesh { dp: 2 }\nstep d: acts B -> dp\nstep zero(2): over dp\nbatch { seq 8, global 4 }"),
        (
            "zero3",
            "mesh { dp: 2, tp: 2 }\nstep d: acts B -> dp\nstep t: H, KV, F, V -> tp\nstep zero(3): over dp\n\
             batch { seq 8, global 4, micro 1 }",
        ),
        (
            "hsdp",
            "mesh { dp: { outer: 2, inner: 2 } }\nstep d: acts B -> dp\nstep zero(3): over dp.inner\n\
             batch { seq 8, global 4 }",
        ),
    ];
    let mut source = BLOCK.to_owned();
    for (name, entries) in shapes {
        source += &format!("\nplan {name} for M {{\n{entries}\n{optimizer}\n}}\n");
    }
    let inputs = rows(8, 32, &[8, 1, 5, 3]);
    let mut expected = None;
    for (name, _) in shapes {
        let mut session = session(&source, name, Mode::Train);
        let outputs = step(&mut session, 1, &inputs);
        let got: Tensors = [("grad_norm".to_owned(), outputs["grad_norm"].clone())].into();
        let updated = dtlc_runtime::files::weights::parameters(&session).expect("parameters");
        let (norm, parameters) = expected.get_or_insert_with(|| (got.clone(), updated.clone()));
        assert_close(norm, &got, 1e-6, name);
        // The norm is what the gradients are scaled by.
        assert_close(parameters, &updated, 1e-6, name);
    }
}
