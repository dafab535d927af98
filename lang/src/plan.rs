//! The typed plan: where a model's dimensions live, and how a step is run. Names are resolved against
//! one [`Model`](crate::model::Model); what the placement means for each value is the compiler's to work out.

use crate::model::{DimId, Element, Graph, ParamKind};
use crate::source::Span;

/// A plan for one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Its declaration.
    pub span: Span,
    /// Axes in order.
    pub mesh: Vec<MeshAxis>,
    /// Placement steps in order.
    pub steps: Vec<Step>,
    /// Batch sizes.
    pub batch: Option<Batch>,
    /// Element types.
    pub precision: Precision,
    /// Bytes that a rank may use.
    pub memory: Option<Limit>,
    /// Recomputation per layer; where none matches, values that are costly to compute are saved.
    pub remat: Vec<Remat>,
    /// The optimizer; none in a plan that is never trained.
    pub optimizer: Option<Optimizer>,
    /// Leave to replicate what both ends of a reshard hold sharded.
    pub leave: Vec<Leave>,
    /// Contracts.
    pub expect: Vec<Expect>,
}

/// An axis of the mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshAxis {
    /// Its name.
    pub name: String,
    /// Its named parts, major first, where it is written as `dp { outer: 2, inner: 4 }`; otherwise empty.
    pub parts: Vec<(String, u64)>,
    /// Ranks along it.
    pub size: u64,
    /// Where it is written.
    pub span: Span,
}

/// Rules that are propagated together.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name; `zero(1)` for the short form.
    pub name: String,
    /// Its rules.
    pub rules: Vec<Rule>,
    /// Where it is written.
    pub span: Span,
}

/// Which values a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Parameters.
    Params,
    /// Gradients of parameters.
    Grads,
    /// Optimizer state and master weights.
    Opt,
    /// Activations.
    Acts,
    /// What the backward pass gathers parameters from; of store rules only, which it has to itself.
    Backward,
}

/// A path of names as a plan writes it: `Block.attn.wq`. The first is a layer's name (any instance of it) or
/// an instance of the model; the last may be a value, a parameter or a whole instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The names.
    pub segments: Vec<String>,
    /// Where it is written.
    pub span: Span,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// `acts S -> tp at Block.x`: values in use.
    Place {
        /// Roles it is narrowed to; empty means all.
        roles: Vec<Role>,
        /// The dimension.
        dim: DimId,
        /// Axes, major first, each `dp` or `dp.inner`.
        axes: Vec<String>,
        /// Whether a size that the axes do not divide is padded.
        pad: bool,
        /// Values it is narrowed to; empty means all.
        at: Vec<Path>,
        /// Where it is written.
        span: Span,
    },
    /// `store opt: largest -> dp`: where state rests between uses.
    Store {
        /// Whose state.
        roles: Vec<Role>,
        /// The dimension; none is the largest that the axes divide.
        dim: Option<DimId>,
        /// Axes, major first.
        axes: Vec<String>,
        /// Values it is narrowed to; empty means all.
        at: Vec<Path>,
        /// Where it is written.
        span: Span,
    },
}

/// `batch { seq 2048, global 64, micro 2 }`. The model's open dimensions have their sizes from here already.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Positions in a sequence.
    pub sequence: u64,
    /// Sequences in a step, over all ranks.
    pub global: u64,
    /// Sequences that one rank works on at a time; none is all that it has.
    pub micro: Option<u64>,
    /// Where it is written.
    pub span: Span,
}

/// How products read their factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// As they are.
    AsStored,
    /// Those of f32 rounded to tf32, which has ten fraction bits.
    Tf32,
}

/// Element types of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Activations and operands of products.
    pub compute: Element,
    /// What products make of those operands; tf32 only where `compute` is f32.
    pub factors: Factors,
    /// Stored parameters.
    pub params: Element,
    /// Stored gradients.
    pub grads: Element,
    /// The optimizer's copy of parameters; the same as `params` means there is none.
    pub master: Element,
    /// What the loss is multiplied by before it is differentiated, and gradients are divided by before they are used: a power of two.
    pub loss_scale: u64,
}

impl Default for Precision {
    fn default() -> Precision {
        let f32 = Element::F32;
        let factors = Factors::AsStored;
        Precision { compute: f32, factors, params: f32, grads: f32, master: f32, loss_scale: 1 }
    }
}

/// A limit with the place that states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// Where it is written.
    pub span: Span,
}

/// What is kept for the backward pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Whatever is costly to compute again.
    None,
    /// Only a layer's input.
    Full,
    /// A layer's input and these values.
    Save(Vec<Path>),
}

/// `remat Block: full`.
#[derive(Clone, Debug, PartialEq)]
pub struct Remat {
    /// The layer.
    pub layer: Path,
    /// What is kept.
    pub policy: Policy,
    /// Where it is written.
    pub span: Span,
}

/// An optimizer with its hyper-parameters filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// Its name.
    pub name: String,
    /// State tensors of each parameter, all starting at zero.
    pub states: Vec<String>,
    /// The update of one element, on scalars. Inputs `parameter, gradient, step, lr, decay`, then the states;
    /// results: the new parameter, then the new states. `step` counts from 1.
    pub update: Graph,
    /// The learning rate: input `step` (from 1), result a scalar.
    pub schedule: Graph,
    /// Weight decay, and the kinds of parameter that it applies to.
    pub decay: f64,
    /// Those kinds.
    pub decay_on: Vec<ParamKind>,
    /// Bound on the global gradient norm.
    pub clip: Option<f64>,
    /// Where it is written.
    pub span: Span,
}

/// `allow gather at Block.x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Leave {
    /// Values it is given for; empty means all.
    pub at: Vec<Path>,
    /// Where it is written.
    pub span: Span,
}

/// A contract.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    /// `per Block forward on tp: 2 all_gather, 2 reduce_scatter`. Kinds not named: none.
    Collectives {
        /// The layer whose runs are counted; none is what stands outside of any, `step`.
        layer: Option<String>,
        /// `forward`, `recompute`, `backward`, `gradient` or `update`; none is all.
        phase: Option<String>,
        /// The axis; none is all.
        axis: Option<String>,
        /// Kind and number.
        counts: Vec<(String, u64)>,
        /// Where it is written.
        span: Span,
    },
    /// `peak <= 70 GiB`.
    Peak {
        /// The bound.
        bytes: u64,
        /// Where it is written.
        span: Span,
    },
}
