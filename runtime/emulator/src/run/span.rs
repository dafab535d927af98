//! Loads and stores whose lanes lie close together, which most do: looked at and moved at once. What is out of the ordinary is left to the path
//! lane by lane, which finds out what is wrong.

use super::access::{extended, set, value_of};
use super::block::Executor;
use super::lanes::{Lane, vectorised};
use super::warp::Warp;
use super::{Ran, each, throw};
use crate::code::{LANES, MemoryAccess, SHARED_WINDOW, Width};
use crate::ptx::Space;

/// A stretch longer than this is not looked at as a whole.
const LONGEST: u64 = 4096;

/// The most bytes a lane that a row may have.
const ROW_BYTES: usize = 16;

/// Where the lanes of an access lie.
#[derive(Clone, Copy, Debug)]
struct Span {
    low: u64,
    length: usize,
    /// All 32 lanes, one after another.
    row: bool,
}

vectorised! {
    /// The stretch that the lanes cover; none where it is long or a lane is not aligned.
    fn span_of(addresses: &[u64; LANES], mask: u32, bytes: u64) -> Option<(u64, u64, bool)> {
        let first = addresses[mask.trailing_zeros().min(31) as usize];
        let (mut low, mut high, mut bits, mut apart) = (first, first, 0, 0);
        for (lane, address) in addresses.iter().enumerate() {
            let address = if mask >> lane & 1 == 1 { *address } else { first };
            low = low.min(address);
            high = high.max(address);
            bits |= address;
            apart |= address ^ first.wrapping_add(lane as u64 * bytes);
        }
        let fits = bits & (bytes - 1) == 0 && high - low <= LONGEST;
        fits.then_some((low, high - low + bytes, mask == u32::MAX && apart == 0))
    }
}

impl Executor<'_> {
    fn span(&self, access: &MemoryAccess, mask: u32, addresses: &[u64; LANES]) -> Option<(Space, Span)> {
        let bytes = access.bytes as u64 * access.values.len() as u64;
        let (low, length, row) = span_of(self.launch.isa, addresses, mask, bytes)?;
        let space = match access.space {
            Space::Global | Space::Const => Space::Global,
            Space::Generic if low + length <= SHARED_WINDOW => Space::Global,
            Space::Shared => Space::Shared,
            Space::Generic | Space::Local | Space::Param => return None,
        };
        Some((space, Span { low, length: length as usize, row }))
    }

    /// Loads at once; `false` where that can't be.
    pub fn load_span(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        access: &MemoryAccess,
        addresses: &[u64; LANES],
    ) -> Ran<bool> {
        let Some((space, span)) = self.span(access, mask, addresses) else { return Ok(false) };
        let one = access.bytes as usize;
        let total = one * access.values.len();
        let offsets = each(mask).map(|lane| (addresses[lane] - span.low) as usize);
        let data = if space == Space::Global {
            self.launch.global.read_span(span.low, span.length, total, span.row, offsets)
        } else {
            let lanes = each(mask).map(|lane| (lane as u32, (addresses[lane] - span.low) as usize));
            match self.shared.read_span(span.low, span.length, total, lanes) {
                Ok(data) => data,
                Err((lane, fault)) => return throw(1 << lane, fault),
            }
        };
        let Some(data) = data else { return Ok(false) };
        for (index, target) in access.values.iter().enumerate() {
            let Some((slot, width)) = target else { continue };
            let from = |lane: usize| (addresses[lane] - span.low) as usize + one * index;
            if one == 4 && *width == Width::Word {
                let mut words = [0_u32; LANES];
                if span.row && total == 4 {
                    bytemuck::cast_slice_mut::<u32, u8>(&mut words).copy_from_slice(data);
                } else {
                    for lane in each(mask) {
                        words[lane] = value_of(&data[from(lane)..from(lane) + 4]) as u32;
                    }
                }
                u32::write(warp.file(), *slot, &words, mask);
            } else {
                let mut values = [0_u64; LANES];
                for lane in each(mask) {
                    values[lane] =
                        extended(value_of(&data[from(lane)..from(lane) + one]), access.bytes, access.sign);
                }
                set(warp.file(), *slot, *width, &values, mask);
            }
        }
        Ok(true)
    }

    /// Stores what all lanes put one after another; `false`, and nothing done, where they don't or something is wrong.
    pub fn store_row(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        access: &MemoryAccess,
        addresses: &[u64; LANES],
    ) -> bool {
        let one = access.bytes as usize;
        let total = one * access.values.len();
        let Some((space, span)) = self.span(access, mask, addresses) else { return false };
        if !span.row || total > ROW_BYTES {
            return false;
        }
        let file = warp.file();
        let mut row = [0_u8; ROW_BYTES * LANES];
        for (index, source) in access.values.iter().enumerate() {
            let Some((slot, width)) = source else { return false };
            let values = if *width == Width::Double {
                u64::read(file, *slot)
            } else {
                u32::read(file, *slot).map(u64::from)
            };
            for (lane, value) in values.iter().enumerate() {
                let at = lane * total + one * index;
                row[at..at + one].copy_from_slice(&value.to_le_bytes()[..one]);
            }
        }
        let row = &row[..total * LANES];
        if space == Space::Shared {
            return self.shared.write_row(span.low, row);
        }
        match self.launch.global.write(span.low, row.len()) {
            Ok(bytes) => bytes.copy_from_slice(row),
            Err(_) => return false,
        }
        true
    }
}
