//! What the tests of models share: compiling texts and files of the project.

use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{Compiled, Loaded, Options, PlanChoice, compile};
use std::path::{Path, PathBuf};

/// A loader for files that import only the standard library.
pub fn no_files(_: &str, _: &[&str]) -> Loaded {
    Loaded::Missing
}

/// Where a file of the project lies.
pub fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A file of the project.
pub fn read(path: &str) -> Vec<u8> {
    std::fs::read(in_project(path)).expect("the file is there")
}

/// A text as a model under a plan; the report where it is refused.
pub fn compile_text(name: &str, text: &[u8], options: &Options) -> Result<Compiled, String> {
    compile(&no_files, name, text, options)
        .map_err(|rejected| render_all(&rejected.diagnostics, &rejected.sources, Colour::Never))
}

/// A file of the project under a plan.
pub fn compiled(path: &str, plan: PlanChoice) -> Compiled {
    let options = Options { plan, overrides: Vec::new() };
    compile_text(path, &read(path), &options).unwrap_or_else(|report| panic!("{report}"))
}
