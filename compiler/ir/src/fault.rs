//! An internal fault: a pass broke a rule of the IR. Never the user's doing.

use crate::program::Program;
use crate::text::print_around;
use std::fmt;

/// A broken rule, with the instruction that breaks it inside the text around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who found it: `verify sharded`, `interpret`.
    pub found_by: String,
    /// The rule and how it is broken.
    pub message: String,
    /// The IR text around the instruction with the message under it; empty where none is to blame.
    pub excerpt: String,
}

impl Fault {
    /// A fault of the program as a whole.
    pub fn of_program(found_by: &str, message: impl Into<String>) -> Fault {
        Fault { found_by: found_by.into(), message: message.into(), excerpt: String::new() }
    }

    /// A fault of the instruction at `path`.
    pub fn at(program: &Program, path: &[usize], found_by: &str, message: impl Into<String>) -> Fault {
        let message = message.into();
        let excerpt = print_around(program, path, &message);
        Fault { found_by: found_by.into(), message, excerpt }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bug in dtlc, found by `{}`: {}", self.found_by, self.message)?;
        if self.excerpt.is_empty() { Ok(()) } else { write!(formatter, "\n{}", self.excerpt) }
    }
}

impl std::error::Error for Fault {}
