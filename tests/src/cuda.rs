//! The examples' plans, and what GPU tests need of them.

use dtlc_lang::{Loaded, check_all};
use std::path::Path;

/// The files below `examples/`, sorted.
///
/// # Panics
/// Where the folder can't be read.
pub fn examples() -> Vec<String> {
    let mut found = Vec::new();
    collect(Path::new("../examples"), &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, found: &mut Vec<String>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "dtl") {
            found.push(path.display().to_string());
        }
    }
}

/// The names of a file's plans.
///
/// # Panics
/// Where the file can't be read.
pub fn plans(path: &str) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    check_all(&nothing, path, &bytes).plans.into_iter().map(|(plan, _)| plan).collect()
}

/// A source behind the line that names it, with each number as one sign: of sources that give the same, one stands for all.
pub fn without_numbers(source: &str) -> String {
    let text = source.lines().skip(1).collect::<Vec<_>>().join("\n");
    let mut before = ' ';
    let first_of_number = |character: char| {
        let goes_on = character.is_ascii_digit() && before == '0';
        before = if character.is_ascii_digit() { '0' } else { character };
        (!goes_on).then_some(before)
    };
    text.chars().filter_map(first_of_number).collect()
}
