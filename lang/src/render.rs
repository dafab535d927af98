//! Diagnostics for a terminal, through miette: source lines with labels, then the reason, notes and hint.
//!
//! From [`Diagnostic`] to text. The only place that sees miette's types. Does not print.

use std::fmt;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity as MietteSeverity, SourceCode,
};

use crate::diagnostic::{Diagnostic, Severity};
use crate::source::{FileId, SourceMap};

/// Whether the text carries colour escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Plain text.
    Never,
    /// ANSI escapes.
    Always,
}

/// The diagnostic as text of at most 80 columns where words allow, ending in a newline.
pub fn render(diagnostic: &Diagnostic, sources: &SourceMap, colour: Colour) -> String {
    let theme = match colour {
        Colour::Never => GraphicalTheme::unicode_nocolor(),
        Colour::Always => GraphicalTheme::unicode(),
    };
    let handler =
        GraphicalReportHandler::new_themed(theme).with_width(80).with_links(false).with_context_lines(1);
    let mut text = String::new();
    // Writing to a string only fails where a `Display` of ours does; keep what there is and say the rest plainly.
    if handler.render_report(&mut text, &Report::new(diagnostic, sources)).is_err() {
        text = format!("{}: {}\n", diagnostic.code.number(), diagnostic.title);
    }
    text
}

/// Renders several, one after the other.
pub fn render_all(diagnostics: &[Diagnostic], sources: &SourceMap, colour: Colour) -> String {
    diagnostics.iter().map(|diagnostic| render(diagnostic, sources, colour)).collect::<Vec<_>>().join("\n")
}

/// One diagnostic in miette's terms. miette shows one file a report, so labels of other files become related reports.
#[derive(Debug)]
struct Report {
    code: Option<&'static str>,
    severity: MietteSeverity,
    title: String,
    source: Option<NamedSource<String>>,
    labels: Vec<LabeledSpan>,
    help: Option<String>,
    related: Vec<Report>,
}

impl Report {
    fn new(diagnostic: &Diagnostic, sources: &SourceMap) -> Self {
        let severity = match diagnostic.severity {
            Severity::Advice => MietteSeverity::Advice,
            Severity::Warning => MietteSeverity::Warning,
            Severity::Error => MietteSeverity::Error,
        };
        let main = diagnostic.span().map(|span| span.file);
        let mut others: Vec<FileId> = Vec::new();
        for label in &diagnostic.labels {
            if Some(label.span.file) != main && !others.contains(&label.span.file) {
                others.push(label.span.file);
            }
        }
        Self {
            code: Some(diagnostic.code.number()),
            severity,
            title: diagnostic.title.clone(),
            source: main.map(|file| named_source(file, sources)),
            labels: main.map_or_else(Vec::new, |file| labels_in(diagnostic, file)),
            help: help(diagnostic),
            related: others
                .into_iter()
                .map(|file| Self {
                    code: None,
                    severity: MietteSeverity::Advice,
                    title: "see also".to_owned(),
                    source: Some(named_source(file, sources)),
                    labels: labels_in(diagnostic, file),
                    help: None,
                    related: Vec::new(),
                })
                .collect(),
        }
    }
}

fn named_source(file: FileId, sources: &SourceMap) -> NamedSource<String> {
    let file = sources.file(file);
    NamedSource::new(&file.name, file.text.to_string())
}

/// The labels of one file; the diagnostic's first label is the one whose place heads the report.
fn labels_in(diagnostic: &Diagnostic, file: FileId) -> Vec<LabeledSpan> {
    let mut labels = Vec::new();
    for (index, label) in diagnostic.labels.iter().enumerate() {
        if label.span.file != file {
            continue;
        }
        let text = (!label.text.is_empty()).then(|| label.text.clone());
        let range = (label.span.start as usize, label.span.len() as usize);
        labels.push(match index {
            0 => LabeledSpan::new_primary_with_span(text, range),
            _ => LabeledSpan::new_with_span(text, range),
        });
    }
    labels
}

/// Reason, notes and hint in this order, as one block.
fn help(diagnostic: &Diagnostic) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(diagnostic.reason.iter().map(|reason| format!("why: {reason}")));
    lines.extend(diagnostic.notes.iter().map(|note| format!("note: {note}")));
    lines.extend(diagnostic.hint.iter().map(|hint| format!("try: {}", hint.text)));
    (!lines.is_empty()).then(|| lines.join("\n"))
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.title)
    }
}

impl std::error::Error for Report {}

impl miette::Diagnostic for Report {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.code.map(|code| Box::new(code) as Box<dyn fmt::Display>)
    }

    fn severity(&self) -> Option<MietteSeverity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.labels.iter().cloned()))
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn miette::Diagnostic> + 'a>> {
        if self.related.is_empty() {
            return None;
        }
        Some(Box::new(self.related.iter().map(|report| report as &dyn miette::Diagnostic)))
    }
}
