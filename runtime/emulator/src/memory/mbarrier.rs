//! Barriers that lie in shared memory (`mbarrier`): phases, arrivals and bytes that are to come, as the PTX ISA has them, with what of memory
//! each phase orders, and the bulk copies that it waits for.
//!
//! A phase is over when none of its arrivals is pending and as many bytes came as were expected. A bulk copy's bytes count when it is asked
//! for; what it copies is there when somebody sees that the phase is over, not before.

use super::race::Clock;
use crate::fault::MbarrierFault;

/// The most arrivals of a phase, and bytes that may be under way.
const MOST: u32 = (1 << 20) - 1;

/// What a bulk copy brings to shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Landing {
    /// The phase that it belongs to.
    phase: u64,
    pub address: u64,
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Mbarrier {
    /// Arrivals of each phase.
    count: u32,
    pending: u32,
    /// Bytes that are expected less those that came.
    bytes: i64,
    /// Phases that are over.
    phase: u64,
    /// Whether copies may know of it, and who made it: a warp and a lane.
    published: bool,
    maker: (u32, u32),
    /// What comes before the end of the current and of the last phase.
    clock: Clock,
    over: Clock,
    landings: Vec<Landing>,
}

impl Mbarrier {
    /// With this many arrivals a phase, made by this warp and lane.
    pub fn new(count: u32, maker: (u32, u32)) -> Result<Mbarrier, MbarrierFault> {
        if !(1..=MOST).contains(&count) {
            return Err(MbarrierFault::Count(count));
        }
        Ok(Mbarrier {
            count,
            pending: count,
            bytes: 0,
            phase: 0,
            published: false,
            maker,
            clock: Clock::default(),
            over: Clock::default(),
            landings: Vec::new(),
        })
    }

    pub fn phase(&self) -> u64 {
        self.phase
    }

    /// What the current phase lacks: arrivals and bytes.
    pub fn lacks(&self) -> (u32, i64) {
        (self.pending, self.bytes)
    }

    pub fn is_over(&self, parity: u32) -> bool {
        self.phase & 1 != u64::from(parity)
    }

    /// What waiters for the last phase come after.
    pub fn over(&self) -> &Clock {
        &self.over
    }

    /// The maker has run a fence.
    pub fn publish(&mut self, warp: u32, lanes: u32) {
        self.published |= self.maker.0 == warp && lanes >> self.maker.1 & 1 == 1;
    }

    /// Somebody arrives, behind what its clock says; whether that ends the phase.
    pub fn arrive(&mut self, count: u32, clock: &Clock) -> Result<bool, MbarrierFault> {
        if count == 0 || count > self.pending {
            return Err(MbarrierFault::Arrivals { count, pending: self.pending });
        }
        self.clock.join(clock);
        self.pending -= count;
        Ok(self.settle())
    }

    /// The current phase is to wait for more bytes.
    pub fn expect(&mut self, bytes: u32) -> Result<bool, MbarrierFault> {
        self.count_bytes(i64::from(bytes))
    }

    /// A copy that this barrier waits for, behind what the clock says.
    pub fn land(&mut self, address: u64, bytes: Vec<u8>, clock: &Clock) -> Result<bool, MbarrierFault> {
        if !self.published {
            return Err(MbarrierFault::NotPublished { maker: self.maker.0 });
        }
        self.clock.join(clock);
        let count = bytes.len() as i64;
        self.landings.push(Landing { phase: self.phase, address, bytes });
        self.count_bytes(-count)
    }

    /// Copies of phases that are over and that nobody has seen yet.
    pub fn landed(&mut self) -> Vec<Landing> {
        let (over, open) =
            std::mem::take(&mut self.landings).into_iter().partition(|it| it.phase < self.phase);
        self.landings = open;
        over
    }

    /// A copy that nobody has waited for.
    pub fn unseen(&self) -> Option<&Landing> {
        self.landings.first()
    }

    fn count_bytes(&mut self, more: i64) -> Result<bool, MbarrierFault> {
        self.bytes += more;
        if self.bytes.unsigned_abs() > u64::from(MOST) {
            return Err(MbarrierFault::Bytes(self.bytes));
        }
        Ok(self.settle())
    }

    fn settle(&mut self) -> bool {
        let is_over = self.pending == 0 && self.bytes == 0;
        if is_over {
            self.phase += 1;
            self.pending = self.count;
            self.over = self.clock;
        }
        is_over
    }
}
