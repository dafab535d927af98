//! A program at work: its ranks as threads of this process, or one of them where the others are in other processes; their
//! memory, and steps.
//!
//! Between steps all ranks are idle, so the caller reads and writes their memory directly. What is
//! in files is other modules' part. Ranks run on the CPU or on a CUDA device; only the start and `memories` know which.

mod memories;
mod ranks;
mod tensors;
mod world;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::collectives::groups::Groups;
use crate::cpu::Cpu;
use crate::cpu::code::LoadedCode;
use crate::cpu::memory::{RankMemory, machine_bytes};
use crate::cpu::team::Team;
pub use crate::device::Graphs;
use crate::device::{Device, DeviceMemories, Flights, Loaded};
use crate::error::{Result, RuntimeError};
use crate::executor::{Backend, Executor, StepNumbers, Way};
pub use crate::executor::{Probe, Watch};
use crate::gpu::{Gpu, Search};
use crate::link::link;
use crate::nccl::{self, Meeting};
use crate::network::Network;
use crate::processes::Transport;
use crate::program::{CpuFeatures, Program};
use crate::signal::SPIN_ROUNDS;
use dtlc_emulator::CudaDriver;
use memories::Memories;
use ranks::{Control, Rank};
pub(crate) use tensors::same_order;
use world::World;

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
    /// Whether a device gets a step as one graph, where it can.
    pub graphs: Graphs,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: None,
            timeout: Duration::from_secs(300),
            arena: ArenaStart::AsLeft,
            watch: Watch::default(),
            graphs: Graphs::Record,
        }
    }
}

impl Options {
    /// Ranks that share a device meet on the host, and what is watched is looked at there.
    fn graphs_of(&self, ranks: usize) -> Graphs {
        let is_watched = self.watch.finite || self.watch.probe.is_some();
        if ranks == 1 && !is_watched { self.graphs } else { Graphs::Never }
    }
}

/// The running ranks of a program. Dropping it ends them.
pub struct Session {
    program: Arc<Program>,
    control: Arc<Control>,
    memories: Memories,
    world: World,
    /// What leads from this rank's device to those of others.
    network: Option<Arc<dyn Network>>,
    remark: Option<String>,
    /// Threads that may work for one rank at the same time.
    threads_for_each_rank: usize,
    handles: Vec<JoinHandle<()>>,
    options: Options,
}

impl Session {
    /// Starts the ranks on the CPU. All state is zero until [`Session::initialise`] or a file sets it.
    ///
    /// # Errors
    /// A program that is not valid or needs a CPU feature that is missing, too many ranks, or no room.
    pub fn start(program: Program, options: Options) -> Result<Self> {
        Self::start_among(None, program, options)
    }

    /// Starts one rank on the CPU: the transport's, which leads to those in other processes. Without one, starts all.
    ///
    /// # Errors
    /// As [`Session::start`]; a transport between another number of processes.
    pub fn start_among(
        others: Option<Arc<dyn Transport>>,
        program: Program,
        options: Options,
    ) -> Result<Self> {
        let (program, world) = checked(program, others)?;
        let missing = program.cpu_features.missing_on(CpuFeatures::host());
        if !missing.is_empty() {
            return Err(RuntimeError::Fault(format!("this CPU lacks {}", missing.join(", "))));
        }
        let ranks = world.here().len();
        let cores = cores();
        let threads = options.threads.unwrap_or(cores / ranks).max(1);
        check_room(&program, ranks, threads)?;
        let spin = if threads * ranks <= cores { SPIN_ROUNDS } else { 0 };
        let memories: Vec<RankMemory> =
            (0..ranks).map(|_| RankMemory::new(&program, threads)).collect::<Result<_>>()?;
        let code = Arc::new(LoadedCode::load(&program)?);
        let teams: Vec<Arc<Team>> = (0..ranks).map(|_| Arc::new(Team::new(threads, spin))).collect();
        let backend = |(memory, team): (&RankMemory, &Arc<Team>)| {
            Cpu::new(Arc::clone(&program), Arc::clone(&code), memory, Arc::clone(team))
        };
        let backends = memories.iter().zip(&teams).map(backend).collect();
        let mut session = Self::new((program, world), Memories::Host(memories), threads, options);
        session.start_ranks(backends, spin)?;
        for (number, team) in session.world.here().zip(&teams) {
            for thread in 1..threads {
                let team = Arc::clone(team);
                session.handles.push(spawn(format!("rank {number}.{thread}"), move || team.help(thread))?);
            }
        }
        Ok(session)
    }

    /// Starts the ranks on a CUDA device, which they share. State and inputs are zero as with [`Session::start`].
    ///
    /// # Errors
    /// A program that is not valid or has no code for devices, too many ranks, or what the device says.
    pub fn start_on(driver: Arc<dyn CudaDriver>, program: Program, options: Options) -> Result<Self> {
        Self::start_on_among(None, driver, program, options)
    }

    /// Starts one rank on a CUDA device: the transport's, which leads to those in other processes. Without one, starts all.
    ///
    /// # Errors
    /// As [`Session::start_on`]; a transport between another number of processes.
    pub fn start_on_among(
        others: Option<Arc<dyn Transport>>,
        driver: Arc<dyn CudaDriver>,
        program: Program,
        options: Options,
    ) -> Result<Self> {
        let (program, world) = checked(program, others)?;
        Self::start_device(driver, (program, world), None, options)
    }

    /// Starts one rank on a CUDA device, which exchanges with those in other processes from device to device.
    ///
    /// # Errors
    /// As [`Session::start_on_among`].
    pub fn start_on_network(
        others: Arc<dyn Transport>,
        network: Arc<dyn Network>,
        driver: Arc<dyn CudaDriver>,
        program: Program,
        options: Options,
    ) -> Result<Self> {
        let (program, world) = checked(program, Some(others))?;
        Self::start_device(driver, (program, world), Some(network), options)
    }

    /// Starts one rank on a GPU. Ranks that have a GPU each and NCCL, which is looked for where `search` says, exchange through that; else through
    /// the host's memory, which [`Session::remark`] tells.
    ///
    /// # Errors
    /// As [`Session::start_on_among`]; what NCCL says, or not all came.
    pub fn start_on_gpus(
        others: Arc<dyn Transport>,
        gpu: Arc<Gpu>,
        search: &Search,
        program: Program,
        options: Options,
    ) -> Result<Self> {
        let (program, world) = checked(program, Some(Arc::clone(&others)))?;
        let (network, remark) = match nccl::meet(&gpu, search, &*others, &program, options.timeout)? {
            Meeting::Met(network) => (Some(network as Arc<dyn Network>), None),
            Meeting::Apart(why) => {
                let what =
                    "ranks exchange through the host's memory, which is much slower than from GPU to GPU";
                (None, Some(format!("{what}: {why}")))
            }
        };
        let mut session = Self::start_device(gpu, (program, world), network, options)?;
        session.remark = remark;
        Ok(session)
    }

    fn start_device(
        driver: Arc<dyn CudaDriver>,
        (program, world): (Arc<Program>, World),
        network: Option<Arc<dyn Network>>,
        options: Options,
    ) -> Result<Self> {
        let ranks = world.here().len();
        let loaded = Arc::new(Loaded::new(Arc::clone(&driver), &program)?);
        let flights = Arc::new(Flights::new(Arc::clone(&driver), &program)?);
        let memories = DeviceMemories::new(driver, Arc::clone(&flights), &program, world.here())?;
        let graphs = options.graphs_of(program.mesh.ranks() as usize);
        let backend = |(rank, memory)| {
            let (program, loaded) = (Arc::clone(&program), Arc::clone(&loaded));
            Device::new(program, loaded, Arc::clone(&flights), (rank, memory), graphs)
        };
        let ranked = world.here().zip(memories.ranks().iter().copied());
        let backends = ranked.map(backend).collect::<Result<_>>()?;
        let threads = (cores() / ranks).max(1);
        let mut session = Self::new((program, world), Memories::Device(memories), threads, options);
        session.network = network;
        // Ranks wait for the device more than for each other.
        session.start_ranks::<Device>(backends, 0)?;
        session.watch_network()?;
        Ok(session)
    }

    fn new(
        (program, world): (Arc<Program>, World),
        memories: Memories,
        threads: usize,
        options: Options,
    ) -> Self {
        Self {
            control: Arc::new(Control::new(Arc::clone(&program), program.mesh.ranks() as usize)),
            memories,
            world,
            network: None,
            remark: None,
            threads_for_each_rank: threads,
            handles: Vec::new(),
            options,
            program,
        }
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What the user should know of how the ranks exchange, the same in all processes; nothing where they do it the best way.
    #[must_use]
    pub fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// Number of ranks, wherever they are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.program.mesh.ranks() as usize
    }

    /// Whether the ranks run on a CUDA device, and not on the CPU.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        matches!(self.memories, Memories::Device(_))
    }

    /// Bytes that one rank touches in a step, as planned.
    #[must_use]
    pub fn rank_bytes(&self) -> u64 {
        match self.memories {
            Memories::Host(_) => self.program.rank_bytes(self.threads_for_each_rank as u64),
            Memories::Device(_) => self.program.device_bytes(),
        }
    }

    /// Runs one step on all ranks here and waits for them; those elsewhere run it when their processes call this. Allocates
    /// nothing if all goes well, but room for messages between processes.
    ///
    /// # Errors
    /// What the first rank that failed says; no further step is possible then.
    pub fn step(&mut self, step: u64, seed: u64) -> Result<()> {
        self.control.step(StepNumbers { step, seed }, self.world.here().len(), self.options.timeout)
    }

    fn way(&self) -> Way {
        match (&self.network, self.world.transport()) {
            (Some(network), _) => Way::Network(Arc::clone(network)),
            (None, Some(transport)) => Way::Messages(transport),
            (None, None) => Way::Memory,
        }
    }

    /// Starts the thread that looks after what is under way between devices.
    fn watch_network(&mut self) -> Result<()> {
        let (Some(network), Some(transport)) = (self.network.clone(), self.world.transport()) else {
            return Ok(());
        };
        let control = Arc::clone(&self.control);
        let watch = move || control.watch(transport.rank(), &*network, &*transport);
        self.handles.push(spawn("network".to_owned(), watch)?);
        Ok(())
    }

    /// Starts the thread of each rank, on a backend of its own.
    fn start_ranks<B: Backend + 'static>(&mut self, backends: Vec<B>, spin: u32) -> Result<()> {
        let groups = Groups::new(&self.program);
        let Options { timeout, arena, watch, threads: _, graphs: _ } = self.options;
        for (number, mut backend) in self.world.here().zip(backends) {
            let body = link(&self.program, number, &groups, &mut backend)?;
            let seats = groups.seats(&self.program, number);
            let health = Arc::clone(&self.control.health);
            let settings = (spin, timeout, watch);
            let way = self.way();
            let executor = Executor::new(number, body, backend, seats, health, settings, way);
            let poison = arena == ArenaStart::Poisoned;
            let others = self.world.transport();
            let rank = Rank::new(number, executor, Arc::clone(&self.control), poison, others);
            self.handles.push(spawn(format!("rank {number}"), move || rank.run())?);
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.control.close();
        if self.control.is_stuck() {
            // A thread that never came back may still write: what it can reach stays until the process ends.
            std::mem::forget(std::mem::take(&mut self.memories));
            return;
        }
        for handle in self.handles.drain(..) {
            // A rank's panic was reported when it happened.
            let _ = handle.join();
        }
    }
}

/// A program that is valid, and where its ranks are: as many processes as it has ranks, or so few ranks that they fit into
/// this one.
fn checked(program: Program, others: Option<Arc<dyn Transport>>) -> Result<(Arc<Program>, World)> {
    program.validate().map_err(RuntimeError::Artifact)?;
    let ranks = program.mesh.ranks();
    let world = match others {
        Some(transport) if transport.ranks() as u64 == ranks => World::Processes(transport),
        Some(transport) => {
            let processes = transport.ranks();
            return Err(RuntimeError::input(format!(
                "{processes} processes are to run a program of {ranks} rank(s), one each"
            )));
        }
        None if ranks > LOCAL_RANK_LIMIT => {
            return Err(RuntimeError::input(format!(
                "{ranks} ranks are too many for one process, which runs {LOCAL_RANK_LIMIT} at most"
            )));
        }
        None => World::Here(ranks as usize),
    };
    Ok((Arc::new(program), world))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
