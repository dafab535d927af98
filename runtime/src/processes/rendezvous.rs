//! How the processes of a run find each other: rank 0 listens where the launcher says, the others come to it, it tells each
//! where the others are, and each then calls those of lower rank.
//!
//! Who comes has to prove that it knows the run's key, and so has who answers:
//!
//! ```text
//! who answers: mark | nonce A
//! who calls:   mark | rank, u32 | port, u16 | nonce B | proof of (A, B, rank, port)
//! who answers: proof of (B, A)
//! ```
//!
//! A proof is a hash under the key, so the key itself never travels. All that is read has a fixed length, or one byte's.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::tcp::Tcp;
use crate::error::{Result, RuntimeError};

const MARK: &[u8; 8] = b"dtlc-r1\n";
/// How long the other end of a connection may take for a part of the greeting.
const GREETING: Duration = Duration::from_secs(5);
/// How long who answers may take to say the first word. Many a server waits to be spoken to.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// How long to wait before looking again.
const NAP: Duration = Duration::from_millis(10);
/// Greetings that go on at the same time; further connections wait.
const GREETINGS: usize = 64;

/// Where the processes of a run meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The host of rank 0.
    pub host: String,
    /// Rank 0 takes the first of these ports that is free; there may be others' on the rest.
    pub ports: Vec<u16>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = &self.host;
        match self.ports.as_slice() {
            [] => write!(formatter, "{host}"),
            [port] => write!(formatter, "{host}:{port}"),
            [first, .., last] => write!(formatter, "{host}:{first} to {last}"),
        }
    }
}

/// Who meets.
#[derive(Clone, Copy, Debug)]
pub struct Party {
    /// The rank of this process.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// What all of them know, and nobody else.
    pub key: [u8; 32],
}

/// Meets the other processes. No message of theirs may be longer than `limit`; `timeout` is for all of the meeting.
///
/// # Errors
/// Someone does not come in time, or the system refuses.
pub fn meet(place: &Place, party: &Party, limit: u64, timeout: Duration) -> Result<Tcp> {
    let streams = match party.rank {
        0 => receive_all(place, party, timeout)?,
        _ => visit_all(place, party, timeout)?,
    };
    Tcp::new(party.rank, streams, limit, timeout)
}

/// Rank 0's part. Returns the connection to each other rank.
fn receive_all(place: &Place, party: &Party, timeout: Duration) -> Result<Vec<Option<TcpStream>>> {
    let listener = listen(place)?;
    let mut gathering = Gathering::new(&listener, party)?;
    gathering.until(party.ranks - 1, Instant::now() + timeout).map_err(|missing| {
        let seconds = timeout.as_secs_f64();
        RuntimeError::Fault(format!("{missing} did not come to {place} within {seconds} s"))
    })?;
    let table = table(&gathering.guests);
    let mut streams: Vec<Option<TcpStream>> = (0..party.ranks).map(|_| None).collect();
    for (rank, guest) in gathering.guests {
        let mut stream = guest.stream;
        stream.write_all(&table).map_err(|error| lost(rank, &error))?;
        streams[rank] = Some(stream);
    }
    Ok(streams)
}

/// The part of the others: to rank 0, then to those of lower rank, while those of higher rank come.
fn visit_all(place: &Place, party: &Party, timeout: Duration) -> Result<Vec<Option<TcpStream>>> {
    let deadline = Instant::now() + timeout;
    let mut streams: Vec<Option<TcpStream>> = (0..party.ranks).map(|_| None).collect();
    let (mut stream, listener) = call_first(place, party, deadline, timeout)?;
    let mut gathering = Gathering::new(&listener, party)?;
    stream.set_read_timeout(Some(remaining(deadline))).map_err(|error| lost(0, &error))?;
    let table = read_table(&mut stream, party.ranks).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => RuntimeError::Fault(format!(
            "rank 0 at {place} still waits for other ranks after {} s",
            timeout.as_secs_f64()
        )),
        _ => RuntimeError::Fault(format!("rank 0 at {place} gave up: {}", in_words(&error))),
    })?;
    streams[0] = Some(stream);
    // One that is known to be there may still be busy calling others.
    for (rank, address) in table.into_iter().filter(|&(rank, _)| rank < party.rank) {
        let stream = TcpStream::connect_timeout(&address, remaining(deadline));
        let stream = stream.and_then(|stream| call(stream, party, 0, [remaining(deadline); 2]));
        streams[rank] = Some(stream.map_err(|error| lost(rank, &error))?);
    }
    gathering
        .until(party.ranks - 1 - party.rank, deadline)
        .map_err(|missing| RuntimeError::Fault(format!("{missing} did not call rank {}", party.rank)))?;
    gathering.guests.into_iter().for_each(|(rank, guest)| streams[rank] = Some(guest.stream));
    Ok(streams)
}

fn lost(rank: usize, error: &io::Error) -> RuntimeError {
    RuntimeError::Fault(format!("rank {rank} is out of reach: {error}"))
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(NAP)
}

/// Listens on the first free port. Where the host's name leads to no address of this machine, on all that it has.
fn listen(place: &Place) -> Result<TcpListener> {
    let mut refused = String::new();
    for &port in &place.ports {
        let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let addresses = (place.host.as_str(), port).to_socket_addrs();
        for address in addresses.into_iter().flatten().chain([all]) {
            match TcpListener::bind(address) {
                Ok(listener) => return Ok(listener),
                Err(error) => refused = error.to_string(),
            }
        }
    }
    Err(RuntimeError::Fault(format!("rank 0 can't listen on {place}: {refused}")))
}

/// Who came: its connection, and the port where it listens itself.
struct Guest {
    stream: TcpStream,
    port: u16,
}

/// A listener with those who came to it.
struct Gathering<'a> {
    listener: &'a TcpListener,
    party: Party,
    guests: BTreeMap<usize, Guest>,
    turned_away: usize,
    greeted: (Sender<Greeted>, Receiver<Greeted>),
    greetings: usize,
}

type Greeted = io::Result<(usize, Guest)>;

impl<'a> Gathering<'a> {
    fn new(listener: &'a TcpListener, party: &Party) -> Result<Self> {
        let refused = |error: io::Error| RuntimeError::Fault(format!("a port can't be listened on: {error}"));
        listener.set_nonblocking(true).map_err(refused)?;
        let (guests, greeted) = (BTreeMap::new(), channel());
        Ok(Self { listener, party: *party, guests, turned_away: 0, greeted, greetings: 0 })
    }

    /// Takes in `count` guests of higher rank; else says who is missing.
    fn until(&mut self, count: usize, deadline: Instant) -> std::result::Result<(), String> {
        while self.guests.len() < count {
            if Instant::now() >= deadline {
                return Err(self.missing());
            }
            while self.greetings < GREETINGS
                && let Ok((stream, _)) = self.listener.accept()
            {
                // Who says nothing holds up nobody else.
                let (party, greeted) = (self.party, self.greeted.0.clone());
                let greeting = move || drop(greeted.send(answer(stream, &party)));
                if std::thread::Builder::new().spawn(greeting).is_ok() {
                    self.greetings += 1;
                }
            }
            let Ok(greeted) = self.greeted.1.recv_timeout(NAP) else { continue };
            self.greetings -= 1;
            match greeted {
                Ok((rank, guest)) if !self.guests.contains_key(&rank) => {
                    self.guests.insert(rank, guest);
                }
                Ok(_) | Err(_) => self.turned_away += 1,
            }
        }
        Ok(())
    }

    fn missing(&self) -> String {
        let awaited = self.party.rank + 1..self.party.ranks;
        let missing = awaited.filter(|rank| !self.guests.contains_key(rank)).map(|rank| rank.to_string());
        let missing = missing.collect::<Vec<_>>().join(", ");
        match self.turned_away {
            0 => format!("rank(s) {missing}"),
            others => format!(
                "rank(s) {missing} (and {others} connection(s) were turned away: another program, another run, or a \
                 stranger)"
            ),
        }
    }
}

/// Finds rank 0. Returns the connection, and a listener on the address that it came from.
fn call_first(
    place: &Place,
    party: &Party,
    deadline: Instant,
    timeout: Duration,
) -> Result<(TcpStream, TcpListener)> {
    loop {
        let mut reasons: Vec<String> = Vec::new();
        for &port in &place.ports {
            match try_port(place, port, party, deadline) {
                Ok(found) => return Ok(found),
                Err(error) => reasons.push(in_words(&error)),
            }
        }
        if Instant::now() >= deadline {
            reasons.dedup();
            return Err(RuntimeError::Fault(format!(
                "rank {} did not find rank 0 at {place} within {} s: {}",
                party.rank,
                timeout.as_secs_f64(),
                reasons.join("; ")
            )));
        }
        std::thread::sleep(3 * NAP);
    }
}

fn try_port(
    place: &Place,
    port: u16,
    party: &Party,
    deadline: Instant,
) -> io::Result<(TcpStream, TcpListener)> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in (place.host.as_str(), port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, remaining(deadline).min(GREETING)) {
            Ok(stream) => {
                let listener = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
                let own = listener.local_addr()?.port();
                return Ok((call(stream, party, own, [FIRST_WORD, GREETING])?, listener));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn proof(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn nonce() -> io::Result<[u8; 16]> {
    let mut nonce = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// Why a connection failed. What the system says of one that was closed or kept waiting is about its calls.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it closed the connection".to_owned()
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it said nothing in time".to_owned(),
        _ => error.to_string(),
    }
}

fn stranger(who: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{who} is not of this run, or has another program"))
}

/// Greets who calls: the rank that it proves to be, and where it listens.
fn answer(mut stream: TcpStream, party: &Party) -> Greeted {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_write_timeout(Some(GREETING))?;
    let ours = nonce()?;
    stream.write_all(&[&MARK[..], &ours].concat())?;
    let mut greeting = [0; 62];
    stream.read_exact(&mut greeting)?;
    let (head, proven) = greeting.split_at(30);
    let (mark, named) = head.split_at(8);
    let (numbers, theirs) = named.split_at(6);
    let [rank @ .., port_low, port_high] = numbers else { return Err(stranger("who calls")) };
    let rank = rank.iter().rev().fold(0, |rank, &byte| rank << 8 | usize::from(byte));
    let is_known = mark == MARK && is_same(&proof(&party.key, &[b"call", &ours, theirs, numbers]), proven);
    if !is_known || rank <= party.rank || rank >= party.ranks {
        return Err(stranger("who calls"));
    }
    stream.write_all(&proof(&party.key, &[b"answer", theirs, &ours]))?;
    Ok((rank, Guest { stream, port: u16::from_le_bytes([*port_low, *port_high]) }))
}

/// Greets who answers, which has to prove that it is of this run; it may take so long for its first word and for the rest.
fn call(
    mut stream: TcpStream,
    party: &Party,
    port: u16,
    [first_word, patience]: [Duration; 2],
) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(first_word))?;
    stream.set_write_timeout(Some(patience))?;
    let mut greeting = [0; 24];
    stream.read_exact(&mut greeting)?;
    let (mark, theirs) = greeting.split_at(8);
    if mark != MARK {
        return Err(stranger("who answers"));
    }
    stream.set_read_timeout(Some(patience))?;
    let ours = nonce()?;
    let numbers = [&(party.rank as u32).to_le_bytes()[..], &port.to_le_bytes()].concat();
    let proven = proof(&party.key, &[b"call", theirs, &ours, &numbers]);
    stream.write_all(&[&MARK[..], &numbers, &ours, &proven].concat())?;
    let mut answered = [0; 32];
    let answer = stream.read_exact(&mut answered);
    if answer.is_err() || !is_same(&proof(&party.key, &[b"answer", &ours, theirs]), &answered) {
        return Err(stranger("who answers"));
    }
    Ok(stream)
}

/// Compares without telling by the time it takes how far two are alike.
fn is_same(left: &[u8; 32], right: &[u8]) -> bool {
    right.len() == left.len() && left.iter().zip(right).fold(0, |differ, (l, r)| differ | (l ^ r)) == 0
}

/// Where each guest listens: its rank, the length of the address, the address, the port.
fn table(guests: &BTreeMap<usize, Guest>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (rank, guest) in guests {
        let address = guest.stream.peer_addr().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |it| it.ip());
        let text = address.to_string();
        bytes.extend_from_slice(&(*rank as u32).to_le_bytes());
        bytes.push(text.len() as u8);
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&guest.port.to_le_bytes());
    }
    bytes
}

fn read_table(stream: &mut impl Read, ranks: usize) -> io::Result<Vec<(usize, SocketAddr)>> {
    let invalid = |_| io::Error::from(ErrorKind::InvalidData);
    let mut table = Vec::new();
    for _ in 1..ranks {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let [rank @ .., length] = head;
        let mut rest = vec![0; usize::from(length) + 2];
        stream.read_exact(&mut rest)?;
        let (text, port) = rest.split_at(usize::from(length));
        let text = std::str::from_utf8(text).map_err(|error| invalid(error.to_string()))?;
        let address: IpAddr = text.parse().map_err(|_| invalid(text.to_owned()))?;
        let port = port.iter().rev().fold(0, |port, &byte| port << 8 | u16::from(byte));
        table.push((u32::from_le_bytes(rank) as usize, SocketAddr::new(address, port)));
    }
    table.retain(|&(rank, _)| rank < ranks);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::{in_words, read_table};
    use std::io::{self, ErrorKind};

    #[test]
    fn a_connection_that_failed_is_told_in_words() {
        let error = io::Read::read_exact(&mut &[0; 3][..], &mut [0; 4]).expect_err("there are three");
        assert_eq!(in_words(&error), "it closed the connection");
        // What a socket says whose time to read is up.
        assert_eq!(in_words(&io::Error::from_raw_os_error(11)), "it said nothing in time");
        assert_eq!(in_words(&io::Error::new(ErrorKind::InvalidData, "a stranger")), "a stranger");
    }

    #[test]
    fn a_table_of_addresses_is_read_or_refused() {
        let entry = |rank: u32, address: &str, port: u16| {
            [&rank.to_le_bytes()[..], &[address.len() as u8], address.as_bytes(), &port.to_le_bytes()]
                .concat()
        };
        let good = [entry(1, "10.0.0.7", 4000), entry(2, "::1", 4001)].concat();
        let table = read_table(&mut &good[..], 3).expect("a table");
        let text: Vec<String> = table.iter().map(|(rank, address)| format!("{rank} {address}")).collect();
        assert_eq!(text, ["1 10.0.0.7:4000", "2 [::1]:4001"]);
        assert!(read_table(&mut &good[..], 4).is_err(), "one is missing");
        for wrong in ["", "localhost", "1.2.3.4.5", "\u{fffd}"] {
            assert!(read_table(&mut &entry(1, wrong, 1)[..], 2).is_err(), "{wrong}");
        }
        assert_eq!(read_table(&mut &entry(9, "::1", 1)[..], 2).ok(), Some(Vec::new()), "there is no rank 9");
    }
}
