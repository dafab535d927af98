//! How ranks of one process exchange data: they meet, read and write each other's buffers directly,
//! and part when all are done.
//!
//! This file owns the meeting, [`groups`] who takes part, `executor::exchange` what moves where, and each backend how. There are
//! no intermediate buffers. An address is whatever the members' backend means by it, in host memory or a device's. Where a
//! group's ranks are in several processes, `executor::messages` sends what would be read, and only who is who is known here.

pub mod groups;
pub mod runs;

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::health::Health;
use crate::signal::Signal;

/// What the members of a group must agree on when they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the collective in the program.
    pub collective: u64,
    /// A digest of its kind, its tensors and the loop iteration it runs in.
    pub digest: u64,
}

/// Why a meeting failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Some rank failed elsewhere.
    Abandoned,
    /// This member (an index in the group) did not come in time.
    Missing(usize),
    /// This member came to another collective.
    Disagrees(usize),
    /// The process of this rank, which need not be of the group, has ended without a word.
    Gone(usize),
}

/// How long and how a member waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// The world's health, to leave when another rank fails.
    pub health: &'a Health,
    /// Rounds of spinning.
    pub spin: u32,
    /// When to give up on a member.
    pub timeout: Duration,
}

/// Addresses of one tensor on one member.
#[derive(Debug, Default)]
struct Endpoint {
    source: AtomicPtr<u8>,
    target: AtomicPtr<u8>,
}

#[derive(Debug)]
struct Member {
    /// Twice the number of collectives it has finished, plus 1 while it is in one.
    progress: Signal,
    collective: AtomicU64,
    digest: AtomicU64,
    endpoints: Box<[Endpoint]>,
}

/// The ranks that share collectives.
#[derive(Debug)]
pub struct Group {
    ranks: Vec<usize>,
    members: Vec<Member>,
}

impl Group {
    /// A group of these ranks whose collectives move at most `tensors` tensors a call.
    #[must_use]
    pub fn new(ranks: Vec<usize>, tensors: usize) -> Self {
        let member = |_: &usize| Member {
            progress: Signal::default(),
            collective: AtomicU64::new(0),
            digest: AtomicU64::new(0),
            endpoints: (0..tensors).map(|_| Endpoint::default()).collect(),
        };
        let members = ranks.iter().map(member).collect();
        Self { ranks, members }
    }
}

/// One rank's place in a group.
#[derive(Debug)]
pub struct Seat {
    group: Arc<Group>,
    index: usize,
    /// What this member's progress was last set to.
    progress: u32,
}

impl Seat {
    /// The place of the member with this index. Each index is taken once.
    #[must_use]
    pub fn new(group: Arc<Group>, index: usize) -> Self {
        Self { group, index, progress: 0 }
    }

    /// This member's index in the group.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.group.members.len()
    }

    /// The rank of a member.
    #[must_use]
    pub fn rank(&self, member: usize) -> usize {
        self.group.ranks[member]
    }

    /// The ranks of all members.
    #[must_use]
    pub fn ranks(&self) -> &[usize] {
        &self.group.ranks
    }

    /// Notes what a member in another process came for.
    pub fn note(&self, member: usize, header: Header) {
        let member = &self.group.members[member];
        member.collective.store(header.collective, Ordering::Relaxed);
        member.digest.store(header.digest, Ordering::Relaxed);
    }

    /// What a member came for, as it said at the last meeting.
    #[must_use]
    pub fn header(&self, member: usize) -> Header {
        let member = &self.group.members[member];
        Header {
            collective: member.collective.load(Ordering::Relaxed),
            digest: member.digest.load(Ordering::Relaxed),
        }
    }

    /// Says where this member's buffers for a tensor are, before [`Seat::meet`].
    pub fn offer(&mut self, tensor: usize, source: *mut u8, target: *mut u8) {
        let endpoint = &self.group.members[self.index].endpoints[tensor];
        endpoint.source.store(source, Ordering::Relaxed);
        endpoint.target.store(target, Ordering::Relaxed);
    }

    /// Where a member's source of a tensor is, between [`Seat::meet`] and [`Seat::part`].
    #[must_use]
    pub fn source(&self, member: usize, tensor: usize) -> *mut u8 {
        self.group.members[member].endpoints[tensor].source.load(Ordering::Relaxed)
    }

    /// Where a member's target of a tensor is, between [`Seat::meet`] and [`Seat::part`].
    #[must_use]
    pub fn target(&self, member: usize, tensor: usize) -> *mut u8 {
        self.group.members[member].endpoints[tensor].target.load(Ordering::Relaxed)
    }

    /// Waits until all members are here and checks that all came for the same.
    ///
    /// # Errors
    /// Someone is missing, came for something else, or the world has failed.
    pub fn meet(&mut self, header: Header, patience: Patience<'_>) -> Result<(), Refusal> {
        let own = &self.group.members[self.index];
        own.collective.store(header.collective, Ordering::Relaxed);
        own.digest.store(header.digest, Ordering::Relaxed);
        self.advance(patience)?;
        match (0..self.members()).find(|&member| self.header(member) != header) {
            Some(member) => Err(Refusal::Disagrees(member)),
            None => Ok(()),
        }
    }

    /// Waits until all members are done with each other's buffers.
    ///
    /// # Errors
    /// Someone does not finish, or the world has failed.
    pub fn part(&mut self, patience: Patience<'_>) -> Result<(), Refusal> {
        self.advance(patience)
    }

    /// Takes one step and waits until every member has taken it.
    fn advance(&mut self, patience: Patience<'_>) -> Result<(), Refusal> {
        self.progress = self.progress.wrapping_add(1);
        let progress = self.progress;
        self.group.members[self.index].progress.set(progress);
        let reached = |theirs: u32| theirs.wrapping_sub(progress) as i32 >= 0;
        for (index, member) in self.group.members.iter().enumerate() {
            if reached(member.progress.get()) {
                continue;
            }
            let start = Instant::now();
            let give_up = || patience.health.has_failed() || start.elapsed() >= patience.timeout;
            if !member.progress.wait(patience.spin, reached, give_up) {
                let abandoned = patience.health.has_failed();
                return Err(if abandoned { Refusal::Abandoned } else { Refusal::Missing(index) });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(collective: u64) -> Header {
        Header { collective, digest: 7 }
    }

    /// Lets each member come for a collective (or not at all) and returns what each is told.
    fn meeting(headers: &[Option<Header>], timeout: Duration) -> Vec<Option<Result<(), Refusal>>> {
        let health = Health::new(headers.len());
        let group = Arc::new(Group::new((0..headers.len()).collect(), 0));
        std::thread::scope(|scope| {
            let member = |(index, header): (usize, &Option<Header>)| {
                let (group, health, header) = (Arc::clone(&group), &health, *header);
                scope.spawn(move || {
                    let mut seat = Seat::new(group, index);
                    let patience = Patience { health, spin: 0, timeout };
                    header.map(|header| seat.meet(header, patience))
                })
            };
            let members: Vec<_> = headers.iter().enumerate().map(member).collect();
            members.into_iter().map(|member| member.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn members_that_come_for_different_collectives_are_told() {
        let long = Duration::from_secs(60);
        let told = meeting(&[Some(header(1)), Some(header(1)), Some(header(2))], long);
        assert_eq!(told[0], Some(Err(Refusal::Disagrees(2))));
        assert_eq!(told[1], Some(Err(Refusal::Disagrees(2))));
        assert_eq!(told[2], Some(Err(Refusal::Disagrees(0))));
        assert_eq!(meeting(&[Some(header(1)); 4], long), [Some(Ok(())); 4]);
    }

    #[test]
    fn a_member_that_stays_away_is_named() {
        let told = meeting(&[Some(header(1)), None, Some(header(1))], Duration::from_millis(30));
        assert_eq!(told, [Some(Err(Refusal::Missing(1))), None, Some(Err(Refusal::Missing(1)))]);
    }

    #[test]
    fn a_failure_elsewhere_ends_the_wait() {
        let health = Health::new(2);
        health.fail(crate::RuntimeError::Fault("elsewhere".into()));
        let mut seat = Seat::new(Arc::new(Group::new(vec![0, 1], 0)), 0);
        let patience = Patience { health: &health, spin: 10, timeout: Duration::from_secs(60) };
        assert_eq!(seat.meet(header(0), patience), Err(Refusal::Abandoned));
    }
}
