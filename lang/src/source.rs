//! Source files and positions in them: file ids, spans, line and column lookup, and the loader through which
//! `use` reaches other files.
//!
//! From raw bytes to text with ids. Does no IO: whoever owns files hands in bytes; a [`Loader`] finds what `use` names.

use std::fmt;
use std::sync::Arc;

use cranelift_entity::{PrimaryMap, entity_impl};
use serde::Serialize;

use crate::codes::Code;
use crate::diagnostic::Diagnostic;

/// A file of more bytes is refused before anything reads it.
const MOST_BYTES: usize = 64 << 20;

/// Identity of one source file in a [`SourceMap`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u32);
entity_impl!(FileId, "file");

/// A half-open byte range `[start, end)` of one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The file that the range lies in.
    pub file: FileId,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The range `[start, end)` of `file`.
    pub fn new(file: FileId, start: u32, end: u32) -> Self {
        Self { file, start, end }
    }

    /// The smallest range that holds both; `other` must lie in the same file, else `self` is returned.
    pub fn to(self, other: Self) -> Self {
        if self.file != other.file {
            return self;
        }
        Self::new(self.file, self.start.min(other.start), self.end.max(other.end))
    }

    /// The empty range at the first byte.
    pub fn at_start(self) -> Self {
        Self::new(self.file, self.start, self.start)
    }

    /// The empty range after the last byte.
    pub fn at_end(self) -> Self {
        Self::new(self.file, self.end, self.end)
    }

    /// Length in bytes.
    pub fn len(self) -> u32 {
        self.end - self.start
    }

    /// Whether the range holds no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether byte `offset` lies in the range.
    pub fn contains(self, offset: u32) -> bool {
        self.start <= offset && offset < self.end
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "<{}:{}..{}>", self.file.as_u32(), self.start, self.end)
    }
}

/// A position for people: both counted from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LineColumn {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// One file: its name as shown to users, its text, and where its lines start.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Its id in the map that owns it.
    pub id: FileId,
    /// The name that diagnostics print, usually the path as given.
    pub name: String,
    /// The text, without a byte order mark. Line ends are kept as they were.
    pub text: Arc<str>,
    line_starts: Vec<u32>,
}

impl SourceFile {
    /// The span of the whole text.
    pub fn span(&self) -> Span {
        Span::new(self.id, 0, self.text.len() as u32)
    }

    /// The text of `span`; empty where the span does not fit this text.
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    /// Line and column of a byte offset; an offset past the end is taken as the end.
    pub fn position(&self, offset: u32) -> LineColumn {
        let offset = offset.min(self.text.len() as u32);
        let index = self.line_starts.partition_point(|&start| start <= offset) - 1;
        let start = self.line_starts[index] as usize;
        let before = self.text.get(start..offset as usize).unwrap_or("");
        LineColumn { line: index as u32 + 1, column: before.chars().count() as u32 + 1 }
    }

    /// Number of lines; an empty text has one.
    pub fn line_count(&self) -> u32 {
        self.line_starts.len() as u32
    }

    /// The text of a line counted from 1, without its line end.
    pub fn line(&self, line: u32) -> &str {
        let Some(index) = (line as usize).checked_sub(1) else {
            return "";
        };
        let Some(&start) = self.line_starts.get(index) else {
            return "";
        };
        let end = self.line_starts.get(index + 1).map_or(self.text.len(), |&next| next as usize);
        self.text[start as usize..end].trim_end_matches(['\n', '\r'])
    }
}

/// All source files of one compilation.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: PrimaryMap<FileId, SourceFile>,
}

impl SourceMap {
    /// A map without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file whose text is known to be UTF-8. A byte order mark is dropped.
    ///
    /// A text over 4 GiB can't be addressed by a span and is cut to nothing; [`Self::add_bytes`] reports it.
    pub fn add(&mut self, name: impl Into<String>, text: &str) -> FileId {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let text = if u32::try_from(text.len()).is_ok() { text } else { "" };
        let id = self.files.next_key();
        self.files.push(SourceFile {
            id,
            name: name.into(),
            text: Arc::from(text),
            line_starts: line_starts(text),
        })
    }

    /// Adds a file from bytes as read.
    ///
    /// # Errors
    /// A diagnostic where the bytes are not UTF-8 (it names the line) or are too many; the file is in the map either
    /// way, so that the diagnostic can be rendered.
    pub fn add_bytes(&mut self, name: impl Into<String>, bytes: &[u8]) -> Result<FileId, Box<Diagnostic>> {
        if bytes.len() > MOST_BYTES {
            let id = self.add(name, "");
            let span = Span::new(id, 0, 0);
            return Err(Box::new(
                Diagnostic::error(Code::FileTooLarge, "the file is larger than 64 MiB")
                    .label(span, "this file"),
            ));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(self.add(name, text)),
            Err(error) => {
                let id = self.add(name, &String::from_utf8_lossy(bytes));
                Err(Box::new(self.invalid_utf8(id, bytes, error.valid_up_to())))
            }
        }
    }

    /// The file of an id.
    pub fn file(&self, id: FileId) -> &SourceFile {
        &self.files[id]
    }

    /// All files, in the order in which they were added.
    pub fn files(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.values()
    }

    /// The text of a span.
    pub fn slice(&self, span: Span) -> &str {
        self.file(span.file).slice(span)
    }

    /// Line and column where a span starts.
    pub fn position(&self, span: Span) -> LineColumn {
        self.file(span.file).position(span.start)
    }

    /// `name:line:column` of a span's start, as every report of the project prints places.
    pub fn place(&self, span: Span) -> String {
        let position = self.position(span);
        format!("{}:{}:{}", self.file(span.file).name, position.line, position.column)
    }

    fn invalid_utf8(&self, id: FileId, bytes: &[u8], valid: usize) -> Diagnostic {
        let mark = if bytes.starts_with("\u{feff}".as_bytes()) && valid >= 3 { 3 } else { 0 };
        // The lossy text is equal to the bytes up to the first bad one, where it has a replacement character.
        let start = (valid - mark) as u32;
        let span = Span::new(id, start, start + '\u{fffd}'.len_utf8() as u32);
        Diagnostic::error(Code::InvalidUtf8, "the file is not UTF-8")
            .label(span, format!("byte 0x{:02x} does not belong here", bytes[valid]))
            .why("`.dtl` files are text in UTF-8")
    }
}

/// What a [`Loader`] found.
#[derive(Clone, Debug)]
pub enum Loaded {
    /// A file: the name to show for it, and its bytes.
    Found {
        /// The name that diagnostics print.
        name: String,
        /// The content as read.
        bytes: Vec<u8>,
    },
    /// Nothing has that path.
    Missing,
    /// Something has that path but could not be read; why.
    Failed(String),
}

/// Finds the file behind a `use` path. The language itself reads nothing.
pub trait Loader {
    /// The file for the path's segments (`std::nn` is `["std", "nn"]`), asked for by the file named `from`.
    fn load(&self, from: &str, segments: &[&str]) -> Loaded;
}

impl<F: Fn(&str, &[&str]) -> Loaded> Loader for F {
    fn load(&self, from: &str, segments: &[&str]) -> Loaded {
        self(from, segments)
    }
}

fn line_starts(text: &str) -> Vec<u32> {
    let mut starts = vec![0];
    starts.extend(text.match_indices('\n').map(|(index, _)| index as u32 + 1));
    starts
}
