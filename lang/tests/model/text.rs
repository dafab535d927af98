//! The text of a model reads back as an equal model, and no text makes its parser panic. See `tests/tests/texts.rs` for all
//! examples and for random models.

use crate::support::compiled;
use dtlc_lang::PlanChoice;
use dtlc_lang::text::{parse, print};

#[test]
fn a_model_with_everything_survives() {
    for file in ["examples/bytes.dtl", "examples/gpt2.dtl", "examples/bert.dtl"] {
        let mut model = compiled(file, PlanChoice::None).model;
        // What no file can have any more than a plain word.
        model.name = "an \"odd\" name\n".to_owned();
        let text = print(&model);
        assert_eq!(parse(&text).as_ref(), Ok(&model), "{text}");
    }
}

#[test]
fn errors_say_where() {
    let graph = "loss() { yield n0 }";
    let node = |text: &str| {
        format!("model M {{ dim A = 2 @0:1..2 scope 0 M: M @0:0..1 loss() {{ {text} yield n0 }} }}")
    };
    for (text, expected) in [
        ("model M {".to_owned(), "1:10: expected"),
        (format!("model M {{ batch B {graph} }}"), "1:17: no dimension has this name: `B`"),
        (
            format!("model M {{ dim A = 2 @0:1..2 dim A = 3 @0:1..2 {graph} }}"),
            "1:29: this name is there already",
        ),
        (node("n0: [A] = iota[A] in scope3 @0:1..2"), "no layer instance has this number: `scope3`"),
        (node("n0: [A] = param w in scope0 @0:1..2"), "no parameter has this path: `w`"),
        (node("n0: [A] = nonsense in scope0 @0:1..2"), "no such operation: `nonsense`"),
        (node("n1: [A] = iota[A] in scope0 @0:1..2"), "has no node"),
        (node("n4000000000: [A] = iota[A] in scope0 @0:1..2"), "nodes are numbered without gaps"),
        (node("n0: [A] = random in scope0 @0:1..2 { yield n0 }"), "a repeat has a body"),
    ] {
        let error = parse(&text).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text}\n{error}");
    }
}

#[test]
fn garbled_text_is_an_error_or_a_model() {
    let text = print(&compiled("examples/bytes.dtl", PlanChoice::None).model);
    let words: Vec<&str> = text.split_inclusive([' ', ',', '[', '(', '\n']).collect();
    for at in 0..words.len() {
        let mut dropped = words.clone();
        dropped.remove(at);
        let mut other = words.clone();
        other[at] = words[(at * 7 + 3) % words.len()];
        for words in [dropped, other] {
            if let Ok(model) = parse(&words.concat()) {
                print(&model);
            }
        }
    }
}
