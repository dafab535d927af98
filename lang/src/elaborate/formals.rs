//! Formal dims of layers and functions, `[D, H]` or `[I -> O]`, bound to what stands in brackets where they are used.

use super::context::Elaborator;
use super::value::Env;
use crate::ast::{DimArgument, DimArguments, DimParameters, Ident};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::DimId;
use crate::source::Span;
use indexmap::IndexMap;

impl Elaborator<'_> {
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
