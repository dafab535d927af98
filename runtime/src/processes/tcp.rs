//! Messages over TCP: a connection between each two processes, and a thread for each that takes in what the other sends.
//!
//! ```text
//! kind, one byte | length of the rest, u64, little-endian | the rest
//! ```
//!
//! As every process always reads, a send never waits for the other's next receive. How connections are made and whom they
//! are made with is [`super::rendezvous`]'s part.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Transport, failure_elsewhere};
use crate::collectives::{Patience, Refusal};
use crate::error::{Result as RuntimeResult, RuntimeError};

/// How long a waiting thread goes without looking whether it should give up.
const NAP: Duration = Duration::from_millis(20);
/// How long to wait for others to take note of the end.
const FAREWELL: Duration = Duration::from_secs(5);
/// A reason for a failure is cut off here.
const REASON_LIMIT: u64 = 1 << 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One of an exchange.
    Message = 1,
    /// The sender has failed; the rest is the reason.
    Failure = 2,
    /// The sender has ended well.
    Farewell = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Message, Self::Failure, Self::Farewell].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// Connections to all other processes.
pub struct Tcp {
    rank: usize,
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    told: AtomicBool,
}

struct Shared {
    /// By rank; none at this process's own.
    links: Vec<Option<Link>>,
    /// The first failure that was seen.
    fallen: Mutex<Option<Fallen>>,
    /// The longest message that any process has a reason to send.
    limit: u64,
}

/// A rank that failed.
#[derive(Clone, Debug)]
struct Fallen {
    rank: usize,
    /// What it said; nothing where its connection just ended.
    reason: Option<String>,
}

struct Link {
    stream: TcpStream,
    /// Held while a frame is written.
    sending: Mutex<()>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Default)]
struct Inbox {
    messages: VecDeque<Vec<u8>>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    ended: bool,
}

impl Tcp {
    /// Takes over connections, by rank. No message may be longer than `limit`; a send that the other end does not take in
    /// within `timeout` fails.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(
        rank: usize,
        streams: Vec<Option<TcpStream>>,
        limit: u64,
        timeout: Duration,
    ) -> RuntimeResult<Self> {
        let failed = |error: std::io::Error| RuntimeError::Fault(format!("a connection to a rank: {error}"));
        let (mut links, mut inputs) = (Vec::new(), Vec::new());
        for (rank, stream) in streams.into_iter().enumerate() {
            let Some(stream) = stream else {
                links.push(None);
                continue;
            };
            stream.set_nodelay(true).map_err(failed)?;
            stream.set_read_timeout(None).map_err(failed)?;
            stream.set_write_timeout(Some(timeout)).map_err(failed)?;
            inputs.push((rank, stream.try_clone().map_err(failed)?));
            let (sending, inbox) = (Mutex::new(()), Mutex::new(Inbox::default()));
            links.push(Some(Link { stream, sending, inbox, arrived: Condvar::new() }));
        }
        let shared = Arc::new(Shared { links, fallen: Mutex::new(None), limit });
        let mut transport =
            Self { rank, shared: Arc::clone(&shared), readers: Vec::new(), told: AtomicBool::new(false) };
        for (rank, stream) in inputs {
            let shared = Arc::clone(&shared);
            let reader = std::thread::Builder::new().name(format!("from rank {rank}"));
            let reader = reader.spawn(move || shared.read(rank, stream));
            transport.readers.push(reader.map_err(failed)?);
        }
        Ok(transport)
    }

    fn send(&self, rank: usize, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        let Some(link) = self.shared.links.get(rank).and_then(Option::as_ref) else { return Ok(()) };
        let _sending = lock(&link.sending);
        link.write(kind, bytes)
    }

    /// Waits for a message; the buffer given is used again for a later one.
    fn receive(&self, rank: usize, message: &mut Vec<u8>, patience: Patience<'_>) -> Result<(), Wait> {
        let Some(link) = self.shared.links.get(rank).and_then(Option::as_ref) else { return Ok(()) };
        let start = Instant::now();
        let mut inbox = lock(&link.inbox);
        loop {
            if let Some(arrived) = inbox.messages.pop_front() {
                inbox.spare.push(std::mem::replace(message, arrived));
                return Ok(());
            }
            if patience.health.has_failed() {
                return Err(Wait::Abandoned);
            }
            if let Some(fallen) = lock(&self.shared.fallen).clone() {
                return Err(Wait::Fallen(fallen));
            }
            if inbox.ended {
                return Err(Wait::Fallen(Fallen { rank, reason: None }));
            }
            if start.elapsed() >= patience.timeout {
                return Err(Wait::InVain);
            }
            let woken = link.arrived.wait_timeout(inbox, NAP);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What a wait that came to nothing is to who takes part in an exchange.
    fn refusal(wait: Wait, member: usize, patience: Patience<'_>) -> Refusal {
        match wait {
            Wait::Abandoned => Refusal::Abandoned,
            Wait::InVain => Refusal::Missing(member),
            Wait::Fallen(Fallen { rank, reason: None }) => Refusal::Gone(rank),
            Wait::Fallen(Fallen { rank, reason: Some(reason) }) => {
                patience.health.fail(failure_elsewhere(rank, &reason));
                Refusal::Abandoned
            }
        }
    }

    /// Says a last word to all, and waits a moment until they have ended too.
    fn end(&self, kind: Kind, bytes: &[u8], patience: Duration) {
        let start = Instant::now();
        for link in self.shared.links.iter().flatten() {
            // Who can't be reached any more knows, or is the reason; so is who does not take in a message half sent.
            if let Ok(_sending) = link.sending.try_lock() {
                let _ = link.write(kind, bytes);
            }
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        for link in self.shared.links.iter().flatten() {
            let mut inbox = lock(&link.inbox);
            while !inbox.ended && start.elapsed() < patience {
                let woken = link.arrived.wait_timeout(inbox, NAP);
                inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Why a message did not come.
enum Wait {
    /// This process has failed.
    Abandoned,
    /// Another has.
    Fallen(Fallen),
    /// Time is up.
    InVain,
}

impl Transport for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.links.len()
    }

    fn exchange(
        &self,
        ranks: &[usize],
        outgoing: &mut [Vec<u8>],
        incoming: &mut [Vec<u8>],
        patience: Patience<'_>,
    ) -> Result<(), Refusal> {
        for (member, &rank) in ranks.iter().enumerate() {
            if self.send(rank, Kind::Message, &outgoing[member]).is_err() {
                // Why is on its way from there, or the connection has ended.
                let brief = Patience { timeout: patience.timeout.min(FAREWELL), ..patience };
                return match self.receive(rank, &mut Vec::new(), brief) {
                    Ok(()) | Err(Wait::InVain) => Err(Refusal::Gone(rank)),
                    Err(wait) => Err(Self::refusal(wait, member, patience)),
                };
            }
        }
        for (member, &rank) in ranks.iter().enumerate() {
            let received = self.receive(rank, &mut incoming[member], patience);
            received.map_err(|wait| Self::refusal(wait, member, patience))?;
        }
        Ok(())
    }

    fn fail(&self, reason: &str) {
        let told_by_another = lock(&self.shared.fallen).as_ref().is_some_and(|it| it.reason.is_some());
        if self.told.swap(true, Ordering::Relaxed) || told_by_another {
            return;
        }
        let mut end = reason.len().min(REASON_LIMIT as usize);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.end(Kind::Failure, &reason.as_bytes()[..end], Duration::ZERO);
    }

    fn part(&self) {
        if !self.told.swap(true, Ordering::Relaxed) {
            self.end(Kind::Farewell, &[], FAREWELL);
        }
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        for link in self.shared.links.iter().flatten() {
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        for reader in self.readers.drain(..) {
            // A panic of its own was reported when it happened.
            let _ = reader.join();
        }
    }
}

impl Link {
    fn write(&self, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        let mut head = [kind as u8; 9];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        (&self.stream).write_all(&head)?;
        (&self.stream).write_all(bytes)
    }
}

impl Shared {
    /// Takes in what a rank sends until it ends.
    fn read(&self, rank: usize, mut stream: TcpStream) {
        let Some(link) = self.links.get(rank).and_then(Option::as_ref) else { return };
        let fallen = loop {
            let spare = lock(&link.inbox).spare.pop().unwrap_or_default();
            match read_frame(&mut stream, self.limit, spare) {
                Ok((Kind::Message, bytes)) => {
                    lock(&link.inbox).messages.push_back(bytes);
                    link.arrived.notify_all();
                }
                Ok((Kind::Farewell, _)) => break None,
                Ok((Kind::Failure, reason)) => {
                    break Some(Fallen { rank, reason: Some(String::from_utf8_lossy(&reason).into_owned()) });
                }
                Err(_) => break Some(Fallen { rank, reason: None }),
            }
        };
        if let Some(fallen) = fallen {
            lock(&self.fallen).get_or_insert(fallen);
        }
        lock(&link.inbox).ended = true;
        link.arrived.notify_all();
    }
}

/// Reads a frame into a buffer, which grows with what arrives and not with what is announced.
fn read_frame(stream: &mut TcpStream, limit: u64, mut bytes: Vec<u8>) -> std::io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u64::from_le_bytes(length);
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let kind = Kind::of(kind).ok_or_else(invalid)?;
    let most = match kind {
        Kind::Message => limit,
        Kind::Failure => REASON_LIMIT,
        Kind::Farewell => 0,
    };
    if length > most {
        return Err(invalid());
    }
    bytes.clear();
    if stream.take(length).read_to_end(&mut bytes)? as u64 != length {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok((kind, bytes))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
