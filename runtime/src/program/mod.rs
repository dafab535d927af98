//! The compiled program: everything a rank needs to run a model, as plain data.
//!
//! Made by the compiler's assembler (stage `program`), written to bytes by [`artifact`] and as [`text`], checked by
//! `validate`, and run by `crate::session`. It knows buffers, kernels and ranks, and nothing of
//! the language or of the IR. One program serves all ranks: what depends on the rank is an
//! [`Affine`] number over its mesh coordinates.

pub mod artifact;
pub mod device;
pub mod instruction;
pub mod layout;
mod products;
pub mod text;
mod validate;

use serde::{Deserialize, Serialize};

pub use artifact::CpuFeatures;
pub use device::DeviceSection;
pub use instruction::LOOP_DEPTH_LIMIT;
pub use instruction::{
    Affine, AffineTerm, AttentionBackwardCall, AttentionCall, BufferRef, BufferTerm, Collective,
    CollectiveKind, CollectiveTensor, DocumentBuffers, Epilogue, Instruction, KernelCall, Loop, LoopOrder,
    Operation, Part, Permutation, Position, Reduction, Space, Strides, Sums, Transfer, Variable,
};
pub use layout::{Dimension, Layout, Mesh, MeshAxis, Placement};
pub use validate::{BYTES_LIMIT, DIMENSION_LIMIT};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// The position in the table that the id points into.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// An axis of [`Mesh::axes`].
    AxisId;
    /// A tensor of [`Program::state`].
    StateId;
    /// An entry of [`Program::kernels`].
    KernelId;
    /// An entry of [`Program::locations`].
    LocationId;
    /// Which [`Collective`] an [`Operation::Done`] waits for: no two of a program have the same.
    FlightId;
}

/// The type of a tensor's elements as they lie in memory, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of an `F32`; arithmetic on it is done in `F32`.
    Bf16,
    /// IEEE 754 binary16, likewise.
    F16,
    /// Signed, wraps on overflow.
    I32,
    /// Unsigned, wraps on overflow.
    U32,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Bool => 1,
        }
    }

    /// The type's name as the language spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::Bool => "bool",
        }
    }

    /// The bytes of a value, rounded to this type; the first [`DType::bytes`] count.
    #[must_use]
    pub fn pattern(self, value: f64) -> [u8; 4] {
        match self {
            Self::F32 => (value as f32).to_le_bytes(),
            Self::I32 => (value as i32).to_le_bytes(),
            Self::U32 => (value as u32).to_le_bytes(),
            Self::Bf16 => {
                let [low, high] = half::bf16::from_f32(value as f32).to_le_bytes();
                [low, high, 0, 0]
            }
            Self::F16 => {
                let [low, high] = half::f16::from_f32(value as f32).to_le_bytes();
                [low, high, 0, 0]
            }
            Self::Bool => [u8::from(value != 0.0), 0, 0, 0],
        }
    }
}

/// Bytes of its stack that a thread touches at most.
pub const STACK_BYTES: u64 = 64 * 1024;

/// A compiled program for all ranks of one mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The model's and plan's name, for messages.
    pub name: String,
    /// The mesh of ranks.
    pub mesh: Mesh,
    /// The CPU features that [`Program::code`] was compiled for.
    pub cpu_features: CpuFeatures,
    /// Bytes of each rank's arena, which holds what lives within a step.
    pub arena_bytes: u64,
    /// Bytes of each rank's state space, which lives from step to step.
    pub state_bytes: u64,
    /// Bytes of each rank's input space, filled before each step.
    pub input_bytes: u64,
    /// Bytes of scratch for each thread of a rank (packing buffers and the like).
    pub thread_scratch_bytes: u64,
    /// Parameters, master weights, optimizer state: what a checkpoint holds.
    pub state: Vec<StateTensor>,
    /// What a step reads from outside.
    pub inputs: Vec<Input>,
    /// What can be read after a step.
    pub outputs: Vec<Output>,
    /// The generated kernels, as ranges of [`Program::code`].
    pub kernels: Vec<KernelEntry>,
    /// Position-independent machine code with its constants; no relocation leaves it.
    #[serde(with = "text::machine_code")]
    pub code: Vec<u8>,
    /// Source positions that instructions refer to.
    pub locations: Vec<Location>,
    /// The code for CUDA devices; none where the program is for the CPU alone.
    #[serde(default)]
    pub device: Option<DeviceSection>,
    /// One step, in the order that every rank runs it.
    pub instructions: Vec<Instruction>,
}

impl Program {
    /// What the instructions do, in order; what a loop repeats stands behind it, once.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.all_instructions().map(|instruction| &instruction.operation)
    }

    fn all_instructions(&self) -> impl Iterator<Item = &Instruction> {
        let mut lists = vec![self.instructions.iter()];
        std::iter::from_fn(move || {
            loop {
                let Some(instruction) = lists.last_mut()?.next() else {
                    lists.pop();
                    continue;
                };
                if let Operation::Loop(nested) = &instruction.operation {
                    lists.push(nested.body.iter());
                }
                return Some(instruction);
            }
        })
    }

    /// Makes instructions of their own of what goes on with products' results, so that every result is there to be looked at.
    pub fn take_epilogues_apart(&mut self) {
        fn in_list(instructions: &mut Vec<Instruction>) {
            for mut instruction in std::mem::take(instructions) {
                if let Operation::Loop(nested) = &mut instruction.operation {
                    in_list(&mut nested.body);
                }
                instructions.extend(instruction.apart().into_owned());
            }
        }
        in_list(&mut self.instructions);
    }

    /// The collectives and where they come from, in the order of their numbers.
    pub fn collectives(&self) -> impl Iterator<Item = (LocationId, &Collective)> {
        self.all_instructions().filter_map(|instruction| match &instruction.operation {
            Operation::Collective(collective) => Some((instruction.location, collective)),
            Operation::Loop(_)
            | Operation::Kernel(_)
            | Operation::Matmul { .. }
            | Operation::Attention(_)
            | Operation::AttentionBackward(_)
            | Operation::Take { .. }
            | Operation::ScatterAdd { .. }
            | Operation::Copy { .. }
            | Operation::Fill { .. }
            | Operation::Done(_) => None,
        })
    }

    /// Bytes that one rank of `threads` threads touches, all told: its spaces, scratch and stacks.
    #[must_use]
    pub fn rank_bytes(&self, threads: u64) -> u64 {
        let scratch = self.thread_scratch_bytes.saturating_add(STACK_BYTES).saturating_mul(threads);
        self.space_bytes().saturating_add(scratch)
    }

    /// Bytes that one rank needs on a device: its spaces and scratch.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let scratch = self.device.as_ref().map_or(0, DeviceSection::scratch_bytes);
        self.space_bytes().saturating_add(scratch)
    }

    fn space_bytes(&self) -> u64 {
        let spaces = [self.arena_bytes, self.state_bytes, self.input_bytes];
        spaces.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }
}

/// What a state tensor is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// A parameter as the model uses it.
    Parameter,
    /// The f32 copy of a parameter that the optimizer updates.
    Master,
    /// A tensor of the optimizer; the string says which, such as `m`.
    Optimizer(String),
    /// Anything else that lives from step to step; the string says what.
    Buffer(String),
}

/// A tensor that lives from step to step, in the state space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateTensor {
    /// The parameter's path in the model with stacks rolled, such as `layers.attn.wq`.
    pub path: String,
    /// What it is for; `(role, path)` is unique.
    pub role: Role,
    /// Under which names weight files may hold it; the first is the one written.
    pub names: Vec<TensorName>,
    /// Type, global shape and sharding.
    pub layout: Layout,
    /// Byte offset of the local shard in the state space.
    pub offset: u64,
    /// How it starts if no file gives it.
    pub initial: Initial,
}

/// A name in a file, with a place for each index of the stack it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorName {
    /// The name with one `{}` for each stacked dimension, as in `layers.{}.attn.wq`. The tensor's
    /// leading dimensions are the stacked ones, in the order of the `{}`.
    pub template: String,
    /// The number that index 0 of each stacked dimension has in the name; one for each `{}`.
    pub first: Vec<u64>,
}

impl TensorName {
    /// A name without stacked dimensions.
    #[must_use]
    pub fn plain(name: &str) -> Self {
        Self { template: name.to_owned(), first: Vec::new() }
    }

    /// A name whose leading dimension counts from 0 at its one `{}`.
    #[must_use]
    pub fn stacked(template: &str) -> Self {
        Self { template: template.to_owned(), first: vec![0; template.matches("{}").count()] }
    }
}

/// How a state tensor starts. Each value is a function of the program's seed, the path and the
/// element's global index, so it has the same bits under any sharding. Pads start as zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Initial {
    /// Every element is this.
    Constant(f32),
    /// Gaussian.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        deviation: f32,
    },
    /// Uniform in `[low, high)`.
    Uniform {
        /// Least value.
        low: f32,
        /// Bound above.
        high: f32,
    },
    /// The value that another state tensor starts with (from its initialiser or a weight file),
    /// rounded once, to this tensor's own type. Both have the same global shape; the sharding may
    /// differ. The other is itself no copy.
    CopyOf(StateId),
}

/// A tensor that the caller gives for each step, in the input space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// The name in the model's function, such as `tokens`.
    pub name: String,
    /// Type, global shape (all micro-batches) and sharding.
    pub layout: Layout,
    /// Byte offset of the local shard in the input space.
    pub offset: u64,
}

/// A tensor that can be read after a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Its name: `loss`, `grad_norm`, `lr`, `grad.layers.{}.attn.wq`, …; stacked as files hold it.
    pub name: TensorName,
    /// Type, global shape and sharding. Along axes that it names nowhere the ranks hold the same.
    pub layout: Layout,
    /// Where the local shard lies; it has no terms.
    pub buffer: BufferRef,
}

/// One generated kernel.
///
/// It has the signature `extern "C" fn(pointers: *const *mut u8, integers: *const i64, begin: i64,
/// end: i64)` and runs `[begin, end)` of its outermost, parallel loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelEntry {
    /// Name for messages and profiles.
    pub name: String,
    /// Where its code starts in [`Program::code`].
    pub code_offset: u64,
    /// Bytes of its code.
    pub code_bytes: u64,
    /// Iterations of its outermost loop; 1 if that is not parallel.
    pub extent: u64,
    /// Fewest iterations that are worth a thread of their own, at least 1.
    pub grain: u64,
    /// Number of tensor operands.
    pub pointers: u32,
    /// How many of them, the first, it only reads.
    pub reads: u32,
    /// Number of integer operands.
    pub integers: u32,
}

/// Where in the source something comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The file's name as the user gave it.
    pub file: String,
    /// Line from 1; 0 if there is none.
    pub line: u32,
    /// Column from 1.
    pub column: u32,
    /// What happens there, in a few words, such as `all_gather of Block.x over tp`.
    pub text: String,
}

impl std::fmt::Display for Location {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.line, self.text.as_str()) {
            (0, "") => write!(formatter, "{}", self.file),
            (0, text) => write!(formatter, "{text}"),
            (line, "") => write!(formatter, "{}:{line}:{}", self.file, self.column),
            (line, text) => write!(formatter, "{}:{line}:{} ({text})", self.file, self.column),
        }
    }
}
