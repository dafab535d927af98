//! Programs: values, instructions, regions, and the state that a step carries to the next.

use crate::dim::{Dim, DimInfo, Mesh};
use crate::memory::MemoryPlan;
use crate::op::{Factors, Op, Scan};
use crate::types::{DType, Type};
use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::SmallVec;

/// A value: the result of one instruction, or a parameter of one region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "v");

/// A place in the model's tree of layers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(u32);
entity_impl!(Scope, "scope");

/// Where an instruction came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(u32);
entity_impl!(Origin, "origin");

/// A layer instance in the model's tree. The root is the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScopeInfo {
    /// The layer it stands in; none for the model.
    pub parent: Option<Scope>,
    /// The name of the instance in its parent: `attn`.
    pub instance: String,
    /// The layer's name: `Attention`.
    pub layer: String,
}

/// A source position with the layer instance that it was reached through.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OriginInfo {
    /// File as the user named it.
    pub file: String,
    /// Line, from 1; 0 where the compiler itself is the origin.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// The layer instance.
    pub scope: Scope,
}

/// Which part of the step an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The model as written.
    Forward,
    /// Forward work done again for the backward pass.
    Recompute,
    /// Gradients of activations and parameters, block by block.
    Backward,
    /// Completing gradients once a step.
    Gradient,
    /// Clipping and the optimizer.
    Update,
}

impl Phase {
    /// Every phase, in the order of a step.
    pub const ALL: [Phase; 5] =
        [Phase::Forward, Phase::Recompute, Phase::Backward, Phase::Gradient, Phase::Update];

    /// The name in IR text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Recompute => "recompute",
            Phase::Backward => "backward",
            Phase::Gradient => "gradient",
            Phase::Update => "update",
        }
    }
}

/// What part a value plays; plan rules can be narrowed to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Activations and whatever is none of the others.
    Activation,
    /// A parameter, as used.
    Parameter,
    /// The gradient of a parameter.
    Gradient,
    /// Optimizer state and master weights, and the arithmetic on them.
    Optimizer,
}

impl Role {
    /// The name in IR text.
    pub fn name(self) -> &'static str {
        match self {
            Role::Activation => "act",
            Role::Parameter => "param",
            Role::Gradient => "grad",
            Role::Optimizer => "opt",
        }
    }
}

/// What is known of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Its type.
    pub ty: Type,
    /// A readable name from the source, for printing and diagnostics.
    pub name: Option<String>,
    /// Where it came from.
    pub origin: Origin,
    /// Its part in the step.
    pub role: Role,
    /// The forward value whose gradient this is. A gradient is placed like its value.
    pub gradient_of: Option<Value>,
}

/// A source-level name of a value, which `at` in a plan can select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The layer instance that the name is in.
    pub scope: Scope,
    /// A `let`, function parameter or `param` of that layer.
    pub name: String,
    /// What it is bound to.
    pub value: Value,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// What it reads.
    pub args: SmallVec<[Value; 4]>,
    /// What it defines.
    pub results: SmallVec<[Value; 2]>,
    /// Which part of the step it belongs to.
    pub phase: Phase,
}

/// A straight sequence of instructions with parameters and yields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Region {
    /// Values that come in.
    pub params: Vec<Value>,
    /// In an order in which every value stands before its uses.
    pub insts: Vec<Inst>,
    /// Values that go out.
    pub yields: Vec<Value>,
}

impl Region {
    /// Whether a product in here reads its factors rounded.
    fn rounds_factors(&self) -> bool {
        self.insts.iter().any(|inst| match &inst.op {
            Op::Dot(factors) => *factors == Factors::Tf32,
            op => op.region().is_some_and(Region::rounds_factors),
        })
    }

    /// The product that the body of a fused kernel begins with, if it does: the rest goes on with its results, element by element.
    pub fn product(&self) -> Option<&Inst> {
        self.insts.first().filter(|inst| matches!(inst.op, Op::Dot(_)))
    }
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// All equal.
    Constant(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between the two.
    Uniform(f64, f64),
    /// A copy of another state, by its index in [`Program::states`].
    CopyOf(usize),
}

/// What kind of parameter; weight decay and default initialisers follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterKind {
    /// A matrix or embedding.
    Weight,
    /// A normalisation scale.
    Norm,
    /// An added vector.
    Bias,
}

/// What a state tensor holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// A parameter of the model.
    Parameter(ParameterKind),
    /// The f32 copy of a low-precision parameter, given by its index in [`Program::states`].
    Master(usize),
    /// State `name` of the optimizer for the parameter with this index in [`Program::states`].
    Optimizer {
        /// The parameter's index.
        parameter: usize,
        /// The optimizer's name for it, such as `m`.
        name: String,
    },
}

/// A tensor that lives from step to step. Its type is the `store` type: where it rests.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// `layers.attn.wq`; optimizer state is `layers.attn.wq.m`.
    pub path: String,
    /// The names under which files hold it, with `{}` for the layer number; the first is the one written.
    /// Empty where that is `path`.
    pub names: Vec<String>,
    /// What it holds.
    pub kind: StateKind,
    /// How it starts.
    pub init: Initializer,
    /// The stacked layer dimension, which is the first of its dims, if it has one.
    pub stack: Option<Dim>,
    /// The parameter of the main region that holds it at the start of a step.
    pub value: Value,
    /// The yield of the main region that holds it at the end; none if a step leaves it as it was.
    pub updated: Option<Value>,
}

/// A tensor that each step is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The name in the model's `loss`; the step counter is `step`.
    pub name: String,
    /// The parameter of the main region.
    pub value: Value,
}

/// A tensor that each step returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// `loss`, `grad_norm`, `lr`, `grad.PATH`, or the name of a model's output.
    pub name: String,
    /// The yield of the main region.
    pub value: Value,
}

/// A program at some stage: the computation of one step.
///
/// The main region's parameters are the states' values, then the inputs'; its yields the states'
/// updated values (those that have one), then the outputs'.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The model's name, and the plan's.
    pub name: String,
    /// Dimensions.
    pub dims: PrimaryMap<Dim, DimInfo>,
    /// Ranks; no axes where there is no plan.
    pub mesh: Mesh,
    /// The tree of layer instances; the first is the model.
    pub scopes: PrimaryMap<Scope, ScopeInfo>,
    /// Source positions.
    pub origins: PrimaryMap<Origin, OriginInfo>,
    /// Values.
    pub values: PrimaryMap<Value, ValueInfo>,
    /// Source-level names.
    pub bindings: Vec<Binding>,
    /// The whole step.
    pub main: Region,
    /// What lives from step to step.
    pub states: Vec<State>,
    /// What a step is given.
    pub inputs: Vec<Input>,
    /// What a step returns.
    pub outputs: Vec<Output>,
    /// Where every value is stored; none before the end of stage `scheduled`.
    pub memory: Option<MemoryPlan>,
}

impl Program {
    /// Whether anything is stored, or read by a product, with fewer digits than f32 has.
    pub fn is_coarse(&self) -> bool {
        self.values.values().any(|info| info.ty.dtype.is_half()) || self.main.rounds_factors()
    }

    /// An empty program for a model, with its root scope and an origin for what the compiler adds.
    pub fn new(name: impl Into<String>) -> Program {
        let name = name.into();
        let mut scopes = PrimaryMap::new();
        let root = scopes.push(ScopeInfo { parent: None, instance: String::new(), layer: name.clone() });
        let mut origins = PrimaryMap::new();
        origins.push(OriginInfo { file: String::new(), line: 0, column: 0, scope: root });
        Program {
            name,
            dims: PrimaryMap::new(),
            mesh: Mesh::default(),
            scopes,
            origins,
            values: PrimaryMap::new(),
            bindings: Vec::new(),
            main: Region::default(),
            states: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            memory: None,
        }
    }

    /// The origin of what the compiler adds by itself.
    pub fn no_origin(&self) -> Origin {
        Origin(0)
    }

    /// Adds a dimension. Names must be distinct; see [`Program::fresh_dim`].
    pub fn add_dim(&mut self, name: impl Into<String>, size: u64) -> Dim {
        self.dims.push(DimInfo { name: name.into(), size, pad: false })
    }

    /// Adds a dimension under `name`, or the first free of `name.1`, `name.2`, ….
    pub fn fresh_dim(&mut self, name: &str, size: u64) -> Dim {
        let taken = |candidate: &str| self.dims.values().any(|info| info.name == candidate);
        let free = if taken(name) {
            (1..).map(|number| format!("{name}.{number}")).find(|candidate| !taken(candidate))
        } else {
            None
        };
        self.add_dim(free.unwrap_or_else(|| name.to_string()), size)
    }

    /// The dimension called `name`.
    pub fn find_dim(&self, name: &str) -> Option<Dim> {
        self.dims.iter().find(|(_, info)| info.name == name).map(|(dim, _)| dim)
    }

    /// Adds an unnamed activation that nothing defines yet.
    pub fn add_value(&mut self, ty: Type, origin: Origin) -> Value {
        self.values.push(ValueInfo { ty, name: None, origin, role: Role::Activation, gradient_of: None })
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value].ty
    }

    /// A readable name: the source's, else the number.
    pub fn display_value(&self, value: Value) -> String {
        match &self.values[value].name {
            Some(name) => name.clone(),
            None => value.to_string(),
        }
    }

    /// The instances from the model down to `scope`, the model left out: `layers.attn`.
    pub fn scope_path(&self, scope: Scope) -> String {
        let mut names = Vec::new();
        let mut at = Some(scope);
        while let Some(scope) = at {
            let info = &self.scopes[scope];
            if info.parent.is_some() {
                names.push(info.instance.as_str());
            }
            at = info.parent;
        }
        names.reverse();
        names.join(".")
    }
}

/// Appends instructions to a region, making the values that they define.
///
/// Regions are built inside out: a scan's body is finished before the scan is appended.
pub struct Builder<'program> {
    /// The program that owns the values.
    pub program: &'program mut Program,
    /// The region under construction.
    pub region: Region,
    /// The origin of what is appended next.
    pub origin: Origin,
    /// The phase of what is appended next.
    pub phase: Phase,
    /// The role of what is appended next.
    pub role: Role,
}

impl<'program> Builder<'program> {
    /// Starts an empty region.
    pub fn new(program: &'program mut Program, phase: Phase) -> Builder<'program> {
        let origin = program.no_origin();
        Builder { program, region: Region::default(), origin, phase, role: Role::Activation }
    }

    /// Appends an instruction with results of the given types.
    pub fn push(
        &mut self,
        op: Op,
        args: &[Value],
        types: impl IntoIterator<Item = Type>,
    ) -> SmallVec<[Value; 2]> {
        let results: SmallVec<[Value; 2]> = types
            .into_iter()
            .map(|ty| {
                let value = self.program.add_value(ty, self.origin);
                self.program.values[value].role = self.role;
                value
            })
            .collect();
        let args = SmallVec::from_slice(args);
        self.region.insts.push(Inst { op, args, results: results.clone(), phase: self.phase });
        results
    }

    /// Appends an instruction with one result.
    pub fn push_one(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.push(op, args, [ty])[0]
    }

    /// Appends a scan with results of the given types.
    pub fn push_scan(
        &mut self,
        scan: Scan,
        args: &[Value],
        types: impl IntoIterator<Item = Type>,
    ) -> SmallVec<[Value; 2]> {
        self.push(Op::Scan(scan), args, types)
    }

    /// A float constant.
    pub fn float(&mut self, value: f64, dtype: DType) -> Value {
        self.push_one(Op::Constant(crate::op::Literal::Float(value)), &[], Type::scalar(dtype))
    }
}
