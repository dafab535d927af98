//! The shared memory of a block: its variables with gaps between, which bytes were written, which wait for an asynchronous copy,
//! and the race checker over all.

use super::Fault;
use super::POISON;
use super::bits::Bits;
use super::mbarrier::Mbarrier;
use super::products::ProductShadow;
use super::race::{Clock, RaceChecker};
use crate::code::{Ordering, SharedRegion};
use crate::fault::{Access, FaultKind, MbarrierFault};
use crate::ptx::Space;
use std::collections::BTreeMap;

/// Bytes of a barrier that lies here.
pub(super) const MBARRIER_BYTES: usize = 8;

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
    /// Copies under way and barriers, whose bytes are pending too.
    copies: usize,
    /// By address.
    pub(super) barriers: BTreeMap<u64, Mbarrier>,
    /// Phases of barriers that are over.
    pub(super) phases: u64,
    races: Option<RaceChecker>,
    products: Option<ProductShadow>,
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
        let mut length = 0_usize;
        for region in regions {
            // Chunks of 16 bytes are such in the backing store too.
            length = length.next_multiple_of(16);
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
            barriers: BTreeMap::new(),
            phases: 0,
            races,
            products: None,
        }
    }

    /// The same, for a program with products of groups or bulk copies.
    pub fn with_products(self) -> SharedMemory {
        SharedMemory { products: Some(ProductShadow::new(self.bytes.len())), ..self }
    }

    /// A new block begins.
    pub fn clear(&mut self) {
        self.written.clear();
        self.pending.clear();
        self.copies = 0;
        self.barriers.clear();
        if let Some(products) = &mut self.products {
            products.clear();
        }
        self.order_all();
    }

    pub fn begin(&mut self, warp: u32, line: u32, access: Access, ordering: Ordering) {
        if let Some(races) = &mut self.races {
            races.begin(warp, line, access, ordering);
        }
        if let Some(products) = &mut self.products {
            products.begin(warp);
        }
    }

    /// What the warp wrote may be read by products.
    pub fn publish(&mut self, warp: u32) {
        if let Some(products) = &mut self.products {
            products.publish(warp);
        }
    }

    /// A thread's write, as products see it.
    #[inline(always)]
    fn written_beside_products(&mut self, at: usize, bytes: usize, address: u64) -> Result<(), Fault> {
        self.products.as_mut().map_or(Ok(()), |products| products.write(at, bytes, address))
    }

    /// A product of a group begins to read 16 bytes: from now until it has ended nothing may write them.
    pub fn begin_product_read(&mut self, lane: u32, address: u64) -> Result<(), Fault> {
        self.read(lane, address, 16)?;
        let at = self.locate(address, 16, Access::Read)?;
        self.products.as_mut().map_or(Ok(()), |products| products.begin_read(at, address))
    }

    /// A product has read 16 bytes.
    pub fn end_product_read(&mut self, lane: u32, address: u64) -> Result<&[u8], Fault> {
        let at = self.locate(address, 16, Access::Read)?;
        if let Some(products) = &mut self.products {
            products.end_read(at);
        }
        self.read(lane, address, 16)
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
    fn locate(&mut self, address: u64, bytes: usize, access: Access) -> Result<usize, Fault> {
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
        Err(Box::new(FaultKind::OutOfBounds { space: Space::Shared, access, address, bytes }))
    }

    /// What a lane reads.
    #[inline(always)]
    pub fn read(&mut self, lane: u32, address: u64, bytes: usize) -> Result<&[u8], Fault> {
        let at = self.locate(address, bytes, Access::Read)?;
        if !self.written.all(at, bytes) {
            return Err(self.unwritten(at, address, bytes));
        }
        if let Some(races) = &mut self.races {
            races.read(lane, at, bytes, address)?;
        }
        Ok(&self.bytes[at..at + bytes])
    }

    /// What lanes read that lie close together: the whole stretch, or nothing where it isn't in one variable or a lane reads what was never
    /// written, so that each must be looked at by itself. `lanes` has the offset of each lane that reads.
    pub fn read_span(
        &mut self,
        low: u64,
        length: usize,
        bytes: usize,
        lanes: impl Iterator<Item = (u32, usize)> + Clone,
    ) -> Result<Option<&[u8]>, (u32, Fault)> {
        let Ok(at) = self.locate(low, length, Access::Read) else { return Ok(None) };
        let written = |(_, offset): (u32, usize)| self.written.all(at + offset, bytes);
        if !self.written.all(at, length) && !lanes.clone().all(written) {
            return Ok(None);
        }
        if let Some(races) = &mut self.races {
            // A stretch with wide gaps costs more to look at as a whole.
            let whole = length <= 64 * bytes && races.untouched(at, length);
            for (lane, offset) in lanes {
                if whole || races.untouched(at + offset, bytes) {
                    races.read_untouched(at + offset, bytes);
                } else {
                    let read = races.read(lane, at + offset, bytes, low + offset as u64);
                    read.map_err(|fault| (lane, fault))?;
                }
            }
        }
        Ok(Some(&self.bytes[at..at + length]))
    }

    /// Writes what all 32 lanes store one after another; `false`, and nothing done, where each lane must be looked at by itself.
    pub fn write_row(&mut self, low: u64, values: &[u8]) -> bool {
        let Ok(at) = self.locate(low, values.len(), Access::Write) else { return false };
        if self.not_pending(at, low, values.len()).is_err() {
            return false;
        }
        if self.written_beside_products(at, values.len(), low).is_err() {
            return false;
        }
        if let Some(races) = &mut self.races {
            if !races.untouched(at, values.len()) {
                return false;
            }
            races.write_untouched(at, values.len() / 32);
        }
        self.written.insert(at, values.len());
        self.bytes[at..at + values.len()].copy_from_slice(values);
        true
    }

    #[cold]
    fn unwritten(&self, at: usize, address: u64, bytes: usize) -> Fault {
        if self.pending.none_of(at, bytes) {
            return Box::new(FaultKind::Uninitialised { space: Space::Shared, address, bytes });
        }
        self.not_yet(address, bytes, Access::Read)
    }

    /// Why pending bytes can't be accessed.
    #[cold]
    fn not_yet(&self, address: u64, bytes: usize, access: Access) -> Fault {
        let before = self.barriers.range(..address + bytes as u64).next_back();
        match before.filter(|(at, _)| **at + MBARRIER_BYTES as u64 > address) {
            Some((at, _)) => Box::new(FaultKind::Mbarrier { address: *at, fault: MbarrierFault::InUse }),
            None => Box::new(FaultKind::CopyNotAwaited { address, access }),
        }
    }

    /// Writes what a lane stores.
    #[inline(always)]
    pub fn write(&mut self, lane: u32, address: u64, value: &[u8]) -> Result<(), Fault> {
        let at = self.locate(address, value.len(), Access::Write)?;
        self.not_pending(at, address, value.len())?;
        self.written_beside_products(at, value.len(), address)?;
        if let Some(races) = &mut self.races {
            let bytes = &self.bytes[at..at + value.len()];
            races.write(lane, at, value.len(), address, |offset| bytes[offset] == value[offset])?;
        }
        self.written.insert(at, value.len());
        self.bytes[at..at + value.len()].copy_from_slice(value);
        Ok(())
    }

    fn not_pending(&self, at: usize, address: u64, bytes: usize) -> Result<(), Fault> {
        if self.copies == 0 || self.pending.none_of(at, bytes) {
            return Ok(());
        }
        Err(self.not_yet(address, bytes, Access::Write))
    }

    /// Reads, changes and writes: an atomic operation.
    pub fn update<const N: usize>(
        &mut self,
        lane: u32,
        address: u64,
        change: impl FnOnce([u8; N]) -> [u8; N],
    ) -> Result<[u8; N], Fault> {
        let at = self.locate(address, N, Access::Atomic)?;
        if !self.written.all(at, N) {
            return Err(self.unwritten(at, address, N));
        }
        if let Some(races) = &mut self.races {
            races.write(lane, at, N, address, |_| false)?;
        }
        self.written_beside_products(at, N, address)?;
        let mut old = [0; N];
        old.copy_from_slice(&self.bytes[at..at + N]);
        self.bytes[at..at + N].copy_from_slice(&change(old));
        Ok(old)
    }

    /// An asynchronous copy to here begins: until it is done the bytes have no value.
    pub fn begin_copy(&mut self, lane: u32, address: u64, bytes: usize) -> Result<(), Fault> {
        let at = self.locate(address, bytes, Access::Write)?;
        self.not_pending(at, address, bytes)?;
        self.written_beside_products(at, bytes, address)?;
        if let Some(races) = &mut self.races {
            races.write(lane, at, bytes, address, |_| false)?;
        }
        self.written.remove(at, bytes);
        self.pending.insert(at, bytes);
        self.copies += 1;
        Ok(())
    }

    /// An asynchronous copy ends, as a write of the instruction that waited for it.
    pub fn end_copy(&mut self, lane: u32, address: u64, value: &[u8]) -> Result<(), Fault> {
        let at = self.locate(address, value.len(), Access::Write)?;
        self.pending.remove(at, value.len());
        self.written_beside_products(at, value.len(), address)?;
        self.copies = self.copies.saturating_sub(1);
        self.written.insert(at, value.len());
        self.bytes[at..at + value.len()].copy_from_slice(value);
        if let Some(races) = &mut self.races {
            races.write(lane, at, value.len(), address, |_| true)?;
        }
        Ok(())
    }

    /// A bulk copy to here begins: what threads wrote there must be published.
    pub(super) fn begin_published_copy(
        &mut self,
        lane: u32,
        address: u64,
        bytes: usize,
    ) -> Result<(), Fault> {
        let at = self.locate(address, bytes, Access::Write)?;
        self.not_pending(at, address, bytes)?;
        if let Some(races) = &mut self.races {
            races.write(lane, at, bytes, address, |_| false)?;
        }
        if let Some(products) = &mut self.products {
            products.begin_copy(at, bytes, address)?;
        }
        self.written.remove(at, bytes);
        self.pending.insert(at, bytes);
        self.copies += 1;
        Ok(())
    }

    /// A bulk copy is there. Its write counts from when it began.
    pub(super) fn end_bulk_copy(&mut self, address: u64, value: &[u8]) -> Result<(), Fault> {
        let at = self.locate(address, value.len(), Access::Write)?;
        self.pending.remove(at, value.len());
        self.copies = self.copies.saturating_sub(1);
        self.written.insert(at, value.len());
        self.bytes[at..at + value.len()].copy_from_slice(value);
        Ok(())
    }

    /// Pending bytes are given up.
    pub(super) fn give_up(&mut self, lane: u32, address: u64, bytes: usize) -> Result<(), Fault> {
        let at = self.locate(address, bytes, Access::Write)?;
        self.pending.remove(at, bytes);
        self.copies = self.copies.saturating_sub(1);
        match &mut self.races {
            Some(races) => races.write(lane, at, bytes, address, |_| false),
            None => Ok(()),
        }
    }

    /// Notes that a lane uses pending bytes for what they are.
    pub(super) fn read_beside(&mut self, lane: u32, address: u64, bytes: usize) -> Result<(), Fault> {
        let at = self.locate(address, bytes, Access::Read)?;
        match &mut self.races {
            Some(races) => races.read(lane, at, bytes, address),
            None => Ok(()),
        }
    }

    /// What a warp did up to now, and what comes before that.
    pub fn release(&mut self, warp: u32) -> Clock {
        self.races.as_mut().map_or_else(Clock::default, |races| races.release(warp))
    }

    pub fn acquire(&mut self, warp: u32, clock: &Clock) {
        if let Some(races) = &mut self.races {
            races.acquire(warp, clock);
        }
    }
}
