//! The kinds and operands that pre-decoded instructions are made of.

use super::Slot;
use crate::ptx::{Space, Type};

/// A predicate register, perhaps negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PredicateRef {
    pub slot: u32,
    pub negated: bool,
}

/// How many bits a register holds: 16, 32 or 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    Half,
    Word,
    Double,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Signed,
    Unsigned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntegerKind {
    Add,
    AddSaturating,
    Subtract,
    SubtractSaturating,
    MultiplyLow,
    MultiplyHigh,
    MultiplyWide,
    MultiplyAddLow,
    MultiplyAddHigh,
    MultiplyAddWide,
    Divide,
    Remainder,
    Minimum,
    Maximum,
    And,
    Or,
    ExclusiveOr,
    ShiftLeft,
    ShiftRight,
    Not,
    LogicalNot,
    Negate,
    Absolute,
    PopulationCount,
    LeadingZeros,
    FindLeading,
    FindLeadingShift,
    ReverseBits,
    ExtractBits,
    FunnelLeftWrap,
    FunnelLeftClamp,
    FunnelRightWrap,
    FunnelRightClamp,
    /// `sad`: the distance of a and b plus c.
    DistanceAdd,
    /// `mul24.lo`, on the low 24 bits.
    Multiply24,
    MultiplyAdd24,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloatKind {
    Add,
    Subtract,
    Multiply,
    FusedMultiplyAdd,
    Divide,
    Minimum,
    Maximum,
    /// As minimum, but a result that isn't a number wins.
    MinimumNan,
    MaximumNan,
    Negate,
    Absolute,
    /// The magnitude of b with the sign of a.
    CopySign,
    SquareRoot,
    ReciprocalSquareRoot,
    Reciprocal,
    ExponentialTwo,
    LogarithmTwo,
    Sine,
    Cosine,
    HyperbolicTangent,
    /// `testp` has its own operation; this is fma with relu.
    FusedMultiplyAddRelu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    NearestEven,
    NearestAway,
    Zero,
    Down,
    Up,
}

/// How a float operation treats its result and subnormals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FloatMode {
    pub rounding: Rounding,
    /// Subnormal inputs and results become zero.
    pub flush: bool,
    /// Clamp to 0..1.
    pub saturate: bool,
}

impl FloatMode {
    pub const PLAIN: FloatMode = FloatMode { rounding: Rounding::NearestEven, flush: false, saturate: false };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfForm {
    F16,
    F16Pair,
    Bf16,
    Bf16Pair,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
    ExclusiveOr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// As the above, and true where either isn't a number.
    EqualUnordered,
    NotEqualUnordered,
    LessUnordered,
    LessEqualUnordered,
    GreaterUnordered,
    GreaterEqualUnordered,
    /// Both are numbers.
    Ordered,
    /// Either isn't a number.
    Unordered,
}

#[derive(Clone, Debug)]
pub(crate) struct Compare {
    pub ty: Type,
    pub relation: Relation,
    pub a: Slot,
    pub b: Slot,
    /// Where the result goes: a predicate, or for packed types that of the low half.
    pub to: Option<u32>,
    /// The inverse, or for packed types that of the high half.
    pub second: Option<u32>,
    pub combine: Option<(Logic, PredicateRef)>,
    /// Subnormal sources count as zero.
    pub flush: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Convert {
    pub to_type: Type,
    pub from_type: Type,
    /// `None`: the conversion is exact, or to an integer towards zero.
    pub rounding: Rounding,
    /// Round to an integer in the same float type.
    pub to_integral: bool,
    pub saturate: bool,
    pub relu: bool,
    pub flush: bool,
    pub to: Slot,
    pub a: Slot,
    /// The second source of a packed result, which becomes its low half.
    pub b: Option<Slot>,
}

/// Slots of an operation of up to three sources.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operands {
    pub to: Slot,
    pub a: Slot,
    pub b: Slot,
    pub c: Slot,
}

/// What an address is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressBase {
    /// The start of the space; of local memory, the frame.
    Space,
    /// A 32-bit register.
    Word(Slot),
    /// A 64-bit register.
    Double(Slot),
}

/// Whether an access is one that others may run beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordering {
    Weak,
    /// Volatile, relaxed, acquire, release.
    Strong,
}

/// A load or a store of one or more values.
#[derive(Clone, Debug)]
pub(crate) struct MemoryAccess {
    pub space: Space,
    pub base: AddressBase,
    pub offset: i64,
    /// Bytes of one value.
    pub bytes: u8,
    /// How a loaded value fills a register that is wider.
    pub sign: Sign,
    pub ordering: Ordering,
    /// One register a value. `None` drops what is loaded.
    pub values: Box<[Option<(Slot, Width)>]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicKind {
    Add,
    Minimum,
    Maximum,
    And,
    Or,
    ExclusiveOr,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub kind: AtomicKind,
    pub ty: Type,
    pub space: Space,
    pub base: AddressBase,
    pub offset: i64,
    /// Where what was there goes; none for `red`.
    pub to: Option<Slot>,
    pub a: Slot,
    pub b: Option<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleKind {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteKind {
    All,
    Any,
    Uniform,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    Population,
    And,
    Or,
}

/// What is multiplied with the bytes of b.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteFactors {
    /// Each with the byte of a at its place.
    Bytes,
    /// The lower two with the halves of a.
    HalvesByLow,
    /// The upper two with the halves of a.
    HalvesByHigh,
}

/// What is computed with a carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryKind {
    Add,
    Subtract,
    MultiplyAddLow,
    MultiplyAddHigh,
}

/// One part of a sum that is longer than a register. The carry is a predicate of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carry {
    pub kind: CarryKind,
    pub width: Width,
    pub sign: Sign,
    pub operands: Operands,
    pub carry_in: Option<u32>,
    pub carry_out: Option<u32>,
}

/// The element types of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixForm {
    F16,
    Bf16,
    Tf32,
    /// f16 operands and an f16 sum.
    F16Sum,
    S8,
    U8,
}

/// `mma.sync` of m16n8: the registers of the fragments.
#[derive(Clone, Debug)]
pub(crate) struct MatrixProduct {
    pub form: MatrixForm,
    pub depth: u8,
    pub d: Box<[Slot]>,
    pub a: Box<[Slot]>,
    pub b: Box<[Slot]>,
    pub c: Box<[Slot]>,
}

/// Which index of a factor of a group's product runs along memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Major {
    /// The depth: PTX's K-major.
    Terms,
    /// Rows of the left, columns of the right factor: PTX's M-major and N-major.
    Lines,
}

/// Where the left factor of a group's product is.
#[derive(Clone, Debug)]
pub(crate) enum LeftFactor {
    /// In shared memory: the register of its descriptor.
    Shared { descriptor: Slot, major: Major },
    /// 16 rows a warp.
    Registers(Box<[Slot]>),
}

/// `wgmma.mma_async` of m64k16 with sums of f32.
#[derive(Clone, Debug)]
pub(crate) struct GroupProduct {
    pub form: MatrixForm,
    pub columns: usize,
    pub sums: Box<[Slot]>,
    pub left: LeftFactor,
    /// The register of the right factor's descriptor.
    pub right: Slot,
    pub right_major: Major,
    /// Whether products are added to the sums or take their place.
    pub adds: PredicateRef,
    /// Whether products change their signs.
    pub negated: bool,
}

/// `cp.async`.
#[derive(Clone, Debug)]
pub(crate) struct AsyncCopy {
    pub to: (AddressBase, i64),
    pub from: (AddressBase, i64),
    pub bytes: u8,
    /// A register with the bytes to take; the rest becomes zero.
    pub taken: Option<Slot>,
    /// Take nothing where this holds.
    pub ignore: Option<PredicateRef>,
}

/// Where a barrier lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MbarrierPlace {
    /// Shared, or generic for an address that must lead there.
    pub space: Space,
    pub base: AddressBase,
    pub offset: i64,
}

/// `cp.async.bulk.tensor` to shared memory.
#[derive(Clone, Debug)]
pub(crate) struct TensorCopy {
    pub to: (AddressBase, i64),
    /// A generic address.
    pub map: (AddressBase, i64),
    pub coordinates: Box<[Slot]>,
    pub barrier: MbarrierPlace,
}

/// Registers that are read from where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Thread(usize),
    BlockSize(usize),
    Block(usize),
    GridSize(usize),
    Lane,
    Warp,
    Warps,
    LanesEqual,
    LanesBelow,
    LanesUpTo,
    LanesAbove,
    LanesFrom,
    Processor,
    Processors,
    GridId,
    DynamicSharedBytes,
    TotalSharedBytes,
}

/// `testp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloatTest {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}
