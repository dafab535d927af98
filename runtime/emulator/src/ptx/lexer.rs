//! From PTX text to tokens with their lines. Owns comments, numbers in all of PTX's spellings and what a word is: an opcode
//! with its modifiers, a directive, a register and a label are one word each. Knows nothing of what words mean.

use super::PtxError;

/// One token of PTX.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// A name, a directive with its point, or an opcode with its modifiers.
    Word(&'a str),
    /// An integer without its sign.
    Integer(u64),
    /// The bits of an f32, from `0f…`.
    Float32(u32),
    /// The bits of an f64, from `0d…` or a decimal number with a point.
    Float64(u64),
    /// What stands between double quotes.
    Text(&'a str),
    /// Any other character.
    Mark(u8),
}

/// All tokens of a text, each with its line, counted from one.
///
/// # Errors
/// Where a number or a string can't be read.
pub fn tokens(text: &str) -> Result<Vec<(Token<'_>, u32)>, PtxError> {
    let mut lexer = Lexer { text, bytes: text.as_bytes(), at: 0, line: 1 };
    let mut found = Vec::new();
    while let Some(token) = lexer.next()? {
        found.push((token, lexer.line));
    }
    Ok(found)
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: u32,
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

impl<'a> Lexer<'a> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn next(&mut self) -> Result<Option<Token<'a>>, PtxError> {
        self.skip_blanks()?;
        let Some(&byte) = self.bytes.get(self.at) else { return Ok(None) };
        let token = match byte {
            _ if starts_word(byte) => Token::Word(self.word()),
            b'0'..=b'9' => self.number()?,
            b'"' => Token::Text(self.quoted()?),
            _ => {
                self.at += 1;
                Token::Mark(byte)
            }
        };
        Ok(Some(token))
    }

    fn skip_blanks(&mut self) -> Result<(), PtxError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => self.skip_comment()?,
                // A text may end with a NUL, as NVRTC hands it over.
                (0, _) if self.at < self.bytes.len() => self.at += 1,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), PtxError> {
        let begun = self.line;
        self.at += 2;
        while (self.peek(0), self.peek(1)) != (b'*', b'/') {
            if self.at >= self.bytes.len() {
                return Err(PtxError::new(begun, "a comment that does not end"));
            }
            self.line += u32::from(self.peek(0) == b'\n');
            self.at += 1;
        }
        self.at += 2;
        Ok(())
    }

    /// A word may hold `::` inside, as in `.shared::cta`; a single colon ends it, as behind a label.
    fn word(&mut self) -> &'a str {
        let begun = self.at;
        loop {
            if in_word(self.peek(0)) {
                self.at += 1;
            } else if self.peek(0) == b':' && self.peek(1) == b':' && in_word(self.peek(2)) {
                self.at += 2;
            } else {
                return &self.text[begun..self.at];
            }
        }
    }

    fn quoted(&mut self) -> Result<&'a str, PtxError> {
        let begun = self.at + 1;
        self.at = begun;
        while self.peek(0) != b'"' {
            if self.at >= self.bytes.len() || self.peek(0) == b'\n' {
                return Err(PtxError::new(self.line, "a string that does not end"));
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(&self.text[begun..self.at - 1])
    }

    fn number(&mut self) -> Result<Token<'a>, PtxError> {
        let begun = self.at;
        let hexadecimal = matches!(self.peek(1), b'x' | b'X' | b'f' | b'F' | b'd' | b'D');
        let kind = if self.peek(0) == b'0' && hexadecimal { self.peek(1).to_ascii_lowercase() } else { 0 };
        if kind == 0 {
            return self.decimal();
        }
        self.at += 2;
        while self.peek(0).is_ascii_hexdigit() {
            self.at += 1;
        }
        let digits = &self.text[begun + 2..self.at];
        let value = u64::from_str_radix(digits, 16).map_err(|_| self.unreadable(begun))?;
        match kind {
            b'x' => {
                self.skip_suffix();
                Ok(Token::Integer(value))
            }
            b'f' => u32::try_from(value).map(Token::Float32).map_err(|_| self.unreadable(begun)),
            _ => Ok(Token::Float64(value)),
        }
    }

    fn decimal(&mut self) -> Result<Token<'a>, PtxError> {
        let begun = self.at;
        let mut float = false;
        loop {
            match self.peek(0) {
                b'0'..=b'9' => {}
                b'.' if self.peek(1).is_ascii_digit() => float = true,
                b'e' | b'E' if float => {
                    if matches!(self.peek(1), b'-' | b'+') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
            self.at += 1;
        }
        let digits = &self.text[begun..self.at];
        if float {
            let value: f64 = digits.parse().map_err(|_| self.unreadable(begun))?;
            return Ok(Token::Float64(value.to_bits()));
        }
        // A leading zero means octal, as in C.
        let octal = digits.len() > 1 && digits.starts_with('0');
        let radix = if octal { 8 } else { 10 };
        let value = u64::from_str_radix(digits, radix).map_err(|_| self.unreadable(begun))?;
        self.skip_suffix();
        Ok(Token::Integer(value))
    }

    fn skip_suffix(&mut self) {
        if self.peek(0) == b'U' {
            self.at += 1;
        }
    }

    fn unreadable(&self, begun: usize) -> PtxError {
        PtxError::new(self.line, format!("`{}` is not a number", &self.text[begun..self.at]))
    }
}
