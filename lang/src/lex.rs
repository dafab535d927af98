//! Tokens of a `.dtl` text, comments included: what the parser resynchronises on, what errors call "found", and what the
//! formatter prints.
//!
//! From text to tokens with bracket depths. The grammar in `grammar/dtl.pest` decides what is legal; this only cuts, and
//! reports what can't be cut. One pass, no backtracking, no recursion.

use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::source::{SourceFile, Span};

/// Brackets may nest this deep, and so may block comments. Each level costs the parser native stack.
pub const MAX_DEPTH: u32 = 64;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A name or keyword.
    Word,
    /// A number without its sign.
    Number,
    /// Text in quotes.
    String,
    /// `(`, `[` or `{`
    Open,
    /// `)`, `]` or `}`
    Close,
    /// Operators and separators.
    Punctuation,
    /// `// …` without its line end.
    LineComment,
    /// `/// …`, documentation.
    DocComment,
    /// `/* … */`
    BlockComment,
    /// A character that no rule knows.
    Unknown,
}

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
    /// Open brackets around it; an opening and its closing bracket have the same depth.
    pub depth: u32,
    /// Line ends between the token before and this one, 2 standing for more.
    pub newlines_before: u8,
}

impl Token {
    /// Whether it is a comment of any kind.
    pub fn is_comment(&self) -> bool {
        matches!(self.kind, TokenKind::LineComment | TokenKind::DocComment | TokenKind::BlockComment)
    }
}

/// The tokens of a file and what could not be cut.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// All tokens in order, comments included.
    pub all: Vec<Token>,
    /// Unterminated texts and comments, unknown characters.
    pub errors: Vec<Diagnostic>,
}

/// Cuts a file into tokens.
pub fn lex(file: &SourceFile) -> Tokens {
    let mut lexer = Lexer {
        file,
        bytes: file.text.as_bytes(),
        position: 0,
        depth: 0,
        newlines: 0,
        tokens: Vec::new(),
        errors: Vec::new(),
    };
    lexer.run();
    Tokens { all: lexer.tokens, errors: lexer.errors }
}

struct Lexer<'a> {
    file: &'a SourceFile,
    bytes: &'a [u8],
    position: usize,
    depth: u32,
    newlines: u8,
    tokens: Vec<Token>,
    errors: Vec<Diagnostic>,
}

impl Lexer<'_> {
    fn run(&mut self) {
        while let Some(&byte) = self.bytes.get(self.position) {
            match byte {
                b'\n' => {
                    self.newlines = (self.newlines + 1).min(2);
                    self.position += 1;
                }
                b' ' | b'\t' | b'\r' => self.position += 1,
                _ => self.token(byte),
            }
        }
    }

    fn token(&mut self, byte: u8) {
        let start = self.position;
        let kind = match byte {
            b'/' if self.peek(1) == Some(b'/') => self.line_comment(),
            b'/' if self.peek(1) == Some(b'*') => self.block_comment(),
            b'"' => self.string(),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.word(),
            b'0'..=b'9' => self.number(),
            b'(' | b'[' | b'{' => self.single(TokenKind::Open),
            b')' | b']' | b'}' => self.single(TokenKind::Close),
            _ => self.punctuation(),
        };
        if kind == TokenKind::Close {
            self.depth = self.depth.saturating_sub(1);
        }
        self.tokens.push(Token {
            kind,
            start: start as u32,
            end: self.position as u32,
            depth: self.depth,
            newlines_before: self.newlines,
        });
        if kind == TokenKind::Open {
            self.depth = self.depth.saturating_add(1);
        }
        self.newlines = 0;
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.position + ahead).copied()
    }

    fn single(&mut self, kind: TokenKind) -> TokenKind {
        self.position += 1;
        kind
    }

    fn skip_while(&mut self, accept: impl Fn(u8) -> bool) {
        while self.peek(0).is_some_and(&accept) {
            self.position += 1;
        }
    }

    fn line_comment(&mut self) -> TokenKind {
        let start = self.position;
        self.skip_while(|byte| byte != b'\n');
        while self.bytes[self.position - 1] == b'\r' {
            self.position -= 1;
        }
        let text = &self.bytes[start..self.position];
        if text.starts_with(b"///") && !text.starts_with(b"////") {
            TokenKind::DocComment
        } else {
            TokenKind::LineComment
        }
    }

    fn block_comment(&mut self) -> TokenKind {
        let start = self.position;
        let (mut level, mut deepest) = (0u32, 0u32);
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'/'), Some(b'*')) => {
                    level += 1;
                    deepest = deepest.max(level);
                    self.position += 2;
                }
                (Some(b'*'), Some(b'/')) => {
                    level -= 1;
                    self.position += 2;
                    if level == 0 {
                        break;
                    }
                }
                (Some(_), _) => self.position += 1,
                (None, _) => {
                    let span = self.span(start, start + 2);
                    self.errors.push(
                        Diagnostic::error(Code::UnclosedText, "comment that does not end")
                            .label(span, "opened here")
                            .why("block comments nest: each `/*` needs a `*/` of its own"),
                    );
                    break;
                }
            }
        }
        if deepest > MAX_DEPTH {
            let span = self.span(start, start + 2);
            self.errors.push(
                Diagnostic::error(Code::TooDeep, format!("comments nested more than {MAX_DEPTH} deep"))
                    .label(span, "starts here"),
            );
        }
        TokenKind::BlockComment
    }

    fn string(&mut self) -> TokenKind {
        let start = self.position;
        self.position += 1;
        self.skip_while(|byte| byte != b'"' && byte != b'\n');
        if self.peek(0) == Some(b'"') {
            self.position += 1;
        } else {
            let span = self.span(start, self.position);
            self.errors.push(
                Diagnostic::error(Code::UnclosedText, "text that does not end on its line")
                    .label(span, "no closing `\"`"),
            );
        }
        TokenKind::String
    }

    fn word(&mut self) -> TokenKind {
        self.skip_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        TokenKind::Word
    }

    /// The same numbers as the grammar's `number`.
    fn number(&mut self) -> TokenKind {
        let digit = |byte: u8| byte.is_ascii_digit() || byte == b'_';
        let hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'_';
        if self.peek(0) == Some(b'0') && self.peek(1) == Some(b'x') && self.peek(2).is_some_and(hex) {
            self.position += 2;
            self.skip_while(hex);
            return TokenKind::Number;
        }
        self.skip_while(digit);
        if self.peek(0) == Some(b'.') && self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) {
            self.position += 1;
            self.skip_while(digit);
        }
        let sign = usize::from(matches!(self.peek(1), Some(b'+' | b'-')));
        let exponent = matches!(self.peek(0), Some(b'e' | b'E'))
            && self.peek(1 + sign).is_some_and(|byte| byte.is_ascii_digit());
        if exponent {
            self.position += 1 + sign;
            self.skip_while(digit);
        }
        TokenKind::Number
    }

    fn punctuation(&mut self) -> TokenKind {
        const PAIRS: [&[u8]; 9] = [b"->", b"::", b"..", b"==", b"!=", b"<=", b">=", b"&&", b"||"];
        let rest = &self.bytes[self.position..];
        if PAIRS.iter().any(|pair| rest.starts_with(pair)) {
            self.position += 2;
            return TokenKind::Punctuation;
        }
        if b",;:=@|.+-*/%<>!".contains(&rest[0]) {
            return self.single(TokenKind::Punctuation);
        }
        self.unknown()
    }

    fn unknown(&mut self) -> TokenKind {
        let start = self.position;
        let character = self.file.text[start..].chars().next().unwrap_or('\u{fffd}');
        self.position += character.len_utf8();
        let span = self.span(start, self.position);
        let shown = character.escape_debug();
        self.errors.push(
            Diagnostic::error(Code::UnexpectedToken, format!("unknown character `{shown}`"))
                .label(span, "no part of the language")
                .why("names and operators are ASCII; other characters may stand in comments and texts"),
        );
        TokenKind::Unknown
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span::new(self.file.id, start as u32, end as u32)
    }
}
