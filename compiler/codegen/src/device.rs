//! A program's part for CUDA devices, stage `program`: every kernel and every library call as launches of compiled code.
//!
//! From the emitter's kernels and the library's sources through NVRTC to a [`DeviceSection`]. Decides nothing about the
//! program's instructions, and loads nothing.

use crate::assemble::{Assembled, KernelListing};
use crate::cuda::nvrtc::{Architecture, Job, Nvrtc, NvrtcError};
use crate::cuda::{self, CudaKernel, Places};
use crate::kir::{KirError, TensorId};
use dtlc_kernels::cuda as library;
use dtlc_kernels::signature::InvalidSpec;
use dtlc_runtime::movement_kernels;
use dtlc_runtime::program::device::{
    Alternative, Cubin, DeviceCall, DeviceFunction, DeviceModule, DeviceSection, Launch, LaunchArgument,
    Work, WorkProduct,
};
use dtlc_runtime::program::{KernelId, Program, Sums};
use indexmap::IndexMap;
use std::collections::BTreeSet;
use std::fmt;

/// Generated kernels of a module: a file of that many is compiled as fast as each alone, and not much memory is needed.
const KERNELS_OF_A_MODULE: usize = 24;
/// The architecture whose PTX a program holds: all later ones can run it.
const PTX_FROM: Architecture = Architecture::Sm80;
/// The architecture that alternatives of launches are for.
const ALTERNATIVES_FOR: Architecture = Architecture::Sm90a;

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
    let builder = Builder::of(assembled, architectures)?;
    assembled.program.device = Some(builder.finish(nvrtc, architectures)?);
    Ok(())
}

/// What [`add_device_code`] compiles, in its order.
///
/// # Errors
/// A bug of ours.
pub fn device_modules(
    assembled: &Assembled,
    architectures: &[Architecture],
) -> Result<Vec<Module>, DeviceCodeError> {
    Ok(Builder::of(assembled, architectures)?.modules)
}

/// Some work, and what becomes part of a product's launch.
struct Performed {
    work: Work,
    /// For each product what goes on with its results, where that can be done where they are made.
    epilogues: Vec<Option<library::Epilogue>>,
}

/// A generated kernel with a launch of its own, and which of the work's operands are its first.
struct OwnLaunch {
    kernel: KernelId,
    first_pointer: u32,
    first_integer: u32,
}

impl Performed {
    fn of(assembled: &Assembled, work: Work) -> Self {
        let epilogue = |product: &WorkProduct| {
            let rest = product.epilogue.as_ref()?;
            let listing = assembled.kernels.get(rest.kernel.index())?;
            let KernelListing { kernel, origins, alignments, clif: _ } = listing;
            let keeps = match rest.sums {
                Sums::Kept => library::Keeps::Results,
                Sums::Passing => library::Keeps::Nothing,
            };
            cuda::epilogue(kernel, origins, alignments, TensorId::from_u32(rest.position), keeps)
        };
        let epilogues = work.products().iter().map(epilogue).collect();
        Self { work, epilogues }
    }

    /// The products as the library takes them.
    fn products(&self, program: &Program) -> Vec<library::MatmulOf<'_>> {
        let (mut first_pointer, mut first_integer) = (0, 0);
        let mut products = Vec::new();
        for (product, epilogue) in self.work.products().iter().zip(&self.epilogues) {
            let (spec, epilogue) = (&product.spec, epilogue.as_ref());
            products.push(library::MatmulOf { spec, epilogue, first_pointer, first_integer });
            let [pointers, integers] = product.operands(program).unwrap_or_default();
            first_pointer += pointers;
            first_integer += integers;
        }
        products
    }

    /// The generated kernels that have launches of their own, the last.
    fn own_launches(&self, program: &Program) -> Vec<OwnLaunch> {
        if let Work::Kernel(kernel) = self.work {
            return vec![OwnLaunch { kernel, first_pointer: 0, first_integer: 0 }];
        }
        let products = self.products(program);
        let rests = self.work.products().iter().zip(&products).filter(|(_, own)| own.epilogue.is_none());
        rests
            .filter_map(|(product, own)| {
                Some(OwnLaunch {
                    kernel: product.epilogue.as_ref()?.kernel,
                    first_pointer: own.first_pointer + library::BUFFERS_OF_A_PRODUCT,
                    first_integer: own.first_integer,
                })
            })
            .collect()
    }
}

/// A translation unit.
#[derive(Clone, Debug)]
pub struct Module {
    /// Of the function where there is one only.
    pub name: String,
    /// CUDA C++.
    pub source: String,
    /// The only architecture that it is for, if there is one.
    pub only: Option<Architecture>,
}

#[derive(Default)]
struct Builder {
    /// The generated kernels that are launched.
    kernels: IndexMap<KernelId, CudaKernel>,
    modules: Vec<Module>,
    /// The module of each function.
    functions: IndexMap<String, u32>,
    calls: Vec<DeviceCall>,
}

impl Builder {
    /// All that a program launches on devices of such architectures.
    fn of(assembled: &Assembled, architectures: &[Architecture]) -> Result<Self, DeviceCodeError> {
        let mut works: Vec<Performed> = Vec::new();
        for work in assembled.program.works() {
            if works.iter().all(|known| known.work != work) {
                works.push(Performed::of(assembled, work));
            }
        }
        let own = works.iter().flat_map(|work| work.own_launches(&assembled.program));
        let launched: BTreeSet<KernelId> = own.map(|launch| launch.kernel).collect();
        let emitted = cuda::emit_program(assembled).map_err(DeviceCodeError::Kernel)?.into_iter();
        let numbered = emitted.enumerate().map(|(number, kernel)| (KernelId(number as u32), kernel));
        let kernels = numbered.filter(|(number, _)| launched.contains(number)).collect();
        let mut builder = Builder { kernels, ..Builder::default() };
        builder.generated();
        for work in works {
            builder.call(&assembled.program, work, architectures.contains(&ALTERNATIVES_FOR))?;
        }
        for launch in movement_kernels(&assembled.program) {
            builder.library_function(launch.name, launch.source, None);
        }
        Ok(builder)
    }

    fn module<'a>(&mut self, module: Module, functions: impl Iterator<Item = &'a str>) {
        let number = self.modules.len() as u32;
        self.modules.push(module);
        self.functions.extend(functions.map(|function| (function.to_owned(), number)));
    }

    /// The number of a function that is alone in its module; equal names are equal sources.
    fn library_function(&mut self, name: String, source: String, only: Option<Architecture>) -> u32 {
        if let Some(known) = self.functions.get_index_of(&name) {
            return known as u32;
        }
        let module = Module { name: name.clone(), source, only };
        self.module(module, std::iter::once(name.as_str()));
        self.functions.len() as u32 - 1
    }

    /// The modules of generated kernels.
    fn generated(&mut self) {
        let kernels: Vec<CudaKernel> = self.kernels.values().cloned().collect();
        for (number, kernels) in kernels.chunks(KERNELS_OF_A_MODULE).enumerate() {
            let source = cuda::file(kernels, Places::Directives);
            let module = Module { name: format!("kernels{number}"), source, only: None };
            self.module(module, kernels.iter().map(|kernel| kernel.name.as_str()));
        }
    }

    fn call(
        &mut self,
        program: &Program,
        performed: Performed,
        has_alternatives: bool,
    ) -> Result<(), DeviceCodeError> {
        let call = library_call(program, &performed)?;
        let (mut launches, mut alternatives) = (Vec::new(), Vec::new());
        for mut launch in call.launches {
            if let Some(alternative) = launch.alternative.take().filter(|_| has_alternatives) {
                let position = launches.len() as u32;
                let launch = self.library_launch(*alternative, Some(ALTERNATIVES_FOR));
                alternatives.push(Alternative { position, launch });
            }
            launches.push(self.library_launch(launch, None));
        }
        let own = performed.own_launches(program);
        launches.extend(own.iter().filter_map(|own| self.generated_launch(program, own)));
        let work = performed.work;
        self.calls.push(DeviceCall { work, scratch_bytes: call.scratch_bytes, launches, alternatives });
        Ok(())
    }

    fn generated_launch(&self, program: &Program, own: &OwnLaunch) -> Option<Launch> {
        let kernel = self.kernels.get(&own.kernel)?;
        let entry = program.kernels.get(own.kernel.index())?;
        let pointers = (0..entry.pointers).map(|number| LaunchArgument::Pointer(own.first_pointer + number));
        let integers = (0..entry.integers).map(|number| LaunchArgument::Integer(own.first_integer + number));
        Some(Launch {
            function: self.functions.get_index_of(&kernel.name)? as u32,
            grid: [kernel.blocks, 1, 1],
            block: [kernel.threads, 1, 1],
            shared_bytes: 0,
            arguments: pointers.chain(integers).collect(),
        })
    }

    fn library_launch(&mut self, launch: library::DeviceLaunch, only: Option<Architecture>) -> Launch {
        Launch {
            function: self.library_function(launch.name, launch.source, only),
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            arguments: launch.arguments.into_iter().map(LaunchArgument::from).collect(),
        }
    }

    /// Compiles every module.
    fn finish(self, nvrtc: &Nvrtc, architectures: &[Architecture]) -> Result<DeviceSection, DeviceCodeError> {
        let targets = |only: Option<Architecture>| {
            architectures.iter().copied().filter(move |target| only.is_none_or(|only| only == *target))
        };
        let machine = self.modules.iter().flat_map(|Module { source, only, .. }| {
            targets(*only).map(move |architecture| Job { source, architecture })
        });
        let mut binaries = nvrtc.compile_all(&machine.collect::<Vec<_>>())?.into_iter();
        let mut modules = Vec::new();
        for Module { name, source, only } in &self.modules {
            let ptx = nvrtc.compile_ptx(Job { source, architecture: only.unwrap_or(PTX_FROM) })?;
            let code = targets(*only).zip(&mut binaries);
            let cubins =
                code.map(|(target, binary)| Cubin { capability: target.capability(), bytes: binary.cubin });
            let cubins = cubins.collect();
            let capability = only.map(Architecture::capability);
            modules.push(DeviceModule { name: name.clone(), capability, ptx, cubins });
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
fn library_call(program: &Program, performed: &Performed) -> Result<library::DeviceCall, InvalidSpec> {
    match &performed.work {
        // Generated kernels are no part of the library.
        Work::Kernel(_) => Ok(library::DeviceCall::default()),
        Work::Products(_) => library::matmuls(&performed.products(program)),
        Work::Attention(spec) => library::attention(spec),
        Work::AttentionBackward(spec) => library::attention_backward(spec),
        Work::Take(spec) => Ok(library::take(spec)),
        Work::ScatterAdd(spec) => library::scatter_add(spec),
    }
}
