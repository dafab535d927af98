//! Hostile files end in a report, never in a panic or without end.

use crate::support::compile_text;
use dtlc_lang::Options;

fn report(text: &str) -> String {
    compile_text("case.dtl", text.as_bytes(), &Options::default()).expect_err("it is refused")
}

#[test]
fn calls_that_double_at_every_level_are_cut_short() {
    let mut text = String::from("fn f0(x: [..]) -> [..] { x + x }\n");
    for level in 1..60 {
        text += &format!("fn f{level}(x: [..]) -> [..] {{ f{0}(f{0}(x)) }}\n", level - 1);
    }
    text += "model M {\n  dims B\n  fn loss(x: f32[B]) -> f32[] { sum(f32(f59(float(x)))) }\n}\n";
    assert!(report(&text).contains("E0312"));
}

#[test]
fn long_chains_are_cut_short() {
    let sum = vec!["x"; 20_000].join(" + ");
    let text = format!("model M {{\n  dims B\n  fn loss(x: f32[B]) -> f32[] {{ sum({sum}) }}\n}}\n");
    let report = report(&text);
    assert!(report.contains("E0312") || report.contains("E0106"), "{report}");
}

#[test]
fn chains_of_calls_are_cut_short() {
    let mut text = String::from("fn f0(x: [..]) -> [..] { x }\n");
    for level in 1..600 {
        text += &format!("fn f{level}(x: [..]) -> [..] {{ f{}(x) }}\n", level - 1);
    }
    text += "model M {\n  dims B\n  fn loss(x: f32[B]) -> f32[] { sum(f32(f599(float(x)))) }\n}\n";
    assert!(report(&text).contains("E0312"));
}

#[test]
fn a_sum_of_many_terms_is_fine() {
    let sum = vec!["x"; 150].join(" + ");
    let text = format!("model M {{\n  dims B\n  fn loss(x: f32[B]) -> f32[] {{ sum({sum}) }}\n}}\n");
    compile_text("case.dtl", text.as_bytes(), &Options::default()).expect("it is right");
}
