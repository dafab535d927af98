//! The runtime's one error type, with the exit status that each kind of failure has.

use std::path::{Path, PathBuf};

use dtlc_emulator::DriverError;

/// Why something failed; its text is for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeError {
    /// A program's bytes are not what this runtime can run.
    Artifact(String),
    /// A file can't be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// What the user gave (data, weights, inputs, a checkpoint) doesn't fit the program. One line each.
    Input(Vec<String>),
    /// A fault while running, such as a rank that does not arrive.
    Fault(String),
    /// A fault of dtlc itself.
    Bug(String),
}

/// Shorthand for what the runtime's functions return.
pub type Result<T> = std::result::Result<T, RuntimeError>;

impl RuntimeError {
    /// An input fault with one line.
    pub fn input(line: impl Into<String>) -> Self {
        Self::Input(vec![line.into()])
    }

    /// A file that the system did not let us use.
    pub fn file(path: &Path, reason: &dyn std::fmt::Display) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }

    /// What a device says of something. What it has no room for, or says of itself, is the machine's; all else we made.
    #[must_use]
    pub fn of_device(what: &str, error: &DriverError) -> Self {
        let text = format!("{what}: {error}");
        match error {
            DriverError::OutOfMemory { .. } | DriverError::Device(_) => Self::Fault(text),
            DriverError::NotAllocated(_)
            | DriverError::OutOfBounds { .. }
            | DriverError::Uninitialised { .. }
            | DriverError::Module { .. }
            | DriverError::NoSuchKernel(_)
            | DriverError::BadHandle(_)
            | DriverError::BadLaunch { .. }
            | DriverError::BadTensorMap(_)
            | DriverError::Fault(_)
            | DriverError::Race(_)
            | DriverError::Capture(_)
            | DriverError::Crashed(_) => Self::Bug(text),
        }
    }

    /// The exit status that the command ends with: 1 the input is at fault, 3 a fault at run time,
    /// 4 a bug of ours.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Artifact(_) | Self::File { .. } | Self::Input(_) => 1,
            Self::Fault(_) => 3,
            Self::Bug(_) => 4,
        }
    }
}

impl std::fmt::Display for RuntimeError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Artifact(reason) => {
                write!(formatter, "not a program this runtime can run: {reason}")
            }
            Self::File { path, reason } => write!(formatter, "{}: {reason}", path.display()),
            Self::Input(lines) => write!(formatter, "{}", lines.join("\n")),
            Self::Fault(reason) => write!(formatter, "{reason}"),
            Self::Bug(reason) => write!(formatter, "bug in dtlc: {reason}"),
        }
    }
}

impl std::error::Error for RuntimeError {}
