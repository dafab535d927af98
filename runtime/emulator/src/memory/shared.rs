//! The shared memory of a block: its variables with gaps between, which bytes were written, which wait for an asynchronous copy,
//! and the race checker over all.

use super::POISON;
use super::bits::Bits;
use super::race::RaceChecker;
use crate::code::{Ordering, SharedRegion};
use crate::fault::{Access, FaultKind};
use crate::ptx::Space;

/// A variable, and where its bytes begin in the backing store.
#[derive(Clone, Copy, Debug)]
struct Placed {
    region: SharedRegion,
    start: usize,
}

#[derive(Debug)]
pub(crate) struct SharedMemory {
    placed: Vec<Placed>,
    last: usize,
    bytes: Vec<u8>,
    written: Bits,
    pending: Bits,
    /// Copies under way.
    copies: usize,
    races: Option<RaceChecker>,
}

/// Whether races are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaceCheck {
    /// Every access is compared with those of other threads.
    On,
    /// None is.
    Off,
}

impl SharedMemory {
    /// Memory of these variables, without values.
    pub fn new(regions: impl Iterator<Item = SharedRegion>, races: RaceCheck) -> SharedMemory {
        let mut placed = Vec::new();
        let mut length = 0;
        for region in regions {
            placed.push(Placed { region, start: length });
            length += region.bytes as usize;
        }
        let races = (races == RaceCheck::On).then(|| RaceChecker::new(length));
        SharedMemory {
            placed,
            last: 0,
            bytes: vec![POISON; length],
            written: Bits::none(length),
            pending: Bits::none(length),
            copies: 0,
            races,
        }
    }

    /// A new block begins.
    pub fn clear(&mut self) {
        self.written.clear();
        self.pending.clear();
        self.copies = 0;
        self.order_all();
    }

    pub fn begin(&mut self, warp: u32, line: u32, access: Access, ordering: Ordering) {
        if let Some(races) = &mut self.races {
            races.begin(warp, line, access, ordering);
        }
    }

    pub fn order_all(&mut self) {
        if let Some(races) = &mut self.races {
            races.order_all();
        }
    }

    pub fn arrive(&mut self, warp: u32) {
        if let Some(races) = &mut self.races {
            races.arrive(warp);
        }
    }

    pub fn order(&mut self, early: u32, waiting: u32) {
        if let Some(races) = &mut self.races {
            races.order(early, waiting);
        }
    }

    pub fn order_lanes(&mut self, warp: u32) {
        if let Some(races) = &mut self.races {
            races.order_lanes(warp);
        }
    }

    #[inline(always)]
    fn locate(&mut self, address: u64, bytes: usize, access: Access) -> Result<usize, FaultKind> {
        let fits = |placed: &Placed| {
            let offset = address.wrapping_sub(placed.region.base);
            let length = placed.region.bytes;
            (offset <= length && bytes as u64 <= length - offset).then(|| placed.start + offset as usize)
        };
        if let Some(at) = self.placed.get(self.last).and_then(fits) {
            return Ok(at);
        }
        for (index, placed) in self.placed.iter().enumerate() {
            if let Some(at) = fits(placed) {
                self.last = index;
                return Ok(at);
            }
        }
        Err(FaultKind::OutOfBounds { space: Space::Shared, access, address, bytes })
    }

    /// What a lane reads.
    #[inline(always)]
    pub fn read(&mut self, lane: u32, address: u64, bytes: usize) -> Result<&[u8], FaultKind> {
        let at = self.locate(address, bytes, Access::Read)?;
        if !self.written.all(at, bytes) {
            return Err(self.unwritten(at, address, bytes));
        }
        if let Some(races) = &mut self.races {
            races.read(lane, at, bytes, address)?;
        }
        Ok(&self.bytes[at..at + bytes])
    }

    #[cold]
    fn unwritten(&self, at: usize, address: u64, bytes: usize) -> FaultKind {
        if self.pending.none_of(at, bytes) {
            return FaultKind::Uninitialised { space: Space::Shared, address, bytes };
        }
        FaultKind::CopyNotAwaited { address, access: Access::Read }
    }

    /// Writes what a lane stores.
    #[inline(always)]
    pub fn write(&mut self, lane: u32, address: u64, value: &[u8]) -> Result<(), FaultKind> {
        let at = self.locate(address, value.len(), Access::Write)?;
        self.not_pending(at, address, value.len())?;
        if let Some(races) = &mut self.races {
            let bytes = &self.bytes[at..at + value.len()];
            races.write(lane, at, value.len(), address, |offset| bytes[offset] == value[offset])?;
        }
        self.written.insert(at, value.len());
        self.bytes[at..at + value.len()].copy_from_slice(value);
        Ok(())
    }

    fn not_pending(&self, at: usize, address: u64, bytes: usize) -> Result<(), FaultKind> {
        if self.copies == 0 || self.pending.none_of(at, bytes) {
            return Ok(());
        }
        Err(FaultKind::CopyNotAwaited { address, access: Access::Write })
    }

    /// Reads, changes and writes: an atomic operation.
    pub fn update<const N: usize>(
        &mut self,
        lane: u32,
        address: u64,
        change: impl FnOnce([u8; N]) -> [u8; N],
    ) -> Result<[u8; N], FaultKind> {
        let at = self.locate(address, N, Access::Atomic)?;
        if !self.written.all(at, N) {
            return Err(self.unwritten(at, address, N));
        }
        if let Some(races) = &mut self.races {
            races.write(lane, at, N, address, |_| false)?;
        }
        let mut old = [0; N];
        old.copy_from_slice(&self.bytes[at..at + N]);
        self.bytes[at..at + N].copy_from_slice(&change(old));
        Ok(old)
    }

    /// An asynchronous copy to here begins: until it is done the bytes have no value.
    pub fn begin_copy(&mut self, lane: u32, address: u64, bytes: usize) -> Result<(), FaultKind> {
        let at = self.locate(address, bytes, Access::Write)?;
        self.not_pending(at, address, bytes)?;
        if let Some(races) = &mut self.races {
            races.write(lane, at, bytes, address, |_| false)?;
        }
        self.written.remove(at, bytes);
        self.pending.insert(at, bytes);
        self.copies += 1;
        Ok(())
    }

    /// An asynchronous copy ends, as a write of the instruction that waited for it.
    pub fn end_copy(&mut self, lane: u32, address: u64, value: &[u8]) -> Result<(), FaultKind> {
        let at = self.locate(address, value.len(), Access::Write)?;
        self.pending.remove(at, value.len());
        self.copies = self.copies.saturating_sub(1);
        self.written.insert(at, value.len());
        self.bytes[at..at + value.len()].copy_from_slice(value);
        if let Some(races) = &mut self.races {
            races.write(lane, at, value.len(), address, |_| true)?;
        }
        Ok(())
    }
}
