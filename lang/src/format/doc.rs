//! A small document algebra and its printer: groups go on one line where they fit, else break at their lines.
//!
//! From documents to text. The method is Wadler's ("A prettier printer", 2003) with comments added: a line comment ends
//! its line whatever follows. Knows nothing of `.dtl`.

/// Columns that a line should not pass.
const WIDTH: usize = 100;

/// Columns of one level.
const STEP: usize = 2;

/// A document.
#[derive(Clone, Debug)]
pub(super) enum Doc {
    /// Text without line ends.
    Text(String),
    /// A space, or a new line where the group is broken.
    Line,
    /// Nothing, or a new line where the group is broken.
    SoftLine,
    /// A new line, and with `true` an empty line before it; breaks every group around it.
    HardLine(bool),
    /// One after the other.
    Concat(Vec<Doc>),
    /// On one line if it fits.
    Group(Vec<Doc>),
    /// New lines inside begin one level deeper.
    Indent(Vec<Doc>),
    /// A comment at the end of a line; a new line follows.
    Trailing(String),
    /// A comment on a line of its own.
    Own(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Flat,
    Break,
}

type Command<'a> = (usize, Mode, &'a Doc);

/// Prints a document; no line ends in blanks.
pub(super) fn print(docs: &[Doc]) -> String {
    let mut printer = Printer { text: String::new(), column: 0, owed: false };
    let mut stack: Vec<Command<'_>> = docs.iter().rev().map(|doc| (0, Mode::Break, doc)).collect();
    while let Some((indent, mode, doc)) = stack.pop() {
        match doc {
            Doc::Text(text) => printer.text(text, indent),
            Doc::Line if mode == Mode::Flat => printer.text(" ", indent),
            Doc::SoftLine if mode == Mode::Flat => {}
            Doc::Line | Doc::SoftLine => printer.new_line(indent, false),
            Doc::HardLine(empty) => printer.new_line(indent, *empty),
            Doc::Concat(parts) => stack.extend(parts.iter().rev().map(|part| (indent, mode, part))),
            Doc::Group(parts) => {
                let mode = if fits(WIDTH.saturating_sub(printer.column), parts, &stack) {
                    Mode::Flat
                } else {
                    Mode::Break
                };
                stack.extend(parts.iter().rev().map(|part| (indent, mode, part)));
            }
            Doc::Indent(parts) => {
                stack.extend(parts.iter().rev().map(|part| (indent + STEP, mode, part)));
            }
            Doc::Trailing(text) => {
                printer.raw("  ");
                printer.raw(text);
                printer.owed = true;
            }
            Doc::Own(text) => {
                if !printer.at_line_start() {
                    printer.new_line(indent, false);
                }
                printer.raw(text);
                printer.owed = true;
            }
        }
    }
    printer.text
}

/// Whether a group fits flat in the columns left, with what follows it up to the next place where a line may end.
fn fits(mut left: usize, group: &[Doc], rest: &[Command<'_>]) -> bool {
    let mut stack: Vec<(Mode, &Doc)> = group.iter().rev().map(|doc| (Mode::Flat, doc)).collect();
    let mut rest = rest.iter().rev();
    loop {
        let Some((mode, doc)) = stack.pop().or_else(|| rest.next().map(|&(_, mode, doc)| (mode, doc))) else {
            return true;
        };
        let width = match (doc, mode) {
            (Doc::Text(text), _) => text.chars().count(),
            (Doc::Line, Mode::Flat) => 1,
            (Doc::SoftLine, Mode::Flat) => 0,
            (Doc::Line | Doc::SoftLine, Mode::Break) => return true,
            (Doc::HardLine(_) | Doc::Trailing(_) | Doc::Own(_), mode) => return mode == Mode::Break,
            (Doc::Concat(parts) | Doc::Group(parts) | Doc::Indent(parts), mode) => {
                stack.extend(parts.iter().rev().map(|part| (mode, part)));
                0
            }
        };
        if width > left {
            return false;
        }
        left -= width;
    }
}

struct Printer {
    text: String,
    column: usize,
    /// A line comment stands last, so a new line must come before anything else.
    owed: bool,
}

impl Printer {
    fn text(&mut self, text: &str, indent: usize) {
        if self.owed {
            if text.trim().is_empty() {
                return;
            }
            self.new_line(indent + STEP, false);
        }
        self.raw(text);
    }

    fn raw(&mut self, text: &str) {
        self.text.push_str(text);
        match text.rsplit_once('\n') {
            Some((_, last)) => self.column = last.chars().count(),
            None => self.column += text.chars().count(),
        }
    }

    fn new_line(&mut self, indent: usize, empty: bool) {
        self.owed = false;
        let end = self.text.trim_end_matches(' ').len();
        self.text.truncate(end);
        if empty {
            self.text.push('\n');
        }
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.column = indent;
    }

    fn at_line_start(&self) -> bool {
        !self.owed && self.text.bytes().rev().take_while(|&byte| byte != b'\n').all(|byte| byte == b' ')
    }
}
