//! Whole models: sized dimensions, the instance, and `loss` as the typed graph; and items checked by themselves.

use super::call::Callee;
use super::context::{Elaborator, Purpose};
use super::dims::STAND_IN;
use super::instance::{Blueprint, ItemKind};
use super::program::Program;
use super::value::{Env, InstanceId, Value};
use crate::ast::{self, DimDeclaration, ExprKind, Function, Item, TypeKind};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Element, Graph, Input, Model, NodeId, Operation, Scope, TensorType};
use crate::source::{FileId, Span};
use crate::suggest::did_you_mean;
use indexmap::IndexMap;
use rustc_hash::FxHashSet;

/// Sizes from outside of the model.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// By name, with the place where each is written, where it is written in a file.
    pub named: IndexMap<String, (u64, Option<Span>)>,
    /// Of the first dimension that the model leaves open.
    pub batch: Option<u64>,
    /// Of the second.
    pub sequence: Option<u64>,
}

/// Sizes of dims that nothing gives a size: enough to see that a model is well-formed and to print it.
const OPEN_SIZES: [u64; 2] = [8, 64];

/// The outcome of an elaboration.
pub(super) struct Elaborated {
    /// The model; where it has a mistake, as far as it could be typed.
    pub model: Model,
    /// Whether it has none.
    pub complete: bool,
    /// Mistakes.
    pub diagnostics: Vec<Diagnostic>,
    /// Spans of the items that took part.
    pub used: FxHashSet<Span>,
}

/// A model with its sizes.
pub(super) fn elaborate_model(
    program: &Program,
    file: FileId,
    item: &ast::Model,
    sizes: &Sizes,
) -> Elaborated {
    let mut elaborator = Elaborator::new(program, Purpose::Model);
    let model = elaborator.model(file, item, sizes);
    let complete = !elaborator.diagnostics.iter().any(Diagnostic::is_error);
    Elaborated { model, complete, diagnostics: elaborator.diagnostics, used: elaborator.used }
}

/// Checks the functions of a model that are not its `loss`, which need not be called.
pub(super) fn check_functions(
    program: &Program,
    file: FileId,
    item: &ast::Model,
    sizes: &Sizes,
) -> Vec<Diagnostic> {
    let mut elaborator = Elaborator::new(program, Purpose::Model);
    let (instance, _) = elaborator.model_instance(file, item, sizes);
    for function in elaborator.instances[instance].functions.clone() {
        if function.name.as_ref().is_some_and(|name| name.name != "loss") {
            elaborator.check_function(file, Some(instance), function);
        }
    }
    elaborator.diagnostics
}

/// Checks an item by itself, with stand-ins for its dims.
pub(super) fn check_item(program: &Program, file: FileId, item: &Item) -> Vec<Diagnostic> {
    let mut elaborator = Elaborator::new(program, Purpose::Generic);
    elaborator.root_scope();
    match item {
        Item::Layer(layer) => elaborator.check_layer(file, layer),
        Item::Function(function) => elaborator.check_function(file, None, function),
        Item::Model(_) | Item::Optimizer(_) | Item::Use(_) | Item::Plan(_) | Item::Error(_) => {}
    }
    elaborator.diagnostics
}

impl<'p> Elaborator<'p> {
    fn model(&mut self, file: FileId, item: &'p ast::Model, sizes: &Sizes) -> Model {
        let (instance, open) = self.model_instance(file, item, sizes);
        let (results, outputs) = self.loss(item, instance).unwrap_or_default();
        let mut block = std::mem::take(&mut self.blocks[0]);
        block.results = results;
        Model {
            name: item.name.name.clone(),
            dims: std::mem::take(&mut self.dims),
            batch: open.first().copied(),
            sequence: open.get(1).copied(),
            scopes: std::mem::take(&mut self.scopes),
            params: std::mem::take(&mut self.params),
            graph: Graph {
                nodes: std::mem::take(&mut self.nodes),
                block,
                inputs: std::mem::take(&mut self.inputs),
            },
            outputs,
            bindings: std::mem::take(&mut self.bindings),
            pins: std::mem::take(&mut self.pins),
        }
    }

    /// What the model's `loss` computes: results, and names of outputs.
    fn loss(&mut self, item: &'p ast::Model, instance: InstanceId) -> Option<(Vec<NodeId>, Vec<String>)> {
        let Some(loss) = self.instances[instance].function(Some("loss")) else {
            // It may be what could not be read, which was reported.
            if item.members.iter().any(|member| matches!(member, ast::Member::Error(_))) {
                return None;
            }
            self.report(
                Diagnostic::error(Code::LossSignature, format!("model `{}` has no `loss`", item.name.name))
                    .label(item.name.span, "nothing to compute")
                    .hint("fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] { … }"),
            );
            return None;
        };
        let mut env = self.env_of(instance);
        let inputs = self.inputs_of(&mut env, loss);
        let value = if inputs { self.function_body(&mut env, loss) } else { Value::Error };
        let results = self.loss_results(loss, value)?;
        let outputs = output_names(loss, results.len());
        Some((results, outputs))
    }

    /// The model with its parameters and sub-layers, and the dims that it leaves open.
    fn model_instance(
        &mut self,
        file: FileId,
        item: &'p ast::Model,
        sizes: &Sizes,
    ) -> (InstanceId, Vec<DimId>) {
        let (dims, open) = self.model_dims(file, item, sizes);
        let blueprint = Blueprint {
            name: &item.name,
            item: item.span,
            kind: ItemKind::Model,
            file,
            members: &item.members,
            hypers: &item.hypers,
        };
        let scope = Scope {
            parent: None,
            instance: item.name.name.clone(),
            layer: item.name.name.clone(),
            span: item.name.span,
        };
        (self.instantiate(&blueprint, dims, &[], scope), open)
    }

    /// The model's dims by name, and those that it leaves open.
    fn model_dims(
        &mut self,
        file: FileId,
        item: &'p ast::Model,
        sizes: &Sizes,
    ) -> (IndexMap<String, DimId>, Vec<DimId>) {
        let mut env = Env::new(file);
        for hyper in &item.hypers {
            if let Some(default) = &hyper.default {
                let value = self.expression(&env, default);
                let value = self.hyper_value(&hyper.ty, &value, default.span);
                env.values.push((hyper.name.name.clone(), value));
            }
        }
        let mut open = Vec::new();
        for declared in super::plans::declared(item) {
            if let Some(&first) = env.dims.get(&declared.name.name) {
                let first = self.dims[first].span;
                self.report(
                    Diagnostic::error(
                        Code::DuplicateName,
                        format!("dimension `{}` is declared twice", declared.name.name),
                    )
                    .label(declared.name.span, "declared again")
                    .label(first, "first declared here"),
                );
                continue;
            }
            if let Some(dim) = self.model_dim(&env, declared, sizes, open.len()) {
                if declared.value.is_none() {
                    open.push(dim);
                }
                env.dims.insert(declared.name.name.clone(), dim);
            }
        }
        self.unknown_sizes(sizes, item);
        (env.dims, open)
    }

    fn model_dim(
        &mut self,
        env: &Env,
        declared: &'p DimDeclaration,
        sizes: &Sizes,
        open: usize,
    ) -> Option<DimId> {
        let name = &declared.name.name;
        let span = declared.name.span;
        let given = sizes.named.get(name).copied();
        let Some(value) = &declared.value else {
            let implied = [sizes.batch, sizes.sequence].get(open).copied().flatten();
            let size = given.map(|(size, _)| size).or(implied);
            let stand_in = OPEN_SIZES.get(open).copied().unwrap_or(16);
            let checked = self.size_or_one(name, i128::from(size.unwrap_or(stand_in)), span);
            return Some(self.new_dim(name, checked, size.is_none(), Vec::new(), span));
        };
        if let Some(factors) = self.factors(env, value) {
            if let Some((_, place)) = given {
                let list = self.dim_list(&factors);
                self.report(
                    Diagnostic::error(Code::InvalidOverride, format!("`{name}` is a product"))
                        .label(place.unwrap_or(span), format!("has its size from {list}"))
                        .hint(format!("set {list} instead")),
                );
            }
            return self.product(name, factors, span);
        }
        let size = match given {
            Some((size, _)) => i128::from(size),
            None => self.size(env, value)?,
        };
        let size = self.size_or_one(name, size, value.span);
        Some(self.new_dim(name, size, false, Vec::new(), span))
    }

    /// A size, or 1 in place of one that can't be and is reported: the dimension is known all the same.
    fn size_or_one(&mut self, name: &str, size: i128, span: Span) -> u64 {
        self.checked_size(name, size, span).unwrap_or(1)
    }

    fn unknown_sizes(&mut self, sizes: &Sizes, item: &ast::Model) {
        let known: Vec<&str> = super::plans::declared(item).map(|dim| dim.name.name.as_str()).collect();
        for (name, (size, place)) in sizes.named.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            let title = format!("model `{}` has no dimension `{name}`", item.name.name);
            let label = match place {
                Some(_) => "gets its size from here".to_owned(),
                None => format!("`-D {name}={size}` gives it one"),
            };
            let mut diagnostic = Diagnostic::error(Code::InvalidOverride, title)
                .label(place.unwrap_or(item.name.span), label)
                .note(format!("dimensions of the model: {}", known.join(", ")));
            if let Some(near) = did_you_mean(name, known.iter().copied()) {
                diagnostic = diagnostic.hint(near.to_owned());
            }
            self.report(diagnostic);
        }
    }

    /// Declares the parameters of `loss` as inputs; whether all are tensors.
    fn inputs_of(&mut self, env: &mut Env, loss: &'p Function) -> bool {
        let mut whole = true;
        for (index, parameter) in loss.parameters.iter().enumerate() {
            let ty = match parameter.ty.kind {
                TypeKind::Error => None,
                TypeKind::Tensor { .. } | TypeKind::Scalar(_) | TypeKind::Tuple(_) => {
                    self.written_type(env, &parameter.ty)
                }
            };
            let value = match ty {
                Some(ty) => {
                    let name = parameter.name.name.clone();
                    self.inputs.push(Input { name, ty: ty.clone(), span: parameter.span });
                    let node = self.push(Operation::Input(index), Vec::new(), ty, parameter.span);
                    self.pin(env, &parameter.ty, crate::model::Target::Node(node));
                    Value::Node(node)
                }
                None => {
                    whole = false;
                    Value::Error
                }
            };
            self.declare(env, &parameter.name, value);
        }
        whole
    }

    /// The loss, which is `f32[]`, and the other results.
    fn loss_results(&mut self, loss: &'p Function, value: Value) -> Option<Vec<NodeId>> {
        let values = match value {
            Value::Tuple(values) => values,
            Value::Error => return None,
            single @ (Value::Node(_) | Value::Number(_) | Value::Truth(_)) => vec![single],
        };
        let scalar = TensorType { element: Element::F32, dims: Vec::new() };
        let mut nodes = Vec::new();
        for value in values {
            match value {
                Value::Node(node) => nodes.push(node),
                Value::Error => return None,
                Value::Number(_) | Value::Truth(_) | Value::Tuple(_) => {
                    let what = "a result of `loss`";
                    nodes.push(self.fit(&value, &scalar, loss.body.result.span, loss.result.span, what)?);
                }
            }
        }
        let first = self.ty(*nodes.first()?).clone();
        if first == scalar {
            return Some(nodes);
        }
        let found = self.type_text(&first);
        self.report(
            Diagnostic::error(Code::LossSignature, format!("a loss is f32[], not {found}"))
                .label(loss.result.span, format!("this is {found}"))
                .why("what is minimised is one number, in f32 under every plan")
                .hint("mean(f32(…))"),
        );
        None
    }

    /// The scope that everything checked by itself stands in.
    fn root_scope(&mut self) {
        let span = self.program.root_items().next().map(Item::span);
        let file = self.program.root().unwrap_or(FileId::from_u32(0));
        let span = span.unwrap_or(Span::new(file, 0, 0)).at_start();
        self.scope =
            self.scopes.push(Scope { parent: None, instance: String::new(), layer: String::new(), span });
    }

    fn check_layer(&mut self, file: FileId, layer: &'p ast::Layer) {
        let blueprint = Blueprint {
            name: &layer.name,
            item: layer.span,
            kind: ItemKind::Layer,
            file,
            members: &layer.members,
            hypers: &layer.hypers,
        };
        let dims = self.stand_in_dims(layer.dims.as_ref());
        let name = layer.name.name.clone();
        let scope =
            Scope { parent: Some(self.scope), instance: name.clone(), layer: name, span: layer.name.span };
        self.frames.push(super::value::Frame {
            what: format!("layer `{}`", layer.name.name),
            span: layer.name.span,
            dims: Vec::new(),
            item: layer.span,
        });
        let instance = self.instantiate(&blueprint, dims, &[], scope);
        self.frames.pop();
        for function in self.instances[instance].functions.clone() {
            self.check_function(file, Some(instance), function);
        }
    }

    fn check_function(&mut self, file: FileId, owner: Option<usize>, function: &'p Function) {
        let formals = self.stand_in_dims(function.dims.as_ref());
        let span = function.name.as_ref().map_or(function.span.at_start(), |name| name.span);
        self.call_on_stand_ins(Callee { function, file, owner, span }, formals);
    }

    fn stand_in_dims(&mut self, formals: Option<&ast::DimParameters>) -> IndexMap<String, DimId> {
        let formals = formals.into_iter().flat_map(|it| it.from.iter().chain(it.to.iter().flatten()));
        let mut dims = IndexMap::new();
        for formal in formals {
            if dims.contains_key(&formal.name) {
                let title = format!("dimension `{}` is declared twice", formal.name);
                self.report(
                    Diagnostic::error(Code::DuplicateName, title).label(formal.span, "declared again"),
                );
                continue;
            }
            let dim = self.new_dim(&formal.name, STAND_IN, true, Vec::new(), formal.span);
            dims.insert(formal.name.clone(), dim);
        }
        dims
    }
}

/// The names of the results behind the loss: of the variables that are given back, else by number.
fn output_names(loss: &Function, count: usize) -> Vec<String> {
    let written: &[ast::Expr] = match &loss.body.result.kind {
        ExprKind::Tuple(values) => values,
        _ => &[],
    };
    (1..count)
        .map(|index| {
            let name = written.get(index).and_then(|value| value.as_name());
            name.map_or_else(|| format!("output{index}"), |name| name.name.clone())
        })
        .collect()
}
