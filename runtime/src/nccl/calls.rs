//! The functions of NCCL that are called, and what its answers mean.
//!
//! Functions are imported from here only: so each is in the list that is looked for before the first call. All of them have been there since
//! NCCL 2.18.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::gpu::{Opened, Search, Wanted};
use cudarc::nccl::sys::{self, ncclComm_t, ncclResult_t};

macro_rules! functions {
    ($($name:ident)*) => {
        pub(super) use sys::{$($name),*};
        const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
    };
}

functions! {
    ncclBroadcast ncclCommAbort ncclCommDestroy ncclCommFinalize ncclCommGetAsyncError ncclCommInitRankConfig ncclCommSplit
    ncclGetErrorString ncclGetLastError ncclGetUniqueId ncclGetVersion ncclGroupEnd ncclGroupStart ncclRecv ncclSend
}

const NCCL: Wanted = Wanted {
    name: "NCCL",
    file: "libnccl.so.2",
    functions: FUNCTIONS,
    how_to_get_it: "get it with `pip install nvidia-nccl-cu13`, and set DTLC_CUDA_LIBS to the environment's folder or to the one with \
                    the library, where it isn't found by itself",
};

/// Opens the library, which must be where `search` says; the first that is found serves the whole process.
///
/// # Errors
/// What was looked for, where, and how to get it.
pub(super) fn open(search: &Search) -> Result<&'static PathBuf, String> {
    static OPEN: OnceLock<PathBuf> = OnceLock::new();
    let opened = Opened::find(&NCCL, search)?;
    if let Some(path) = OPEN.get() {
        return Ok(path);
    }
    // SAFETY: the library is open, so looking for it by name runs no more initialisers.
    let by_name = unsafe { sys::is_culib_present() }.then(|| unsafe { sys::culib() });
    let path = opened.keep("ncclGetVersion", by_name)?;
    Ok(OPEN.get_or_init(|| path))
}

/// What a failure means, with what the library last said of a communicator.
pub(super) fn meaning(code: ncclResult_t, comm: ncclComm_t) -> String {
    let text = |text: *const std::ffi::c_char| {
        // SAFETY: the library's texts end with 0 and are not freed.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    // SAFETY: the library is open.
    let general = text(unsafe { ncclGetErrorString(code) }).unwrap_or_else(|| format!("{code:?}"));
    if comm.is_null() {
        return general;
    }
    // SAFETY: the communicator is alive.
    match text(unsafe { ncclGetLastError(comm) }).filter(|last| !last.trim().is_empty()) {
        Some(last) => format!("{general} ({})", last.trim()),
        None => general,
    }
}
