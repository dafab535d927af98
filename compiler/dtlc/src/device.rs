//! What `--device` stands for: the CPU, an emulated CUDA device, or a GPU. Opens it, and says what is missing where it can't.

use crate::cli::Device;
use crate::failure::Failure;
use crate::launcher::Launched;
use dtlc_codegen::assemble::Assembled;
use dtlc_codegen::cuda::nvrtc::{Architecture, Cache, Nvrtc, NvrtcError, Search};
use dtlc_codegen::device::{DeviceCodeError, add_device_code};
use dtlc_emulator::{CudaDriver as _, Emulator};
use dtlc_runtime::gpu::{Gpu, Ordinal, Search as DriverSearch};
use dtlc_runtime::processes::Transport;
use dtlc_runtime::program::Program;
use dtlc_runtime::session::{Options, Session};
use std::path::PathBuf;
use std::sync::Arc;

/// What a program has code for.
pub enum Target {
    /// This machine's processor.
    Cpu,
    /// CUDA devices as well.
    Cuda {
        /// The compiler.
        nvrtc: Box<Nvrtc>,
        /// What it makes machine code for; beside it, there is PTX for all later ones.
        architectures: Vec<Architecture>,
    },
}

impl Target {
    /// CUDA devices of these architectures.
    ///
    /// # Errors
    /// NVRTC is missing.
    pub fn cuda(architectures: &[Architecture]) -> Result<Self, Failure> {
        let nvrtc = Nvrtc::load(&Search::of_environment(), cache()).map_err(|error| nvrtc_failure(&error))?;
        Ok(Self::Cuda { nvrtc: Box::new(nvrtc), architectures: architectures.to_vec() })
    }

    /// Compiles what this needs beside machine code for the CPU.
    ///
    /// # Errors
    /// The compiler fails, or a bug.
    pub fn complete(&self, assembled: &mut Assembled) -> Result<(), Failure> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda { nvrtc, architectures } => {
                add_device_code(assembled, nvrtc, architectures).map_err(|error| match error {
                    DeviceCodeError::Nvrtc(error) => nvrtc_failure(&error),
                    DeviceCodeError::Kernel(_) | DeviceCodeError::Library(_) => {
                        Failure::Bug(error.to_string())
                    }
                })
            }
        }
    }
}

/// Where programs run.
pub enum Processor {
    /// On this machine's processor.
    Cpu,
    /// On an emulated device.
    Emulator(Arc<Emulator>),
    /// On a GPU.
    Gpu {
        /// The GPU.
        gpu: Arc<Gpu>,
        /// What to compile machine code for, beside PTX.
        architectures: Vec<Architecture>,
    },
}

impl Processor {
    /// Opens what the command line names. Each of several processes on a machine takes a GPU of its own.
    ///
    /// # Errors
    /// A driver or a GPU is missing: the message says what was looked for, where, and how to get it.
    pub fn open(device: Device, launched: Option<&Launched>) -> Result<Self, Failure> {
        match device {
            Device::Cpu => Ok(Self::Cpu),
            Device::Emu => Ok(Self::Emulator(Arc::default())),
            Device::Cuda => {
                let ordinal =
                    launched.map_or(Ordinal::Exactly(0), |launched| Ordinal::OfProcess(launched.local_rank));
                let gpu = Gpu::open(&DriverSearch::of_environment(None), ordinal);
                let instead = "`--device emu` runs the same kernels without a GPU";
                let gpu = gpu.map_err(|error| Failure::from(error).with_note(instead))?;
                let (major, minor) = gpu.capability();
                let is_its = |it: &Architecture| it.capability() == [major, minor];
                let architectures = Architecture::ALL.into_iter().filter(is_its).collect();
                Ok(Self::Gpu { gpu: Arc::new(gpu), architectures })
            }
        }
    }

    /// What programs need to run here. Asked for before anything is compiled, so that what is missing shows at once.
    ///
    /// # Errors
    /// NVRTC is missing.
    pub fn target(&self) -> Result<Target, Failure> {
        let instead = "a device runs what NVRTC compiles; `--device cpu` needs neither";
        let architectures = match self {
            Self::Cpu => return Ok(Target::Cpu),
            Self::Emulator(_) => &[][..],
            Self::Gpu { architectures, gpu: _ } => architectures,
        };
        Target::cuda(architectures).map_err(|failure| failure.with_note(instead))
    }

    /// Starts the ranks of a program that has code for this: all, or where `others` are in other processes, its own.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn start(
        &self,
        others: Option<Arc<dyn Transport>>,
        program: Program,
        options: Options,
    ) -> Result<Session, Failure> {
        Ok(match (self, others) {
            (Self::Cpu, others) => Session::start_among(others, program, options)?,
            (Self::Emulator(device), others) => {
                Session::start_on_among(others, Arc::clone(device) as _, program, options)?
            }
            (Self::Gpu { gpu, .. }, None) => Session::start_on(Arc::clone(gpu) as _, program, options)?,
            (Self::Gpu { gpu, .. }, Some(others)) => {
                let search = DriverSearch::of_environment(Some("DTLC_CUDA_LIBS"));
                Session::start_on_gpus(others, Arc::clone(gpu), &search, program, options)?
            }
        })
    }
}

/// What NVRTC's trouble is to the user.
#[must_use]
pub fn nvrtc_failure(error: &NvrtcError) -> Failure {
    match error {
        NvrtcError::Missing(_) | NvrtcError::Version { .. } | NvrtcError::Call { .. } => {
            Failure::Fault(error.to_string())
        }
        NvrtcError::Refused { .. } => Failure::Bug(error.to_string()),
    }
}

/// Kernels are kept with the user's other caches, if there is a place for those.
fn cache() -> Option<Cache> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(Cache::new(caches.join("dtlc").join("nvrtc")))
}
