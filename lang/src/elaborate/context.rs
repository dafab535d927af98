//! The state of an elaboration: the model under construction, where nodes go, and how mistakes are reported.
//!
//! Shared by everything in this folder. Decides nothing about the language.

use super::path::PathSegment;
use super::program::Program;
use super::value::{Env, Frame, Instance, Value};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{
    Binding, Block, DimId, Dimension, Element, Input, Node, NodeId, Operation, Param, ParamId, Pin, Scope,
    ScopeId, TensorType,
};
use crate::source::Span;
use cranelift_entity::PrimaryMap;
use rustc_hash::{FxHashMap, FxHashSet};

/// Nested calls and expressions that are followed; more is a mistake, and would exhaust the stack.
pub(super) const DEPTH_LIMIT: usize = 400;

/// Nodes of one model. A model of published size has a few thousand.
const NODE_LIMIT: usize = 200_000;

/// What is elaborated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A model with sizes.
    Model,
    /// An item by itself: its dims are stand-ins, so that sizes say nothing.
    Generic,
}

/// See the module.
pub(super) struct Elaborator<'p> {
    pub program: &'p Program,
    pub purpose: Purpose,
    pub diagnostics: Vec<Diagnostic>,
    /// What was reported, so that a body elaborated many times is reported once.
    reported: FxHashSet<(Code, Vec<Span>)>,
    pub dims: PrimaryMap<DimId, Dimension>,
    pub dim_names: FxHashSet<String>,
    /// Dims declared inside layers and functions, by declaration and the dims that it is computed from.
    pub local_dims: FxHashMap<(Span, Vec<DimId>, Vec<u64>), DimId>,
    pub products: FxHashMap<Vec<DimId>, DimId>,
    pub nodes: PrimaryMap<NodeId, Node>,
    /// From the outermost to the one that nodes are added to.
    pub blocks: Vec<Block>,
    /// The nodes of parameters, per block.
    param_nodes: Vec<FxHashMap<ParamId, NodeId>>,
    pub inputs: Vec<Input>,
    pub params: PrimaryMap<ParamId, Param>,
    pub scopes: PrimaryMap<ScopeId, Scope>,
    pub bindings: Vec<Binding>,
    pub pins: Vec<Pin>,
    pub instances: Vec<Instance<'p>>,
    pub frames: Vec<Frame>,
    /// From the model to the present instance, while it is instantiated.
    pub path: Vec<PathSegment>,
    /// The dims of the repeats that the present body stands in, while it is instantiated or called.
    pub repeats: Vec<DimId>,
    pub scope: ScopeId,
    pub depth: usize,
    /// Whether a limit was met: nothing more is elaborated.
    pub exhausted: bool,
    /// Spans of the items that were instantiated.
    pub used: FxHashSet<Span>,
}

impl<'p> Elaborator<'p> {
    pub fn new(program: &'p Program, purpose: Purpose) -> Elaborator<'p> {
        Elaborator {
            program,
            purpose,
            diagnostics: Vec::new(),
            reported: FxHashSet::default(),
            dims: PrimaryMap::new(),
            dim_names: FxHashSet::default(),
            local_dims: FxHashMap::default(),
            products: FxHashMap::default(),
            nodes: PrimaryMap::new(),
            blocks: vec![Block::default()],
            param_nodes: vec![FxHashMap::default()],
            inputs: Vec::new(),
            params: PrimaryMap::new(),
            scopes: PrimaryMap::new(),
            bindings: Vec::new(),
            pins: Vec::new(),
            instances: Vec::new(),
            frames: Vec::new(),
            path: Vec::new(),
            repeats: Vec::new(),
            scope: ScopeId::from_u32(0),
            depth: 0,
            exhausted: false,
            used: FxHashSet::default(),
        }
    }

    /// Reports a mistake, with the way that led to it. The value that it spoils is [`Value::Error`].
    pub fn report(&mut self, mut diagnostic: Diagnostic) -> Value {
        let places = diagnostic.labels.iter().map(|label| label.span).collect();
        if !self.reported.insert((diagnostic.code, places)) {
            return Value::Error;
        }
        // An item that is checked by itself is used nowhere: its frame lies in the item.
        let used =
            |frame: &&Frame| frame.item.file != frame.span.file || !frame.item.contains(frame.span.start);
        for frame in self.frames.iter().rev().filter(used).take(3) {
            if diagnostic.labels.iter().all(|label| label.span != frame.span) {
                diagnostic = diagnostic.label(frame.span, format!("in {}, used here", frame.what));
            }
        }
        if let Some(renamed) = self.frames.last().and_then(|frame| self.renamed(frame)) {
            diagnostic = diagnostic.note(renamed);
        }
        self.diagnostics.push(diagnostic);
        Value::Error
    }

    /// `in layer `Linear` here, I = D and O = V`, where formal names differ from the dims behind them.
    fn renamed(&self, frame: &Frame) -> Option<String> {
        let renamed: Vec<String> = frame
            .dims
            .iter()
            .filter(|(name, dim)| self.dims[*dim].name != *name)
            .map(|(name, dim)| format!("{name} = {}", self.dims[*dim].name))
            .collect();
        (!renamed.is_empty()).then(|| format!("in this use of {}: {}", frame.what, renamed.join(", ")))
    }

    /// Counts one level of nesting; none where there are too many, which is reported.
    pub fn enter(&mut self, span: Span) -> Option<()> {
        if self.exhausted {
            return None;
        }
        if self.depth >= DEPTH_LIMIT {
            self.exhausted = true;
            self.report(
                Diagnostic::error(Code::LimitReached, "nested too deep")
                    .label(span, format!("level {DEPTH_LIMIT} of nested calls and expressions"))
                    .hint("bind parts of it with `let`, or move them into a function of fewer levels"),
            );
            return None;
        }
        self.depth += 1;
        Some(())
    }

    /// Ends the level of [`Self::enter`].
    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Adds a node to the present block.
    pub fn push(&mut self, operation: Operation, args: Vec<NodeId>, ty: TensorType, span: Span) -> NodeId {
        if self.nodes.len() >= NODE_LIMIT && !self.exhausted {
            self.exhausted = true;
            self.report(
                Diagnostic::error(Code::LimitReached, "the model has too many operations")
                    .label(span, format!("operation number {NODE_LIMIT}"))
                    .hint("stack equal layers with `repeat[L]`"),
            );
        }
        let id = self.nodes.push(Node { operation, args, ty, span, scope: self.scope });
        if let Some(block) = self.blocks.last_mut() {
            block.nodes.push(id);
        }
        id
    }

    /// Adds a node whose type may be refused.
    pub fn node(
        &mut self,
        operation: Operation,
        args: Vec<NodeId>,
        element: Element,
        dims: Vec<DimId>,
        span: Span,
    ) -> Value {
        match self.tensor(element, dims, span) {
            Some(ty) => Value::Node(self.push(operation, args, ty, span)),
            None => Value::Error,
        }
    }

    /// The node of a parameter in the present block.
    pub fn param_node(&mut self, param: ParamId, span: Span) -> NodeId {
        if let Some(&node) = self.param_nodes.last().and_then(|known| known.get(&param)) {
            return node;
        }
        let declared = &self.params[param];
        let ty = TensorType { element: declared.element, dims: declared.dims.clone() };
        let node = self.push(Operation::Param(param), Vec::new(), ty, span);
        if let Some(known) = self.param_nodes.last_mut() {
            known.insert(param, node);
        }
        node
    }

    /// Opens the body of a repeat.
    pub fn open_block(&mut self) {
        self.blocks.push(Block::default());
        self.param_nodes.push(FxHashMap::default());
    }

    /// Closes it.
    pub fn close_block(&mut self) -> Block {
        self.param_nodes.pop();
        self.blocks.pop().unwrap_or_default()
    }

    /// The type of a node.
    pub fn ty(&self, node: NodeId) -> &TensorType {
        &self.nodes[node].ty
    }

    /// An environment for the functions of an instance.
    pub fn env_of(&self, instance: usize) -> Env {
        let owner = &self.instances[instance];
        Env {
            file: owner.file,
            owner: Some(instance),
            dims: owner.dims.clone(),
            rest: None,
            values: Vec::new(),
            named: true,
        }
    }
}
