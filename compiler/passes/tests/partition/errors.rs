//! What a plan can get wrong, each with the kind of error and what the message has to name.

use crate::llama::llama;
use crate::support::{joint, request};
use dtlc_passes::partition::{PlacementError, PlacementErrorKind, partition};

fn errors(plan: &str) -> Vec<PlacementError> {
    let program = joint(&llama(15));
    match partition(program.clone(), &request(&program, plan)) {
        Ok(_) => panic!("{plan}: no error"),
        Err(errors) => errors,
    }
}

/// The only error of a plan, whose message and reasons contain all of `words`.
fn error(plan: &str, kind: PlacementErrorKind, words: &[&str]) {
    let errors = errors(plan);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(errors[0].kind, kind, "{errors:#?}");
    let text = format!("{}\n{}", errors[0].message, errors[0].reasons.join("\n"));
    for word in words {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

#[test]
fn axis_that_the_mesh_lacks() {
    error("mesh dp 2\ndata: acts B -> tp", PlacementErrorKind::UnknownAxis, &["`tp`"]);
}

#[test]
fn axis_twice_in_one_rule() {
    error("mesh dp 2\ndata: acts B -> dp dp", PlacementErrorKind::AxisTwice, &["`dp`"]);
}

#[test]
fn rule_without_a_match() {
    let plan = "mesh dp 2\ndata: params B -> dp";
    error(plan, PlacementErrorKind::NoMatch, &["params", "`B`"]);
    error("mesh dp 1\ndata: params B -> dp", PlacementErrorKind::NoMatch, &["`B`"]);
    error("mesh tp 2\nsequence: acts KV -> tp at Block.x", PlacementErrorKind::NoMatch, &["Block.x", "`KV`"]);
}

#[test]
fn store_of_a_dimension_that_nothing_has() {
    error("mesh dp 2\nzero: store params B -> dp", PlacementErrorKind::NoMatch, &["params", "`B`"]);
}

#[test]
fn path_that_names_nothing() {
    error("mesh tp 2\nsequence: acts S -> tp at Block.z", PlacementErrorKind::UnknownName, &["`Block.z`"]);
    error("mesh tp 2\nsequence: acts S -> tp at Layer.x", PlacementErrorKind::UnknownName, &["`Layer.x`"]);
}

#[test]
fn dimension_that_the_axis_does_not_divide() {
    error("mesh tp 2\ntensor: V -> tp", PlacementErrorKind::NotDivisible, &["`V`", "15", "`tp`"]);
    error("mesh dp 2, tp 4\na: B -> dp\nb: B -> tp", PlacementErrorKind::NotDivisible, &["`B`", "step `a`"]);
}

#[test]
fn product_whose_factors_do_not_follow_the_axis() {
    error("mesh tp 3\ntensor: H=KV*G -> tp", PlacementErrorKind::NotDivisible, &["`H`", "KV = 2", "3 ways"]);
}

#[test]
fn dimension_of_a_loop() {
    error("mesh pp 2\nstages: L -> pp", PlacementErrorKind::StackedDimension, &["`L`"]);
}

#[test]
fn one_thing_twice_in_a_step() {
    let plan = "mesh dp 2, tp 2\ndata: B -> dp; B -> tp";
    error(plan, PlacementErrorKind::DuplicateRule, &["`data`", "`B`"]);
}

#[test]
fn rules_of_one_step_that_meet_in_a_value() {
    let plan = "mesh tp 2\nboth: H=KV*G, KV, F -> tp; acts S -> tp at Block.x";
    let errors = errors(plan);
    assert_eq!(errors[0].kind, PlacementErrorKind::Conflict, "{errors:#?}");
    let reasons = errors[0].reasons.join("\n");
    assert!(reasons.contains("by step `both`: acts S -> tp at Block.x"), "{reasons}");
    assert!(reasons.contains("-> tp\n") || reasons.ends_with("-> tp"), "{reasons}");
    assert!(errors[0].message.contains("step `both` wants both"), "{errors:#?}");
}
