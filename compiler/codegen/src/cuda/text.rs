//! Lines of emitted text with their depth and the place in the source that they come from.

use crate::lower::RegisterOrigin;
use std::fmt::Write;

/// How text says where in the `.dtl` source it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// In comments, for people.
    Comments,
    /// In `#line` directives, so that line numbers in machine code, and what is said of them, are the source's.
    Directives,
}

/// Says that the next line is this one of a file. NVRTC would put the working directory before a relative name, so that code would depend on
/// where it was compiled: behind `/./`, which an emulator takes off again, a name stays as it is.
pub(super) fn line_directive(number: u32, file: &str) -> String {
    let root = if file.starts_with('/') { "" } else { "/./" };
    let file = file.replace('\\', "\\\\").replace('"', "\\\"");
    format!("#line {number} \"{root}{file}\"\n")
}

/// The lines of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    lines: Vec<Line>,
    depth: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    depth: usize,
    text: String,
    /// File and line of the `.dtl` source.
    place: Option<(String, u32)>,
}

impl Text {
    /// A line that comes from nowhere in the source.
    pub(super) fn line(&mut self, text: impl Into<String>) {
        self.lines.push(Line { depth: self.depth, text: text.into(), place: None });
    }

    /// A line that comes from where a register does.
    pub(super) fn line_at(&mut self, origin: Option<&RegisterOrigin>, text: impl Into<String>) {
        let place = origin.filter(|origin| origin.line > 0).map(|origin| (origin.file.clone(), origin.line));
        self.lines.push(Line { depth: self.depth, text: text.into(), place });
    }

    /// A line that opens a block.
    pub(super) fn open(&mut self, text: impl Into<String>) {
        self.line(text);
        self.depth += 1;
    }

    /// What follows is one block deeper.
    pub(super) fn deepen(&mut self) {
        self.depth += 1;
    }

    /// The end of a block.
    pub(super) fn close(&mut self) {
        self.close_with("}");
    }

    /// The end of a block that has further signs behind it.
    pub(super) fn close_with(&mut self, end: &str) {
        self.depth -= 1;
        self.line(end);
    }

    /// The text. Lines that come from nowhere belong to the place before them.
    pub(super) fn print(&self, places: Places) -> String {
        match places {
            Places::Comments => self.with_comments(),
            Places::Directives => self.with_directives(),
        }
    }

    fn with_directives(&self) -> String {
        let mut text = String::new();
        let mut place: Option<&(String, u32)> = None;
        for line in &self.lines {
            place = line.place.as_ref().or(place);
            if let Some((file, number)) = place {
                text.push_str(&line_directive(*number, file));
            }
            text.push_str(&line.text);
            text.push('\n');
        }
        text
    }

    /// A comment wherever the place in the source changes.
    fn with_comments(&self) -> String {
        let mut text = String::new();
        let mut last: Option<&(String, u32)> = None;
        for line in &self.lines {
            let is_at_margin = line.text.is_empty() || line.text.starts_with('#');
            let indent = if is_at_margin { 0 } else { 4 * line.depth };
            // Writing to a string does not fail.
            let _ = write!(text, "{:indent$}{}", "", line.text);
            if let Some(place @ (file, number)) = &line.place
                && last != Some(place)
            {
                let _ = write!(text, "  // {file}:{number}");
                last = Some(place);
            }
            text.push('\n');
        }
        text
    }
}
