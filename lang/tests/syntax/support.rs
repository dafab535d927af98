//! What the language's tests share: sample files, parsing, and trees without their places.

use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{Parsed, SourceMap, parse};

/// Files that use the whole language.
pub const SAMPLES: [(&str, &str); 3] = [
    ("llama.dtl", include_str!("samples/llama.dtl")),
    ("constructs.dtl", include_str!("samples/constructs.dtl")),
    ("comments.dtl", include_str!("samples/comments.dtl")),
];

/// Parses a text under a name.
pub fn parse_text(name: &str, text: &str) -> (SourceMap, Parsed) {
    let mut sources = SourceMap::new();
    let id = sources.add(name, text);
    let parsed = parse(sources.file(id));
    (sources, parsed)
}

/// The report of everything wrong with a text.
pub fn report(name: &str, text: &str) -> String {
    let (sources, parsed) = parse_text(name, text);
    render_all(&parsed.diagnostics, &sources, Colour::Never)
}

/// The tree of a text as text, without places, documentation aside.
pub fn tree(text: &str) -> String {
    let (_, parsed) = parse_text("tree.dtl", text);
    let printed = format!("{:#?}", parsed.file);
    printed.lines().filter(|line| !is_place(line)).collect::<Vec<_>>().join("\n")
}

/// Spans print as `<file:start..end>`.
fn is_place(line: &str) -> bool {
    let value = line.rsplit(' ').next().unwrap_or("").trim_end_matches(',');
    value.starts_with('<') && value.ends_with('>') && value.contains("..")
}
