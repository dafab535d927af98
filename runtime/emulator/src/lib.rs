//! An emulator for CUDA kernels, and what a CUDA device is to the runtime.
//!
//! Owns [`CudaDriver`], the calls that the runtime makes of any device; PTX as NVRTC emits it; and [`Emulator`], a device that runs
//! PTX on the CPU, checks every access, and says which thread did wrong on which line. Knows nothing of models, programs,
//! ranks, or where kernels come from.
//!
//! # From text to lanes
//!
//! [`ptx`] reads a module into a syntax tree. `code` decodes that once, when the module is loaded: each operand becomes a place in a
//! register file, each name a number. `run` executes: blocks one after another, the warps of a block in turns, 32 lanes at once with
//! a mask. Lanes that part at a branch go on as groups, the one at the lowest place first, so that they meet again where they can.
//! The order is fixed: a launch gives the same bits, or the same fault, each time.
//!
//! # What is checked, always
//!
//! * Each access lies in one allocation or one shared variable and is aligned; what was freed is never given out again.
//! * What is read was written, byte by byte, in device, shared and local memory. Host copies carry that along.
//! * Two accesses to the same bytes of shared memory, one of them a write, have something that orders them: a barrier of the block, a named
//!   one, or within a warp `bar.warp.sync`. Two lanes of one store don't write different values to one place.
//! * A `cp.async` takes place when it is waited for, not before; until then nothing else touches its target.
//! * A `wgmma` takes place when it is waited for; until then nothing uses its registers or writes what it reads. `wgmma.fence` stands between it
//!   and other uses of its registers, `fence.proxy.async` behind what threads wrote for it, and the four warps of its group run the same.
//! * A `cp.async.bulk.tensor` counts for its `mbarrier` when it is asked for and takes place when a wait sees that phase to be over; until then nothing
//!   else touches its target, and before it nothing that no arrival has released. Both need a fence behind what threads did: `fence.proxy.async`
//!   behind writes where it goes, that or `fence.mbarrier_init` behind the making of its barrier. An `mbarrier` counts arrivals and bytes, is made
//!   before it is used, and is touched by its own instructions only; a phase that can't end, and a copy for which no one waits, are faults.
//! * Two streams touch the same bytes of device memory, one of them writing, only where events, or a wait of the host, order them.
//! * The lanes that a shuffle, vote, reduction or matrix instruction names are those that run it; a whole warp reaches a barrier; a barrier can
//!   open; a launch ends within its budget.
//!
//! An opcode or a modifier that the emulator does not know is an error when the module is loaded, with its line.
//!
//! # What it does not show
//!
//! Speed; faults of the assembler behind PTX; how hardware rounds inside `mma` and `wgmma` (here in f32, along the depth) and in `.approx` functions (here
//! nearly exact); the memory model beyond races in shared memory: races between blocks of a launch in device memory are not looked for,
//! and a lane that overwrites what another lane of its warp has read needs no barrier here. An arrival by some lanes of a warp stands for all of it, and
//! lanes that wait for an `mbarrier` hold up the others. Of `cp.async.bulk` (TMA) boxes of 16-bit numbers to shared memory are known and nothing
//! else; `wmma`, clusters, textures, fp8 and calls through pointers are not known.
//!
//! # Speed
//!
//! `cargo run -p dtlc-emulator --example speed` measures it. In processor time of one Zen 4 core whose caches two dozen other processes shared, with
//! all checks: 9 million warp instructions a second for an elementwise kernel in short blocks, 14 for a norm, 8 for attention (12 without the race
//! check), 5 for a bf16 product through `mma` (8 without the race check; 2 without AVX2). The check between streams costs the first two an eighth.

mod code;
mod device;
pub mod driver;
pub mod fault;
mod memory;
pub mod ptx;
mod run;
mod tensor_map;

pub use device::{Emulator, EmulatorOptions};
pub use driver::{
    Argument, CudaDriver, DevicePointer, DriverError, Event, Graph, KernelHandle, LaunchShape, MemoryInfo,
    ModuleHandle, ModuleImage, Stream, StreamAccess, StreamRace,
};
pub use fault::{Access, FaultKind, LaunchFault, MbarrierFault, SourceLine};
pub use memory::{RaceCheck, StreamCheck};
pub use run::Isa;
pub use tensor_map::{Swizzle, TENSOR_MAP_BYTES, TensorMap};
