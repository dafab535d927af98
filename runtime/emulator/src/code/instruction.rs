//! One pre-decoded instruction, sorted by which part of `run` runs it. What each does to the lanes is there.

use super::Slot;
use super::kinds::{
    AddressBase, AsyncCopy, Atomic, BarrierKind, ByteFactors, Carry, Compare, Convert, FloatKind, FloatMode,
    FloatTest, GroupProduct, HalfForm, IntegerKind, Logic, MatrixProduct, MbarrierPlace, MemoryAccess,
    Operands, PredicateRef, ShuffleKind, Sign, TensorCopy, VoteKind, Width,
};
use crate::ptx::Type;
use std::sync::Arc;

/// An instruction with its guard and its places in texts.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub operation: Operation,
    pub guard: Option<PredicateRef>,
    /// The PTX line.
    pub line: u32,
    /// File number and line of the source, zero where unknown.
    pub source: (u32, u32),
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Hints, and orders of memory that emulation keeps anyway.
    Nothing,
    Arithmetic(Arithmetic),
    Movement(Movement),
    Test(Test),
    Memory(Memory),
    Together(Together),
    Group(Group),
    Phase(Phase),
    Control(Control),
}

/// What computes values out of values.
#[derive(Clone, Debug)]
pub(crate) enum Arithmetic {
    Integer {
        kind: IntegerKind,
        width: Width,
        sign: Sign,
        operands: Operands,
    },
    Carry(Box<Carry>),
    InsertBits {
        width: Width,
        operands: Operands,
        length: Slot,
    },
    Permute {
        operands: Operands,
    },
    /// `lop3`: a table of eight bits.
    LogicTable {
        operands: Operands,
        table: u8,
    },
    /// `dp4a` and `dp2a`: the sum of products with bytes.
    ByteProducts {
        factors: ByteFactors,
        a_sign: Sign,
        b_sign: Sign,
        operands: Operands,
    },
    Float32 {
        kind: FloatKind,
        mode: FloatMode,
        operands: Operands,
    },
    Float64 {
        kind: FloatKind,
        operands: Operands,
    },
    Half {
        kind: FloatKind,
        form: HalfForm,
        mode: FloatMode,
        operands: Operands,
    },
}

/// What moves values between registers and changes their form.
#[derive(Clone, Debug)]
pub(crate) enum Movement {
    Move {
        width: Width,
        to: Slot,
        from: Slot,
    },
    /// The low part of a 64-bit register.
    Narrow {
        to: Slot,
        from: Slot,
    },
    /// An address in local memory, from the frame's start.
    LocalAddress {
        to: Slot,
        offset: u64,
    },
    /// `mov` from a vector: equal parts into one register, the lowest first.
    Pack {
        part: Width,
        parts: Box<[Slot]>,
        to: Slot,
        whole: Width,
    },
    Unpack {
        part: Width,
        parts: Box<[Option<Slot>]>,
        from: Slot,
        whole: Width,
    },
    Select {
        width: Width,
        to: Slot,
        a: Slot,
        b: Slot,
        by: PredicateRef,
    },
    Convert(Box<Convert>),
    /// To and from generic addresses.
    ToGeneric {
        window: u64,
        to: Slot,
        from: Slot,
    },
    FromGeneric {
        window: u64,
        to: Slot,
        from: Slot,
    },
    Clock {
        width: Width,
        to: Slot,
    },
}

/// What makes predicates, and takes masks of them.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    Compare(Box<Compare>),
    /// `set`: all ones or one where the relation holds.
    SetMask {
        compare: Box<Compare>,
        to: Slot,
        one: u32,
    },
    FloatClass {
        kind: FloatTest,
        ty: Type,
        to: u32,
        a: Slot,
    },
    Predicate {
        logic: Logic,
        to: u32,
        a: PredicateRef,
        b: PredicateRef,
    },
    IsSpace {
        window: u64,
        to: u32,
        from: Slot,
    },
}

/// What touches memory.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    Load(Box<MemoryAccess>),
    Store(Box<MemoryAccess>),
    Atomic(Box<Atomic>),
    AsyncCopy(Box<AsyncCopy>),
    AsyncCommit,
    /// Wait until at most this many groups are under way; `None` for all copies, committed or not.
    AsyncWait {
        left: Option<u32>,
    },
    LoadMatrix {
        to: Box<[Slot]>,
        transposed: bool,
        base: AddressBase,
        offset: i64,
    },
    StoreMatrix {
        from: Box<[Slot]>,
        transposed: bool,
        base: AddressBase,
        offset: i64,
    },
}

/// What the lanes of a warp do together.
#[derive(Clone, Debug)]
pub(crate) enum Together {
    MatrixProduct(Box<MatrixProduct>),
    /// `movmatrix`: the transposed of a matrix of 8 by 8.
    TransposeMatrix {
        to: Slot,
        from: Slot,
    },
    Shuffle {
        kind: ShuffleKind,
        to: Slot,
        inside: Option<u32>,
        a: Slot,
        b: Slot,
        c: Slot,
        lanes: Slot,
    },
    Vote {
        kind: VoteKind,
        to: u32,
        by: PredicateRef,
        lanes: Slot,
    },
    Ballot {
        to: Slot,
        by: PredicateRef,
        lanes: Slot,
    },
    Match {
        width: Width,
        all: bool,
        to: Slot,
        agree: Option<u32>,
        a: Slot,
        lanes: Slot,
    },
    Reduce {
        kind: IntegerKind,
        sign: Sign,
        to: Slot,
        a: Slot,
        lanes: Slot,
    },
    ActiveMask {
        to: Slot,
    },
    Elect {
        to: Slot,
        chosen: u32,
        lanes: Slot,
    },
    WarpBarrier {
        lanes: Slot,
    },
}

/// What the four warps of a group do together, and what keeps that apart from all else.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    /// `fence.proxy.async`: what this warp wrote to shared memory may be read by products.
    Publish,
    /// `wgmma.fence`: what was done to registers may be followed by products.
    Fence,
    Product(Arc<GroupProduct>),
    Commit,
    /// Wait until at most this many groups of products are under way.
    Wait {
        left: u32,
    },
    /// `setmaxnreg`: a group gives registers back or asks for more.
    Registers,
    /// The instruction behind this one reads or writes registers that a product of the function uses.
    Touch(Box<[Slot]>),
}

/// What is done to barriers that lie in shared memory, and the bulk copies that they wait for.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Make {
        barrier: MbarrierPlace,
        count: Slot,
    },
    End {
        barrier: MbarrierPlace,
    },
    /// Expects bytes, then arrives; either may be missing.
    Arrive {
        barrier: MbarrierPlace,
        bytes: Option<Slot>,
        count: Option<Slot>,
        /// Where the phase goes that is not over yet.
        state: Option<Slot>,
        /// Whether what the thread did before comes before the phase's end.
        releases: bool,
    },
    /// Whether a phase is over.
    Test {
        barrier: MbarrierPlace,
        of: PhaseOf,
        to: u32,
        /// Whether the warp waits until it is.
        waits: bool,
        /// Whether what comes before the phase's end comes before what the thread does next.
        acquires: bool,
    },
    /// A fence behind which copies may know of barriers that were made.
    Publish,
    Copy(Box<TensorCopy>),
}

/// Which phase is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PhaseOf {
    /// The current or the last one, by its parity.
    Parity(Slot),
    /// What an arrival has told.
    State(Slot),
}

/// What steers.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    Barrier {
        kind: BarrierKind,
        barrier: Slot,
        threads: Option<Slot>,
        by: Option<PredicateRef>,
        to: Option<Slot>,
        to_predicate: Option<u32>,
    },
    Branch {
        target: u32,
    },
    BranchTable {
        targets: Box<[u32]>,
        index: Slot,
    },
    Call {
        function: u32,
        arguments: Box<[u64]>,
        results: Box<[u64]>,
    },
    Return,
    Exit,
    Trap,
}

impl From<Arithmetic> for Operation {
    fn from(operation: Arithmetic) -> Operation {
        Operation::Arithmetic(operation)
    }
}

impl From<Movement> for Operation {
    fn from(operation: Movement) -> Operation {
        Operation::Movement(operation)
    }
}

impl From<Test> for Operation {
    fn from(operation: Test) -> Operation {
        Operation::Test(operation)
    }
}

impl From<Memory> for Operation {
    fn from(operation: Memory) -> Operation {
        Operation::Memory(operation)
    }
}

impl From<Together> for Operation {
    fn from(operation: Together) -> Operation {
        Operation::Together(operation)
    }
}

impl From<Group> for Operation {
    fn from(operation: Group) -> Operation {
        Operation::Group(operation)
    }
}

impl From<Phase> for Operation {
    fn from(operation: Phase) -> Operation {
        Operation::Phase(operation)
    }
}

impl From<Control> for Operation {
    fn from(operation: Control) -> Operation {
        Operation::Control(operation)
    }
}
