//! Runs the built command and looks at what it leaves.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A command line, run in a folder of its own.
pub struct Dtlc {
    /// The folder.
    pub folder: tempfile::TempDir,
}

/// What a run left.
pub struct Outcome {
    /// The exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Dtlc {
    /// A folder with the tests' model in it.
    pub fn new() -> Dtlc {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::copy(source("tests/files/tiny.dtl"), folder.path().join("tiny.dtl")).expect("the model");
        Dtlc { folder }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in the folder.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        std::fs::write(path, content).expect("the file is written");
    }

    /// The command, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dtlc"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let Output { status, stdout, stderr } = self.command(arguments).output().expect("the command starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Outcome { status: status.code().unwrap_or(-1), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Runs the command, which has to end with `status`.
    pub fn expect(&self, status: i32, arguments: &[&str]) -> Outcome {
        let outcome = self.run(arguments);
        let Outcome { status: actual, stdout, stderr } = &outcome;
        assert_eq!(*actual, status, "dtlc {}\n{stdout}\n{stderr}", arguments.join(" "));
        outcome
    }

    /// The one JSON value that the command prints.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let outcome = self.expect(0, &[arguments, &["--json"]].concat());
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}\n{}", outcome.stdout))
    }
}

/// A file of this crate.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
