//! Which dimension a store takes, what it leaves whole, and placements written inline.

use crate::llama::llama;
use crate::support::{calls, check_request, joint, request, with_update};
use dtlc_ir::{Program, Value, text};
use dtlc_passes::partition::{PlacementErrorKind, RuleRequest, StepRequest, partition};

/// The type in which a state rests, as text.
fn stored(program: &Program, path: &str) -> String {
    let state = program.states.iter().find(|state| state.path == path).expect("a state");
    text::print_type(program, program.ty(state.value))
}

#[test]
fn a_store_takes_the_largest_dimension_that_remains() {
    let step = with_update(joint(&llama(16)));
    let plan = "mesh dp 2, tp 2\ntensor: H=KV*G, KV, F, V -> tp\nzero: store opt, params largest -> dp";
    let made = partition(step.clone(), &request(&step, plan)).unwrap_or_else(|errors| panic!("{errors:#?}"));
    // F is 12, of which tp leaves 6; D is 8. V is 16, of which tp leaves 8, and stands before D.
    assert_eq!(stored(&made.program, "layers.mlp.w1"), "f32[L, D@dp, F@tp]");
    assert_eq!(stored(&made.program, "layers.mlp.w1.m"), "f32[L, D@dp, F@tp]");
    assert_eq!(stored(&made.program, "embed"), "f32[V@tp@dp, D]");
    assert_eq!(made.left_whole, []);
}

#[test]
fn a_store_says_what_it_left_whole() {
    let step = with_update(joint(&llama(15)));
    let plan = "mesh dp 3\nzero: store params largest -> dp";
    let made = partition(step.clone(), &request(&step, plan)).unwrap_or_else(|errors| panic!("{errors:#?}"));
    assert_eq!(stored(&made.program, "layers.mlp.w1"), "f32[L, D, F@dp]");
    assert_eq!(stored(&made.program, "layers.attn.wq"), "f32[L, D, KV, G, K]");
    let whole: Vec<&str> = made.left_whole.iter().map(|(path, _)| path.as_str()).collect();
    let expected =
        ["layers.g1", "layers.attn.wq", "layers.attn.wk", "layers.attn.wv", "layers.attn.wo", "layers.g2"];
    assert_eq!(whole, [&expected[..], &["layers.mlp.b2", "g"]].concat());
    assert!(made.left_whole.iter().all(|(_, rule)| rule == "store params: largest -> dp"));
}

/// `S@tp` on the value called `h`.
fn pin(step: &Program) -> StepRequest {
    let binding = step.bindings.iter().find(|binding| binding.name == "h").expect("a binding");
    let dim = step.find_dim("S").expect("a dim");
    let rule = RuleRequest { values: vec![binding.value], ..RuleRequest::place("S", &[dim], &["tp"]) };
    StepRequest { name: "inline".to_string(), rules: vec![rule] }
}

#[test]
fn an_inline_placement_has_the_pads_of_the_plan() {
    let step = with_update(joint(&llama(16)));
    let asked = |plan: &str| {
        let mut request = request(&step, plan);
        request.steps.push(pin(&step));
        request
    };
    check_request(&step, &asked("mesh tp 3\nsequence: acts S -> tp pad at Block.x"), "inline S@tp, padded");
    let errors = partition(step.clone(), &asked("mesh tp 3")).err().expect("3 does not divide 8");
    assert_eq!(errors[0].kind, PlacementErrorKind::NotDivisible);
}

#[test]
fn an_inline_placement_comes_before_every_step() {
    let step = with_update(joint(&llama(16)));
    let mut request = request(&step, "mesh tp 2\ntensor: F -> tp");
    request.steps.insert(0, pin(&step));
    let program = check_request(&step, &request, "inline S@tp");
    // S@tp reaches the whole block first, so that F never gets the axis in an activation: what moves are the
    // keys with the values, and the weights that `tensor` still places.
    assert_eq!(calls(&program, "Block", "forward"), ["all_gather tp", "all_gather tp"]);
}

#[test]
fn an_inline_placement_holds_where_a_step_splits_otherwise() {
    let step = with_update(joint(&llama(16)));
    let mut request = request(&step, "mesh tp 2\ntensor: F -> tp");
    let is_hidden = |value: &Value| step.values[*value].name.as_deref() == Some("f1");
    let hidden = step.values.keys().find(is_hidden).expect("a value");
    let dim = step.find_dim("S").expect("a dim");
    let rule = RuleRequest { values: vec![hidden], ..RuleRequest::place("S", &[dim], &["tp"]) };
    request.steps.push(StepRequest { name: "inline".to_string(), rules: vec![rule] });
    let program = check_request(&step, &request, "inline S@tp");
    assert_eq!(calls(&program, "Block", "forward"), ["all_to_all tp", "all_to_all tp", "all_reduce tp"]);
}
