//! Parses the text of a typed model.
//!
//! Parsing checks names and that nodes are numbered without gaps, not the types: only the elaborator makes models that
//! are compiled.

use super::print::elementwise_name;
use crate::model::{
    Attention, Binding, Block, DimId, Dimension, Element, Elementwise, Graph, Init, Input, Model, Node,
    NodeId, Operation, Param, ParamId, ParamKind, Pin, Reduction, Scope, ScopeId, Target, TensorType,
};
use crate::source::{FileId, Span};
use cranelift_entity::{EntityRef, PrimaryMap};
use pest::Parser;
use pest::error::LineColLocation;
use rustc_hash::FxHashMap;
use std::fmt;

mod grammar {
    #![allow(missing_docs)] // on the `Rule` enum that pest generates

    #[derive(pest_derive::Parser)]
    #[grammar = "../../grammar/model.pest"]
    pub(super) struct Grammar;
}
use grammar::{Grammar, Rule};

type Pair<'i> = pest::iterators::Pair<'i, Rule>;
type Result<T> = std::result::Result<T, ParseError>;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// What was found, or what was expected.
    pub message: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for ParseError {}

/// Reads what [`super::print()`] wrote.
///
/// # Errors
/// Where the text breaks the grammar, or uses a name or number that nothing defines.
pub fn parse(text: &str) -> Result<Model> {
    let mut pairs = Grammar::parse(Rule::model, text).map_err(syntax_error)?;
    let parts: Vec<Pair<'_>> = pairs.next().into_iter().flat_map(Pair::into_inner).collect();
    let mut reader = Reader::default();
    for part in &parts {
        reader.declare(part)?;
    }
    let mut model = Model {
        name: String::new(),
        dims: PrimaryMap::new(),
        batch: None,
        sequence: None,
        scopes: PrimaryMap::new(),
        params: PrimaryMap::new(),
        graph: Graph { nodes: PrimaryMap::new(), block: Block::default(), inputs: Vec::new() },
        outputs: Vec::new(),
        bindings: Vec::new(),
        pins: Vec::new(),
    };
    for part in parts {
        match part.as_rule() {
            Rule::name => model.name = name_text(&part)?,
            Rule::batch => model.batch = Some(reader.dim(&only(part)?)?),
            Rule::sequence => model.sequence = Some(reader.dim(&only(part)?)?),
            Rule::dim => _ = model.dims.push(reader.dimension(part)?),
            Rule::scope => _ = model.scopes.push(reader.scope(part, model.scopes.len())?),
            Rule::param => _ = model.params.push(reader.param(part)?),
            Rule::loss => model.graph = reader.graph(part)?,
            Rule::outputs => {
                model.outputs = part.into_inner().map(|name| name_text(&name)).collect::<Result<_>>()?
            }
            Rule::binding => model.bindings.push(reader.binding(part)?),
            Rule::pin => model.pins.push(reader.pin(part)?),
            _ => {}
        }
    }
    Ok(model)
}

/// What the names of a model stand for.
#[derive(Default)]
struct Reader {
    dims: FxHashMap<String, DimId>,
    params: FxHashMap<String, ParamId>,
    inputs: Vec<String>,
    scopes: usize,
    /// Nodes by their numbers: a node stands behind those of its body.
    nodes: Vec<Option<Node>>,
}

impl Reader {
    /// Takes up the names that may be used before their line.
    fn declare(&mut self, part: &Pair<'_>) -> Result<()> {
        let taken = match part.as_rule() {
            Rule::dim => {
                let [name] = first(part.clone())?;
                self.dims.insert(name_text(&name)?, DimId::new(self.dims.len())).is_some()
            }
            Rule::param => {
                let [name] = first(part.clone())?;
                self.params.insert(name_text(&name)?, ParamId::new(self.params.len())).is_some()
            }
            Rule::scope => {
                self.scopes += 1;
                false
            }
            _ => false,
        };
        if taken { fail(part, "this name is there already") } else { Ok(()) }
    }

    fn dim(&self, pair: &Pair<'_>) -> Result<DimId> {
        let found = self.dims.get(&name_text(pair)?).copied();
        found.map_or_else(|| fail(pair, "no dimension has this name"), Ok)
    }

    fn dims(&self, list: Pair<'_>) -> Result<Vec<DimId>> {
        list.into_inner().map(|name| self.dim(&name)).collect()
    }

    fn param_of(&self, pair: &Pair<'_>) -> Result<ParamId> {
        let found = self.params.get(&name_text(pair)?).copied();
        found.map_or_else(|| fail(pair, "no parameter has this path"), Ok)
    }

    fn scope_of(&self, pair: Pair<'_>) -> Result<ScopeId> {
        let number: usize = number(&only(pair.clone())?)?;
        if number < self.scopes {
            Ok(ScopeId::new(number))
        } else {
            fail(&pair, "no layer instance has this number")
        }
    }

    fn dimension(&self, pair: Pair<'_>) -> Result<Dimension> {
        let [name, size] = first(pair.clone())?;
        let mut dimension = Dimension {
            name: name_text(&name)?,
            size: number(&size)?,
            open: false,
            factors: Vec::new(),
            span: no_span(),
        };
        for part in pair.into_inner().skip(2) {
            match part.as_rule() {
                Rule::factors => dimension.factors = self.dims(part)?,
                Rule::open => dimension.open = true,
                _ => dimension.span = span(part)?,
            }
        }
        Ok(dimension)
    }

    fn scope(&self, pair: Pair<'_>, expected: usize) -> Result<Scope> {
        let [id, instance, layer] = first(pair.clone())?;
        if number::<usize>(&id)? != expected {
            return fail(&id, "layer instances are numbered in order");
        }
        let (instance, layer) = (name_text(&instance)?, name_text(&layer)?);
        let mut scope = Scope { parent: None, instance, layer, span: no_span() };
        for part in pair.into_inner().skip(3) {
            match part.as_rule() {
                Rule::parent => scope.parent = Some(self.scope_of(only(part)?)?),
                _ => scope.span = span(part)?,
            }
        }
        Ok(scope)
    }

    fn param(&self, pair: Pair<'_>) -> Result<Param> {
        let [path] = first(pair.clone())?;
        let path = name_text(&path)?;
        let mut param = Param {
            numbered: path.clone(),
            path,
            alias: None,
            stack: Vec::new(),
            dims: Vec::new(),
            element: Element::Float,
            kind: ParamKind::Weight,
            init: Init::Constant(0.0),
            scope: ScopeId::new(0),
            name: String::new(),
            span: no_span(),
        };
        for part in pair.into_inner().skip(1) {
            match part.as_rule() {
                Rule::stack => param.stack = self.dims(only(part)?)?,
                Rule::ty => TensorType { element: param.element, dims: param.dims } = self.ty(part)?,
                Rule::init => param.init = init(part)?,
                Rule::kind => param.kind = kind(&part)?,
                Rule::alias => param.alias = Some(unquote(&only(part)?)?),
                Rule::numbered => param.numbered = unquote(&only(part)?)?,
                Rule::name => param.name = name_text(&part)?,
                Rule::scope_id => param.scope = self.scope_of(part)?,
                _ => param.span = span(part)?,
            }
        }
        Ok(param)
    }

    fn ty(&self, pair: Pair<'_>) -> Result<TensorType> {
        let [element, dims] = exactly(pair)?;
        let element = match element.as_str() {
            "" => Element::Float,
            "f32" => Element::F32,
            "bf16" => Element::Bf16,
            "f16" => Element::F16,
            "i32" => Element::I32,
            "u32" => Element::U32,
            "bool" => Element::Bool,
            _ => return fail(&element, "no such element type"),
        };
        Ok(TensorType { element, dims: self.dims(dims)? })
    }

    fn graph(&mut self, pair: Pair<'_>) -> Result<Graph> {
        let at = pair.clone();
        let (mut inputs, mut block) = (Vec::new(), Block::default());
        for part in pair.into_inner() {
            if part.as_rule() == Rule::block {
                block = self.block(part)?;
            } else {
                let [name, ty, place] = exactly(part)?;
                self.inputs.push(name_text(&name)?);
                inputs.push(Input { name: name_text(&name)?, ty: self.ty(ty)?, span: span(place)? });
            }
        }
        let nodes: Option<Vec<Node>> = std::mem::take(&mut self.nodes).into_iter().collect();
        let Some(nodes) = nodes else { return fail(&at, "a number between those of two nodes has no node") };
        Ok(Graph { nodes: nodes.into_iter().collect(), block, inputs })
    }

    fn block(&mut self, pair: Pair<'_>) -> Result<Block> {
        let mut block = Block::default();
        for part in pair.into_inner() {
            match part.as_rule() {
                Rule::node => block.nodes.push(self.node(part)?),
                _ => block.results = self.args(part)?,
            }
        }
        Ok(block)
    }

    fn node(&mut self, pair: Pair<'_>) -> Result<NodeId> {
        let [id, ty, operation, args, scope, place] = first(pair.clone())?;
        let id_number = node_number(&id)?;
        let body = pair.into_inner().nth(6).map(|body| self.block(body)).transpose()?;
        let args = self.args(args)?;
        let node = Node {
            operation: self.operation(only(operation)?, body)?,
            args,
            ty: self.ty(ty)?,
            span: span(place)?,
            scope: self.scope_of(scope)?,
        };
        // Each node of the text takes one number, so far more numbers than bytes are a mistake.
        if id_number > id.get_input().len() {
            return fail(&id, "nodes are numbered without gaps");
        }
        if self.nodes.len() <= id_number {
            self.nodes.resize(id_number + 1, None);
        }
        match self.nodes[id_number].replace(node) {
            None => Ok(NodeId::new(id_number)),
            Some(_) => fail(&id, "this node is there already"),
        }
    }

    fn args(&self, pair: Pair<'_>) -> Result<Vec<NodeId>> {
        pair.into_inner().map(|node| Ok(NodeId::new(node_number(&node)?))).collect()
    }

    fn target(&self, pair: Pair<'_>) -> Result<Target> {
        let inner = only(pair)?;
        match inner.as_rule() {
            Rule::node_id => Ok(Target::Node(NodeId::new(node_number(&inner)?))),
            _ => Ok(Target::Param(self.param_of(&inner)?)),
        }
    }

    fn binding(&self, pair: Pair<'_>) -> Result<Binding> {
        let [name, scope, target] = exactly(pair)?;
        Ok(Binding { scope: self.scope_of(scope)?, name: name_text(&name)?, target: self.target(target)? })
    }

    fn pin(&self, pair: Pair<'_>) -> Result<Pin> {
        let [target, dim] = first(pair.clone())?;
        let (target, dim) = (self.target(target)?, self.dim(&dim)?);
        let mut pin = Pin { target, dim, axes: Vec::new(), span: no_span() };
        for part in pair.into_inner().skip(2) {
            match part.as_rule() {
                Rule::name => pin.axes.push(name_text(&part)?),
                _ => pin.span = span(part)?,
            }
        }
        Ok(pin)
    }

    fn operation(&self, pair: Pair<'_>, body: Option<Block>) -> Result<Operation> {
        if body.is_some() != (pair.as_rule() == Rule::repeat) {
            return fail(&pair, "a repeat has a body, and nothing else has one");
        }
        let at = pair.clone();
        Ok(match pair.as_rule() {
            Rule::of_input => {
                let name = name_text(&only(pair)?)?;
                let found = self.inputs.iter().position(|input| *input == name);
                Operation::Input(found.map_or_else(|| fail(&at, "no input has this name"), Ok)?)
            }
            Rule::carry => Operation::Carry(number(&only(pair)?)?),
            Rule::of_param => Operation::Param(self.param_of(&only(pair)?)?),
            Rule::project => Operation::Project(number(&only(pair)?)?),
            Rule::slice_one => {
                let [dim, start] = exactly(pair)?;
                Operation::Slice { dim: self.dim(&dim)?, start: number(&start)?, into: None }
            }
            Rule::slice => {
                let [dim, into, start] = exactly(pair)?;
                Operation::Slice {
                    dim: self.dim(&dim)?,
                    start: number(&start)?,
                    into: Some(self.dim(&into)?),
                }
            }
            Rule::concat => self.concat(pair)?,
            Rule::split => {
                let [dim, into] = exactly(pair)?;
                Operation::Split { dim: self.dim(&dim)?, into: self.dims(into)? }
            }
            Rule::merge => {
                let [dims, into] = exactly(pair)?;
                Operation::Merge { dims: self.dims(dims)?, into: self.dim(&into)? }
            }
            Rule::rename => {
                let [from, to] = exactly(pair)?;
                Operation::Rename { from: self.dim(&from)?, to: self.dim(&to)? }
            }
            Rule::repeat => {
                Operation::Repeat { dim: self.dim(&only(pair)?)?, body: body.unwrap_or_default() }
            }
            Rule::over_dims => self.over_dims(pair)?,
            Rule::attention => Operation::Attention(self.attention(pair)?),
            Rule::truth => Operation::Truth(pair.as_str() == "true"),
            Rule::number => Operation::Number(number(&only(pair)?)?),
            _ => plain(&pair)?,
        })
    }

    fn concat(&self, pair: Pair<'_>) -> Result<Operation> {
        let mut parts: Vec<Pair<'_>> = pair.clone().into_inner().collect();
        let Some(into) = parts.pop() else { return fail(&pair, "something is missing here") };
        let piece = |piece: Pair<'_>| {
            let inner = only(piece)?;
            if inner.as_rule() == Rule::single { Ok(None) } else { self.dim(&inner).map(Some) }
        };
        let pieces = parts.into_iter().map(piece).collect::<Result<_>>()?;
        Ok(Operation::Concat { pieces, into: self.dim(&into)? })
    }

    fn over_dims(&self, pair: Pair<'_>) -> Result<Operation> {
        let [kind, list] = exactly(pair)?;
        let over = self.dims(list.clone())?;
        Ok(match kind.as_str() {
            "dot" => Operation::Dot { over },
            "sum" => Operation::Reduce { with: Reduction::Sum, over },
            "max" => Operation::Reduce { with: Reduction::Max, over },
            "take" => Operation::Take(self.dim(&only(list)?)?),
            "iota" => Operation::Iota(self.dim(&only(list)?)?),
            _ => return fail(&kind, "no such operation"),
        })
    }

    fn attention(&self, pair: Pair<'_>) -> Result<Attention> {
        let [query, key, head, value] = first(pair.clone())?;
        let mut attention = Attention {
            query: self.dim(&query)?,
            key: self.dim(&key)?,
            head: self.dim(&head)?,
            value: self.dim(&value)?,
            causal: false,
            window: None,
            documents: false,
            softcap: None,
            scale: 0.0,
        };
        for part in pair.into_inner().skip(4) {
            match part.as_rule() {
                Rule::causal => attention.causal = true,
                Rule::window => attention.window = Some(number(&only(part)?)?),
                Rule::softcap => attention.softcap = Some(number(&only(part)?)?),
                Rule::documents => attention.documents = true,
                _ => attention.scale = number(&part)?,
            }
        }
        Ok(attention)
    }
}

/// An operation that is its name.
fn plain(pair: &Pair<'_>) -> Result<Operation> {
    Ok(match pair.as_str() {
        "cast" => Operation::Cast,
        "stop_gradient" => Operation::StopGradient,
        "random" => Operation::Random,
        name => {
            let found = Elementwise::ALL.into_iter().find(|function| elementwise_name(*function) == name);
            Operation::Elementwise(found.map_or_else(|| fail(pair, "no such operation"), Ok)?)
        }
    })
}

fn init(pair: Pair<'_>) -> Result<Init> {
    let [kind, value] = first(pair.clone())?;
    let (text, value) = (kind.as_str(), number(&value)?);
    match (text, pair.into_inner().nth(2)) {
        ("Constant", None) => Ok(Init::Constant(value)),
        ("Normal", None) => Ok(Init::Normal(value)),
        ("Uniform", Some(high)) => Ok(Init::Uniform(value, number(&high)?)),
        _ => fail(&kind, "no such initialiser"),
    }
}

fn kind(pair: &Pair<'_>) -> Result<ParamKind> {
    match pair.as_str() {
        "Weight" => Ok(ParamKind::Weight),
        "Norm" => Ok(ParamKind::Norm),
        "Bias" => Ok(ParamKind::Bias),
        _ => fail(pair, "no such kind of parameter"),
    }
}

fn span(pair: Pair<'_>) -> Result<Span> {
    let [file, start, end] = exactly(pair)?;
    Ok(Span::new(FileId::from_u32(number(&file)?), number(&start)?, number(&end)?))
}

/// Replaced by what the text says: the grammar asks for it.
fn no_span() -> Span {
    Span::new(FileId::from_u32(0), 0, 0)
}

fn node_number(pair: &Pair<'_>) -> Result<usize> {
    let number: u32 = pair.as_str()[1..].parse().or_else(|_| fail(pair, "this number is out of range"))?;
    Ok(number as usize)
}

/// The first `N` parts of a pair.
fn first<const N: usize>(pair: Pair<'_>) -> Result<[Pair<'_>; N]> {
    let parts: Vec<Pair<'_>> = pair.clone().into_inner().take(N).collect();
    parts.try_into().or_else(|_| fail(&pair, "something is missing here"))
}

/// The parts of a pair that has `N`.
fn exactly<const N: usize>(pair: Pair<'_>) -> Result<[Pair<'_>; N]> {
    let parts: Vec<Pair<'_>> = pair.clone().into_inner().collect();
    parts.try_into().or_else(|_| fail(&pair, "too little or too much here"))
}

/// The only part of a pair.
fn only(pair: Pair<'_>) -> Result<Pair<'_>> {
    let [part] = exactly(pair)?;
    Ok(part)
}

/// A number of any type.
fn number<T: std::str::FromStr>(pair: &Pair<'_>) -> Result<T> {
    pair.as_str().parse().or_else(|_| fail(pair, "this number is out of range"))
}

/// The text of a name, out of its quotes.
fn name_text(pair: &Pair<'_>) -> Result<String> {
    let inner = only(pair.clone())?;
    if inner.as_rule() == Rule::string { unquote(&inner) } else { Ok(inner.as_str().to_owned()) }
}

fn unquote(pair: &Pair<'_>) -> Result<String> {
    serde_json::from_str(pair.as_str()).or_else(|_| fail(pair, "not a text as JSON has it"))
}

/// An error at `pair`.
fn fail<T>(pair: &Pair<'_>, message: &str) -> Result<T> {
    let (line, column) = pair.as_span().start_pos().line_col();
    let found: String = pair.as_str().lines().next().unwrap_or_default().chars().take(60).collect();
    Err(ParseError { message: format!("{message}: `{found}`"), line, column })
}

fn syntax_error(error: pest::error::Error<Rule>) -> ParseError {
    let (line, column) = match error.line_col {
        LineColLocation::Pos(at) | LineColLocation::Span(at, _) => at,
    };
    ParseError { message: error.variant.message().into_owned(), line, column }
}
