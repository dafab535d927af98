//! Device memory: allocations with gaps between, addresses that are never used twice, bounds, and which bytes were written.

use super::Fault;
use super::POISON;
use super::bits::Bits;
use super::history::{History, Sets, StreamCheck, Touch, Touched};
use crate::fault::{Access, FaultKind};
use crate::ptx::Space;

/// Whether kernels may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    ReadWrite,
    ReadOnly,
}

#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) base: u64,
    bytes: Vec<u8>,
    written: Bits,
    rule: Rule,
    pub(super) history: History,
}

/// All allocations of a device.
#[derive(Debug)]
pub(crate) struct GlobalMemory {
    /// By address.
    pub(super) allocations: Vec<Allocation>,
    next: u64,
    capacity: u64,
    used: u64,
    /// The allocation of the last access: the next is likely there too.
    last: usize,
    pub(super) check: StreamCheck,
    /// Pages that the work at hand has touched.
    pub(super) touched: Vec<Touched>,
    /// Empty sets of bytes to be used again.
    pub(super) spare: Vec<Sets>,
}

/// Alignment of every allocation.
const ALIGN: u64 = 512;

/// Unused addresses behind each allocation.
const GAP: u64 = 1 << 16;

impl GlobalMemory {
    pub fn new(capacity: u64, check: StreamCheck) -> GlobalMemory {
        GlobalMemory {
            allocations: Vec::new(),
            next: 0x7f00_0000_0000,
            capacity,
            used: 0,
            last: 0,
            check,
            touched: Vec::new(),
            spare: Vec::new(),
        }
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn free_bytes(&self) -> u64 {
        self.capacity - self.used
    }

    /// A new allocation whose bytes have no value; `None` where there is no room.
    pub fn allocate(&mut self, bytes: u64, rule: Rule) -> Option<u64> {
        let length = usize::try_from(bytes).ok()?;
        if bytes > self.free_bytes() {
            return None;
        }
        let base = self.next;
        self.next = (base + bytes + GAP).next_multiple_of(ALIGN);
        self.used += bytes;
        let (bytes, written) = (vec![POISON; length], Bits::none(length));
        let history = History::new(length, self.check);
        self.allocations.push(Allocation { base, bytes, written, rule, history });
        Some(base)
    }

    /// Gives an allocation back; `false` where none starts there.
    pub fn free(&mut self, base: u64) -> bool {
        let Ok(index) = self.allocations.binary_search_by_key(&base, |allocation| allocation.base) else {
            return false;
        };
        self.used -= self.allocations[index].bytes.len() as u64;
        self.allocations.remove(index);
        true
    }

    /// The allocation and the place in it of a range that lies in one.
    #[inline(always)]
    fn locate(&mut self, address: u64, bytes: usize) -> Option<(usize, usize)> {
        let fits = |allocation: &Allocation| {
            let offset = address.wrapping_sub(allocation.base);
            let length = allocation.bytes.len() as u64;
            (offset <= length && bytes as u64 <= length - offset).then_some(offset as usize)
        };
        if let Some(offset) = self.allocations.get(self.last).and_then(fits) {
            return Some((self.last, offset));
        }
        let behind = self.allocations.partition_point(|allocation| allocation.base <= address);
        let index = behind.checked_sub(1)?;
        let offset = fits(&self.allocations[index])?;
        self.last = index;
        Some((index, offset))
    }

    /// What a kernel reads.
    #[inline(always)]
    pub fn read(&mut self, address: u64, bytes: usize) -> Result<&[u8], Fault> {
        let space = Space::Global;
        let Some((index, offset)) = self.locate(address, bytes) else {
            return Err(Box::new(FaultKind::OutOfBounds { space, access: Access::Read, address, bytes }));
        };
        self.touch(index, offset, bytes, Touch::Read);
        let allocation = &self.allocations[index];
        if !allocation.written.all(offset, bytes) {
            return Err(Box::new(FaultKind::Uninitialised { space, address, bytes }));
        }
        Ok(&allocation.bytes[offset..offset + bytes])
    }

    /// What lanes read that lie close together: the whole stretch, or nothing where it isn't in one allocation or a lane reads what was never
    /// written. `offsets` has where each lane begins; `dense`, whether they leave no gap.
    pub fn read_span(
        &mut self,
        low: u64,
        length: usize,
        bytes: usize,
        dense: bool,
        offsets: impl Iterator<Item = usize> + Clone,
    ) -> Option<&[u8]> {
        let (index, start) = self.locate(low, length)?;
        let written = &self.allocations[index].written;
        if !written.all(start, length) && !offsets.clone().all(|offset| written.all(start + offset, bytes)) {
            return None;
        }
        if dense || length == bytes {
            self.touch(index, start, length, Touch::Read);
        } else {
            offsets.for_each(|offset| self.touch(index, start + offset, bytes, Touch::Read));
        }
        Some(&self.allocations[index].bytes[start..start + length])
    }

    /// Where a kernel writes; the bytes count as written.
    #[inline(always)]
    pub fn write(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], Fault> {
        let Some((index, offset)) = self.locate(address, bytes) else {
            let access = Access::Write;
            return Err(Box::new(FaultKind::OutOfBounds { space: Space::Global, access, address, bytes }));
        };
        if self.allocations[index].rule == Rule::ReadOnly {
            return Err(Box::new(FaultKind::ReadOnly { address }));
        }
        self.touch(index, offset, bytes, Touch::Write);
        let allocation = &mut self.allocations[index];
        allocation.written.insert(offset, bytes);
        Ok(&mut allocation.bytes[offset..offset + bytes])
    }

    /// Whether a range lies in one allocation.
    pub fn holds(&mut self, address: u64, bytes: usize) -> bool {
        self.locate(address, bytes).is_some()
    }

    /// Where the host writes, constants included; `None` out of bounds.
    pub fn host_write(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let (index, offset) = self.locate(address, bytes)?;
        self.touch(index, offset, bytes, Touch::Write);
        let allocation = &mut self.allocations[index];
        allocation.written.insert(offset, bytes);
        Some(&mut allocation.bytes[offset..offset + bytes])
    }

    /// What the host reads, and the first byte in it that was never written; `None` out of bounds.
    pub fn host_read(&mut self, address: u64, bytes: usize) -> Option<(&[u8], Option<u64>)> {
        let (index, offset) = self.locate(address, bytes)?;
        self.touch(index, offset, bytes, Touch::Read);
        let allocation = &self.allocations[index];
        let missing = if allocation.written.all(offset, bytes) {
            None
        } else {
            (offset..offset + bytes).find(|at| !allocation.written.contains(*at))
        };
        let missing = missing.map(|at| allocation.base + at as u64);
        Some((&allocation.bytes[offset..offset + bytes], missing))
    }

    /// Copies a range with what is known of each byte; `false` out of bounds.
    pub fn copy(&mut self, to: u64, from: u64, bytes: usize) -> bool {
        let Some((source, start)) = self.locate(from, bytes) else { return false };
        let Some((target, offset)) = self.locate(to, bytes) else { return false };
        self.touch(source, start, bytes, Touch::Read);
        self.touch(target, offset, bytes, Touch::Write);
        let data = self.allocations[source].bytes[start..start + bytes].to_vec();
        let whole = self.allocations[source].written.all(start, bytes);
        let missing: Vec<usize> = if whole {
            Vec::new()
        } else {
            (0..bytes).filter(|at| !self.allocations[source].written.contains(start + at)).collect()
        };
        let allocation = &mut self.allocations[target];
        allocation.bytes[offset..offset + bytes].copy_from_slice(&data);
        allocation.written.insert(offset, bytes);
        for at in missing {
            allocation.written.remove(offset + at, 1);
        }
        true
    }
}
