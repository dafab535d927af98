//! The formatter: fixed examples, and for any legal text that it is idempotent, keeps the tree and every comment.

use crate::support::{SAMPLES, report, tree};
use dtlc_lang::{SourceMap, format};

fn formatted(text: &str) -> Option<String> {
    let mut sources = SourceMap::new();
    let id = sources.add("sample.dtl", text);
    format(sources.file(id)).ok()
}

#[test]
fn formats_odd_layout() {
    insta::assert_snapshot!(formatted(SAMPLES[2].1).unwrap_or_default());
}

#[test]
fn formats_every_construct() {
    insta::assert_snapshot!(formatted(SAMPLES[1].1).unwrap_or_default());
}

#[test]
fn keeps_samples() {
    for (name, text) in SAMPLES {
        let once = formatted(text).unwrap_or_else(|| panic!("{}", report(name, text)));
        assert_eq!(tree(&once), tree(text), "{once}");
        assert_eq!(formatted(&once).as_deref(), Some(once.as_str()));
    }
}
