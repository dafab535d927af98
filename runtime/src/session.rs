//! A program at work: its ranks as threads of this process, their memory, and steps.
//!
//! Between steps all ranks are idle, so the caller reads and writes their memory directly. What is
//! in files is other modules' part.

mod ranks;
mod tensors;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::code::LoadedCode;
use crate::collectives::groups::Groups;
use crate::error::{Result, RuntimeError};
use crate::executor::{Executor, StepNumbers};
pub use crate::executor::{Probe, Watch};
use crate::health::Health;
use crate::link::link;
use crate::memory::{RankMemory, machine_bytes};
use crate::program::{CpuFeatures, Program};
use crate::signal::SPIN_ROUNDS;
use crate::team::Team;
use ranks::{Control, Rank};
pub(crate) use tensors::same_order;

/// More ranks than this are not run as threads of one process.
const LOCAL_RANK_LIMIT: u64 = 256;

/// What the arena holds when a step starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArenaStart {
    /// What the last step left, zeros at first.
    AsLeft,
    /// Bytes that are NaN as floats, so that a read of what was never written shows.
    Poisoned,
}

/// How to run a program.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads of each rank; left out, the machine's cores are shared out evenly.
    pub threads: Option<usize>,
    /// How long a rank waits for the others in a collective.
    pub timeout: Duration,
    /// What the arena holds when a step starts.
    pub arena: ArenaStart,
    /// What is watched while instructions run.
    pub watch: Watch,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: None,
            timeout: Duration::from_secs(300),
            arena: ArenaStart::AsLeft,
            watch: Watch::default(),
        }
    }
}

/// The running ranks of a program. Dropping it ends them.
pub struct Session {
    program: Arc<Program>,
    control: Arc<Control>,
    memories: Vec<RankMemory>,
    threads_for_each_rank: usize,
    handles: Vec<JoinHandle<()>>,
    timeout: Duration,
    /// The kernels' code, mapped as long as ranks run.
    code: Option<LoadedCode>,
}

impl Session {
    /// Starts the ranks. All state is zero until [`Session::initialise`] or a file sets it.
    ///
    /// # Errors
    /// A program that is not valid or needs a CPU feature that is missing, too many ranks, or no room.
    pub fn start(program: Program, options: Options) -> Result<Self> {
        program.validate().map_err(RuntimeError::Artifact)?;
        let missing = program.cpu_features.missing_on(CpuFeatures::host());
        if !missing.is_empty() {
            return Err(RuntimeError::Fault(format!("this CPU lacks {}", missing.join(", "))));
        }
        let ranks = program.mesh.ranks();
        if ranks > LOCAL_RANK_LIMIT {
            let limit =
                format!("{ranks} ranks are too many for one process, which runs {LOCAL_RANK_LIMIT} at most");
            return Err(RuntimeError::input(limit));
        }
        let program = Arc::new(program);
        let ranks = ranks as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or(cores / ranks).max(1);
        check_room(&program, ranks, threads)?;
        let memories: Vec<RankMemory> =
            (0..ranks).map(|_| RankMemory::new(&program, threads)).collect::<Result<_>>()?;
        let mut session = Self {
            control: Arc::new(Control::new(Arc::clone(&program), ranks)),
            memories,
            threads_for_each_rank: threads,
            handles: Vec::new(),
            timeout: options.timeout,
            code: None,
            program,
        };
        session.start_threads(options, if threads * ranks <= cores { SPIN_ROUNDS } else { 0 })?;
        Ok(session)
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.memories.len()
    }

    /// Bytes that one rank touches in a step, as planned.
    #[must_use]
    pub fn rank_bytes(&self) -> u64 {
        self.program.rank_bytes(self.threads_for_each_rank as u64)
    }

    /// Runs one step on all ranks and waits for them. Allocates nothing if all goes well.
    ///
    /// # Errors
    /// What the first rank that failed says; no further step is possible then.
    pub fn step(&mut self, step: u64, seed: u64) -> Result<()> {
        self.control.step(StepNumbers { step, seed }, self.memories.len(), self.timeout)
    }

    fn start_threads(&mut self, options: Options, spin: u32) -> Result<()> {
        let code = self.code.insert(LoadedCode::load(&self.program)?);
        let groups = Groups::new(&self.program);
        let health: &Arc<Health> = &self.control.health;
        for (number, memory) in self.memories.iter().enumerate() {
            let body = link(&self.program, number, memory, code, &groups)?;
            let team = Arc::new(Team::new(self.threads_for_each_rank, spin));
            let seats = groups.seats(&self.program, number);
            let manner = (spin, options.timeout, options.watch);
            let (own_team, health) = (Arc::clone(&team), Arc::clone(health));
            let executor = Executor::new(number, body, memory, seats, own_team, health, manner);
            let poison = options.arena == ArenaStart::Poisoned;
            let rank = Rank::new(number, executor, Arc::clone(&team), Arc::clone(&self.control), poison);
            self.handles.push(spawn(format!("rank {number}"), move || rank.run())?);
            for thread in 1..self.threads_for_each_rank {
                let team = Arc::clone(&team);
                self.handles.push(spawn(format!("rank {number}.{thread}"), move || team.help(thread))?);
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.control.close();
        if self.control.is_stuck() {
            // A thread that never came back may still write: what it can reach stays until the process ends.
            std::mem::forget((std::mem::take(&mut self.memories), self.code.take()));
            return;
        }
        for handle in self.handles.drain(..) {
            // A rank's panic was reported when it happened.
            let _ = handle.join();
        }
    }
}

/// Refuses what this machine has no memory for: the system would let it start, and end it once it is used.
fn check_room(program: &Program, ranks: usize, threads: usize) -> Result<()> {
    let each = program.rank_bytes(threads as u64);
    let all = each.saturating_mul(ranks as u64);
    match machine_bytes() {
        Some(there) if all > there => Err(RuntimeError::Fault(format!(
            "{ranks} rank(s) of {each} bytes need {all} bytes of memory, and this machine has {there}"
        ))),
        Some(_) | None => Ok(()),
    }
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name).spawn(body);
    spawned.map_err(|error| RuntimeError::Fault(format!("no thread for a rank: {error}")))
}
