//! Random edits of legal files: the parser never panics, and whatever is legal afterwards formats to the same tree,
//! idempotently and with every comment kept.

use crate::support::{SAMPLES, parse_text, tree};
use dtlc_lang::lex::lex;
use dtlc_lang::{SourceMap, format};
use proptest::prelude::*;

/// An edit at the token or byte that a number picks.
#[derive(Clone, Debug)]
enum Edit {
    Delete(usize),
    Duplicate(usize),
    Swap(usize, usize),
    Insert(usize, &'static str),
    DeleteByte(usize),
}

const INSERTED: [&str; 26] = [
    " ",
    "\n",
    "\n\n\n",
    "\r\n",
    " // note\n",
    " /* note */ ",
    "\n/* note */\n",
    "/// doc\n",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "=",
    "->",
    "-",
    "..",
    "if ",
    "let ",
    "fn ",
    "layer ",
    "é",
    "0x",
    "\"",
];

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        2 => any::<usize>().prop_map(Edit::Delete),
        2 => any::<usize>().prop_map(Edit::Duplicate),
        1 => any::<(usize, usize)>().prop_map(|(left, right)| Edit::Swap(left, right)),
        2 => (any::<usize>(), 0..INSERTED.len()).prop_map(|(at, text)| Edit::Insert(at, INSERTED[text])),
        1 => any::<usize>().prop_map(Edit::DeleteByte),
    ];
    prop::collection::vec(edit, 1..4)
}

/// Edits that only change layout and comments, so that the text stays legal more often.
fn layout_edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = (any::<usize>(), 0..8usize).prop_map(|(at, text)| Edit::Insert(at, INSERTED[text]));
    prop::collection::vec(edit, 1..12)
}

fn apply(text: &str, edit: &Edit) -> String {
    let mut sources = SourceMap::new();
    let id = sources.add("edit.dtl", text);
    let tokens = lex(sources.file(id)).all;
    if tokens.is_empty() {
        return text.to_owned();
    }
    let range = |pick: usize| {
        let token = &tokens[pick % tokens.len()];
        token.start as usize..token.end as usize
    };
    match *edit {
        Edit::Delete(pick) => text[..range(pick).start].to_owned() + &text[range(pick).end..],
        Edit::Duplicate(pick) => {
            let token = range(pick);
            text[..token.end].to_owned() + " " + &text[token.start..]
        }
        Edit::Swap(left, right) => {
            let (left, right) = (range(left), range(right));
            let (first, second) = if left.start < right.start { (left, right) } else { (right, left) };
            if first == second {
                return text.to_owned();
            }
            let between = &text[first.end..second.start];
            [&text[..first.start], &text[second.clone()], between, &text[first], &text[second.end..]].concat()
        }
        Edit::Insert(pick, inserted) => {
            let at = range(pick).start;
            text[..at].to_owned() + inserted + &text[at..]
        }
        Edit::DeleteByte(pick) => {
            let at = text.floor_char_boundary(pick % text.len());
            text.char_indices().filter(|&(index, _)| index != at).map(|(_, character)| character).collect()
        }
    }
}

fn comments(text: &str) -> Vec<String> {
    let mut sources = SourceMap::new();
    let id = sources.add("comments.dtl", text);
    let file = sources.file(id);
    lex(file)
        .all
        .iter()
        .filter(|token| token.is_comment())
        .map(|token| {
            file.text[token.start as usize..token.end as usize].replace("\r\n", "\n").trim_end().to_owned()
        })
        .collect()
}

fn check(text: &str) {
    let (sources, parsed) = parse_text("mutant.dtl", text);
    assert_eq!(parsed.is_ok(), format(sources.files().next().expect("one file")).is_ok());
    if !parsed.is_ok() {
        return;
    }
    assert!(dtlc_lang::parse::accepts(text), "the grammar does not take\n{text}");
    let once = format(sources.files().next().expect("one file")).expect("a legal file formats");
    assert_eq!(tree(&once), tree(text), "another tree from\n{text}\nformatted\n{once}");
    assert_eq!(comments(&once), comments(text), "other comments from\n{text}\nformatted\n{once}");
    let mut again = SourceMap::new();
    let id = again.add("again.dtl", &once);
    let twice = format(again.file(id)).expect("formatted text is legal");
    assert_eq!(twice, once, "not idempotent on\n{text}");
}

/// A text with brackets of every kind, short enough to put comments into each of its gaps.
const SHORT: &str = "\
layer A[D](e: f32 = 1.0) {
  param w: [D@(a, b)] = normal(0.1) as \"w\"
  if e > 0.5 { dims J = 2, K = J } else { one = B[D -> D](bias = true) }
  fn (x: [.., D]) -> ([D], f32[]) {
    let y = if e > 1.0 { x } else { -x * (w + 2.0) }
    (dot[D](y, w), x)
  }
}
plan p for M {
  mesh { dp: { a: 2 }, tp: 2 }
  step s: acts V -> (dp, tp) pad at B.x
  optimizer adamw { betas (0.9, 0.95) }
  expect { step: 3 all_reduce }
}
";

/// Every run of up to two comments, each on a line of its own or not, in every gap between two tokens.
#[test]
fn comments_in_every_gap() {
    const COMMENTS: [&str; 4] = [" // line\n", " /* in */ ", "\n/* own */\n", "\n/* first */ "];
    let pairs =
        COMMENTS.iter().flat_map(|first| COMMENTS.iter().map(move |second| format!("{first}{second}")));
    let runs: Vec<String> = COMMENTS.iter().map(|only| only.to_string()).chain(pairs).collect();
    let mut sources = SourceMap::new();
    let id = sources.add("short.dtl", SHORT);
    let tokens = lex(sources.file(id)).all;
    for token in &tokens {
        let (before, after) = SHORT.split_at(token.start as usize);
        runs.iter().for_each(|run| check(&[before, run, after].concat()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_edit(sample in 0..SAMPLES.len(), edits in edits()) {
        check(&edits.iter().fold(SAMPLES[sample].1.to_owned(), |text, edit| apply(&text, edit)));
    }

    #[test]
    fn layout(sample in 0..SAMPLES.len(), edits in layout_edits()) {
        check(&edits.iter().fold(SAMPLES[sample].1.to_owned(), |text, edit| apply(&text, edit)));
    }
}
