//! The thread of each rank, and how the session's owner makes them run a step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::collectives::{Patience, Refusal, Seat};
use crate::error::{Result, RuntimeError};
use crate::executor::{Backend, Executor, Interruption, NotFinite, StepNumbers, Trouble};
use crate::health::Health;
use crate::network::{Broken, Network};
use crate::processes::Transport;
use crate::program::{LocationId, Program};
use crate::signal::Signal;

/// How often is looked after what is under way between devices.
const GLANCE: Duration = Duration::from_millis(5);
/// How long is waited for the word of a process that has failed.
const WORD: Duration = Duration::from_secs(1);

/// How the owner and the ranks talk.
pub struct Control {
    program: Arc<Program>,
    /// What the ranks know of each other's failures.
    pub health: Arc<Health>,
    /// Counts steps asked for; ranks wait on it.
    asked: Signal,
    /// Counts ranks' finished steps; the owner waits on it.
    finished: Signal,
    step: AtomicU64,
    seed: AtomicU64,
    closing: AtomicBool,
    stuck: AtomicBool,
}

impl Control {
    /// For a program on a number of ranks.
    pub fn new(program: Arc<Program>, ranks: usize) -> Self {
        Self {
            program,
            health: Arc::new(Health::new(ranks)),
            asked: Signal::default(),
            finished: Signal::default(),
            step: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
        }
    }

    /// Makes all ranks run a step and waits for them: once one has failed, for no longer than `patience`, as another
    /// may never come back.
    pub fn step(&self, numbers: StepNumbers, ranks: usize, patience: Duration) -> Result<()> {
        if let Some(failure) = self.health.failure() {
            return Err(failure);
        }
        self.step.store(numbers.step, Ordering::Relaxed);
        self.seed.store(numbers.seed, Ordering::Relaxed);
        let before = self.finished.get();
        self.asked.increment();
        let all = |count: u32| count.wrapping_sub(before) as usize == ranks;
        let mut failed_at: Option<Instant> = None;
        let give_up = || {
            let failed = self.health.has_failed();
            failed && failed_at.get_or_insert_with(Instant::now).elapsed() >= patience
        };
        if !self.finished.wait(0, all, give_up) {
            self.stuck.store(true, Ordering::Relaxed);
        }
        match self.health.has_failed() {
            true => Err(self.health.failure().unwrap_or_else(|| RuntimeError::Bug("a rank failed".into()))),
            false => Ok(()),
        }
    }

    /// Whether a rank never came back from a step, so that its thread and memory are still in use.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Looks after what a rank here has under way between devices, until the session closes: such a rank may wait for a device that waits for
    /// another rank, and sees nothing itself. Once something is wrong, all that is under way is ended.
    pub fn watch(&self, rank: usize, network: &dyn Network, others: &dyn Transport) {
        while !self.closing.load(Ordering::Acquire) {
            let felt = || network.look().err().map(|broken| self.first_hand(broken, rank, others));
            if let Some(wrong) = self.told(rank, others).or_else(felt) {
                self.health.fail(wrong);
            }
            if self.health.has_failed() {
                return network.abort();
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// What another process says of its failure, which this one may feel before it is told; else what it feels.
    fn first_hand(&self, broken: Broken, rank: usize, others: &dyn Transport) -> RuntimeError {
        let felt = match broken {
            Broken::Here(error) => return error,
            Broken::Elsewhere(felt) => felt,
        };
        let start = Instant::now();
        while start.elapsed() < WORD {
            if let Some(told) = self.told(rank, others) {
                return told;
            }
            std::thread::sleep(GLANCE);
        }
        felt
    }

    /// What has become of another process, if it has failed or is gone, and where the rank here is.
    fn told(&self, rank: usize, others: &dyn Transport) -> Option<RuntimeError> {
        let health = Health::new(0);
        let patience = Patience { health: &health, spin: 0, timeout: Duration::MAX };
        let place = match self.health.position(rank) {
            Some(location) => format!("at {}", self.place(location)),
            None => "in no instruction".to_owned(),
        };
        match others.look(patience) {
            Ok(()) | Err(Refusal::Missing(_) | Refusal::Disagrees(_)) => None,
            Err(Refusal::Gone(gone)) => Some(self.gone(gone, rank, &place)),
            Err(Refusal::Abandoned) => health.failure().map(|failure| {
                let own = self.program.mesh.rank_name(rank);
                RuntimeError::Fault(format!("{failure}\n{own} is {place}"))
            }),
        }
    }

    /// That a rank's process has ended, as another sees it.
    fn gone(&self, gone: usize, own: usize, place: &str) -> RuntimeError {
        let [gone, own] = [gone, own].map(|rank| self.program.mesh.rank_name(rank));
        RuntimeError::Fault(format!("{gone} is gone: its process ended without a word; {own} is {place}"))
    }

    fn place(&self, location: LocationId) -> String {
        let location = self.program.locations.get(location.index());
        location.map_or_else(|| "an unknown place".to_owned(), ToString::to_string)
    }

    /// Sends the ranks home.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.asked.increment();
    }
}

/// One rank's thread.
pub struct Rank<B: Backend> {
    number: usize,
    executor: Executor<B>,
    control: Arc<Control>,
    /// Whether to poison the arena before each step.
    poison: bool,
    /// What leads to the other ranks, where they are in other processes.
    others: Option<Arc<dyn Transport>>,
}

impl<B: Backend> Rank<B> {
    /// A rank that has done nothing yet.
    pub fn new(
        number: usize,
        executor: Executor<B>,
        control: Arc<Control>,
        poison: bool,
        others: Option<Arc<dyn Transport>>,
    ) -> Self {
        Self { number, executor, control, poison, others }
    }

    /// Runs a step whenever one is asked for, until the session closes.
    pub fn run(mut self) {
        let mut seen = 0;
        loop {
            self.control.asked.wait(0, |asked| asked != seen, || false);
            if self.control.closing.load(Ordering::Acquire) {
                self.executor.close();
                return;
            }
            seen = self.control.asked.get();
            self.step();
            self.control.finished.increment();
        }
    }

    fn step(&mut self) {
        let numbers = StepNumbers {
            step: self.control.step.load(Ordering::Relaxed),
            seed: self.control.seed.load(Ordering::Relaxed),
        };
        let poison = self.poison;
        let step = || self.executor.step(numbers, poison);
        let failure = match catch_unwind(AssertUnwindSafe(step)) {
            Ok(Ok(())) => return,
            Ok(Err(interruption)) => self.describe(interruption),
            Err(_) => Some(RuntimeError::Bug(format!("{} panicked", self.name(self.number)))),
        };
        if let Some(failure) = failure {
            self.control.health.fail(failure);
        }
    }

    /// What an interruption says to the user; nothing if it only follows another rank's.
    fn describe(&self, interruption: Interruption) -> Option<RuntimeError> {
        let place = self.place(interruption.location);
        match interruption.trouble {
            Trouble::Panicked => {
                Some(RuntimeError::Bug(format!("{} panicked at {place}", self.name(self.number))))
            }
            Trouble::NotFinite { value, element } => {
                let value = match value {
                    NotFinite::Nan => "NaN",
                    NotFinite::Infinity => "infinity",
                    NotFinite::NegativeInfinity => "negative infinity",
                };
                let (step, own) = (self.control.step.load(Ordering::Relaxed), self.name(self.number));
                Some(RuntimeError::Fault(format!(
                    "step {step}: {own} computes {value} at {place} (element {element} of its part); what it \
                     computed before in this step is finite"
                )))
            }
            Trouble::Device(error) => {
                let own = self.name(self.number);
                Some(RuntimeError::of_device(&format!("{own} at {place}"), &error))
            }
            Trouble::Machine(reason) => {
                Some(RuntimeError::Fault(format!("{} at {place}: {reason}", self.name(self.number))))
            }
            Trouble::Refused { refusal: Refusal::Abandoned, .. } => None,
            Trouble::Network(broken) => Some(match &self.others {
                Some(others) => self.control.first_hand(*broken, self.number, &**others),
                None => (*broken).into(),
            }),
            Trouble::Refused { refusal: Refusal::Gone(rank), .. } => {
                Some(self.control.gone(rank, self.number, &format!("at {place}")))
            }
            Trouble::Refused { seat, refusal: Refusal::Missing(member) } => {
                let missing = self.executor.seats()[seat].rank(member);
                let whereabouts = match self.control.health.position(missing) {
                    Some(location) => format!("it is at {}", self.place(location)),
                    None if self.others.is_some() => "it is in another process".to_owned(),
                    None => "it is in no instruction".to_owned(),
                };
                let (missing, own) = (self.name(missing), self.name(self.number));
                Some(RuntimeError::Fault(format!(
                    "{missing} did not arrive at {place}, where {own} waits for it; {whereabouts}"
                )))
            }
            Trouble::Refused { seat, refusal: Refusal::Disagrees(member) } => {
                Some(self.describe_disagreement(&self.executor.seats()[seat], member, &place))
            }
        }
    }

    fn describe_disagreement(&self, seat: &Seat, member: usize, place: &str) -> RuntimeError {
        let theirs = seat.header(member);
        let other = self.name(seat.rank(member));
        let own = self.name(self.number);
        RuntimeError::Bug(format!(
            "{own} is at {place} and meets {other}, which came for collective {} of the program",
            theirs.collective
        ))
    }

    fn place(&self, location: LocationId) -> String {
        self.control.place(location)
    }

    fn name(&self, rank: usize) -> String {
        self.control.program.mesh.rank_name(rank)
    }
}
