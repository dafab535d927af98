//! An emulator for CUDA kernels, and what a CUDA device is to the runtime.
//!
//! Owns [`CudaDriver`], the calls that the runtime makes of any device; PTX as NVRTC emits it; and [`Emulator`], a device that runs
//! PTX on the CPU, checks every access, and says which thread did wrong on which line. Knows nothing of models, programs,
//! ranks, or where kernels come from.

mod code;
mod device;
pub mod driver;
pub mod fault;
mod memory;
pub mod ptx;
mod run;

pub use device::{Emulator, EmulatorOptions};
pub use driver::{
    Argument, CudaDriver, DevicePointer, DriverError, Event, KernelHandle, LaunchShape, ModuleHandle,
    ModuleImage, Stream,
};
pub use fault::{Access, FaultKind, LaunchFault, SourceLine};
pub use memory::RaceCheck;
pub use run::Isa;
