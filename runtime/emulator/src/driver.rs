//! What the runtime asks of a CUDA device, whichever it is: the emulator here, a GPU through the driver's library elsewhere.
//! Owns the words both share (pointers, handles, launch shapes, arguments, errors) and no behaviour.
//!
//! Everything on one stream happens in the order it was asked for. Between streams only events order. A call that takes a
//! stream may return before it is done, except that host memory is only borrowed for the call. What a thread asks for
//! happens behind all that this thread has waited for; what one thread leaves to another needs an event, or a wait of both.

use crate::fault::LaunchFault;
use crate::ptx::PtxError;
use crate::tensor_map::{TENSOR_MAP_BYTES, TensorMap};
use std::fmt;

/// An address in device memory. Arithmetic on it is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePointer(pub u64);

impl DevicePointer {
    /// The address this many bytes behind.
    #[must_use]
    pub fn offset(self, bytes: u64) -> DevicePointer {
        DevicePointer(self.0.wrapping_add(bytes))
    }
}

/// A loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModuleHandle(pub u64);

/// A kernel of a loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelHandle(pub u64);

/// An order of work. [`Stream::DEFAULT`] is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

impl Stream {
    /// The stream that needs no creation.
    pub const DEFAULT: Stream = Stream(0);
}

/// A point in a stream's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// What streams were asked to do, recorded to be done again and again; see [`CudaDriver::begin_capture`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Graph(pub u64);

/// How much memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that are free, in any number of pieces.
    pub free: u64,
    /// Bytes that there are.
    pub total: u64,
}

/// What a module is loaded from. A real device takes the machine code where it is of its architecture and the PTX
/// otherwise; the emulator takes the PTX.
#[derive(Clone, Copy, Debug)]
pub struct ModuleImage<'a> {
    /// What to call it in messages.
    pub name: &'a str,
    /// The text that NVRTC made.
    pub ptx: &'a str,
    /// Machine code; may be empty.
    pub cubin: &'a [u8],
}

/// Sizes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// Blocks and threads in x alone, no dynamic shared memory.
    #[must_use]
    pub fn linear(blocks: u32, threads: u32) -> LaunchShape {
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// An argument of a kernel. Its size must be that of the parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A pointer.
    Pointer(DevicePointer),
    /// A 32-bit unsigned integer.
    U32(u32),
    /// A 32-bit signed integer.
    I32(i32),
    /// A 64-bit unsigned integer.
    U64(u64),
    /// A 64-bit signed integer.
    I64(i64),
    /// A float.
    F32(f32),
    /// A double.
    F64(f64),
    /// Anything passed by value, as it lies in memory.
    Bytes(Vec<u8>),
}

impl Argument {
    /// The argument as it lies in memory.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Argument::Pointer(pointer) => pointer.0.to_le_bytes().to_vec(),
            Argument::U32(value) => value.to_le_bytes().to_vec(),
            Argument::I32(value) => value.to_le_bytes().to_vec(),
            Argument::U64(value) => value.to_le_bytes().to_vec(),
            Argument::I64(value) => value.to_le_bytes().to_vec(),
            Argument::F32(value) => value.to_le_bytes().to_vec(),
            Argument::F64(value) => value.to_le_bytes().to_vec(),
            Argument::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// What went wrong at a device.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverError {
    /// No memory of this size is left.
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
        /// What is free, in any number of pieces.
        free: u64,
    },
    /// A pointer to free that is the start of no allocation.
    NotAllocated(DevicePointer),
    /// A copy or a fill that leaves its allocation.
    OutOfBounds {
        /// What was tried.
        what: &'static str,
        /// Where it began.
        at: DevicePointer,
        /// How many bytes it wanted.
        bytes: u64,
    },
    /// A copy from bytes that nothing has written.
    Uninitialised {
        /// What was tried.
        what: &'static str,
        /// The first such byte.
        at: DevicePointer,
    },
    /// A module that can't be loaded.
    Module {
        /// Its name.
        name: String,
        /// Why.
        error: PtxError,
    },
    /// A kernel that its module does not hold.
    NoSuchKernel(String),
    /// A handle that this driver never gave out, or that is gone.
    BadHandle(&'static str),
    /// A launch that no device could start.
    BadLaunch {
        /// The kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// A tensor map that no device takes, or this one can't make.
    BadTensorMap(String),
    /// A fault while a kernel ran.
    Fault(Box<LaunchFault>),
    /// Two streams touch the same memory, one of them writes, and no event orders them.
    Race(Box<StreamRace>),
    /// A call that can't be recorded while a stream is captured, or a capture that can't end.
    Capture(String),
    /// What a kernel of ours did wrong, as a device's own library tells it; nothing more can be done with the device.
    Crashed(String),
    /// What a device's own library says.
    Device(String),
}

/// Two accesses from different streams that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRace {
    /// The first byte that both touch.
    pub at: DevicePointer,
    /// The access that was asked for last.
    pub late: StreamAccess,
    /// The other.
    pub early: StreamAccess,
}

/// One side of a [`StreamRace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAccess {
    /// What touched the memory: a kernel by name, a copy, a fill.
    pub what: String,
    /// On which stream.
    pub stream: Stream,
    /// Whether it wrote.
    pub wrote: bool,
}

impl fmt::Display for StreamRace {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |access: &StreamAccess| if access.wrote { "writes" } else { "reads" };
        let (late, early) = (&self.late, &self.early);
        write!(
            to,
            "{} on stream {} {} {:#x}, which {} on stream {} {}, and no event orders the two",
            late.what,
            late.stream.0,
            verb(late),
            self.at.0,
            early.what,
            early.stream.0,
            verb(early)
        )
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::OutOfMemory { bytes, free } => {
                write!(to, "{bytes} bytes of device memory are asked for and {free} are free")
            }
            DriverError::NotAllocated(at) => write!(to, "{:#x} is the start of no allocation", at.0),
            DriverError::OutOfBounds { what, at, bytes } => {
                write!(to, "{what} of {bytes} bytes at {:#x} leaves its allocation", at.0)
            }
            DriverError::Uninitialised { what, at } => {
                write!(to, "{what} reads {:#x}, which nothing has written", at.0)
            }
            DriverError::Module { name, error } => write!(to, "module `{name}` can't be loaded: {error}"),
            DriverError::NoSuchKernel(name) => write!(to, "the module has no kernel `{name}`"),
            DriverError::BadHandle(kind) => write!(to, "a {kind} that this device does not have"),
            DriverError::BadLaunch { kernel, reason } => write!(to, "`{kernel}` can't be launched: {reason}"),
            DriverError::Fault(fault) => fault.fmt(to),
            DriverError::Race(race) => race.fmt(to),
            DriverError::BadTensorMap(reason) => write!(to, "a tensor map can't be made: {reason}"),
            DriverError::Device(reason) | DriverError::Capture(reason) | DriverError::Crashed(reason) => {
                to.write_str(reason)
            }
        }
    }
}

impl std::error::Error for DriverError {}

impl From<LaunchFault> for DriverError {
    fn from(fault: LaunchFault) -> DriverError {
        DriverError::Fault(Box::new(fault))
    }
}

/// One CUDA device. Threads may share it.
///
/// A fault of a kernel may be reported by a later call than the launch, as on a real device; [`CudaDriver::synchronize`] reports
/// all there are.
pub trait CudaDriver: Send + Sync {
    /// What the device is, for people.
    fn name(&self) -> String;

    /// Its compute capability, major and minor: `(9, 0)` of an H200. Machine code must be for it.
    fn capability(&self) -> (u32, u32);

    /// Device memory, aligned to 256 bytes at least. Its contents have no value.
    ///
    /// # Errors
    /// Where not as much is left.
    fn allocate(&self, bytes: u64) -> Result<DevicePointer, DriverError>;

    /// How much memory there is.
    ///
    /// # Errors
    /// What the device says.
    fn memory(&self) -> Result<MemoryInfo, DriverError>;

    /// Gives an allocation back, once all that was asked of the device is done.
    ///
    /// # Errors
    /// Where it is none.
    fn free(&self, pointer: DevicePointer) -> Result<(), DriverError>;

    /// Copies from the host.
    ///
    /// # Errors
    /// Where the device's side leaves its allocation.
    fn copy_to_device(&self, to: DevicePointer, from: &[u8], stream: Stream) -> Result<(), DriverError>;

    /// Copies to the host; the bytes are there when it returns.
    ///
    /// # Errors
    /// Where the device's side leaves its allocation; faults of what ran before on the stream.
    fn copy_to_host(&self, to: &mut [u8], from: DevicePointer, stream: Stream) -> Result<(), DriverError>;

    /// Copies within the device. The two must not overlap.
    ///
    /// # Errors
    /// Where either side leaves its allocation.
    fn copy_on_device(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError>;

    /// Sets bytes to a value.
    ///
    /// # Errors
    /// Where they leave their allocation.
    fn fill(&self, to: DevicePointer, value: u8, bytes: u64, stream: Stream) -> Result<(), DriverError>;

    /// Loads a module.
    ///
    /// # Errors
    /// Where the image is not for this device, or holds what it does not know.
    fn load(&self, image: &ModuleImage<'_>) -> Result<ModuleHandle, DriverError>;

    /// Gives a module back; its kernels are gone.
    ///
    /// # Errors
    /// A handle that isn't the device's.
    fn unload(&self, module: ModuleHandle) -> Result<(), DriverError>;

    /// A kernel of a module by its name.
    ///
    /// # Errors
    /// Where the module has none of this name.
    fn kernel(&self, module: ModuleHandle, name: &str) -> Result<KernelHandle, DriverError>;

    /// What stands for a tensor map where a kernel takes one, as an argument that is a multiple of 64 bytes into those before it. Nothing is
    /// asked of the memory, which only must be there when the kernel runs.
    ///
    /// # Errors
    /// There can be no such map, or the device has none: before 9.0.
    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES], DriverError>;

    /// Starts a kernel.
    ///
    /// # Errors
    /// Where shape or arguments are not the kernel's; faults of what ran before.
    fn launch(
        &self,
        kernel: KernelHandle,
        shape: LaunchShape,
        arguments: &[Argument],
        stream: Stream,
    ) -> Result<(), DriverError>;

    /// A new stream.
    ///
    /// # Errors
    /// What the device says.
    fn create_stream(&self) -> Result<Stream, DriverError>;

    /// A new event, at no point yet.
    ///
    /// # Errors
    /// What the device says.
    fn create_event(&self) -> Result<Event, DriverError>;

    /// Gives a stream back, once it has done all.
    ///
    /// # Errors
    /// A handle that isn't the device's; [`Stream::DEFAULT`].
    fn destroy_stream(&self, stream: Stream) -> Result<(), DriverError>;

    /// Gives an event back.
    ///
    /// # Errors
    /// A handle that isn't the device's.
    fn destroy_event(&self, event: Event) -> Result<(), DriverError>;

    /// Puts the event behind all that was asked of the stream.
    ///
    /// # Errors
    /// A handle that isn't the device's.
    fn record(&self, event: Event, stream: Stream) -> Result<(), DriverError>;

    /// Lets what is asked of the stream from now on wait for the event's last point.
    ///
    /// # Errors
    /// A handle that isn't the device's.
    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Milliseconds between two recorded events, once both are reached. Under emulation the host's time.
    ///
    /// # Errors
    /// Where one was never recorded.
    fn elapsed_ms(&self, from: Event, to: Event) -> Result<f32, DriverError>;

    /// Returns when the stream has done all.
    ///
    /// # Errors
    /// The first fault on it.
    fn synchronize(&self, stream: Stream) -> Result<(), DriverError>;

    /// From now on what the stream is asked to do is recorded and not done; so with any stream that waits for an event that was
    /// recorded there. Only the calling thread may use these streams until the capture ends.
    ///
    /// # Errors
    /// The stream is captured already.
    fn begin_capture(&self, stream: Stream) -> Result<(), DriverError>;

    /// Ends the capture that began on this stream. The graph's launches are numbered in the order in which they were asked for.
    ///
    /// # Errors
    /// What was asked for meanwhile can't be recorded, or another stream that joined has not been waited for.
    fn end_capture(&self, stream: Stream) -> Result<Graph, DriverError>;

    /// Changes the arguments of one launch of a graph, for all times that it is done from now on.
    ///
    /// # Errors
    /// There is no such launch, or the arguments are not the kernel's.
    fn set_arguments(&self, graph: Graph, launch: usize, arguments: &[Argument]) -> Result<(), DriverError>;

    /// Does what was recorded, in the order that streams and events gave it, as one piece of work of a stream.
    ///
    /// # Errors
    /// As those of what was recorded.
    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), DriverError>;

    /// Gives a graph back.
    ///
    /// # Errors
    /// A handle that isn't the device's.
    fn destroy_graph(&self, graph: Graph) -> Result<(), DriverError>;
}
