//! Messages over MPI, for processes that `mpirun` or `srun` started: its own library finds the others and carries the bytes.
//!
//! Sends and receives are non-blocking and asked after in turn, so that a wait can end when time is up or another process
//! says that it failed. A process that ends otherwise than well leaves without MPI's farewell, at which the launcher ends the
//! others.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpi::environment::Universe;
use mpi::point_to_point::{Destination, Source};
use mpi::request::{Request, Scope, scope};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::Equivalence;

use super::{Transport, failure_elsewhere};
use crate::collectives::{Patience, Refusal};
use crate::error::{Result as RuntimeResult, RuntimeError};
use crate::health::Health;

/// What a message is.
const MESSAGE: i32 = 1;
/// The sender has failed; the message is the reason.
const FAILURE: i32 = 2;
/// A message travels in pieces of this size, as MPI counts bytes in 32 bits. A shorter one is the last.
const PIECE: usize = 1 << 30;
/// Rounds of asking before a waiting process lets others have its core.
const ROUNDS: u32 = 2_000;
/// How long it then rests between two rounds.
const REST: Duration = Duration::from_micros(50);
/// How long to wait until the others have taken in the reason of a failure.
const FAREWELL: Duration = Duration::from_secs(1);

/// The world that MPI has started.
pub struct Mpi {
    rank: usize,
    ranks: usize,
    /// What ends MPI when it is dropped, which waits for all.
    ending: Mutex<Option<ManuallyDrop<Universe>>>,
    /// Held while MPI is called: only one thread may at a time.
    calling: Mutex<()>,
}

impl Mpi {
    /// Joins the world, and makes sure that all in it know the same key.
    ///
    /// # Errors
    /// MPI can't serve a process of several threads, or has been started before; another has another key, or does not come
    /// within `timeout`.
    pub fn start(key: &[u8; 32], timeout: Duration) -> RuntimeResult<Self> {
        let started = mpi::initialize_with_threading(mpi::Threading::Serialized);
        let (universe, threading) =
            started.ok_or_else(|| RuntimeError::Bug("MPI is started twice".to_owned()))?;
        let world = universe.world();
        let (rank, ranks) = (world.rank() as usize, world.size() as usize);
        let ending = Mutex::new(Some(ManuallyDrop::new(universe)));
        if threading < mpi::Threading::Serialized {
            let text = "this MPI library does not serve processes of several threads (MPI_THREAD_SERIALIZED)";
            return Err(RuntimeError::Fault(text.to_owned()));
        }
        let started = Self { rank, ranks, ending, calling: Mutex::new(()) };
        started.require_same(key, timeout)?;
        Ok(started)
    }

    fn require_same(&self, key: &[u8; 32], timeout: Duration) -> RuntimeResult<()> {
        let all: Vec<usize> = (0..self.ranks).collect();
        let mut outgoing = vec![key.to_vec(); self.ranks];
        let mut incoming = outgoing.clone();
        let health = Health::new(self.ranks);
        let patience = Patience { health: &health, spin: 0, timeout };
        let exchanged = self.exchange(&all, &mut outgoing, &mut incoming, patience);
        exchanged.map_err(|refusal| match refusal {
            Refusal::Abandoned => {
                health.failure().unwrap_or_else(|| RuntimeError::Bug("a rank failed".to_owned()))
            }
            Refusal::Missing(rank) | Refusal::Disagrees(rank) | Refusal::Gone(rank) => {
                let seconds = timeout.as_secs_f64();
                RuntimeError::Fault(format!("rank {rank} did not come within {seconds} s"))
            }
        })?;
        match incoming.iter().position(|theirs| theirs != key) {
            None => Ok(()),
            Some(other) => Err(RuntimeError::Fault(format!("rank {other} has another program or run"))),
        }
    }

    /// Why to give up waiting for a member, if there is a reason.
    fn reason_to_leave(
        &self,
        start: Instant,
        missing: Option<usize>,
        patience: Patience<'_>,
    ) -> Option<Refusal> {
        let told = SimpleCommunicator::world().any_process().immediate_matched_probe_with_tag(FAILURE);
        if let Some((message, status)) = told {
            let mut reason = vec![0; status.count(u8::equivalent_datatype()).max(0) as usize];
            message.matched_receive_into(&mut reason[..]);
            let reason = String::from_utf8_lossy(&reason);
            patience.health.fail(failure_elsewhere(status.source_rank() as usize, &reason));
        }
        if patience.health.has_failed() {
            return Some(Refusal::Abandoned);
        }
        (start.elapsed() >= patience.timeout).then(|| Refusal::Missing(missing.unwrap_or(0)))
    }
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(
        &self,
        ranks: &[usize],
        outgoing: &mut [Vec<u8>],
        incoming: &mut [Vec<u8>],
        patience: Patience<'_>,
    ) -> Result<(), Refusal> {
        let _calling = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
        let world = SimpleCommunicator::world();
        let others = || (0..ranks.len()).filter(|&member| ranks[member] != self.rank);
        let start = Instant::now();
        let result = scope(|scope| {
            let mut sends = Vec::new();
            for member in others() {
                let to = world.process_at_rank(ranks[member] as i32);
                for piece in pieces(&outgoing[member]) {
                    sends.push((member, to.immediate_send_with_tag(scope, piece, MESSAGE)));
                }
            }
            let mut awaited: Vec<usize> = others().collect();
            awaited.iter().for_each(|&member| incoming[member].clear());
            let mut rounds = 0;
            while !(sends.is_empty() && awaited.is_empty()) {
                awaited.retain(|&member| !take_in(&world, ranks[member], &mut incoming[member]));
                sends = still_going(sends);
                let missing = awaited.first().copied().or(sends.first().map(|&(member, _)| member));
                if let Some(refusal) = self.reason_to_leave(start, missing, patience) {
                    for (_, send) in sends {
                        // SAFETY: MPI may read what is being sent for as long as the process runs; below it is leaked.
                        unsafe { send.into_raw() };
                    }
                    return Err(refusal);
                }
                rounds += 1;
                if rounds > ROUNDS {
                    std::thread::sleep(REST);
                }
            }
            Ok(())
        });
        if result.is_err() {
            outgoing.iter_mut().for_each(|message| std::mem::forget(std::mem::take(message)));
        }
        result
    }

    fn look(&self, patience: Patience<'_>) -> Result<(), Refusal> {
        // Whoever is inside of MPI looks as well.
        let Ok(_calling) = self.calling.try_lock() else { return Ok(()) };
        self.reason_to_leave(Instant::now(), None, patience).map_or(Ok(()), Err)
    }

    fn fail(&self, reason: &str) {
        let start = Instant::now();
        let _calling = loop {
            match self.calling.try_lock() {
                Ok(calling) => break calling,
                // Whoever only looks is done in no time.
                Err(_) if start.elapsed() < FAREWELL => std::thread::sleep(REST),
                // Where a rank's thread is inside of MPI and stays there, all that is left is to end.
                Err(_) => return,
            }
        };
        let reason: &'static [u8] = reason.as_bytes().to_vec().leak();
        let world = SimpleCommunicator::world();
        let start = Instant::now();
        let mut sends: Vec<_> = (0..self.ranks)
            .filter(|&rank| rank != self.rank)
            .map(|rank| {
                let to = world.process_at_rank(rank as i32);
                (rank, to.immediate_send_with_tag(mpi::request::StaticScope, reason, FAILURE))
            })
            .collect();
        while !sends.is_empty() && start.elapsed() < FAREWELL {
            sends = still_going(sends);
            std::thread::sleep(REST);
        }
        // Who has not taken it in by now does not listen.
        sends.into_iter().for_each(std::mem::forget);
    }

    fn part(&self) {
        let _calling = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
        let universe = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(universe.map(ManuallyDrop::into_inner));
    }
}

/// A message in pieces, of which the last is shorter than the others.
fn pieces(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..=message.len() / PIECE)
        .map(|piece| &message[piece * PIECE..(piece * PIECE + PIECE).min(message.len())])
}

/// Appends a piece from a rank, if one is there. Whether it was the last.
fn take_in(world: &SimpleCommunicator, rank: usize, message: &mut Vec<u8>) -> bool {
    let from = world.process_at_rank(rank as i32);
    let Some((piece, status)) = from.immediate_matched_probe_with_tag(MESSAGE) else { return false };
    let (start, bytes) = (message.len(), status.count(u8::equivalent_datatype()).max(0) as usize);
    message.resize(start + bytes, 0);
    piece.matched_receive_into(&mut message[start..]);
    bytes < PIECE
}

/// What of some sends is not done.
fn still_going<'a, S: Scope<'a>>(
    sends: Vec<(usize, Request<'a, [u8], S>)>,
) -> Vec<(usize, Request<'a, [u8], S>)> {
    sends.into_iter().filter_map(|(to, send)| send.test().err().map(|send| (to, send))).collect()
}
