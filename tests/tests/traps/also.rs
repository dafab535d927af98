//! The traps that no single report stands for: odd sizes, fused weights, auxiliary losses.

use crate::support::{assert_close, compile, evaluate, rows};
use dtlc::pipeline::Mode;
use dtlc_tests::random::judge::{Verdict, judge};

/// Every axis of a model, each of an odd size.
const ODD: &str = "
use std::attention::MultiHead
use std::loss::cross_entropy
use std::nn::{Embedding, GeluMlp, RmsNorm}

layer Block[D, H, K, F] {
  norm = RmsNorm[D]
  attn = MultiHead[D, H, K]
  mlp = GeluMlp[D, F]

  fn (x: [B, S, D]) -> [B, S, D] {
    let h = x + attn(norm(x))
    h + mlp(h)
  }
}

model M {
  dims B, S, D = 7, H = 3, K = 5, F = 9, V = 11, L = 3

  embed = Embedding[V, D](deviation = 1.0)
  layers = repeat[L] Block[D, H, K, F]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    let logits = embed.logits(layers(embed(tokens)))
    mean(cross_entropy[V](logits, labels), over = labels != 0xffffffff)
  }
}
";

#[test]
fn an_odd_size_is_exact_or_an_error() {
    let rules = ["acts B -> x", "acts S -> x at Block.x", "D -> x", "H -> x", "K -> x", "F -> x", "V -> x"];
    let (mut exact, mut refused) = (Vec::new(), Vec::new());
    for ranks in [2, 4] {
        for rule in rules {
            for pad in ["", " pad"] {
                // `pad` stands between the axes and `at`.
                let rule = rule.replace("-> x", &format!("-> x{pad}"));
                let shared = "batch { seq 5, global 3 }\noptimizer sgd { lr 0.1 }";
                let source = format!(
                    "{ODD}\nplan one for M {{\nmesh {{ x: 1 }}\n{shared}\n}}\n\
                     plan many for M {{\nmesh {{ x: {ranks} }}\nstep s: {rule}\n{shared}\n}}\n"
                );
                match judge(&source) {
                    Verdict::Agrees => exact.push(rule),
                    // Only for a reason that the user can act on.
                    Verdict::Refused(report) => {
                        let named = ["E0407", "E0408", "E0410"].iter().any(|code| report.contains(code));
                        assert!(named, "{rule} on {ranks}: {report}");
                        refused.push(rule);
                    }
                    other => panic!("{rule} on {ranks} ranks: {other:?}"),
                }
            }
        }
    }
    // A batch comes from the plan, which can say another.
    assert!(refused.iter().all(|rule| !rule.contains("pad") || rule.starts_with("acts B")), "{refused:?}");
    assert!(exact.iter().all(|rule| rule.contains("pad")), "{exact:?}");
}

#[test]
fn fused_weights_are_cut_by_heads_and_hidden_units() {
    let model = "
use std::attention::FusedMultiHead
use std::loss::cross_entropy
use std::nn::{Embedding, silu}

layer Fused[D, H, K, F] {
  dims Two = 2
  attn = FusedMultiHead[D, H, K]
  param gate_up: [D, Two, F]
  param down: [F, D]

  fn (x: [B, S, D]) -> [B, S, D] {
    let h = x + attn(x)
    let both = dot[D](h, gate_up)
    h + dot[F](silu(slice[Two = 0](both)) * slice[Two = 1](both), down)
  }
}

model M {
  dims B, S, D = 8, H = 4, K = 2, F = 12, V = 16

  embed = Embedding[V, D](deviation = 1.0)
  block = Fused[D, H, K, F]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    mean(cross_entropy[V](embed.logits(block(embed(tokens))), labels))
  }
}
";
    let shared = "batch { seq 4, global 2 }\noptimizer sgd { lr 0.1 }";
    for ranks in [2, 4] {
        for (rules, checked) in
            [("H, F -> tp", true), ("H, F -> tp\nstep z: store params: largest -> tp", true)]
        {
            let source = format!(
                "{model}\nplan one for M {{\nmesh {{ tp: 1 }}\n{shared}\n}}\n\
                 plan many for M {{\nmesh {{ tp: {ranks} }}\nstep t: {rules}\n{shared}\n}}\n"
            );
            assert!(checked && judge(&source) == Verdict::Agrees, "{rules} on {ranks}: {:?}", judge(&source));
        }
    }
    // The dimension of the three kinds is not one that heads could be confused with: it can't be cut in two.
    let source =
        format!("{model}\nplan p for M {{\nmesh {{ tp: 2 }}\nstep t: attn.Three -> tp\n{shared}\n}}\n");
    assert!(compile(&source, "p", Mode::Train).is_err());
}

#[test]
fn an_auxiliary_loss_has_the_same_strength_under_every_plan() {
    // The cost of tokens, a penalty on the activations of all positions, and one on a weight: three counts.
    let model = "
use std::loss::cross_entropy
use std::nn::{Embedding, RmsNorm, SwiGlu}

layer Block[D, F] {
  norm = RmsNorm[D]
  mlp = SwiGlu[D, F]

  fn (x: [B, S, D]) -> [B, S, D] { x + mlp(norm(x)) }
}

model M {
  dims B, S, D = 8, F = 12, V = 16, L = 2

  embed = Embedding[V, D](deviation = 1.0)
  layers = repeat[L] Block[D, F]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    let x = layers(embed(tokens))
    let cost = cross_entropy[V](embed.logits(x), labels, z = 0.01)
    let wide = f32(x)
    let penalty = mean(wide * wide)
    let size = sum(f32(embed.weight) * f32(embed.weight))
    mean(cost, over = labels != 0xffffffff) + 0.3 * penalty + 0.01 * size
  }
}
";
    let plans = [
        ("one", "mesh { dp: 1 }\nbatch { seq 4, global 8 }"),
        ("dp4", "mesh { dp: 4 }\nstep d: acts B -> dp\nbatch { seq 4, global 8 }"),
        ("accum", "mesh { dp: 1 }\nbatch { seq 4, global 8, micro 2 }"),
        ("tp2", "mesh { tp: 2 }\nstep t: F, V -> tp\nbatch { seq 4, global 8 }"),
        (
            "sp",
            "mesh { tp: 2 }\nstep t: F, V -> tp\nstep s: acts S -> tp at Block.x\nbatch { seq 4, global 8 }",
        ),
        (
            "all",
            "mesh { dp: 2, tp: 2 }\nstep d: acts B -> dp\nstep t: F, V -> tp\nstep zero(3): over dp\n\
             batch { seq 4, global 8, micro 1 }",
        ),
    ];
    let mut source = model.to_owned();
    for (name, entries) in plans {
        source += &format!("\nplan {name} for M {{\n{entries}\n}}\n");
    }
    let inputs = rows(4, 16, &[4, 1, 2, 0, 3, 4, 1, 2]);
    let expected = evaluate(&source, "one", &inputs);
    for (name, _) in &plans[1..] {
        assert_close(&expected, &evaluate(&source, name, &inputs), 1e-5, name);
    }
}
