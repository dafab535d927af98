//! The compiler on files of the repository.

use dtlc::pipeline::{self, Compilation, Stage};
use dtlc_codegen::assemble::Assembled;
use dtlc_lang::{Loaded, Options, PlanChoice};

pub use dtlc::pipeline::Mode;

/// Compiles a file under one of its plans to the end.
///
/// # Panics
/// Where it does not compile.
pub fn compile(path: &str, plan: &str, mode: Mode) -> Compilation {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    compile_text(path, &bytes, plan, mode)
}

/// [`compile`] for a text that stands in no file; `path` is for messages.
///
/// # Panics
/// Where it does not compile.
pub fn compile_text(path: &str, bytes: &[u8], plan: &str, mode: Mode) -> Compilation {
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let options = Options { plan: PlanChoice::Named(plan.to_string()), overrides: Vec::new() };
    let compiled = dtlc_lang::compile(&nothing, path, bytes, &options)
        .unwrap_or_else(|rejected| panic!("{path}, {plan}: {:#?}", rejected.diagnostics));
    pipeline::compile(&compiled, mode, Stage::Program)
        .unwrap_or_else(|trouble| panic!("{path}, {plan}: {trouble:#?}"))
}

/// The assembled program of [`compile`].
///
/// # Panics
/// Where it does not compile.
pub fn assembled(path: &str, plan: &str, mode: Mode) -> Assembled {
    compile(path, plan, mode).assembled.expect("the last stage was asked for")
}
