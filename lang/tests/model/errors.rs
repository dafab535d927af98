//! Runs `errors/*.md`: documents in which each `dtl` block is followed by the report that checking it must give. A block
//! headed `dtl NAME` before it is a file that it may import.
//!
//! `DTLC_UPDATE=1 cargo test -p dtlc-lang --test model errors` writes the reports anew; read the difference before you keep it.

use std::fs;
use std::path::{Path, PathBuf};

use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{Code, Loaded, check_all};

const SUITES: [&str; 3] = ["names.md", "types.md", "plans.md"];

/// Codes of this half of the language (E0450 and up are the passes') that need the command line; see `options.rs`, or a size that no test should have;
/// see `limits.rs`.
const ELSEWHERE: [Code; 3] = [Code::WhichPlan, Code::WhichModel, Code::LimitReached];

#[test]
fn reports_are_as_documented() {
    for name in SUITES {
        let path = path(name);
        let document = fs::read_to_string(&path).expect("the suite is there");
        let renewed = renew(&document);
        if std::env::var_os("DTLC_UPDATE").is_some() {
            fs::write(&path, renewed).expect("the suite can be written");
        } else {
            assert_eq!(document, renewed, "reports of {name} changed");
        }
    }
}

#[test]
fn every_code_is_documented() {
    let documents: String =
        SUITES.iter().map(|name| fs::read_to_string(path(name)).expect("the suite is there")).collect();
    for code in Code::ALL {
        let mine = ["E02", "E03", "E040", "E041"].iter().any(|prefix| code.number().starts_with(prefix));
        if mine && !ELSEWHERE.contains(code) {
            assert!(documents.contains(&format!("\n{}\n", code.number())), "no case for {}", code.number());
        }
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/errors").join(name)
}

/// The document with each report block as it comes out now.
fn renew(document: &str) -> String {
    let mut renewed = String::new();
    let mut rest = document;
    let mut files: Vec<(String, String)> = Vec::new();
    while let Some((before, after)) = rest.split_once("```dtl") {
        let (name, after) = after.split_once('\n').expect("a line ends");
        let (source, after) = after.split_once("```\n").expect("a dtl block ends");
        renewed += &format!("{before}```dtl{name}\n{source}```\n");
        if !name.is_empty() {
            files.push((name.trim().to_owned(), source.to_owned()));
            rest = after;
            continue;
        }
        let (_, after) = after.split_once("```text\n").expect("a report block follows");
        let (_, after) = after.split_once("```\n").expect("a report block ends");
        renewed += &format!("\n```text\n{}\n```\n", report(source, &files).trim_end());
        files.clear();
        rest = after;
    }
    renewed + rest
}

fn report(source: &str, files: &[(String, String)]) -> String {
    let load = |_: &str, segments: &[&str]| {
        let name = format!("{}.dtl", segments.join("/"));
        match files.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => Loaded::Found { name: name.clone(), bytes: text.clone().into_bytes() },
            None => Loaded::Missing,
        }
    };
    let checked = check_all(&load, "case.dtl", source.as_bytes());
    let report = render_all(&checked.diagnostics, &checked.sources, Colour::Never);
    assert!(!report.is_empty(), "no error in\n{source}");
    report
}
