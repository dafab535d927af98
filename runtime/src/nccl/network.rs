//! A rank's communicators as what a session exchanges through, and how long what is under way on the GPU has taken.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Communicator, too_long};
use crate::collectives::groups::Groups;
use crate::error::{Result, RuntimeError};
use crate::gpu::Gpu;
use crate::network::{Broken, Call, Network};
use crate::program::{Collective, CollectiveKind, LocationId, Program};
use dtlc_emulator::{CudaDriver, DriverError, Event};

/// NCCL between the GPUs of a program's ranks.
pub struct NcclNetwork {
    gpu: Arc<Gpu>,
    /// What to call this rank.
    name: String,
    /// In the order of the program's groups. They end before the world, from which they were split.
    groups: Vec<Mutex<Communicator>>,
    world: Mutex<Communicator>,
    /// Each collective and where it stands in the source, by its number.
    places: Vec<String>,
    started: Mutex<Started>,
    patience: Duration,
}

impl NcclNetwork {
    /// Splits the world into the groups of a program; all ranks must do so at once.
    ///
    /// # Errors
    /// What NCCL says, or not all came in time.
    pub fn new(
        gpu: Arc<Gpu>,
        mut world: Communicator,
        program: &Program,
        patience: Duration,
        has_failed: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let groups = Groups::new(program);
        let axes = groups.axes().into_iter();
        let groups = axes.map(|axes| world.over(&program.mesh, axes, has_failed).map(Mutex::new));
        let groups = groups.collect::<Result<_>>()?;
        let name = program.mesh.rank_name(world.index());
        let places = names(program);
        let (world, started) = (Mutex::new(world), Mutex::default());
        Ok(Self { gpu, name, groups, world, places, started, patience })
    }

    fn place(&self, collective: u64) -> &str {
        self.places.get(collective as usize).map_or("a collective", String::as_str)
    }

    fn of_device(&self, error: &DriverError) -> Broken {
        Broken::Here(RuntimeError::of_device(&self.name, error))
    }
}

impl Network for NcclNetwork {
    fn exchange(&self, call: &Call<'_>) -> std::result::Result<(), Broken> {
        let group = self.groups.get(call.group);
        let unknown = || Broken::Here(RuntimeError::Bug("a group that NCCL was not told of".to_owned()));
        let group = group.ok_or_else(unknown)?;
        let event = |events: &mut Started| match events.spare.pop() {
            Some(event) => Ok(event),
            None => self.gpu.create_event(),
        };
        let mut started = lock(&self.started);
        let events = event(&mut started).and_then(|ready| Ok((ready, event(&mut started)?)));
        drop(started);
        let (ready, done) = events.map_err(|error| self.of_device(&error))?;
        self.gpu.record(ready, call.stream).map_err(|error| self.of_device(&error))?;
        let place = self.place(call.collective);
        lock(group).start(call.messages, call.stream, place, call.has_failed)?;
        self.gpu.record(done, call.stream).map_err(|error| self.of_device(&error))?;
        let one = One { collective: call.collective, ready, done, since: None };
        lock(&self.started).under_way.push_back(one);
        Ok(())
    }

    fn look(&self) -> std::result::Result<(), Broken> {
        let mut started = lock(&self.started);
        let late = started.late(Instant::now(), self.patience, |event| self.gpu.is_reached(event));
        let late = late.map_err(|error| self.of_device(&error))?;
        let oldest = started.under_way.front().map(|one| one.collective);
        drop(started);
        if let Some(collective) = late {
            let (name, place, why) = (&self.name, self.place(collective), too_long(self.patience));
            return Err(Broken::Here(RuntimeError::Fault(format!("{name}: {place} {why}"))));
        }
        let place = oldest.map_or("what was done last", |collective| self.place(collective));
        for group in &self.groups {
            // The rank's own thread looks at what it is starting.
            if let Ok(group) = group.try_lock() {
                group.look(place)?;
            }
        }
        Ok(())
    }

    fn abort(&self) {
        let all = || self.groups.iter().chain([&self.world]);
        // What the rank's thread is in comes last: it may wait for what the others have on the GPU.
        all().filter_map(|group| group.try_lock().ok()).for_each(|mut group| group.abort());
        all().for_each(|group| lock(group).abort());
    }
}

impl Drop for NcclNetwork {
    fn drop(&mut self) {
        let started = std::mem::take(&mut *lock(&self.started));
        let under_way = started.under_way.into_iter().flat_map(|one| [one.ready, one.done]);
        for event in started.spare.into_iter().chain(under_way) {
            // A device that is broken was reported when it broke.
            let _ = self.gpu.destroy_event(event);
        }
    }
}

/// What was started and has not been seen to end, in the order of the stream.
#[derive(Debug, Default)]
struct Started {
    under_way: VecDeque<One>,
    /// Events to use again.
    spare: Vec<Event>,
}

#[derive(Debug)]
struct One {
    collective: u64,
    /// Behind all that comes before it.
    ready: Event,
    done: Event,
    /// When it was seen to be ready: from then on this rank waits for the others.
    since: Option<Instant>,
}

impl Started {
    /// The collective that this rank has waited for too long, if there is one.
    fn late(
        &mut self,
        now: Instant,
        patience: Duration,
        is_reached: impl Fn(Event) -> std::result::Result<bool, DriverError>,
    ) -> std::result::Result<Option<u64>, DriverError> {
        while let Some(first) = self.under_way.front_mut() {
            if is_reached(first.done)? {
                self.spare.extend([first.ready, first.done]);
                self.under_way.pop_front();
                continue;
            }
            if first.since.is_none() && is_reached(first.ready)? {
                first.since = Some(now);
            }
            let is_late = first.since.is_some_and(|since| now.duration_since(since) >= patience);
            return Ok(is_late.then_some(first.collective));
        }
        Ok(None)
    }
}

/// Names a program's collectives by their kinds and places, in the order of their numbers.
fn names(program: &Program) -> Vec<String> {
    let name = |(location, collective): (LocationId, &Collective)| {
        let kind = match collective.kind {
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter(_) => "reduce_scatter",
            CollectiveKind::AllReduce(_) => "all_reduce",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Permute(_) => "permute",
        };
        let place = program.locations.get(location.index());
        let place = place.map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        format!("{kind} at {place}")
    };
    program.collectives().map(name).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_from_when_a_rank_waits_for_the_others() {
        let one = |number: u64| One {
            collective: number,
            ready: Event(10 * number),
            done: Event(10 * number + 1),
            since: None,
        };
        let mut started = Started { under_way: [one(1), one(2)].into(), spare: Vec::new() };
        let start = Instant::now();
        let mut late = |seconds: u64, reached: &[u64]| {
            let now = start + Duration::from_secs(seconds);
            let is_reached = |event: Event| Ok(reached.contains(&event.0));
            started.late(now, Duration::from_secs(5), is_reached).expect("no device fails")
        };
        assert_eq!(late(0, &[]), None);
        // What comes before the collective may take as long as it likes.
        assert_eq!(late(100, &[]), None);
        assert_eq!(late(101, &[10]), None);
        assert_eq!(late(105, &[10]), None);
        // The first ends in time, and the second is ready with it.
        assert_eq!(late(106, &[10, 11, 20]), None);
        assert_eq!(late(110, &[10, 11, 20]), None);
        assert_eq!(late(111, &[10, 11, 20]), Some(2));
        assert_eq!(late(112, &[10, 11, 20, 21]), None);
        assert_eq!(started.spare.len(), 4);
    }
}
