//! The local memory of a warp's threads: a stack of frames, one stretch a thread.

use super::Fault;
use super::POISON;
use super::bits::Bits;
use crate::fault::{Access, FaultKind};
use crate::ptx::Space;

/// The most that a thread may have.
const MOST_BYTES: u64 = 512 << 10;

#[derive(Debug, Default)]
pub(crate) struct LocalMemory {
    /// Bytes a thread, as many as the deepest frame needed yet.
    stride: usize,
    bytes: Vec<u8>,
    written: Bits,
    lanes: usize,
}

impl LocalMemory {
    /// None yet, for so many threads.
    pub fn new(lanes: usize) -> LocalMemory {
        LocalMemory { lanes, ..LocalMemory::default() }
    }

    /// Room for a frame, whose bytes have no value; `false` where the stack is full.
    pub fn enter(&mut self, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes);
        if end > MOST_BYTES {
            return false;
        }
        let end = end as usize;
        if end > self.stride {
            self.grow(end.next_power_of_two());
        }
        for lane in 0..self.lanes {
            let at = lane * self.stride;
            self.written.remove(at + start as usize, bytes as usize);
        }
        true
    }

    fn grow(&mut self, stride: usize) {
        let mut grown = LocalMemory {
            stride,
            bytes: vec![POISON; stride * self.lanes],
            written: Bits::none(stride * self.lanes),
            lanes: self.lanes,
        };
        for lane in 0..self.lanes {
            let (from, to) = (lane * self.stride, lane * stride);
            grown.bytes[to..to + self.stride].copy_from_slice(&self.bytes[from..from + self.stride]);
            for at in (0..self.stride).filter(|at| self.written.contains(from + at)) {
                grown.written.insert(to + at, 1);
            }
        }
        *self = grown;
    }

    fn place(&self, lane: usize, address: u64, bytes: usize, access: Access) -> Result<usize, Fault> {
        let inside = address.checked_add(bytes as u64).is_some_and(|end| end <= self.stride as u64);
        if !inside {
            return Err(Box::new(FaultKind::OutOfBounds { space: Space::Local, access, address, bytes }));
        }
        Ok(lane * self.stride + address as usize)
    }

    pub fn read(&self, lane: usize, address: u64, bytes: usize) -> Result<&[u8], Fault> {
        let at = self.place(lane, address, bytes, Access::Read)?;
        if !self.written.all(at, bytes) {
            return Err(Box::new(FaultKind::Uninitialised { space: Space::Local, address, bytes }));
        }
        Ok(&self.bytes[at..at + bytes])
    }

    pub fn write(&mut self, lane: usize, address: u64, bytes: usize) -> Result<&mut [u8], Fault> {
        let at = self.place(lane, address, bytes, Access::Write)?;
        self.written.insert(at, bytes);
        Ok(&mut self.bytes[at..at + bytes])
    }

    /// Copies bytes of one thread between frames, with what is known of each.
    pub fn copy(&mut self, lane: usize, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        let source = self.place(lane, from, bytes, Access::Read)?;
        let target = self.place(lane, to, bytes, Access::Write)?;
        self.bytes.copy_within(source..source + bytes, target);
        for at in 0..bytes {
            if self.written.contains(source + at) {
                self.written.insert(target + at, 1);
            } else {
                self.written.remove(target + at, 1);
            }
        }
        Ok(())
    }
}
