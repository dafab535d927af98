//! Parses the text of a program: the tables, regions and types. See `parse_op` for the operations.
//!
//! Parsing checks names, not meaning: a program that parses may still be refused by the verifier.

use super::canonical::Origins;
use super::{parse_memory, parse_op};
use crate::dim::{Axis, AxisInfo, Dim, DimInfo};
use crate::op::Op;
use crate::program::{
    Binding, Initializer, Input, Inst, Origin, OriginInfo, Output, ParameterKind, Phase, Program, Region,
    Role, Scope, ScopeInfo, State, StateKind, Value, ValueInfo,
};
use crate::types::{DType, Placement, ReduceOp, Type};
use cranelift_entity::PrimaryMap;
use pest::Parser;
use pest::error::LineColLocation;
use rustc_hash::FxHashMap;
use std::fmt;

#[derive(pest_derive::Parser)]
#[grammar = "../../grammar/ir.pest"]
struct Grammar;

pub(super) type Pair<'i> = pest::iterators::Pair<'i, Rule>;
pub(super) type Result<T> = std::result::Result<T, ParseError>;

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

/// Reads what [`super::print`] wrote.
///
/// # Errors
/// Where the text breaks the grammar, or uses a name that nothing defines or that two things define.
pub fn parse(text: &str) -> Result<Program> {
    let mut pairs = Grammar::parse(Rule::program, text).map_err(syntax_error)?;
    let Some(pair) = pairs.next() else {
        return Err(ParseError { message: "expected a program".into(), line: 1, column: 1 });
    };
    let mut tables = Tables::default();
    let mut states = None;
    let (mut inputs, mut outputs, mut bindings, mut memory, mut main) = (None, None, None, None, None);
    for part in pair.into_inner() {
        match part.as_rule() {
            Rule::name => tables.program = Program::new(name_text(&part)),
            Rule::mesh => tables.mesh(part)?,
            Rule::dims => tables.dims(part)?,
            Rule::scopes => tables.scopes(part)?,
            Rule::states => states = Some(part),
            Rule::inputs => inputs = Some(part),
            Rule::outputs => outputs = Some(part),
            Rule::bindings => bindings = Some(part),
            Rule::memory => memory = Some(part),
            Rule::main => main = Some(part),
            _ => {}
        }
    }
    if let Some(main) = main {
        let region = only(main)?;
        let mut gradients = Vec::new();
        tables.define_region(region.clone(), &mut gradients)?;
        for (value, of) in gradients {
            tables.program.values[value].gradient_of = Some(tables.value(&of)?);
        }
        tables.program.main = tables.region(region)?;
    }
    states.map_or(Ok(()), |pair| tables.states(pair))?;
    for (name, value) in tables.ports(inputs)? {
        tables.program.inputs.push(Input { name, value });
    }
    for (name, value) in tables.ports(outputs)? {
        tables.program.outputs.push(Output { name, value });
    }
    bindings.map_or(Ok(()), |pair| tables.bindings(pair))?;
    tables.program.memory = memory.map(|pair| parse_memory::plan(&tables, pair)).transpose()?;
    tables.program.origins = tables.origins.map(|origins| origins.table).unwrap_or(tables.program.origins);
    Ok(tables.program)
}

/// The program under construction, with what its names stand for.
pub(super) struct Tables {
    pub(super) program: Program,
    origins: Option<Origins>,
    axes: FxHashMap<String, Axis>,
    dims: FxHashMap<String, Dim>,
    scopes: FxHashMap<String, Scope>,
    values: FxHashMap<String, Value>,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables {
            program: Program::new(""),
            origins: None,
            axes: FxHashMap::default(),
            dims: FxHashMap::default(),
            scopes: FxHashMap::default(),
            values: FxHashMap::default(),
        }
    }
}

impl Tables {
    fn mesh(&mut self, pair: Pair<'_>) -> Result<()> {
        for entry in pair.into_inner() {
            let [axis, size] = exactly(entry)?;
            let words: Vec<String> = axis.clone().into_inner().map(|word| axis_word(&word)).collect();
            let part = words.get(1).cloned();
            let name = words.into_iter().next().unwrap_or_default();
            let key = axis.as_str().to_string();
            let id = self.program.mesh.axes.push(AxisInfo { name, part, size: number(&size)? });
            if self.axes.insert(key, id).is_some() {
                return fail(&axis, "this axis is there already");
            }
        }
        Ok(())
    }

    fn dims(&mut self, pair: Pair<'_>) -> Result<()> {
        for entry in pair.into_inner() {
            let pad = entry.clone().into_inner().any(|part| part.as_rule() == Rule::pad_mark);
            let [name, size] = first(entry)?;
            let text = name_text(&name);
            let info = DimInfo { name: text.clone(), size: number(&size)?, pad };
            let dim = self.program.dims.push(info);
            if self.dims.insert(text, dim).is_some() {
                return fail(&name, "this dimension is there already");
            }
        }
        Ok(())
    }

    fn scopes(&mut self, pair: Pair<'_>) -> Result<()> {
        self.program.scopes = PrimaryMap::new();
        for entry in pair.into_inner() {
            let parts: Vec<Pair<'_>> =
                entry.clone().into_inner().filter(|part| part.as_rule() != Rule::within).collect();
            let [key, layer, ..] = &parts[..] else { return fail(&entry, "expected a scope") };
            let (path, layer) = (scope_key(key), name_text(layer));
            let parent = match parts.get(2) {
                Some(parent) => Some(self.scope(parent, &scope_key(parent))?),
                None => None,
            };
            let above = parts.get(2).map(scope_key).filter(|above| !above.is_empty());
            let instance = match above {
                Some(above) => path.strip_prefix(&format!("{above}.")),
                None => Some(path.as_str()),
            };
            let Some(instance) = instance else {
                return fail(key, "the path of a scope starts with that of its parent");
            };
            let instance = without_number(instance).to_string();
            let scope = self.program.scopes.push(ScopeInfo { parent, instance, layer });
            if self.scopes.insert(path, scope).is_some() {
                return fail(key, "this scope is there already");
            }
        }
        if self.program.scopes.is_empty() {
            self.program.scopes = Program::new(self.program.name.clone()).scopes;
        }
        Ok(())
    }

    fn scope(&self, at: &Pair<'_>, path: &str) -> Result<Scope> {
        match self.scopes.get(path) {
            Some(&scope) => Ok(scope),
            None if path.is_empty() => Ok(Scope::from_u32(0)),
            None => fail(at, "no scope has this path"),
        }
    }

    fn states(&mut self, pair: Pair<'_>) -> Result<()> {
        let paths: Vec<String> = pair
            .clone()
            .into_inner()
            .map(|state| state.into_inner().next().map(|name| name_text(&name)).unwrap_or_default())
            .collect();
        for (entry, path) in pair.into_inner().zip(&paths) {
            let state = self.state(entry, path.clone(), &paths)?;
            self.program.states.push(state);
        }
        Ok(())
    }

    fn state(&self, entry: Pair<'_>, path: String, paths: &[String]) -> Result<State> {
        let [_, value, ..] = first::<2>(entry.clone())?;
        let value = self.value(&value)?;
        let kind = StateKind::Parameter(ParameterKind::Weight);
        let init = Initializer::Constant(0.0);
        let mut state = State { path, names: Vec::new(), kind, init, stack: None, value, updated: None };
        for part in entry.into_inner().skip(2) {
            match part.as_rule() {
                Rule::updated => state.updated = Some(self.value(&only(part)?)?),
                Rule::state_kind => state.kind = state_kind(only(part)?, paths)?,
                Rule::initializer => state.init = initializer(only(part)?, paths)?,
                Rule::stack => state.stack = Some(self.dim(&only(part)?)?),
                Rule::names => state.names = part.into_inner().map(|name| name_text(&name)).collect(),
                _ => return fail(&part, "unexpected in a state"),
            }
        }
        Ok(state)
    }

    fn ports(&self, pair: Option<Pair<'_>>) -> Result<Vec<(String, Value)>> {
        let ports = pair.into_iter().flat_map(|pair| pair.into_inner());
        ports
            .map(|port| {
                let [name, value] = exactly(port)?;
                Ok((name_text(&name), self.value(&value)?))
            })
            .collect()
    }

    fn bindings(&mut self, pair: Pair<'_>) -> Result<()> {
        for entry in pair.into_inner() {
            let parts: Vec<Pair<'_>> =
                entry.clone().into_inner().filter(|part| part.as_rule() != Rule::within).collect();
            let binding = match &parts[..] {
                [name, value] => {
                    Binding { scope: Scope::from_u32(0), name: name_text(name), value: self.value(value)? }
                }
                [name, scope, value] => Binding {
                    scope: self.scope(scope, &name_text(scope))?,
                    name: name_text(name),
                    value: self.value(value)?,
                },
                _ => return fail(&entry, "expected a binding"),
            };
            self.program.bindings.push(binding);
        }
        Ok(())
    }

    /// Makes the values that a region defines, so that uses may come before them.
    fn define_region<'i>(&mut self, region: Pair<'i>, gradients: &mut Vec<(Value, Pair<'i>)>) -> Result<()> {
        for part in region.into_inner() {
            match part.as_rule() {
                Rule::parameters => {
                    for definition in part.into_inner() {
                        self.define(definition, None, gradients)?;
                    }
                }
                Rule::inst => {
                    let parts: Vec<Pair<'i>> = part.into_inner().collect();
                    let loc = parts.iter().find(|part| part.as_rule() == Rule::loc).cloned();
                    let origin = loc.map(|loc| self.origin(loc)).transpose()?;
                    for part in parts {
                        match part.as_rule() {
                            Rule::results => {
                                for definition in part.into_inner() {
                                    self.define(definition, origin, gradients)?;
                                }
                            }
                            Rule::region => self.define_region(part, gradients)?,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn define<'i>(
        &mut self,
        definition: Pair<'i>,
        origin: Option<Origin>,
        gradients: &mut Vec<(Value, Pair<'i>)>,
    ) -> Result<()> {
        let [name, ty] = first(definition.clone())?;
        let ty = self.ty(ty)?;
        let label = label(&name);
        let mut info = ValueInfo {
            ty,
            name: source_name(&label),
            origin: origin.unwrap_or(Origin::from_u32(0)),
            role: Role::Activation,
            gradient_of: None,
        };
        let mut of = None;
        for part in definition.into_inner().skip(2) {
            match part.as_rule() {
                Rule::role => info.role = role(&part)?,
                Rule::gradient_of => of = Some(only(part)?),
                Rule::loc => info.origin = self.origin(part)?,
                _ => return fail(&part, "unexpected in a definition"),
            }
        }
        let value = self.program.values.push(info);
        gradients.extend(of.map(|of| (value, of)));
        match self.values.insert(label, value) {
            None => Ok(()),
            Some(_) => fail(&name, "this value is there already"),
        }
    }

    fn origin(&mut self, pair: Pair<'_>) -> Result<Origin> {
        let position = pair.into_inner().next();
        let program = &self.program;
        let mut info = program.origins[program.no_origin()].clone();
        if let Some(position) = position {
            let [path, line, column] = first(position.clone())?;
            info.file = only(path.clone()).map_or(path.as_str().to_string(), |inner| string_or(&inner));
            (info.line, info.column) = (number(&line)?, number(&column)?);
            if let Some(scope) = position.into_inner().nth(3) {
                info.scope = self.scope(&scope, &name_text(&scope))?;
            }
        }
        let origins = self.origins.get_or_insert_with(|| Origins::new(&self.program));
        Ok(origins.intern(&OriginInfo { ..info }))
    }

    pub(super) fn region(&self, region: Pair<'_>) -> Result<Region> {
        let mut result = Region::default();
        for part in region.into_inner() {
            match part.as_rule() {
                Rule::parameters => {
                    for definition in part.into_inner() {
                        let [name] = first(definition)?;
                        result.params.push(self.value(&name)?);
                    }
                }
                Rule::inst => result.insts.push(self.inst(part)?),
                Rule::yields => result.yields = self.values(only(part)?)?,
                _ => return fail(&part, "unexpected in a region"),
            }
        }
        Ok(result)
    }

    fn inst(&self, pair: Pair<'_>) -> Result<Inst> {
        let at = pair.clone();
        let mut inst = Inst {
            op: Op::Done,
            args: Default::default(),
            results: Default::default(),
            phase: Phase::Forward,
        };
        let (mut op, mut body, mut reasons) = (None, None, Vec::new());
        for part in pair.into_inner() {
            match part.as_rule() {
                Rule::results => {
                    for definition in part.into_inner() {
                        let [name] = first(definition)?;
                        inst.results.push(self.value(&name)?);
                    }
                }
                Rule::op => op = Some(only(part)?),
                Rule::args => inst.args.extend(self.values(part)?),
                Rule::because => reasons.push(parse_op::reason(part)?),
                Rule::loc => {}
                Rule::phase => inst.phase = phase(&part)?,
                Rule::region => body = Some(self.region(part)?),
                _ => return fail(&part, "unexpected in an instruction"),
            }
        }
        match op {
            Some(op) => inst.op = parse_op::op(self, op, body, reasons)?,
            None => return fail(&at, "expected an operation"),
        }
        Ok(inst)
    }

    pub(super) fn values(&self, args: Pair<'_>) -> Result<Vec<Value>> {
        args.into_inner().map(|value| self.value(&value)).collect()
    }

    pub(super) fn value(&self, pair: &Pair<'_>) -> Result<Value> {
        self.values.get(&label(pair)).copied().map_or_else(|| fail(pair, "nothing defines this value"), Ok)
    }

    pub(super) fn dim(&self, pair: &Pair<'_>) -> Result<Dim> {
        let found = self.dims.get(&name_text(pair)).copied();
        found.map_or_else(|| fail(pair, "no dimension has this name"), Ok)
    }

    pub(super) fn axis(&self, pair: &Pair<'_>) -> Result<Axis> {
        self.axes.get(pair.as_str()).copied().map_or_else(|| fail(pair, "the mesh has no such axis"), Ok)
    }

    /// A dimension that stands twice, or two partial results along an axis, would have no text of their own: the verifier never sees them.
    fn ty(&self, pair: Pair<'_>) -> Result<Type> {
        let mut ty = Type::scalar(DType::F32);
        let mut placement = Placement::replicated();
        for part in pair.into_inner() {
            match part.as_rule() {
                Rule::dtype => ty.dtype = named(&part, &DType::ALL, DType::name)?,
                Rule::placed_dim => {
                    let mut parts = part.into_inner();
                    let Some(name) = parts.next() else { continue };
                    let dim = self.dim(&name)?;
                    if ty.dims.contains(&dim) {
                        return fail(&name, "a dimension stands once in a type");
                    }
                    ty.dims.push(dim);
                    for axis in parts {
                        placement.add_shard(dim, self.axis(&axis)?);
                    }
                }
                Rule::partials => {
                    for partial in part.into_inner() {
                        let [op, axis] = exactly(partial)?;
                        let on = self.axis(&axis)?;
                        if placement.partials().iter().any(|partial| partial.axis == on) {
                            return fail(&axis, "an axis stands once in `partial`");
                        }
                        placement.add_partial(on, reduce_op(&op)?);
                    }
                }
                _ => return fail(&part, "unexpected in a type"),
            }
        }
        Ok(ty.with_placement(placement))
    }
}

fn state_kind(pair: Pair<'_>, paths: &[String]) -> Result<StateKind> {
    match pair.as_rule() {
        Rule::parameter_kind => match pair.as_str() {
            "weight" => Ok(StateKind::Parameter(ParameterKind::Weight)),
            "norm" => Ok(StateKind::Parameter(ParameterKind::Norm)),
            "bias" => Ok(StateKind::Parameter(ParameterKind::Bias)),
            _ => fail(&pair, "no such kind of parameter"),
        },
        Rule::master => Ok(StateKind::Master(state_index(only(pair)?, paths)?)),
        Rule::optimizer => {
            let [name, parameter] = exactly(pair)?;
            let parameter = state_index(parameter, paths)?;
            Ok(StateKind::Optimizer { parameter, name: name_text(&name) })
        }
        _ => fail(&pair, "expected what the state holds"),
    }
}

fn initializer(pair: Pair<'_>, paths: &[String]) -> Result<Initializer> {
    match pair.as_rule() {
        Rule::init_constant => Ok(Initializer::Constant(number(&only(pair)?)?)),
        Rule::init_normal => Ok(Initializer::Normal(number(&only(pair)?)?)),
        Rule::init_uniform => {
            let [low, high] = exactly(pair)?;
            Ok(Initializer::Uniform(number(&low)?, number(&high)?))
        }
        Rule::init_copy => Ok(Initializer::CopyOf(state_index(only(pair)?, paths)?)),
        _ => fail(&pair, "expected an initialiser"),
    }
}

fn state_index(pair: Pair<'_>, paths: &[String]) -> Result<usize> {
    let inner = only(pair)?;
    if inner.as_rule() == Rule::state_index {
        return number(&only(inner)?);
    }
    let path = name_text(&inner);
    paths.iter().position(|other| *other == path).map_or_else(|| fail(&inner, "no state has this path"), Ok)
}

fn role(pair: &Pair<'_>) -> Result<Role> {
    named(pair, &[Role::Parameter, Role::Gradient, Role::Optimizer], Role::name)
}

fn phase(pair: &Pair<'_>) -> Result<Phase> {
    named(pair, &Phase::ALL, Phase::name)
}

pub(super) fn reduce_op(pair: &Pair<'_>) -> Result<ReduceOp> {
    named(pair, &[ReduceOp::Sum, ReduceOp::Max], ReduceOp::name)
}

/// The one of `all` whose name `pair` is.
pub(super) fn named<T: Copy>(pair: &Pair<'_>, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T> {
    let found = all.iter().copied().find(|&one| name(one) == pair.as_str());
    found.map_or_else(|| fail(pair, "unknown word"), Ok)
}

/// The first `N` parts of a pair.
pub(super) fn first<const N: usize>(pair: Pair<'_>) -> Result<[Pair<'_>; N]> {
    let parts: Vec<Pair<'_>> = pair.clone().into_inner().take(N).collect();
    parts.try_into().or_else(|_| fail(&pair, "something is missing here"))
}

/// The parts of a pair that has `N`.
pub(super) fn exactly<const N: usize>(pair: Pair<'_>) -> Result<[Pair<'_>; N]> {
    let parts: Vec<Pair<'_>> = pair.clone().into_inner().collect();
    parts.try_into().or_else(|_| fail(&pair, "too little or too much here"))
}

/// The only part of a pair.
pub(super) fn only(pair: Pair<'_>) -> Result<Pair<'_>> {
    let [part] = exactly(pair)?;
    Ok(part)
}

/// A number of any type.
pub(super) fn number<T: std::str::FromStr>(pair: &Pair<'_>) -> Result<T> {
    pair.as_str().parse().or_else(|_| fail(pair, "this number is out of range"))
}

/// An error at `pair`.
pub(super) fn fail<T>(pair: &Pair<'_>, message: &str) -> Result<T> {
    let (line, column) = pair.as_span().start_pos().line_col();
    let found: String = pair.as_str().lines().next().unwrap_or_default().chars().take(60).collect();
    Err(ParseError { message: format!("{message}: `{found}`"), line, column })
}

/// The text of a name, out of its quotes.
pub(super) fn name_text(pair: &Pair<'_>) -> String {
    pair.clone().into_inner().next().map_or_else(|| pair.as_str().to_string(), |inner| string_or(&inner))
}

fn axis_word(pair: &Pair<'_>) -> String {
    name_text(pair)
}

fn scope_key(pair: &Pair<'_>) -> String {
    match pair.clone().into_inner().next() {
        Some(inner) if inner.as_rule() == Rule::name => name_text(&inner),
        Some(_) | None => String::new(),
    }
}

fn string_or(pair: &Pair<'_>) -> String {
    if pair.as_rule() == Rule::string { unquote(pair.as_str()) } else { pair.as_str().to_string() }
}

/// A value's label as `Names` makes it: without the `%`.
fn label(pair: &Pair<'_>) -> String {
    pair.as_str().trim_start_matches('%').to_string()
}

/// The source name within a label; none if the value has none.
fn source_name(label: &str) -> Option<String> {
    if label.starts_with('"') {
        return Some(unquote(without_number(label)));
    }
    if label.contains('~') { None } else { Some(without_number(label).to_string()) }
}

/// `name` without a final `#2`.
fn without_number(name: &str) -> &str {
    match name.rsplit_once('#') {
        Some((base, digits)) if !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()) => base,
        Some(_) | None => name,
    }
}

/// The inside of a quoted string.
pub(super) fn unquote(text: &str) -> String {
    let inside = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let mut result = String::new();
    let mut characters = inside.chars();
    while let Some(c) = characters.next() {
        match (c, c == '\\') {
            (_, false) => result.push(c),
            (_, true) => match characters.next() {
                Some('n') => result.push('\n'),
                Some('r') => result.push('\r'),
                Some(other) => result.push(other),
                None => {}
            },
        }
    }
    result
}

fn syntax_error(error: pest::error::Error<Rule>) -> ParseError {
    let (line, column) = match error.line_col {
        LineColLocation::Pos(at) | LineColLocation::Span(at, _) => at,
    };
    ParseError { message: error.variant.message().into_owned(), line, column }
}
