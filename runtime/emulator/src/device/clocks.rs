//! What comes before what on a device: a clock for each stream, moved on by what it is asked to do, joined by events and by the
//! host's waits.
//!
//! Each thread of the host counts for itself: what it has waited for comes before whatever it asks for next, and before nothing that another
//! thread asks for, since nothing here sees how threads agree. Work that one thread leaves to another needs an event.

use crate::driver::{DriverError, Event, Stream};
use std::collections::HashMap;
use std::thread::ThreadId;
use std::time::Instant;

/// For each stream, up to which of its times all is done.
pub(super) type Clock = Vec<u64>;

/// Takes over what another clock knows.
pub(super) fn join(clock: &mut Clock, other: &[u64]) {
    if clock.len() < other.len() {
        clock.resize(other.len(), 0);
    }
    for (own, theirs) in clock.iter_mut().zip(other) {
        *own = (*own).max(*theirs);
    }
}

/// A point of a stream.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub clock: Clock,
    pub at: Instant,
}

/// What is known of an event.
#[derive(Clone, Debug)]
enum EventState {
    /// It was recorded nowhere yet.
    Nowhere,
    /// It was recorded.
    At(Mark),
    /// It was recorded while this capture recorded its stream.
    Captured(usize),
    /// It was given back.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    /// A user's.
    Open,
    /// A graph's own: nobody else can name it.
    Hidden,
    Gone,
}

/// What an event stands for.
#[derive(Clone, Debug)]
pub(super) enum Recorded {
    Nowhere,
    At(Mark),
    Captured(usize),
}

/// All streams and events of a device.
#[derive(Debug)]
pub(super) struct Clocks {
    streams: Vec<(StreamState, Clock)>,
    events: Vec<EventState>,
    /// What each thread of the host has waited for.
    hosts: HashMap<ThreadId, Clock>,
}

impl Clocks {
    /// With [`Stream::DEFAULT`] alone.
    pub fn new() -> Clocks {
        let default = (StreamState::Open, Clock::new());
        Clocks { streams: vec![default], events: Vec::new(), hosts: HashMap::new() }
    }

    pub fn create_stream(&mut self) -> Stream {
        self.streams.push((StreamState::Open, Clock::new()));
        Stream(self.streams.len() as u64 - 1)
    }

    /// A stream for a branch of a graph.
    pub fn create_hidden(&mut self) -> Stream {
        let stream = self.create_stream();
        self.streams[stream.0 as usize].0 = StreamState::Hidden;
        stream
    }

    /// The number of a stream that is a user's.
    pub fn known(&self, stream: Stream) -> Result<usize, DriverError> {
        match self.streams.get(stream.0 as usize) {
            Some((StreamState::Open, _)) => Ok(stream.0 as usize),
            Some((StreamState::Hidden | StreamState::Gone, _)) | None => {
                Err(DriverError::BadHandle("stream"))
            }
        }
    }

    /// Gives a stream back, which the calling thread waits for.
    pub fn destroy_stream(&mut self, stream: Stream) -> Result<(), DriverError> {
        if stream == Stream::DEFAULT {
            return Err(DriverError::BadHandle("stream that can be given back"));
        }
        let number = self.known(stream)?;
        self.wait_for(stream);
        self.streams[number].0 = StreamState::Gone;
        Ok(())
    }

    pub fn create_event(&mut self) -> Event {
        self.events.push(EventState::Nowhere);
        Event(self.events.len() as u64 - 1)
    }

    pub fn destroy_event(&mut self, event: Event) -> Result<(), DriverError> {
        self.recorded(event)?;
        self.events[event.0 as usize] = EventState::Gone;
        Ok(())
    }

    /// Where an event was recorded last.
    pub fn recorded(&self, event: Event) -> Result<Recorded, DriverError> {
        match self.events.get(event.0 as usize) {
            Some(EventState::Nowhere) => Ok(Recorded::Nowhere),
            Some(EventState::At(mark)) => Ok(Recorded::At(mark.clone())),
            Some(EventState::Captured(capture)) => Ok(Recorded::Captured(*capture)),
            Some(EventState::Gone) | None => Err(DriverError::BadHandle("event")),
        }
    }

    /// Says where a known event was recorded.
    pub fn set_event(&mut self, event: Event, recorded: Recorded) {
        self.events[event.0 as usize] = match recorded {
            Recorded::Nowhere => EventState::Nowhere,
            Recorded::At(mark) => EventState::At(mark),
            Recorded::Captured(capture) => EventState::Captured(capture),
        };
    }

    /// The events of a capture that has ended stand for nothing.
    pub fn forget_capture(&mut self, capture: usize) {
        for event in &mut self.events {
            if matches!(event, EventState::Captured(of) if *of == capture) {
                *event = EventState::Nowhere;
            }
        }
    }

    /// The next piece of work of a stream: its time, and what comes before it.
    pub fn advance(&mut self, stream: Stream) -> (u64, Clock) {
        let number = stream.0 as usize;
        let clock = &mut self.streams[number].1;
        if let Some(host) = self.hosts.get(&std::thread::current().id()) {
            join(clock, host);
        }
        if clock.len() <= number {
            clock.resize(number + 1, 0);
        }
        clock[number] += 1;
        (clock[number], clock.clone())
    }

    /// A stream's point behind all that it was asked for.
    pub fn mark(&self, stream: Stream) -> Mark {
        let mut clock = self.streams[stream.0 as usize].1.clone();
        if let Some(host) = self.hosts.get(&std::thread::current().id()) {
            join(&mut clock, host);
        }
        Mark { clock, at: Instant::now() }
    }

    /// What the stream is asked for from now on comes behind a point.
    pub fn follow(&mut self, stream: Stream, mark: &Mark) {
        join(&mut self.streams[stream.0 as usize].1, &mark.clock);
    }

    /// The calling thread waits for all that a stream was asked for.
    pub fn wait_for(&mut self, stream: Stream) {
        let host = self.hosts.entry(std::thread::current().id()).or_default();
        join(host, &self.streams[stream.0 as usize].1);
    }

    /// The calling thread waits for all that the device was asked for.
    pub fn wait_for_all(&mut self) {
        let host = self.hosts.entry(std::thread::current().id()).or_default();
        for (_, clock) in &self.streams {
            join(host, clock);
        }
    }
}
