//! Expressions: names, literals, operators, `if`, blocks. Whatever is known at compile time is folded.
//!
//! From the syntax tree to [`Value`]s, with nodes added to the present block.

use super::builtin;
use super::call::Callee;
use super::context::{Elaborator, Purpose};
use super::instance::Given;
use super::value::{Env, Number, Value};
use crate::ast::{
    Argument, BinaryOperator, Block, DimArguments, Expr, ExprKind, Ident, Item, Pattern, Require, Statement,
    UnaryOperator, walk,
};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::Target;
use crate::source::Span;

impl<'p> Elaborator<'p> {
    /// The value of an expression; an error is reported once and then silent.
    pub fn expression(&mut self, env: &Env, expr: &'p Expr) -> Value {
        if self.enter(expr.span).is_none() {
            return Value::Error;
        }
        let value = self.any_expression(env, expr);
        self.leave();
        value
    }

    fn any_expression(&mut self, env: &Env, expr: &'p Expr) -> Value {
        match &expr.kind {
            ExprKind::Integer(value) => Value::Number(Number::Int(i128::from(*value))),
            ExprKind::Float(value) => Value::Number(Number::Float(*value)),
            ExprKind::Bool(value) => Value::Truth(*value),
            ExprKind::String(_) => self.report(
                Diagnostic::error(Code::WrongValue, "text is no value here").label(expr.span, "text"),
            ),
            ExprKind::Name(name) => self.name(env, name),
            ExprKind::Field { base, field } => self.field(env, base, field),
            ExprKind::Apply { callee, dims, arguments } => {
                self.apply(env, callee, dims.as_ref(), arguments.as_deref(), expr.span)
            }
            ExprKind::Unary { operator, operand } => {
                let value = self.expression(env, operand);
                match operator {
                    UnaryOperator::Negate => self.negate(value, expr.span),
                    UnaryOperator::Not => self.not(value, expr.span),
                }
            }
            ExprKind::Binary { operator, left, right, .. } => {
                let l = self.expression(env, left);
                let r = self.expression(env, right);
                self.binary(*operator, (l, left.span), (r, right.span), expr.span)
            }
            ExprKind::Tuple(values) => {
                Value::Tuple(values.iter().map(|it| self.expression(env, it)).collect())
            }
            ExprKind::If { branches, otherwise } => {
                for (condition, block) in branches {
                    match self.condition(env, condition) {
                        Some(true) => return self.block(&mut env.clone(), block),
                        Some(false) => {}
                        None => return Value::Error,
                    }
                }
                self.block(&mut env.clone(), otherwise)
            }
            ExprKind::Block(block) => self.block(&mut env.clone(), block),
            ExprKind::Error => Value::Error,
        }
    }

    /// The condition of an `if`, known at compile time; none is reported.
    pub fn condition(&mut self, env: &Env, condition: &'p Expr) -> Option<bool> {
        self.known_condition(env, condition, |diagnostic| {
            diagnostic
                .why("`if` chooses what is compiled; values are chosen with `select`")
                .hint("select(condition, a, b)")
        })
    }

    /// The value of a condition, of which what its left side decides is not computed: it may divide by zero.
    fn decided(&mut self, env: &Env, condition: &'p Expr) -> Value {
        let ExprKind::Binary {
            operator: operator @ (BinaryOperator::And | BinaryOperator::Or),
            left,
            right,
            ..
        } = &condition.kind
        else {
            return self.expression(env, condition);
        };
        if self.enter(condition.span).is_none() {
            return Value::Error;
        }
        let left = self.decided(env, left);
        let value = match (operator, &left) {
            (BinaryOperator::And, Value::Truth(true)) | (BinaryOperator::Or, Value::Truth(false)) => {
                self.decided(env, right)
            }
            (_, Value::Truth(_) | Value::Error) => left,
            (_, Value::Number(_) | Value::Tuple(_) | Value::Node(_)) => self.expression(env, condition),
        };
        self.leave();
        value
    }

    fn known_condition(
        &mut self,
        env: &Env,
        condition: &'p Expr,
        explain: impl Fn(Diagnostic) -> Diagnostic,
    ) -> Option<bool> {
        let value = self.decided(env, condition);
        match value {
            Value::Truth(truth) => Some(truth),
            Value::Error => None,
            Value::Node(_) => {
                let title = "this condition is only known when the model runs";
                let found = format!("this is {}", self.value_text(&value));
                self.report(explain(
                    Diagnostic::error(Code::NotCompileTime, title).label(condition.span, found),
                ));
                None
            }
            Value::Number(_) | Value::Tuple(_) => {
                self.report(
                    Diagnostic::error(Code::WrongValue, "a condition is `true` or `false`")
                        .label(condition.span, format!("this is {}", self.value_text(&value))),
                );
                None
            }
        }
    }

    /// The value of a block; its `let`s are added to the environment.
    pub fn block(&mut self, env: &mut Env, block: &'p Block) -> Value {
        for statement in &block.statements {
            match statement {
                Statement::Let(statement) => {
                    let value = self.expression(env, &statement.value);
                    let value = match &statement.ty {
                        Some(ty) => match self.written_type(env, ty) {
                            Some(expected) => {
                                let what = format!("`{}`", pattern_text(&statement.pattern));
                                match self.fit(&value, &expected, statement.value.span, ty.span, &what) {
                                    Some(node) => {
                                        self.pin(env, ty, Target::Node(node));
                                        Value::Node(node)
                                    }
                                    None => Value::Error,
                                }
                            }
                            None => Value::Error,
                        },
                        None => value,
                    };
                    self.bind_pattern(env, &statement.pattern, value, statement.value.span);
                }
                Statement::Require(statement) => self.requirement(env, statement),
                Statement::Dims(dims) => {
                    for declared in &dims.dims {
                        self.dim_statement(env, declared);
                    }
                }
                Statement::Error(_) => {}
            }
        }
        self.expression(env, &block.result)
    }

    /// Reports a condition that does not hold, where the item is used that states it.
    fn requirement(&mut self, env: &Env, statement: &'p Require) {
        let condition = &statement.condition;
        let holds = self.known_condition(env, condition, |diagnostic| {
            diagnostic.why("`require` is about numbers that are known before the model runs")
        });
        // What stands in for a number that nobody has chosen may be any.
        if holds != Some(false) || self.purpose == Purpose::Generic {
            return;
        }
        let mut names: Vec<(&str, &'p Expr)> = Vec::new();
        walk::expression(condition, &mut |part| {
            if let ExprKind::Name(name) = &part.kind
                && names.iter().all(|(known, _)| *known != name.name)
            {
                names.push((&name.name, part));
            }
        });
        let values: Vec<String> = names
            .into_iter()
            .map(|(name, part)| {
                let value = self.expression(env, part);
                format!("{name} is {}", self.value_text(&value).trim_start_matches("the number "))
            })
            .collect();
        let mut found = "does not hold".to_owned();
        if !values.is_empty() {
            found = format!("{found}: {}", values.join(", "));
        }
        let title = |what: &str| format!("{what} can't be used with these numbers");
        let diagnostic = match self.frames.last() {
            Some(frame) => Diagnostic::error(Code::Unmet, title(&frame.what)).label(frame.span, "used here"),
            None => Diagnostic::error(Code::Unmet, title("the model")),
        };
        self.report(diagnostic.label(condition.span, found));
    }

    fn dim_statement(&mut self, env: &mut Env, declared: &'p crate::ast::DimDeclaration) {
        let name = &declared.name.name;
        let Some(value) = &declared.value else {
            self.report(
                Diagnostic::error(Code::InvalidSize, format!("`{name}` has no size"))
                    .label(declared.span, "only a model may leave a dimension open")
                    .hint(format!("dims {name} = …")),
            );
            return;
        };
        if env.dims.contains_key(name) {
            let title = format!("dimension `{name}` is declared twice");
            self.report(Diagnostic::error(Code::DuplicateName, title).label(declared.span, "declared again"));
            return;
        }
        if let Some(dim) = self.local_dim(env, name, declared.span, value) {
            env.dims.insert(name.clone(), dim);
        }
    }

    fn bind_pattern(&mut self, env: &mut Env, pattern: &'p Pattern, value: Value, span: Span) {
        match (pattern, value) {
            (Pattern::Name(name), value) => self.declare(env, name, value),
            (Pattern::Tuple(_, names), Value::Tuple(values)) if values.len() == names.len() => {
                for (name, value) in names.iter().zip(values) {
                    self.declare(env, name, value);
                }
            }
            (Pattern::Tuple(place, names), value) => {
                if value != Value::Error {
                    let found = self.value_text(&value);
                    let title = format!("expected a tuple of {}, found {found}", names.len());
                    self.report(
                        Diagnostic::error(Code::WrongValue, title)
                            .label(span, format!("this is {found}"))
                            .label(*place, format!("{} names", names.len())),
                    );
                }
                for name in names {
                    self.declare(env, name, Value::Error);
                }
            }
        }
    }

    /// What a name stands for: the nearest of `let`s and parameters, members, and dimensions.
    fn name(&mut self, env: &Env, name: &Ident) -> Value {
        if let Some(value) = env.value(&name.name) {
            return value.clone();
        }
        if let Some(owner) = env.owner {
            let instance = &self.instances[owner];
            if let Some(value) = instance.hypers.get(&name.name) {
                return value.clone();
            }
            if let Some(param) = instance.params.get(&name.name) {
                return param.map_or(Value::Error, |param| Value::Node(self.param_node(param, name.span)));
            }
            if instance.layers.contains_key(&name.name) || instance.function(Some(&name.name)).is_some() {
                return self.uncalled(name);
            }
        }
        if let Some(&dim) = env.dims.get(&name.name) {
            return Value::Number(Number::Int(i128::from(self.dims[dim].size)));
        }
        if self.program.lookup(env.file, &name.name).is_some() || builtin::is_builtin(&name.name) {
            return self.uncalled(name);
        }
        let near = self.names_in(env);
        let near: Vec<&str> = near.iter().map(String::as_str).collect();
        self.unknown(name, "value", env.file, &near)
    }

    /// Whether a name is a variable or hyper-parameter here.
    pub fn is_value(&self, env: &Env, name: &str) -> bool {
        let owner = env.owner.map(|owner| &self.instances[owner]);
        env.value(name).is_some() || owner.is_some_and(|owner| owner.hypers.contains_key(name))
    }

    fn uncalled(&mut self, name: &Ident) -> Value {
        self.report(
            Diagnostic::error(Code::WrongValue, format!("`{}` is no value", name.name))
                .label(name.span, "must be called")
                .hint(format!("{}(…)", name.name)),
        )
    }

    /// Names that an expression may use, for suggestions.
    fn names_in(&self, env: &Env) -> Vec<String> {
        let mut names: Vec<String> = env.values.iter().map(|(name, _)| name.clone()).collect();
        if let Some(owner) = env.owner {
            let instance = &self.instances[owner];
            names.extend(
                instance.hypers.keys().chain(instance.params.keys()).chain(instance.layers.keys()).cloned(),
            );
            names.extend(instance.function_names().map(str::to_owned));
        }
        names.extend(env.dims.keys().cloned());
        names.extend(builtin::NAMES.iter().map(|name| (*name).to_owned()));
        names
    }

    /// `embed.weight`: a parameter of a sub-layer.
    fn field(&mut self, env: &Env, base: &'p Expr, field: &Ident) -> Value {
        let Some(instance) = self.layer_of(env, base) else { return Value::Error };
        match self.instances[instance].params.get(&field.name) {
            Some(Some(param)) => {
                let param = *param;
                Value::Node(self.param_node(param, field.span))
            }
            Some(None) => Value::Error,
            None => self.no_field(instance, field),
        }
    }

    fn no_field(&mut self, instance: usize, field: &Ident) -> Value {
        let instance = &self.instances[instance];
        let names: Vec<&str> =
            instance.params.keys().map(String::as_str).chain(instance.function_names()).collect();
        let title = format!("layer `{}` has no `{}`", instance.name, field.name);
        let mut diagnostic = Diagnostic::error(Code::UnknownField, title).label(field.span, "not found");
        if let Some(near) = crate::suggest::did_you_mean(&field.name, names.iter().copied()) {
            diagnostic = diagnostic.hint_edit(near.to_owned(), field.span, near);
        }
        diagnostic = diagnostic.note(format!("it has {}", names.join(", ")));
        self.report(diagnostic)
    }

    /// The instance that an expression names: `attn`, `block.attn`.
    fn layer_of(&mut self, env: &Env, base: &'p Expr) -> Option<usize> {
        let (owner, name) = match &base.kind {
            ExprKind::Name(name) => (env.owner, Some(name)),
            ExprKind::Field { base, field } => (Some(self.layer_of(env, base)?), Some(field)),
            _ => (None, None),
        };
        let layer =
            owner.zip(name).and_then(|(owner, name)| self.instances[owner].layers.get(&name.name)).cloned();
        let Some(layer) = layer else {
            self.report(
                Diagnostic::error(Code::UnknownField, "only a sub-layer has fields")
                    .label(base.span, "is no sub-layer")
                    .why("`embed.weight` is the parameter `weight` of the sub-layer `embed`"),
            );
            return None;
        };
        match &layer.entries[..] {
            [Some(entry)] if entry.repeat.is_none() => Some(entry.instance),
            [None] => None,
            _ => {
                self.report(
                    Diagnostic::error(Code::UnknownField, "a stack has no fields")
                        .label(base.span, "is a stack of layers")
                        .why(
                            "each layer of a stack has its own; only a single sub-layer can be reached into",
                        ),
                );
                None
            }
        }
    }

    fn apply(
        &mut self,
        env: &Env,
        callee: &'p Expr,
        dims: Option<&'p DimArguments>,
        arguments: Option<&'p [Argument]>,
        span: Span,
    ) -> Value {
        let (owner, name) = match &callee.kind {
            ExprKind::Name(name) => (env.owner, name),
            ExprKind::Field { base, field } => match self.layer_of(env, base) {
                Some(instance) => (Some(instance), field),
                None => return Value::Error,
            },
            ExprKind::Error => return Value::Error,
            _ => {
                return self.report(
                    Diagnostic::error(Code::NotCallable, "this can't be called")
                        .label(callee.span, "neither a layer nor a function"),
                );
            }
        };
        let of_layer = matches!(callee.kind, ExprKind::Field { .. });
        if !of_layer && env.value(&name.name).is_some() {
            return self.not_callable(name);
        }
        if let Some(owner) = owner {
            let instance = &self.instances[owner];
            if let Some(function) = instance.function(Some(&name.name)) {
                let callee = Callee { function, file: instance.file, owner: Some(owner), span };
                let given = self.arguments(env, arguments);
                return self.call_function(env, callee, dims, &given);
            }
            if let Some(layer) = instance.layers.get(&name.name).cloned() {
                if let Some(dims) = dims {
                    let title = format!("`{}` has its dimensions already", name.name);
                    let diagnostic = Diagnostic::error(Code::WrongDims, title);
                    return self.report(diagnostic.label(dims.span, "given where it is declared"));
                }
                let given = self.arguments(env, arguments);
                return self.call_layer(env, &layer, &given, span);
            }
            if of_layer {
                return self.no_field(owner, name);
            }
            if instance.hypers.contains_key(&name.name) || instance.params.contains_key(&name.name) {
                return self.not_callable(name);
            }
        }
        self.apply_item(env, name, dims, arguments, span)
    }

    fn apply_item(
        &mut self,
        env: &Env,
        name: &'p Ident,
        dims: Option<&'p DimArguments>,
        arguments: Option<&'p [Argument]>,
        span: Span,
    ) -> Value {
        match self.program.lookup(env.file, &name.name) {
            Some((file, Item::Function(function))) => {
                let callee = Callee { function, file, owner: None, span };
                let given = self.arguments(env, arguments);
                self.call_function(env, callee, dims, &given)
            }
            Some((_, Item::Layer(layer))) => {
                let title = format!("layer `{}` is not used as a function", layer.name.name);
                self.report(
                    Diagnostic::error(Code::NotCallable, title)
                        .label(name.span, "a layer has parameters, so it needs a name of its own")
                        .hint(format!("part = {}[…]    // as a member, then part(x)", layer.name.name)),
                )
            }
            Some(_) => self.not_callable(name),
            None if builtin::is_builtin(&name.name) => self.builtin(env, name, dims, arguments, span),
            None => {
                let near = self.names_in(env);
                let near: Vec<&str> = near.iter().map(String::as_str).collect();
                self.unknown(name, "function", env.file, &near)
            }
        }
    }

    /// The values of arguments.
    pub fn arguments(&mut self, env: &Env, arguments: Option<&'p [Argument]>) -> Vec<Given<'p>> {
        let arguments = arguments.unwrap_or(&[]).iter();
        arguments
            .map(|it| Given { name: it.name.as_ref(), value: self.expression(env, &it.value), span: it.span })
            .collect()
    }

    fn not_callable(&mut self, name: &Ident) -> Value {
        self.report(
            Diagnostic::error(Code::NotCallable, format!("`{}` can't be called", name.name))
                .label(name.span, "neither a layer nor a function"),
        )
    }
}

fn pattern_text(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Name(name) => name.name.clone(),
        Pattern::Tuple(_, names) => names.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", "),
    }
}
