//! Loads and stores of all spaces, and asynchronous copies: addresses, alignment, then memory's own checks.

use super::block::Executor;
use super::copies::Copy;
use super::lanes::{File, Lane};
use super::warp::Warp;
use super::{Ran, each, throw};
use crate::code::{
    AddressBase, AsyncCopy, LANES, LOCAL_WINDOW, MemoryAccess, Ordering, PARAM_WINDOW, SHARED_WINDOW, Sign,
    Slot, WINDOW_BYTES, Width,
};
use crate::fault::{Access, FaultKind};
use crate::memory::Fault;
use crate::ptx::Space;

/// The most values of one access.
const MOST_VALUES: usize = 8;

/// The addresses of all lanes.
#[inline(always)]
pub(super) fn addresses(file: &File, base: AddressBase, offset: i64) -> [u64; LANES] {
    let mut addresses = match base {
        AddressBase::Space => [0; LANES],
        AddressBase::Word(slot) => u32::read(file, slot).map(u64::from),
        AddressBase::Double(slot) => u64::read(file, slot),
    };
    for address in &mut addresses {
        *address = address.wrapping_add(offset as u64);
    }
    addresses
}

/// The space and the address in it that a generic address means.
#[inline(always)]
pub(super) fn resolve(space: Space, address: u64) -> (Space, u64) {
    if space != Space::Generic || address < SHARED_WINDOW {
        return (if space == Space::Generic { Space::Global } else { space }, address);
    }
    for (window, space) in
        [(SHARED_WINDOW, Space::Shared), (LOCAL_WINDOW, Space::Local), (PARAM_WINDOW, Space::Param)]
    {
        if address.wrapping_sub(window) < WINDOW_BYTES {
            return (space, address - window);
        }
    }
    (Space::Global, address)
}

fn aligned(space: Space, address: u64, bytes: usize) -> Result<(), Fault> {
    if address & (bytes as u64 - 1) == 0 {
        return Ok(());
    }
    Err(Box::new(FaultKind::Misaligned { space, address, align: bytes }))
}

/// A little-endian value of up to eight bytes.
#[inline(always)]
pub(super) fn value_of(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

#[inline(always)]
pub(super) fn extended(value: u64, bytes: u8, sign: Sign) -> u64 {
    match (sign, bytes) {
        (Sign::Signed, 1) => value as i8 as u64,
        (Sign::Signed, 2) => value as i16 as u64,
        (Sign::Signed, 4) => value as i32 as u64,
        (Sign::Unsigned | Sign::Signed, _) => value,
    }
}

pub(super) fn set(file: &mut File, slot: Slot, width: Width, values: &[u64; LANES], mask: u32) {
    match width {
        Width::Half => u16::write(file, slot, &values.map(|value| value as u16), mask),
        Width::Word => u32::write(file, slot, &values.map(|value| value as u32), mask),
        Width::Double => u64::write(file, slot, values, mask),
    }
}

impl Executor<'_> {
    /// Where local memory of the top frame begins, if an access counts from there.
    fn frame_offset(warp: &Warp, space: Space, base: AddressBase) -> i64 {
        match (space, base) {
            (Space::Local, AddressBase::Space) => warp.frames.last().map_or(0, |frame| frame.local as i64),
            _ => 0,
        }
    }

    /// The bytes that a lane reads.
    #[inline(always)]
    fn lane_bytes<'b>(
        &'b mut self,
        warp: &'b Warp,
        lane: usize,
        (space, address): (Space, u64),
        bytes: usize,
    ) -> Result<&'b [u8], Fault> {
        aligned(space, address, bytes)?;
        match space {
            Space::Shared => self.shared.read(lane as u32, address, bytes),
            Space::Local => warp.local.read(lane, address, bytes),
            Space::Param => {
                let end = address.saturating_add(bytes as u64);
                let range = usize::try_from(address).ok().zip(usize::try_from(end).ok());
                range.and_then(|(start, end)| self.launch.params.get(start..end)).ok_or_else(|| {
                    Box::new(FaultKind::OutOfBounds { space, access: Access::Read, address, bytes })
                })
            }
            Space::Global | Space::Const | Space::Generic => self.launch.global.read(address, bytes),
        }
    }

    pub fn load(&mut self, warp: &mut Warp, line: u32, mask: u32, access: &MemoryAccess) -> Ran<()> {
        let offset = access.offset + Executor::frame_offset(warp, access.space, access.base);
        let addresses = addresses(warp.file(), access.base, offset);
        if matches!(access.space, Space::Shared | Space::Generic) {
            self.shared.begin(warp.index, line, Access::Read, access.ordering);
        }
        if self.load_span(warp, mask, access, &addresses)? {
            return Ok(());
        }
        let one = access.bytes as usize;
        let count = access.values.len().min(MOST_VALUES);
        let mut loaded = [[0_u64; LANES]; MOST_VALUES];
        for lane in each(mask) {
            let place = resolve(access.space, addresses[lane]);
            match self.lane_bytes(warp, lane, place, one * count) {
                Ok(bytes) => {
                    for (index, values) in loaded.iter_mut().enumerate().take(count) {
                        let value = value_of(&bytes[one * index..one * (index + 1)]);
                        values[lane] = extended(value, access.bytes, access.sign);
                    }
                }
                Err(kind) => return throw(1 << lane, kind),
            }
        }
        for (target, values) in access.values.iter().zip(&loaded) {
            if let Some((slot, width)) = target {
                set(warp.file(), *slot, *width, values, mask);
            }
        }
        Ok(())
    }

    pub fn store(&mut self, warp: &mut Warp, line: u32, mask: u32, access: &MemoryAccess) -> Ran<()> {
        let offset = access.offset + Executor::frame_offset(warp, access.space, access.base);
        let addresses = addresses(warp.file(), access.base, offset);
        if matches!(access.space, Space::Shared | Space::Generic) {
            self.shared.begin(warp.index, line, Access::Write, access.ordering);
        }
        if self.store_row(warp, mask, access, &addresses) {
            return Ok(());
        }
        let file = warp.file();
        let one = access.bytes as usize;
        let mut stored = [[0_u64; LANES]; MOST_VALUES];
        for (values, source) in stored.iter_mut().zip(&access.values) {
            *values = match source {
                Some((slot, Width::Double)) => u64::read(file, *slot),
                Some((slot, Width::Half | Width::Word)) => u32::read(file, *slot).map(u64::from),
                None => continue,
            };
        }
        let count = access.values.len().min(MOST_VALUES);
        let mut bytes = [0; 8 * MOST_VALUES];
        for lane in each(mask) {
            for (index, values) in stored.iter().take(count).enumerate() {
                bytes[one * index..one * (index + 1)].copy_from_slice(&values[lane].to_le_bytes()[..one]);
            }
            let place = resolve(access.space, addresses[lane]);
            if let Err(kind) = self.store_lane(warp, lane, place, &bytes[..one * count]) {
                return throw(1 << lane, kind);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn store_lane(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        (space, address): (Space, u64),
        bytes: &[u8],
    ) -> Result<(), Fault> {
        aligned(space, address, bytes.len())?;
        match space {
            Space::Shared => return self.shared.write(lane as u32, address, bytes),
            Space::Local => warp.local.write(lane, address, bytes.len())?.copy_from_slice(bytes),
            Space::Param => return Err(Box::new(FaultKind::ReadOnly { address })),
            Space::Global | Space::Const | Space::Generic => {
                self.launch.global.write(address, bytes.len())?.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// `cp.async`: checked now, done when it is waited for.
    pub fn begin_copy(&mut self, warp: &mut Warp, line: u32, mask: u32, copy: &AsyncCopy) -> Ran<()> {
        let ignored = copy.ignore.map_or(0, |predicate| warp.predicate(predicate));
        let file = warp.file();
        let (to, from) = (addresses(file, copy.to.0, copy.to.1), addresses(file, copy.from.0, copy.from.1));
        let taken = copy.taken.map(|slot| u32::read(file, slot));
        let bytes = copy.bytes as usize;
        self.shared.begin(warp.index, line, Access::Write, Ordering::Weak);
        for lane in each(mask) {
            let mut wanted = taken.map_or(bytes, |taken| taken[lane] as usize);
            if ignored >> lane & 1 == 1 {
                wanted = 0;
            }
            let one = Copy { lane: lane as u32, to: to[lane], from: from[lane], bytes, taken: wanted };
            if let Err(kind) = self.begin_lane_copy(&one) {
                return throw(1 << lane, kind);
            }
            warp.copies.begin(one);
        }
        Ok(())
    }

    fn begin_lane_copy(&mut self, copy: &Copy) -> Result<(), Fault> {
        if copy.taken > copy.bytes {
            let reason = format!("an asynchronous copy of {} of {} bytes", copy.taken, copy.bytes);
            return Err(Box::new(FaultKind::BadOperand(reason)));
        }
        aligned(Space::Shared, copy.to, copy.bytes)?;
        aligned(Space::Global, copy.from, copy.bytes)?;
        if copy.taken > 0 {
            self.launch.global.read(copy.from, copy.taken)?;
        }
        self.shared.begin_copy(copy.lane, copy.to, copy.bytes)
    }

    /// Waits for copies: they take place.
    pub fn end_copies(&mut self, warp: &mut Warp, line: u32, mask: u32, left: Option<u32>) -> Ran<()> {
        let copies = match left {
            Some(left) => warp.copies.finish(mask, left),
            None => warp.copies.finish_all(mask),
        };
        self.shared.begin(warp.index, line, Access::Write, Ordering::Weak);
        for copy in copies {
            if let Err(kind) = self.end_lane_copy(&copy) {
                return throw(1 << copy.lane, kind);
            }
        }
        Ok(())
    }

    fn end_lane_copy(&mut self, copy: &Copy) -> Result<(), Fault> {
        let mut bytes = [0; 16];
        if copy.taken > 0 {
            bytes[..copy.taken].copy_from_slice(self.launch.global.read(copy.from, copy.taken)?);
        }
        self.shared.end_copy(copy.lane, copy.to, &bytes[..copy.bytes])
    }
}
