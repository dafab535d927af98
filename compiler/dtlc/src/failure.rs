//! How a command can end other than well, the exit status of each, and how it is told: for people as rendered
//! diagnostics, with `--json` as one object on standard error.

use crate::output::{self, Output};
use dtlc_lang::render::render_all;
use dtlc_lang::{Code, Diagnostic, SourceMap};
use dtlc_runtime::RuntimeError;
use serde_json::json;

/// Exit status: all went well.
pub const GOOD: u8 = 0;
/// Exit status: the input is at fault.
pub const INPUT: u8 = 1;
/// Exit status: the command line is at fault.
pub const USAGE: u8 = 2;
/// Exit status: a fault at run time.
pub const FAULT: u8 = 3;
/// Exit status: a bug of ours.
pub const BUG: u8 = 4;
/// Exit status: interrupted.
pub const INTERRUPTED: u8 = 130;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// The input is at fault.
    Input {
        /// Everything that is wrong with it.
        diagnostics: Vec<Diagnostic>,
        /// The texts that the diagnostics point into.
        sources: SourceMap,
    },
    /// A check failed, and its result is printed already.
    Refused,
    /// The command line asks for what can't be.
    Usage(String),
    /// Something went wrong at run time.
    Fault(String),
    /// A fault of dtlc.
    Bug(String),
    /// Ctrl-C.
    Interrupted,
    /// Nobody reads the output any more.
    ClosedPipe,
}

impl Failure {
    /// One diagnostic that has no place in a source file.
    #[must_use]
    pub fn without_place(diagnostic: Diagnostic) -> Self {
        Self::Input { diagnostics: vec![diagnostic], sources: SourceMap::new() }
    }

    /// The same with a line behind its text, where it is one text.
    #[must_use]
    pub fn with_note(self, note: &str) -> Self {
        let noted = |text: String| format!("{text}\n{note}");
        match self {
            Self::Usage(text) => Self::Usage(noted(text)),
            Self::Fault(text) => Self::Fault(noted(text)),
            Self::Bug(text) => Self::Bug(noted(text)),
            Self::Input { .. } | Self::Refused | Self::Interrupted | Self::ClosedPipe => self,
        }
    }

    /// What went wrong, in a line or a few; for other processes of a run, which have no sources to point into.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Input { diagnostics, .. } => {
                diagnostics.iter().map(|diagnostic| diagnostic.title.as_str()).collect::<Vec<_>>().join("\n")
            }
            Self::Usage(text) | Self::Fault(text) | Self::Bug(text) => text.clone(),
            Self::Refused => "a check failed".to_owned(),
            Self::Interrupted => "it was interrupted".to_owned(),
            Self::ClosedPipe => "nobody reads its output".to_owned(),
        }
    }

    /// Says what went wrong and returns the exit status.
    #[must_use]
    pub fn report(&self, output: &Output) -> u8 {
        match self {
            Self::Input { diagnostics, sources } => show_diagnostics(diagnostics, sources, output),
            Self::Refused | Self::ClosedPipe => {}
            Self::Usage(text) => show(output, "usage", &format!("error: {text}\n"), text),
            Self::Fault(text) => show(output, "fault", &format!("error: {text}\n"), text),
            Self::Bug(text) => show(output, "bug", &Self::bug_text(text), text),
            Self::Interrupted => output.note("interrupted"),
        }
        self.status()
    }

    /// The exit status.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            // The language's own faults come as diagnostics, with a place.
            Self::Input { diagnostics, .. } if diagnostics.iter().any(|it| it.code == Code::Fault) => BUG,
            Self::Input { .. } | Self::Refused => INPUT,
            Self::Usage(_) => USAGE,
            Self::Fault(_) => FAULT,
            Self::Bug(_) => BUG,
            Self::Interrupted => INTERRUPTED,
            Self::ClosedPipe => GOOD,
        }
    }

    /// What a user sees of a bug.
    #[must_use]
    pub fn bug_text(text: &str) -> String {
        let text = text.strip_prefix("bug in dtlc: ").unwrap_or(text);
        format!("bug in dtlc, please report: {text}\n")
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::File { path, reason } => crate::files::unusable(&path, &reason),
            RuntimeError::Artifact(_) => Self::Bug(error.to_string()),
            RuntimeError::Input(lines) => {
                let diagnostics = lines.into_iter().map(|line| Diagnostic::error(Code::UnfitData, line));
                Self::Input { diagnostics: diagnostics.collect(), sources: SourceMap::new() }
            }
            RuntimeError::Fault(text) => Self::Fault(text),
            RuntimeError::Bug(text) => Self::Bug(text),
        }
    }
}

/// Shows diagnostics on standard error.
pub fn show_diagnostics(diagnostics: &[Diagnostic], sources: &SourceMap, output: &Output) {
    if output.json {
        let list: Vec<_> = diagnostics.iter().map(|diagnostic| diagnostic.to_json(sources)).collect();
        output::complain(&format!("{}\n", json!({ "diagnostics": list })));
    } else {
        output::complain(&render_all(diagnostics, sources, output::error_colour()));
    }
}

fn show(output: &Output, kind: &str, text: &str, bare: &str) {
    if output.json {
        output::complain(&format!("{}\n", json!({ "error": kind, "message": bare })));
    } else {
        output::complain(text);
    }
}
