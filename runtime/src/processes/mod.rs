//! Ranks of one world in several processes: what carries messages between them, and what a message says of itself.
//!
//! A process has one rank. What it exchanges is decided elsewhere: `executor::messages` for collectives, `session::world` for
//! what happens between steps. [`tcp`] carries messages over sockets, after all have found each other as [`rendezvous`] says.

#[cfg(feature = "mpi")]
pub mod mpi;
pub mod rendezvous;
pub mod tcp;

use crate::collectives::{Header, Patience, Refusal};
use crate::error::RuntimeError;

/// Carries byte messages between the processes of a world, those of one to another in the order that they were sent in.
pub trait Transport: Send + Sync {
    /// The rank of this process.
    fn rank(&self) -> usize;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// Sends to each of `ranks` its message and receives one of each, which replaces what `incoming` held. What stands
    /// at this process's own rank is left alone. Of an exchange that fails, what was to be sent may be gone.
    ///
    /// # Errors
    /// A rank did not send in time, its process is gone, or the world has failed; a failure that another process told of
    /// is then in `patience.health`.
    fn exchange(
        &self,
        ranks: &[usize],
        outgoing: &mut [Vec<u8>],
        incoming: &mut [Vec<u8>],
        patience: Patience<'_>,
    ) -> Result<(), Refusal>;

    /// Sees, without waiting, whether another process has failed or is gone.
    ///
    /// # Errors
    /// One has: as those of an exchange that fails because of it.
    fn look(&self, patience: Patience<'_>) -> Result<(), Refusal>;

    /// Tells all others that this process has failed, so that they leave. Does what it can, once.
    fn fail(&self, reason: &str);

    /// Ends well, when all have agreed that nothing more is to be said.
    fn part(&self);
}

/// Bytes of a message that say what it is about.
pub const HEADER_BYTES: usize = 16;

/// Empties a message but for its header.
pub fn begin(message: &mut Vec<u8>, header: Header) {
    message.clear();
    message.extend_from_slice(&header.collective.to_le_bytes());
    message.extend_from_slice(&header.digest.to_le_bytes());
}

/// What a message says that it is about; none where it is too short to say.
#[must_use]
pub fn header_of(message: &[u8]) -> Option<Header> {
    let (collective, rest) = message.split_first_chunk()?;
    let (digest, _) = rest.split_first_chunk()?;
    Some(Header { collective: u64::from_le_bytes(*collective), digest: u64::from_le_bytes(*digest) })
}

/// What a process makes of the reason that another gives for its failure.
#[must_use]
pub fn failure_elsewhere(rank: usize, reason: &str) -> RuntimeError {
    RuntimeError::Fault(format!("rank {rank} failed: {reason}"))
}
