//! Who touched which byte of shared memory, and whether anything orders two accesses.
//!
//! Each access of a warp's instruction is an event. A byte remembers the last event that wrote it, with the lane, and the set of
//! events that have read it since. Warps have vector clocks, which barriers join; a barrier of the whole block orders
//! everything, so that all events before it are forgotten. Lanes of one warp are ordered by what they run themselves
//! and by barriers of the warp, not by shuffles or votes, which order no memory. Two accesses that are both atomic or volatile
//! don't race. A read by a lane that another lane of the same warp overwrites later is not looked for.

use super::Fault;
use crate::code::Ordering;
use crate::fault::{Access, FaultKind};

/// Warps of a block, at most.
const WARPS: usize = 32;

/// Numbers of events end here; then the shadow starts anew. Five bits of a word are the lane.
const MOST_EVENTS: u32 = 1 << 26;

/// For each warp, up to which of its times all has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock([u32; WARPS]);

impl Clock {
    /// Takes over what another clock knows.
    pub fn join(&mut self, other: &Clock) {
        for (own, theirs) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*theirs);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Event {
    warp: u32,
    time: u32,
    /// Barriers that the warp had run by itself.
    syncs: u32,
    line: u32,
    access: Access,
    ordering: Ordering,
}

#[derive(Debug)]
pub(crate) struct RaceChecker {
    /// For each byte the event that wrote it last and its lane: `event << 5 | lane`.
    writes: Vec<u32>,
    /// For each byte the set of events that have read it since.
    reads: Vec<u32>,
    /// Events from `first_event` on.
    events: Vec<Event>,
    first_event: u32,
    /// Sets of events that have read a byte, from `first_set` on.
    sets: Vec<Vec<Event>>,
    first_set: u32,
    /// For each warp, up to which of each other's times it comes later.
    clocks: Vec<Clock>,
    times: [u32; WARPS],
    syncs: [u32; WARPS],
    current: Event,
    /// The set of the current event alone, and the last sets it was added to with what became of them.
    alone: Option<u32>,
    joined: Vec<(u32, u32)>,
    last_joined: (u32, u32),
    /// An event that is known to come before the current one, whichever the lane.
    ordered: u32,
}

impl RaceChecker {
    pub fn new(bytes: usize) -> RaceChecker {
        let nothing =
            Event { warp: 0, time: 0, syncs: 0, line: 0, access: Access::Read, ordering: Ordering::Weak };
        RaceChecker {
            writes: vec![0; bytes],
            reads: vec![0; bytes],
            events: Vec::new(),
            first_event: 1,
            sets: Vec::new(),
            first_set: 1,
            clocks: vec![Clock::default(); WARPS],
            times: [1; WARPS],
            syncs: [0; WARPS],
            current: nothing,
            alone: None,
            joined: Vec::new(),
            last_joined: (u32::MAX, 0),
            ordered: 0,
        }
    }

    /// A new instruction accesses shared memory.
    pub fn begin(&mut self, warp: u32, line: u32, access: Access, ordering: Ordering) {
        if self.first_event + self.events.len() as u32 >= MOST_EVENTS
            || self.first_set + self.sets.len() as u32 >= MOST_EVENTS
        {
            self.start_anew();
        }
        let index = warp as usize % WARPS;
        let (time, syncs) = (self.times[index], self.syncs[index]);
        self.current = Event { warp, time, syncs, line, access, ordering };
        self.events.push(self.current);
        self.alone = None;
        self.joined.clear();
        self.last_joined = (u32::MAX, 0);
        self.ordered = 0;
    }

    /// Forgets all: for a block that begins, or when numbers run out, which loses what came before.
    fn start_anew(&mut self) {
        self.writes.fill(0);
        self.reads.fill(0);
        self.events.clear();
        self.sets.clear();
        (self.first_event, self.first_set) = (1, 1);
    }

    /// Everything so far comes before everything from now on.
    pub fn order_all(&mut self) {
        self.first_event += self.events.len() as u32;
        self.first_set += self.sets.len() as u32;
        self.events.clear();
        self.sets.clear();
        for syncs in &mut self.syncs {
            *syncs += 1;
        }
    }

    /// A warp arrives at a barrier and goes on: what it does from now on is not covered.
    pub fn arrive(&mut self, warp: u32) {
        self.times[warp as usize % WARPS] += 1;
    }

    /// What the warps of `early` did before they arrived, and those of `waiting` up to now, comes before what those of `waiting` do
    /// from now on.
    pub fn order(&mut self, early: u32, waiting: u32) {
        let members = |mask: u32| (0..WARPS).filter(move |warp| mask >> warp & 1 == 1);
        let mut joined = Clock::default();
        for warp in members(early | waiting) {
            joined.join(&self.clocks[warp]);
            let late = u32::from(waiting >> warp & 1 == 0);
            joined.0[warp] = joined.0[warp].max(self.times[warp] - late);
        }
        for warp in members(waiting) {
            self.times[warp] += 1;
            self.syncs[warp] += 1;
            self.clocks[warp].join(&joined);
        }
    }

    /// What a warp did up to now and what comes before that; what it does from now on is not covered.
    pub fn release(&mut self, warp: u32) -> Clock {
        let index = warp as usize % WARPS;
        let mut clock = self.clocks[index];
        clock.0[index] = self.times[index];
        self.arrive(warp);
        clock
    }

    /// What a warp does from now on comes after what the clock says.
    pub fn acquire(&mut self, warp: u32, clock: &Clock) {
        self.clocks[warp as usize % WARPS].join(clock);
    }

    /// A barrier of a warp.
    pub fn order_lanes(&mut self, warp: u32) {
        self.syncs[warp as usize % WARPS] += 1;
    }

    fn before(&self, other: &Event) -> bool {
        self.clocks[self.current.warp as usize % WARPS].0[other.warp as usize % WARPS] >= other.time
    }

    /// The other event, where it wrote the byte and nothing puts it before this access.
    #[inline(always)]
    fn unordered_write(&mut self, shadow: u32, lane: u32) -> Option<Event> {
        let event = (shadow >> 5).checked_sub(self.first_event)?;
        if shadow >> 5 == self.ordered {
            return None;
        }
        let other = self.events.get(event as usize)?;
        let all_lanes = if other.warp == self.current.warp {
            other.syncs < self.current.syncs || self.before(other)
        } else {
            self.before(other)
        };
        let ordered = all_lanes || (other.warp == self.current.warp && shadow & 31 == lane);
        let strong = other.ordering == Ordering::Strong && self.current.ordering == Ordering::Strong;
        let found = (!ordered && !strong).then_some(*other);
        if all_lanes {
            self.ordered = shadow >> 5;
        }
        found
    }

    fn race(&self, address: u64, other: &Event, other_lane: Option<u32>) -> Fault {
        Box::new(FaultKind::Race {
            address,
            access: self.current.access,
            other: other.access,
            other_warp: other.warp,
            other_lane,
            other_line: other.line,
        })
    }

    fn current_number(&self) -> u32 {
        self.first_event + self.events.len() as u32 - 1
    }

    /// A lane reads bytes that begin at `at` of the shadow and at `address`.
    #[inline(always)]
    pub fn read(&mut self, lane: u32, at: usize, bytes: usize, address: u64) -> Result<(), Fault> {
        let mut seen = 0;
        for offset in 0..bytes {
            let shadow = self.writes[at + offset];
            if shadow != seen {
                if let Some(other) = self.unordered_write(shadow, lane) {
                    return Err(self.race(address + offset as u64, &other, Some(shadow & 31)));
                }
                seen = shadow;
            }
        }
        let (mut before, mut after) = self.last_joined;
        for index in at..at + bytes {
            let set = self.reads[index];
            if set != before {
                (before, after) = (set, self.joined_set(set));
            }
            self.reads[index] = after;
        }
        self.last_joined = (before, after);
        Ok(())
    }

    /// Whether nothing since the last barrier of the block has touched these bytes.
    #[inline(always)]
    pub fn untouched(&self, at: usize, bytes: usize) -> bool {
        let written = self.writes[at..at + bytes].iter().fold(0, |most, write| most.max(*write));
        let read = self.reads[at..at + bytes].iter().fold(0, |most, set| most.max(*set));
        written >> 5 < self.first_event && read < self.first_set
    }

    /// Reads bytes that are untouched.
    pub fn read_untouched(&mut self, at: usize, bytes: usize) {
        let alone = self.joined_set(0);
        self.reads[at..at + bytes].fill(alone);
    }

    /// All lanes write as many bytes each, one after another, that are untouched.
    pub fn write_untouched(&mut self, at: usize, bytes: usize) {
        let number = self.current_number();
        for (lane, writes) in self.writes[at..at + 32 * bytes].chunks_exact_mut(bytes).enumerate() {
            writes.fill(number << 5 | lane as u32);
        }
        self.reads[at..at + 32 * bytes].fill(0);
    }

    /// The set with the current event in it.
    #[inline(always)]
    fn joined_set(&mut self, set: u32) -> u32 {
        let alone = match self.alone {
            Some(alone) => alone,
            None => {
                let alone = self.add_set(vec![self.current]);
                self.alone = Some(alone);
                alone
            }
        };
        if set < self.first_set || set == alone {
            return alone;
        }
        if let Some((_, joined)) = self.joined.iter().find(|(from, to)| *from == set || *to == set) {
            return *joined;
        }
        self.join(set, alone)
    }

    #[cold]
    fn join(&mut self, set: u32, alone: u32) -> u32 {
        let kept = |member: &&Event| member.warp != self.current.warp && !self.before(member);
        let members = self.sets.get((set - self.first_set) as usize);
        let mut members: Vec<Event> = members.into_iter().flatten().filter(kept).copied().collect();
        let joined = if members.is_empty() {
            alone
        } else {
            members.push(self.current);
            self.add_set(members)
        };
        self.joined.push((set, joined));
        joined
    }

    fn add_set(&mut self, members: Vec<Event>) -> u32 {
        self.sets.push(members);
        self.first_set + self.sets.len() as u32 - 1
    }

    /// A lane writes bytes that begin at `at` of the shadow and at `address`. `same` says whether a byte stays as it is.
    #[inline(always)]
    pub fn write(
        &mut self,
        lane: u32,
        at: usize,
        bytes: usize,
        address: u64,
        same: impl Fn(usize) -> bool,
    ) -> Result<(), Fault> {
        let number = self.current_number();
        let (mut seen_write, mut seen_reads) = (0, 0);
        for offset in 0..bytes {
            let (write, reads) = (self.writes[at + offset], self.reads[at + offset]);
            let place = address + offset as u64;
            if write >> 5 == number {
                // Another lane of this very instruction: atomic operations take turns, stores don't.
                let conflict = write & 31 != lane && self.current.access == Access::Write && !same(offset);
                if conflict {
                    return Err(Box::new(FaultKind::LanesConflict {
                        address: place,
                        other_lane: write & 31,
                    }));
                }
            } else if write != seen_write {
                if let Some(other) = self.unordered_write(write, lane) {
                    return Err(self.race(place, &other, Some(write & 31)));
                }
                seen_write = write;
            }
            if reads >= self.first_set && reads != seen_reads {
                if let Some(other) = self.unordered_read(reads) {
                    return Err(self.race(place, &other, None));
                }
                seen_reads = reads;
            }
        }
        self.writes[at..at + bytes].fill(number << 5 | lane);
        self.reads[at..at + bytes].fill(0);
        Ok(())
    }

    /// An event of another warp that has read the byte and that nothing puts before this access.
    fn unordered_read(&self, set: u32) -> Option<Event> {
        let members = self.sets.get((set - self.first_set) as usize)?;
        let strong = self.current.ordering == Ordering::Strong;
        let open = |other: &&Event| {
            other.warp != self.current.warp
                && !self.before(other)
                && !(strong && other.ordering == Ordering::Strong)
        };
        members.iter().find(open).copied()
    }
}
