//! PTX as text and as a syntax tree: what NVRTC emits, read without judging what an instruction does.

mod lexer;
mod parse;
mod syntax;
mod types;

pub use parse::parse;
pub use syntax::{
    Address, Function, FunctionKind, Guard, Initial, Item, Module, Operand, RawInstruction, Space, Variable,
};
pub use types::Type;

use std::fmt;

/// Why a PTX text can't be loaded: it isn't PTX, or it asks for something the emulator does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// The line of the PTX text, counted from one.
    pub line: u32,
    /// What is wrong there.
    pub reason: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, reason: impl Into<String>) -> PtxError {
        PtxError { line, reason: reason.into() }
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "PTX line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for PtxError {}
