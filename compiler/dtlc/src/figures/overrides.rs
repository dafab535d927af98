//! Writes the sizes of `-D` into the text that `explain` prints, so that the text means what its figures say.
//!
//! From the syntax tree and the typed model and plan to edits of the root file. Knows nothing of placements.

use dtlc_lang::ast::{
    DimDeclaration, Item, Member, MeshSize, Model as ModelItem, Plan as PlanItem_, PlanItem, SettingsKind,
};
use dtlc_lang::{Compiled, Span};
use std::ops::Range;

/// Bytes to replace (none, where text is inserted), and by what.
pub type Edit = (Range<usize>, String);

/// An edit for each place that a name of `-D` gets its size from.
#[must_use]
pub fn override_edits(compiled: &Compiled, items: &[Item], names: &[String]) -> Vec<Edit> {
    let model = items.iter().find_map(|item| match item {
        Item::Model(model) if model.name.name == compiled.model.name => Some(model),
        _ => None,
    });
    let plan = items.iter().find_map(|item| match item {
        Item::Plan(plan) if compiled.plan.as_ref().is_some_and(|it| it.name == plan.name.name) => Some(plan),
        _ => None,
    });
    let mut edits = Vec::new();
    for name in names {
        let found = model.and_then(|model| dim_edit(compiled, model, plan, name));
        let found = found.or_else(|| plan.and_then(|plan| setting_edit(compiled, plan, name)));
        let found = found.or_else(|| plan.and_then(|plan| axis_edit(compiled, plan, name)));
        edits.extend(found);
    }
    edits
}

/// Where a dimension of the model gets its size: in the plan's `dims`, in its batch, or at the declaration.
fn dim_edit(compiled: &Compiled, model: &ModelItem, plan: Option<&PlanItem_>, name: &str) -> Option<Edit> {
    let declared = dims(&model.members).find(|dim| dim.name.name == name)?;
    let size = compiled.model.dims.values().find(|dim| dim.name == name)?.size;
    let of_plan = plan.iter().flat_map(|plan| &plan.items).find_map(|item| match item {
        PlanItem::Dims(dims) => dims.dims.iter().find(|dim| dim.name.name == name),
        _ => None,
    });
    if let Some(value) = of_plan.and_then(|dim| dim.value.as_ref()).or(declared.value.as_ref()) {
        return Some((range(value.span), size.to_string()));
    }
    let position =
        dims(&model.members).filter(|dim| dim.value.is_none()).position(|dim| dim.name.name == name);
    let setting = position.and_then(|position| ["global", "seq"].get(position).copied());
    if let Some(edit) = plan.zip(setting).and_then(|(plan, setting)| setting_edit(compiled, plan, setting)) {
        return Some(edit);
    }
    let end = declared.name.span.end as usize;
    Some((end..end, format!(" = {size}")))
}

fn setting_edit(compiled: &Compiled, plan: &PlanItem_, name: &str) -> Option<Edit> {
    let batch = compiled.plan.as_ref()?.batch.as_ref()?;
    let size = match name {
        "seq" => batch.sequence,
        "global" => batch.global,
        "micro" => batch.micro?,
        _ => return None,
    };
    let written = plan.items.iter().find_map(|item| match item {
        PlanItem::Settings(settings) if settings.kind == SettingsKind::Batch => Some(settings),
        _ => None,
    })?;
    if let Some(setting) = written.settings.iter().find(|setting| setting.name.name == name) {
        return Some((range(setting.value.span), size.to_string()));
    }
    let end = written.settings.last()?.span.end as usize;
    Some((end..end, format!(", {name} {size}")))
}

fn axis_edit(compiled: &Compiled, plan: &PlanItem_, name: &str) -> Option<Edit> {
    let size = compiled.plan.as_ref()?.mesh.iter().find(|axis| axis.name == name)?.size;
    let meshes = plan.items.iter().filter_map(|item| match item {
        PlanItem::Mesh(mesh) => Some(mesh),
        _ => None,
    });
    let axis = meshes.flat_map(|mesh| &mesh.axes).find(|axis| axis.name.name == name)?;
    match &axis.size {
        MeshSize::Ranks(ranks) => Some((range(ranks.span), size.to_string())),
        // Only its parts have sizes.
        MeshSize::Parts(_) => None,
    }
}

fn dims(members: &[Member]) -> impl Iterator<Item = &DimDeclaration> {
    let lists = members.iter().filter_map(|member| match member {
        Member::Dims(dims) => Some(&dims.dims),
        _ => None,
    });
    lists.flatten()
}

fn range(span: Span) -> Range<usize> {
    span.start as usize..span.end as usize
}
