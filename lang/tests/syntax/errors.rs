//! Runs `errors/*.md`: documents in which each `dtl` block is followed by the report it must give.
//!
//! `DTLC_UPDATE=1 cargo test -p dtlc-lang --test syntax errors` writes the reports anew; read the difference before you keep it.

use std::fs;
use std::path::Path;

use crate::support::report;

#[test]
fn syntax() {
    check("syntax.md");
}

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/syntax/errors").join(name);
    let document = fs::read_to_string(&path).expect("the suite is there");
    let renewed = renew(&document);
    if std::env::var_os("DTLC_UPDATE").is_some() {
        fs::write(&path, renewed).expect("the suite can be written");
    } else {
        assert_eq!(document, renewed, "reports of {name} changed");
    }
}

/// The document with each report block as it comes out now.
fn renew(document: &str) -> String {
    let mut renewed = String::new();
    let mut rest = document;
    let mut cases = 0;
    while let Some((before, after)) = rest.split_once("```dtl\n") {
        let (source, after) = after.split_once("```\n").expect("a dtl block ends");
        let (_, after) = after.split_once("```text\n").expect("a report block follows");
        let (_, after) = after.split_once("```\n").expect("a report block ends");
        let report = report("case.dtl", source);
        assert!(!report.is_empty(), "no error in\n{source}");
        renewed += &format!("{before}```dtl\n{source}```\n\n```text\n{}\n```\n", report.trim_end());
        rest = after;
        cases += 1;
    }
    assert!(cases > 0, "a suite without cases");
    renewed + rest
}
