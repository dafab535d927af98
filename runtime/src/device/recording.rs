//! A rank's step as one graph: performed once, recorded the second time, then launched whole.
//!
//! A step has no decision of the host in it, so only numbers change from one to the next: launches that take the step or the seed
//! get their arguments anew before the graph is launched. All else of it, addresses and loop indices included, stays.

use std::sync::Arc;

use super::load::ReadyLaunch;
use crate::executor::{Point, StepNumbers, StepStart};
use crate::link::Integer;
use crate::program::device::LaunchArgument;
use dtlc_emulator::{Argument, CudaDriver, DevicePointer, DriverError, Graph, Stream};

/// Whether a rank records its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graphs {
    /// Where nothing of a step has to be watched or to meet another rank on the host.
    Record,
    /// Never: each step is asked for launch by launch.
    Never,
}

/// A launch whose arguments change with the step.
struct Changing {
    /// Its number in the graph.
    number: usize,
    launches: Arc<[ReadyLaunch]>,
    /// Which of them.
    position: usize,
    pointers: Box<[DevicePointer]>,
    integers: Arc<[Integer]>,
    /// Where the rank was when it was recorded.
    point: Point,
}

enum State {
    Never,
    /// No step has run yet.
    Fresh,
    /// One has run, so that all there is to make was made.
    Warm,
    Recording,
    Ready(Graph),
}

/// A rank's recording.
pub struct Recording {
    driver: Arc<dyn CudaDriver>,
    stream: Stream,
    state: State,
    /// Launches asked for since the recording began.
    launches: usize,
    changing: Vec<Changing>,
}

impl Recording {
    /// For a rank that starts everything on `stream`, or forks from there.
    pub fn new(driver: Arc<dyn CudaDriver>, stream: Stream, graphs: Graphs) -> Self {
        let state = match graphs {
            Graphs::Record => State::Fresh,
            Graphs::Never => State::Never,
        };
        Self { driver, stream, state, launches: 0, changing: Vec::new() }
    }

    /// A step begins; `arguments` is how a launch's arguments are made of its pointers and integers.
    pub fn begin(
        &mut self,
        numbers: StepNumbers,
        mut arguments: impl FnMut(&ReadyLaunch, &[DevicePointer], &[i64]) -> Result<Vec<Argument>, DriverError>,
    ) -> Result<StepStart, DriverError> {
        match self.state {
            State::Never | State::Recording => Ok(StepStart::Perform),
            State::Fresh => {
                self.state = State::Warm;
                Ok(StepStart::Perform)
            }
            State::Warm => {
                self.driver.begin_capture(self.stream)?;
                self.state = State::Recording;
                Ok(StepStart::Record)
            }
            State::Ready(graph) => {
                for launch in &self.changing {
                    let point = Point { numbers, ..launch.point };
                    let integers: Vec<i64> =
                        launch.integers.iter().map(|integer| integer.at(&point)).collect();
                    let ready = &launch.launches[launch.position];
                    let arguments = arguments(ready, &launch.pointers, &integers)?;
                    self.driver.set_arguments(graph, launch.number, &arguments)?;
                }
                self.driver.launch_graph(graph, self.stream)?;
                Ok(StepStart::Replayed)
            }
        }
    }

    /// Notes launches that are asked for next, one behind the other, and what they are made from.
    pub fn note(
        &mut self,
        launches: &Arc<[ReadyLaunch]>,
        pointers: &[DevicePointer],
        integers: Option<&Arc<[Integer]>>,
        point: &Point,
    ) {
        if !matches!(self.state, State::Recording) {
            return;
        }
        for (position, launch) in launches.iter().enumerate() {
            let number = self.launches;
            self.launches += 1;
            let Some(integers) = integers else { continue };
            let launch = launch.chosen(pointers);
            let changes = |argument: &LaunchArgument| match argument {
                LaunchArgument::Integer(at) => integers[*at as usize].depends_on_step(),
                LaunchArgument::Pointer(_)
                | LaunchArgument::Pointers { .. }
                | LaunchArgument::Scratch(_)
                | LaunchArgument::Constant(_)
                | LaunchArgument::Map(_) => false,
            };
            if launch.arguments.iter().any(changes) {
                self.changing.push(Changing {
                    number,
                    launches: Arc::clone(launches),
                    position,
                    pointers: pointers.into(),
                    integers: Arc::clone(integers),
                    point: *point,
                });
            }
        }
    }

    /// Ends the recording and launches what it holds: the step that was being recorded.
    pub fn end(&mut self) -> Result<(), DriverError> {
        let graph = self.driver.end_capture(self.stream)?;
        self.state = State::Ready(graph);
        self.driver.launch_graph(graph, self.stream)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // A device that is broken was reported when it broke.
        match self.state {
            State::Ready(graph) => {
                let _ = self.driver.destroy_graph(graph);
            }
            State::Recording => {
                let _ = self.driver.end_capture(self.stream);
            }
            State::Never | State::Fresh | State::Warm => {}
        }
    }
}
