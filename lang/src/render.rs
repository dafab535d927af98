//! Diagnostics for a terminal, through miette: source lines with labels, then the reason, notes and hint.
//!
//! From [`Diagnostic`] to text. The only place that sees miette's types. Does not print.

use std::fmt;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity as MietteSeverity, SourceCode,
};

use crate::diagnostic::{Diagnostic, Label, Severity};
use crate::source::{FileId, SourceFile, SourceMap};

/// Lines of more bytes are cut where they are shown.
const LONG_LINE: usize = 400;

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
        let (source, labels) = main.map(|file| shown(diagnostic, file, sources)).unzip();
        let labels = labels.unwrap_or_default();
        Self {
            code: Some(diagnostic.code.number()),
            severity,
            title: printable(&diagnostic.title),
            labels,
            source,
            help: help(diagnostic, sources),
            related: others
                .into_iter()
                .map(|file| {
                    let (source, labels) = shown(diagnostic, file, sources);
                    Self {
                        code: None,
                        severity: MietteSeverity::Advice,
                        title: "see also".to_owned(),
                        source: Some(source),
                        labels,
                        help: None,
                        related: Vec::new(),
                    }
                })
                .collect(),
        }
    }
}

/// What is shown of a file for a diagnostic, and the labels in it.
fn shown(
    diagnostic: &Diagnostic,
    file: FileId,
    sources: &SourceMap,
) -> (NamedSource<String>, Vec<LabeledSpan>) {
    let excerpt = Excerpt::new(sources.file(file), &diagnostic.labels);
    let labels = labels_in(diagnostic, file, &excerpt);
    (excerpt.source, labels)
}

/// A file's text as it is shown, and where its places are in it.
struct Excerpt {
    source: NamedSource<String>,
    /// Parts that are kept: first and last byte in the file, first byte in what is shown.
    kept: Vec<(usize, usize, usize)>,
}

impl Excerpt {
    /// The text without the ends of lines too long to be read, each cut around the first label in it.
    fn new(file: &SourceFile, labels: &[Label]) -> Self {
        let text = &file.text;
        let mut shown = String::new();
        let mut kept = Vec::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let end = start + line.len();
            let (mut from, mut to) = (start, end);
            if line.len() > LONG_LINE {
                let own = |label: &&Label| {
                    label.span.file == file.id && (start..end).contains(&(label.span.start as usize))
                };
                let focus = labels.iter().find(own).map_or(start, |label| label.span.start as usize);
                from = text.floor_char_boundary(focus.saturating_sub(LONG_LINE / 4).max(start));
                to = text.floor_char_boundary(end.min(from + LONG_LINE / 2));
            }
            shown.push_str(if from > start { "…" } else { "" });
            kept.push((from, to, shown.len()));
            shown.push_str(&text[from..to]);
            if to < end {
                shown.push_str(if line.ends_with('\n') { "…\n" } else { "…" });
            }
            start = end;
        }
        Self { source: NamedSource::new(printable(&file.name), printable(&shown)), kept }
    }

    /// Where a byte of the file is in what is shown.
    fn place(&self, offset: usize) -> usize {
        let part = self.kept.partition_point(|&(from, _, _)| from <= offset).saturating_sub(1);
        let Some(&(from, to, shown)) = self.kept.get(part) else { return 0 };
        shown + offset.clamp(from, to) - from
    }
}

/// The text with what would command a terminal or hide other text (control characters, marks of direction) replaced by
/// signs of as many bytes, so that spans keep their places.
fn printable(text: &str) -> String {
    let mut characters = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        shown.push(match character {
            '\n' | '\t' => character,
            '\r' if characters.peek() == Some(&'\n') => character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => {
                '\u{fffd}'
            }
            _ if character.is_control() && character.len_utf8() == 1 => '?',
            _ if character.is_control() => '\u{bf}',
            _ => character,
        });
    }
    shown
}

/// The labels of one file; the diagnostic's first label is the one whose place heads the report.
fn labels_in(diagnostic: &Diagnostic, file: FileId, excerpt: &Excerpt) -> Vec<LabeledSpan> {
    let mut labels = Vec::new();
    for (index, label) in diagnostic.labels.iter().enumerate() {
        if label.span.file != file {
            continue;
        }
        let text = (!label.text.is_empty()).then(|| printable(&label.text));
        let start = excerpt.place(label.span.start as usize);
        let range = (start, excerpt.place(label.span.end as usize) - start);
        labels.push(match index {
            0 => LabeledSpan::new_primary_with_span(text, range),
            _ => LabeledSpan::new_with_span(text, range),
        });
    }
    labels
}

/// Reason, notes and hint in this order, as one block.
fn help(diagnostic: &Diagnostic, sources: &SourceMap) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    // The column that heads the report counts what is shown.
    if let Some(span) = diagnostic.span()
        && sources.file(span.file).line(sources.position(span).line).len() > LONG_LINE
    {
        lines.push(format!("note: the line is cut; this is {}", sources.place(span)));
    }
    lines.extend(diagnostic.reason.iter().map(|reason| format!("why: {reason}")));
    lines.extend(diagnostic.notes.iter().map(|note| format!("note: {note}")));
    lines.extend(diagnostic.hint.iter().map(|hint| format!("try: {}", hint.text)));
    (!lines.is_empty()).then(|| printable(&lines.join("\n")))
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
