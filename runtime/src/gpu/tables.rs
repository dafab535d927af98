//! What a GPU has given out: handles that are checked before the library sees the pointers behind them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmodule, CUstream};
use dtlc_emulator::{
    DevicePointer, DriverError, Event, Graph, KernelHandle, LaunchShape, ModuleHandle, Stream,
};

/// A kernel, and what it takes.
#[derive(Clone)]
pub(super) struct Kernel {
    pub function: CUfunction,
    pub name: Arc<str>,
    /// Bytes of each parameter.
    pub parameters: Arc<[usize]>,
    pub module: ModuleHandle,
    /// The most dynamic shared memory that it may be launched with so far.
    pub shared_bytes: u32,
}

/// A launch in a graph.
#[derive(Clone)]
pub(super) struct Node {
    pub node: CUgraphNode,
    pub kernel: Kernel,
    pub shape: LaunchShape,
}

/// A graph that can be launched.
pub(super) struct Recorded {
    pub graph: CUgraph,
    pub executable: CUgraphExec,
    pub launches: Vec<Node>,
}

pub(super) struct StreamEntry {
    pub raw: CUstream,
    /// The last kernel that it was given, for messages.
    pub last: Option<Arc<str>>,
    /// The number of the capture that began on it.
    pub capture: Option<u64>,
}

/// Everything that was given out.
#[derive(Default)]
pub(super) struct Tables {
    pub streams: Vec<Option<StreamEntry>>,
    pub events: Vec<Option<CUevent>>,
    pub modules: Vec<Option<CUmodule>>,
    pub kernels: Vec<Kernel>,
    pub graphs: Vec<Option<Recorded>>,
    /// Launches of the captures under way, by the library's number of each.
    pub captures: HashMap<u64, Vec<Node>>,
    /// Bytes by address.
    pub allocations: BTreeMap<u64, u64>,
}

// SAFETY: the driver's handles are of no thread's own; the context is made current on whatever thread uses them.
unsafe impl Send for Tables {}

impl Tables {
    pub fn stream(&mut self, stream: Stream) -> Result<&mut StreamEntry, DriverError> {
        let entry = self.streams.get_mut(stream.0 as usize).and_then(Option::as_mut);
        entry.ok_or(DriverError::BadHandle("stream"))
    }

    pub fn event(&self, event: Event) -> Result<CUevent, DriverError> {
        self.events.get(event.0 as usize).copied().flatten().ok_or(DriverError::BadHandle("event"))
    }

    pub fn module(&self, module: ModuleHandle) -> Result<CUmodule, DriverError> {
        self.modules.get(module.0 as usize).copied().flatten().ok_or(DriverError::BadHandle("module"))
    }

    /// A kernel whose module is still loaded.
    pub fn kernel(&mut self, kernel: KernelHandle) -> Result<&mut Kernel, DriverError> {
        let found = self.kernels.get(kernel.0 as usize).map(|kernel| kernel.module);
        self.module(found.ok_or(DriverError::BadHandle("kernel"))?)
            .map_err(|_| DriverError::BadHandle("kernel"))?;
        self.kernels.get_mut(kernel.0 as usize).ok_or(DriverError::BadHandle("kernel"))
    }

    pub fn graph(&self, graph: Graph) -> Result<&Recorded, DriverError> {
        let found = self.graphs.get(graph.0 as usize).and_then(Option::as_ref);
        found.ok_or(DriverError::BadHandle("graph"))
    }

    /// Refuses what leaves its allocation.
    pub fn within(&self, what: &'static str, at: DevicePointer, bytes: u64) -> Result<(), DriverError> {
        let fits = |(base, length): (&u64, &u64)| {
            let offset = at.0 - base;
            offset <= *length && bytes <= length - offset
        };
        match self.allocations.range(..=at.0).next_back().is_some_and(fits) {
            true => Ok(()),
            false => Err(DriverError::OutOfBounds { what, at, bytes }),
        }
    }
}
