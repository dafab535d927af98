//! The syntax tree of one `.dtl` file: items and the members of their bodies. Types and expressions are in
//! [`expression`], plans in [`plan`].
//!
//! From the parser to names and types. Every node has its span; what could not be parsed is an error node. Comments are
//! not here: they are tokens ([`crate::lex`]) that the formatter puts back by position. Resolves nothing.

pub mod expression;
pub mod plan;
pub mod walk;

pub use expression::*;
pub use plan::*;

use crate::source::{FileId, Span};

/// A name as written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ident {
    /// Where.
    pub span: Span,
    /// The name.
    pub name: String,
}

/// A text literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StringLiteral {
    /// Where, quotes included.
    pub span: Span,
    /// The content.
    pub text: String,
}

/// The lines of `///` before an item or member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Docs {
    /// Each line without `///` and one space.
    pub lines: Vec<String>,
}

/// One file.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// Which file.
    pub id: FileId,
    /// Its items in order.
    pub items: Vec<Item>,
}

/// A top-level item.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// `use a::b::{C, D}`
    Use(Use),
    /// `layer Name[dims](hypers) { … }`
    Layer(Layer),
    /// `model Name { … }`
    Model(Model),
    /// `optimizer Name(hypers) { … }`
    Optimizer(Optimizer),
    /// `fn name[dims](parameters) -> type { … }`
    Function(Function),
    /// `plan name for Model { … }`
    Plan(Plan),
    /// Text that is no item; already reported.
    Error(Span),
}

/// An import.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// The whole item.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// The path before `::{`, or the whole path.
    pub path: Vec<Ident>,
    /// What is taken from there.
    pub names: UseNames,
}

/// What a `use` brings into scope.
#[derive(Clone, Debug, PartialEq)]
pub enum UseNames {
    /// `use a::b` or `use a::b as c`: the path's last segment, under a new name where given.
    Last {
        /// The name after `as`.
        alias: Option<Ident>,
    },
    /// `use a::{b, c as d}`
    Group(Vec<UseName>),
}

/// One name of a `use` group.
#[derive(Clone, Debug, PartialEq)]
pub struct UseName {
    /// Where.
    pub span: Span,
    /// The name in the other file.
    pub name: Ident,
    /// The name here, where it differs.
    pub alias: Option<Ident>,
}

/// A layer: parameters, sub-layers and what it computes, generic over dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The whole item.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// Its name.
    pub name: Ident,
    /// `[D, H, K]` or `[I -> O]`, where written.
    pub dims: Option<DimParameters>,
    /// `(theta: f32 = 10000.0)`; empty where not written.
    pub hypers: Vec<Parameter>,
    /// What stands between the braces.
    pub members: Vec<Member>,
}

/// A model: sized dimensions, sub-layers and functions such as `loss`.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The whole item.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// Its name.
    pub name: Ident,
    /// `(…)`; empty where not written.
    pub hypers: Vec<Parameter>,
    /// What stands between the braces.
    pub members: Vec<Member>,
}

/// An optimizer: state kept for each parameter, and one nameless function that returns the new parameter and then the
/// new states in the order of their declaration.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The whole item.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// Its name.
    pub name: Ident,
    /// `(beta1: f32 = 0.9)`; empty where not written.
    pub hypers: Vec<Parameter>,
    /// What stands between the braces.
    pub members: Vec<Member>,
}

/// A function, top-level or a member.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// The whole function.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// Its name; a layer's main function has none.
    pub name: Option<Ident>,
    /// `[S, K]`, where written.
    pub dims: Option<DimParameters>,
    /// What it takes.
    pub parameters: Vec<Parameter>,
    /// What it gives back.
    pub result: Type,
    /// What it computes.
    pub body: Block,
}

/// Declared dimensions: `[D, K]`, or `[I -> O]` for a layer that is used as `Linear[D -> V]`.
#[derive(Clone, Debug, PartialEq)]
pub struct DimParameters {
    /// Brackets included.
    pub span: Span,
    /// All, or those before the arrow.
    pub from: Vec<Ident>,
    /// Those after the arrow, where there is one.
    pub to: Option<Vec<Ident>>,
}

/// A hyper-parameter or function parameter: `name: type = default`.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Where.
    pub span: Span,
    /// Its name.
    pub name: Ident,
    /// Its type.
    pub ty: Type,
    /// Its default.
    pub default: Option<Expr>,
}

/// A member of a layer, model or optimizer. Which of them an item may have is checked with names, not here.
#[derive(Clone, Debug, PartialEq)]
pub enum Member {
    /// `dims B, S, D = 4096, O = D`
    Dims(Dims),
    /// `param wq: [D, H, K]`
    Param(Param),
    /// `attn = Attention[D, H](…)` and stacks
    SubLayer(SubLayer),
    /// `state m, v`
    State(State),
    /// `fn (…) -> … { … }`
    Function(Function),
    /// `if hyper { … } else { … }` around members
    If(MemberIf),
    /// Text that is no member; already reported.
    Error(Span),
}

/// `dims A, B = 4, C = A * B`
#[derive(Clone, Debug, PartialEq)]
pub struct Dims {
    /// The whole member.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// The dimensions.
    pub dims: Vec<DimDeclaration>,
}

/// One dimension of a `dims` member: free, sized, a product (`KV * G`), a quotient (`K / 2`) or an alias (`O = D`).
#[derive(Clone, Debug, PartialEq)]
pub struct DimDeclaration {
    /// Where.
    pub span: Span,
    /// Its name.
    pub name: Ident,
    /// What it is, where said.
    pub value: Option<Expr>,
}

/// A trained tensor: `param name: type = initialiser kind norm as "name elsewhere"`.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// The whole member.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// Its name.
    pub name: Ident,
    /// Its type; a dtype in it overrides the plan's.
    pub ty: Type,
    /// `normal(0.02)`, `zeros`, …, where written.
    pub init: Option<Expr>,
    /// Where written.
    pub kind: Option<ParamKind>,
    /// Its name in checkpoints made elsewhere.
    pub checkpoint_name: Option<StringLiteral>,
}

/// What a parameter is to the initialiser and to weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// A matrix: random at first, decays.
    Weight,
    /// A norm's scale: ones at first, does not decay.
    Norm,
    /// A bias: zeros at first, does not decay.
    Bias,
}

impl ParamKind {
    /// All kinds, as they are written.
    pub const NAMES: [&'static str; 3] = ["weight", "norm", "bias"];

    /// The kind written `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "weight" => Some(Self::Weight),
            "norm" => Some(Self::Norm),
            "bias" => Some(Self::Bias),
            _ => None,
        }
    }
}

/// A layer inside a layer or model: one, or a stack of several run one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct SubLayer {
    /// The whole member.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// Its name.
    pub name: Ident,
    /// One entry, or the entries of a stack, in the order in which they run.
    pub stack: Vec<LayerUse>,
    /// Its name in checkpoints made elsewhere.
    pub checkpoint_name: Option<StringLiteral>,
}

/// A layer applied to dimensions and hyper-parameters, once or repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerUse {
    /// Where.
    pub span: Span,
    /// `repeat[L]`: the dimension or number it is repeated over.
    pub repeat: Option<Expr>,
    /// The layer.
    pub layer: Ident,
    /// `[D, F]`, where written.
    pub dims: Option<DimArguments>,
    /// `(eps = 1e-5)`; empty where not written.
    pub arguments: Vec<Argument>,
}

/// State that an optimizer keeps for each parameter, shaped like the parameter unless a type is given.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The whole member.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// The states.
    pub names: Vec<Ident>,
    /// Their type, where written.
    pub ty: Option<Type>,
    /// Their first value; zero where not written.
    pub init: Option<Expr>,
}

/// Members that exist only where a hyper-parameter says so.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberIf {
    /// The whole member.
    pub span: Span,
    /// Each condition with its members, tried in order.
    pub branches: Vec<MemberBranch>,
    /// Members where no condition holds.
    pub otherwise: Option<Vec<Member>>,
}

/// One arm of a [`MemberIf`].
#[derive(Clone, Debug, PartialEq)]
pub struct MemberBranch {
    /// Known at compile time.
    pub condition: Expr,
    /// What exists where it holds.
    pub members: Vec<Member>,
}

impl Item {
    /// The whole item.
    pub fn span(&self) -> Span {
        match self {
            Self::Use(item) => item.span,
            Self::Layer(item) => item.span,
            Self::Model(item) => item.span,
            Self::Optimizer(item) => item.span,
            Self::Function(item) => item.span,
            Self::Plan(item) => item.span,
            Self::Error(span) => *span,
        }
    }
}

impl Member {
    /// The whole member.
    pub fn span(&self) -> Span {
        match self {
            Self::Dims(member) => member.span,
            Self::Param(member) => member.span,
            Self::SubLayer(member) => member.span,
            Self::State(member) => member.span,
            Self::Function(member) => member.span,
            Self::If(member) => member.span,
            Self::Error(span) => *span,
        }
    }
}
