//! What can go wrong in a pass, as data: `dtlc` turns it into a diagnostic. Faults of the compiler itself
//! are among them, marked as such, so that no pass panics on what a user wrote.

use dtlc_ir::{OriginInfo, Program, Value};
use dtlc_lang::source::Span;
use std::fmt;

/// What kind of failure; each has one diagnostic code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassErrorKind {
    /// The batch of a plan does not divide into ranks and micro-batches.
    Batch,
    /// A dimension is used in a way that its factors do not allow.
    Dimension,
    /// The loss is not a sum over micro-batches.
    NotASum,
    /// The plan trains, but has no optimizer.
    NoOptimizer,
    /// A tensor, or all of them, take more memory than there can be.
    TooLarge,
    /// Too many dimensions, loops or iterations.
    Limit,
    /// A fault in dtlc.
    Bug,
}

/// Where the cause stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// At an instruction of the model.
    Origin(OriginInfo),
    /// In a source file.
    Span(Span),
    /// Nowhere in particular.
    Nowhere,
}

/// Why a pass gave up.
#[derive(Clone, Debug, PartialEq)]
pub struct PassError {
    /// The kind.
    pub kind: PassErrorKind,
    /// Where the cause stands.
    pub place: Place,
    /// What is wrong, as one sentence.
    pub text: String,
    /// What to do about it.
    pub help: Option<String>,
}

impl PassError {
    /// An error at a place in the source.
    pub fn at_span(kind: PassErrorKind, span: Span, text: impl Into<String>) -> PassError {
        PassError { kind, place: Place::Span(span), text: text.into(), help: None }
    }

    /// An error at the origin of a value.
    pub fn at_value(
        kind: PassErrorKind,
        program: &Program,
        value: Value,
        text: impl Into<String>,
    ) -> PassError {
        let origin = program.origins[program.values[value].origin].clone();
        PassError { kind, place: Place::Origin(origin), text: text.into(), help: None }
    }

    /// An error that no place in the source causes.
    pub fn nowhere(kind: PassErrorKind, text: impl Into<String>) -> PassError {
        PassError { kind, place: Place::Nowhere, text: text.into(), help: None }
    }

    /// A fault of the compiler itself.
    pub fn bug(text: impl fmt::Display) -> PassError {
        PassError::nowhere(PassErrorKind::Bug, format!("bug in dtlc: {text}"))
    }

    /// The same with advice.
    pub fn with_help(mut self, help: impl Into<String>) -> PassError {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for PassError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Place::Origin(origin) = &self.place
            && origin.line > 0
        {
            write!(formatter, "{}:{}:{}: ", origin.file, origin.line, origin.column)?;
        }
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for PassError {}
