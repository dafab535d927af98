//! Captures and graphs: what streams are asked to do meanwhile is recorded, and done when the graph is launched, as often as that is.

use super::clocks::{Clocks, Mark, Recorded, join};
use super::work::{Work, pack};
use super::{EmulatorOptions, State};
use crate::driver::{Argument, DriverError, Event, Graph, Stream};
use std::collections::HashMap;

/// One thing that was asked for.
#[derive(Clone, Debug)]
enum Step {
    Work(Work),
    Record(Event),
    Wait(Event),
}

/// A capture under way.
#[derive(Debug)]
pub(super) struct Capture {
    id: usize,
    origin: Stream,
    /// The streams that are recorded, the origin first.
    streams: Vec<Stream>,
    steps: Vec<(Stream, Step)>,
    /// What was asked for and can't be recorded.
    broken: Option<String>,
}

/// What can be launched.
#[derive(Debug)]
pub(super) struct Recording {
    /// The origin, which becomes the stream that the graph is launched on.
    origin: Stream,
    steps: Vec<(Stream, Step)>,
}

impl Capture {
    /// A stream that joined and that the origin has not waited for at the end.
    fn unjoined(&self) -> Option<Stream> {
        let index = |stream: Stream| self.streams.iter().position(|known| *known == stream).unwrap_or(0);
        let mut clocks = vec![vec![0_u64; self.streams.len()]; self.streams.len()];
        let mut events: HashMap<Event, Vec<u64>> = HashMap::new();
        for (stream, step) in &self.steps {
            let own = index(*stream);
            match step {
                Step::Work(_) => clocks[own][own] += 1,
                Step::Record(event) => {
                    events.insert(*event, clocks[own].clone());
                }
                Step::Wait(event) => {
                    if let Some(clock) = events.get(event) {
                        join(&mut clocks[own], clock);
                    }
                }
            }
        }
        (1..self.streams.len()).find(|at| clocks[0][*at] < clocks[*at][*at]).map(|at| self.streams[at])
    }
}

impl State {
    fn capture_of(&self, stream: Stream) -> Option<usize> {
        self.captures.iter().position(|capture| capture.streams.contains(&stream))
    }

    /// Whether work was recorded, since its stream is captured.
    pub fn recorded(&mut self, work: &Work, stream: Stream) -> Result<bool, DriverError> {
        let Some(at) = self.capture_of(stream) else { return Ok(false) };
        self.check(work)?;
        self.captures[at].steps.push((stream, Step::Work(work.clone())));
        Ok(true)
    }

    /// Refuses what needs the stream's work to be done now.
    pub fn not_captured(&mut self, what: &str, stream: Stream) -> Result<(), DriverError> {
        let Some(at) = self.capture_of(stream) else { return Ok(()) };
        let reason = format!("{what} can't be recorded while stream {} is captured", stream.0);
        self.captures[at].broken = Some(reason.clone());
        Err(DriverError::Capture(reason))
    }

    pub fn begin_capture(&mut self, stream: Stream) -> Result<(), DriverError> {
        self.clocks.known(stream)?;
        if self.capture_of(stream).is_some() {
            return Err(DriverError::Capture(format!("stream {} is captured already", stream.0)));
        }
        self.captures_begun += 1;
        self.captures.push(Capture {
            id: self.captures_begun,
            origin: stream,
            streams: vec![stream],
            steps: Vec::new(),
            broken: None,
        });
        Ok(())
    }

    pub fn end_capture(&mut self, stream: Stream) -> Result<Graph, DriverError> {
        self.clocks.known(stream)?;
        let at = self.captures.iter().position(|capture| capture.origin == stream);
        let at =
            at.ok_or_else(|| DriverError::Capture(format!("no capture began on stream {}", stream.0)))?;
        let capture = self.captures.remove(at);
        self.clocks.forget_capture(capture.id);
        if let Some(reason) = capture.broken {
            return Err(DriverError::Capture(reason));
        }
        if let Some(other) = capture.unjoined() {
            let reason = format!("stream {} is not waited for when the capture ends", other.0);
            return Err(DriverError::Capture(reason));
        }
        // Each branch gets a stream of the graph's own.
        let lanes: HashMap<Stream, Stream> =
            capture.streams[1..].iter().map(|branch| (*branch, self.clocks.create_hidden())).collect();
        let lane = |stream: Stream| lanes.get(&stream).copied().unwrap_or(stream);
        let steps = capture.steps.into_iter().map(|(stream, step)| (lane(stream), step)).collect();
        self.graphs.push(Some(Recording { origin: stream, steps }));
        Ok(Graph(self.graphs.len() as u64 - 1))
    }

    /// Records an event, on a stream or in its capture.
    pub fn record(&mut self, event: Event, stream: Stream) -> Result<(), DriverError> {
        self.clocks.known(stream)?;
        self.clocks.recorded(event)?;
        let recorded = match self.capture_of(stream) {
            Some(at) => {
                self.captures[at].steps.push((stream, Step::Record(event)));
                Recorded::Captured(self.captures[at].id)
            }
            None => Recorded::At(self.clocks.mark(stream)),
        };
        self.clocks.set_event(event, recorded);
        Ok(())
    }

    /// Lets a stream wait for an event; in a capture it joins that.
    pub fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.clocks.known(stream)?;
        let recorded = self.clocks.recorded(event)?;
        let own = self.capture_of(stream);
        let fail = |reason: &str| Err(DriverError::Capture(format!("stream {}: {reason}", stream.0)));
        match recorded {
            Recorded::Nowhere if own.is_none() => Ok(()),
            Recorded::At(mark) if own.is_none() => {
                self.clocks.follow(stream, &mark);
                Ok(())
            }
            Recorded::Nowhere | Recorded::At(_) => {
                fail("what is captured can't wait for an event from outside the capture")
            }
            Recorded::Captured(id) => {
                let Some(at) = self.captures.iter().position(|capture| capture.id == id) else {
                    return fail("the event belongs to a capture that has ended");
                };
                if own.is_some_and(|own| own != at) {
                    return fail("it would join two captures");
                }
                let capture = &mut self.captures[at];
                if !capture.streams.contains(&stream) {
                    capture.streams.push(stream);
                }
                capture.steps.push((stream, Step::Wait(event)));
                Ok(())
            }
        }
    }

    pub fn set_arguments(
        &mut self,
        graph: Graph,
        launch: usize,
        arguments: &[Argument],
    ) -> Result<(), DriverError> {
        let recording = self.graphs.get_mut(graph.0 as usize).and_then(Option::as_mut);
        let steps = &mut recording.ok_or(DriverError::BadHandle("graph"))?.steps;
        let mut launches = steps.iter_mut().filter_map(|(_, step)| match step {
            Step::Work(Work::Launch { program, kernel, params, .. }) => Some((program, *kernel, params)),
            Step::Work(Work::Copy { .. } | Work::Fill { .. }) | Step::Record(_) | Step::Wait(_) => None,
        });
        let found = launches.nth(launch).ok_or(DriverError::BadHandle("launch of the graph"))?;
        let (program, kernel, params) = found;
        *params = pack(program, kernel, arguments).map_err(|reason| DriverError::BadLaunch {
            kernel: program.functions[kernel].name.clone(),
            reason,
        })?;
        Ok(())
    }

    pub fn launch_graph(
        &mut self,
        options: &EmulatorOptions,
        graph: Graph,
        stream: Stream,
    ) -> Result<(), DriverError> {
        self.clocks.known(stream)?;
        self.not_captured("the launch of a graph", stream)?;
        let slot = self.graphs.get_mut(graph.0 as usize).ok_or(DriverError::BadHandle("graph"))?;
        let recording = slot.take().ok_or(DriverError::BadHandle("graph"))?;
        self.graph_launches += 1;
        let done = self.replay(options, &recording, stream);
        self.graphs[graph.0 as usize] = Some(recording);
        done
    }

    fn replay(
        &mut self,
        options: &EmulatorOptions,
        recording: &Recording,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let start = self.clocks.mark(stream);
        let lane = |of: Stream| if of == recording.origin { stream } else { of };
        let mut events: HashMap<Event, Mark> = HashMap::new();
        let follow = |clocks: &mut Clocks, mark: &Mark, lane: Stream| clocks.follow(lane, mark);
        for (of, _) in &recording.steps {
            follow(&mut self.clocks, &start, lane(*of));
        }
        for (of, step) in &recording.steps {
            match step {
                Step::Work(work) => self.perform(options, work, lane(*of))?,
                Step::Record(event) => {
                    events.insert(*event, self.clocks.mark(lane(*of)));
                }
                Step::Wait(event) => {
                    if let Some(mark) = events.get(event) {
                        follow(&mut self.clocks, mark, lane(*of));
                    }
                }
            }
        }
        for (of, _) in &recording.steps {
            let end = self.clocks.mark(lane(*of));
            self.clocks.follow(stream, &end);
        }
        Ok(())
    }

    pub fn destroy_graph(&mut self, graph: Graph) -> Result<(), DriverError> {
        let slot = self.graphs.get_mut(graph.0 as usize).ok_or(DriverError::BadHandle("graph"))?;
        slot.take().map(drop).ok_or(DriverError::BadHandle("graph"))
    }
}
