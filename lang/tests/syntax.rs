//! The parser on whole files: every construct is taken, and the pieces agree with the grammar's `file` rule.

use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{Parsed, SourceMap, parse};

const SAMPLES: [(&str, &str); 2] = [
    ("llama.dtl", include_str!("samples/llama.dtl")),
    ("constructs.dtl", include_str!("samples/constructs.dtl")),
];

fn parse_text(name: &str, text: &str) -> (SourceMap, Parsed) {
    let mut sources = SourceMap::new();
    let id = sources.add(name, text);
    let parsed = parse(sources.file(id));
    (sources, parsed)
}

#[test]
fn samples_are_free_of_errors() {
    for (name, text) in SAMPLES {
        let (sources, parsed) = parse_text(name, text);
        let report = render_all(&parsed.diagnostics, &sources, Colour::Never);
        assert!(parsed.is_ok(), "{report}");
        assert!(parse::accepts(text), "{name}");
    }
}
