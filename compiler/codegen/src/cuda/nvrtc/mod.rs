//! NVRTC: CUDA C++ to PTX and machine code on any machine, with or without a GPU, driver or toolkit. Stages `cuda` → `ptx`.
//!
//! The library is loaded at run time; where it is missing, the error says what was looked for, where, and how to get it.
//! What it says of each kernel (registers, spills, warnings) is part of the result. Loads nothing onto a device.

mod cache;
mod program;
mod report;
mod search;

pub use cache::Cache;
pub use report::{KernelReport, Report};
pub use search::{LIBRARIES_VARIABLE, Missing, Search};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What code is made for. Machine code runs on its own architecture only, PTX for 8.0 on all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Architecture {
    /// A100.
    Sm80,
    /// H100, H200.
    Sm90a,
    /// B200.
    Sm100a,
}

impl Architecture {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::Sm80, Self::Sm90a, Self::Sm100a];

    /// NVIDIA's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90a => "sm_90a",
            Self::Sm100a => "sm_100a",
        }
    }

    /// The compute capability of its devices, major and minor.
    pub fn capability(self) -> [u32; 2] {
        match self {
            Self::Sm80 => [8, 0],
            Self::Sm90a => [9, 0],
            Self::Sm100a => [10, 0],
        }
    }
}

/// The options beside the architecture. Products and sums are not contracted, so that results have the bits of the CPU's;
/// line numbers let a fault name its source; `-v` puts registers and spills into the log.
const OPTIONS: [&str; 4] =
    ["--std=c++17", "--fmad=false", "--generate-line-info", "--ptxas-options=--verbose"];

/// A file to compile.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// CUDA C++.
    pub source: &'a str,
    /// What for.
    pub architecture: Architecture,
}

/// A compiled file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// Text that a driver can compile for any later architecture.
    pub ptx: String,
    /// Machine code; none where only PTX was asked for.
    pub cubin: Vec<u8>,
    /// What the compiler said.
    pub log: String,
}

impl Binary {
    /// The log, read.
    pub fn report(&self) -> Report {
        Report::of(&self.log)
    }
}

/// Why a file has no code.
#[derive(Clone, Debug)]
pub enum NvrtcError {
    /// There is no such library.
    Missing(Missing),
    /// There is one of another version than ours.
    Version {
        /// Its version.
        found: (i32, i32),
    },
    /// It does not take the source: a bug of ours.
    Refused {
        /// What for.
        architecture: Architecture,
        /// What it says.
        log: String,
    },
    /// A call failed.
    Call {
        /// What it was to do.
        what: &'static str,
        /// What the library says of it.
        message: String,
    },
}

impl fmt::Display for NvrtcError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(formatter),
            Self::Version { found: (major, minor) } => {
                write!(
                    formatter,
                    "NVRTC {major}.{minor} was found, and 13 is needed; {}",
                    search::HOW_TO_GET_IT
                )
            }
            Self::Refused { architecture, log } => {
                write!(formatter, "bug in dtlc: NVRTC refuses a kernel for {}:\n{log}", architecture.name())
            }
            Self::Call { what, message } => write!(formatter, "NVRTC failed to {what}: {message}"),
        }
    }
}

impl std::error::Error for NvrtcError {}

/// The loaded library.
#[derive(Debug)]
pub struct Nvrtc {
    version: (i32, i32),
    cache: Option<Cache>,
}

impl Nvrtc {
    /// Loads the library from where `search` says; results are kept in `cache`.
    ///
    /// # Errors
    /// It is not there, or too old or new.
    pub fn load(search: &Search, cache: Option<Cache>) -> Result<Self, NvrtcError> {
        search.load().map_err(NvrtcError::Missing)?;
        let version = program::version()?;
        if version.0 != 13 {
            return Err(NvrtcError::Version { found: version });
        }
        Ok(Self { version, cache })
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles one file, or finds it in the cache.
    ///
    /// # Errors
    /// The source does not compile, or a call fails.
    pub fn compile(&self, job: Job<'_>) -> Result<Binary, NvrtcError> {
        self.compile_for(job, job.architecture.name().to_owned())
    }

    /// Compiles one file to PTX alone, in half the time: what an emulator needs. Nothing is said of registers and spills.
    ///
    /// # Errors
    /// The source does not compile, or a call fails.
    pub fn compile_ptx(&self, job: Job<'_>) -> Result<String, NvrtcError> {
        let virtual_name = job.architecture.name().replace("sm_", "compute_");
        self.compile_for(job, virtual_name).map(|binary| binary.ptx)
    }

    fn compile_for(&self, job: Job<'_>, target: String) -> Result<Binary, NvrtcError> {
        let options: Vec<String> = OPTIONS
            .iter()
            .map(|&option| option.to_owned())
            .chain([format!("--gpu-architecture={target}")])
            .collect();
        let key = cache::key(self.version, &options, job.source);
        if let Some(kept) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            return Ok(kept);
        }
        let binary = program::compile(job, &options)?;
        if let Some(cache) = &self.cache {
            cache.put(&key, &binary);
        }
        Ok(binary)
    }

    /// Compiles files side by side, on as many threads as there are processors; results are in the order of `jobs`.
    ///
    /// # Errors
    /// Those of the first job, in their order, that has one.
    pub fn compile_all(&self, jobs: &[Job<'_>]) -> Result<Vec<Binary>, NvrtcError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<Result<Binary, NvrtcError>>>> =
            jobs.iter().map(|_| Mutex::new(None)).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(position) = Some(next.fetch_add(1, Ordering::Relaxed))
                        && let (Some(&job), Some(result)) = (jobs.get(position), results.get(position))
                    {
                        let compiled = self.compile(job);
                        // No thread panics while it holds the lock.
                        *result.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(compiled);
                    }
                });
            }
        });
        let unfinished =
            || NvrtcError::Call { what: "compile", message: "a thread ended before its work".to_owned() };
        results
            .into_iter()
            .map(|result| {
                let result = result.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
                result.unwrap_or_else(|| Err(unfinished()))
            })
            .collect()
    }
}
