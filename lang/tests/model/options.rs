//! What the command line chooses: plans, models, sizes.

use crate::support::{compile_text, read};
use dtlc_lang::{Options, PlanChoice};

const TWO_MODELS: &str = "\
model One {
  dims B, D = 4
  param w: [D]
  fn loss(x: f32[B, D]) -> f32[] { mean(x * f32(w)) }
}
model Two {
  dims B, D = 4
  param w: [D]
  fn loss(x: f32[B, D]) -> f32[] { mean(x * f32(w)) }
}
plan second for Two {
  mesh { dp: 2 }
  step data: acts B -> dp
  batch { global 8 }
}
";

fn options(plan: PlanChoice, overrides: &[(&str, &str)]) -> Options {
    let overrides = overrides.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Options { plan, overrides }
}

fn size(text: &[u8], options: &Options, dim: &str) -> u64 {
    let compiled = compile_text("case.dtl", text, options).unwrap_or_else(|report| panic!("{report}"));
    let found = compiled.model.dims.values().find(|it| it.name == dim);
    found.expect("the model has the dim").size
}

#[test]
fn the_only_plan_is_the_default_and_names_the_model() {
    let compiled = compile_text("case.dtl", TWO_MODELS.as_bytes(), &Options::default()).expect("it is right");
    assert_eq!(compiled.model.name, "Two");
    assert_eq!(compiled.plan.expect("there is one").name, "second");
}

#[test]
fn without_a_plan_the_model_must_be_clear() {
    let refused = compile_text("case.dtl", TWO_MODELS.as_bytes(), &options(PlanChoice::None, &[]));
    assert!(refused.expect_err("two models").contains("E0402"));
}

#[test]
fn unknown_and_missing_plans_are_named() {
    let text = read("examples/bytes.dtl");
    let unknown = compile_text("bytes.dtl", &text, &options(PlanChoice::Named("node5".to_owned()), &[]));
    let report = unknown.expect_err("no such plan");
    assert!(report.contains("E0401") && report.contains("-p node4"), "{report}");
    let several = compile_text("bytes.dtl", &text, &Options::default()).expect_err("several plans");
    assert!(several.contains("E0401") && several.contains("one, node4"), "{several}");
}

#[test]
fn sizes_come_from_the_command_line_then_the_plan_then_the_model() {
    let text = read("examples/bytes.dtl");
    let node4 = PlanChoice::Named("node4".to_owned());
    assert_eq!(size(&text, &options(PlanChoice::None, &[]), "S"), 64);
    assert_eq!(size(&text, &options(node4.clone(), &[]), "S"), 128);
    assert_eq!(size(&text, &options(node4.clone(), &[("seq", "32")]), "S"), 32);
    assert_eq!(size(&text, &options(node4.clone(), &[("S", "16")]), "S"), 16);
    assert_eq!(size(&text, &options(node4.clone(), &[("global", "4")]), "B"), 4);
    assert_eq!(size(&text, &options(node4.clone(), &[("KV", "4")]), "H"), 8);
    let compiled = compile_text("bytes.dtl", &text, &options(node4, &[("B", "4"), ("dp", "4")]));
    let plan = compiled.unwrap_or_else(|report| panic!("{report}")).plan.expect("a plan");
    assert_eq!((plan.batch.expect("a batch").global, plan.mesh[0].size), (4, 4));
}

#[test]
fn sizes_that_can_not_be_set_are_refused() {
    let text = read("examples/bytes.dtl");
    for (pair, part) in
        [(("H", "8"), "product"), (("Q", "8"), "no dimension `Q`"), (("D", "0"), "not a size")]
    {
        let refused =
            compile_text("bytes.dtl", &text, &options(PlanChoice::Named("one".to_owned()), &[pair]));
        let report = refused.expect_err("refused");
        assert!(report.contains("E0412") && report.contains(part), "{report}");
    }
}

#[test]
fn open_dims_are_marked_without_a_plan() {
    let text = read("examples/bytes.dtl");
    let compiled = compile_text("bytes.dtl", &text, &options(PlanChoice::None, &[])).expect("it is right");
    let open = |name: &str| compiled.model.dims.values().find(|it| it.name == name).is_some_and(|it| it.open);
    assert!(open("B") && open("S") && !open("D"));
}
