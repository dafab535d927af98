//! The golden examples in small, from their text through every pass up to collectives, under all their plans.

use crate::support::check_request;
use dtlc_ir::{Program, verify};
use dtlc_lang::plan::Expect;
use dtlc_lang::{Compiled, Loaded, Options, PlanChoice, check_all, compile};
use dtlc_passes::expect::check_contracts;
use dtlc_passes::partition::{PlacementRequest, merge_collectives, partition, plan_reshards};
use dtlc_passes::{Mode, Position, joint as complete, lower};

fn nothing(_: &str, _: &[&str]) -> Loaded {
    Loaded::Missing
}

/// The joint program of one plan of an example, and what the plan asks for.
fn joint(
    source: &str,
    plan: &str,
    sizes: &[(&str, &str)],
    mode: Mode,
) -> (Program, PlacementRequest, Vec<Expect>) {
    let overrides = sizes.iter().map(|&(name, size)| (name.to_string(), size.to_string())).collect();
    let options = Options { plan: PlanChoice::Named(plan.to_string()), overrides };
    let compiled = compile(&nothing, "example.dtl", source.as_bytes(), &options);
    let Compiled { sources, model, plan: typed } =
        compiled.unwrap_or_else(|rejected| panic!("{plan}: {:#?}", rejected.diagnostics));
    let typed = typed.unwrap_or_else(|| panic!("no plan {plan}"));
    let locate = |span| {
        let place = sources.position(span);
        Position { file: "example.dtl".to_string(), line: place.line, column: place.column }
    };
    let mut lowered = lower(&model, Some(&typed), &locate).unwrap_or_else(|error| panic!("{error}"));
    complete(&mut lowered, Some(&typed), mode).unwrap_or_else(|error| panic!("{error}"));
    verify::joint(&lowered.program).unwrap_or_else(|fault| panic!("{fault}"));
    let request = PlacementRequest::from_plan(&typed, &model, |dim| lowered.dims[dim].to_vec());
    (lowered.program, request, typed.expect)
}

fn every_plan(source: &str, sizes: &[(&str, &str)]) {
    let plans = check_all(&nothing, "example.dtl", source.as_bytes()).plans;
    assert!(!plans.is_empty());
    for (plan, _) in plans {
        for mode in [Mode::Evaluate, Mode::Gradients, Mode::Train] {
            let (program, request, _) = joint(source, &plan, sizes, mode);
            check_request(&program, &request, &format!("{plan}, {mode:?}"));
        }
    }
}

#[test]
fn golden_llama() {
    let sizes = [("seq", "8"), ("D", "8"), ("K", "4"), ("F", "12"), ("V", "16")];
    every_plan(include_str!("../../../../examples/golden/llama.dtl"), &sizes);
}

#[test]
fn golden_gpt2() {
    let sizes = [("seq", "8"), ("D", "8"), ("K", "4"), ("F", "12"), ("V", "16")];
    every_plan(include_str!("../../../../examples/golden/gpt2.dtl"), &sizes);
}

#[test]
fn stages_of_zero_with_master_weights() {
    let sizes = [
        ("seq", "4"),
        ("global", "4"),
        ("D", "8"),
        ("H", "2"),
        ("K", "4"),
        ("V", "12"),
        ("P", "6"),
        ("L", "2"),
    ];
    let source = include_str!("../../../../examples/papers/zero.dtl");
    let source = source.replace("dp: 64", "dp: 2").replace("node: 8, gpu: 8", "node: 2, gpu: 2");
    every_plan(&source, &sizes);
}

#[test]
fn encoder_and_byte_model() {
    let sizes = [("seq", "4"), ("D", "8"), ("H", "2"), ("K", "4"), ("V", "12"), ("P", "6"), ("L", "2")];
    every_plan(include_str!("../../../../examples/bert.dtl"), &sizes);
    let sizes = [("seq", "4"), ("D", "8"), ("K", "4"), ("F", "12"), ("V", "16")];
    every_plan(include_str!("../../../../examples/bytes.dtl"), &sizes);
}

/// Partitions every plan of an example at its full size and holds the result against the verifier and the
/// plan's contracts on collectives.
fn contracts_hold(source: &str) {
    for (plan, _) in check_all(&nothing, "example.dtl", source.as_bytes()).plans {
        let (program, request, contracts) = joint(source, &plan, &[], Mode::Train);
        let made = partition(program, &request).unwrap_or_else(|errors| panic!("{plan}: {errors:#?}"));
        let mut program = made.program;
        plan_reshards(&mut program).unwrap_or_else(|errors| panic!("{plan}: {errors:#?}"));
        merge_collectives(&mut program);
        verify::sharded(&program).unwrap_or_else(|fault| panic!("{plan}: {fault}"));
        let broken = check_contracts(&program, &contracts, 0);
        assert!(broken.is_empty(), "{plan}: {broken:#?}");
    }
}

#[test]
fn large_examples_keep_their_contracts() {
    contracts_hold(include_str!("../../../../examples/llama3.dtl"));
    contracts_hold(include_str!("../../../../examples/papers/zero.dtl"));
    contracts_hold(include_str!("../../../../examples/bytes.dtl"));
    contracts_hold(include_str!("../../../../examples/gpt2.dtl"));
    contracts_hold(include_str!("../../../../examples/bert.dtl"));
}
