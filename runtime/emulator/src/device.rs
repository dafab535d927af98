//! The emulated device: memory, modules and launches behind [`CudaDriver`].
//!
//! Everything is done before a call returns, in the order of calls, whatever the streams; a fault is reported by the launch itself. That the
//! streams leave no other order that would do something else is checked: see `clocks` and `memory`'s history.

mod capture;
mod clocks;
mod work;

use crate::code::{Program, decode};
use crate::driver::{
    Argument, CudaDriver, DevicePointer, DriverError, Event, Graph, KernelHandle, LaunchShape, MemoryInfo,
    ModuleHandle, ModuleImage, Stream,
};
use crate::memory::{GlobalMemory, RaceCheck, Rule, StreamCheck};
use crate::ptx::{self, Initial, PtxError, Space, Variable};
use crate::run::Isa;
use crate::tensor_map::{TENSOR_MAP_BYTES, TensorMap};
use capture::{Capture, Recording};
use clocks::{Clocks, Recorded};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use work::{Labels, Work};

/// How an emulated device is made.
#[derive(Clone, Copy, Debug)]
pub struct EmulatorOptions {
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The most instructions of warps that one launch may run.
    pub budget: u64,
    /// Whether races in shared memory are looked for.
    pub races: RaceCheck,
    /// Whether accesses to device memory are looked for that no event orders between streams.
    pub streams: StreamCheck,
    /// What it says its compute capability is.
    pub capability: (u32, u32),
    /// The host's instructions to use.
    pub isa: Isa,
}

impl Default for EmulatorOptions {
    /// 16 GiB, of which the host holds what is allocated; sm_80; all checks; a budget of some minutes.
    fn default() -> EmulatorOptions {
        EmulatorOptions {
            memory_bytes: 16 << 30,
            budget: 1 << 33,
            races: RaceCheck::On,
            streams: StreamCheck::On,
            capability: (8, 0),
            isa: Isa::detect(),
        }
    }
}

/// An emulated device.
#[derive(Debug)]
pub struct Emulator {
    options: EmulatorOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    memory: GlobalMemory,
    modules: Vec<Option<Module>>,
    /// Kernels that were asked for: module and function.
    kernels: Vec<(usize, usize)>,
    clocks: Clocks,
    captures: Vec<Capture>,
    captures_begun: usize,
    graphs: Vec<Option<Recording>>,
    labels: Labels,
    instructions: u64,
    graph_launches: u64,
}

#[derive(Debug)]
struct Module {
    program: Arc<Program>,
    /// Where its variables lie.
    variables: Vec<u64>,
}

impl Default for Emulator {
    fn default() -> Emulator {
        Emulator::new(EmulatorOptions::default())
    }
}

impl Emulator {
    /// A new device with nothing on it.
    #[must_use]
    pub fn new(options: EmulatorOptions) -> Emulator {
        let state = State {
            memory: GlobalMemory::new(options.memory_bytes, options.streams),
            modules: Vec::new(),
            kernels: Vec::new(),
            clocks: Clocks::new(),
            captures: Vec::new(),
            captures_begun: 0,
            graphs: Vec::new(),
            labels: Labels::default(),
            instructions: 0,
            graph_launches: 0,
        };
        Emulator { options, state: Mutex::new(state) }
    }

    /// How many instructions warps have run on it so far.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.state().instructions
    }

    /// How many graphs were launched on it so far.
    #[must_use]
    pub fn graph_launches(&self) -> u64 {
        self.state().graph_launches
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a piece of work, or records it where its stream is captured.
    fn ask(&self, mut state: MutexGuard<'_, State>, work: &Work, stream: Stream) -> Result<(), DriverError> {
        state.clocks.known(stream)?;
        if state.recorded(work, stream)? {
            return Ok(());
        }
        state.perform(&self.options, work, stream)
    }
}

impl State {
    /// Device memory for a module's variables, with what they start as.
    fn place(&mut self, variables: &[Variable]) -> Result<HashMap<String, u64>, PtxError> {
        let mut addresses = HashMap::new();
        for variable in variables {
            let rule = match variable.space {
                Space::Global => Rule::ReadWrite,
                Space::Const => Rule::ReadOnly,
                Space::Shared | Space::Local | Space::Param | Space::Generic => continue,
            };
            let fail = |reason: &str| PtxError::new(variable.line, format!("`{}`: {reason}", variable.name));
            let length = variable.bytes() as usize;
            let address = self.memory.allocate(variable.bytes(), rule);
            let address = address.ok_or_else(|| fail("no device memory is left"))?;
            let Some(bytes) = self.memory.host_write(address, length) else { continue };
            bytes.fill(0);
            if let Initial::Bytes(initial) = &variable.initial {
                let target = bytes.get_mut(..initial.len()).ok_or_else(|| fail("more values than room"))?;
                target.copy_from_slice(initial);
            }
            addresses.insert(variable.name.clone(), address);
        }
        // Nothing knows these variables before the module is loaded.
        self.memory.forget();
        Ok(addresses)
    }

    fn decoded(&mut self, text: &str, capability: (u32, u32)) -> Result<Module, PtxError> {
        let module = ptx::parse(text)?;
        let digits: String = module.target.chars().filter(char::is_ascii_digit).collect();
        let wanted: u32 = digits.parse().unwrap_or(0);
        if wanted > capability.0 * 10 + capability.1 {
            let reason = format!(
                "the module is for {}; the device is sm_{}{}",
                module.target, capability.0, capability.1
            );
            return Err(PtxError::new(1, reason));
        }
        let addresses = self.place(&module.variables)?;
        let program = Arc::new(decode::decode(&module, &addresses)?);
        Ok(Module { program, variables: addresses.into_values().collect() })
    }
}

impl CudaDriver for Emulator {
    fn name(&self) -> String {
        "emulated CUDA device".to_owned()
    }

    fn capability(&self) -> (u32, u32) {
        self.options.capability
    }

    fn allocate(&self, bytes: u64) -> Result<DevicePointer, DriverError> {
        let memory = &mut self.state().memory;
        let free = memory.free_bytes();
        let allocated = memory.allocate(bytes, Rule::ReadWrite);
        allocated.map(DevicePointer).ok_or(DriverError::OutOfMemory { bytes, free })
    }

    fn memory(&self) -> Result<MemoryInfo, DriverError> {
        let memory = &self.state().memory;
        Ok(MemoryInfo { free: memory.free_bytes(), total: memory.capacity() })
    }

    fn free(&self, pointer: DevicePointer) -> Result<(), DriverError> {
        let mut state = self.state();
        state.clocks.wait_for_all();
        if state.memory.free(pointer.0) { Ok(()) } else { Err(DriverError::NotAllocated(pointer)) }
    }

    fn copy_to_device(&self, to: DevicePointer, from: &[u8], stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.clocks.known(stream)?;
        let (what, bytes) = ("a copy to the device", from.len() as u64);
        state.not_captured(what, stream)?;
        let target = state.memory.host_write(to.0, from.len());
        target.ok_or(DriverError::OutOfBounds { what, at: to, bytes })?.copy_from_slice(from);
        state.settle(what, stream)
    }

    fn copy_to_host(&self, to: &mut [u8], from: DevicePointer, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.clocks.known(stream)?;
        let (what, bytes) = ("a copy to the host", to.len() as u64);
        state.not_captured(what, stream)?;
        let source = state.memory.host_read(from.0, to.len());
        let (source, missing) = source.ok_or(DriverError::OutOfBounds { what, at: from, bytes })?;
        to.copy_from_slice(source);
        state.settle(what, stream)?;
        state.clocks.wait_for(stream);
        match missing {
            Some(at) => Err(DriverError::Uninitialised { what, at: DevicePointer(at) }),
            None => Ok(()),
        }
    }

    fn copy_on_device(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError> {
        self.ask(self.state(), &Work::Copy { to, from, bytes }, stream)
    }

    fn fill(&self, to: DevicePointer, value: u8, bytes: u64, stream: Stream) -> Result<(), DriverError> {
        self.ask(self.state(), &Work::Fill { to, value, bytes }, stream)
    }

    fn load(&self, image: &ModuleImage<'_>) -> Result<ModuleHandle, DriverError> {
        let mut state = self.state();
        let module = state
            .decoded(image.ptx, self.options.capability)
            .map_err(|error| DriverError::Module { name: image.name.to_owned(), error })?;
        state.modules.push(Some(module));
        Ok(ModuleHandle(state.modules.len() as u64 - 1))
    }

    fn unload(&self, module: ModuleHandle) -> Result<(), DriverError> {
        let mut state = self.state();
        let slot = state.modules.get_mut(module.0 as usize);
        let module = slot.and_then(Option::take).ok_or(DriverError::BadHandle("module"))?;
        state.clocks.wait_for_all();
        for variable in module.variables {
            state.memory.free(variable);
        }
        Ok(())
    }

    fn kernel(&self, module: ModuleHandle, name: &str) -> Result<KernelHandle, DriverError> {
        let mut state = self.state();
        let index = module.0 as usize;
        let found = state.modules.get(index).and_then(Option::as_ref);
        let program = &found.ok_or(DriverError::BadHandle("module"))?.program;
        let function = program.kernels.get(name);
        let function = *function.ok_or_else(|| DriverError::NoSuchKernel(name.to_owned()))?;
        state.kernels.push((index, function));
        Ok(KernelHandle(state.kernels.len() as u64 - 1))
    }

    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES], DriverError> {
        match self.options.capability {
            (0..=8, _) => {
                Err(DriverError::BadTensorMap("the device has none, being older than 9.0".to_owned()))
            }
            _ => map.encode(),
        }
    }

    fn launch(
        &self,
        kernel: KernelHandle,
        shape: LaunchShape,
        arguments: &[Argument],
        stream: Stream,
    ) -> Result<(), DriverError> {
        let state = self.state();
        let work = state.prepared(&self.options, kernel, shape, arguments)?;
        self.ask(state, &work, stream)
    }

    fn create_stream(&self) -> Result<Stream, DriverError> {
        Ok(self.state().clocks.create_stream())
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        Ok(self.state().clocks.create_event())
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.not_captured("the end of a stream", stream)?;
        state.clocks.destroy_stream(stream)
    }

    fn destroy_event(&self, event: Event) -> Result<(), DriverError> {
        self.state().clocks.destroy_event(event)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        self.state().record(event, stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.state().wait(stream, event)
    }

    fn elapsed_ms(&self, from: Event, to: Event) -> Result<f32, DriverError> {
        let state = self.state();
        let (from, to) = (state.clocks.recorded(from)?, state.clocks.recorded(to)?);
        let (Recorded::At(from), Recorded::At(to)) = (from, to) else {
            return Err(DriverError::Device("an event that was never recorded has no time".to_owned()));
        };
        Ok(to.at.duration_since(from.at).as_secs_f32() * 1e3)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.clocks.known(stream)?;
        state.not_captured("waiting for a stream", stream)?;
        state.clocks.wait_for(stream);
        Ok(())
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), DriverError> {
        self.state().begin_capture(stream)
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph, DriverError> {
        self.state().end_capture(stream)
    }

    fn set_arguments(&self, graph: Graph, launch: usize, arguments: &[Argument]) -> Result<(), DriverError> {
        self.state().set_arguments(graph, launch, arguments)
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), DriverError> {
        self.state().launch_graph(&self.options, graph, stream)
    }

    fn destroy_graph(&self, graph: Graph) -> Result<(), DriverError> {
        self.state().destroy_graph(graph)
    }
}
