//! The one error type of the kernel IR: a kernel that breaks a rule. Whoever makes a kernel made the mistake, so it is
//! always a fault of the compiler's own, never of a user's program.

use std::fmt;

/// A result that a rule of the kernel IR may refuse.
pub type Result<T> = std::result::Result<T, KirError>;

/// A broken rule of the kernel IR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KirError {
    /// The kernel's name.
    pub kernel: String,
    /// The rule and what breaks it.
    pub message: String,
}

impl KirError {
    /// A broken rule in the kernel called `kernel`.
    pub fn new(kernel: &str, message: impl Into<String>) -> Self {
        Self { kernel: kernel.to_owned(), message: message.into() }
    }
}

impl fmt::Display for KirError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bug in dtlc: kernel `{}`: {}", self.kernel, self.message)
    }
}

impl std::error::Error for KirError {}
