//! Layers made concrete: dimensions and hyper-parameters filled in, parameters and sub-layers created.
//!
//! From items to [`Instance`]s. Bodies of functions are not looked at before they are called.

use super::context::Elaborator;
use super::path::PathSegment;
use super::program::standard_home;
use super::value::{Entry, Env, Instance, InstanceId, Number, SubLayer, Value};
use crate::ast::{
    self, Argument, DimArgument, DimArguments, DimParameters, Expr, ExprKind, Ident, Item, LayerUse, Member,
    Parameter, Type, TypeKind,
};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{Binding, DimId, Element, Init, Param, ParamKind, Scope, Target};
use crate::source::{FileId, Span};
use crate::suggest::did_you_mean;
use indexmap::IndexMap;

/// What an instance is made of.
pub(super) struct Blueprint<'p> {
    /// The item's name.
    pub name: &'p Ident,
    /// The whole item.
    pub item: Span,
    /// `layer`, `model`, `optimizer`.
    pub kind: ItemKind,
    /// The file that it is written in.
    pub file: FileId,
    /// Its members.
    pub members: &'p [Member],
    /// The hyper-parameters as they are declared.
    pub hypers: &'p [Parameter],
}

/// The kinds of item that have members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemKind {
    /// Generic over dims.
    Layer,
    /// Has sizes.
    Model,
    /// Has states.
    Optimizer,
}

impl ItemKind {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            ItemKind::Layer => "layer",
            ItemKind::Model => "model",
            ItemKind::Optimizer => "optimizer",
        }
    }
}

/// An argument with its value.
pub(super) struct Given<'a> {
    /// The parameter's name, where written.
    pub name: Option<&'a Ident>,
    /// The value.
    pub value: Value,
    /// Where.
    pub span: Span,
}

impl<'p> Elaborator<'p> {
    /// A layer with its own names of dims bound. The caller has pushed the frame and the path.
    pub fn instantiate(
        &mut self,
        blueprint: &Blueprint<'p>,
        dims: IndexMap<String, DimId>,
        given: &[Given<'_>],
        scope: Scope,
    ) -> InstanceId {
        self.used.insert(blueprint.item);
        let outer = self.scope;
        self.scope = self.scopes.push(scope);
        let id = self.instances.len();
        self.instances.push(Instance {
            name: &blueprint.name.name,
            file: blueprint.file,
            scope: self.scope,
            binds_dims: blueprint.kind != ItemKind::Model,
            dims,
            hypers: IndexMap::new(),
            params: IndexMap::new(),
            layers: IndexMap::new(),
            functions: Vec::new(),
            states: Vec::new(),
        });
        self.hypers(id, blueprint, given);
        self.members(id, blueprint.kind, blueprint.members);
        self.scope = outer;
        id
    }

    /// Fills in the hyper-parameters of an instance.
    fn hypers(&mut self, id: InstanceId, blueprint: &Blueprint<'p>, given: &[Given<'_>]) {
        let what = format!("{} `{}`", blueprint.kind.name(), blueprint.name.name);
        let chosen = self.assign(blueprint.hypers, given, &what, blueprint.name.span);
        for (parameter, chosen) in blueprint.hypers.iter().zip(chosen) {
            let value = match (chosen, &parameter.default) {
                (Some(index), _) => {
                    let argument = &given[index];
                    self.hyper_value(&parameter.ty, &argument.value, argument.span)
                }
                (None, Some(default)) => {
                    let env = self.env_of(id);
                    let value = self.expression(&env, default);
                    self.hyper_value(&parameter.ty, &value, default.span)
                }
                (None, None) if self.purpose == super::context::Purpose::Generic => {
                    self.stand_in_hyper(&parameter.ty)
                }
                (None, None) => {
                    let place = self.frames.last().map_or(blueprint.name.span, |frame| frame.span);
                    let title = format!("{what} needs `{}`", parameter.name.name);
                    self.report(
                        Diagnostic::error(Code::WrongArguments, title)
                            .label(place, format!("`{}` is missing", parameter.name.name))
                            .label(parameter.span, "has no default"),
                    )
                }
            };
            self.instances[id].hypers.insert(parameter.name.name.clone(), value);
        }
    }

    /// For each parameter the index of its argument. Reports arguments that have no parameter.
    pub fn assign(
        &mut self,
        parameters: &[Parameter],
        given: &[Given<'_>],
        what: &str,
        declared: Span,
    ) -> Vec<Option<usize>> {
        let mut chosen = vec![None; parameters.len()];
        let mut next = 0;
        for (index, argument) in given.iter().enumerate() {
            let position = match argument.name {
                Some(name) => parameters.iter().position(|it| it.name.name == name.name),
                None => {
                    next += 1;
                    (next <= parameters.len()).then_some(next - 1)
                }
            };
            match position {
                Some(position) if chosen[position].is_none() => chosen[position] = Some(index),
                Some(position) => {
                    let title = format!("`{}` is given twice", parameters[position].name.name);
                    self.report(
                        Diagnostic::error(Code::WrongArguments, title).label(argument.span, "given again"),
                    );
                }
                None => self.surplus(parameters, argument, what, declared),
            }
        }
        chosen
    }

    fn surplus(&mut self, parameters: &[Parameter], argument: &Given<'_>, what: &str, declared: Span) {
        let names: Vec<&str> = parameters.iter().map(|it| it.name.name.as_str()).collect();
        let takes = if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") };
        let diagnostic = match argument.name {
            Some(name) => {
                let title = format!("{what} has no parameter `{}`", name.name);
                let diagnostic = Diagnostic::error(Code::WrongArguments, title).label(name.span, "unknown");
                match did_you_mean(&name.name, names.iter().copied()) {
                    Some(near) => diagnostic.hint_edit(near.to_owned(), name.span, near),
                    None => diagnostic,
                }
            }
            None => Diagnostic::error(Code::WrongArguments, format!("too many arguments for {what}"))
                .label(argument.span, "one too many"),
        };
        self.report(diagnostic.label(declared, format!("takes {takes}")));
    }

    /// A compile-time value of the declared type, else a report.
    pub fn hyper_value(&mut self, ty: &Type, value: &Value, span: Span) -> Value {
        match (&ty.kind, value) {
            (_, Value::Error) | (TypeKind::Error, _) => Value::Error,
            (TypeKind::Tuple(types), Value::Tuple(values)) if types.len() == values.len() => Value::Tuple(
                types.iter().zip(values).map(|(ty, value)| self.hyper_value(ty, value, span)).collect(),
            ),
            (TypeKind::Scalar(name), value) => {
                let Some(element) = self.element(Some(name)) else { return Value::Error };
                match (element, value) {
                    (Element::Float | Element::F32 | Element::Bf16, Value::Number(number)) => {
                        Value::Number(Number::Float(number.as_f64()))
                    }
                    (Element::I32 | Element::U32, Value::Number(Number::Int(_)))
                    | (Element::Bool, Value::Truth(_)) => value.clone(),
                    _ => self.wrong_hyper(ty, value, span),
                }
            }
            (TypeKind::Tuple(_) | TypeKind::Tensor { .. }, _) => self.wrong_hyper(ty, value, span),
        }
    }

    fn wrong_hyper(&mut self, ty: &Type, value: &Value, span: Span) -> Value {
        let found = self.value_text(value);
        let code = if matches!(value, Value::Node(_)) { Code::NotCompileTime } else { Code::WrongValue };
        self.report(
            Diagnostic::error(code, format!("{found} does not fit this parameter"))
                .label(span, format!("this is {found}"))
                .label(ty.span, "the declared type")
                .why("hyper-parameters are known at compile time: f32, i32, u32, bool, or a tuple of them"),
        )
    }

    /// A value for checking an item by itself.
    pub fn stand_in_hyper(&mut self, ty: &Type) -> Value {
        match &ty.kind {
            TypeKind::Scalar(name) => match self.element(Some(name)) {
                Some(Element::Float | Element::F32 | Element::Bf16) => Value::Number(Number::Float(1.0)),
                Some(Element::I32 | Element::U32) => Value::Number(Number::Int(1)),
                Some(Element::Bool) => Value::Truth(true),
                None => Value::Error,
            },
            TypeKind::Tuple(types) => Value::Tuple(types.iter().map(|ty| self.stand_in_hyper(ty)).collect()),
            TypeKind::Tensor { .. } | TypeKind::Error => Value::Error,
        }
    }

    /// Takes in members in order; those of an `if` where its condition holds.
    fn members(&mut self, id: InstanceId, kind: ItemKind, members: &'p [Member]) {
        for member in members {
            match member {
                Member::Dims(dims) => self.dims_member(id, kind, dims),
                Member::Param(param) if kind == ItemKind::Optimizer => {
                    self.misplaced(kind, "param", param.span)
                }
                Member::Param(param) => self.param_member(id, param),
                Member::SubLayer(layer) if kind == ItemKind::Optimizer => {
                    self.misplaced(kind, "layer", layer.span)
                }
                Member::SubLayer(layer) => self.sub_layer(id, layer),
                Member::Function(function) => self.function_member(id, function),
                Member::State(state) if kind != ItemKind::Optimizer => {
                    self.misplaced(kind, "state", state.span)
                }
                Member::State(state) => self.instances[id].states.push(state),
                Member::If(choice) => {
                    if let Some(members) = self.chosen_members(id, choice) {
                        self.members(id, kind, members);
                    }
                }
                Member::Error(_) => {}
            }
        }
    }

    fn chosen_members(&mut self, id: InstanceId, choice: &'p ast::MemberIf) -> Option<&'p [Member]> {
        for branch in &choice.branches {
            let env = self.env_of(id);
            match self.condition(&env, &branch.condition) {
                Some(true) => return Some(&branch.members),
                Some(false) => {}
                None => return None,
            }
        }
        choice.otherwise.as_deref()
    }

    fn misplaced(&mut self, kind: ItemKind, what: &str, span: Span) {
        self.report(
            Diagnostic::error(Code::MisplacedMember, format!("a {} has no `{what}`", kind.name()))
                .label(span, "can't stand here"),
        );
    }

    fn taken(&mut self, id: InstanceId, name: &Ident) -> bool {
        let instance = &self.instances[id];
        let taken = instance.hypers.contains_key(&name.name)
            || instance.params.contains_key(&name.name)
            || instance.layers.contains_key(&name.name)
            || instance.function(Some(&name.name)).is_some();
        if taken {
            self.report(
                Diagnostic::error(Code::DuplicateName, format!("`{}` is declared twice", name.name))
                    .label(name.span, "declared again in the same item"),
            );
        }
        taken
    }

    fn function_member(&mut self, id: InstanceId, function: &'p ast::Function) {
        match &function.name {
            Some(name) => {
                if self.taken(id, name) {
                    return;
                }
            }
            None => {
                if let Some(first) = self.instances[id].function(None) {
                    let first = first.span.at_start();
                    self.report(
                        Diagnostic::error(Code::DuplicateName, "two functions without a name")
                            .label(function.span.at_start(), "the second")
                            .label(first, "the first")
                            .why("the function without a name is what the layer computes"),
                    );
                    return;
                }
            }
        }
        self.instances[id].functions.push(function);
    }

    fn dims_member(&mut self, id: InstanceId, kind: ItemKind, dims: &'p ast::Dims) {
        if kind == ItemKind::Model {
            // A model's dims have sizes from plans and options too: see `models`.
            return;
        }
        for declared in &dims.dims {
            if self.instances[id].dims.contains_key(&declared.name.name) {
                let title = format!("dimension `{}` is declared twice", declared.name.name);
                self.report(
                    Diagnostic::error(Code::DuplicateName, title).label(declared.span, "declared again"),
                );
                continue;
            }
            let Some(value) = &declared.value else {
                let name = &declared.name.name;
                self.report(
                    Diagnostic::error(Code::InvalidSize, format!("`{name}` has no size"))
                        .label(declared.span, "only a model may leave a dimension open")
                        .hint(format!("layer …[…, {name}]")),
                );
                continue;
            };
            let env = self.env_of(id);
            if let Some(dim) = self.local_dim(&env, &declared.name.name, declared.span, value) {
                self.instances[id].dims.insert(declared.name.name.clone(), dim);
            }
        }
    }

    fn param_member(&mut self, id: InstanceId, param: &'p ast::Param) {
        if self.taken(id, &param.name) {
            return;
        }
        let env = self.env_of(id);
        let ty = self.written_type(&env, &param.ty);
        let kind = match param.kind {
            None | Some(ast::ParamKind::Weight) => ParamKind::Weight,
            Some(ast::ParamKind::Norm) => ParamKind::Norm,
            Some(ast::ParamKind::Bias) => ParamKind::Bias,
        };
        let init = match &param.init {
            Some(init) => self.initialiser(&env, init),
            None => Some(match kind {
                ParamKind::Weight => Init::Normal(0.02),
                ParamKind::Norm => Init::Constant(1.0),
                ParamKind::Bias => Init::Constant(0.0),
            }),
        };
        let declared = match (ty, init) {
            (Some(ty), Some(init)) => {
                let stack = self.repeats.clone();
                let whole: Vec<DimId> = stack.iter().chain(&ty.dims).copied().collect();
                self.tensor(ty.element, whole, param.ty.span).map(|_| {
                    let names = self.param_names(&param.name.name, param.checkpoint_name.as_ref());
                    let declared = self.params.push(Param {
                        path: names.plain,
                        numbered: names.numbered,
                        alias: names.alias,
                        stack,
                        dims: ty.dims,
                        element: ty.element,
                        kind,
                        init,
                        scope: self.scope,
                        name: param.name.name.clone(),
                        span: param.name.span,
                    });
                    let target = Target::Param(declared);
                    self.bindings.push(Binding { scope: self.scope, name: param.name.name.clone(), target });
                    self.pin(&env, &param.ty, target);
                    declared
                })
            }
            (Some(_) | None, Some(_) | None) => None,
        };
        self.instances[id].params.insert(param.name.name.clone(), declared);
    }

    fn initialiser(&mut self, env: &Env, init: &'p Expr) -> Option<Init> {
        let (name, arguments): (Option<&Ident>, &'p [Argument]) = match &init.kind {
            ExprKind::Name(name) => (Some(name), &[]),
            ExprKind::Apply { callee, dims: None, arguments: Some(arguments) } => {
                (callee.as_name(), arguments)
            }
            ExprKind::Error => return None,
            _ => (None, &[]),
        };
        let mut numbers = Vec::new();
        for argument in arguments {
            match self.expression(env, &argument.value) {
                Value::Number(number) => numbers.push(number.as_f64()),
                Value::Error => return None,
                Value::Node(_) | Value::Truth(_) | Value::Tuple(_) => {
                    self.report(
                        Diagnostic::error(Code::NotCompileTime, "not a number known at compile time")
                            .label(argument.span, "an initialiser takes numbers"),
                    );
                    return None;
                }
            }
        }
        match (name.map(|name| name.name.as_str()), &numbers[..]) {
            (Some("zeros"), []) => Some(Init::Constant(0.0)),
            (Some("ones"), []) => Some(Init::Constant(1.0)),
            (Some("constant"), [value]) => Some(Init::Constant(*value)),
            (Some("normal"), [deviation]) if *deviation >= 0.0 => Some(Init::Normal(*deviation)),
            (Some("uniform"), [low, high]) if low <= high => Some(Init::Uniform(*low, *high)),
            _ => {
                self.report(
                    Diagnostic::error(Code::InvalidInitialiser, "not an initialiser")
                        .label(init.span, "can't be how a parameter starts")
                        .hint("zeros, ones, constant(0.5), normal(0.02) or uniform(-0.1, 0.1)"),
                );
                None
            }
        }
    }

    fn sub_layer(&mut self, id: InstanceId, member: &'p ast::SubLayer) {
        if self.taken(id, &member.name) {
            return;
        }
        let several = member.stack.len() > 1;
        let entries = member.stack.iter().enumerate().map(|(index, entry)| {
            let name =
                if several { format!("{}.{index}", member.name.name) } else { member.name.name.clone() };
            self.entry(id, member, entry, name)
        });
        let entries = entries.collect();
        self.instances[id].layers.insert(member.name.name.clone(), SubLayer { entries });
    }

    fn entry(
        &mut self,
        id: InstanceId,
        member: &'p ast::SubLayer,
        entry: &'p LayerUse,
        name: String,
    ) -> Option<Entry> {
        let env = self.env_of(id);
        let (file, layer) = self.layer_item(env.file, &entry.layer)?;
        let dims =
            self.bind_formals(&env, layer.dims.as_ref(), entry.dims.as_ref(), &layer.name, entry.span)?;
        let given: Vec<Given<'_>> = entry
            .arguments
            .iter()
            .map(|it| Given {
                name: it.name.as_ref(),
                value: self.expression(&env, &it.value),
                span: it.span,
            })
            .collect();
        let repeat = match &entry.repeat {
            Some(repeat) => Some(self.repeat_dim(&env, repeat, &member.name.name)?),
            None => None,
        };
        self.begin(format!("layer `{}`", layer.name.name), entry.span, &dims, layer.span)?;
        self.path.push(PathSegment {
            name: name.clone(),
            numbered: repeat.is_some(),
            checkpoint: member.checkpoint_name.clone(),
        });
        self.repeats.extend(repeat);
        let blueprint = Blueprint {
            name: &layer.name,
            item: layer.span,
            kind: ItemKind::Layer,
            file,
            members: &layer.members,
            hypers: &layer.hypers,
        };
        let scope = Scope {
            parent: Some(self.scope),
            instance: name,
            layer: layer.name.name.clone(),
            span: member.span,
        };
        let instance = self.instantiate(&blueprint, dims, &given, scope);
        if repeat.is_some() {
            self.repeats.pop();
        }
        self.path.pop();
        self.end();
        Some(Entry { repeat, instance })
    }

    fn repeat_dim(&mut self, env: &Env, repeat: &Expr, name: &str) -> Option<DimId> {
        if let Some(dim) = repeat.as_name().and_then(|name| env.dims.get(&name.name)) {
            return Some(*dim);
        }
        self.local_dim(env, name, repeat.span, repeat)
    }

    /// The layer of a name.
    fn layer_item(&mut self, file: FileId, name: &Ident) -> Option<(FileId, &'p ast::Layer)> {
        match self.program.lookup(file, &name.name) {
            Some((file, Item::Layer(layer))) => Some((file, layer)),
            Some(_) => {
                self.report(
                    Diagnostic::error(Code::NotCallable, format!("`{}` is no layer", name.name))
                        .label(name.span, "expected a layer"),
                );
                None
            }
            None => {
                self.unknown(name, "layer", file, &[]);
                None
            }
        }
    }

    /// Reports a name that means nothing, with the nearest that does.
    pub fn unknown(&mut self, name: &Ident, kind: &str, file: FileId, near: &[&str]) -> Value {
        let program = self.program;
        let mut diagnostic = Diagnostic::error(Code::UnknownName, format!("no {kind} `{}` here", name.name))
            .label(name.span, "not declared");
        if let Some(home) = standard_home(&name.name) {
            diagnostic = diagnostic.hint(format!("use std::{home}::{}", name.name));
        } else if let Some(near) = did_you_mean(&name.name, near.iter().copied().chain(program.names(file))) {
            diagnostic = diagnostic.hint_edit(near.to_owned(), name.span, near);
        }
        self.report(diagnostic)
    }

    /// Formal dims bound to the arguments in brackets.
    pub fn bind_formals(
        &mut self,
        env: &Env,
        formals: Option<&DimParameters>,
        arguments: Option<&DimArguments>,
        name: &Ident,
        span: Span,
    ) -> Option<IndexMap<String, DimId>> {
        let empty: &[Ident] = &[];
        let (from, to) = formals.map_or((empty, None), |it| (&it.from[..], it.to.as_deref()));
        let none: &[DimArgument] = &[];
        let (given_from, given_to) = arguments.map_or((none, None), |it| (&it.from[..], it.to.as_deref()));
        let place = arguments.map_or(span, |it| it.span);
        let fits = given_from.len() == from.len() && given_to.map(<[_]>::len) == to.map(<[_]>::len);
        if !fits {
            let declared = formals.map_or(name.span, |it| it.span);
            let wanted = formals_text(from, to);
            self.report(
                Diagnostic::error(Code::WrongDims, format!("`{}` takes other dimensions", name.name))
                    .label(place, "does not match")
                    .label(declared, format!("takes `{wanted}`"))
                    .hint(format!("{}{wanted}", name.name)),
            );
            return None;
        }
        let mut bound = IndexMap::new();
        let formals = from.iter().chain(to.unwrap_or(&[]));
        let arguments = given_from.iter().chain(given_to.unwrap_or(&[]));
        for (formal, argument) in formals.zip(arguments) {
            if let Some(dim) = self.dim_argument(env, formal, argument) {
                bound.insert(formal.name.clone(), dim);
            }
        }
        (bound.len() == from.len() + to.map_or(0, <[_]>::len)).then_some(bound)
    }

    fn dim_argument(&mut self, env: &Env, formal: &Ident, argument: &DimArgument) -> Option<DimId> {
        match argument {
            DimArgument::Name(name) => self.dim(env, name),
            DimArgument::Bind { span, name, value } if name.name == formal.name => {
                self.local_dim(env, &name.name, *span, value)
            }
            DimArgument::Bind { name, .. } => {
                let title = format!("this place is for `{}`", formal.name);
                self.report(
                    Diagnostic::error(Code::WrongDims, title).label(name.span, "another dimension's name"),
                );
                None
            }
            DimArgument::Value(value) => match value.as_name() {
                Some(name) => self.dim(env, name),
                None => self.local_dim(env, &formal.name, value.span, value),
            },
            DimArgument::Rest(span) => {
                self.report(
                    Diagnostic::error(Code::WrongDims, "`..` can't be given as a dimension")
                        .label(*span, format!("`{}` is one dimension", formal.name)),
                );
                None
            }
        }
    }
}

fn formals_text(from: &[Ident], to: Option<&[Ident]>) -> String {
    let list = |names: &[Ident]| names.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    match to {
        Some(to) => format!("[{} -> {}]", list(from), list(to)),
        None => format!("[{}]", list(from)),
    }
}
