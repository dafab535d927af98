//! The formatter: fixed examples, and for any legal text that it is idempotent, keeps the tree and every comment.

use crate::support::{SAMPLES, report, tree};
use std::fs;
use std::path::Path;

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

/// Everything that the project itself has in `.dtl`.
#[test]
fn keeps_library_and_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![root.join("stdlib"), root.join("examples")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "dtl") {
                let text = fs::read_to_string(&path).expect("a file of the project");
                let name = path.display().to_string();
                let once = formatted(&text).unwrap_or_else(|| panic!("{}", report(&name, &text)));
                assert_eq!(tree(&once), tree(&text), "{name}");
                assert_eq!(formatted(&once).as_deref(), Some(once.as_str()), "{name}");
                files += 1;
            }
        }
    }
    assert!(files > 0, "no file found");
}
