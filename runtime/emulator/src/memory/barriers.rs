//! What shared memory does with the barriers in it, and with bulk copies, which wait for one.

use super::mbarrier::Mbarrier;
use super::shared::{MBARRIER_BYTES, SharedMemory};
use super::{Clock, Fault};
use crate::fault::{FaultKind, MbarrierFault};
use crate::ptx::Space;

fn wrong(address: u64) -> impl Fn(MbarrierFault) -> Fault {
    move |fault| Box::new(FaultKind::Mbarrier { address, fault })
}

impl SharedMemory {
    /// A barrier is made, with this many arrivals a phase.
    pub fn make_barrier(&mut self, (warp, lane): (u32, u32), address: u64, count: u32) -> Result<(), Fault> {
        if !address.is_multiple_of(MBARRIER_BYTES as u64) {
            let (space, align) = (Space::Shared, MBARRIER_BYTES);
            return Err(Box::new(FaultKind::Misaligned { space, address, align }));
        }
        self.begin_copy(lane, address, MBARRIER_BYTES)?;
        let barrier = Mbarrier::new(count, (warp, lane)).map_err(wrong(address))?;
        self.barriers.insert(address, barrier);
        Ok(())
    }

    /// A barrier is given up; its bytes have no value.
    pub fn end_barrier(&mut self, lane: u32, address: u64) -> Result<(), Fault> {
        let barrier = self.barrier(lane, address)?;
        if barrier.unseen().is_some() {
            return Err(wrong(address)(MbarrierFault::InUse));
        }
        self.barriers.remove(&address);
        self.give_up(lane, address, MBARRIER_BYTES)
    }

    /// A barrier that a lane uses, which must know that it was made.
    pub fn barrier(&mut self, lane: u32, address: u64) -> Result<&mut Mbarrier, Fault> {
        if self.barriers.contains_key(&address) {
            self.read_beside(lane, address, MBARRIER_BYTES)?;
        }
        self.barriers.get_mut(&address).ok_or_else(|| wrong(address)(MbarrierFault::NotMade))
    }

    /// Changes a barrier, and counts the phase that this may end.
    pub fn change_barrier(
        &mut self,
        lane: u32,
        address: u64,
        change: impl FnOnce(&mut Mbarrier) -> Result<bool, MbarrierFault>,
    ) -> Result<(), Fault> {
        let is_over = change(self.barrier(lane, address)?).map_err(wrong(address))?;
        self.phases += u64::from(is_over);
        Ok(())
    }

    /// A phase that is over is seen: what it waited for is there, and comes before what the warp does next where it acquires that.
    pub fn see_phase(&mut self, warp: u32, lane: u32, address: u64, acquires: bool) -> Result<(), Fault> {
        let barrier = self.barrier(lane, address)?;
        let (landed, over) = (barrier.landed(), *barrier.over());
        if acquires {
            self.acquire(warp, &over);
        }
        landed.into_iter().try_for_each(|landing| self.end_bulk_copy(landing.address, &landing.bytes))
    }

    /// A fence is run by these lanes of a warp: copies may know of the barriers they made.
    pub fn publish_barriers(&mut self, warp: u32, lanes: u32) {
        self.barriers.values_mut().for_each(|barrier| barrier.publish(warp, lanes));
    }

    /// A bulk copy of these bytes to here begins, which a barrier waits for: until that is seen the place has no value.
    pub fn begin_bulk_copy(
        &mut self,
        lane: u32,
        (address, bytes): (u64, Vec<u8>),
        (barrier, clock): (u64, &Clock),
    ) -> Result<(), Fault> {
        self.begin_published_copy(lane, address, bytes.len())?;
        self.change_barrier(lane, barrier, |barrier| barrier.land(address, bytes, clock))
    }

    /// Arrivals and bytes that a barrier's current phase lacks.
    pub fn phase_lacks(&self, address: u64) -> (u32, i64) {
        self.barriers.get(&address).map_or((0, 0), Mbarrier::lacks)
    }

    /// How many phases of barriers are over.
    pub fn phases(&self) -> u64 {
        self.phases
    }

    /// Where a bulk copy goes for which nobody has waited.
    pub fn unseen_copy(&self) -> Option<u64> {
        self.barriers.values().find_map(|barrier| barrier.unseen().map(|landing| landing.address))
    }
}
