//! Calls: arguments bound to the parameters of a function or layer, and its body inlined. A `repeat` becomes one node
//! whose body is the layer inlined once.
//!
//! From [`Value`]s to [`Value`]s. Built-in operations are in `builtin`.

use super::context::Elaborator;
use super::instance::Given;
use super::types::same_dims;
use super::value::{Entry, Env, Frame, InstanceId, SubLayer, Value};
use crate::ast::{DimArguments, Function, Ident, Parameter, Type, TypeDim, TypeKind};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{Binding, DimId, NodeId, Operation, Target, TensorType};
use crate::source::{FileId, Span};
use indexmap::IndexMap;

/// A function with where it is called.
#[derive(Clone, Copy)]
pub(super) struct Callee<'p> {
    /// The function.
    pub function: &'p Function,
    /// The file that it is written in.
    pub file: FileId,
    /// The instance that it is a member of.
    pub owner: Option<InstanceId>,
    /// The call.
    pub span: Span,
}

impl<'p> Elaborator<'p> {
    /// Enters an item; none where it is inside of itself or too deep, which is reported.
    pub fn begin(
        &mut self,
        what: String,
        span: Span,
        dims: &IndexMap<String, DimId>,
        item: Span,
    ) -> Option<()> {
        if self.frames.iter().any(|frame| frame.item == item) {
            let chain: Vec<&str> = self.frames.iter().map(|frame| frame.what.as_str()).collect();
            let why = format!("it is reached from itself: {} → {what}", chain.join(" → "));
            self.report(
                Diagnostic::error(Code::CyclicLayer, format!("{what} contains itself"))
                    .label(span, "used here, inside of itself")
                    .why(why)
                    .hint("stack layers with `repeat[L]`"),
            );
            return None;
        }
        self.enter(span)?;
        let dims = dims.iter().map(|(name, dim)| (name.clone(), *dim)).collect();
        self.frames.push(Frame { what, span, dims, item });
        Some(())
    }

    /// Leaves it.
    pub fn end(&mut self) {
        self.frames.pop();
        self.leave();
    }

    /// The value of a function at arguments.
    pub fn call_function(
        &mut self,
        caller: &Env,
        callee: Callee<'p>,
        dims: Option<&DimArguments>,
        given: &[Given<'_>],
    ) -> Value {
        let function = callee.function;
        let mut env = match callee.owner {
            Some(owner) => self.env_of(owner),
            None => Env::new(callee.file),
        };
        let nameless;
        let name = match &function.name {
            Some(name) => name,
            None => {
                let text = callee.owner.map_or("fn", |owner| self.instances[owner].name);
                nameless = Ident { span: function.span.at_start(), name: text.to_owned() };
                &nameless
            }
        };
        if let Some(arguments) = dims {
            match self.bind_formals(caller, function.dims.as_ref(), Some(arguments), name, callee.span) {
                Some(bound) => env.dims.extend(bound),
                None => return Value::Error,
            }
        }
        let what = match (callee.owner, &function.name) {
            (Some(_), None) => format!("layer `{}`", name.name),
            (Some(_) | None, _) => format!("function `{}`", name.name),
        };
        if self.begin(what.clone(), callee.span, &env.dims, function.span).is_none() {
            return Value::Error;
        }
        let outer = self.scope;
        if let Some(owner) = callee.owner {
            self.scope = self.instances[owner].scope;
        } else {
            self.used.insert(function.span);
        }
        let bound = self.parameters(&mut env, &function.parameters, given, &what, name.span);
        if let Some(frame) = self.frames.last_mut() {
            frame.dims = env.dims.iter().map(|(name, dim)| (name.clone(), *dim)).collect();
        }
        let value = if bound { self.function_body(&mut env, function) } else { Value::Error };
        self.scope = outer;
        self.end();
        value
    }

    /// Binds arguments to parameters in the environment of a body; whether all went well.
    fn parameters(
        &mut self,
        env: &mut Env,
        parameters: &'p [Parameter],
        given: &[Given<'_>],
        what: &str,
        declared: Span,
    ) -> bool {
        let chosen = self.assign(parameters, given, what, declared);
        let mut whole = true;
        for (parameter, chosen) in parameters.iter().zip(chosen) {
            let (value, span) = match (chosen, &parameter.default) {
                (Some(index), _) => (given[index].value.clone(), given[index].span),
                (None, Some(default)) => (self.expression(env, default), default.span),
                (None, None) => {
                    let place = self.frames.last().map_or(declared, |frame| frame.span);
                    let title = format!("{what} needs `{}`", parameter.name.name);
                    let missing = self.report(
                        Diagnostic::error(Code::WrongArguments, title)
                            .label(place, format!("`{}` is missing", parameter.name.name))
                            .label(parameter.span, "has no default"),
                    );
                    (missing, place)
                }
            };
            let value = self.bind_parameter(env, parameter, value, span);
            whole &= value != Value::Error;
            self.declare(env, &parameter.name, value);
        }
        whole
    }

    /// Gives a name its value in a body, and makes it selectable by plans where it is one of a layer's.
    pub fn declare(&mut self, env: &mut Env, name: &Ident, value: Value) {
        if let (true, Value::Node(node)) = (env.named, &value) {
            let target = Target::Node(*node);
            self.bindings.push(Binding { scope: self.scope, name: name.name.clone(), target });
        }
        env.values.push((name.name.clone(), value));
    }

    /// The argument as the parameter's declared type has it; its free dims are bound.
    pub fn bind_parameter(
        &mut self,
        env: &mut Env,
        parameter: &Parameter,
        value: Value,
        span: Span,
    ) -> Value {
        let dims = match (&parameter.ty.kind, &value) {
            (_, Value::Error) => return Value::Error,
            (TypeKind::Scalar(_), Value::Number(_) | Value::Truth(_)) | (TypeKind::Tuple(_), _) => {
                return self.hyper_value(&parameter.ty, &value, span);
            }
            (TypeKind::Tensor { dims, .. }, _) => &dims[..],
            (TypeKind::Scalar(_) | TypeKind::Error, _) => &[],
        };
        if let Value::Node(node) = value {
            let actual = self.ty(node).clone();
            if let Some(missing) = self.missing_beside_rest(env, dims, &actual.dims) {
                return self.lacks(env, parameter, &actual, missing, span);
            }
            if self.bind_dims(env, dims, &actual.dims).is_none() {
                let found = self.type_text(&actual);
                let wanted = written_text(&parameter.ty, &str::to_owned);
                let name = &parameter.name.name;
                return self.report(
                    Diagnostic::error(Code::DimMismatch, format!("expected {wanted}, found {found}"))
                        .label(span, format!("this is {found}"))
                        .label(parameter.span, format!("`{name}` is {wanted}"))
                        .why(
                            "there are dimensions in the parameter's type that the argument has nothing for",
                        ),
                );
            }
        }
        let Some(expected) = self.written_type(env, &parameter.ty) else { return Value::Error };
        let what = format!("`{}`", parameter.name.name);
        match self.fit(&value, &expected, span, parameter.span, &what) {
            Some(node) => {
                self.pin(env, &parameter.ty, Target::Node(node));
                Value::Node(node)
            }
            None => Value::Error,
        }
    }

    /// The first known dim of a type with a `..` that the argument lacks: the `..` would hide that another has its place.
    fn missing_beside_rest(&self, env: &Env, formal: &[TypeDim], actual: &[DimId]) -> Option<DimId> {
        let rest = formal.iter().any(|dim| matches!(dim, TypeDim::Rest(_)));
        let known = formal.iter().filter_map(|dim| match dim {
            TypeDim::Named(named) => env.dims.get(&named.name.name).copied(),
            TypeDim::Rest(_) | TypeDim::Error(_) => None,
        });
        known.filter(|_| rest).find(|dim| !actual.contains(dim))
    }

    fn lacks(
        &mut self,
        env: &Env,
        parameter: &Parameter,
        actual: &TensorType,
        missing: DimId,
        span: Span,
    ) -> Value {
        let (found, name) = (self.type_text(actual), self.dims[missing].name.clone());
        let wanted = written_text(&parameter.ty, &|name| {
            env.dims.get(name).map_or(name, |&dim| self.dims[dim].name.as_str()).to_owned()
        });
        let size = self.dims[missing].size;
        let mut diagnostic =
            Diagnostic::error(Code::DimMismatch, format!("expected {wanted}, found {found}"))
                .label(span, format!("this is {found}"))
                .label(parameter.span, format!("`{}` is {wanted}", parameter.name.name))
                .label(self.dims[missing].span, format!("`{name}` is declared here"))
                .why(format!("`{name}` is missing"));
        let same = actual.dims.iter().rev().find(|&&dim| self.dims[dim].size == size);
        if let Some(&same) = same.filter(|&&dim| !self.is_stand_in(&[dim, missing])) {
            diagnostic = diagnostic.hint(format!("rename[{} -> {name}](…)", self.dims[same].name));
        }
        self.report(diagnostic)
    }

    /// Binds the names of a parameter's type that nothing else has bound: to the argument's dim of the same name, else by
    /// order among those left, counted from the end behind a `..`. None where there are too few.
    fn bind_dims(&mut self, env: &mut Env, formal: &[TypeDim], actual: &[DimId]) -> Option<()> {
        let binds = env.owner.is_none_or(|owner| self.instances[owner].binds_dims);
        let mut left: Vec<DimId> = actual.to_vec();
        let mut free: Vec<(&str, bool)> = Vec::new();
        let mut rest = false;
        for dim in formal {
            match dim {
                TypeDim::Named(named) => match env.dims.get(&named.name.name) {
                    Some(dim) => left.retain(|other| other != dim),
                    None if binds => free.push((&named.name.name, rest)),
                    None => {}
                },
                TypeDim::Rest(_) => rest = true,
                TypeDim::Error(_) => {}
            }
        }
        free.retain(|(name, _)| {
            let same = left.iter().position(|&dim| self.dims[dim].name == **name);
            if let Some(position) = same {
                env.dims.insert((*name).to_owned(), left.remove(position));
            }
            same.is_none()
        });
        for (name, _) in free.iter().filter(|(_, behind)| !behind) {
            if left.is_empty() {
                return None;
            }
            env.dims.insert((*name).to_owned(), left.remove(0));
        }
        for (name, _) in free.iter().rev().filter(|(_, behind)| *behind) {
            env.dims.insert((*name).to_owned(), left.pop()?);
        }
        if rest && env.rest.is_none() {
            env.rest = Some(left);
        }
        Some(())
    }

    /// The result of a body in its environment, as the function's type has it.
    pub fn function_body(&mut self, env: &mut Env, function: &'p Function) -> Value {
        let value = self.block(env, &function.body);
        let span = function.body.result.span;
        let value = self.result(env, &function.result, value, span);
        if let (true, None, Value::Node(node)) = (env.named, &function.name, &value) {
            let known = env.values.iter().any(|(name, _)| name == "out");
            if !known {
                let target = Target::Node(*node);
                self.bindings.push(Binding { scope: self.scope, name: "out".to_owned(), target });
            }
        }
        value
    }

    fn result(&mut self, env: &Env, ty: &Type, value: Value, span: Span) -> Value {
        match (&ty.kind, value) {
            (_, Value::Error) | (TypeKind::Error, _) => Value::Error,
            (TypeKind::Tuple(types), Value::Tuple(values)) if types.len() == values.len() => Value::Tuple(
                types.iter().zip(values).map(|(ty, value)| self.result(env, ty, value, span)).collect(),
            ),
            (TypeKind::Scalar(_), value @ (Value::Number(_) | Value::Truth(_))) => {
                self.hyper_value(ty, &value, span)
            }
            (TypeKind::Tuple(types), value) => {
                let found = self.value_text(&value);
                let title = format!("expected a tuple of {}, found {found}", types.len());
                self.report(
                    Diagnostic::error(Code::WrongValue, title)
                        .label(span, format!("this is {found}"))
                        .label(ty.span, "the declared result"),
                )
            }
            (TypeKind::Tensor { .. } | TypeKind::Scalar(_), value) => {
                let Some(expected) = self.written_type(env, ty) else { return Value::Error };
                match self.fit(&value, &expected, span, ty.span, "the result") {
                    Some(node) => {
                        self.pin(env, ty, Target::Node(node));
                        Value::Node(node)
                    }
                    None => Value::Error,
                }
            }
        }
    }

    /// The value of a sub-layer at arguments: its entries one after the other.
    pub fn call_layer(&mut self, caller: &Env, layer: &SubLayer, given: &[Given<'_>], span: Span) -> Value {
        let mut given: Vec<Given<'_>> =
            given.iter().map(|it| Given { name: it.name, value: it.value.clone(), span: it.span }).collect();
        let mut value = Value::Error;
        let entries = layer.entries.clone();
        for (index, entry) in entries.iter().enumerate() {
            let Some(entry) = entry else { return Value::Error };
            value = self.call_entry(caller, *entry, &given, span);
            if index + 1 < entries.len() {
                let results = match value {
                    Value::Tuple(ref values) => values.clone(),
                    ref single => vec![single.clone()],
                };
                for (argument, result) in given.iter_mut().zip(results) {
                    argument.value = result;
                }
            }
        }
        value
    }

    fn call_entry(&mut self, caller: &Env, entry: Entry, given: &[Given<'_>], span: Span) -> Value {
        let instance = &self.instances[entry.instance];
        let Some(function) = instance.function(None) else {
            let title = format!("layer `{}` has no function without a name", instance.name);
            let names: Vec<&str> = instance.function_names().collect();
            let mut diagnostic = Diagnostic::error(Code::NotCallable, title)
                .label(span, "called as a function")
                .hint("fn (x: [.., D]) -> [.., D] { … }    // in the layer");
            if !names.is_empty() {
                diagnostic = diagnostic.note(format!("it has {}", names.join(", ")));
            }
            return self.report(diagnostic);
        };
        let callee = Callee { function, file: instance.file, owner: Some(entry.instance), span };
        match entry.repeat {
            None => self.call_function(caller, callee, None, given),
            Some(dim) => self.repeat(caller, callee, dim, given),
        }
    }

    /// A stack of equal layers: its first arguments, as many as it has results, are carried through.
    fn repeat(&mut self, caller: &Env, callee: Callee<'p>, dim: DimId, given: &[Given<'_>]) -> Value {
        let Some(initial) = self.initial_carries(callee, given) else { return Value::Error };
        let outer = self.scope;
        if let Some(owner) = callee.owner {
            self.scope = self.instances[owner].scope;
        }
        self.repeats.push(dim);
        self.open_block();
        let mut inside: Vec<Given<'_>> =
            given.iter().map(|it| Given { name: it.name, value: it.value.clone(), span: it.span }).collect();
        for (index, &node) in initial.iter().enumerate() {
            let ty = self.ty(node).clone();
            let carry = self.push(Operation::Carry(index), Vec::new(), ty, inside[index].span);
            inside[index].value = Value::Node(carry);
        }
        let value = self.call_function(caller, callee, None, &inside);
        let results = self.carried(&value, &initial, callee);
        let mut body = self.close_block();
        self.repeats.pop();
        self.scope = outer;
        let Some(results) = results else { return Value::Error };
        body.results = results;
        let types: Vec<TensorType> = initial.iter().map(|&node| self.ty(node).clone()).collect();
        let Some(first) = types.first().cloned() else { return Value::Error };
        let node = self.push(Operation::Repeat { dim, body }, initial, first, callee.span);
        if types.len() == 1 {
            return Value::Node(node);
        }
        let project =
            |(index, ty)| Value::Node(self.push(Operation::Project(index), vec![node], ty, callee.span));
        Value::Tuple(types.into_iter().enumerate().map(project).collect())
    }

    /// The tensors that a repeated layer is first given: as many as it has results.
    fn initial_carries(&mut self, callee: Callee<'_>, given: &[Given<'_>]) -> Option<Vec<NodeId>> {
        let count = match &callee.function.result.kind {
            TypeKind::Tuple(types) => types.len(),
            TypeKind::Tensor { .. } | TypeKind::Scalar(_) | TypeKind::Error => 1,
        };
        let mut initial: Vec<NodeId> = Vec::new();
        for argument in given.iter().take(count) {
            match argument.value {
                Value::Node(node) => initial.push(node),
                Value::Error => return None,
                Value::Number(_) | Value::Truth(_) | Value::Tuple(_) => {}
            }
        }
        if initial.len() == count {
            return Some(initial);
        }
        self.report(
            Diagnostic::error(Code::RepeatType, "a repeated layer takes what it gives back")
                .label(callee.span, format!("needs {count} tensors to carry from layer to layer"))
                .label(callee.function.result.span, "the layer's result"),
        );
        None
    }

    /// The results of a repeated layer, where they have the types that it started from.
    fn carried(&mut self, value: &Value, initial: &[NodeId], callee: Callee<'_>) -> Option<Vec<NodeId>> {
        let values = match value {
            Value::Tuple(values) => &values[..],
            Value::Node(_) | Value::Number(_) | Value::Truth(_) | Value::Error => std::slice::from_ref(value),
        };
        let mut results = Vec::new();
        for (value, &start) in values.iter().zip(initial) {
            let Value::Node(node) = value else { return None };
            let (result, start) = (self.ty(*node).clone(), self.ty(start).clone());
            if result.element != start.element || !same_dims(&result.dims, &start.dims) {
                let (found, wanted) = (self.type_text(&result), self.type_text(&start));
                self.report(
                    Diagnostic::error(Code::RepeatType, format!("a layer that takes {wanted} gives {found}"))
                        .label(callee.span, "repeated here")
                        .label(callee.function.result.span, format!("this is {found}"))
                        .why("each layer of a stack takes what the one before it gives"),
                );
                return None;
            }
            results.push(*node);
        }
        (results.len() == initial.len()).then_some(results)
    }

    /// Calls every function of an instance on stand-ins, to check it by itself.
    pub fn call_on_stand_ins(&mut self, callee: Callee<'p>, formals: IndexMap<String, DimId>) {
        let mut env = match callee.owner {
            Some(owner) => self.env_of(owner),
            None => Env::new(callee.file),
        };
        env.dims.extend(formals);
        let what = match (&callee.function.name, callee.owner) {
            (Some(name), _) => format!("function `{}`", name.name),
            (None, Some(owner)) => format!("layer `{}`", self.instances[owner].name),
            (None, None) => "function".to_owned(),
        };
        if self.begin(what, callee.span, &IndexMap::new(), callee.function.span).is_none() {
            return;
        }
        if let Some(owner) = callee.owner {
            self.scope = self.instances[owner].scope;
        }
        for parameter in &callee.function.parameters {
            let value = self.stand_in(&mut env, parameter);
            self.declare(&mut env, &parameter.name, value);
        }
        self.function_body(&mut env, callee.function);
        self.end();
    }

    fn stand_in(&mut self, env: &mut Env, parameter: &'p Parameter) -> Value {
        let TypeKind::Tensor { dims, .. } = &parameter.ty.kind else {
            return match (&parameter.default, &parameter.ty.kind) {
                (Some(default), _) => {
                    let value = self.expression(env, default);
                    self.hyper_value(&parameter.ty, &value, default.span)
                }
                (None, TypeKind::Scalar(name)) if name.name == "bool" => Value::Truth(true),
                (None, _) => self.stand_in_hyper(&parameter.ty),
            };
        };
        let binds = env.owner.is_none_or(|owner| self.instances[owner].binds_dims);
        for dim in dims {
            match dim {
                TypeDim::Named(named) if binds && !env.dims.contains_key(&named.name.name) => {
                    let dim =
                        self.new_dim(&named.name.name, super::dims::STAND_IN, true, Vec::new(), named.span);
                    env.dims.insert(named.name.name.clone(), dim);
                }
                TypeDim::Rest(span) if env.rest.is_none() => {
                    let dim = self.new_dim("..", super::dims::STAND_IN, true, Vec::new(), *span);
                    env.rest = Some(vec![dim]);
                }
                TypeDim::Named(_) | TypeDim::Rest(_) | TypeDim::Error(_) => {}
            }
        }
        match self.written_type(env, &parameter.ty) {
            Some(ty) => Value::Node(self.push(Operation::Input(0), Vec::new(), ty, parameter.span)),
            None => Value::Error,
        }
    }
}

/// A type as the source has it, without placements, its dims under the names given.
fn written_text(ty: &Type, rename: &dyn Fn(&str) -> String) -> String {
    match &ty.kind {
        TypeKind::Tensor { dtype, dims } => {
            let names = dims.iter().map(|dim| match dim {
                TypeDim::Named(named) => rename(&named.name.name),
                TypeDim::Rest(_) => "..".to_owned(),
                TypeDim::Error(_) => "?".to_owned(),
            });
            let dtype = dtype.as_ref().map_or("", |name| &name.name);
            format!("{dtype}[{}]", names.collect::<Vec<_>>().join(", "))
        }
        TypeKind::Scalar(name) => name.name.clone(),
        TypeKind::Tuple(types) => {
            format!("({})", types.iter().map(|ty| written_text(ty, rename)).collect::<Vec<_>>().join(", "))
        }
        TypeKind::Error => "?".to_owned(),
    }
}
