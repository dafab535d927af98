//! The typed model: what stage `model` is. Every layer and function call is instantiated and inlined
//! into one graph of typed operations; `repeat` stays a loop. Sizes are known, placements are not.
//!
//! Made by `elaborate` from the AST; read by the compiler's `lower`, and by nothing that runs.

use crate::source::Span;
use cranelift_entity::{PrimaryMap, entity_impl};

/// A dimension of a model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DimId(u32);
entity_impl!(DimId, "dim");

/// A node of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);
entity_impl!(NodeId, "n");

/// A parameter of a model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(u32);
entity_impl!(ParamId, "param");

/// A layer instance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(u32);
entity_impl!(ScopeId, "scope");

/// A dimension, atomic or a product.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimension {
    /// Unique in the model: the declared name, with a number behind it where two declarations clash.
    pub name: String,
    /// Number of elements.
    pub size: u64,
    /// Whether the size is only a stand-in: the model leaves it open and no plan or option gave it.
    pub open: bool,
    /// Major to minor factors of a product dimension (`H = KV * G`); empty for an atom.
    pub factors: Vec<DimId>,
    /// The declaration.
    pub span: Span,
}

/// Element types of the language. `Float` is whatever the plan computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// The plan's compute precision, f32 without a plan.
    Float,
    /// f32 under every plan.
    F32,
    /// bf16 under every plan.
    Bf16,
    /// f16 under every plan.
    F16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Truth value.
    Bool,
}

/// The type of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub element: Element,
    /// Dimensions as written: products are not expanded.
    pub dims: Vec<DimId>,
}

/// Scalar functions, applied element by element; arguments may lack dims of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the function its name says")]
pub enum Elementwise {
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
    Add,
    Sub,
    Mul,
    Div,
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
    Select,
}

impl Elementwise {
    /// Every function.
    pub const ALL: [Elementwise; 30] = {
        use Elementwise::*;
        [
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
            Add,
            Sub,
            Mul,
            Div,
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
            Select,
        ]
    };
}

/// How elements along a dimension combine. `Mean` over a condition and the like are expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the reduction its name says")]
pub enum Reduction {
    Sum,
    Max,
}

/// Attributes of `attention[S, K](q, k, v, …)`; see the language reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query positions.
    pub query: DimId,
    /// Key positions (`query` itself where keys have the same dimension; lowering renames).
    pub key: DimId,
    /// The contracted dimension of queries and keys.
    pub head: DimId,
    /// The dimension that values end in.
    pub value: DimId,
    /// `mask = causal`.
    pub causal: bool,
    /// `window = n`: keys at a distance of n or more are hidden.
    pub window: Option<u64>,
    /// `documents = …`: two arguments behind queries, keys and values have the numbers of the documents that queries and
    /// keys belong to; keys of other documents are hidden. One value twice where keys have the queries' dimension.
    pub documents: bool,
    /// `softcap = c`.
    pub softcap: Option<f64>,
    /// `scale = s`, by default one over the root of the head size.
    pub scale: f64,
}

/// What a node computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// An input of the graph, by position.
    Input(usize),
    /// A carry of the enclosing `repeat`, by position.
    Carry(usize),
    /// A parameter; inside a `repeat` the current layer's slice.
    Param(ParamId),
    /// A number.
    Number(f64),
    /// A truth value.
    Truth(bool),
    /// The global coordinate, i32.
    Iota(DimId),
    /// A scalar function.
    Elementwise(Elementwise),
    /// Conversion to the node's element type.
    Cast,
    /// Product of two arguments, summed over `over`.
    Dot {
        /// The contracted dims.
        over: Vec<DimId>,
    },
    /// Reduction over dims.
    Reduce {
        /// How.
        with: Reduction,
        /// The dims that go.
        over: Vec<DimId>,
    },
    /// `take[V](table, indices)`.
    Take(DimId),
    /// The elements of `dim` from `start` on, as `into`; without it one element, the dim dropped.
    Slice {
        /// The dim cut.
        dim: DimId,
        /// First element.
        start: u64,
        /// What replaces it.
        into: Option<DimId>,
    },
    /// Arguments end to end along `into`: their dims in `pieces` go; none is one element (a stack).
    Concat {
        /// Per argument.
        pieces: Vec<Option<DimId>>,
        /// The dim that comes.
        into: DimId,
    },
    /// One dim as several, major first.
    Split {
        /// The dim that goes.
        dim: DimId,
        /// Its factors.
        into: Vec<DimId>,
    },
    /// Several dims as one, major first.
    Merge {
        /// The dims that go.
        dims: Vec<DimId>,
        /// Their product.
        into: DimId,
    },
    /// One dim under another name of equal size.
    Rename {
        /// The dim that goes.
        from: DimId,
        /// The dim that comes.
        to: DimId,
    },
    /// No gradient flows through.
    StopGradient,
    /// Uniform in [0, 1), by global coordinate. Distinct nodes draw distinct numbers.
    Random,
    /// Fused attention on `q, k, v`.
    Attention(Attention),
    /// A stack of equal layers. Arguments: the initial carries. With more than one carry the result is
    /// reached through [`Operation::Project`].
    Repeat {
        /// The layer dimension.
        dim: DimId,
        /// One layer. It may use nodes of the enclosing blocks.
        body: Block,
    },
    /// One of several results of the argument.
    Project(usize),
}

/// A node: an operation on earlier nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it computes.
    pub operation: Operation,
    /// Its arguments, earlier in this block or an enclosing one.
    pub args: Vec<NodeId>,
    /// Its type.
    pub ty: TensorType,
    /// Where it was written.
    pub span: Span,
    /// The layer instance that it was written in.
    pub scope: ScopeId,
}

/// Nodes in order of evaluation, and the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Each stands behind its arguments. Carries are nodes of the block too.
    pub nodes: Vec<NodeId>,
    /// The results.
    pub results: Vec<NodeId>,
}

/// A computation with named inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// All nodes, those of nested blocks too.
    pub nodes: PrimaryMap<NodeId, Node>,
    /// The outermost block.
    pub block: Block,
    /// Inputs by position.
    pub inputs: Vec<Input>,
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Where it is declared.
    pub span: Span,
}

/// A layer instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Scope {
    /// The layer it is part of; none for the model.
    pub parent: Option<ScopeId>,
    /// The instance's name in its parent.
    pub instance: String,
    /// The layer's name.
    pub layer: String,
    /// The instance's declaration.
    pub span: Span,
}

/// Which kind of parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// Matrices and embeddings.
    Weight,
    /// Scales of norms.
    Norm,
    /// Added vectors.
    Bias,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All equal.
    Constant(f64),
    /// Normal around 0 with this standard deviation.
    Normal(f64),
    /// Uniform between the two.
    Uniform(f64, f64),
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// `layers.attn.wq`.
    pub path: String,
    /// The path with a `{}` for the number in each of `stack`: `layers.{}.attn.wq`.
    pub numbered: String,
    /// The same under the `as` names on the way, a weight's name in checkpoints made elsewhere; none if nothing is
    /// renamed.
    pub alias: Option<String>,
    /// The layer dims of the `repeat`s that it stands in, outermost first.
    pub stack: Vec<DimId>,
    /// Its own dims, of one layer.
    pub dims: Vec<DimId>,
    /// Its element type; `Float` follows the plan's `params` precision.
    pub element: Element,
    /// Kind.
    pub kind: ParamKind,
    /// Initialiser.
    pub init: Init,
    /// The layer instance that owns it.
    pub scope: ScopeId,
    /// Its name in there.
    pub name: String,
    /// Its declaration.
    pub span: Span,
}

/// What a name in a layer's body refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A node: a `let` or a function parameter.
    Node(NodeId),
    /// A parameter.
    Param(ParamId),
}

/// A source-level name that a plan's `at` can select.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The instance that the name is in.
    pub scope: ScopeId,
    /// The name.
    pub name: String,
    /// What it stands for.
    pub target: Target,
}

/// An inline placement: `F@tp` in the type of something.
#[derive(Clone, Debug, PartialEq)]
pub struct Pin {
    /// What is placed.
    pub target: Target,
    /// The dimension.
    pub dim: DimId,
    /// The mesh axes as written, major first.
    pub axes: Vec<String>,
    /// The annotation.
    pub span: Span,
}

/// A model, instantiated.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Every dimension that a type in it has.
    pub dims: PrimaryMap<DimId, Dimension>,
    /// The dimension of sequences in a batch: the first that the model leaves open.
    pub batch: Option<DimId>,
    /// The dimension of positions in a sequence: the second that the model leaves open.
    pub sequence: Option<DimId>,
    /// Layer instances; the first is the model.
    pub scopes: PrimaryMap<ScopeId, Scope>,
    /// Parameters in order of declaration.
    pub params: PrimaryMap<ParamId, Param>,
    /// `loss`: its first result is the loss, the others are the outputs named in `outputs`.
    pub graph: Graph,
    /// Names of the results after the loss.
    pub outputs: Vec<String>,
    /// Source-level names.
    pub bindings: Vec<Binding>,
    /// Inline placements.
    pub pins: Vec<Pin>,
}

impl Model {
    /// The atoms of a dimension, major first.
    pub fn atoms(&self, dim: DimId) -> Vec<DimId> {
        let factors = &self.dims[dim].factors;
        if factors.is_empty() {
            return vec![dim];
        }
        factors.iter().flat_map(|&factor| self.atoms(factor)).collect()
    }

    /// Number of parameters, all layers counted; none where it overflows 64 bits.
    pub fn parameter_count(&self) -> Option<u64> {
        self.params.values().try_fold(0u64, |total, param| {
            let sizes = param.stack.iter().chain(&param.dims).map(|&dim| self.dims[dim].size);
            sizes.into_iter().try_fold(1u64, u64::checked_mul).and_then(|count| total.checked_add(count))
        })
    }
}
