//! Compiles the launches of a call to PTX and runs them on an emulated device; or to machine code, which must neither warn nor spill.

use crate::library::{nvrtc, same_for_sm_90a};
use dtlc_codegen::cuda::nvrtc::{Architecture, Binary, Job};
use dtlc_emulator::{
    Argument, CudaDriver, DevicePointer, DriverError, Emulator, EmulatorOptions, LaunchShape, ModuleHandle,
    ModuleImage, Stream, Swizzle, TensorMap,
};
use dtlc_kernels::cuda::{DeviceArgument, DeviceCall, DeviceLaunch, MappedTensor};
use std::collections::HashMap;

/// An emulated device and the kernels that were compiled for it.
pub struct Bench {
    device: Emulator,
    architecture: Architecture,
    sources: Sources,
    modules: HashMap<String, ModuleHandle>,
}

/// What is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sources {
    /// Kernels as they are. What runs from sm_80's code is sm_90a's too.
    Sound,
    /// Kernels that have a fault, which may come with warnings; what a later architecture makes of it does not matter.
    Faulty,
}

/// Where each buffer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// At a multiple of 256 bytes.
    Aligned,
    /// This many bytes behind one.
    Behind(usize),
}

impl Bench {
    /// A device that runs code for this architecture; none where NVRTC is missing.
    pub fn new(architecture: Architecture) -> Option<Bench> {
        nvrtc()?;
        // A seeded endless loop should end soon.
        let capability = match architecture {
            Architecture::Sm80 => (8, 0),
            Architecture::Sm90a => (9, 0),
            Architecture::Sm100a => (10, 0),
        };
        let device =
            Emulator::new(EmulatorOptions { budget: 1 << 24, capability, ..EmulatorOptions::default() });
        Some(Bench { device, architecture, sources: Sources::Sound, modules: HashMap::new() })
    }

    /// The same device for kernels that have a fault from here on.
    pub fn for_faults(self) -> Bench {
        Bench { sources: Sources::Faulty, ..self }
    }

    /// Runs a call; the buffers are its operands before and after.
    pub fn run(
        &mut self,
        call: &DeviceCall,
        buffers: &mut [Vec<u8>],
        integers: &[i64],
        placing: Placing,
    ) -> Result<(), DriverError> {
        let skipped = match placing {
            Placing::Aligned => 0,
            Placing::Behind(bytes) => bytes as u64,
        };
        let mut starts = Vec::new();
        for buffer in buffers.iter() {
            let start = self.device.allocate(skipped + buffer.len() as u64)?;
            self.device.copy_to_device(start.offset(skipped), buffer, Stream::DEFAULT)?;
            starts.push(start);
        }
        let scratch = self.device.allocate(call.scratch_bytes)?;
        for launch in &call.launches {
            let launch = self.chosen(launch, placing);
            let argument = |argument: &DeviceArgument| {
                Ok(match *argument {
                    DeviceArgument::Pointer(buffer) => {
                        Argument::Pointer(starts[buffer as usize].offset(skipped))
                    }
                    DeviceArgument::Pointers { first, count } => {
                        let starts = &starts[first as usize..(first + count) as usize];
                        let addresses = starts.iter().map(|start| start.offset(skipped).0.to_le_bytes());
                        Argument::Bytes(addresses.flatten().collect())
                    }
                    DeviceArgument::Integer(integer) => Argument::I64(integers[integer as usize]),
                    DeviceArgument::Scratch(byte) => Argument::Pointer(scratch.offset(byte)),
                    DeviceArgument::Constant(value) => Argument::I64(value),
                    DeviceArgument::Map(map) => {
                        let map = tensor_map(&map, starts[map.buffer as usize].offset(skipped));
                        Argument::Bytes(self.device.tensor_map(&map)?.to_vec())
                    }
                })
            };
            let arguments = launch.arguments.iter().map(argument).collect::<Result<Vec<_>, DriverError>>()?;
            self.launch(launch, &arguments)?;
        }
        for (buffer, &start) in buffers.iter_mut().zip(&starts) {
            self.device.copy_to_host(buffer, start.offset(skipped), Stream::DEFAULT)?;
        }
        starts.push(scratch);
        starts.into_iter().try_for_each(|start: DevicePointer| self.device.free(start))
    }

    /// What a device of this architecture launches, as the runtime decides it.
    pub fn chosen<'a>(&self, launch: &'a DeviceLaunch, placing: Placing) -> &'a DeviceLaunch {
        let is_aligned = match placing {
            Placing::Aligned => true,
            Placing::Behind(bytes) => bytes.is_multiple_of(16),
        };
        let alternative = launch.alternative.as_deref();
        alternative.filter(|_| is_aligned && self.architecture == Architecture::Sm90a).unwrap_or(launch)
    }

    fn launch(&mut self, launch: &DeviceLaunch, arguments: &[Argument]) -> Result<(), DriverError> {
        if !self.modules.contains_key(&launch.source) {
            let ptx = ptx(launch, self.architecture, self.sources);
            let image = ModuleImage { name: &launch.name, ptx: &ptx, cubin: &[] };
            self.modules.insert(launch.source.clone(), self.device.load(&image)?);
        }
        let kernel = self.device.kernel(self.modules[&launch.source], &launch.name)?;
        let shape = LaunchShape { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes };
        self.device.launch(kernel, shape, arguments, Stream::DEFAULT)
    }
}

fn tensor_map(map: &MappedTensor, base: DevicePointer) -> TensorMap {
    TensorMap {
        base,
        sizes: map.sizes.to_vec(),
        strides: map.strides.to_vec(),
        box_sizes: map.box_sizes.to_vec(),
        swizzle: Swizzle::Bytes128,
    }
}

/// The call without what only some devices launch.
pub fn without_alternatives(mut call: DeviceCall) -> DeviceCall {
    call.launches.iter_mut().for_each(|launch| launch.alternative = None);
    call
}

/// Whether a source has text of its own for sm_90a. Its tests run from both.
fn has_own_text(source: &str) -> bool {
    source.contains("#ifdef __CUDA_ARCH_FEAT_SM90_ALL")
}

/// What an emulator reads of a launch's source. What runs from sm_80's is sm_90a's too, unless the source says otherwise.
fn ptx(launch: &DeviceLaunch, architecture: Architecture, sources: Sources) -> String {
    let nvrtc = nvrtc().expect("whoever gets here has it");
    let source = &launch.source;
    let ptx =
        nvrtc.compile_ptx(Job { source, architecture }).unwrap_or_else(|error| panic!("{error}\n{source}"));
    match (architecture, sources) {
        (Architecture::Sm80, Sources::Sound) if !has_own_text(source) => {
            same_for_sm_90a(nvrtc, source, &ptx).to_owned()
        }
        (Architecture::Sm80 | Architecture::Sm90a | Architecture::Sm100a, _) => ptx,
    }
}

/// Compiles a launch's source, which must neither warn nor spill.
pub fn compiled(launch: &DeviceLaunch, architecture: Architecture) -> Binary {
    let nvrtc = nvrtc().expect("whoever gets here has it");
    let source = &launch.source;
    let binary =
        nvrtc.compile(Job { source, architecture }).unwrap_or_else(|error| panic!("{error}\n{source}"));
    let report = binary.report();
    let architecture = architecture.name();
    assert_eq!(report.warnings, [""; 0], "{architecture}\n{source}");
    let [kernel] = report.kernels.as_slice() else {
        panic!("{architecture}: {} kernels\n{source}", report.kernels.len())
    };
    assert!(kernel.is_in_registers() && kernel.registers > 0, "{architecture}: {kernel:?}");
    binary
}
