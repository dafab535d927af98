//! The kernel IR: one fused region as loops, loads, scalar operations, reductions and stores.
//!
//! Owns the data types between the `scheduled` and the `program` stage that every emitter reads
//! ([machine code](crate::cranelift) and [CUDA C++](crate::cuda)), their text, their validator and an interpreter.
//! It does not know models, ranks, placements or where a tensor lives: a kernel gets base addresses and integers.
//!
//! A kernel is one nest: an outermost *parallel* axis, of which a call executes a sub-range, around statements and
//! further loops. Registers are assigned once and seen to the end of the statement list that assigns them.
//! A *vector* axis says that its iterations are independent apart from reductions, so an emitter may run several at once.
//!
//! ```text
//! kernel sum_of_squares {
//!   tensor x: f32[8192] read
//!   tensor y: f32[8] write
//!   axis row: 8 serial
//!   axis d: 1024 vector
//!   for row {
//!     start @0: f32 sum
//!     for d {
//!       %0: f32 = load x[1024 row + d]
//!       %1: f32 = multiply %0, %0
//!       combine @0, %1
//!     }
//!     %2: f32 = total @0
//!     store y[row], %2
//!   }
//! }
//! ```
//!
//! Two tensor parameters may be the same memory only if, in each iteration of the vector axis, both touch the same
//! elements (an elementwise kernel may write over its input), and no element is read through one after it was written
//! through the other.

mod build;
mod error;
mod index;
mod interpret;
mod operation;
mod text;
mod validate;

pub use build::KernelBuilder;
pub use error::{KirError, Result};
pub use index::{Index, Term, Variable};
pub use interpret::{Arithmetic, Buffer, interpret};
pub use operation::{BinaryOperator, Comparison, Constant, Draw, Operation, UnaryOperator};
pub use text::parse;
pub use validate::{bounds, validate};

use cranelift_entity::{PrimaryMap, entity_impl};

/// Names a tensor parameter of a [`Kernel`]; its number is the position in the call's pointer array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(u32);
entity_impl!(TensorId, "tensor");

/// Names an integer parameter of a [`Kernel`]; its number is the position in the call's integer array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IntegerId(u32);
entity_impl!(IntegerId, "integer");

/// Names an axis that a loop of a [`Kernel`] walks. Several loops (the phases of a row) may walk the same axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisId(u32);
entity_impl!(AxisId, "axis");

/// Names a scalar value, assigned once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(u32);
entity_impl!(Register, "%");

/// Names a running reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccumulatorId(u32);
entity_impl!(AccumulatorId, "@");

/// One fused region as a function: see the [module](self) documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// An identifier for people: it appears in text and profiles, and binds nothing.
    pub name: String,
    /// Tensor parameters, in the order of the call's pointer array.
    pub tensors: PrimaryMap<TensorId, TensorParameter>,
    /// Integer parameters, in the order of the call's integer array.
    pub integers: PrimaryMap<IntegerId, IntegerParameter>,
    /// Every axis that some loop walks.
    pub axes: PrimaryMap<AxisId, Axis>,
    /// The type of every register.
    pub registers: PrimaryMap<Register, ScalarType>,
    /// What every accumulator holds and how it combines.
    pub accumulators: PrimaryMap<AccumulatorId, Accumulator>,
    /// The outermost loop, whose axis is the parallel one: a call executes the part `[begin, end)` of its extent.
    /// The result is the same, bit for bit, however calls split the extent.
    pub outer: Loop,
}

impl Kernel {
    /// The extent of the parallel axis: a call's `begin..end` lies inside `0..parallel_extent()`.
    pub fn parallel_extent(&self) -> u64 {
        self.axes[self.outer.axis].extent
    }
}

/// A tensor operand: a base address and what may be done through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorParameter {
    /// An identifier, unique among the kernel's tensors, integers and axes.
    pub name: String,
    /// How an element is stored.
    pub element: ElementType,
    /// Whether the kernel reads, writes or updates it.
    pub access: Access,
    /// Elements that may be touched, counted from the base address.
    pub length: u64,
}

/// How an element lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE 754 single precision.
    F32,
    /// The upper half of an f32. Loads widen to f32; stores round to nearest, ties to even.
    Bf16,
    /// IEEE 754 half precision, likewise.
    F16,
    /// 32 bits, two's complement.
    I32,
    /// 32 bits, unsigned.
    U32,
    /// One byte: 0 is false, anything else is true; stores write 0 or 1.
    Bool,
}

impl ElementType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Bool => 1,
        }
    }

    /// The type of a register that holds a loaded element.
    pub fn scalar(self) -> ScalarType {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => ScalarType::F32,
            Self::I32 => ScalarType::I32,
            Self::U32 => ScalarType::U32,
            Self::Bool => ScalarType::Bool,
        }
    }
}

/// What a kernel does through a tensor parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only loads.
    Read,
    /// Only stores.
    Write,
    /// Loads, stores and accumulation.
    ReadWrite,
}

/// An integer the caller computes: the start of a shard, an element offset, a key of a random stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegerParameter {
    /// An identifier, unique among the kernel's tensors, integers and axes.
    pub name: String,
    /// The least and the greatest value the caller may pass, both included; needed by parameters that tensor indices use.
    pub range: Option<(i64, i64)>,
}

/// What a loop walks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// An identifier, unique among the kernel's tensors, integers and axes.
    pub name: String,
    /// How many values it has, from 0.
    pub extent: u64,
    /// The order in which they may run.
    pub kind: AxisKind,
    /// Which of them one run of a loop covers.
    pub span: Span,
}

/// The order in which the iterations of an axis may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AxisKind {
    /// One after another.
    Serial,
    /// Several at once: the iterations are independent, apart from accumulators, which combine in an order that the
    /// emitter fixes. A vector loop may hold serial loops, but no further vector loop.
    Vector,
}

/// Which values of its axis one run of a loop covers. The loop variable is the coordinate along the whole axis in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// All of them.
    Whole,
    /// From `outer * size`, `size` of them or what is left: the part that belongs to the present value of an enclosing
    /// loop over the tiles.
    Tile {
        /// The axis over the tiles; its extent is this axis' extent divided by `size`, rounded up.
        outer: AxisId,
        /// Values in a full tile.
        size: u64,
    },
}

/// The type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScalarType {
    /// IEEE 754 single precision.
    F32,
    /// 32 bits, two's complement; arithmetic wraps.
    I32,
    /// 32 bits, unsigned; arithmetic wraps.
    U32,
    /// True or false.
    Bool,
}

/// A running reduction. It starts at the identity of its combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accumulator {
    /// What it holds: a number.
    pub scalar: ScalarType,
    /// How a further value enters.
    pub combination: Combination,
}

/// How values combine in a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Combination {
    /// Their sum, from 0.
    Sum,
    /// The greatest, from minus infinity (or the least integer). A NaN stays.
    Maximum,
    /// The least, from infinity (or the greatest integer). A NaN stays.
    Minimum,
}

/// A loop over one run of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// What it walks.
    pub axis: AxisId,
    /// What each iteration does, in order.
    pub body: Vec<Statement>,
}

/// A step of a loop's body.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// An inner loop.
    Loop(Loop),
    /// `register = operation`.
    Let {
        /// The register assigned.
        register: Register,
        /// Its value.
        operation: Operation,
    },
    /// `register = tensor[index]`, widened to a register's type.
    Load {
        /// The register assigned.
        register: Register,
        /// Read from.
        tensor: TensorId,
        /// In elements.
        index: Index,
    },
    /// `tensor[index] = value`, rounded to the tensor's element type.
    Store {
        /// Written to.
        tensor: TensorId,
        /// In elements; inside a vector loop it moves with the loop's variable.
        index: Index,
        /// What is stored.
        value: Register,
    },
    /// `tensor[index] = combination(tensor[index], value)`.
    Accumulate {
        /// Updated.
        tensor: TensorId,
        /// In elements; inside a vector loop it moves with the loop's variable.
        index: Index,
        /// How the two combine.
        combination: Combination,
        /// What is added.
        value: Register,
    },
    /// Sets an accumulator to its identity. Inside a vector loop each iteration has its own.
    Start(AccumulatorId),
    /// Enters a value into an accumulator that has been started here or outside an enclosing loop.
    Combine {
        /// The accumulator.
        accumulator: AccumulatorId,
        /// The value that enters.
        value: Register,
    },
    /// Reads an accumulator, in the statement list that started it.
    Total {
        /// The register assigned.
        register: Register,
        /// The accumulator.
        accumulator: AccumulatorId,
    },
}
