//! Where a world's ranks are, and what its processes say to each other between steps: that they agree, whether to stop, the
//! parts of a tensor that the first one puts together.
//!
//! All processes call the same of these functions in the same order. In a world of one process each is done at once.

use std::ops::Range;
use std::sync::Arc;

use super::Session;
use crate::collectives::{Header, Patience, Refusal};
use crate::error::{Result, RuntimeError};
use crate::processes::{HEADER_BYTES, Transport, begin, header_of};

/// Where the ranks are.
pub enum World {
    /// So many, as threads of this process.
    Here(usize),
    /// One in each process.
    Processes(Arc<dyn Transport>),
}

impl World {
    /// The ranks of this process.
    pub fn here(&self) -> Range<usize> {
        match self {
            Self::Here(ranks) => 0..*ranks,
            Self::Processes(transport) => transport.rank()..transport.rank() + 1,
        }
    }

    /// What leads to the others, where they are in other processes.
    pub fn transport(&self) -> Option<Arc<dyn Transport>> {
        match self {
            Self::Here(_) => None,
            Self::Processes(transport) => Some(Arc::clone(transport)),
        }
    }
}

/// What the processes speak of between steps; beyond the numbers of collectives.
#[derive(Clone, Copy, Debug)]
enum Subject {
    Agreement = 1,
    Question = 2,
    Part = 3,
}

impl Session {
    /// Whether rank 0 is in this process, which speaks for the run: it prints, and writes checkpoints.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.world.here().contains(&0)
    }

    /// Whether all ranks are in this process.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        matches!(self.world, World::Here(_))
    }

    /// Makes sure that something is the same in all processes, by a digest of it.
    ///
    /// # Errors
    /// Another has another, or does not come; `what` is for the message.
    pub fn agree(&self, what: &str, digest: u64) -> Result<()> {
        let World::Processes(transport) = &self.world else { return Ok(()) };
        let answers = self.ask_all(transport, Subject::Agreement, &digest.to_le_bytes(), what)?;
        let differs = |answer: &Vec<u8>| answer.get(HEADER_BYTES..) != Some(&digest.to_le_bytes()[..]);
        let other = (0..answers.len()).find(|&rank| rank != transport.rank() && differs(&answers[rank]));
        match other {
            None => Ok(()),
            Some(other) => {
                let own = transport.rank();
                Err(RuntimeError::input(format!("rank {own} and rank {other} differ in {what}")))
            }
        }
    }

    /// Whether any process says so.
    ///
    /// # Errors
    /// One does not come.
    pub fn any(&self, so: bool) -> Result<bool> {
        let World::Processes(transport) = &self.world else { return Ok(so) };
        let answers = self.ask_all(transport, Subject::Question, &[u8::from(so)], "whether to go on")?;
        Ok(so || answers.iter().any(|answer| answer.get(HEADER_BYTES) == Some(&1)))
    }

    /// Hands a part of a tensor, which is `rank`'s, to rank 0: what rank 0 gets is returned there, and nothing elsewhere.
    pub(super) fn hand_to_first(&self, rank: usize, part: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let own = self.world.here().start;
        let World::Processes(transport) = &self.world else { return Ok(Some(part)) };
        if own == rank && rank == 0 {
            return Ok(Some(part));
        }
        if own != rank && own != 0 {
            return Ok(None);
        }
        let empty = if own == 0 { &[][..] } else { &part };
        let mut answers = self.ask(transport, &[0, rank], Subject::Part, empty, "a part of a tensor")?;
        Ok((own == 0).then(|| answers.pop().unwrap_or_default().split_off(HEADER_BYTES)))
    }

    /// Tells the other processes that this one has failed, so that they leave.
    pub fn fail(&self, reason: &str) {
        if let World::Processes(transport) = &self.world {
            transport.fail(reason);
        }
        if let Some(network) = &self.network {
            network.abort();
        }
    }

    /// Takes leave of the other processes, when all has ended well.
    pub fn part(&self) {
        if let World::Processes(transport) = &self.world {
            transport.part();
        }
    }

    fn ask_all(
        &self,
        transport: &Arc<dyn Transport>,
        subject: Subject,
        body: &[u8],
        what: &str,
    ) -> Result<Vec<Vec<u8>>> {
        let all: Vec<usize> = (0..transport.ranks()).collect();
        self.ask(transport, &all, subject, body, what)
    }

    /// Sends the same to some ranks, and returns what each sent, with its header.
    fn ask(
        &self,
        transport: &Arc<dyn Transport>,
        ranks: &[usize],
        subject: Subject,
        body: &[u8],
        what: &str,
    ) -> Result<Vec<Vec<u8>>> {
        let header = Header { collective: u64::MAX, digest: subject as u64 };
        let mut message = Vec::new();
        begin(&mut message, header);
        message.extend_from_slice(body);
        let mut outgoing = vec![message; ranks.len()];
        let mut incoming = vec![Vec::new(); ranks.len()];
        let timeout = self.options.timeout;
        let patience = Patience { health: &self.control.health, spin: 0, timeout };
        let own = transport.rank();
        let exchanged = transport.exchange(ranks, &mut outgoing, &mut incoming, patience);
        exchanged.map_err(|refusal| match refusal {
            Refusal::Abandoned => {
                let failure = self.control.health.failure();
                failure.unwrap_or_else(|| RuntimeError::Bug("a rank failed".into()))
            }
            Refusal::Missing(member) | Refusal::Disagrees(member) => RuntimeError::Fault(format!(
                "rank {} did not come to rank {own} within {} s to settle {what}",
                ranks[member],
                timeout.as_secs_f64()
            )),
            Refusal::Gone(rank) => RuntimeError::Fault(format!(
                "rank {rank} is gone: its process ended while rank {own} settled {what}"
            )),
        })?;
        let others = (0..ranks.len()).filter(|&member| ranks[member] != own);
        let stray = others.into_iter().find(|&member| header_of(&incoming[member]) != Some(header));
        match stray {
            None => Ok(incoming),
            Some(member) => Err(RuntimeError::Bug(format!(
                "rank {own} settles {what} and rank {} is elsewhere in the run",
                ranks[member]
            ))),
        }
    }
}
