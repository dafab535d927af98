//! Targets of the language alone: the parser, and the formatter, which may change nothing but layout.

use dtlc_lang::lex::lex;
use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{Diagnostic, Parsed, SourceMap, format, parse};

/// Any bytes parse, or are refused with diagnostics that can be shown. What parses is legal by the grammar too.
///
/// # Panics
/// Where that is not so.
pub fn parser(bytes: &[u8]) {
    let mut sources = SourceMap::new();
    let id = match sources.add_bytes("fuzz.dtl", bytes) {
        Ok(id) => id,
        Err(diagnostic) => return show(&[*diagnostic], &sources),
    };
    let parsed = parse(sources.file(id));
    show(&parsed.diagnostics, &sources);
    if parsed.is_ok() {
        assert!(parse::accepts(&sources.file(id).text), "the grammar does not take what is parsed");
    }
}

/// A text that is legal formats to one with the same tree and comments, which formats to itself; any other is refused
/// as the parser refuses it.
///
/// # Panics
/// Where that is not so.
pub fn formatter(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (sources, parsed) = parse_text(text);
    let file = sources.files().next().expect("one file was added");
    let formatted = format(file);
    assert_eq!(parsed.is_ok(), formatted.is_ok(), "parser and formatter disagree on what is legal");
    let Ok(once) = formatted else { return };
    let (again, parsed_again) = parse_text(&once);
    assert!(parsed_again.is_ok(), "what was formatted is not legal:\n{once}");
    assert_eq!(tree(&parsed), tree(&parsed_again), "another tree, formatted:\n{once}");
    assert_eq!(comments(text), comments(&once), "other comments, formatted:\n{once}");
    let twice = format(again.files().next().expect("one file was added")).expect("it is legal");
    assert_eq!(once, twice, "not idempotent");
}

/// Diagnostics render, as text and as JSON, and each points into its file.
pub(super) fn show(diagnostics: &[Diagnostic], sources: &SourceMap) {
    for diagnostic in diagnostics {
        for label in &diagnostic.labels {
            let text = &sources.file(label.span.file).text;
            let range = label.span.start as usize..label.span.end as usize;
            assert!(text.get(range).is_some(), "{:?} points outside of its file: {diagnostic:?}", label.span);
        }
        let json = serde_json::to_string(&diagnostic.to_json(sources));
        assert!(json.is_ok(), "no JSON of {diagnostic:?}");
    }
    // Some are enough: a file with a hundred errors renders the file's text a hundred times.
    let text = render_all(&diagnostics[..diagnostics.len().min(4)], sources, Colour::Never);
    assert_eq!(text.is_empty(), diagnostics.is_empty(), "diagnostics without a text");
}

fn parse_text(text: &str) -> (SourceMap, Parsed) {
    let mut sources = SourceMap::new();
    let id = sources.add("fuzz.dtl", text);
    let parsed = parse(sources.file(id));
    (sources, parsed)
}

/// The tree as text, without places: spans print as `<file:start..end>`.
fn tree(parsed: &Parsed) -> String {
    let printed = format!("{:?}", parsed.file);
    let mut tree = String::with_capacity(printed.len());
    let mut rest = printed.as_str();
    while let Some(start) = rest.find('<') {
        tree.push_str(&rest[..start]);
        rest = &rest[start..];
        let length = rest.find('>').map_or(0, |end| end + 1);
        let inside = rest.get(1..length.saturating_sub(1)).unwrap_or_default();
        let is_span = inside.contains("..") && inside.bytes().all(|byte| b"0123456789:.".contains(&byte));
        let skipped = if is_span { length } else { 1 };
        tree.push_str(if is_span { "" } else { "<" });
        rest = &rest[skipped..];
    }
    tree + rest
}

fn comments(text: &str) -> Vec<String> {
    let mut sources = SourceMap::new();
    let id = sources.add("fuzz.dtl", text);
    let file = sources.file(id);
    let tokens = lex(file).all;
    let comments = tokens.iter().filter(|token| token.is_comment());
    let texts = comments.map(|token| &file.text[token.start as usize..token.end as usize]);
    texts.map(|text| text.replace("\r\n", "\n").trim_end().to_owned()).collect()
}
