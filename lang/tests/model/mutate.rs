//! Random edits of legal files: checking never panics and always ends, whatever is wrong with them.

use crate::support::{no_files, read};
use dtlc_lang::lex::{TokenKind, lex};
use dtlc_lang::{Options, PlanChoice, SourceMap, check_all, compile};
use proptest::prelude::*;

const FILES: [&str; 10] = [
    "examples/bytes.dtl",
    "examples/bert.dtl",
    "examples/llama3.dtl",
    "examples/golden/gpt2.dtl",
    "stdlib/attention.dtl",
    "stdlib/loss.dtl",
    "stdlib/nn.dtl",
    "stdlib/optim.dtl",
    "stdlib/rope.dtl",
    "stdlib/schedule.dtl",
];

/// Texts that change what a file means more often than how it parses.
const INSERTED: [&str; 24] = [
    "0",
    "1",
    "2",
    "18446744073709551615",
    "1e308",
    "-1.0",
    "true",
    "D",
    "B",
    "S",
    "H",
    "KV",
    "x",
    "weight",
    "f32",
    "u32",
    "i32",
    "bool",
    "float",
    "sum[D](x)",
    "iota[S]",
    "(x, x)",
    "0.0",
    "3",
];

/// The text with words and numbers replaced: each by another of the file, or by one of [`INSERTED`].
fn edited(text: &str, edits: &[(usize, usize, bool)]) -> String {
    let mut text = text.to_owned();
    for &(place, other, inserted) in edits {
        let mut sources = SourceMap::new();
        let id = sources.add("case.dtl", &text);
        let tokens = lex(sources.file(id));
        let words: Vec<(usize, usize)> = tokens
            .all
            .iter()
            .filter(|token| matches!(token.kind, TokenKind::Word | TokenKind::Number))
            .map(|token| (token.start as usize, token.end as usize))
            .collect();
        if words.is_empty() {
            return text;
        }
        let (start, end) = words[place % words.len()];
        let (other_start, other_end) = words[other % words.len()];
        let new = if inserted { INSERTED[other % INSERTED.len()] } else { &text[other_start..other_end] };
        text = format!("{}{new}{}", &text[..start], &text[end..]);
    }
    text
}

/// Few by default, since each case is a whole check; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn checking_never_panics(
        file in 0..FILES.len(),
        edits in prop::collection::vec(any::<(usize, usize, bool)>(), 1..5),
    ) {
        let text = String::from_utf8(read(FILES[file])).expect("UTF-8");
        let text = edited(&text, &edits);
        let checked = check_all(&no_files, "case.dtl", text.as_bytes());
        // What `check` finds right, `compile` takes under every plan.
        if checked.diagnostics.is_empty() {
            for (plan, _) in &checked.plans {
                let options = Options { plan: PlanChoice::Named(plan.clone()), overrides: Vec::new() };
                prop_assert!(compile(&no_files, "case.dtl", text.as_bytes(), &options).is_ok(), "{plan}\n{text}");
            }
        }
    }
}
