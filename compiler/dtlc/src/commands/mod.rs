//! The commands, one a file.

pub mod build;
mod check;
mod emit;
mod explain;
mod fmt;
mod run;
mod snapshot;
mod train;
mod verify;

use crate::cli::Command;
use crate::failure::Failure;
use crate::output::Output;
use dtlc_runtime::session::Watch;

/// Runs a command.
///
/// # Errors
/// Whatever keeps it from ending well.
pub fn run(command: Command, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Check(arguments) => check::run(&arguments, output),
        Command::Fmt(arguments) => fmt::run(&arguments, output),
        Command::Emit(arguments) => emit::run(&arguments, output),
        Command::Explain(arguments) => explain::run(&arguments, output),
        Command::Verify(arguments) => verify::run(&arguments, output),
        Command::Run(arguments) => run::run(&arguments, output),
        Command::Train(arguments) => train::run(&arguments, output),
        Command::Snapshot(arguments) => snapshot::run(&arguments, output),
        Command::Build(arguments) => build::run(&arguments, output),
    }
}

/// What `--check-finite` asks of the runtime.
fn watch(check_finite: bool) -> Watch {
    Watch { finite: check_finite, ..Watch::default() }
}
