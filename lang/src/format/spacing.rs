//! Spaces and possible line ends between two tokens of one line, and empty lines between pieces.
//!
//! Rules on token texts; the shape of whole lines is in [`super`].

use super::Formatter;
use super::doc::Doc;
use crate::lex::TokenKind;

/// How a piece is set off from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// It begins the file.
    First,
    /// On the next line.
    None,
    /// An empty line stands between.
    Empty,
    /// An empty line where the source has at least one.
    AsWritten,
}

/// In which part of the language a run of tokens stands; a few tokens are set differently there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// `use`: braces without inner spaces.
    Import,
    /// Everything but the following.
    Code,
    /// Steps of a plan: parentheses hold axes.
    Step,
    /// Settings: no operators, tuples after names.
    Settings,
}

/// Whether a run of tokens fills brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It stands by itself: lines end where they must.
    Bare,
    /// It fills brackets: its items break together.
    Bracketed,
}

/// What a run of tokens stands in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    pub(super) context: Context,
    pub(super) place: Place,
    /// The run's first token.
    pub(super) first: usize,
    /// How tightly its loosest operators bind: lines end before those only.
    loosest: u8,
}

impl Surroundings {
    pub(super) fn new(
        formatter: &Formatter<'_>,
        first: usize,
        end: usize,
        context: Context,
        place: Place,
    ) -> Self {
        let mut around = Self { context, place, first, loosest: u8::MAX };
        let mut index = first;
        while index < end {
            let operator =
                binding(formatter.token_text(index)).filter(|_| !formatter.is_prefix(index, around));
            around.loosest = around.loosest.min(operator.unwrap_or(u8::MAX));
            index = match formatter.tokens[index].kind {
                TokenKind::Open => formatter.partner(index) + 1,
                _ => index + 1,
            };
        }
        around
    }
}

/// How tightly an operator between two operands binds; `None` for other tokens.
fn binding(text: &str) -> Option<u8> {
    Some(match text {
        "||" => 0,
        "&&" => 1,
        "==" | "!=" | "<" | "<=" | ">" | ">=" => 2,
        "+" | "-" => 3,
        "*" | "/" | "%" => 4,
        _ => return None,
    })
}

impl Formatter<'_> {
    /// What stands between two neighbouring tokens of a run.
    pub(super) fn between(&self, left: usize, right: usize, around: Surroundings) -> Option<Doc> {
        let Surroundings { context, place, .. } = around;
        let space = Some(Doc::Text(" ".to_owned()));
        let (left_text, right_text) = (self.token_text(left), self.token_text(right));
        match (left_text, right_text) {
            (_, "," | ";" | ":" | "." | "::" | "@" | "|") => None,
            ("." | "::" | "@" | "|", _) => None,
            ("," | ";", _) => match place {
                Place::Bracketed => Some(Doc::Line),
                Place::Bare => Some(wrap()),
            },
            ("-" | "!", _) if self.is_prefix(left, around) => None,
            (_, operator)
                if binding(operator) == Some(around.loosest)
                    && context != Context::Settings
                    && !self.is_prefix(right, around) =>
            {
                Some(wrap())
            }
            (_, "(" | "[") => {
                if self.stands_off(left, right, context) {
                    space
                } else {
                    None
                }
            }
            _ => space,
        }
    }

    /// Whether an opening bracket is set off from what it follows: it is, unless it is applied to it.
    fn stands_off(&self, left: usize, right: usize, context: Context) -> bool {
        let text = self.token_text(left);
        match self.tokens[left].kind {
            TokenKind::Word => match (text, context) {
                ("fn" | "let" | "require" | "if" | "else", _) => true,
                ("on" | "over", Context::Step | Context::Settings) => true,
                _ => self.spaced.contains(&self.tokens[right].start),
            },
            TokenKind::Close => text == "}",
            _ => true,
        }
    }

    /// Whether `-` or `!` stands before its operand: where no operand ends before it.
    fn is_prefix(&self, index: usize, around: Surroundings) -> bool {
        match self.token_text(index) {
            "!" => return true,
            "-" if around.context == Context::Settings => return true,
            "-" => {}
            _ => return false,
        }
        let before = (around.first..index).rev().find(|&index| !self.tokens[index].is_comment());
        before.is_none_or(|before| match self.tokens[before].kind {
            TokenKind::Word => matches!(self.token_text(before), "if" | "else" | "let" | "require"),
            TokenKind::Number | TokenKind::String | TokenKind::Close => false,
            _ => true,
        })
    }
}

/// A space where the next part fits, else a new line one level deeper.
fn wrap() -> Doc {
    Doc::Indent(vec![Doc::Group(vec![Doc::Line])])
}
