//! NCCL: messages between GPUs, each with a time limit, each failure told with rank, collective and source line.
//!
//! Owns the library and a rank's communicators. No call waits for ever: communicators don't block, their errors are polled, and where one fails or
//! takes too long it is aborted, which ends what it has on the GPU and lets the other members see an error. [`NcclNetwork`] is what a
//! session uses: one communicator for each list of mesh axes that the program's collectives use, made at the start.
//!
//! NCCL only moves bytes. It would add bf16 in bf16, in an order of its own; sums are taken by our kernel, see `executor::messages`.

mod calls;
mod meeting;
mod network;

pub use meeting::{Meeting, meet};
pub use network::NcclNetwork;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Result, RuntimeError};
use crate::gpu::{Gpu, Search};
use crate::network::{Broken, Message, Route};
use crate::program::{AxisId, Mesh};
use calls::*;
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclResult_t, ncclUniqueId};
use dtlc_emulator::Stream;

/// The library.
#[derive(Clone, Copy, Debug)]
pub struct Nccl {
    version: i32,
}

/// What ranks need to find each other: made by one, and passed to all others by other means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// A rank's membership in a group.
pub struct Communicator {
    gpu: Arc<Gpu>,
    handle: ncclComm_t,
    /// What to call this rank in messages.
    name: String,
    index: usize,
    members: usize,
    patience: Duration,
    is_aborted: bool,
}

// SAFETY: NCCL's communicators are of no thread's own; one thread at a time has this one.
unsafe impl Send for Communicator {}

impl Nccl {
    /// Opens the library.
    ///
    /// # Errors
    /// It or a function in it is missing: what was looked for, where, and how to get it.
    pub fn open(search: &Search) -> Result<Self> {
        open(search).map_err(RuntimeError::Fault)?;
        let mut version = 0;
        // SAFETY: the library is open, and the pointer is to an integer of ours.
        let told = unsafe { ncclGetVersion(&raw mut version) };
        match told {
            ncclResult_t::ncclSuccess => Ok(Self { version }),
            failed => Err(RuntimeError::Fault(format!(
                "NCCL does not tell its version: {}",
                meaning(failed, null())
            ))),
        }
    }

    /// Its version: 22800 of 2.28.0.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version
    }

    /// An identifier for one world of ranks.
    ///
    /// # Errors
    /// What NCCL says.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the library is open, and the pointer is to an identifier of ours.
        match unsafe { ncclGetUniqueId(&raw mut id) } {
            ncclResult_t::ncclSuccess => Ok(UniqueId(id.internal.map(|character| character as u8))),
            failed => {
                Err(RuntimeError::Fault(format!("NCCL makes no identifier: {}", meaning(failed, null()))))
            }
        }
    }

    /// Joins a world of ranks, all of which must do so. `name` is what to call the rank in messages; `has_failed` says whether another rank
    /// will not come.
    ///
    /// # Errors
    /// What NCCL says, or not all came within `patience`.
    pub fn join(
        &self,
        gpu: Arc<Gpu>,
        id: UniqueId,
        (rank, ranks): (usize, usize),
        name: String,
        patience: Duration,
        has_failed: &dyn Fn() -> bool,
    ) -> Result<Communicator> {
        gpu.enter().map_err(|error| RuntimeError::of_device(&name, &error))?;
        let id = ncclUniqueId { internal: id.0.map(|byte| byte as std::ffi::c_char) };
        let (mut handle, mut config) = (null(), config());
        // SAFETY: the library is open, the pointers are to variables of ours, and the GPU's context is current.
        let begun = unsafe {
            ncclCommInitRankConfig(&raw mut handle, ranks as i32, id, rank as i32, &raw mut config)
        };
        let (index, members) = (rank, ranks);
        let mut made = Communicator { gpu, handle, name, index, members, patience, is_aborted: false };
        made.accept(begun, "the start of NCCL", has_failed)?;
        Ok(made)
    }
}

impl Communicator {
    /// This rank's index among the members.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members
    }

    /// The communicator of this rank's group over some axes of the mesh whose ranks this one's members are. All of them must do this,
    /// for the same axes.
    ///
    /// # Errors
    /// As those of a collective.
    pub fn over(
        &mut self,
        mesh: &Mesh,
        axes: &[AxisId],
        has_failed: &dyn Fn() -> bool,
    ) -> Result<Communicator> {
        let coordinates = mesh.coordinates(self.index as u64);
        let index = mesh.group_index(axes, &coordinates);
        // The group is called by its first rank.
        let is_mate = |rank: &u64| {
            let other = mesh.coordinates(*rank);
            (0..other.len())
                .all(|axis| other[axis] == coordinates[axis] || axes.contains(&AxisId(axis as u32)))
        };
        let first = (0..mesh.ranks()).find(is_mate).unwrap_or(0);
        let (mut handle, mut config) = (null(), config());
        self.enter()?;
        // SAFETY: the communicator is alive, and the pointers are to variables of ours.
        let begun = unsafe {
            ncclCommSplit(self.handle, first as i32, index as i32, &raw mut handle, &raw mut config)
        };
        let place = "the start of a group of NCCL";
        self.accept(begun, place, has_failed)?;
        let (index, members) = (index as usize, mesh.group_size(axes) as usize);
        let (gpu, name, patience) = (Arc::clone(&self.gpu), self.name.clone(), self.patience);
        let mut made = Communicator { gpu, handle, name, index, members, patience, is_aborted: false };
        made.accept(ncclResult_t::ncclInProgress, place, has_failed)?;
        Ok(made)
    }

    /// Starts messages on a stream of the rank's GPU, all under way at once; all members must start those that belong together. `place` is the
    /// collective and where it stands, for messages to the user; `has_failed` says whether the run has failed elsewhere.
    ///
    /// # Errors
    /// What NCCL says, too long a wait until it has taken them, or a failure elsewhere. The communicator is aborted then, so that what it has
    /// on the GPU ends and the other members see an error.
    pub fn start(
        &mut self,
        messages: &[Message],
        stream: Stream,
        place: &str,
        has_failed: &dyn Fn() -> bool,
    ) -> std::result::Result<(), Broken> {
        self.enter().map_err(Broken::Here)?;
        let raw = self.gpu.raw(stream);
        let raw = raw.map_err(|error| Broken::Here(RuntimeError::of_device(&self.name, &error)))?;
        let code = self.exchange(messages, raw.cast());
        self.accept(code, place, has_failed)
    }

    /// Sees whether all that was started goes well.
    ///
    /// # Errors
    /// What NCCL says; whoever is told has to abort.
    pub fn look(&self, place: &str) -> std::result::Result<(), Broken> {
        if self.is_aborted {
            return Ok(());
        }
        match self.state() {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            failed => Err(Broken::Elsewhere(self.failed(place, failed))),
        }
    }

    /// Ends what the communicator has on the GPU; the other members see an error.
    pub fn abort(&mut self) {
        if !std::mem::replace(&mut self.is_aborted, true) && !self.handle.is_null() {
            // SAFETY: the communicator is alive, and is not used any more.
            let _ = unsafe { ncclCommAbort(self.handle) };
        }
    }

    fn enter(&self) -> Result<()> {
        if self.is_aborted {
            return Err(RuntimeError::Fault(format!("{}: its group was left after a failure", self.name)));
        }
        self.gpu.enter().map_err(|error| RuntimeError::of_device(&self.name, &error))
    }

    /// What has become of the last call.
    fn state(&self) -> ncclResult_t {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is alive, and the pointer is to a variable of ours.
        match unsafe { ncclCommGetAsyncError(self.handle, &raw mut state) } {
            ncclResult_t::ncclSuccess => state,
            failed => failed,
        }
    }

    /// Waits until a call has been taken, for no longer than the communicator's patience.
    fn accept(
        &mut self,
        code: ncclResult_t,
        place: &str,
        has_failed: &dyn Fn() -> bool,
    ) -> std::result::Result<(), Broken> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(20);
        let mut state = code;
        loop {
            match state {
                ncclResult_t::ncclSuccess => return Ok(()),
                ncclResult_t::ncclInProgress => {}
                failed => {
                    let error = self.failed(place, failed);
                    self.abort();
                    return Err(Broken::Elsewhere(error));
                }
            }
            let why = match (has_failed(), start.elapsed() >= self.patience) {
                (true, _) => Some("was left, since another rank has failed".to_owned()),
                (false, true) => Some(too_long(self.patience)),
                (false, false) => None,
            };
            if let Some(why) = why {
                self.abort();
                return Err(Broken::Here(RuntimeError::Fault(format!("{}: {place} {why}", self.name))));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
            state = self.state();
        }
    }

    /// What a failure of NCCL's is to the user.
    fn failed(&self, place: &str, code: ncclResult_t) -> RuntimeError {
        RuntimeError::Fault(format!("{}: {place} fails: {}", self.name, meaning(code, self.handle)))
    }

    /// All messages as one call; the first failure is told, with the group of calls closed.
    fn exchange(&self, messages: &[Message], stream: cudaStream_t) -> ncclResult_t {
        let bytes_type = ncclDataType_t::ncclUint8;
        // SAFETY: the library is open.
        let begun = unsafe { ncclGroupStart() };
        if begun != ncclResult_t::ncclSuccess {
            return begun;
        }
        let one = |message: &Message| {
            let at = std::ptr::without_provenance_mut(message.at.0 as usize);
            // SAFETY: communicator and stream are alive; whoever calls has memory of these sizes there.
            unsafe {
                match message.route {
                    Route::To(peer) => {
                        ncclSend(at, message.bytes, bytes_type, peer as i32, self.handle, stream)
                    }
                    Route::From(peer) => {
                        ncclRecv(at, message.bytes, bytes_type, peer as i32, self.handle, stream)
                    }
                    Route::OfAll(root) => {
                        ncclBroadcast(at, at, message.bytes, bytes_type, root as i32, self.handle, stream)
                    }
                }
            }
        };
        let is_bad =
            |code: &ncclResult_t| !matches!(code, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress);
        let failed = messages.iter().map(one).find(is_bad);
        // SAFETY: the group was begun.
        let ended = unsafe { ncclGroupEnd() };
        failed.unwrap_or(ended)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.is_aborted || self.handle.is_null() || self.gpu.enter().is_err() {
            return;
        }
        // SAFETY: the communicator is alive.
        let begun = unsafe { ncclCommFinalize(self.handle) };
        // A member that does not come is told by whoever waits for it in a collective.
        if self.accept(begun, "the end of NCCL", &|| false).is_ok() {
            // SAFETY: it is finished, and not used any more.
            let _ = unsafe { ncclCommDestroy(self.handle) };
        }
    }
}

/// What is said of a wait that was given up.
fn too_long(patience: Duration) -> String {
    format!("did not end within {} s; some member did not come", patience.as_secs_f32())
}

fn null<T>() -> *mut T {
    std::ptr::null_mut()
}

/// What NCCL is to know of a communicator: that calls must not block, and the defaults. An older library reads as much of it
/// as it knows.
fn config() -> ncclConfig_t {
    const UNDEFINED: i32 = i32::MIN;
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 23_000,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}
