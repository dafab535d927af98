//! Kernels as the emulator runs them: every operand a place in a register file, every name resolved. Built from the syntax tree
//! by [`decode`](decode::decode) when a module is loaded.
//!
//! A register is 32 lanes side by side. Constants and special registers are registers too, which a frame finds already filled.

pub(crate) mod decode;
mod instruction;
mod kinds;

pub(crate) use instruction::{
    Arithmetic, Control, Group, Instruction, Memory, Movement, Operation, Phase, PhaseOf, Test, Together,
};
pub(crate) use kinds::{
    AddressBase, AsyncCopy, Atomic, AtomicKind, BarrierKind, ByteFactors, Carry, CarryKind, Compare, Convert,
    FloatKind, FloatMode, FloatTest, GroupProduct, HalfForm, IntegerKind, LeftFactor, Logic, Major,
    MatrixForm, MatrixProduct, MbarrierPlace, MemoryAccess, Operands, Ordering, PredicateRef, Relation,
    Rounding, ShuffleKind, Sign, Special, TensorCopy, VoteKind, Width,
};

use crate::fault::SourceLine;
use crate::ptx::FunctionKind;
use std::collections::BTreeMap;

/// A register: where it begins in a register file, in units of [`SLOT_WORDS`].
pub(crate) type Slot = u32;

/// 64-bit words of a slot: 32 lanes of 32 bits. A 64-bit register takes two slots.
pub(crate) const SLOT_WORDS: usize = 16;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Where shared memory begins among generic addresses.
pub(crate) const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
/// Where local memory begins among generic addresses.
pub(crate) const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
/// Where the parameters of a kernel begin among generic addresses.
pub(crate) const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
/// How long each window is.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;
/// Where static shared variables begin in shared space; dynamic memory begins at zero.
pub(crate) const STATIC_SHARED: u64 = 0x0010_0000;

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Program {
    pub functions: Vec<Code>,
    /// Kernels by name: their place in `functions`.
    pub kernels: BTreeMap<String, usize>,
    pub files: BTreeMap<u32, String>,
    /// Whether groups of warps multiply from shared memory or bulk copies go there, so that it must be known who wrote it and how.
    pub has_async_proxy: bool,
}

/// A stretch of shared memory that accesses must not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRegion {
    pub base: u64,
    pub bytes: u64,
}

/// A parameter of a kernel, or an argument or result of a device function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Its place in the kernel's parameters, or in the local memory of a device function's frame.
    pub offset: u64,
    pub bytes: u64,
}

/// A function.
#[derive(Debug)]
pub(crate) struct Code {
    pub name: String,
    pub kind: FunctionKind,
    pub instructions: Vec<Instruction>,
    /// What a frame's registers start as: constants in place, zeros elsewhere.
    pub template: Vec<u64>,
    /// Registers that a frame fills from the thread's coordinates.
    pub specials: Vec<(Slot, Special)>,
    pub predicates: u32,
    /// Local memory of a frame, in bytes a thread.
    pub local_bytes: u64,
    /// Static shared memory of the function's own.
    pub shared: Vec<SharedRegion>,
    pub params: Vec<Field>,
    pub returns: Vec<Field>,
    pub param_bytes: u64,
    pub most_threads: Option<u32>,
}

impl Program {
    /// The place of an instruction in texts: the PTX line and the source line.
    pub fn place(&self, function: usize, pc: usize) -> (u32, Option<SourceLine>) {
        let Some(instruction) = self.functions.get(function).and_then(|code| code.instructions.get(pc))
        else {
            return (0, None);
        };
        let (file, line) = instruction.source;
        let source = self.files.get(&file).filter(|_| line > 0);
        (instruction.line, source.map(|file| SourceLine { file: file.clone(), line }))
    }
}
