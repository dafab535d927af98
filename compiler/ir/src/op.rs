//! The operations. The set is closed: every pass matches all of them, so a new one is a checklist
//! that the compiler enforces.
//!
//! Operations act on dimensions by name. Arguments of [`Op::Map`] may lack dimensions of the result
//! (they are broadcast); nothing else broadcasts.

use crate::dim::{Axis, Dim};
use crate::program::Region;
use crate::types::ReduceOp;
use smallvec::SmallVec;

/// A scalar function applied element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the function its name says")]
pub enum ScalarOp {
    // one argument
    Neg,
    Abs,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Tanh,
    Sigmoid,
    Erf,
    Sin,
    Cos,
    Floor,
    Not,
    /// Converts to the result's element type: floats to integers truncate, halves round to nearest
    /// even, `bool` is 0 or 1, and anything but zero is true.
    Cast,
    // two arguments
    Add,
    Sub,
    Mul,
    Div,
    /// Remainder of integers, or `a - b * floor(a / b)` of floats.
    Rem,
    Pow,
    Min,
    Max,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    And,
    Or,
    // three arguments
    /// `select(condition, then, else)`.
    Select,
}

impl ScalarOp {
    /// Every scalar operation.
    pub const ALL: [ScalarOp; 31] = [
        ScalarOp::Neg,
        ScalarOp::Abs,
        ScalarOp::Exp,
        ScalarOp::Log,
        ScalarOp::Sqrt,
        ScalarOp::Rsqrt,
        ScalarOp::Tanh,
        ScalarOp::Sigmoid,
        ScalarOp::Erf,
        ScalarOp::Sin,
        ScalarOp::Cos,
        ScalarOp::Floor,
        ScalarOp::Not,
        ScalarOp::Cast,
        ScalarOp::Add,
        ScalarOp::Sub,
        ScalarOp::Mul,
        ScalarOp::Div,
        ScalarOp::Rem,
        ScalarOp::Pow,
        ScalarOp::Min,
        ScalarOp::Max,
        ScalarOp::Equal,
        ScalarOp::NotEqual,
        ScalarOp::Less,
        ScalarOp::LessEqual,
        ScalarOp::Greater,
        ScalarOp::GreaterEqual,
        ScalarOp::And,
        ScalarOp::Or,
        ScalarOp::Select,
    ];

    /// The name in IR text.
    pub fn name(self) -> &'static str {
        match self {
            ScalarOp::Neg => "neg",
            ScalarOp::Abs => "abs",
            ScalarOp::Exp => "exp",
            ScalarOp::Log => "log",
            ScalarOp::Sqrt => "sqrt",
            ScalarOp::Rsqrt => "rsqrt",
            ScalarOp::Tanh => "tanh",
            ScalarOp::Sigmoid => "sigmoid",
            ScalarOp::Erf => "erf",
            ScalarOp::Sin => "sin",
            ScalarOp::Cos => "cos",
            ScalarOp::Floor => "floor",
            ScalarOp::Not => "not",
            ScalarOp::Cast => "cast",
            ScalarOp::Add => "add",
            ScalarOp::Sub => "sub",
            ScalarOp::Mul => "mul",
            ScalarOp::Div => "div",
            ScalarOp::Rem => "rem",
            ScalarOp::Pow => "pow",
            ScalarOp::Min => "min",
            ScalarOp::Max => "max",
            ScalarOp::Equal => "equal",
            ScalarOp::NotEqual => "not_equal",
            ScalarOp::Less => "less",
            ScalarOp::LessEqual => "less_equal",
            ScalarOp::Greater => "greater",
            ScalarOp::GreaterEqual => "greater_equal",
            ScalarOp::And => "and",
            ScalarOp::Or => "or",
            ScalarOp::Select => "select",
        }
    }

    /// Number of arguments.
    pub fn arity(self) -> usize {
        use ScalarOp::*;
        match self {
            Neg | Abs | Exp | Log | Sqrt | Rsqrt | Tanh | Sigmoid | Erf | Sin | Cos | Floor | Not | Cast => 1,
            Add | Sub | Mul | Div | Rem | Pow | Min | Max | Equal | NotEqual | Less | LessEqual | Greater
            | GreaterEqual | And | Or => 2,
            Select => 3,
        }
    }
}

/// A scalar constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Literal {
    /// A float of the result's element type.
    Float(f64),
    /// An integer of the result's element type.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

/// What a fused attention computes: for each query position
/// `o = Σ_t softmax_t(softcap(scale · q·k_t) + mask) v_t`.
///
/// Arguments `q`, `k`, `v`. `q` has dims `batch…, query, groups…, head`, `k` and `v` have
/// `batch…, key, …` where batch dims are all those that `q`, `k` and `v` share besides `head`; dims of
/// `q` alone are the group of query heads that share one key head. `v` may end in another dim than
/// `head`. Results: the output (dims of `q` with `head` replaced by `value`), and the log-sum-exp, f32,
/// dims of `q` without `head`.
///
/// Where sequences are packed, the documents of queries and those of keys stand behind all other arguments: numbers, u32,
/// with dims `query` or `key` and any of the batch dims.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The positions of queries.
    pub query: Dim,
    /// The positions of keys and values, of the same size as `query` where the mask is causal.
    pub key: Dim,
    /// The dimension contracted between queries and keys.
    pub head: Dim,
    /// The dimension that values and the output end in; often `head` itself.
    pub value: Dim,
    /// Whether key `t` is hidden from query `s` when `t > s`.
    pub causal: bool,
    /// Whether key `t` is hidden from query `s` when `s - t >= window`.
    pub window: Option<u64>,
    /// What of a sequence a query belongs to.
    pub packing: Packing,
    /// `cap · tanh(score / cap)` on the scaled score.
    pub softcap: Option<f64>,
    /// Factor on `q·k`.
    pub scale: f64,
}

/// How a product reads its factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// As they are stored.
    AsStored,
    /// Of f32, each rounded to tf32: to ten fraction bits, to the nearest, of two to the one further from zero. What is multiplied then
    /// fits f32 exactly. Linear in each factor as a cast is, but for rounding.
    Tf32,
}

/// What an attention's sequences are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// A sequence is one document.
    Whole,
    /// Several documents share a sequence, and a query sees keys of its own only: of the same number.
    Documents,
}

impl Packing {
    /// Arguments that say which document a position belongs to.
    pub fn operands(self) -> usize {
        match self {
            Packing::Whole => 0,
            Packing::Documents => 2,
        }
    }
}

/// What a scan does with a value that its body yields for each iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOutput {
    /// Element `i` of the result along the scan dimension is what iteration `i` yields.
    Stack,
    /// The same, added to element `i` of an initial stack that is an argument.
    Accumulate,
    /// The sum of what all iterations yield and of an initial value that is an argument. Only from the
    /// `scheduled` stage on, where it lets a product add to what is there; until then such a sum is a carry.
    Sum,
}

impl ScanOutput {
    /// Whether the result starts from an argument.
    pub fn has_initial(self) -> bool {
        match self {
            ScanOutput::Stack => false,
            ScanOutput::Accumulate | ScanOutput::Sum => true,
        }
    }
}

/// A loop over one dimension: the only control flow. Layers and micro-batches are scans.
///
/// Arguments: the initial carries, then the stacks (each has `dim`, which its slice in the body
/// lacks), then the initial values of the outputs that have one, in order. Region parameters:
/// carries, then slices. Region yields: carries, then outputs. Results: final carries, then stacks.
/// The body may also use values of the enclosing regions.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// The dimension iterated over. It may be one that no type has.
    pub dim: Dim,
    /// Whether the last index comes first.
    pub reverse: bool,
    /// The body.
    pub body: Region,
    /// Number of carries.
    pub carries: usize,
    /// Number of stacks sliced.
    pub stacks: usize,
    /// What happens to each further yield.
    pub outputs: Vec<ScanOutput>,
}

/// Why data moves: shown to the user with the source line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reason {
    /// A sentence that names the value, the rule and who wants what.
    pub text: String,
    /// Whether the user gave leave to hold the whole value on every rank on the way.
    pub leave_to_gather: bool,
}

/// How a collective moves data. Sizes follow from the types of arguments and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the collective its name says")]
pub enum CollectiveKind {
    AllGather,
    ReduceScatter,
    AllReduce,
    AllToAll,
    Permute,
}

impl CollectiveKind {
    /// Every kind.
    pub const ALL: [CollectiveKind; 5] = [
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllReduce,
        CollectiveKind::AllToAll,
        CollectiveKind::Permute,
    ];

    /// Whether values are combined, not just moved.
    pub fn reduces(self) -> bool {
        match self {
            CollectiveKind::ReduceScatter | CollectiveKind::AllReduce => true,
            CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute => false,
        }
    }

    /// The name in IR text, JSON and `expect`.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Permute => "permute",
        }
    }
}

/// One call that moves data between the ranks of a group: argument `i` becomes result `i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// The axes whose ranks take part, in mesh order.
    pub axes: SmallVec<[Axis; 2]>,
    /// How partial results combine; a sum for the kinds that combine nothing.
    pub reduce: ReduceOp,
    /// One reason an argument.
    pub reasons: Vec<Reason>,
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A scalar. No arguments.
    Constant(Literal),
    /// `i32[dim]`: the global coordinate along `dim`. No arguments. `dim` may be one that a scan
    /// iterates over; then the result has no dimension and is the loop's index.
    Iota {
        /// The dimension whose coordinate this is.
        dim: Dim,
    },
    /// A scalar function of arguments that may lack dimensions of the result.
    Map(ScalarOp),
    /// Combines the elements along `dims`.
    Reduce {
        /// How.
        op: ReduceOp,
        /// The dimensions that go.
        dims: SmallVec<[Dim; 4]>,
    },
    /// Product of two arguments, summed in f32 over the dims that both have and the result lacks.
    /// A dim that both have and the result keeps is a batch dim.
    Dot(Factors),
    /// The same elements under another dimension of equal size.
    Rename {
        /// The dimension that goes.
        from: Dim,
        /// The dimension that comes.
        to: Dim,
    },
    /// One dimension seen as several, major first.
    Split {
        /// The dimension that goes.
        dim: Dim,
        /// Its factors.
        into: SmallVec<[Dim; 4]>,
    },
    /// Adjacent dimensions, major first, seen as one.
    Merge {
        /// The dimensions that go.
        dims: SmallVec<[Dim; 4]>,
        /// Their product.
        into: Dim,
    },
    /// The elements of `dim` from `start` on, under `into`, or the one element at `start` with the
    /// dimension dropped.
    Slice {
        /// The dimension cut.
        dim: Dim,
        /// First element.
        start: u64,
        /// The dimension that replaces it.
        into: Option<Dim>,
    },
    /// Zeros along `into`, but for the argument from `start` on: the transpose of [`Op::Slice`].
    Pad {
        /// The argument's dimension that goes, or none if it is a single element.
        dim: Option<Dim>,
        /// Where the argument's first element comes to lie.
        start: u64,
        /// The dimension that comes.
        into: Dim,
    },
    /// Arguments laid end to end along `into`.
    Concat {
        /// For each argument, its dimension that goes; none is one element.
        pieces: SmallVec<[Option<Dim>; 4]>,
        /// The dimension that comes, as large as all pieces together.
        into: Dim,
    },
    /// `take(table, indices)`: rows of `table` along `dim`. Indices out of range give zeros. Dims that
    /// table and indices share are batch dims; the other dims of the indices come.
    Take {
        /// The table's dimension that the indices replace.
        dim: Dim,
    },
    /// `scatter_add(updates, indices)`: for each index the update added to row `index` of zeros along
    /// `dim`: the transpose of [`Op::Take`]. The updates have all dims of the indices, which go, but for
    /// those that the result keeps: they are batch dims.
    ScatterAdd {
        /// The dimension that comes.
        dim: Dim,
    },
    /// Uniform f32 in [0, 1) by [`crate::random_bits`], a counter-based generator keyed on (seed, step,
    /// stream) at the global coordinate: equal bits under every placement. One argument, the step (`u32[]`).
    Random {
        /// Distinguishes the random values of a program.
        stream: u32,
        /// The dimensions whose coordinates number the elements, major first: those of the result in
        /// order, and among them those that enclosing scans iterate over (their coordinate is the loop's index).
        dims: SmallVec<[Dim; 6]>,
    },
    /// The argument; no gradient flows. Gone after differentiation.
    StopGradient,
    /// Fused attention.
    Attention(Attention),
    /// Arguments `q, k, v, o, lse, do` and the documents that there are; results `dq, dk, dv`.
    AttentionGradient(Attention),
    /// A loop.
    Scan(Scan),
    /// The same value placed as the result's type says. Only propagation makes these; the planner
    /// lowers them to [`Op::LocalSlice`] and [`Op::Collective`].
    Reshard(Reason),
    /// Keeps this rank's part of a value that it holds more of. No communication.
    LocalSlice,
    /// Moves data between ranks. From the `scheduled` stage on it only starts to: until an [`Op::Done`] has
    /// waited for it, its results are in flight and its arguments are being read. Collectives over the same axes
    /// share a stream and end in the order in which they start.
    Collective(Collective),
    /// Waits for a collective. Arguments: its results, all of them. Results: the same values, there to be read.
    Done,
    /// One kernel: its body is computed element by element, and only what it yields is stored. Arguments
    /// become the region's parameters, the yields its results; the body uses nothing else. It holds
    /// [`Op::Constant`], [`Op::Iota`], [`Op::Random`], [`Op::Map`], [`Op::Reduce`], the views
    /// ([`Op::Rename`], [`Op::Split`], [`Op::Merge`], [`Op::Slice`], [`Op::Pad`], [`Op::Concat`]) and
    /// [`Op::LocalSlice`]. Only from the `scheduled` stage on.
    Fused(Region),
}

impl Op {
    /// The name in IR text, without attributes.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Constant(_) => "const",
            Op::Iota { .. } => "iota",
            Op::Map(op) => op.name(),
            Op::Reduce { op: ReduceOp::Sum, .. } => "reduce_sum",
            Op::Reduce { op: ReduceOp::Max, .. } => "reduce_max",
            Op::Dot(_) => "dot",
            Op::Rename { .. } => "rename",
            Op::Split { .. } => "split",
            Op::Merge { .. } => "merge",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::Take { .. } => "take",
            Op::ScatterAdd { .. } => "scatter_add",
            Op::Random { .. } => "random",
            Op::StopGradient => "stop_gradient",
            Op::Attention(_) => "attention",
            Op::AttentionGradient(_) => "attention_gradient",
            Op::Scan(_) => "scan",
            Op::Reshard(_) => "reshard",
            Op::LocalSlice => "local_slice",
            Op::Collective(collective) => collective.kind.name(),
            Op::Done => "done",
            Op::Fused(_) => "fused",
        }
    }

    /// The reasons of a movement, one an argument; none for what doesn't move data.
    pub fn reasons(&self) -> &[Reason] {
        match self {
            Op::Reshard(reason) => std::slice::from_ref(reason),
            Op::Collective(collective) => &collective.reasons,
            Op::Constant(_) | Op::Iota { .. } | Op::Map(_) | Op::Reduce { .. } | Op::Dot(_) => &[],
            Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } | Op::Pad { .. } => {
                &[]
            }
            Op::Concat { .. } | Op::Take { .. } | Op::ScatterAdd { .. } | Op::Random { .. } => &[],
            Op::StopGradient | Op::Attention(_) | Op::AttentionGradient(_) => &[],
            Op::Scan(_) | Op::LocalSlice | Op::Done | Op::Fused(_) => &[],
        }
    }

    /// The region inside, of a scan or a fused kernel.
    pub fn region(&self) -> Option<&Region> {
        match self {
            Op::Scan(scan) => Some(&scan.body),
            Op::Fused(body) => Some(body),
            _ => None,
        }
    }

    /// The region inside, to be changed.
    pub fn region_mut(&mut self) -> Option<&mut Region> {
        match self {
            Op::Scan(scan) => Some(&mut scan.body),
            Op::Fused(body) => Some(body),
            _ => None,
        }
    }
}
