//! Plans in the syntax tree: mesh, placement steps, settings, contracts.
//!
//! From the parser to the typed plan. Resolves nothing: axes, dimensions and value paths are names here.

use super::{AxisRef, DimDeclaration, Docs, Expr, Ident};
use crate::source::Span;

/// `plan name for Model { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The whole item.
    pub span: Span,
    /// Documentation.
    pub docs: Docs,
    /// Its name.
    pub name: Ident,
    /// The model it places.
    pub model: Ident,
    /// What stands between the braces.
    pub items: Vec<PlanItem>,
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanItem {
    /// `mesh { dp: 2, tp: 4 }`
    Mesh(Mesh),
    /// `step name: …`
    Step(Step),
    /// `batch { … }`, `precision { … }`
    Settings(SettingsItem),
    /// `memory 80 GB`
    Memory(MemoryLimit),
    /// `remat Block: save attn.out`
    Remat(Remat),
    /// `optimizer adamw { … }`
    Optimizer(PlanOptimizer),
    /// `dims S = 128`
    Dims(PlanDims),
    /// `allow gather at …`
    Allow(Allow),
    /// `expect { … }`
    Expect(Expect),
    /// An entry that later versions know (`pipeline`, `moe`, `context`, `offload`), kept as text.
    Later(LaterItem),
    /// Text that is no entry; already reported.
    Error(Span),
}

/// The ranks as a grid of named axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    /// The whole entry.
    pub span: Span,
    /// The axes, the slowest-varying first.
    pub axes: Vec<MeshAxis>,
}

/// One axis of a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshAxis {
    /// Where.
    pub span: Span,
    /// Its name.
    pub name: Ident,
    /// Its extent.
    pub size: MeshSize,
}

/// The extent of a mesh axis.
#[derive(Clone, Debug, PartialEq)]
pub enum MeshSize {
    /// `4`
    Ranks(Expr),
    /// `{ outer: 2, inner: 4 }`: the product of named parts, the major one first.
    Parts(Vec<MeshAxis>),
}

/// Placements that are propagated together.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The whole entry.
    pub span: Span,
    /// Its name; `zero` for the short form.
    pub name: Ident,
    /// What it does.
    pub body: StepBody,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum StepBody {
    /// `step zero(1): over dp quantized`
    Zero {
        /// The ZeRO stage as written, 0 to 3 where legal.
        stage: Expr,
        /// The axes that share the stored copy.
        axes: Vec<AxisRef>,
        /// Words that follow, such as `quantized`.
        modifiers: Vec<Ident>,
    },
    /// Rules after `step name:`.
    Rules(Vec<StepRule>),
}

/// One rule of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepRule {
    /// `acts S -> tp pad at Block.x`
    Use(UseRule),
    /// `store opt|grads: largest -> dp.inner at head`
    Store(StoreRule),
}

/// Places dimensions wherever they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct UseRule {
    /// Where.
    pub span: Span,
    /// The kinds of value it is narrowed to; empty for all.
    pub roles: Vec<Role>,
    /// The dimensions.
    pub dims: Vec<Ident>,
    /// The axes each goes on, major first.
    pub axes: Vec<AxisRef>,
    /// Where `pad` stands, if it does: sizes that do not divide are filled up.
    pub pad: Option<Span>,
    /// The values it is narrowed to; empty for all.
    pub at: Vec<ValuePath>,
}

/// Places the stored copy of state.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreRule {
    /// Where.
    pub span: Span,
    /// What is stored so.
    pub roles: Vec<Role>,
    /// Which dimension of each tensor is cut.
    pub dim: StoreDim,
    /// Along which axes, major first.
    pub axes: Vec<AxisRef>,
    /// Where `pad` stands, if it does.
    pub pad: Option<Span>,
    /// The parameters it is narrowed to; empty for all.
    pub at: Vec<ValuePath>,
}

/// Which dimension a store cuts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreDim {
    /// `largest`: the largest of each tensor that divides.
    Largest(Span),
    /// A named one.
    Named(Ident),
}

/// A kind of value, with where it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// Where.
    pub span: Span,
    /// Which.
    pub kind: RoleKind,
}

/// The kinds of value that rules tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoleKind {
    /// `params`
    Params,
    /// `grads`
    Grads,
    /// `opt`: optimizer state.
    Opt,
    /// `acts`: activations.
    Acts,
    /// `backward`: what the backward pass gathers parameters from. Only a store has it.
    Backward,
}

impl RoleKind {
    /// As written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Params => "params",
            Self::Grads => "grads",
            Self::Opt => "opt",
            Self::Acts => "acts",
            Self::Backward => "backward",
        }
    }
}

/// A value named as the source does: `Block.attn.wq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePath {
    /// Where.
    pub span: Span,
    /// Its segments.
    pub segments: Vec<Ident>,
}

/// `batch { … }` or `precision { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingsItem {
    /// The whole entry.
    pub span: Span,
    /// Which.
    pub kind: SettingsKind,
    /// What is set.
    pub settings: Vec<Setting>,
}

/// The entries that are lists of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SettingsKind {
    /// Sequence length, global batch, micro-batch.
    Batch,
    /// Number formats.
    Precision,
}

/// `name value`, or `name value on kind`.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Where.
    pub span: Span,
    /// What is set.
    pub name: Ident,
    /// To what.
    pub value: PlanValue,
    /// `on weight`: the kinds it is narrowed to; empty where not written.
    pub on: Vec<Ident>,
}

/// A value in a setting.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanValue {
    /// Where.
    pub span: Span,
    /// Which.
    pub kind: PlanValueKind,
}

/// The forms of a value in a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanValueKind {
    /// `2048`
    Integer(u64),
    /// `0.1`, `-1e-3`, also a negative integer
    Float(f64),
    /// `80 GB`
    Quantity {
        /// The number.
        number: f64,
        /// The unit as written.
        unit: Ident,
    },
    /// `true`, `false`
    Bool(bool),
    /// `bf16`
    Name(Ident),
    /// `"…"`
    String(String),
    /// `(0.9, 0.95)`
    Tuple(Vec<PlanValue>),
    /// `cosine(3e-4, warmup 200)`
    Call {
        /// What is called.
        name: Ident,
        /// Its arguments.
        arguments: Vec<PlanArgument>,
    },
    /// Not a value; already reported.
    Error,
}

/// An argument of a call in a setting: `3e-4` or `warmup 200`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanArgument {
    /// Where.
    pub span: Span,
    /// The parameter's name, where written.
    pub name: Option<Ident>,
    /// The value.
    pub value: PlanValue,
}

/// `memory 80 GB`: what one rank may use.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryLimit {
    /// The whole entry.
    pub span: Span,
    /// How much.
    pub amount: PlanValue,
}

/// What is kept between forward and backward, and what is computed again.
#[derive(Clone, Debug, PartialEq)]
pub struct Remat {
    /// The whole entry.
    pub span: Span,
    /// The layer it is for; all where not written.
    pub target: Option<ValuePath>,
    /// What is kept.
    pub policy: RematPolicy,
}

/// What rematerialisation keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum RematPolicy {
    /// `save a.b, c`: these values.
    Save(Vec<ValuePath>),
    /// `full`: only the layer's input.
    Full(Span),
    /// `none`: everything.
    None(Span),
    /// Another word, such as a policy of a later version.
    Other(Ident),
}

/// `optimizer adamw { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptimizer {
    /// The whole entry.
    pub span: Span,
    /// The optimizer.
    pub name: Ident,
    /// What is set.
    pub settings: Vec<Setting>,
}

/// `dims S = 128`: sizes that hold under this plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanDims {
    /// The whole entry.
    pub span: Span,
    /// The dimensions.
    pub dims: Vec<DimDeclaration>,
}

/// `allow gather at x, y`: leave to replicate what both ends of a reshard hold sharded.
#[derive(Clone, Debug, PartialEq)]
pub struct Allow {
    /// The whole entry.
    pub span: Span,
    /// What is allowed.
    pub what: Ident,
    /// For which values; empty for all.
    pub at: Vec<ValuePath>,
}

/// `expect { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct Expect {
    /// The whole entry.
    pub span: Span,
    /// The contracts.
    pub entries: Vec<Expectation>,
}

/// One contract.
#[derive(Clone, Debug, PartialEq)]
pub enum Expectation {
    /// `per Block forward on tp: 2 all_gather, 2 reduce_scatter`
    Collectives(ExpectedCollectives),
    /// `peak <= 70 GiB`
    Bound(ExpectedBound),
    /// Text that is no contract; already reported.
    Error(Span),
}

/// How many collectives of each kind there are; a kind not named has none.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedCollectives {
    /// Where.
    pub span: Span,
    /// Where they are counted.
    pub scope: ExpectedScope,
    /// `forward`, `backward`, …; all phases where not written.
    pub phase: Option<Ident>,
    /// The axes they run over; all where not written.
    pub axes: Vec<AxisRef>,
    /// The counts; empty for `none`.
    pub counts: Vec<ExpectedCount>,
}

/// What collectives are counted in.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpectedScope {
    /// `per Block`: one run of a layer.
    Per(ValuePath),
    /// `step`: a whole step.
    Step(Span),
}

/// `2 all_gather`
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedCount {
    /// Where.
    pub span: Span,
    /// How many.
    pub count: Expr,
    /// Which collective.
    pub kind: Ident,
}

/// `peak <= 70 GiB`
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedBound {
    /// Where.
    pub span: Span,
    /// The figure.
    pub figure: Ident,
    /// How it is compared.
    pub comparison: Comparison,
    /// With what.
    pub amount: PlanValue,
}

/// Comparisons in contracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `<=`
    AtMost,
    /// `<`
    Below,
    /// `>=`
    AtLeast,
    /// `>`
    Above,
    /// `==`
    Equal,
}

/// An entry that later versions know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterItem {
    /// The whole entry.
    pub span: Span,
    /// Its first word.
    pub keyword: Ident,
}

impl PlanItem {
    /// The whole entry.
    pub fn span(&self) -> Span {
        match self {
            Self::Mesh(item) => item.span,
            Self::Step(item) => item.span,
            Self::Settings(item) => item.span,
            Self::Memory(item) => item.span,
            Self::Remat(item) => item.span,
            Self::Optimizer(item) => item.span,
            Self::Dims(item) => item.span,
            Self::Allow(item) => item.span,
            Self::Expect(item) => item.span,
            Self::Later(item) => item.span,
            Self::Error(span) => *span,
        }
    }
}
