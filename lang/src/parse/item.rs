//! From parsed pairs to tree nodes: imports, heads, and members of layers, models and optimizers.
//!
//! The grammar has said that a pair is well formed; what remains to refuse here are numbers where names belong.

use pest::iterators::Pair;

use super::grammar::Rule;
use super::message;
use super::pieces::Pieces;
use crate::ast::{
    DimDeclaration, DimParameters, Dims, Docs, Expr, Ident, LayerUse, Param, ParamKind, Parameter, State,
    StringLiteral, SubLayer, Type, Use, UseName, UseNames,
};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::suggest::did_you_mean;

/// What a layer's, model's or optimizer's head says.
type Head = (Ident, Option<DimParameters>, Vec<Parameter>);

impl Pieces<'_> {
    pub(super) fn ident(&self, pair: &Pair<'_, Rule>) -> Ident {
        Ident { span: self.span(pair), name: pair.as_str().to_owned() }
    }

    /// All names directly inside a pair.
    pub(super) fn idents(&self, pair: Pair<'_, Rule>) -> Vec<Ident> {
        pair.into_inner()
            .filter(|child| matches!(child.as_rule(), Rule::ident | Rule::word))
            .map(|child| self.ident(&child))
            .collect()
    }

    /// The first of some names. The grammar makes sure that there is one.
    pub(super) fn first_ident(&self, idents: Vec<Ident>, pair: &Pair<'_, Rule>) -> Ident {
        idents.into_iter().next().unwrap_or_else(|| {
            self.report(message::fault(self.span(pair)));
            Ident { span: self.span(pair), name: String::new() }
        })
    }

    pub(super) fn name_of(&self, pair: &Pair<'_, Rule>) -> Ident {
        self.first_ident(self.idents(pair.clone()), pair)
    }

    pub(super) fn use_item(&self, pair: Pair<'_, Rule>, docs: Docs) -> Use {
        let span = self.span(&pair);
        let mut path = Vec::new();
        let mut names = UseNames::Last { alias: None };
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::use_path => path = self.idents(child),
                Rule::use_alias => {
                    names = UseNames::Last { alias: Some(self.name_of(&child)) };
                }
                Rule::use_group => {
                    names = UseNames::Group(
                        child
                            .into_inner()
                            .filter(|name| name.as_rule() == Rule::use_name)
                            .map(|name| self.use_name(name))
                            .collect(),
                    );
                }
                _ => {}
            }
        }
        Use { span, docs, path, names }
    }

    fn use_name(&self, pair: Pair<'_, Rule>) -> UseName {
        let alias = pair
            .clone()
            .into_inner()
            .find(|child| child.as_rule() == Rule::use_alias)
            .map(|child| self.name_of(&child));
        UseName { span: self.span(&pair), name: self.name_of(&pair), alias }
    }

    pub(super) fn head(&self, pair: Pair<'_, Rule>) -> Head {
        let name = self.name_of(&pair);
        let mut dims = None;
        let mut hypers = Vec::new();
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::dim_parameters => dims = Some(self.dim_parameters(child)),
                Rule::parameters => hypers = self.parameters(child),
                _ => {}
            }
        }
        (name, dims, hypers)
    }

    pub(super) fn function_head(
        &self,
        pair: Pair<'_, Rule>,
    ) -> (Option<Ident>, Option<DimParameters>, Vec<Parameter>, Type) {
        let span = self.span(&pair);
        let mut name = None;
        let mut dims = None;
        let mut parameters = Vec::new();
        let mut result = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::ident => name = Some(self.ident(&child)),
                Rule::dim_parameters => dims = Some(self.dim_parameters(child)),
                Rule::parameters => parameters = self.parameters(child),
                Rule::ty => result = Some(self.ty(child)),
                _ => {}
            }
        }
        let result = result.unwrap_or_else(|| self.fault_type(span));
        (name, dims, parameters, result)
    }

    fn dim_parameters(&self, pair: Pair<'_, Rule>) -> DimParameters {
        let span = self.span(&pair);
        let mut lists = pair.into_inner().filter(|child| child.as_rule() == Rule::dim_names).map(|list| {
            for number in list.clone().into_inner().filter(|child| child.as_rule() == Rule::number) {
                self.report(message::size_in_declaration(self.span(&number), number.as_str()));
            }
            self.idents(list)
        });
        DimParameters { span, from: lists.next().unwrap_or_default(), to: lists.next() }
    }

    fn parameters(&self, pair: Pair<'_, Rule>) -> Vec<Parameter> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::parameter)
            .map(|child| self.parameter(child))
            .collect()
    }

    fn parameter(&self, pair: Pair<'_, Rule>) -> Parameter {
        let span = self.span(&pair);
        let name = self.name_of(&pair);
        let mut ty = None;
        let mut default = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::ty => ty = Some(self.ty(child)),
                Rule::default => default = Some(self.only_expression(child)),
                _ => {}
            }
        }
        Parameter { span, name, ty: ty.unwrap_or_else(|| self.fault_type(span)), default }
    }

    pub(super) fn dims_member(&self, pair: Pair<'_, Rule>, docs: Docs) -> Dims {
        Dims { span: self.span(&pair), docs, dims: self.dim_declarations(pair) }
    }

    pub(super) fn dim_declarations(&self, pair: Pair<'_, Rule>) -> Vec<DimDeclaration> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::dim_declaration)
            .map(|child| DimDeclaration {
                span: self.span(&child),
                name: self.name_of(&child),
                value: child
                    .into_inner()
                    .find(|part| part.as_rule() == Rule::default)
                    .map(|part| self.only_expression(part)),
            })
            .collect()
    }

    pub(super) fn param_member(&self, pair: Pair<'_, Rule>, docs: Docs) -> Param {
        let span = self.span(&pair);
        let name = self.name_of(&pair);
        let mut ty = None;
        let mut init = None;
        let mut kind = None;
        let mut checkpoint_name = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::ty => ty = Some(self.ty(child)),
                Rule::default => init = Some(self.only_expression(child)),
                Rule::param_kind => kind = self.param_kind(&child),
                Rule::checkpoint_name => checkpoint_name = self.checkpoint_name(child),
                _ => {}
            }
        }
        Param {
            span,
            docs,
            name,
            ty: ty.unwrap_or_else(|| self.fault_type(span)),
            init,
            kind,
            checkpoint_name,
        }
    }

    fn param_kind(&self, pair: &Pair<'_, Rule>) -> Option<ParamKind> {
        let name = self.name_of(pair);
        let kind = ParamKind::from_name(&name.name);
        if kind.is_none() {
            let diagnostic = Diagnostic::error(
                Code::UnknownParameterKind,
                format!("`{}` is not a kind of parameter", name.name),
            )
            .label(name.span, "unknown kind")
            .why("the kind sets the default initialiser and whether weight decay applies")
            .note("kinds are `weight`, `norm` and `bias`");
            self.report(match did_you_mean(&name.name, ParamKind::NAMES) {
                Some(near) => diagnostic.hint_edit(format!("kind {near}"), name.span, near),
                None => diagnostic,
            });
        }
        kind
    }

    pub(super) fn checkpoint_name(&self, pair: Pair<'_, Rule>) -> Option<StringLiteral> {
        pair.into_inner()
            .find(|child| child.as_rule() == Rule::string)
            .map(|child| StringLiteral { span: self.span(&child), text: unquoted(child.as_str()) })
    }

    pub(super) fn state_member(&self, pair: Pair<'_, Rule>, docs: Docs) -> State {
        let span = self.span(&pair);
        let names = self.idents(pair.clone());
        let mut ty = None;
        let mut init = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::ty => ty = Some(self.ty(child)),
                Rule::default => init = Some(self.only_expression(child)),
                _ => {}
            }
        }
        State { span, docs, names, ty, init }
    }

    pub(super) fn sublayer_member(&self, pair: Pair<'_, Rule>, docs: Docs) -> SubLayer {
        let span = self.span(&pair);
        let name = self.name_of(&pair);
        let mut stack = Vec::new();
        let mut checkpoint_name = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::layer_use => stack.push(self.layer_use(child)),
                Rule::checkpoint_name => checkpoint_name = self.checkpoint_name(child),
                _ => {}
            }
        }
        SubLayer { span, docs, name, stack, checkpoint_name }
    }

    fn layer_use(&self, pair: Pair<'_, Rule>) -> LayerUse {
        let span = self.span(&pair);
        let layer = self.name_of(&pair);
        let mut repeat: Option<Expr> = None;
        let mut dims = None;
        let mut arguments = Vec::new();
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::repeat => repeat = Some(self.only_expression(child)),
                Rule::dim_arguments => dims = Some(self.dim_arguments(child)),
                Rule::arguments => arguments = self.arguments(child),
                _ => {}
            }
        }
        LayerUse { span, repeat, layer, dims, arguments }
    }
}

/// The content of a text literal; there are no escapes.
pub(super) fn unquoted(literal: &str) -> String {
    literal.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(literal).to_owned()
}
