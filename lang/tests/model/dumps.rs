//! Typed models as text: exact for small ones, so that a change of meaning shows.

use crate::support::{compile_text, compiled};
use dtlc_lang::plan::Rule;
use dtlc_lang::{Options, PlanChoice};

fn dump(text: &str) -> String {
    let compiled = compile_text("case.dtl", text.as_bytes(), &Options::default());
    compiled.unwrap_or_else(|report| panic!("{report}")).model.to_string()
}

#[test]
fn stack_with_shared_argument() {
    insta::assert_snapshot!(dump(
        "\
layer Step[D] {
  param w: [D] kind norm
  fn (x: [B, D], shift: [D]) -> [B, D] { x * w + shift }
}
model M {
  dims B, D = 4, L = 3
  param shift: [D] kind bias
  steps = repeat[L] Step[D], repeat[2] Step[D]
  fn loss(x: [B, D]) -> (f32[], [B, D]) {
    let y = steps(x, shift)
    (f32(mean(y)), y)
  }
}
"
    ));
}

#[test]
fn product_dims_positions_and_means() {
    insta::assert_snapshot!(dump(
        "\
use std::rope::rope
model M {
  dims B, S, KV = 2, G = 3, H = KV * G, K = 4
  param w: [H, K] = normal(1.0 / sqrt(K)) as \"weight\"
  fn loss(x: [B, S, KV, G, K], valid: bool[B, S]) -> f32[] {
    let q = rope[S, K](merge[KV, G -> H](x) * w)
    mean(f32(sum[H, K](q)), over = valid)
  }
}
"
    ));
}

#[test]
fn bytes_without_a_plan() {
    insta::assert_snapshot!(compiled("examples/bytes.dtl", PlanChoice::None).model.to_string());
}

#[test]
fn plan_of_four_ranks() {
    let compiled = compiled("examples/bytes.dtl", PlanChoice::Named("node4".to_owned()));
    let plan = compiled.plan.expect("a plan");
    let mesh: Vec<(&str, u64)> = plan.mesh.iter().map(|axis| (axis.name.as_str(), axis.size)).collect();
    assert_eq!(mesh, [("dp", 2), ("tp", 2)]);
    let steps: Vec<(&str, usize)> =
        plan.steps.iter().map(|step| (step.name.as_str(), step.rules.len())).collect();
    assert_eq!(steps, [("data", 1), ("tensor", 4), ("sequence", 1), ("zero(1)", 1)]);
    let Rule::Place { dim, axes, at, .. } = &plan.steps[2].rules[0] else { panic!("a place") };
    assert_eq!((Some(*dim), axes.as_slice()), (compiled.model.sequence, &["tp".to_owned()][..]));
    assert_eq!(at[0].segments, ["Block", "x"]);
    let optimizer = plan.optimizer.expect("an optimizer");
    assert_eq!(optimizer.states, ["m", "v"]);
    let inputs: Vec<&str> = optimizer.update.inputs.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(inputs, ["parameter", "gradient", "step", "lr", "decay", "m", "v"]);
    assert_eq!(optimizer.update.block.results.len(), 3);
    assert_eq!((optimizer.decay, optimizer.clip), (0.1, Some(1.0)));
    assert_eq!(optimizer.schedule.block.results.len(), 1);
}
