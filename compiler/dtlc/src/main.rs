//! The `dtlc` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    dtlc::main(std::env::args_os())
}
