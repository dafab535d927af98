//! Diagnostics as text and as JSON, over several files, and the table of codes.

use dtlc_lang::render::{Colour, render};
use dtlc_lang::{Code, Diagnostic, SourceMap, Span};

fn across_files() -> (SourceMap, Diagnostic) {
    let mut sources = SourceMap::new();
    let here = sources.add("model.dtl", "use lib::A\n\nlayer A[D] {}\n");
    let there = sources.add("lib.dtl", "layer A[D] {}\n");
    let diagnostic = Diagnostic::error(Code::UnexpectedToken, "`A` is declared twice")
        .label(Span::new(here, 18, 19), "again here")
        .label(Span::new(here, 9, 10), "taken from there")
        .label(Span::new(there, 6, 7), "first here")
        .why("a name stands for one thing")
        .note("both are layers")
        .hint_edit("use lib::A as B", Span::new(here, 10, 10), " as B");
    (sources, diagnostic)
}

#[test]
fn text_shows_every_file() {
    let (sources, diagnostic) = across_files();
    insta::assert_snapshot!(render(&diagnostic, &sources, Colour::Never));
}

#[test]
fn json_has_places_for_people_and_tools() {
    let (sources, diagnostic) = across_files();
    let json = serde_json::to_string_pretty(&diagnostic.to_json(&sources)).expect("plain data");
    insta::assert_snapshot!(json);
}

#[test]
fn every_code_is_found_by_its_number_and_explained() {
    for &code in Code::ALL {
        assert_eq!(Code::from_number(&code.number().to_lowercase()), Some(code));
        assert!(!code.title().is_empty() && code.explanation().len() > 40, "{}", code.number());
    }
}
