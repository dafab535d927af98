//! How the processes of a run find out whether their ranks can meet through NCCL, and do.
//!
//! Every process tells all others what it has; so all come to the same answer. They can where each rank has a GPU of its own and all have NCCL, of
//! one version.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Nccl, NcclNetwork, UniqueId};
use crate::collectives::{Header, Patience, Refusal};
use crate::error::{Result, RuntimeError};
use crate::gpu::{Gpu, Search};
use crate::health::Health;
use crate::processes::{HEADER_BYTES, Transport, begin, header_of};
use crate::program::Program;

/// What came of it, the same in all processes.
pub enum Meeting {
    /// They have met.
    Met(Arc<NcclNetwork>),
    /// They can't; for the user, why.
    Apart(String),
}

/// What is said by this is about the meeting; beyond the numbers of collectives, and of what a session says.
const HEADER: Header = Header { collective: u64::MAX, digest: 1 << 32 };

/// What a process tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Word {
    /// The GPU's own name.
    gpu: [u8; 16],
    /// Of NCCL, and from rank 0 what all are to join by; or why there is none.
    nccl: std::result::Result<(i32, Vec<u8>), String>,
}

/// Lets the ranks of a program, each a process with a GPU, meet through the library that is where `search` says. All processes call this.
///
/// # Errors
/// One does not come, or NCCL fails where it should not.
pub fn meet(
    gpu: &Arc<Gpu>,
    search: &Search,
    transport: &dyn Transport,
    program: &Program,
    patience: Duration,
) -> Result<Meeting> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let nccl = Nccl::open(search);
    let of_nccl = nccl.as_ref().map_err(Clone::clone).and_then(|nccl| {
        let id = if rank == 0 { nccl.unique_id()?.0.to_vec() } else { Vec::new() };
        Ok((nccl.version(), id))
    });
    let gpu_name = gpu.unique_name().map_err(|error| RuntimeError::of_device("the GPU's name", &error))?;
    let word = Word { gpu: gpu_name, nccl: of_nccl.map_err(|error| error.to_string()) };
    let words = tell_all(transport, &word, patience)?;
    if let Some(reason) = why_apart(&words) {
        return Ok(Meeting::Apart(reason));
    }
    let id = words.into_iter().next().and_then(|word| word.nccl.ok()).map(|(_, id)| id);
    let id = id.and_then(|id| <[u8; 128]>::try_from(id).ok());
    let id = id.ok_or_else(|| RuntimeError::Bug("rank 0 tells no identifier of NCCL".to_owned()))?;
    let health = Health::new(ranks);
    let looking = Patience { health: &health, spin: 0, timeout: Duration::MAX };
    let has_failed = || transport.look(looking).is_err();
    let name = program.mesh.rank_name(rank);
    let world = nccl?.join(Arc::clone(gpu), UniqueId(id), (rank, ranks), name, patience, &has_failed);
    let network =
        world.and_then(|world| NcclNetwork::new(Arc::clone(gpu), world, program, patience, &has_failed));
    // What another process has said is worth more.
    let network = network.map_err(|error| health.failure().unwrap_or(error))?;
    Ok(Meeting::Met(Arc::new(network)))
}

/// Tells all processes a word; theirs by rank.
fn tell_all(transport: &dyn Transport, word: &Word, timeout: Duration) -> Result<Vec<Word>> {
    let (own, ranks) = (transport.rank(), transport.ranks());
    let unreadable = || RuntimeError::Bug("what a process tells of its GPU can't be read".to_owned());
    let all: Vec<usize> = (0..ranks).collect();
    let mut message = Vec::new();
    begin(&mut message, HEADER);
    message.extend(postcard::to_stdvec(word).map_err(|_| unreadable())?);
    let (mut outgoing, mut incoming) = (vec![message.clone(); ranks], vec![Vec::new(); ranks]);
    let health = Health::new(ranks);
    let patience = Patience { health: &health, spin: 0, timeout };
    let exchanged = transport.exchange(&all, &mut outgoing, &mut incoming, patience);
    exchanged.map_err(|refusal| match refusal {
        Refusal::Abandoned => {
            health.failure().unwrap_or_else(|| RuntimeError::Bug("a rank failed".to_owned()))
        }
        Refusal::Missing(rank) | Refusal::Disagrees(rank) | Refusal::Gone(rank) => RuntimeError::Fault(
            format!("rank {rank} did not tell rank {own} of its GPU within {} s", timeout.as_secs_f64()),
        ),
    })?;
    incoming[own] = message;
    let read = |message: &Vec<u8>| {
        let body = message.get(HEADER_BYTES..).filter(|_| header_of(message) == Some(HEADER));
        body.and_then(|body| postcard::from_bytes(body).ok()).ok_or_else(unreadable)
    };
    incoming.iter().map(read).collect()
}

/// Why ranks that said so can't meet, if they can't.
fn why_apart(words: &[Word]) -> Option<String> {
    for (rank, word) in words.iter().enumerate() {
        if let Some(other) = words[..rank].iter().position(|other| other.gpu == word.gpu) {
            return Some(format!("rank {other} and rank {rank} share a GPU"));
        }
    }
    for (rank, word) in words.iter().enumerate() {
        if let Err(reason) = &word.nccl {
            return Some(format!("rank {rank} can't use NCCL: {reason}"));
        }
    }
    let versions = words.iter().map(|word| word.nccl.as_ref().map_or(0, |(version, _)| *version));
    let versions: Vec<i32> = versions.collect();
    let other = versions.iter().position(|version| *version != versions[0])?;
    let [first, second] = [versions[0], versions[other]];
    Some(format!("rank 0 has version {first} of NCCL and rank {other} version {second}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_meet_where_each_has_a_gpu_and_the_library_of_all() {
        let word = |gpu: u8, version: i32| Word { gpu: [gpu; 16], nccl: Ok((version, Vec::new())) };
        let missing = || Word { gpu: [9; 16], nccl: Err("NCCL is missing: …".to_owned()) };
        let why = |words: &[Word]| why_apart(words).unwrap_or_default();
        assert_eq!(why(&[word(1, 22_800), word(2, 22_800), word(3, 22_800)]), "");
        assert_eq!(why(&[word(1, 1), word(2, 1), word(1, 1)]), "rank 0 and rank 2 share a GPU");
        assert_eq!(why(&[word(1, 1), missing()]), "rank 1 can't use NCCL: NCCL is missing: …");
        let differ = "rank 0 has version 22800 of NCCL and rank 1 version 22900";
        assert_eq!(why(&[word(1, 22_800), word(2, 22_900)]), differ);
    }
}
