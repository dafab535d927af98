//! NCCL: collectives between GPUs, each with a time limit, each failure told with rank, collective and source line.
//!
//! Owns the library and a rank's communicators, one for the world and one for each list of mesh axes. No call waits for ever: communicators don't
//! block, their errors are polled, and where one fails or takes too long it is aborted, which ends what it has on the GPU and lets the
//! other members see an error. Who meets whom, how the first identifier reaches other processes, and that one rank's failure is told
//! to those that NCCL does not reach, is not decided here.
//!
//! Sessions don't use it yet: ranks of one process exchange through `crate::collectives`. NCCL adds bf16 in bf16, in an order of its own:
//! where sums must be taken in f32 and in the order of the ranks, blocks are to be exchanged here and added by our kernel.

mod calls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Result, RuntimeError};
use crate::gpu::{Gpu, Search};
use crate::program::{AxisId, DType, Mesh, Reduction};
use calls::*;
use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use dtlc_emulator::{DevicePointer, Stream};

/// The library.
#[derive(Clone, Copy, Debug)]
pub struct Nccl {
    version: i32,
}

/// What ranks need to find each other: made by one, and passed to all others by other means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// A collective and where it stands in the source, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Such as `all_reduce`.
    pub collective: &'a str,
    /// Such as `model.dtl:7:3 (wq)`.
    pub location: &'a str,
}

/// What a collective moves. Pointers are to memory of the rank's GPU.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// Everyone gets the reduction of what all have.
    AllReduce {
        /// What this rank has.
        source: DevicePointer,
        /// Where the result goes; may be the source.
        target: DevicePointer,
        /// Elements of both.
        elements: usize,
        /// Their type.
        dtype: DType,
        /// How they are reduced.
        reduction: Reduction,
    },
    /// Everyone gets what all have, one behind the other.
    AllGather {
        /// What this rank has.
        source: DevicePointer,
        /// Where all goes.
        target: DevicePointer,
        /// Elements of the source.
        elements: usize,
        /// Their type.
        dtype: DType,
    },
    /// Each gets its block of the reduction of what all have.
    ReduceScatter {
        /// What this rank has: a block for each member.
        source: DevicePointer,
        /// Where its block goes.
        target: DevicePointer,
        /// Elements of a block.
        elements: usize,
        /// Their type.
        dtype: DType,
        /// How they are reduced.
        reduction: Reduction,
    },
    /// Each gets a block of each.
    AllToAll {
        /// A block for each member.
        source: DevicePointer,
        /// A block of each member.
        target: DevicePointer,
        /// Bytes of a block.
        bytes: usize,
    },
    /// Any number of messages, all under way at once.
    Exchange(&'a [Message]),
}

/// One side of a message. Peers are members' indices.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    /// To a peer.
    Send {
        /// Which.
        peer: usize,
        /// What.
        source: DevicePointer,
        /// How much.
        bytes: usize,
    },
    /// From a peer.
    Receive {
        /// Which.
        peer: usize,
        /// Where to.
        target: DevicePointer,
        /// How much.
        bytes: usize,
    },
}

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

    /// Joins a world of ranks, all of which must do so. `name` is what to call the rank in messages.
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
        let place = Place { collective: "the start of NCCL", location: "the start" };
        made.accept(begun, place)?;
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
    pub fn over(&mut self, mesh: &Mesh, axes: &[AxisId]) -> Result<Communicator> {
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
        let place = Place { collective: "a group of NCCL", location: "the start" };
        self.accept(begun, place)?;
        let (index, members) = (index as usize, mesh.group_size(axes) as usize);
        let (gpu, name, patience) = (Arc::clone(&self.gpu), self.name.clone(), self.patience);
        let mut made = Communicator { gpu, handle, name, index, members, patience, is_aborted: false };
        made.accept(ncclResult_t::ncclInProgress, place)?;
        Ok(made)
    }

    /// Starts a collective on a stream of the rank's GPU; all members must.
    ///
    /// # Errors
    /// What NCCL says. The communicator is aborted then.
    pub fn start(&mut self, call: &Call<'_>, stream: Stream, place: Place<'_>) -> Result<()> {
        self.enter()?;
        let raw = self.gpu.raw(stream).map_err(|error| RuntimeError::of_device(&self.name, &error))?;
        let code = self.call(call, raw.cast());
        self.accept(code, place)
    }

    /// Waits until `is_done`, while no member fails, for no longer than the communicator's patience; `failed` says whether another rank has
    /// failed elsewhere.
    ///
    /// # Errors
    /// An error of NCCL's, too long a wait, or a failure elsewhere. The communicator is aborted then, so that what it has on the GPU ends and the other
    /// members see an error.
    pub fn wait(
        &mut self,
        place: Place<'_>,
        mut is_done: impl FnMut() -> Result<bool>,
        mut failed: impl FnMut() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            let state = self.state();
            if !matches!(state, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) {
                return Err(self.give_up(place, &format!("fails: {}", meaning(state, self.handle))));
            }
            let is_over = is_done().inspect_err(|_| self.abort())?;
            if is_over && state == ncclResult_t::ncclSuccess {
                return Ok(());
            }
            if failed() {
                return Err(self.give_up(place, "was left, since another rank has failed"));
            }
            if start.elapsed() >= self.patience {
                let seconds = self.patience.as_secs_f32();
                return Err(
                    self.give_up(place, &format!("did not end within {seconds} s; some member did not come"))
                );
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
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

    /// Waits until a call has been taken.
    fn accept(&mut self, code: ncclResult_t, place: Place<'_>) -> Result<()> {
        match code {
            ncclResult_t::ncclSuccess => Ok(()),
            ncclResult_t::ncclInProgress => self.wait(place, || Ok(true), || false),
            failed => Err(self.give_up(place, &format!("fails: {}", meaning(failed, self.handle)))),
        }
    }

    /// Aborts, and says why.
    fn give_up(&mut self, place: Place<'_>, why: &str) -> RuntimeError {
        self.abort();
        let Place { collective, location } = place;
        RuntimeError::Fault(format!("{}: {collective} at {location} {why}", self.name))
    }

    fn call(&self, call: &Call<'_>, stream: cudaStream_t) -> ncclResult_t {
        match *call {
            Call::AllReduce { source, target, elements, dtype, reduction } => {
                let (from, to) = (at(source), at(target));
                // SAFETY: here and below, communicator and stream are alive; whoever calls has memory of these sizes there.
                unsafe { ncclAllReduce(from, to, elements, of(dtype), by(reduction), self.handle, stream) }
            }
            Call::AllGather { source, target, elements, dtype } => {
                // SAFETY: as above.
                unsafe { ncclAllGather(at(source), at(target), elements, of(dtype), self.handle, stream) }
            }
            Call::ReduceScatter { source, target, elements, dtype, reduction } => {
                let (from, to) = (at(source), at(target));
                // SAFETY: as above.
                unsafe {
                    ncclReduceScatter(from, to, elements, of(dtype), by(reduction), self.handle, stream)
                }
            }
            Call::AllToAll { source, target, bytes } => {
                let block = |base: DevicePointer, peer: usize| base.offset((peer * bytes) as u64);
                let messages = (0..self.members).flat_map(|peer| {
                    [
                        Message::Send { peer, source: block(source, peer), bytes },
                        Message::Receive { peer, target: block(target, peer), bytes },
                    ]
                });
                self.exchange(messages, stream)
            }
            Call::Exchange(messages) => self.exchange(messages.iter().copied(), stream),
        }
    }

    /// All messages as one call; the first failure is told, with the group of calls closed.
    fn exchange(&self, messages: impl Iterator<Item = Message>, stream: cudaStream_t) -> ncclResult_t {
        let bytes_type = ncclDataType_t::ncclUint8;
        // SAFETY: the library is open.
        let begun = unsafe { ncclGroupStart() };
        if begun != ncclResult_t::ncclSuccess {
            return begun;
        }
        let one = |message: Message| match message {
            Message::Send { peer, source, bytes } => {
                // SAFETY: as those of `call`.
                unsafe { ncclSend(at(source), bytes, bytes_type, peer as i32, self.handle, stream) }
            }
            Message::Receive { peer, target, bytes } => {
                // SAFETY: as those of `call`.
                unsafe { ncclRecv(at(target), bytes, bytes_type, peer as i32, self.handle, stream) }
            }
        };
        let is_bad =
            |code: &ncclResult_t| !matches!(code, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress);
        let failed = messages.map(one).find(is_bad);
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
        let place = Place { collective: "the end of NCCL", location: "the end" };
        // A member that does not come is told by whoever waits for it in a collective.
        if self.accept(begun, place).is_ok() {
            // SAFETY: it is finished, and not used any more.
            let _ = unsafe { ncclCommDestroy(self.handle) };
        }
    }
}

fn null<T>() -> *mut T {
    std::ptr::null_mut()
}

fn at(pointer: DevicePointer) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(pointer.0 as usize)
}

fn of(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::Bf16 => ncclDataType_t::ncclBfloat16,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::U32 => ncclDataType_t::ncclUint32,
        DType::Bool => ncclDataType_t::ncclUint8,
    }
}

fn by(reduction: Reduction) -> ncclRedOp_t {
    match reduction {
        Reduction::Sum => ncclRedOp_t::ncclSum,
        Reduction::Max => ncclRedOp_t::ncclMax,
    }
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
