//! An opcode's modifiers, read in their order. None is ever skipped: what is left at the end is an error.

use crate::ptx::{PtxError, Type};

pub(super) struct Words<'a> {
    whole: &'a str,
    /// The modifiers left, the next one last.
    rest: Vec<&'a str>,
    /// The opcode itself.
    pub base: &'a str,
    line: u32,
}

impl<'a> Words<'a> {
    pub fn new(whole: &'a str, line: u32) -> Words<'a> {
        let mut rest: Vec<&str> = whole.split('.').rev().collect();
        let base = rest.pop().unwrap_or_default();
        Words { whole, rest, base, line }
    }

    pub fn peek(&self) -> Option<&'a str> {
        self.rest.last().copied()
    }

    /// Whether the modifier is anywhere among those left.
    pub fn has(&self, word: &str) -> bool {
        self.rest.contains(&word)
    }

    /// Takes the modifier if it is next.
    pub fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.rest.pop();
        }
        found
    }

    /// Takes the next modifier if it is one of these.
    pub fn choice<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        let next = self.peek()?;
        let (_, value) = choices.iter().find(|(word, _)| *word == next)?;
        self.rest.pop();
        Some(*value)
    }

    /// The next modifier, which must be one of these.
    pub fn expect<T: Copy>(&mut self, choices: &[(&str, T)]) -> Result<T, PtxError> {
        let next = self.peek().unwrap_or("");
        self.choice(choices).ok_or_else(|| self.unknown(next))
    }

    /// The next modifier, which must be a type.
    pub fn ty(&mut self) -> Result<Type, PtxError> {
        let next = self.peek().unwrap_or("");
        let ty = Type::from_name(next).ok_or_else(|| self.unknown(next))?;
        self.rest.pop();
        Ok(ty)
    }

    /// The type at the very end, which stays.
    pub fn last_type(&self) -> Option<Type> {
        self.rest.first().and_then(|word| Type::from_name(word))
    }

    /// Takes all that is left of modifiers that change nothing here.
    pub fn take_rest(&mut self) {
        self.rest.clear();
    }

    pub fn unknown(&self, word: &str) -> PtxError {
        PtxError::new(self.line, format!("`.{word}` in `{}` is not known to the emulator", self.whole))
    }

    pub fn finish(&self) -> Result<(), PtxError> {
        self.peek().map_or(Ok(()), |word| Err(self.unknown(word)))
    }
}
