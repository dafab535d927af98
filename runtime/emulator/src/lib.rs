//! An emulator for CUDA kernels, and what a CUDA device is to the runtime.
//!
//! Owns [`CudaDriver`], the calls that the runtime makes of any device, and PTX as NVRTC emits it. Knows nothing of models,
//! programs, ranks, or where kernels come from.

pub mod driver;
pub mod fault;
pub mod ptx;

pub use driver::{
    Argument, CudaDriver, DevicePointer, DriverError, Event, KernelHandle, LaunchShape, ModuleHandle,
    ModuleImage, Stream,
};
pub use fault::{Access, FaultKind, LaunchFault, SourceLine};
