//! The tidy check: what holds for every file of the repository and that no compiler sees. Headers, lengths, which crate
//! knows which, no unfinished work, no paths of one machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A file longer than this is to be split.
const MOST_LINES: usize = 700;

/// Which of our crates each may name in its manifest, tests included. What is not here may name none.
const ARROWS: &[(&str, &[&str])] = &[
    ("lang", &[]),
    ("kernels", &[]),
    ("compiler/ir", &[]),
    ("runtime/emulator", &[]),
    ("runtime", &["dtlc-emulator", "dtlc-kernels"]),
    ("compiler/passes", &["dtlc-ir", "dtlc-lang"]),
    ("compiler/codegen", &["dtlc-emulator", "dtlc-ir", "dtlc-passes", "dtlc-kernels", "dtlc-runtime"]),
    ("compiler/dtlc", EVERY_CRATE),
    ("tests", EVERY_CRATE),
    ("benches", &["dtlc-runtime"]),
];

const EVERY_CRATE: &[&str] = &[
    "dtlc",
    "dtlc-codegen",
    "dtlc-emulator",
    "dtlc-ir",
    "dtlc-kernels",
    "dtlc-lang",
    "dtlc-passes",
    "dtlc-runtime",
];

#[test]
fn every_source_says_what_it_owns() {
    let mut faults = Vec::new();
    for file in sources("rs") {
        if !file.text.starts_with("//! ") {
            faults.push(format!("{}: does not open with a `//!` sentence", file.path));
        }
    }
    let read =
        |file: &Source| ["grammar/", "stdlib/", "examples/"].iter().any(|at| file.path.starts_with(at));
    for file in sources("dtl").into_iter().chain(sources("pest")).filter(read) {
        if !file.text.starts_with("//") {
            faults.push(format!("{}: does not open with a comment", file.path));
        }
    }
    none(&faults);
}

#[test]
fn no_source_is_too_long() {
    let mut faults = Vec::new();
    for file in sources("rs") {
        let lines = file.text.lines().count();
        if lines > MOST_LINES {
            faults.push(format!("{}: {lines} lines, {MOST_LINES} at most", file.path));
        }
    }
    none(&faults);
}

#[test]
fn nothing_is_left_unfinished_or_tied_to_a_machine() {
    // In two halves, so that this file does not name what it looks for.
    let unfinished = [("tod", "o!("), ("unimplement", "ed!("), ("#[ign", "ore"), ("FIX", "ME"), ("XX", "X")];
    let machines = [("/ho", "me/"), ("/Use", "rs/"), ("/ro", "ot/")];
    let mut faults = Vec::new();
    for kind in ["rs", "dtl", "pest", "md", "toml"] {
        for file in sources(kind) {
            for (number, line) in file.text.lines().enumerate() {
                for (head, tail) in unfinished.iter().chain(&machines) {
                    let word = format!("{head}{tail}");
                    // A word of prose that ends in capitals is none of these.
                    if line.match_indices(&word).any(|(at, _)| !line[..at].ends_with(char::is_alphanumeric)) {
                        faults.push(format!("{}:{}: `{word}`", file.path, number + 1));
                    }
                }
            }
        }
    }
    none(&faults);
}

#[test]
fn crates_know_only_what_they_may() {
    let mut faults = Vec::new();
    for file in sources("toml").into_iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let folder = file.path.trim_end_matches("/Cargo.toml");
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == folder) else {
            faults.push(format!("{folder}: a crate that ARROWS does not list"));
            continue;
        };
        for name in dependencies(&file.text) {
            if !allowed.contains(&name) {
                faults.push(format!("{folder} may not depend on {name}"));
            }
        }
    }
    none(&faults);
}

/// Our crates among the keys of a manifest's dependency tables.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.contains("dependencies");
        } else if inside {
            let key = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.extend(EVERY_CRATE.iter().filter(|name| **name == key));
        }
    }
    found
}

#[test]
fn manifests_are_read_right() {
    let manifest = "[package]\nname = \"dtlc-lang\"\n[dependencies]\ndtlc-ir.workspace = true\nserde = \"1\"\n\
                    [dev-dependencies]\ndtlc = { path = \"x\" }\n[lints]\ndtlc-lang.workspace = true\n";
    assert_eq!(dependencies(manifest), ["dtlc-ir", "dtlc"]);
}

struct Source {
    /// From the repository's root, with `/`.
    path: String,
    text: String,
}

/// Every file of the repository with this extension, by path.
fn sources(extension: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository");
    let mut paths = Vec::new();
    walk(root, &mut paths);
    paths.sort();
    let wanted = paths.iter().filter(|path| path.extension().is_some_and(|found| found == extension));
    let files: Vec<Source> = wanted
        .map(|path| Source {
            path: path.strip_prefix(root).expect("below the root").to_string_lossy().replace('\\', "/"),
            text: fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        })
        .collect();
    assert!(!files.is_empty(), "no .{extension} file was found, so this test tests nothing");
    files
}

/// Collects files, without what Cargo and git keep.
fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let entry = entry.expect("an entry of a folder");
        let name = entry.file_name();
        let kind = entry.file_type().expect("its type");
        if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            walk(&entry.path(), paths);
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
}

fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}
