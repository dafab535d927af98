//! A bounded run of every fuzz target: what once showed a fault, the seeds, and a number of mutants, the same each time.
//!
//! `DTLC_FUZZ_CASES=N` runs N mutants of each target, `DTLC_FUZZ_SEED=S` starts at another.

use dtlc_tests::fuzz::runner::{Limit, run};
use dtlc_tests::fuzz::{TARGETS, target};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn bounded(name: &str, cases: u64) {
    let target = target(name).expect("a target");
    let first = setting("DTLC_FUZZ_SEED", 0);
    let outcome = run(target, first, Limit::Cases(setting("DTLC_FUZZ_CASES", cases)));
    for finding in &outcome.findings {
        let message: String = finding.message.chars().take(2000).collect();
        println!("{name}, {}: {message}\n{}", finding.name, finding.input.escape_ascii());
    }
    assert!(outcome.findings.is_empty(), "{} finding(s), see above", outcome.findings.len());
}

#[test]
fn parser() {
    bounded("parser", 1200);
}

#[test]
fn formatter() {
    bounded("formatter", 700);
}

#[test]
fn ir_text() {
    bounded("ir_text", 400);
}

#[test]
fn program() {
    bounded("program", 3000);
}

#[test]
fn front_end() {
    bounded("front_end", 150);
}

#[test]
fn tensors() {
    bounded("tensors", 3000);
}

#[test]
fn every_target_has_a_test() {
    let text = include_str!("fuzz.rs");
    for target in &TARGETS {
        assert!(text.contains(&format!("bounded(\"{}\"", target.name)), "{}", target.name);
    }
}
