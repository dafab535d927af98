//! Paths of plans, `Block.attn.wq`: what they select of the model.

use super::Resolver;
use crate::ast::ValuePath;
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, ScopeId, Target};
use crate::plan::Path;
use crate::suggest::did_you_mean;

/// What a path selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    /// A whole instance.
    Scope(ScopeId),
    /// A value or parameter.
    Target(Target),
}

impl Resolver<'_> {
    /// A path that selects something, with what it selects; else a report.
    pub fn path(&mut self, path: &ValuePath) -> Option<(Path, Vec<Selected>)> {
        let segments: Vec<&str> = path.segments.iter().map(|it| it.name.as_str()).collect();
        let selected = self.select(&segments);
        if !selected.is_empty() {
            let segments = segments.iter().map(|it| (*it).to_owned()).collect();
            return Some((Path { segments, span: path.span }, selected));
        }
        let text = segments.join(".");
        let mut known = segments.len() - 1;
        while known > 0 && self.select(&segments[..known]).is_empty() {
            known -= 1;
        }
        let failed = &path.segments[known.min(path.segments.len() - 1)];
        let candidates = self.names_after(&segments[..known]);
        let title = format!("`{text}` names nothing in model `{}`", self.model.name);
        let mut diagnostic =
            Diagnostic::error(Code::RuleMatchesNothing, title).label(failed.span, "not found");
        match did_you_mean(&failed.name, candidates.iter().map(String::as_str)) {
            Some(near) => diagnostic = diagnostic.hint_edit(near.to_owned(), failed.span, near),
            None if !candidates.is_empty() => {
                diagnostic = diagnostic.note(format!("names here: {}", candidates.join(", ")));
            }
            None => {}
        }
        self.diagnostics.push(diagnostic);
        None
    }

    /// A path that must be a layer.
    pub fn layer_path(&mut self, path: &ValuePath) -> Option<Path> {
        let (resolved, selected) = self.path(path)?;
        if selected.iter().any(|it| matches!(it, Selected::Scope(_))) {
            return Some(resolved);
        }
        let title = format!("`{}` is a value, not a layer", resolved.segments.join("."));
        self.diagnostics
            .push(Diagnostic::error(Code::InvalidSetting, title).label(path.span, "expected a layer"));
        None
    }

    fn select(&self, segments: &[&str]) -> Vec<Selected> {
        let Some((first, rest)) = segments.split_first() else { return Vec::new() };
        let root = ScopeId::from_u32(0);
        let mut scopes: Vec<ScopeId> = Vec::new();
        for (id, scope) in &self.model.scopes {
            if scope.layer == *first || (scope.parent == Some(root) && is_instance(&scope.instance, first)) {
                scopes.push(id);
            }
        }
        let mut found: Vec<Selected> = scopes.iter().copied().map(Selected::Scope).collect();
        if rest.is_empty() {
            found.extend(self.values(root, first));
        }
        for (index, segment) in rest.iter().enumerate() {
            let last = index + 1 == rest.len();
            let mut next = Vec::new();
            let mut values = Vec::new();
            for &scope in &scopes {
                let children = self.model.scopes.iter();
                next.extend(
                    children
                        .filter(|(_, it)| it.parent == Some(scope) && is_instance(&it.instance, segment))
                        .map(|(id, _)| id),
                );
                if last {
                    values.extend(self.values(scope, segment));
                }
            }
            scopes = next;
            found = scopes.iter().copied().map(Selected::Scope).chain(values).collect();
        }
        found
    }

    fn values(&self, scope: ScopeId, name: &str) -> Vec<Selected> {
        let bindings = self.model.bindings.iter().filter(|it| it.scope == scope && it.name == name);
        bindings.map(|it| Selected::Target(it.target)).collect()
    }

    /// Names that may follow a path, for suggestions.
    fn names_after(&self, segments: &[&str]) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            if !name.is_empty() && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        };
        if segments.is_empty() {
            let root = Some(ScopeId::from_u32(0));
            for scope in self.model.scopes.values() {
                add(&scope.layer);
                if scope.parent == root {
                    add(&scope.instance);
                }
            }
            return names;
        }
        for selected in self.select(segments) {
            let Selected::Scope(scope) = selected else { continue };
            let children = self.model.scopes.values().filter(|it| it.parent == Some(scope));
            children.for_each(|it| add(&it.instance));
            let bindings = self.model.bindings.iter().filter(|it| it.scope == scope);
            bindings.for_each(|it| add(&it.name));
        }
        names
    }

    /// Whether something that is selected has any factor of a dim.
    pub fn selected_has(&self, selected: &[Selected], dim: DimId) -> bool {
        selected.iter().any(|it| match it {
            Selected::Target(target) => self.has_factor(self.dims_of(*target), dim),
            Selected::Scope(scope) => {
                let params = self.model.params.values().filter(|it| self.is_within(it.scope, *scope));
                let nodes = self.model.graph.nodes.values().filter(|it| self.is_within(it.scope, *scope));
                params
                    .map(|it| &it.dims)
                    .chain(nodes.map(|it| &it.ty.dims))
                    .any(|dims| self.has_factor(dims, dim))
            }
        })
    }

    fn is_within(&self, mut scope: ScopeId, outer: ScopeId) -> bool {
        loop {
            if scope == outer {
                return true;
            }
            match self.model.scopes[scope].parent {
                Some(parent) => scope = parent,
                None => return false,
            }
        }
    }

    /// The dims of a value or parameter.
    pub fn dims_of(&self, target: Target) -> &[DimId] {
        match target {
            Target::Node(node) => &self.model.graph.nodes[node].ty.dims,
            Target::Param(param) => &self.model.params[param].dims,
        }
    }

    /// Whether dims have any factor of `dim` among their own.
    pub fn has_factor(&self, dims: &[DimId], dim: DimId) -> bool {
        let atoms = self.model.atoms(dim);
        dims.iter().any(|&it| self.model.atoms(it).iter().any(|atom| atoms.contains(atom)))
    }
}

/// Whether an instance has a name: entries of one stack are `layers.0`, `layers.1`.
fn is_instance(instance: &str, name: &str) -> bool {
    instance.split('.').next() == Some(name)
}
