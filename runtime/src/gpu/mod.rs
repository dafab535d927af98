//! A GPU behind NVIDIA's driver library: the real [`CudaDriver`].
//!
//! The library is looked for and checked before its first call, so that nothing panics where it, a function, a device or the right version is missing:
//! the message says what was looked for, where, and how to get it. Handles that were given out are checked before the library sees what is behind
//! them. One context, the device's primary one, is made current on each thread that asks for something.
//!
//! A GPU reports what a kernel did wrong with some later call: the message names the last kernel that the stream was given, which need not be the one.

mod calls;
mod graphs;
mod launch;
mod library;
mod modules;
mod staging;
mod tables;
mod tensor_maps;

pub use library::{Opened, Search, Wanted};

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::RuntimeError;
use calls::*;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUresult, CUstream, CUstream_flags, CUuuid,
};
use dtlc_emulator::{
    Argument, CudaDriver, DevicePointer, DriverError, Event, Graph, KernelHandle, LaunchShape, MemoryInfo,
    ModuleHandle, ModuleImage, Stream, TENSOR_MAP_BYTES, TensorMap,
};
use staging::Staging;
use tables::{StreamEntry, Tables};

/// Which of the GPUs that the driver shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordinal {
    /// The one of this number.
    Exactly(u32),
    /// That of a process by its number on its host: the only one, where a launcher shows each process its own.
    OfProcess(u32),
}

/// A GPU.
pub struct Gpu {
    name: String,
    device: CUdevice,
    context: CUcontext,
    capability: (u32, u32),
    /// The version of CUDA that the driver is for: 13000 of 13.0.
    version: i32,
    tables: Mutex<Tables>,
    staging: Staging,
}

// SAFETY: the context may be used from any thread once it is current there, which `enter` sees to; all else is
// behind locks.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a GPU.
    ///
    /// # Errors
    /// The library, a function in it or the device is missing: what was looked for, where, and how to get it.
    pub fn open(search: &Search, ordinal: Ordinal) -> Result<Self, RuntimeError> {
        let path = open(search).map_err(RuntimeError::Fault)?;
        let said = |error: DriverError| RuntimeError::Fault(format!("{}: {error}", path.display()));
        // SAFETY: the library is open, and this is its first call.
        check(unsafe { cuInit(0) }, || "starting the driver".to_owned()).map_err(said)?;
        let (mut version, mut count) = (0, 0);
        // SAFETY: the pointers are to integers of ours.
        let told = unsafe { [cuDriverGetVersion(&raw mut version), cuDeviceGetCount(&raw mut count)] };
        for code in told {
            check(code, || "asking the driver what there is".to_owned()).map_err(said)?;
        }
        let number = match ordinal {
            Ordinal::OfProcess(_) if count == 1 => 0,
            Ordinal::OfProcess(number) | Ordinal::Exactly(number) => number,
        };
        if i64::from(number) >= i64::from(count) {
            return Err(RuntimeError::Fault(format!(
                "GPU {number} is asked for, and the driver ({}) shows {count}; `nvidia-smi -L` lists them, and \
                 CUDA_VISIBLE_DEVICES or a container may hide some",
                path.display()
            )));
        }
        Self::of_number(number, version).map_err(said)
    }

    fn of_number(number: u32, version: i32) -> Result<Self, DriverError> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: here and below, the pointers are to variables of ours.
        let got = unsafe { cuDeviceGet(&raw mut device, number as i32) };
        check(got, || format!("opening GPU {number}"))?;
        let mut text = [0 as c_char; 256];
        // SAFETY: the library writes at most as many characters as it is told.
        let named = unsafe { cuDeviceGetName(text.as_mut_ptr(), text.len() as i32 - 1, device) };
        check(named, || format!("asking GPU {number} for its name"))?;
        // SAFETY: the last character was left 0.
        let name = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |attribute: CUdevice_attribute| {
            let mut value = 0;
            // SAFETY: as above.
            let told = unsafe { cuDeviceGetAttribute(&raw mut value, attribute, device) };
            check(told, || format!("asking GPU {number} what it is")).map(|()| value as u32)
        };
        let capability = (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        // SAFETY: as above.
        let retained = unsafe { cuDevicePrimaryCtxRetain(&raw mut context, device) };
        check(retained, || format!("using GPU {number}"))?;
        let name = format!("{name} (GPU {number}, driver for CUDA {})", version_text(version));
        let (tables, staging) = (Mutex::default(), Staging::default());
        let gpu = Self { name, device, context, capability, version, tables, staging };
        // The default stream is one like all others: nothing waits for it unasked.
        gpu.create_stream()?;
        Ok(gpu)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What no other GPU is called, on any machine.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn unique_name(&self) -> Result<[u8; 16], DriverError> {
        let mut name = CUuuid { bytes: [0; 16] };
        // SAFETY: the pointer is to a variable of ours.
        let told = unsafe { cuDeviceGetUuid_v2(&raw mut name, self.device) };
        check(told, || format!("asking {} for its name", self.name))?;
        Ok(name.bytes.map(|byte| byte as u8))
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until this is dropped.
        check(unsafe { cuCtxSetCurrent(self.context) }, || format!("using {}", self.name))
    }

    /// A stream's handle.
    pub(crate) fn raw(&self, stream: Stream) -> Result<CUstream, DriverError> {
        self.enter()?;
        Ok(self.tables().stream(stream)?.raw)
    }

    /// Whether all is done that an event was recorded behind.
    ///
    /// # Errors
    /// What went wrong before it.
    pub fn is_reached(&self, event: Event) -> Result<bool, DriverError> {
        self.enter()?;
        let event = self.tables().event(event)?;
        // SAFETY: the event is alive.
        match unsafe { cuEventQuery(event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check(code, || "asking for an event".to_owned()).map(|()| true),
        }
    }

    /// What went wrong on a stream, with the last kernel that it was given.
    fn on_stream(&self, stream: Stream, what: &str) -> String {
        let mut tables = self.tables();
        let last = tables.stream(stream).ok().and_then(|entry| entry.last.clone());
        let last = last.map_or_else(String::new, |last| format!(", which was last given `{last}`"));
        format!("{what} on stream {}{last},", stream.0)
    }
}

/// A version as people write it.
fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl CudaDriver for Gpu {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn capability(&self) -> (u32, u32) {
        self.capability
    }

    fn allocate(&self, bytes: u64) -> Result<DevicePointer, DriverError> {
        self.enter()?;
        let mut pointer = 0;
        // SAFETY: the pointer is to a variable of ours.
        let allocated = unsafe { cuMemAlloc_v2(&raw mut pointer, bytes.max(1) as usize) };
        if allocated == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DriverError::OutOfMemory { bytes, free: self.memory()?.free });
        }
        check(allocated, || format!("allocating {bytes} bytes"))?;
        self.tables().allocations.insert(pointer, bytes);
        Ok(DevicePointer(pointer))
    }

    fn memory(&self) -> Result<MemoryInfo, DriverError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to variables of ours.
        let told = unsafe { cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check(told, || "asking for free memory".to_owned())?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn free(&self, pointer: DevicePointer) -> Result<(), DriverError> {
        self.enter()?;
        let known = self.tables().allocations.remove(&pointer.0);
        known.ok_or(DriverError::NotAllocated(pointer))?;
        // SAFETY: the allocation is alive, and nothing leads to it any more; the library waits for what uses it.
        check(unsafe { cuMemFree_v2(pointer.0) }, || "giving memory back".to_owned())
    }

    fn copy_to_device(&self, to: DevicePointer, from: &[u8], stream: Stream) -> Result<(), DriverError> {
        let raw = self.raw(stream)?;
        self.not_captured("a copy to the device", stream, raw)?;
        self.tables().within("a copy to the device", to, from.len() as u64)?;
        self.staging.write(to, from, raw)
    }

    fn copy_to_host(&self, to: &mut [u8], from: DevicePointer, stream: Stream) -> Result<(), DriverError> {
        let raw = self.raw(stream)?;
        self.not_captured("a copy to the host", stream, raw)?;
        self.tables().within("a copy to the host", from, to.len() as u64)?;
        self.staging.read(to, from, raw)
    }

    fn copy_on_device(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let raw = self.raw(stream)?;
        let tables = self.tables();
        for at in [from, to] {
            tables.within("a copy on the device", at, bytes)?;
        }
        // SAFETY: both ranges lie in allocations, and the stream is alive.
        let copied = unsafe { cuMemcpyDtoDAsync_v2(to.0, from.0, bytes as usize, raw) };
        check(copied, || format!("a copy of {bytes} bytes on the device"))
    }

    fn fill(&self, to: DevicePointer, value: u8, bytes: u64, stream: Stream) -> Result<(), DriverError> {
        let raw = self.raw(stream)?;
        self.tables().within("a fill", to, bytes)?;
        // SAFETY: the range lies in an allocation, and the stream is alive.
        let filled = unsafe { cuMemsetD8Async(to.0, value, bytes as usize, raw) };
        check(filled, || format!("a fill of {bytes} bytes"))
    }

    fn load(&self, image: &ModuleImage<'_>) -> Result<ModuleHandle, DriverError> {
        self.load_module(image)
    }

    fn unload(&self, module: ModuleHandle) -> Result<(), DriverError> {
        self.unload_module(module)
    }

    fn kernel(&self, module: ModuleHandle, name: &str) -> Result<KernelHandle, DriverError> {
        self.find_kernel(module, name)
    }

    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES], DriverError> {
        self.encoded(map)
    }

    fn launch(
        &self,
        kernel: KernelHandle,
        shape: LaunchShape,
        arguments: &[Argument],
        stream: Stream,
    ) -> Result<(), DriverError> {
        self.start(kernel, shape, arguments, stream)
    }

    fn create_stream(&self) -> Result<Stream, DriverError> {
        self.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a variable of ours.
        let made = unsafe { cuStreamCreate(&raw mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as u32) };
        check(made, || "creating a stream".to_owned())?;
        let mut tables = self.tables();
        tables.streams.push(Some(StreamEntry { raw, last: None, capture: None }));
        Ok(Stream(tables.streams.len() as u64 - 1))
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        self.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a variable of ours.
        check(unsafe { cuEventCreate(&raw mut raw, 0) }, || "creating an event".to_owned())?;
        let mut tables = self.tables();
        tables.events.push(Some(raw));
        Ok(Event(tables.events.len() as u64 - 1))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), DriverError> {
        if stream == Stream::DEFAULT {
            return Err(DriverError::BadHandle("stream that can be given back"));
        }
        self.synchronize(stream)?;
        let raw = self.raw(stream)?;
        self.tables().streams[stream.0 as usize] = None;
        // SAFETY: the stream is alive, and no handle leads to it any more.
        check(unsafe { cuStreamDestroy_v2(raw) }, || "giving a stream back".to_owned())
    }

    fn destroy_event(&self, event: Event) -> Result<(), DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        let raw = tables.event(event)?;
        tables.events[event.0 as usize] = None;
        // SAFETY: the event is alive, and no handle leads to it any more.
        check(unsafe { cuEventDestroy_v2(raw) }, || "giving an event back".to_owned())
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let raw = self.raw(stream)?;
        let event = self.tables().event(event)?;
        // SAFETY: both are alive.
        check(unsafe { cuEventRecord(event, raw) }, || self.on_stream(stream, "recording an event"))
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let raw = self.raw(stream)?;
        let event = self.tables().event(event)?;
        // SAFETY: both are alive.
        check(unsafe { cuStreamWaitEvent(raw, event, 0) }, || self.on_stream(stream, "waiting for an event"))
    }

    fn elapsed_ms(&self, from: Event, to: Event) -> Result<f32, DriverError> {
        self.enter()?;
        let tables = self.tables();
        let (from, to) = (tables.event(from)?, tables.event(to)?);
        drop(tables);
        let mut time = 0.0;
        // SAFETY: both are alive, and the pointer is to a variable of ours.
        check(unsafe { cuEventSynchronize(to) }, || "waiting for an event".to_owned())?;
        // SAFETY: as above.
        let told = unsafe { cuEventElapsedTime_v2(&raw mut time, from, to) };
        check(told, || "the time between two events".to_owned()).map(|()| time)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        let raw = self.raw(stream)?;
        // SAFETY: the stream is alive.
        check(unsafe { cuStreamSynchronize(raw) }, || self.on_stream(stream, "waiting for what was asked"))
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), DriverError> {
        self.begin(stream)
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph, DriverError> {
        self.end(stream)
    }

    fn set_arguments(&self, graph: Graph, launch: usize, arguments: &[Argument]) -> Result<(), DriverError> {
        self.change(graph, launch, arguments)
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), DriverError> {
        self.replay(graph, stream)
    }

    fn destroy_graph(&self, graph: Graph) -> Result<(), DriverError> {
        self.forget(graph)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A device that is broken was reported when it broke.
        if self.enter().is_err() {
            return;
        }
        self.staging.clear();
        let tables = std::mem::take(&mut *self.tables());
        for recorded in tables.graphs.into_iter().flatten() {
            let _ = graphs::destroy(&recorded);
        }
        // SAFETY: all of these are alive, and no handle leads to them any more.
        unsafe {
            for stream in tables.streams.into_iter().flatten() {
                let _ = cuStreamSynchronize(stream.raw);
                let _ = cuStreamDestroy_v2(stream.raw);
            }
            for event in tables.events.into_iter().flatten() {
                let _ = cuEventDestroy_v2(event);
            }
            for module in tables.modules.into_iter().flatten() {
                let _ = cuModuleUnload(module);
            }
            for pointer in tables.allocations.into_keys() {
                let _ = cuMemFree_v2(pointer);
            }
            let _ = cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
