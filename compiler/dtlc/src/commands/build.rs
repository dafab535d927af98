//! `dtlc build`, and what a built file does.

use crate::bundle::{Bundle, Header};
use crate::cli::{Build, BuildTarget, Built, Device};
use crate::commands::train::{options, require_optimizer, train_with};
use crate::device::{Processor, Target};
use crate::failure::Failure;
use crate::launcher::Launched;
use crate::output::Output;
use crate::pipeline::Mode;
use crate::{files, load, machine};
use clap::ValueEnum;
use dtlc_runtime::program::Program;
use dtlc_runtime::session::Watch;
use std::path::Path;

/// Builds an executable.
///
/// # Errors
/// The model or the plan is at fault, the target is not there, the file can't be written.
pub fn run(arguments: &Build, output: &Output) -> Result<(), Failure> {
    let compiled = load::load(&arguments.source)?;
    require_optimizer(&compiled)?;
    let sources = compiled.sources.files().map(|file| Path::new(&file.name));
    let this = this_executable()?;
    files::refuse_own_input(&arguments.output, sources.chain([this.as_path()]))?;
    let (target, device) = match &arguments.target {
        BuildTarget::Cpu => (Target::Cpu, Device::Cpu),
        BuildTarget::Cuda(architectures) => (Target::cuda(architectures)?, Device::Cuda),
    };
    let program = machine::artifact(&compiled, Mode::Train, &target, Watch::default())?;
    let plan = compiled.plan.as_ref().map(|plan| plan.name.clone()).unwrap_or_default();
    let bounds = machine::bounds(&compiled)?;
    let header = Header { model: compiled.model.name.clone(), plan, device: device_name(device), bounds };
    let program_bytes = program.len();
    let bundle = Bundle { header, program };
    let bytes = std::fs::read(&this).map_err(|error| files::unusable(&this, &error))?;
    let bytes = bundle.behind(bytes).map_err(|error| Failure::Fault(error.to_string()))?;
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
    let launched = Launched::here()?;
    launched.as_ref().map_or(Ok(()), |launched| launched.require(program.mesh.ranks()))?;
    let device = arguments.device.or_else(|| Device::from_str(&bundle.header.device, false).ok());
    let device = device.unwrap_or(Device::Cpu);
    if device != Device::Cpu && program.device.is_none() {
        let name = device_name(device);
        return Err(Failure::Fault(format!(
            "it has no code for `--device {name}`: it was built with `--target cpu`, not `cuda`"
        )));
    }
    let processor = Processor::open(device, launched.as_ref())?;
    let options = options(&arguments.training);
    let session = || machine::launch(&bundle.program, &processor, options, launched.as_ref());
    train_with(session, bundle.header.bounds.clone(), &arguments.training, output)
}

/// As the command line has it.
fn device_name(device: Device) -> String {
    device.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Where this executable lies.
///
/// # Errors
/// The system does not say.
pub fn this_executable() -> Result<std::path::PathBuf, Failure> {
    std::env::current_exe().map_err(|error| files::unusable(Path::new("this executable"), &error))
}
