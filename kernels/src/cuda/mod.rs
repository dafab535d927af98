//! The kernels for NVIDIA GPUs, as CUDA C++: from the descriptors of [`crate::signature`] to sources and the launches that do
//! what the CPU's kernels do.
//!
//! A kernel is a `.cu` file beside this one, which computes with constants that are named after what they mean; a source is
//! those constants with a descriptor's values, a prelude and the file. So a source is for one descriptor, and its sizes and
//! strides are known when it is compiled; copies, fills and reductions take theirs as arguments, and have a source
//! for each element type only. Sums are taken in an order that the descriptor alone decides; floats are never added by atomics.
//! Products of bf16 or f16, attention's too, and of f32 read as tf32 run on the tensor cores, through what `tensor.cuh` has: copies that don't wait, swizzled
//! tiles, fragments; of halves on sm_90a by four warps together, where tensor maps describe operands from tiles that arrive in bulk (`bulk.cuh`).
//! What else is to be done with a product's results, an [`Epilogue`], comes from outside, as text.
//!
//! Neither compiles nor launches anything: whoever does gives arguments as [`DeviceArgument`] says.

mod attention;
mod collective;
mod embedding;
mod group;
mod mapped;
mod matmul;
mod source;

use serde::{Deserialize, Serialize};

pub use attention::{attention, attention_backward};
pub use collective::{BlockReduction, Pattern, ReducedElement, copy_blocks, copy_rows, fill, reduce};
pub use embedding::{scatter_add, take};
pub use matmul::{BUFFERS_OF_A_PRODUCT, Epilogue, Keeps, MatmulOf, matmul, matmuls};

/// Bytes that pieces of scratch start at multiples of.
const SCRATCH_ALIGNMENT: u64 = 256;

/// What one operation does on a device: launches in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCall {
    /// Device memory that the launches share and that has no value before and after; aligned to 256 bytes.
    pub scratch_bytes: u64,
    /// Each begins when the one before it is done. None where there is nothing to do.
    pub launches: Vec<DeviceLaunch>,
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLaunch {
    /// The function. Two launches have the same name if, and only if, they have the same source.
    pub name: String,
    /// One translation unit of CUDA C++ with one `extern "C" __global__` function, `name`.
    pub source: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory; above 48 KiB a device must be told so ahead of the launch.
    pub shared_bytes: u32,
    /// The function's arguments.
    pub arguments: Vec<DeviceArgument>,
    /// What does the same on devices of compute capability 9.0, where there is code for exactly those (sm_90a) and every tensor map that it takes
    /// can be made: where operands begin at multiples of 16 bytes. It has no alternative itself.
    pub alternative: Option<Box<DeviceLaunch>>,
}

/// An argument of a launch: eight bytes, but for several addresses, and for a map, which has 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceArgument {
    /// The address of the operation's buffer with this number; each function here says which is which.
    Pointer(u32),
    /// The addresses of so many of the operation's buffers, from this number on, side by side.
    Pointers {
        /// The first buffer's number.
        first: u32,
        /// How many.
        count: u32,
    },
    /// The operation's integer with this number, known when it runs: an offset.
    Integer(u32),
    /// The address of this byte of scratch.
    Scratch(u64),
    /// A number that the descriptor decides.
    Constant(i64),
    /// A tensor map.
    Map(MappedTensor),
}

/// A tensor of floats of 16 bits that one of the operation's buffers begins with, and the boxes of it that are copied to shared memory at once, in rows of 128 bytes
/// whose 16-byte pieces change places over these. Dimensions are in the order of memory: elements of the first are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MappedTensor {
    /// The buffer's number.
    pub buffer: u32,
    /// Elements of each dimension.
    pub sizes: [u64; 3],
    /// Bytes from each element to the next, in the second and the third.
    pub strides: [u64; 2],
    /// Elements of a box in each dimension.
    pub box_sizes: [u32; 3],
}

impl DeviceCall {
    /// A call of one launch without scratch.
    fn of(launch: DeviceLaunch) -> Self {
        Self { scratch_bytes: 0, launches: vec![launch] }
    }
}
