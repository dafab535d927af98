//! The emulated device: memory, modules and launches behind [`CudaDriver`].
//!
//! Everything is done before a call returns, in the order of calls, whatever the streams; a fault is reported by the launch itself.

use crate::code::{Program, STATIC_SHARED, decode};
use crate::driver::{
    Argument, CudaDriver, DevicePointer, DriverError, Event, KernelHandle, LaunchShape, ModuleHandle,
    ModuleImage, Stream,
};
use crate::memory::{GlobalMemory, RaceCheck, Rule};
use crate::ptx::{self, Initial, PtxError, Space, Variable};
use crate::run::{Isa, Launch, launch};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How an emulated device is made.
#[derive(Clone, Copy, Debug)]
pub struct EmulatorOptions {
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The most instructions of warps that one launch may run.
    pub budget: u64,
    /// Whether races in shared memory are looked for.
    pub races: RaceCheck,
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
    modules: Vec<Arc<Program>>,
    /// Kernels that were asked for: module and function.
    kernels: Vec<(usize, usize)>,
    streams: u64,
    events: Vec<Option<Instant>>,
    instructions: u64,
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
            memory: GlobalMemory::new(options.memory_bytes),
            modules: Vec::new(),
            kernels: Vec::new(),
            streams: 1,
            events: Vec::new(),
            instructions: 0,
        };
        Emulator { options, state: Mutex::new(state) }
    }

    /// How many instructions warps have run on it so far.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.state().instructions
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most shared memory that a block may have.
    fn shared_limit(&self) -> u64 {
        match self.options.capability {
            (8, 0 | 7) => 163 << 10,
            (8, _) | (12, _) => 99 << 10,
            _ => 227 << 10,
        }
    }

    fn startable(&self, program: &Program, kernel: usize, shape: &LaunchShape) -> Result<(), String> {
        let code = &program.functions[kernel];
        let threads = shape.block.iter().try_fold(1_u32, |product, size| product.checked_mul(*size));
        let Some(threads @ 1..=1024) = threads else {
            return Err(format!("a block of {:?} threads; it has 1 to 1024", shape.block));
        };
        if shape.block[2] > 64 {
            return Err(format!("{} threads in z; there are 64 at most", shape.block[2]));
        }
        if let Some(most) = code.most_threads.filter(|most| threads > *most) {
            return Err(format!("a block of {threads} threads; the kernel was compiled for {most}"));
        }
        let [x, y, z] = shape.grid;
        if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Err(format!("a grid of {:?} blocks", shape.grid));
        }
        let fixed: u64 = code.shared.iter().map(|region| region.bytes).sum();
        let all = fixed + u64::from(shape.shared_bytes);
        if fixed > 48 << 10 {
            return Err(format!("{fixed} bytes of static shared memory; there are 48 KiB at most"));
        }
        if all > self.shared_limit().min(STATIC_SHARED) {
            return Err(format!("{all} bytes of shared memory; there are {}", self.shared_limit()));
        }
        Ok(())
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
        Ok(addresses)
    }

    fn decoded(&mut self, text: &str, capability: (u32, u32)) -> Result<Program, PtxError> {
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
        decode::decode(&module, &addresses)
    }

    fn known_event(&mut self, event: Event) -> Result<&mut Option<Instant>, DriverError> {
        self.events.get_mut(event.0 as usize).ok_or(DriverError::BadHandle("event"))
    }

    fn known_stream(&self, stream: Stream) -> Result<(), DriverError> {
        if stream.0 < self.streams { Ok(()) } else { Err(DriverError::BadHandle("stream")) }
    }
}

/// The arguments as the kernel's parameters lie.
fn pack(program: &Program, kernel: usize, arguments: &[Argument]) -> Result<Vec<u8>, String> {
    let code = &program.functions[kernel];
    if arguments.len() != code.params.len() {
        return Err(format!("{} arguments; it takes {}", arguments.len(), code.params.len()));
    }
    let mut packed = vec![0; code.param_bytes as usize];
    for (index, (argument, field)) in arguments.iter().zip(&code.params).enumerate() {
        let bytes = argument.to_bytes();
        if bytes.len() as u64 != field.bytes {
            return Err(format!("argument {index} has {} bytes; it takes {}", bytes.len(), field.bytes));
        }
        let start = field.offset as usize;
        packed[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(packed)
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

    fn free(&self, pointer: DevicePointer) -> Result<(), DriverError> {
        if self.state().memory.free(pointer.0) { Ok(()) } else { Err(DriverError::NotAllocated(pointer)) }
    }

    fn copy_to_device(&self, to: DevicePointer, from: &[u8], stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.known_stream(stream)?;
        let (what, bytes) = ("a copy to the device", from.len() as u64);
        let target = state.memory.host_write(to.0, from.len());
        target.ok_or(DriverError::OutOfBounds { what, at: to, bytes })?.copy_from_slice(from);
        Ok(())
    }

    fn copy_to_host(&self, to: &mut [u8], from: DevicePointer, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.known_stream(stream)?;
        let (what, bytes) = ("a copy to the host", to.len() as u64);
        let source = state.memory.host_read(from.0, to.len());
        let (source, missing) = source.ok_or(DriverError::OutOfBounds { what, at: from, bytes })?;
        if let Some(at) = missing {
            return Err(DriverError::Uninitialised { what, at: DevicePointer(at) });
        }
        to.copy_from_slice(source);
        Ok(())
    }

    fn copy_on_device(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let mut state = self.state();
        state.known_stream(stream)?;
        let what = "a copy on the device";
        for at in [from, to] {
            if !state.memory.holds(at.0, bytes as usize) {
                return Err(DriverError::OutOfBounds { what, at, bytes });
            }
        }
        state.memory.copy(to.0, from.0, bytes as usize);
        Ok(())
    }

    fn fill(&self, to: DevicePointer, value: u8, bytes: u64, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.known_stream(stream)?;
        let target = state.memory.host_write(to.0, bytes as usize);
        target.ok_or(DriverError::OutOfBounds { what: "a fill", at: to, bytes })?.fill(value);
        Ok(())
    }

    fn load(&self, image: &ModuleImage<'_>) -> Result<ModuleHandle, DriverError> {
        let mut state = self.state();
        let program = state
            .decoded(image.ptx, self.options.capability)
            .map_err(|error| DriverError::Module { name: image.name.to_owned(), error })?;
        state.modules.push(Arc::new(program));
        Ok(ModuleHandle(state.modules.len() as u64 - 1))
    }

    fn kernel(&self, module: ModuleHandle, name: &str) -> Result<KernelHandle, DriverError> {
        let mut state = self.state();
        let index = module.0 as usize;
        let program = state.modules.get(index).ok_or(DriverError::BadHandle("module"))?;
        let function = program.kernels.get(name);
        let function = *function.ok_or_else(|| DriverError::NoSuchKernel(name.to_owned()))?;
        state.kernels.push((index, function));
        Ok(KernelHandle(state.kernels.len() as u64 - 1))
    }

    fn launch(
        &self,
        kernel: KernelHandle,
        shape: LaunchShape,
        arguments: &[Argument],
        stream: Stream,
    ) -> Result<(), DriverError> {
        let mut state = self.state();
        state.known_stream(stream)?;
        let found = state.kernels.get(kernel.0 as usize).copied();
        let (module, kernel) = found.ok_or(DriverError::BadHandle("kernel"))?;
        let program = Arc::clone(&state.modules[module]);
        let prepared = self
            .startable(&program, kernel, &shape)
            .and_then(|()| pack(&program, kernel, arguments))
            .map_err(|reason| DriverError::BadLaunch {
                kernel: program.functions[kernel].name.clone(),
                reason,
            })?;
        let ran = launch(Launch {
            program: &program,
            kernel,
            shape,
            params: &prepared,
            global: &mut state.memory,
            isa: self.options.isa,
            budget: self.options.budget,
            races: self.options.races,
        });
        state.instructions += ran.map_err(DriverError::Fault)?;
        Ok(())
    }

    fn create_stream(&self) -> Result<Stream, DriverError> {
        let mut state = self.state();
        state.streams += 1;
        Ok(Stream(state.streams - 1))
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        let mut state = self.state();
        state.events.push(None);
        Ok(Event(state.events.len() as u64 - 1))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state();
        state.known_stream(stream)?;
        *state.known_event(event)? = Some(Instant::now());
        Ok(())
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let mut state = self.state();
        state.known_stream(stream)?;
        state.known_event(event)?;
        Ok(())
    }

    fn elapsed_ms(&self, from: Event, to: Event) -> Result<f32, DriverError> {
        let mut state = self.state();
        let (from, to) = (*state.known_event(from)?, *state.known_event(to)?);
        let (Some(from), Some(to)) = (from, to) else {
            return Err(DriverError::Device("an event that was never recorded has no time".to_owned()));
        };
        Ok(to.duration_since(from).as_secs_f32() * 1e3)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        self.state().known_stream(stream)
    }
}
