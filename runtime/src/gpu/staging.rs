//! Host memory that a GPU reads and writes directly: what goes between it and ordinary memory passes through here, in pieces.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use super::calls::{
    check, cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventSynchronize, cuMemFreeHost,
    cuMemHostAlloc, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2,
};
use cudarc::driver::sys::{CUevent, CUstream};
use dtlc_emulator::{DevicePointer, DriverError};

/// Bytes of a buffer.
const PIECE: usize = 4 << 20;
/// As many are made before one is waited for.
const BUFFERS: usize = 2;

/// A buffer, and an event behind its last use.
struct Buffer {
    bytes: *mut c_void,
    used: CUevent,
}

// SAFETY: a buffer is used by whoever took it out of the list, on any thread; the driver's handles are of no thread's own.
unsafe impl Send for Buffer {}

/// Buffers that are not in use, the one that was used longest ago first.
#[derive(Default)]
pub(super) struct Staging {
    free: Mutex<VecDeque<Buffer>>,
}

impl Staging {
    /// Copies to a device; the host's bytes are free when it returns, the device's are there when the stream is.
    pub fn write(&self, to: DevicePointer, from: &[u8], stream: CUstream) -> Result<(), DriverError> {
        for (number, piece) in from.chunks(PIECE).enumerate() {
            let buffer = self.take()?;
            // SAFETY: the buffer is ours alone, holds PIECE bytes, and nothing on the device reads it any more.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), buffer.bytes.cast::<u8>(), piece.len()) };
            let to = to.offset((number * PIECE) as u64);
            // SAFETY: the caller has checked that the target lies in one allocation; the buffer is not touched
            // before the event behind the copy.
            let copied = unsafe { cuMemcpyHtoDAsync_v2(to.0, buffer.bytes, piece.len(), stream) };
            let copied = check(copied, || "a copy to the device".to_owned());
            let recorded = self.record(&buffer, stream);
            self.give_back(buffer);
            copied.and(recorded)?;
        }
        Ok(())
    }

    /// Copies from a device; the bytes are there when it returns.
    pub fn read(&self, to: &mut [u8], from: DevicePointer, stream: CUstream) -> Result<(), DriverError> {
        for (number, piece) in to.chunks_mut(PIECE).enumerate() {
            let buffer = self.take()?;
            let from = from.offset((number * PIECE) as u64);
            // SAFETY: as above, the other way round.
            let copied = unsafe { cuMemcpyDtoHAsync_v2(buffer.bytes, from.0, piece.len(), stream) };
            let copied = check(copied, || "a copy to the host".to_owned())
                .and_then(|()| self.record(&buffer, stream))
                .and_then(|()| wait(&buffer));
            if copied.is_ok() {
                // SAFETY: the copy into the buffer, which is ours alone, is done.
                unsafe {
                    std::ptr::copy_nonoverlapping(buffer.bytes.cast::<u8>(), piece.as_mut_ptr(), piece.len())
                };
            }
            self.give_back(buffer);
            copied?;
        }
        Ok(())
    }

    /// Gives all memory back.
    pub fn clear(&self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        for buffer in free.drain(..) {
            // A device that is broken was reported when it broke.
            let _ = wait(&buffer);
            // SAFETY: nothing uses the buffer any more, nor the event.
            unsafe {
                let _ = cuMemFreeHost(buffer.bytes);
                let _ = cuEventDestroy_v2(buffer.used);
            }
        }
    }

    fn take(&self) -> Result<Buffer, DriverError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = if free.len() < BUFFERS { None } else { free.pop_front() };
        drop(free);
        match buffer {
            Some(buffer) => wait(&buffer).map(|()| buffer),
            None => new(),
        }
    }

    fn record(&self, buffer: &Buffer, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: both handles are alive.
        let recorded = unsafe { cuEventRecord(buffer.used, stream) };
        check(recorded, || "recording an event".to_owned())
    }

    fn give_back(&self, buffer: Buffer) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(buffer);
    }
}

fn wait(buffer: &Buffer) -> Result<(), DriverError> {
    // SAFETY: the event is alive.
    let waited = unsafe { cuEventSynchronize(buffer.used) };
    check(waited, || "a copy between host and device".to_owned())
}

fn new() -> Result<Buffer, DriverError> {
    let (mut bytes, mut used) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers are to pointers of ours.
    let made = unsafe { cuMemHostAlloc(&raw mut bytes, PIECE, 0) };
    check(made, || format!("allocating {PIECE} bytes of pinned host memory"))?;
    // SAFETY: as above.
    let made = unsafe { cuEventCreate(&raw mut used, 0) };
    check(made, || "creating an event".to_owned())?;
    Ok(Buffer { bytes, used })
}
