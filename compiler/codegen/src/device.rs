//! A program's part for CUDA devices, stage `program`: every kernel and every library call as launches of compiled code.
//!
//! From the emitter's kernels and the library's sources through NVRTC to a [`DeviceSection`]. Decides nothing about the
//! program's instructions, and loads nothing.

use crate::assemble::Assembled;
use crate::cuda::nvrtc::{Architecture, Job, Nvrtc, NvrtcError};
use crate::cuda::{self, CudaKernel, Places};
use crate::kir::KirError;
use dtlc_kernels::cuda as library;
use dtlc_kernels::signature::InvalidSpec;
use dtlc_runtime::movement_kernels;
use dtlc_runtime::program::device::{
    Cubin, DeviceCall, DeviceFunction, DeviceModule, DeviceSection, Launch, LaunchArgument, Work,
};
use dtlc_runtime::program::{KernelId, Program};
use indexmap::IndexMap;
use std::fmt;

/// Generated kernels of a module: a file of that many is compiled as fast as each alone, and not much memory is needed.
const KERNELS_OF_A_MODULE: usize = 24;
/// The architecture whose PTX a program holds: all later ones can run it.
const PTX_FROM: Architecture = Architecture::Sm80;

/// Why a program has no code for devices.
#[derive(Clone, Debug)]
pub enum DeviceCodeError {
    /// NVRTC is not there or refuses.
    Nvrtc(NvrtcError),
    /// A kernel is not valid: a bug of ours.
    Kernel(KirError),
    /// A descriptor that no kernel can run: a bug of ours.
    Library(InvalidSpec),
}

impl fmt::Display for DeviceCodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvrtc(error) => error.fmt(formatter),
            Self::Kernel(error) => error.fmt(formatter),
            Self::Library(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for DeviceCodeError {}

impl From<NvrtcError> for DeviceCodeError {
    fn from(error: NvrtcError) -> Self {
        Self::Nvrtc(error)
    }
}

impl From<InvalidSpec> for DeviceCodeError {
    fn from(error: InvalidSpec) -> Self {
        Self::Library(error)
    }
}

/// Gives an assembled program its code for devices: PTX, and machine code for `architectures`.
///
/// # Errors
/// NVRTC is not there, or a bug of ours.
pub fn add_device_code(
    assembled: &mut Assembled,
    nvrtc: &Nvrtc,
    architectures: &[Architecture],
) -> Result<(), DeviceCodeError> {
    let kernels = cuda::emit_program(assembled).map_err(DeviceCodeError::Kernel)?;
    assembled.program.device = Some(device_section(&assembled.program, &kernels, nvrtc, architectures)?);
    Ok(())
}

/// The code for devices of a program with these generated kernels.
///
/// # Errors
/// As [`add_device_code`].
pub fn device_section(
    program: &Program,
    kernels: &[CudaKernel],
    nvrtc: &Nvrtc,
    architectures: &[Architecture],
) -> Result<DeviceSection, DeviceCodeError> {
    let mut builder = Builder::default();
    for (number, kernels) in kernels.chunks(KERNELS_OF_A_MODULE).enumerate() {
        let source = cuda::file(kernels, Places::Directives);
        builder.module(format!("kernels{number}"), source, kernels.iter().map(|kernel| kernel.name.as_str()));
    }
    for (number, kernel) in kernels.iter().enumerate() {
        builder.generated(program, number, kernel);
    }
    let mut works = Vec::new();
    for work in program.operations().filter_map(Work::of) {
        if !matches!(work, Work::Kernel(_)) && !works.contains(&work) {
            works.push(work);
        }
    }
    for work in works {
        builder.library_call(work)?;
    }
    for launch in movement_kernels(program) {
        builder.library_function(launch.name, launch.source);
    }
    builder.finish(nvrtc, architectures)
}

#[derive(Default)]
struct Builder {
    /// Names and sources of modules.
    modules: Vec<(String, String)>,
    /// The module of each function.
    functions: IndexMap<String, u32>,
    calls: Vec<DeviceCall>,
}

impl Builder {
    fn module<'a>(&mut self, name: String, source: String, functions: impl Iterator<Item = &'a str>) {
        let module = self.modules.len() as u32;
        self.modules.push((name, source));
        self.functions.extend(functions.map(|function| (function.to_owned(), module)));
    }

    /// The number of a function that is alone in its module; equal names are equal sources.
    fn library_function(&mut self, name: String, source: String) -> u32 {
        if let Some(known) = self.functions.get_index_of(&name) {
            return known as u32;
        }
        self.module(name.clone(), source, std::iter::once(name.as_str()));
        self.functions.len() as u32 - 1
    }

    /// The call of a generated kernel, whose functions stand first and in order.
    fn generated(&mut self, program: &Program, number: usize, kernel: &CudaKernel) {
        let operands = program.kernels.get(number).map_or([0, 0], |entry| [entry.pointers, entry.integers]);
        let pointers = (0..operands[0]).map(LaunchArgument::Pointer);
        let arguments = pointers.chain((0..operands[1]).map(LaunchArgument::Integer)).collect();
        let launch = Launch {
            function: number as u32,
            grid: [kernel.blocks, 1, 1],
            block: [kernel.threads, 1, 1],
            shared_bytes: 0,
            arguments,
        };
        let work = Work::Kernel(KernelId(number as u32));
        self.calls.push(DeviceCall { work, scratch_bytes: 0, launches: vec![launch] });
    }

    fn library_call(&mut self, work: Work) -> Result<(), DeviceCodeError> {
        let call = library_call(&work)?;
        let launch = |launch: library::DeviceLaunch| Launch {
            function: self.library_function(launch.name, launch.source),
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            arguments: launch.arguments.into_iter().map(LaunchArgument::from).collect(),
        };
        let launches = call.launches.into_iter().map(launch).collect();
        self.calls.push(DeviceCall { work, scratch_bytes: call.scratch_bytes, launches });
        Ok(())
    }

    /// Compiles every module.
    fn finish(self, nvrtc: &Nvrtc, architectures: &[Architecture]) -> Result<DeviceSection, DeviceCodeError> {
        let machine = self.modules.iter().flat_map(|(_, source)| {
            architectures.iter().map(move |&architecture| Job { source, architecture })
        });
        let mut binaries = nvrtc.compile_all(&machine.collect::<Vec<_>>())?.into_iter();
        let mut modules = Vec::new();
        for (name, source) in &self.modules {
            let ptx = nvrtc.compile_ptx(Job { source, architecture: PTX_FROM })?;
            let code = architectures.iter().zip(&mut binaries);
            let cubins =
                code.map(|(target, binary)| Cubin { capability: target.capability(), bytes: binary.cubin });
            let cubins = cubins.collect();
            modules.push(DeviceModule { name: name.clone(), ptx, cubins });
        }
        let functions = self.functions.into_iter();
        Ok(DeviceSection {
            modules,
            functions: functions.map(|(name, module)| DeviceFunction { name, module }).collect(),
            calls: self.calls,
        })
    }
}

/// How the library performs some work.
fn library_call(work: &Work) -> Result<library::DeviceCall, InvalidSpec> {
    match work {
        // Generated kernels are no part of the library.
        Work::Kernel(_) => Ok(library::DeviceCall::default()),
        Work::Matmul(spec) => library::matmul(spec),
        Work::Attention(spec) => library::attention(spec),
        Work::AttentionBackward(spec) => library::attention_backward(spec),
        Work::Take(spec) => Ok(library::take(spec)),
        Work::ScatterAdd(spec) => library::scatter_add(spec),
    }
}
