//! The syntax tree of a PTX module: names as they are written, nothing resolved.

use super::Type;
use std::collections::BTreeMap;

/// A whole PTX text.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The target, such as `sm_80`.
    pub target: String,
    /// Variables of the module in global, constant and shared space.
    pub variables: Vec<Variable>,
    /// Functions in their order, declarations without a body among them.
    pub functions: Vec<Function>,
    /// The names of source files by the numbers that `.loc` uses.
    pub files: BTreeMap<u32, String>,
}

/// Where a variable or an access lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory.
    Global,
    /// Device memory that kernels only read.
    Const,
    /// A block's memory.
    Shared,
    /// A thread's memory.
    Local,
    /// Arguments of a kernel or of a call.
    Param,
    /// Any of them; the address says which.
    Generic,
}

/// A variable, or a parameter.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub space: Space,
    /// The type of an element.
    pub element: Type,
    /// Elements; `None` for an array without a length, whose size the launch decides.
    pub count: Option<u64>,
    /// Alignment in bytes.
    pub align: u64,
    /// What it starts as.
    pub initial: Initial,
    /// The PTX line.
    pub line: u32,
}

impl Variable {
    /// Its size in bytes; none for an array without a length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.element.bytes() as u64 * self.count.unwrap_or(0)
    }
}

/// What a variable starts as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Initial {
    /// Nothing is said: device memory is zero then, all other memory has no value.
    None,
    /// These bytes, then zeros.
    Bytes(Vec<u8>),
}

/// Which of the two kinds of function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// A kernel.
    Entry,
    /// A function that kernels call.
    Device,
}

/// A function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Kernel or device function.
    pub kind: FunctionKind,
    /// What a device function hands back.
    pub returns: Vec<Variable>,
    /// Its parameters.
    pub params: Vec<Variable>,
    /// The most threads a block may have, from `.maxntid` or `.reqntid`.
    pub most_threads: Option<u32>,
    /// Its body; `None` for a declaration.
    pub body: Option<Vec<Item>>,
    /// The PTX line of its name.
    pub line: u32,
}

/// One item of a body.
#[derive(Clone, Debug)]
pub enum Item {
    /// A label, and its line.
    Label(String, u32),
    /// `{`: names declared until the `}` are its own.
    Open,
    /// `}`.
    Close,
    /// `.reg`: one register, or with a count `prefix0`, `prefix1`, ….
    Registers {
        /// The type of all of them.
        ty: Type,
        /// The name, or what stands before the number.
        name: String,
        /// How many, where they are numbered.
        count: Option<u32>,
    },
    /// A variable in shared, local or parameter space.
    Variable(Variable),
    /// The source line of what follows.
    Location {
        /// A number of [`Module::files`].
        file: u32,
        /// The line in it.
        line: u32,
    },
    /// `name: .branchtargets a, b;`.
    BranchTargets(String, Vec<String>),
    /// An instruction.
    Instruction(RawInstruction),
}

/// `@p` or `@!p` before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub name: String,
    /// Whether the instruction runs where the predicate is false.
    pub negated: bool,
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub struct RawInstruction {
    /// The PTX line.
    pub line: u32,
    /// Its guard.
    pub guard: Option<Guard>,
    /// The opcode with its modifiers.
    pub opcode: String,
    /// The operands.
    pub operands: Vec<Operand>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, a special register, a variable, a label or a function.
    Name(String),
    /// `!p`.
    Not(String),
    /// An integer with its sign, in 64 bits.
    Integer(i64),
    /// The bits of an f32.
    Float32(u32),
    /// The bits of an f64.
    Float64(u64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `[base + offset]`.
    Address(Address),
    /// `[base + offset, {a, b}]`: a box of a tensor.
    Tensor(Address, Vec<Operand>),
    /// `a|b`.
    Pair(Box<Operand>, Box<Operand>),
}

/// What stands between brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A register or a variable; `None` for a bare number.
    pub base: Option<String>,
    /// Bytes behind it.
    pub offset: i64,
}
