//! The functions of the driver's library that are called, and what its answers mean.
//!
//! Functions are imported from here only: so each is in the list that is looked for before the first call.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::OnceLock;

use super::library::{Opened, Search, Wanted};
use cudarc::driver::sys::{self, CUresult};
use dtlc_emulator::DriverError;

macro_rules! functions {
    ($($name:ident)*) => {
        pub(super) use sys::{$($name),*};
        const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
    };
}

functions! {
    cuCtxSetCurrent cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName cuDeviceGetUuid_v2
    cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDriverGetVersion cuEventCreate cuEventDestroy_v2 cuEventElapsedTime_v2 cuEventQuery cuEventRecord
    cuEventSynchronize cuFuncGetParamInfo cuFuncSetAttribute cuGetErrorName cuGetErrorString cuGraphDestroy
    cuGraphExecDestroy cuGraphExecKernelNodeSetParams_v2 cuGraphInstantiateWithFlags cuGraphLaunch cuInit cuLaunchKernel
    cuMemAlloc_v2 cuMemFreeHost cuMemFree_v2 cuMemGetInfo_v2 cuMemHostAlloc cuMemcpyDtoDAsync_v2 cuMemcpyDtoHAsync_v2
    cuMemcpyHtoDAsync_v2 cuMemsetD8Async cuModuleGetFunction cuModuleLoadDataEx cuModuleUnload cuStreamBeginCapture_v2
    cuStreamCreate cuStreamDestroy_v2 cuStreamEndCapture cuStreamGetCaptureInfo_v3 cuStreamSynchronize cuStreamWaitEvent
    cuTensorMapEncodeTiled
}

/// The library that every NVIDIA driver brings.
const DRIVER: Wanted = Wanted {
    name: "the NVIDIA driver",
    file: "libcuda.so.1",
    functions: FUNCTIONS,
    how_to_get_it: "it comes with the GPU's driver, 580 or later, and not with the toolkit; in a container the host's is passed in \
                    (`--gpus all`)",
};

/// Opens the driver's library, which must be where `search` says; the first that is found serves the whole process.
///
/// # Errors
/// What was looked for, where, and how to get it.
pub(super) fn open(search: &Search) -> Result<&'static PathBuf, String> {
    static OPEN: OnceLock<PathBuf> = OnceLock::new();
    let opened = Opened::find(&DRIVER, search)?;
    if let Some(path) = OPEN.get() {
        return Ok(path);
    }
    // SAFETY: the driver's library is open, so looking for it by name runs no more initialisers.
    let by_name = unsafe { sys::is_culib_present() }.then(|| unsafe { sys::culib() });
    let path = opened.keep("cuInit", by_name)?;
    Ok(OPEN.get_or_init(|| path))
}

/// A failure's name and meaning.
pub(super) fn meaning(code: CUresult) -> String {
    let text = |function: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the library is open, and the pointer is to a pointer of ours.
        let found = unsafe { function(code, &raw mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: the library's texts end with 0 and stay for ever.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let name = text(cuGetErrorName).unwrap_or_else(|| format!("error {}", code as u32));
    match text(cuGetErrorString) {
        Some(meaning) => format!("{name}: {meaning}"),
        None => name,
    }
}

/// Turns an answer into a result; `what` is what was tried.
pub(super) fn check(code: CUresult, what: impl FnOnce() -> String) -> Result<(), DriverError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(kind(failed)(format!("{} fails with {}", what(), meaning(failed)))),
    }
}

/// What kind of trouble it is: a recording's, ours, or the machine's.
fn kind(code: CUresult) -> fn(String) -> DriverError {
    use CUresult as Is;
    match code {
        Is::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | Is::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | Is::CUDA_ERROR_STREAM_CAPTURE_MERGE
        | Is::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | Is::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        | Is::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        | Is::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | Is::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        | Is::CUDA_ERROR_CAPTURED_EVENT => DriverError::Capture,
        Is::CUDA_ERROR_INVALID_VALUE
        | Is::CUDA_ERROR_INVALID_HANDLE
        | Is::CUDA_ERROR_ILLEGAL_ADDRESS
        | Is::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | Is::CUDA_ERROR_ASSERT
        | Is::CUDA_ERROR_HARDWARE_STACK_ERROR
        | Is::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | Is::CUDA_ERROR_MISALIGNED_ADDRESS
        | Is::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | Is::CUDA_ERROR_INVALID_PC
        | Is::CUDA_ERROR_LAUNCH_FAILED => DriverError::Crashed,
        _ => DriverError::Device,
    }
}
