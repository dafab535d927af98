//! `dtlc build`, and what a built file does.

use crate::bundle::{Bundle, Header};
use crate::cli::{Build, Built};
use crate::commands::train::{require_optimizer, train_with};
use crate::commands::watch;
use crate::device::Processor;
use crate::failure::Failure;
use crate::output::Output;
use crate::pipeline::Mode;
use crate::{files, launcher, load, machine};
use dtlc_runtime::program::Program;
use dtlc_runtime::session::{Options, Session};
use std::path::Path;

/// Builds an executable.
///
/// # Errors
/// The model or the plan is at fault, the target is not there, the file can't be written.
pub fn run(arguments: &Build, output: &Output) -> Result<(), Failure> {
    if arguments.target != "cpu" {
        let target = &arguments.target;
        return Err(Failure::Usage(format!("`--target {target}` is not there yet; `--target cpu` is")));
    }
    let compiled = load::load(&arguments.source)?;
    require_optimizer(&compiled)?;
    let program = machine::artifact(&compiled, Mode::Train, &Processor::Cpu)?;
    let plan = compiled.plan.as_ref().map(|plan| plan.name.clone()).unwrap_or_default();
    let header = Header { model: compiled.model.name.clone(), plan, bounds: machine::bounds(&compiled)? };
    let program_bytes = program.len();
    let bundle = Bundle { header, program };
    let this = this_executable()?;
    let bytes = std::fs::read(&this).map_err(|error| files::unusable(&this, &error))?;
    let bytes = bundle.behind(bytes).map_err(|error| Failure::Bug(error.to_string()))?;
    files::write_executable(&arguments.output, &bytes)?;
    output.note(&format!(
        "{} holds {} under {}: {program_bytes} bytes of program in {}",
        arguments.output.display(),
        bundle.header.model,
        bundle.header.plan,
        bytes.len()
    ));
    Ok(())
}

/// Trains with the program of a built file.
///
/// # Errors
/// The data is at fault, a step fails, or Ctrl-C.
pub fn run_built(bundle: &Bundle, arguments: &Built, output: &Output) -> Result<(), Failure> {
    let program = Program::from_bytes(&bundle.program).map_err(|error| Failure::Fault(error.to_string()))?;
    launcher::require_one_process(program.mesh.ranks(), |name| std::env::var(name).ok())?;
    let watch = watch(arguments.training.check_finite);
    let session = || Ok(Session::start(program, Options { watch, ..Options::default() })?);
    train_with(session, bundle.header.bounds.clone(), &arguments.training, output)
}

/// Where this executable lies.
///
/// # Errors
/// The system does not say.
pub fn this_executable() -> Result<std::path::PathBuf, Failure> {
    std::env::current_exe().map_err(|error| files::unusable(Path::new("this executable"), &error))
}
