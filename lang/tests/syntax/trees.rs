//! The parser on whole files: every construct is taken, and the pieces agree with the grammar's `file` rule.

use crate::support::{SAMPLES, report, tree};
use dtlc_lang::parse;

#[test]
fn samples_are_free_of_errors() {
    for (name, text) in SAMPLES {
        assert_eq!(report(name, text), "");
        assert!(parse::accepts(text), "{name}");
    }
}

#[test]
fn tree_of_every_construct() {
    insta::assert_snapshot!(tree(SAMPLES[1].1));
}
