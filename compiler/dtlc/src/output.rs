//! Standard output and error: colour and progress only where a person looks on, one JSON value a line with `--json`,
//! and a closed pipe is the end, not an error.

use crate::failure::Failure;
use dtlc_lang::render::Colour;
use serde::Serialize;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Whether results are JSON.
    pub json: bool,
}

impl Output {
    /// The process's own standard output.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints text as it is.
    ///
    /// # Errors
    /// [`Failure::ClosedPipe`] where nobody reads any more.
    pub fn text(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| write_failure(&error))
    }

    /// Prints a value as one line of JSON.
    ///
    /// # Errors
    /// [`Failure::ClosedPipe`] where nobody reads any more.
    pub fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::Bug(format!("a result that JSON can't hold: {error}")))?;
        self.text(&format!("{text}\n"))
    }

    /// Says something beside the result: to standard error, and not at all with `--json`.
    pub fn note(&self, text: &str) {
        if !self.json {
            complain(&format!("{text}\n"));
        }
    }

    /// Whether a moving progress bar has someone to look at it.
    #[must_use]
    pub fn shows_progress(&self) -> bool {
        !self.json && io::stderr().is_terminal()
    }
}

/// Whether diagnostics on standard error carry colour.
#[must_use]
pub fn error_colour() -> Colour {
    colour(io::stderr().is_terminal())
}

/// Whether text on standard output carries colour.
#[must_use]
pub fn text_colour() -> Colour {
    colour(io::stdout().is_terminal())
}

/// Prints to standard error; nothing can be done if that fails.
pub fn complain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// `NO_COLOR` set to anything but the empty string turns colour off (no-color.org).
fn colour(terminal: bool) -> Colour {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if terminal && !refused { Colour::Always } else { Colour::Never }
}

fn write_failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Fault(format!("standard output can't be written: {error}")),
    }
}
