//! `model` → `logical`: the typed model becomes an IR program of one device, forward only.
//!
//! Product dimensions become their atoms and the batch `M × B` (see `dims`); `Float` becomes the plan's
//! compute type; parameters become states, stacked dims first; `repeat` becomes a scan over the layer
//! dimension. Spans, layer instances and names come along. Nothing is placed and nothing differentiated.

mod dims;
mod node;

pub use dims::Atoms;
pub(crate) use node::elementwise;

use crate::error::PassError;
use crate::interface::seal;
use cranelift_entity::{EntityRef, SecondaryMap};
use dims::DimMap;
use dtlc_ir::{
    Binding, Builder, DType, Dim, Factors, Initializer, Input, Origin, OriginInfo, Output, ParameterKind,
    Phase, Program, Role, Scope, ScopeInfo, State, StateKind, Type, Value,
};
use dtlc_lang::model::{self, DimId, Element, Model, NodeId, ParamId, ScopeId, Target};
use dtlc_lang::plan::{self, Plan, Precision};
use dtlc_lang::source::Span;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A position as users read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file as the user named it.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
}

/// An inline placement in terms of the IR. Values may be replaced by later passes; bindings follow them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pin {
    /// The index in [`Program::bindings`] of what is placed.
    pub binding: usize,
    /// The atoms of the dimension that is placed, major first.
    pub dims: Atoms,
    /// The mesh axes as written, major first.
    pub axes: Vec<String>,
    /// The annotation.
    pub origin: Origin,
    /// The annotation in its file.
    pub span: Span,
}

/// A program with what the partitioner has to know of the model that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The `logical` program.
    pub program: Program,
    /// The atoms of each dimension that a plan can name. The batch's first is `micro`, if there is one.
    pub dims: SecondaryMap<DimId, Atoms>,
    /// The dimension of micro-batches, until `accumulate` rolls it up.
    pub micro: Option<Dim>,
    /// Inline placements.
    pub pins: Vec<Pin>,
}

/// The IR's element type for one of the language.
pub fn dtype(element: Element, float: DType) -> DType {
    match element {
        Element::Float => float,
        Element::F32 => DType::F32,
        Element::Bf16 => DType::Bf16,
        Element::F16 => DType::F16,
        Element::I32 => DType::I32,
        Element::U32 => DType::U32,
        Element::Bool => DType::Bool,
    }
}

/// Lowers a model under a plan, or in f32 without one. `locate` turns a span into a position.
///
/// # Errors
/// The plan's batch does not divide into its micro-batches, or a dimension cannot be used as it is.
pub fn lower(
    model: &Model,
    plan: Option<&Plan>,
    locate: &dyn Fn(Span) -> Position,
) -> Result<Lowered, PassError> {
    let name = plan.map_or_else(|| model.name.clone(), |plan| format!("{}.{}", model.name, plan.name));
    let mut program = Program::new(name);
    program.scopes.clear();
    for scope in model.scopes.values() {
        let parent = scope.parent.map(|parent| Scope::new(parent.index()));
        program.scopes.push(ScopeInfo {
            parent,
            instance: scope.instance.clone(),
            layer: scope.layer.clone(),
        });
    }
    let dims = DimMap::new(&mut program, model, plan)?;
    let precision = plan.map_or_else(Precision::default, |plan| plan.precision);
    let mut lowerer = Lowerer {
        model,
        locate,
        float: dtype(precision.compute, DType::F32),
        factors: match precision.factors {
            plan::Factors::AsStored => Factors::AsStored,
            plan::Factors::Tf32 => Factors::Tf32,
        },
        dims,
        params: SecondaryMap::new(),
        nodes: SecondaryMap::new(),
        keys: FxHashMap::default(),
        loops: Vec::new(),
        streams: 0,
    };
    lowerer.declare_params(&mut program, dtype(precision.params, DType::F32));
    lowerer.declare_inputs(&mut program);
    lowerer.main(&mut program)?;
    lowerer.bind(&mut program);
    let pins = lowerer.pins(&mut program);
    seal(&mut program);
    Ok(Lowered { program, dims: lowerer.dims.atoms, micro: lowerer.dims.micro, pins })
}

/// What is known while a model is lowered.
struct Lowerer<'model> {
    model: &'model Model,
    locate: &'model dyn Fn(Span) -> Position,
    /// What `Float` is.
    float: DType,
    /// How products read factors of f32.
    factors: Factors,
    dims: DimMap,
    /// Each parameter as seen from the current region: the state, or the current layer's slice.
    params: SecondaryMap<ParamId, Option<Value>>,
    /// Results of the nodes lowered so far.
    nodes: SecondaryMap<NodeId, SmallVec<[Value; 2]>>,
    /// The key positions made for query positions.
    keys: FxHashMap<Dim, Dim>,
    /// Dims of the scans around the current region, outermost first.
    loops: Vec<Dim>,
    /// Random operations so far.
    streams: u32,
}

impl Lowerer<'_> {
    fn origin(&self, program: &mut Program, span: Span, scope: ScopeId) -> Origin {
        let Position { file, line, column } = (self.locate)(span);
        program.origins.push(OriginInfo { file, line, column, scope: Scope::new(scope.index()) })
    }

    fn declare_params(&mut self, program: &mut Program, float: DType) {
        for (id, param) in &self.model.params {
            let origin = self.origin(program, param.span, param.scope);
            let dims = self.dims.expand(&param.stack).into_iter().chain(self.dims.expand(&param.dims));
            let value = program.add_value(Type::new(dtype(param.element, float), dims), origin);
            program.values[value].role = Role::Parameter;
            program.values[value].name = Some(param.path.clone());
            self.params[id] = Some(value);
            program.states.push(State {
                path: param.path.clone(),
                names: param.alias.iter().chain([&param.numbered]).cloned().collect(),
                kind: StateKind::Parameter(parameter_kind(param.kind)),
                init: initializer(param.init),
                stack: param.stack.first().map(|&dim| self.dims.atoms[dim][0]),
                value,
                updated: None,
            });
            let scope = Scope::new(param.scope.index());
            program.bindings.push(Binding { scope, name: param.name.clone(), value });
        }
    }

    fn declare_inputs(&mut self, program: &mut Program) {
        for input in &self.model.graph.inputs {
            let origin = self.origin(program, input.span, ScopeId::new(0));
            let ty = Type::new(dtype(input.ty.element, self.float), self.dims.expand(&input.ty.dims));
            let value = program.add_value(ty, origin);
            program.values[value].name = Some(input.name.clone());
            program.inputs.push(Input { name: input.name.clone(), value });
        }
    }

    fn main(&mut self, program: &mut Program) -> Result<(), PassError> {
        let model = self.model;
        let mut builder = Builder::new(program, Phase::Forward);
        self.block(&mut builder, &model.graph.block)?;
        let mut outputs = Vec::new();
        let names = std::iter::once("loss").chain(model.outputs.iter().map(String::as_str));
        for (name, &node) in names.zip(&model.graph.block.results) {
            let written = &model.graph.nodes[node].ty;
            let element = if name == "loss" { DType::F32 } else { dtype(written.element, self.float) };
            let ty = Type::new(element, self.dims.expand(&written.dims));
            let value = self.value(node)?;
            outputs.push(Output { name: name.to_string(), value: builder.conform(value, &ty) });
        }
        program.main = builder.region;
        program.outputs = outputs;
        Ok(())
    }

    /// The only result of a node.
    fn value(&self, node: NodeId) -> Result<Value, PassError> {
        match self.nodes[node].as_slice() {
            [value] => Ok(*value),
            values => {
                Err(PassError::bug(format_args!("node {node} has {} values where one is used", values.len())))
            }
        }
    }

    /// Carries the source's names over. A layer's parameter is bound to its slice too (see `node`).
    fn bind(&self, program: &mut Program) {
        for binding in &self.model.bindings {
            let Target::Node(node) = binding.target else { continue };
            let [value] = *self.nodes[node].as_slice() else { continue };
            let scope = Scope::new(binding.scope.index());
            let path = program.scope_path(scope);
            let name =
                if path.is_empty() { binding.name.clone() } else { format!("{path}.{}", binding.name) };
            program.values[value].name.get_or_insert(name);
            program.bindings.push(Binding { scope, name: binding.name.clone(), value });
        }
    }

    fn pins(&self, program: &mut Program) -> Vec<Pin> {
        let mut pins = Vec::new();
        for pin in &self.model.pins {
            let (value, scope, name) = match pin.target {
                Target::Param(param) => {
                    let info = &self.model.params[param];
                    (self.params[param], info.scope, info.name.clone())
                }
                Target::Node(node) => {
                    let name = || self.model.bindings.iter().find(|binding| binding.target == pin.target);
                    let name = name().map_or_else(String::new, |binding| binding.name.clone());
                    (self.nodes[node].first().copied(), self.model.graph.nodes[node].scope, name)
                }
            };
            let Some(value) = value else { continue };
            let origin = self.origin(program, pin.span, scope);
            let scope = Scope::new(scope.index());
            let known = program.bindings.iter().position(|binding| binding.value == value);
            let binding = known.unwrap_or_else(|| {
                program.bindings.push(Binding { scope, name, value });
                program.bindings.len() - 1
            });
            let dims = self.dims.atoms[pin.dim].clone();
            pins.push(Pin { binding, dims, axes: pin.axes.clone(), origin, span: pin.span });
        }
        pins
    }
}

fn parameter_kind(kind: model::ParamKind) -> ParameterKind {
    match kind {
        model::ParamKind::Weight => ParameterKind::Weight,
        model::ParamKind::Norm => ParameterKind::Norm,
        model::ParamKind::Bias => ParameterKind::Bias,
    }
}

fn initializer(init: model::Init) -> Initializer {
    match init {
        model::Init::Constant(value) => Initializer::Constant(value),
        model::Init::Normal(deviation) => Initializer::Normal(deviation),
        model::Init::Uniform(low, high) => Initializer::Uniform(low, high),
    }
}
