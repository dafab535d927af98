//! The examples' plans, and what GPU tests need of them.

use dtlc_lang::{Loaded, check_all};

/// The names of a file's plans.
///
/// # Panics
/// Where the file can't be read.
pub fn plans(path: &str) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    check_all(&nothing, path, &bytes).plans.into_iter().map(|(plan, _)| plan).collect()
}
