//! What `--device` stands for: the CPU, an emulated CUDA device, or a GPU. Opens it, and says what is missing where it can't.

use crate::cli::Device;
use crate::failure::Failure;
use dtlc_codegen::assemble::Assembled;
use dtlc_codegen::cuda::nvrtc::{Architecture, Cache, Nvrtc, NvrtcError, Search};
use dtlc_codegen::device::{DeviceCodeError, add_device_code};
use dtlc_emulator::{CudaDriver, Emulator};
use dtlc_runtime::processes::Transport;
use dtlc_runtime::program::Program;
use dtlc_runtime::session::{Options, Session};
use std::path::PathBuf;
use std::sync::Arc;

/// The library that every NVIDIA driver brings.
const DRIVER_LIBRARY: &str = "libcuda.so.1";
/// Where systems and containers put it.
const DRIVER_FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
];

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
    /// On a device.
    Device(Arc<dyn CudaDriver>),
}

impl Processor {
    /// Opens what the command line names.
    ///
    /// # Errors
    /// A driver is missing: the message says what was looked for, where, and how to get it.
    pub fn open(device: Device) -> Result<Self, Failure> {
        match device {
            Device::Cpu => Ok(Self::Cpu),
            Device::Emu => Ok(Self::Device(Arc::new(Emulator::default()))),
            Device::Cuda => Err(without_driver()),
        }
    }

    /// What a program needs to run here.
    ///
    /// # Errors
    /// NVRTC is missing.
    pub fn target(&self) -> Result<Target, Failure> {
        let instead = "an emulated device runs what NVRTC compiles; `--device cpu` needs neither";
        match self {
            Self::Cpu => Ok(Target::Cpu),
            Self::Device(_) => Target::cuda(&[]).map_err(|failure| failure.with_note(instead)),
        }
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
        Ok(match self {
            Self::Cpu => Session::start_among(others, program, options)?,
            Self::Device(driver) => Session::start_on_among(others, Arc::clone(driver), program, options)?,
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

/// Says whether there is a driver, and what to do about it.
fn without_driver() -> Failure {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|folder| !folder.as_os_str().is_empty());
    let folders: Vec<PathBuf> = named.chain(DRIVER_FOLDERS.map(PathBuf::from)).collect();
    if let Some(folder) = folders.iter().find(|folder| folder.join(DRIVER_LIBRARY).exists()) {
        let found = folder.join(DRIVER_LIBRARY);
        return Failure::Usage(format!(
            "`--device cuda` is not there yet, though there is a driver ({}); `--device emu` runs the same kernels on an \
             emulated device",
            found.display()
        ));
    }
    let list: String = folders.iter().map(|folder| format!("\n  {}", folder.display())).collect();
    Failure::Fault(format!(
        "there is no NVIDIA driver: {DRIVER_LIBRARY} was not found; looked in:{list}\n\
         it comes with the GPU's driver, 580 or later, and not with the toolkit; in a container the host's is passed in \
         (`--gpus all`)\n`--device emu` runs the same kernels without a GPU"
    ))
}
