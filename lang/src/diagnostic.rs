//! The one diagnostic type of the project, with builders, and its two renderings: for a terminal and as JSON.
//!
//! From any stage to a user. Holds only data; miette stays inside `render`. Does not print.

use serde::Serialize;

use crate::codes::Code;
use crate::source::{SourceMap, Span};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is refused.
    Advice,
    /// Likely a mistake; nothing is refused.
    Warning,
    /// The input is refused.
    Error,
}

/// A place in the source and what is to be said about it. The first label of a diagnostic is its main place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Where.
    pub span: Span,
    /// What stands there; a few words.
    pub text: String,
}

/// An edit that would put the source right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// What is replaced; empty to insert.
    pub span: Span,
    /// By what.
    pub text: String,
}

/// What to write instead: code wherever possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The advice.
    pub text: String,
    /// The same as an edit, where it can be said exactly.
    pub edit: Option<Edit>,
}

/// One finding about the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Which kind of finding.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// One line, lower case, no full stop.
    pub title: String,
    /// Places; the first is the main one.
    pub labels: Vec<Label>,
    /// Why this is refused: the rule behind it.
    pub reason: Option<String>,
    /// What to write instead.
    pub hint: Option<Hint>,
    /// Further facts, one line or paragraph each.
    pub notes: Vec<String>,
}

impl Diagnostic {
    /// An error without places yet.
    pub fn error(code: Code, title: impl Into<String>) -> Self {
        Self::new(code, Severity::Error, title)
    }

    /// A warning without places yet.
    pub fn warning(code: Code, title: impl Into<String>) -> Self {
        Self::new(code, Severity::Warning, title)
    }

    fn new(code: Code, severity: Severity, title: impl Into<String>) -> Self {
        Self {
            code,
            severity,
            title: title.into(),
            labels: Vec::new(),
            reason: None,
            hint: None,
            notes: Vec::new(),
        }
    }

    /// Adds a place; the first one added is the main one.
    #[must_use]
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into() });
        self
    }

    /// States the rule behind it.
    #[must_use]
    pub fn why(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Says what to write instead.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.hint = Some(Hint { text: text.into(), edit: None });
        self
    }

    /// Says what to write instead, as an edit of `span` too.
    #[must_use]
    pub fn hint_edit(mut self, text: impl Into<String>, span: Span, replacement: impl Into<String>) -> Self {
        self.hint = Some(Hint { text: text.into(), edit: Some(Edit { span, text: replacement.into() }) });
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// The main place, where there is one.
    pub fn span(&self) -> Option<Span> {
        self.labels.first().map(|label| label.span)
    }

    /// Whether the input is refused.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// The form that `--json` prints.
    pub fn to_json(&self, sources: &SourceMap) -> JsonDiagnostic {
        JsonDiagnostic {
            code: self.code.number(),
            severity: self.severity,
            title: self.title.clone(),
            labels: self
                .labels
                .iter()
                .map(|label| JsonLabel {
                    place: JsonPlace::new(label.span, sources),
                    text: label.text.clone(),
                })
                .collect(),
            reason: self.reason.clone(),
            hint: self.hint.as_ref().map(|hint| JsonHint {
                text: hint.text.clone(),
                edit: hint.edit.as_ref().map(|edit| JsonLabel {
                    place: JsonPlace::new(edit.span, sources),
                    text: edit.text.clone(),
                }),
            }),
            notes: self.notes.clone(),
        }
    }
}

/// Puts diagnostics in the order of files and of places in them; equal ones are kept once.
pub fn sort_diagnostics(diagnostics: &mut Vec<Diagnostic>) {
    diagnostics.sort_by_key(|diagnostic| diagnostic.span());
    let mut kept: Vec<Diagnostic> = Vec::with_capacity(diagnostics.len());
    for diagnostic in diagnostics.drain(..) {
        let mut same_place = kept.iter().rev().take_while(|other| other.span() == diagnostic.span());
        if same_place.all(|other| *other != diagnostic) {
            kept.push(diagnostic);
        }
    }
    *diagnostics = kept;
}

/// A [`Diagnostic`] as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct JsonDiagnostic {
    code: &'static str,
    severity: Severity,
    title: String,
    labels: Vec<JsonLabel>,
    reason: Option<String>,
    hint: Option<JsonHint>,
    notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct JsonLabel {
    #[serde(flatten)]
    place: JsonPlace,
    text: String,
}

#[derive(Clone, Debug, Serialize)]
struct JsonHint {
    text: String,
    edit: Option<JsonLabel>,
}

/// `span` is `file:line:column` for people; `start` and `end` are byte offsets for tools.
#[derive(Clone, Debug, Serialize)]
struct JsonPlace {
    span: String,
    file: String,
    start: u32,
    end: u32,
}

impl JsonPlace {
    fn new(span: Span, sources: &SourceMap) -> Self {
        Self {
            span: sources.place(span),
            file: sources.file(span.file).name.clone(),
            start: span.start,
            end: span.end,
        }
    }
}
