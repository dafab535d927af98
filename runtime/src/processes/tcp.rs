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
    /// A rank has failed, and the sender ends because of it; the rest is the rank, u32, and the reason.
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
        let deadline = Instant::now() + patience;
        for link in self.shared.links.iter().flatten() {
            // Who can't be reached any more knows, or is the reason; so is who does not take in a message half sent.
            if let Ok(_sending) = link.sending.try_lock() {
                let _ = link.write(kind, bytes);
            }
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        (0..self.shared.links.len()).for_each(|rank| self.await_end(rank, deadline));
    }

    /// Waits until a rank has ended and all that it sent is read.
    fn await_end(&self, rank: usize, deadline: Instant) {
        let Some(link) = self.shared.links.get(rank).and_then(Option::as_ref) else { return };
        let mut inbox = lock(&link.inbox);
        while !inbox.ended && Instant::now() < deadline {
            let woken = link.arrived.wait_timeout(inbox, NAP);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
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
                // Its connection has ended. Why may stand behind messages that came before.
                self.await_end(rank, Instant::now() + FAREWELL);
                let gone = || Fallen { rank, reason: None };
                let fallen = lock(&self.shared.fallen).clone().unwrap_or_else(gone);
                return Err(Self::refusal(Wait::Fallen(fallen), member, patience));
            }
        }
        for (member, &rank) in ranks.iter().enumerate() {
            let received = self.receive(rank, &mut incoming[member], patience);
            received.map_err(|wait| Self::refusal(wait, member, patience))?;
        }
        Ok(())
    }

    fn look(&self, patience: Patience<'_>) -> Result<(), Refusal> {
        let fallen = lock(&self.shared.fallen).clone();
        fallen.map_or(Ok(()), |fallen| Err(Self::refusal(Wait::Fallen(fallen), 0, patience)))
    }

    fn fail(&self, reason: &str) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        // Who leaves because of another passes on why: this connection may end before the other's word arrives.
        let (rank, reason) = match lock(&self.shared.fallen).clone() {
            Some(Fallen { rank, reason: Some(reason) }) => (rank, reason),
            Some(Fallen { reason: None, .. }) | None => (self.rank, reason.to_owned()),
        };
        let mut end = reason.len().min(REASON_LIMIT as usize);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = [&(rank as u32).to_le_bytes()[..], &reason.as_bytes()[..end]].concat();
        self.end(Kind::Failure, &bytes, Duration::ZERO);
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
                Ok((Kind::Failure, bytes)) => break Some(failure_of(rank, &bytes)),
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

/// Who failed, and why, as a rank tells it.
fn failure_of(sender: usize, bytes: &[u8]) -> Fallen {
    let (rank, reason) = match bytes.split_first_chunk() {
        Some((rank, reason)) => (u32::from_le_bytes(*rank) as usize, reason),
        None => (sender, bytes),
    };
    Fallen { rank, reason: Some(String::from_utf8_lossy(reason).into_owned()) }
}

/// Reads a frame into a buffer, which grows with what arrives and not with what is announced.
fn read_frame(stream: &mut impl Read, limit: u64, mut bytes: Vec<u8>) -> std::io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u64::from_le_bytes(length);
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let kind = Kind::of(kind).ok_or_else(invalid)?;
    let most = match kind {
        Kind::Message => limit,
        Kind::Failure => REASON_LIMIT + 4,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, announced: u64, bytes: &[u8]) -> Vec<u8> {
        [&[kind], &announced.to_le_bytes()[..], bytes].concat()
    }

    fn read(bytes: &[u8]) -> std::io::Result<(Kind, Vec<u8>)> {
        read_frame(&mut &bytes[..], 100, Vec::new())
    }

    #[test]
    fn a_frame_is_what_it_announces_or_nothing() {
        let read_good = |bytes: &[u8]| read(bytes).expect("a frame");
        assert_eq!(read_good(&frame(1, 3, b"abcd")), (Kind::Message, b"abc".to_vec()));
        assert_eq!(read_good(&frame(1, 0, b"")), (Kind::Message, Vec::new()));
        assert_eq!(read_good(&frame(2, 500, &[b'x'; 500])), (Kind::Failure, vec![b'x'; 500]));
        assert_eq!(read_good(&frame(3, 0, b"")), (Kind::Farewell, Vec::new()));
        for wrong in [
            frame(1, 101, &[0; 101]),
            frame(1, u64::MAX, &[0; 101]),
            frame(1, 4, b"abc"),
            frame(2, REASON_LIMIT + 5, &[0; 1 << 17]),
            frame(3, 1, b"a"),
            frame(0, 0, b""),
            frame(4, 0, b""),
            frame(1, 3, b"abc")[..8].to_vec(),
            Vec::new(),
        ] {
            assert!(read(&wrong).is_err(), "{:?}", &wrong[..wrong.len().min(12)]);
        }
    }

    #[test]
    fn who_leaves_because_of_another_passes_on_why() {
        let pair = || -> std::io::Result<[Option<TcpStream>; 2]> {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
            let caller = TcpStream::connect(listener.local_addr()?)?;
            Ok([Some(caller), Some(listener.accept()?.0)])
        };
        let long = Duration::from_secs(60);
        let transport = |rank, streams| Tcp::new(rank, streams, 100, long).expect("it starts");
        let exchange = |transport: &Tcp, other: usize| {
            let health = crate::health::Health::new(3);
            let patience = Patience { health: &health, spin: 0, timeout: long };
            let refusal = transport.exchange(&[other], &mut [vec![1]], &mut [Vec::new()], patience);
            (refusal, health.failure().map(|failure| failure.to_string()).unwrap_or_default())
        };
        // Rank 0 has no connection to rank 2, as if that one's word were late.
        let ([zero, one], [one_too, two]) = (pair().expect("a pair"), pair().expect("a pair"));
        let zero = transport(0, vec![None, zero, None]);
        let one = transport(1, vec![one, None, one_too]);
        let two = transport(2, vec![None, two, None]);
        // What two sends to one before is not what it ends with, even if one's own message no longer reaches it.
        for _ in 0..3 {
            two.send(1, Kind::Message, &[2]).expect("it is sent");
        }
        two.fail("the disk is full");
        drop(two);
        let told = (Err(Refusal::Abandoned), "rank 2 failed: the disk is full".to_owned());
        let ends = (0..4).map(|_| {
            std::thread::sleep(NAP);
            exchange(&one, 2)
        });
        let ends: Vec<_> = ends.collect();
        assert!(ends.contains(&told) && ends.iter().all(|it| *it == told || it.0.is_ok()), "{ends:?}");
        one.fail("rank 2 failed");
        drop(one);
        assert_eq!(exchange(&zero, 1), told);
        // Without a word it is just gone.
        let [left, right] = pair().expect("a pair");
        let left = transport(0, vec![None, left]);
        drop(transport(1, vec![right, None]));
        assert_eq!(exchange(&left, 1).0, Err(Refusal::Gone(1)));
    }

    #[test]
    fn what_is_announced_and_does_not_come_takes_no_room() {
        let huge = frame(1, 1 << 45, &[7; 1000]);
        let mut stream = &huge[..];
        let error = read_frame(&mut stream, 1 << 46, Vec::new()).expect_err("most of it is missing");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
