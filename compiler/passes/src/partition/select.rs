//! Finds the values that a rule is about: those that an `at` path names, of the rule's roles.

use super::request::RuleRequest;
use cranelift_entity::EntitySet;
use dtlc_ir::{Program, Role, Scope, Value};

/// The values a rule selects before dimensions are looked at.
///
/// # Errors
/// The path that names nothing, with what could stand in its place.
pub(super) fn select(program: &Program, rule: &RuleRequest) -> Result<Vec<Value>, UnknownPath> {
    if !rule.values.is_empty() {
        return Ok(rule.values.clone());
    }
    let wanted = |value: &Value| has_role(&rule.roles, program.values[*value].role);
    if rule.at.is_empty() {
        return Ok(program.values.keys().filter(wanted).collect());
    }
    let mut selected = Vec::new();
    for path in &rule.at {
        let found = resolve(program, path);
        if found.is_empty() {
            return Err(unknown(program, path));
        }
        selected.extend(found.into_iter().filter(wanted));
    }
    Ok(selected)
}

/// The values that may be gathered on their way.
///
/// # Errors
/// The path that names nothing.
pub(super) fn with_leave(program: &Program, paths: &[Vec<String>]) -> Result<EntitySet<Value>, UnknownPath> {
    let mut values = EntitySet::new();
    for path in paths {
        let found = if path.is_empty() { program.values.keys().collect() } else { resolve(program, path) };
        if found.is_empty() {
            return Err(unknown(program, path));
        }
        values.extend(found);
    }
    let gradients =
        program.values.iter().filter(|(_, info)| info.gradient_of.is_some_and(|of| values.contains(of)));
    let gradients: Vec<Value> = gradients.map(|(value, _)| value).collect();
    values.extend(gradients);
    Ok(values)
}

/// Whether a rule with these roles is about values with this role.
pub(super) fn has_role(roles: &[Role], role: Role) -> bool {
    roles.is_empty() || roles.contains(&role)
}

/// A path that names nothing.
pub(super) struct UnknownPath {
    /// As written.
    pub path: String,
    /// What could stand in its place.
    pub known: Vec<String>,
}

/// The values that a path names. The first name is a layer's, or an instance or value of the model.
pub(crate) fn resolve(program: &Program, path: &[String]) -> Vec<Value> {
    let Some((first, rest)) = path.split_first() else { return Vec::new() };
    let roots: Vec<Scope> = starts(program, first);
    if rest.is_empty() {
        let named = bound(program, first, |scope| program.scopes[scope].parent.is_none());
        return if roots.is_empty() { named } else { inside(program, &roots) };
    }
    let (last, middle) = (&rest[rest.len() - 1], &rest[..rest.len() - 1]);
    let mut scopes = roots;
    for instance in middle {
        scopes = children(program, &scopes, instance);
    }
    let instances = children(program, &scopes, last);
    if instances.is_empty() {
        bound(program, last, |scope| scopes.contains(&scope))
    } else {
        inside(program, &instances)
    }
}

/// Scopes that a path's first name means: the layer's instances, or the model's instance.
fn starts(program: &Program, name: &str) -> Vec<Scope> {
    let is_layer = |scope: &Scope| program.scopes[*scope].layer == name;
    let is_instance = |scope: &Scope| {
        let info = &program.scopes[*scope];
        info.instance == name && info.parent.is_some_and(|parent| program.scopes[parent].parent.is_none())
    };
    program.scopes.keys().filter(|scope| is_layer(scope) || is_instance(scope)).collect()
}

fn children(program: &Program, parents: &[Scope], instance: &str) -> Vec<Scope> {
    let is_child = |scope: &Scope| {
        let info = &program.scopes[*scope];
        info.instance == instance && info.parent.is_some_and(|parent| parents.contains(&parent))
    };
    program.scopes.keys().filter(is_child).collect()
}

fn bound(program: &Program, name: &str, is_wanted: impl Fn(Scope) -> bool) -> Vec<Value> {
    let bindings = program.bindings.iter();
    bindings
        .filter(|binding| binding.name == name && is_wanted(binding.scope))
        .map(|binding| binding.value)
        .collect()
}

/// Every value made in these instances or inside them.
fn inside(program: &Program, scopes: &[Scope]) -> Vec<Value> {
    let within = |scope: Scope| ancestors(program, scope).any(|scope| scopes.contains(&scope));
    let made_in = |value: &Value| within(program.origins[program.values[*value].origin].scope);
    let mut values: Vec<Value> = program.values.keys().filter(made_in).collect();
    let bindings = program.bindings.iter().filter(|binding| within(binding.scope));
    values.extend(bindings.map(|binding| binding.value));
    values
}

/// The scope and those around it, from the inside out.
pub(crate) fn ancestors(program: &Program, scope: Scope) -> impl Iterator<Item = Scope> + '_ {
    std::iter::successors(Some(scope), |&scope| program.scopes[scope].parent)
}

fn unknown(program: &Program, path: &[String]) -> UnknownPath {
    let mut known: Vec<String> = Vec::new();
    for binding in &program.bindings {
        let name = format!("{}.{}", program.scopes[binding.scope].layer, binding.name);
        if !known.contains(&name) {
            known.push(name);
        }
    }
    UnknownPath { path: path.join("."), known }
}
