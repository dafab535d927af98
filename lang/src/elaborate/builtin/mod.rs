//! The built-in operations: which there are, and how their arguments in brackets and parentheses are read.
//!
//! An operation is built in only if the language can't express it or a fused kernel needs to see it whole.

mod contract;
mod reduce;
mod structure;

use super::context::Elaborator;
use super::operator::Placed;
use super::types::element_of;
use super::value::{Env, Value};
use crate::ast::{Argument, DimArgument, DimArguments, Ident};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Elementwise, NodeId};
use crate::source::Span;
use crate::suggest::did_you_mean;

/// Names of built-in operations.
pub(super) const NAMES: &[&str] = &[
    "dot",
    "sum",
    "max",
    "mean",
    "min",
    "pow",
    "select",
    "iota",
    "take",
    "slice",
    "concat",
    "stack",
    "split",
    "merge",
    "rename",
    "stop_gradient",
    "random",
    "attention",
    "abs",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "erf",
    "sin",
    "cos",
    "floor",
    "float",
    "f32",
    "bf16",
    "f16",
    "i32",
    "u32",
    "bool",
];

/// Whether a name is a built-in operation.
pub(super) fn is_builtin(name: &str) -> bool {
    NAMES.contains(&name)
}

/// A function of one float.
fn unary(name: &str) -> Option<Elementwise> {
    Some(match name {
        "abs" => Elementwise::Abs,
        "exp" => Elementwise::Exp,
        "log" => Elementwise::Log,
        "sqrt" => Elementwise::Sqrt,
        "rsqrt" => Elementwise::Rsqrt,
        "tanh" => Elementwise::Tanh,
        "sigmoid" => Elementwise::Sigmoid,
        "erf" => Elementwise::Erf,
        "sin" => Elementwise::Sin,
        "cos" => Elementwise::Cos,
        "floor" => Elementwise::Floor,
        _ => return None,
    })
}

/// A call of a built-in operation.
pub(super) struct Call<'a, 'p> {
    /// Where names are looked up.
    pub env: &'a Env,
    /// The operation's name.
    pub name: &'p Ident,
    /// What stands in brackets.
    pub dims: Option<&'p DimArguments>,
    /// Arguments without a name.
    pub positional: Vec<Placed>,
    /// Arguments with one; not evaluated yet.
    pub named: Vec<&'p Argument>,
    /// The call.
    pub span: Span,
}

impl<'p> Elaborator<'p> {
    /// The value of a built-in operation.
    pub fn builtin(
        &mut self,
        env: &Env,
        name: &'p Ident,
        dims: Option<&'p DimArguments>,
        arguments: Option<&'p [Argument]>,
        span: Span,
    ) -> Value {
        let arguments = arguments.unwrap_or(&[]);
        let positional: Vec<Placed> = arguments
            .iter()
            .filter(|it| it.name.is_none())
            .map(|it| (self.expression(env, &it.value), it.span))
            .collect();
        let named = arguments.iter().filter(|it| it.name.is_some()).collect();
        if positional.iter().any(|(value, _)| *value == Value::Error) {
            return Value::Error;
        }
        let call = Call { env, name, dims, positional, named, span };
        self.dispatch(&call)
    }

    fn dispatch(&mut self, call: &Call<'_, 'p>) -> Value {
        let name = call.name.name.as_str();
        let (takes, named) = signature(name);
        if self.check_arguments(call, takes, named).is_none() {
            return Value::Error;
        }
        if let Some(function) = unary(name) {
            return self.unary_function(function, name, &call.positional[0], call.span);
        }
        if let Some(element) = element_of(name) {
            return self.cast(element, &call.positional[0], call.span);
        }
        let args = &call.positional;
        let value = match name {
            "pow" => Some(self.binary_function(Elementwise::Pow, name, &args[0], &args[1], call.span)),
            "min" => Some(self.binary_function(Elementwise::Min, name, &args[0], &args[1], call.span)),
            "max" if args.len() == 2 => {
                Some(self.binary_function(Elementwise::Max, name, &args[0], &args[1], call.span))
            }
            "select" => Some(self.select(&args[0], &args[1], &args[2], call.span)),
            "sum" | "max" | "mean" => self.reduction(call),
            "dot" => self.dot(call),
            "take" => self.take(call),
            "attention" => self.attention(call),
            "iota" => self.iota(call),
            "random" => self.random(call),
            "slice" => self.slice(call),
            "concat" => self.concat(call),
            "stack" => self.stack(call),
            "split" => self.split(call),
            "merge" => self.merge(call),
            "rename" => self.rename(call),
            "stop_gradient" => self.stop_gradient(call),
            _ => Some(
                self.report(
                    Diagnostic::error(Code::Fault, format!("bug in dtlc: `{name}` is listed but not built"))
                        .label(call.span, "here"),
                ),
            ),
        };
        value.unwrap_or(Value::Error)
    }

    /// Checks the number of arguments (any, where `takes` is empty) and the names of named ones.
    fn check_arguments(&mut self, call: &Call<'_, 'p>, takes: &[usize], named: &[&str]) -> Option<()> {
        for argument in &call.named {
            let Some(name) = argument.name.as_ref().filter(|name| !named.contains(&name.name.as_str()))
            else {
                continue;
            };
            let title = format!("`{}` takes no `{}`", call.name.name, name.name);
            let mut diagnostic = Diagnostic::error(Code::WrongArguments, title).label(name.span, "unknown");
            if let Some(near) = did_you_mean(&name.name, named.iter().copied()) {
                diagnostic = diagnostic.hint_edit(near, name.span, near);
            }
            if !named.is_empty() {
                diagnostic = diagnostic.note(format!("named arguments: {}", named.join(", ")));
            }
            self.report(diagnostic);
            return None;
        }
        let count = call.positional.len();
        if takes.is_empty() || takes.contains(&count) {
            return Some(());
        }
        let wanted = takes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        let noun = if takes == [1] { "argument" } else { "arguments" };
        self.report(
            Diagnostic::error(Code::WrongArguments, format!("`{}` takes {wanted} {noun}", call.name.name))
                .label(call.span, format!("has {count}"))
                .hint(usage(&call.name.name)),
        );
        None
    }

    /// The dims in brackets, without an arrow.
    pub(super) fn plain_dims(&mut self, call: &Call<'_, 'p>) -> Option<Vec<DimId>> {
        match call.dims {
            Some(DimArguments { from, to: None, .. }) => self.named_dims(call, from),
            Some(_) | None => self.wrong_dims(call),
        }
    }

    /// The dims before and behind the arrow.
    pub(super) fn arrow_dims(&mut self, call: &Call<'_, 'p>) -> Option<(Vec<DimId>, Vec<DimId>)> {
        match call.dims {
            Some(DimArguments { from, to: Some(to), .. }) => {
                Some((self.named_dims(call, from)?, self.named_dims(call, to)?))
            }
            Some(_) | None => self.wrong_dims(call),
        }
    }

    pub(super) fn wrong_dims<T>(&mut self, call: &Call<'_, 'p>) -> Option<T> {
        let place = call.dims.map_or(call.name.span, |dims| dims.span);
        self.report(
            Diagnostic::error(Code::WrongDims, format!("`{}` takes other dimensions", call.name.name))
                .label(place, "not what it takes")
                .hint(usage(&call.name.name)),
        );
        None
    }

    fn named_dims(&mut self, call: &Call<'_, 'p>, dims: &'p [DimArgument]) -> Option<Vec<DimId>> {
        let mut resolved = Vec::new();
        for dim in dims {
            let name = match dim {
                DimArgument::Name(name) => Some(name),
                DimArgument::Value(value) => value.as_name(),
                DimArgument::Bind { .. } | DimArgument::Rest(_) => None,
            };
            match name {
                Some(name) => resolved.push(self.dim(call.env, name)?),
                None => {
                    if let (DimArgument::Rest(_), Some(rest)) = (dim, &call.env.rest) {
                        resolved.extend(rest);
                        continue;
                    }
                    self.report(
                        Diagnostic::error(Code::WrongDims, "expected the name of a dimension")
                            .label(dim.span(), "not a name")
                            .hint(usage(&call.name.name)),
                    );
                    return None;
                }
            }
        }
        Some(resolved)
    }

    /// An argument as a node.
    pub(super) fn tensor_argument(&mut self, call: &Call<'_, 'p>, index: usize) -> Option<NodeId> {
        let (value, span) = call.positional.get(index)?;
        match value {
            Value::Node(node) => Some(*node),
            Value::Error => None,
            Value::Number(_) | Value::Truth(_) | Value::Tuple(_) => {
                let found = self.value_text(value);
                self.report(
                    Diagnostic::error(
                        Code::WrongValue,
                        format!("`{}` takes a tensor, not {found}", call.name.name),
                    )
                    .label(*span, format!("this is {found}")),
                );
                None
            }
        }
    }

    /// Checks that a node has a dim.
    pub(super) fn has_dim(
        &mut self,
        call: &Call<'_, 'p>,
        index: usize,
        node: NodeId,
        dim: DimId,
    ) -> Option<()> {
        if self.ty(node).dims.contains(&dim) {
            return Some(());
        }
        let span = call.positional.get(index).map_or(call.span, |(_, span)| *span);
        let ty = self.ty(node).clone();
        let found = self.type_text(&ty);
        let name = self.dims[dim].name.clone();
        let mut diagnostic =
            Diagnostic::error(Code::MissingDim, format!("{found} has no dimension `{name}`"))
                .label(span, format!("this is {found}"))
                .label(
                    call.dims.map_or(call.span, |dims| dims.span),
                    format!("`{}` acts on `{name}`", call.name.name),
                );
        let within = ty.dims.iter().find(|&&other| self.dims[other].factors.contains(&dim));
        if let Some(&whole) = within {
            let factors = self.dim_list(&self.dims[whole].factors.clone());
            diagnostic = diagnostic
                .why(format!("{} is one dimension there", self.factor_text(whole)))
                .hint(format!("split[{} -> {factors}](…)", self.dims[whole].name));
        } else {
            diagnostic = diagnostic.label(self.dims[dim].span, format!("`{name}` is declared here"));
        }
        self.report(diagnostic);
        None
    }
}

/// How many arguments without a name an operation takes (any number where it is empty), and the names of others.
fn signature(name: &str) -> (&'static [usize], &'static [&'static str]) {
    match name {
        "iota" | "random" => (&[0], &[]),
        "sum" => (&[1], &[]),
        "mean" => (&[1], &["over"]),
        "max" => (&[1, 2], &[]),
        "slice" => (&[1], &["start"]),
        "attention" => (&[3], &["mask", "window", "softcap", "scale", "documents"]),
        "dot" | "take" | "min" | "pow" => (&[2], &[]),
        "select" => (&[3], &[]),
        "concat" | "stack" => (&[], &[]),
        _ => (&[1], &[]),
    }
}

/// How an operation is written.
fn usage(name: &str) -> &'static str {
    match name {
        "dot" => "dot[D](x, w)",
        "sum" => "sum[D](x)",
        "max" => "max[D](x) or max(a, b)",
        "mean" => "mean[D](x) or mean(x, over = condition)",
        "min" => "min(a, b)",
        "pow" => "pow(a, b)",
        "select" => "select(condition, a, b)",
        "iota" => "iota[S]",
        "take" => "take[V](table, indices)",
        "slice" => "slice[K -> J](x, start = 0) or slice[R = 0](x)",
        "concat" => "concat[J -> K](a, b)",
        "stack" => "stack[R](a, b)",
        "split" => "split[K -> R, J](x)",
        "merge" => "merge[R, J -> K](x)",
        "rename" => "rename[S -> T](x)",
        "random" => "random[B, S]",
        "attention" => "attention[S, K](q, k, v, mask = causal)",
        _ => "exp(x)",
    }
}
