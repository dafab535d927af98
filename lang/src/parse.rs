//! Parser: from the text of a file to its syntax tree, with every syntax error of the file.
//!
//! pest stops at its first error, so a file is parsed piece by piece: items are found by their keyword outside all
//! brackets, then their heads, members, statements and plan entries are parsed one at a time with the rules of
//! `grammar/dtl.pest`. After an error the parser goes on at the next piece. Resolves no names.

mod expression;
mod grammar;
mod item;
mod message;
mod pieces;
mod plan;
mod rule_name;

use crate::ast;
use crate::codes::Code;
use crate::diagnostic::{Diagnostic, sort_diagnostics};
use crate::lex::{Token, lex};
use crate::source::SourceFile;
use crate::source::Span;

pub use grammar::accepts;

/// A file reports at most this many errors.
const MAX_ERRORS: usize = 100;

/// A parsed file.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The tree; with error nodes where the text is at fault.
    pub file: ast::File,
    /// All tokens, comments included.
    pub tokens: Vec<Token>,
    /// Everything wrong with the text, in its order.
    pub diagnostics: Vec<Diagnostic>,
}

impl Parsed {
    /// Whether the text is free of errors.
    pub fn is_ok(&self) -> bool {
        self.diagnostics.is_empty()
    }
}

/// Parses a file. Never fails: what can't be parsed is an error node and a diagnostic.
pub fn parse(file: &SourceFile) -> Parsed {
    let tokens = lex(file);
    let mut pieces = pieces::Pieces::new(file, &tokens.all);
    let items = if tokens.errors.is_empty() {
        pieces.file()
    } else {
        // An unterminated text shifts every bracket after it; guesses from there on would only mislead.
        vec![ast::Item::Error(file.span())]
    };
    let mut diagnostics = tokens.errors;
    diagnostics.extend(pieces.into_diagnostics());
    sort_diagnostics(&mut diagnostics);
    limit(&mut diagnostics, file);
    Parsed { file: ast::File { id: file.id, items }, tokens: tokens.all, diagnostics }
}

fn limit(diagnostics: &mut Vec<Diagnostic>, file: &SourceFile) {
    if diagnostics.len() <= MAX_ERRORS {
        return;
    }
    diagnostics.truncate(MAX_ERRORS);
    let at = diagnostics.last().and_then(Diagnostic::span).map_or(0, |span| span.start);
    diagnostics.push(
        Diagnostic::error(Code::TooManyErrors, format!("more than {MAX_ERRORS} errors in this file"))
            .label(Span::new(file.id, at, at), "the rest is not shown"),
    );
}
