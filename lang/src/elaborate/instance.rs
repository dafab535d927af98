//! Layers made concrete: dimensions and hyper-parameters filled in, parameters and sub-layers created.
//!
//! From items to [`Instance`]s. Bodies of functions are not looked at before they are called.

use super::context::Elaborator;
use super::path::PathSegment;
use super::program::standard_home;
use super::value::{Entry, Env, Instance, InstanceId, SubLayer, Value};
use crate::ast::{self, Expr, Ident, Item, LayerUse, Member, Parameter};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Scope};
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
            broken: false,
            states: Vec::new(),
        });
        self.hypers(id, blueprint, given);
        self.members(id, blueprint.kind, blueprint.members);
        self.scope = outer;
        id
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
                Member::Error(_) => self.instances[id].broken = true,
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
            Diagnostic::error(
                Code::MisplacedMember,
                format!("no `{what}` in an item of kind `{}`", kind.name()),
            )
            .label(span, "can't stand here"),
        );
    }

    /// Whether a name of an instance is given already, which is reported.
    pub fn taken(&mut self, id: InstanceId, name: &Ident) -> bool {
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
        let given = self.arguments(&env, Some(&entry.arguments));
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
        if let Some(written) = &member.checkpoint_name {
            self.check_pairs(written);
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
        // What could not be parsed is reported, and may have been what is missing here.
        let broken = self.instances.iter().any(|it| it.broken && it.file == file);
        if broken || program.has_broken_items(file) {
            return Value::Error;
        }
        let mut diagnostic = Diagnostic::error(Code::UnknownName, format!("no {kind} `{}` here", name.name))
            .label(name.span, "not declared");
        if let Some(home) = standard_home(&name.name) {
            diagnostic = diagnostic.hint(format!("use std::{home}::{}", name.name));
        } else if let Some(near) = did_you_mean(&name.name, near.iter().copied().chain(program.names(file))) {
            diagnostic = diagnostic.hint_edit(near.to_owned(), name.span, near);
        }
        self.report(diagnostic)
    }
}
