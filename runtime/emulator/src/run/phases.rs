//! Barriers in shared memory (`mbarrier`) and the bulk copies that they wait for, lane by lane.
//!
//! A warp of which a lane waits for a phase that is not over stops where it is until that is over; a fault where that can't be. An arrival or a
//! copy by some lanes of a warp stands, for what it orders, for all of them.

use super::access::{addresses, resolve};
use super::block::Executor;
use super::lanes::Lane;
use super::warp::{Status, Warp};
use super::{Ran, each, throw};
use crate::code::{LANES, MbarrierPlace, Ordering, Phase, PhaseOf, TensorCopy};
use crate::fault::{Access, FaultKind};
use crate::memory::{Clock, Fault};
use crate::ptx::Space;
use crate::tensor_map::{TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES, TensorMap};

/// Bytes that targets of bulk copies are at multiples of.
const TARGET_ALIGNMENT: u64 = 128;

/// A warp that waits for a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Polling {
    pub address: u64,
    /// The lane that waits, the first.
    pub lane: u32,
    /// How many phases were over when it looked last.
    pub phases: u64,
}

/// Where barriers of lanes lie in shared memory.
fn places(warp: &mut Warp, mask: u32, place: MbarrierPlace) -> Ran<[u64; LANES]> {
    let mut found = addresses(warp.file(), place.base, place.offset);
    for lane in each(mask) {
        let (space, address) = resolve(place.space, found[lane]);
        if space != Space::Shared {
            let reason = "an mbarrier that is not in shared memory".to_owned();
            return throw(1 << lane, FaultKind::BadOperand(reason));
        }
        found[lane] = address;
    }
    Ok(found)
}

/// Does something for each lane, one after another, and says which did wrong.
fn by_lane(mask: u32, mut each_lane: impl FnMut(usize) -> Result<(), Fault>) -> Ran<()> {
    each(mask).try_for_each(|lane| each_lane(lane).or_else(|kind| throw(1 << lane, kind)))
}

impl Executor<'_> {
    /// Runs an instruction; where a lane has to wait the warp's status says so, and nothing was done.
    pub fn phase(&mut self, warp: &mut Warp, line: u32, mask: u32, operation: &Phase) -> Ran<()> {
        let access = match operation {
            Phase::Make { .. } | Phase::Copy(_) => (Access::Write, Ordering::Weak),
            Phase::End { .. } | Phase::Arrive { .. } | Phase::Test { .. } | Phase::Publish => {
                (Access::Atomic, Ordering::Strong)
            }
        };
        self.shared.begin(warp.index, line, access.0, access.1);
        match operation {
            Phase::Make { barrier, count } => {
                let (at, counts) = (places(warp, mask, *barrier)?, u32::read(warp.file(), *count));
                by_lane(mask, |lane| {
                    self.shared.make_barrier((warp.index, lane as u32), at[lane], counts[lane])
                })
            }
            Phase::End { barrier } => {
                let at = places(warp, mask, *barrier)?;
                by_lane(mask, |lane| self.shared.end_barrier(lane as u32, at[lane]))
            }
            Phase::Arrive { .. } => self.arrive_at_phase(warp, mask, operation),
            Phase::Test { .. } => self.test_phase(warp, mask, operation),
            Phase::Publish => {
                self.shared.publish_barriers(warp.index, mask);
                Ok(())
            }
            Phase::Copy(copy) => self.begin_bulk(warp, mask, copy),
        }
    }

    fn arrive_at_phase(&mut self, warp: &mut Warp, mask: u32, operation: &Phase) -> Ran<()> {
        let Phase::Arrive { barrier, bytes, count, state, releases } = operation else { return Ok(()) };
        let at = places(warp, mask, *barrier)?;
        let file = warp.file();
        let bytes = bytes.map(|slot| u32::read(file, slot));
        let counts = count.map(|slot| u32::read(file, slot));
        let clock = if *releases { self.shared.release(warp.index) } else { Clock::default() };
        let mut phases = [0; LANES];
        by_lane(mask, |lane| {
            phases[lane] = self.shared.barrier(lane as u32, at[lane])?.phase();
            if let Some(bytes) = bytes {
                self.shared.change_barrier(lane as u32, at[lane], |barrier| barrier.expect(bytes[lane]))?;
            }
            match counts {
                Some(counts) => self
                    .shared
                    .change_barrier(lane as u32, at[lane], |barrier| barrier.arrive(counts[lane], &clock)),
                None => Ok(()),
            }
        })?;
        if let Some(state) = state {
            u64::write(warp.file(), *state, &phases, mask);
        }
        Ok(())
    }

    fn test_phase(&mut self, warp: &mut Warp, mask: u32, operation: &Phase) -> Ran<()> {
        let Phase::Test { barrier, of, to, waits, acquires } = operation else { return Ok(()) };
        let at = places(warp, mask, *barrier)?;
        let wanted = match of {
            PhaseOf::Parity(slot) => u32::read(warp.file(), *slot).map(u64::from),
            PhaseOf::State(slot) => u64::read(warp.file(), *slot),
        };
        let mut over = 0;
        by_lane(mask, |lane| {
            let barrier = self.shared.barrier(lane as u32, at[lane])?;
            let is_over = match of {
                PhaseOf::Parity(_) if wanted[lane] > 1 => {
                    let reason = format!("a phase of parity {}", wanted[lane]);
                    return Err(Box::new(FaultKind::BadOperand(reason)));
                }
                PhaseOf::Parity(_) => barrier.is_over(wanted[lane] as u32),
                PhaseOf::State(_) => barrier.phase() != wanted[lane],
            };
            over |= u32::from(is_over) << lane;
            Ok(())
        })?;
        if *waits && over != mask {
            let lane = (mask & !over).trailing_zeros();
            let phases = self.shared.phases();
            warp.status = Status::Polling(Polling { address: at[lane as usize], lane, phases });
            return Ok(());
        }
        by_lane(over, |lane| self.shared.see_phase(warp.index, lane as u32, at[lane], *acquires))?;
        warp.set_predicate(*to, over, mask);
        Ok(())
    }

    fn begin_bulk(&mut self, warp: &mut Warp, mask: u32, copy: &TensorCopy) -> Ran<()> {
        let barriers = places(warp, mask, copy.barrier)?;
        let file = warp.file();
        let targets = addresses(file, copy.to.0, copy.to.1);
        let maps = addresses(file, copy.map.0, copy.map.1);
        let coordinates: Vec<_> = copy.coordinates.iter().map(|slot| u32::read(file, *slot)).collect();
        by_lane(mask, |lane| {
            let corner: Vec<i32> = coordinates.iter().map(|axis| axis[lane] as i32).collect();
            let target = targets[lane];
            if !target.is_multiple_of(TARGET_ALIGNMENT) {
                let (space, align) = (Space::Shared, TARGET_ALIGNMENT as usize);
                return Err(Box::new(FaultKind::Misaligned { space, address: target, align }));
            }
            let map = self.tensor_map(maps[lane])?;
            let bytes = self.boxed(&map, &corner, target)?;
            let clock = self.shared.release(warp.index);
            self.shared.begin_bulk_copy(lane as u32, (target, bytes), (barriers[lane], &clock))
        })
    }

    /// The map at a generic address, in the kernel's parameters or in device memory.
    fn tensor_map(&mut self, generic: u64) -> Result<TensorMap, Fault> {
        let (space, address) = resolve(Space::Generic, generic);
        if !address.is_multiple_of(TENSOR_MAP_ALIGNMENT) {
            let align = TENSOR_MAP_ALIGNMENT as usize;
            return Err(Box::new(FaultKind::Misaligned { space, address, align }));
        }
        let bytes = match space {
            Space::Param => {
                let start = address as usize;
                self.launch.params.get(start..start.saturating_add(TENSOR_MAP_BYTES))
            }
            Space::Global => Some(self.launch.global.read(address, TENSOR_MAP_BYTES)?),
            Space::Shared | Space::Local | Space::Const | Space::Generic => None,
        };
        let map = bytes.and_then(TensorMap::decode);
        map.ok_or_else(|| Box::new(FaultKind::BadOperand(format!("there is no tensor map at {generic:#x}"))))
    }

    /// What a box holds, as it lies in shared memory from `target` on: zeros outside of the tensor.
    fn boxed(&mut self, map: &TensorMap, corner: &[i32], target: u64) -> Result<Vec<u8>, Fault> {
        if corner.len() != map.sizes.len() {
            let reason = format!("{} coordinates of a map of {} dimensions", corner.len(), map.sizes.len());
            return Err(Box::new(FaultKind::BadOperand(reason)));
        }
        let first_byte = target;
        let row_bytes = u64::from(map.box_sizes[0]) * TensorMap::ELEMENT_BYTES;
        let mut bytes = vec![0; map.box_bytes() as usize];
        for number in 0..map.box_bytes() / row_bytes {
            let row = self.row(map, corner, number)?;
            for (piece, value) in row.chunks_exact(16).enumerate() {
                let place =
                    map.swizzle.place(first_byte + number * row_bytes + 16 * piece as u64) - first_byte;
                bytes[place as usize..][..16].copy_from_slice(value);
            }
        }
        Ok(bytes)
    }

    /// A row of a box, by its number among all.
    fn row(&mut self, map: &TensorMap, corner: &[i32], number: u64) -> Result<Vec<u8>, Fault> {
        let mut row = vec![0; map.box_sizes[0] as usize * TensorMap::ELEMENT_BYTES as usize];
        let (mut rest, mut address) = (number, map.base.0);
        for (axis, stride) in map.strides.iter().enumerate().map(|(axis, stride)| (axis + 1, stride)) {
            let size = u64::from(map.box_sizes[axis]);
            let place = i64::from(corner[axis]) + (rest % size) as i64;
            rest /= size;
            if place < 0 || place as u64 >= map.sizes[axis] {
                return Ok(row);
            }
            address += place as u64 * stride;
        }
        let (first, length) = (i64::from(corner[0]), i64::from(map.box_sizes[0]));
        let (start, end) = (first.max(0), (first + length).min(map.sizes[0] as i64));
        if start < end {
            let bytes = |elements: i64| elements as usize * TensorMap::ELEMENT_BYTES as usize;
            let source = self.launch.global.read(address + bytes(start) as u64, bytes(end - start))?;
            row[bytes(start - first)..bytes(end - first)].copy_from_slice(source);
        }
        Ok(row)
    }

    /// What is wrong where a warp waits for a phase and nobody can go on.
    pub fn open_phase(&self, polling: Polling) -> FaultKind {
        let (arrivals, bytes) = self.shared.phase_lacks(polling.address);
        FaultKind::PhaseOpen { address: polling.address, arrivals, bytes }
    }
}
