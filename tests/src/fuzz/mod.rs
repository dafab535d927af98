//! Fuzz targets: what takes bytes from outside, each as a plain function that must return for any of them.
//!
//! A target panics where it finds a fault of ours: a panic inside, a bug that the compiler reports itself, or a promise
//! that does not hold (a text that reads back as another). What drives it is another's part: `tests/fuzz.rs` for a
//! bounded run in CI, the example `fuzz` for long ones, the example `libfuzzer` for those that follow coverage.

mod corpus;
mod front_end;
mod language;
pub mod mutate;
mod programs;
pub mod runner;

/// Bytes of stack that a target may use: what the command gives the compiler.
pub const STACK_BYTES: usize = 256 << 20;

/// What mutation knows of a target's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Words, numbers and signs.
    Text,
    /// A header and numbers of variable length.
    Binary,
}

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, also that of its folder in `tests/fuzz`.
    pub name: &'static str,
    /// What its bytes look like.
    pub form: Form,
    /// Legal inputs to start from, the same each time.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Takes any bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 6] = [
    Target { name: "parser", form: Form::Text, seeds: corpus::sources, run: language::parser },
    Target { name: "formatter", form: Form::Text, seeds: corpus::sources, run: language::formatter },
    Target { name: "ir_text", form: Form::Text, seeds: corpus::ir_texts, run: programs::ir_text },
    Target { name: "program", form: Form::Binary, seeds: corpus::programs, run: programs::program },
    Target { name: "front_end", form: Form::Text, seeds: corpus::models, run: front_end::front_end },
    Target { name: "tensors", form: Form::Binary, seeds: corpus::tensor_files, run: programs::tensors },
];

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
