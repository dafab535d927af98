//! Plans: from the syntax tree of a plan to the typed [`Plan`] of one model, with every mistake reported at once.
//!
//! Here the sizes that a plan gives to dims, and its mesh; rules, settings, the optimizer and contracts have files of
//! their own. What a placement means for each value is the compiler's to work out.

mod contracts;
mod optimizer;
mod paths;
mod rules;
mod settings;

use super::models::Sizes;
use super::program::Program;
use super::value::{Folded, Number, fold};
use crate::ast::{self, Expr, ExprKind, Member, MeshSize, PlanItem, SettingsKind};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::Model;
use crate::plan::{MeshAxis, Plan, Precision};
use crate::source::{FileId, Span};
use crate::suggest::did_you_mean;
use indexmap::IndexMap;

pub(super) use optimizer::check_optimizer;

/// More ranks than this no machine has; it keeps products of axes in range.
const MOST_RANKS: u64 = 1 << 20;

/// `-D NAME=VALUE`.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    values: IndexMap<String, u64>,
}

impl Overrides {
    /// Reads names and values as they stand on the command line.
    pub fn read(pairs: &[(String, String)]) -> Result<Overrides, Vec<Diagnostic>> {
        let mut values = IndexMap::new();
        let mut diagnostics = Vec::new();
        for (name, value) in pairs {
            let size = value.replace('_', "").parse::<u64>().ok().filter(|&size| size > 0 && size < 1 << 63);
            let Some(size) = size else {
                let title = format!("`-D {name}={value}`: not a size");
                diagnostics.push(
                    Diagnostic::error(Code::InvalidOverride, title)
                        .why("a size is a positive integer below 2^63")
                        .hint(format!("-D {name}=128")),
                );
                continue;
            };
            let name = name.strip_prefix("batch.").unwrap_or(name);
            if values.insert(name.to_owned(), size).is_some_and(|other| other != size) {
                diagnostics.push(
                    Diagnostic::error(Code::InvalidOverride, format!("`-D {name}=…` twice, with two sizes"))
                        .hint(format!("-D {name}={size}")),
                );
            }
        }
        if diagnostics.is_empty() { Ok(Overrides { values }) } else { Err(diagnostics) }
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.values.get(name).copied()
    }
}

/// The sizes that a plan and the command line give to a model's dims.
pub(super) fn sizes(
    plan: Option<&ast::Plan>,
    model: &ast::Model,
    overrides: &Overrides,
) -> (Sizes, Vec<Diagnostic>) {
    let mut sizes = Sizes::default();
    let mut diagnostics = Vec::new();
    let items = plan.map_or(&[][..], |plan| &plan.items);
    for item in items {
        match item {
            PlanItem::Dims(dims) => {
                for declared in &dims.dims {
                    match declared.value.as_ref().and_then(|value| integer(value).ok()) {
                        Some(size) => {
                            let name = &declared.name.name;
                            let first = sizes.named.insert(name.clone(), (size, Some(declared.span)));
                            if let Some((_, Some(first))) = first {
                                let title = format!("`{name}` has two sizes in the plan");
                                diagnostics.push(
                                    Diagnostic::error(Code::DuplicateEntry, title)
                                        .label(declared.span, "another")
                                        .label(first, "one"),
                                );
                            }
                        }
                        None => diagnostics.push(unsized_dim(declared)),
                    }
                }
            }
            PlanItem::Settings(batch) if batch.kind == SettingsKind::Batch => {
                sizes.sequence = settings::integer_setting(&batch.settings, "seq");
                sizes.batch = settings::integer_setting(&batch.settings, "global");
            }
            PlanItem::Mesh(_)
            | PlanItem::Step(_)
            | PlanItem::Settings(_)
            | PlanItem::Memory(_)
            | PlanItem::Remat(_)
            | PlanItem::Optimizer(_)
            | PlanItem::Allow(_)
            | PlanItem::Expect(_)
            | PlanItem::Later(_)
            | PlanItem::Error(_) => {}
        }
    }
    sizes.sequence = overrides.get("seq").or(sizes.sequence);
    sizes.batch = overrides.get("global").or(sizes.batch);
    let axes: Vec<&str> = axis_names(items);
    let known = ["seq", "global", "micro"];
    for (name, &size) in &overrides.values {
        let of_plan = plan.is_some() && (known.contains(&name.as_str()) || axes.contains(&name.as_str()));
        if !of_plan || declares(model, name) {
            sizes.named.insert(name.clone(), (size, None));
        }
    }
    diagnostics.extend(contradictions(model, overrides));
    (sizes, diagnostics)
}

/// The batch and the sequence go by two names, `-D B=4` and `-D global=4`: both are fine where they agree.
fn contradictions(model: &ast::Model, overrides: &Overrides) -> Vec<Diagnostic> {
    let open = declared(model).filter(|dim| dim.value.is_none()).map(|dim| &dim.name);
    let pairs = open.zip(["global", "seq"]).filter_map(|(dim, setting)| {
        let (by_name, by_setting) = (overrides.get(&dim.name)?, overrides.get(setting)?);
        let title = format!("`-D {}={by_name}` and `-D {setting}={by_setting}` say two sizes", dim.name);
        let diagnostic = Diagnostic::error(Code::InvalidOverride, title)
            .label(dim.span, format!("`{setting}` is the size of this dimension"))
            .hint(format!("-D {setting}={by_setting}"));
        (by_name != by_setting).then_some(diagnostic)
    });
    pairs.collect()
}

fn unsized_dim(declared: &ast::DimDeclaration) -> Diagnostic {
    Diagnostic::error(Code::InvalidSetting, "a plan gives dimensions sizes in numbers")
        .label(declared.span, "no positive integer")
        .hint(format!("dims {} = 128", declared.name.name))
}

/// What `-D` can set under a plan: the model's dims, the plan's axes and its batch.
pub(super) fn overridable(plan: Option<&ast::Plan>, model: &ast::Model) -> Vec<String> {
    let mut names: Vec<String> = declared(model).map(|dim| dim.name.name.clone()).collect();
    if let Some(plan) = plan {
        names.extend(["seq", "global", "micro"].map(str::to_owned));
        names.extend(axis_names(&plan.items).into_iter().map(str::to_owned));
    }
    names
}

fn declares(model: &ast::Model, name: &str) -> bool {
    declared(model).any(|dim| dim.name.name == name)
}

/// The dims that a model declares.
pub(super) fn declared(model: &ast::Model) -> impl Iterator<Item = &ast::DimDeclaration> {
    let lists = model.members.iter().filter_map(|member| match member {
        Member::Dims(dims) => Some(&dims.dims),
        Member::Param(_)
        | Member::SubLayer(_)
        | Member::State(_)
        | Member::Function(_)
        | Member::If(_)
        | Member::Error(_) => None,
    });
    lists.flatten()
}

fn axis_names(items: &[PlanItem]) -> Vec<&str> {
    let meshes =
        items.iter().filter_map(|item| if let PlanItem::Mesh(mesh) = item { Some(mesh) } else { None });
    meshes.flat_map(|mesh| &mesh.axes).map(|axis| axis.name.name.as_str()).collect()
}

/// A positive integer known at once.
fn integer(expr: &Expr) -> Result<u64, Span> {
    fn value(expr: &Expr) -> Option<i128> {
        match &expr.kind {
            ExprKind::Integer(number) => Some(i128::from(*number)),
            ExprKind::Binary { operator, left, right, .. } => {
                match fold(*operator, Number::Int(value(left)?), Number::Int(value(right)?)) {
                    Ok(Folded::Number(Number::Int(number))) => Some(number),
                    Ok(Folded::Number(Number::Float(_)) | Folded::Truth(_)) | Err(_) => None,
                }
            }
            _ => None,
        }
    }
    value(expr).and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0).ok_or(expr.span)
}

/// The state of resolving one plan.
struct Resolver<'a> {
    program: &'a Program,
    file: FileId,
    plan: &'a ast::Plan,
    model: &'a Model,
    overrides: &'a Overrides,
    mesh: Vec<MeshAxis>,
    diagnostics: Vec<Diagnostic>,
}

/// The typed plan; none where it has a mistake.
pub(super) fn resolve(
    program: &Program,
    file: FileId,
    plan: &ast::Plan,
    model: &Model,
    overrides: &Overrides,
) -> (Option<Plan>, Vec<Diagnostic>) {
    let mut resolver =
        Resolver { program, file, plan, model, overrides, mesh: Vec::new(), diagnostics: Vec::new() };
    let plan = resolver.plan();
    let failed = resolver.diagnostics.iter().any(Diagnostic::is_error);
    (Some(plan).filter(|_| !failed), resolver.diagnostics)
}

impl Resolver<'_> {
    fn plan(&mut self) -> Plan {
        let written = self.plan;
        self.single_entries();
        let mut plan = Plan {
            name: written.name.name.clone(),
            span: written.name.span,
            mesh: Vec::new(),
            steps: Vec::new(),
            batch: None,
            precision: Precision::default(),
            memory: None,
            remat: Vec::new(),
            optimizer: None,
            leave: Vec::new(),
            expect: Vec::new(),
        };
        for item in &written.items {
            if let PlanItem::Mesh(mesh) = item {
                self.mesh(mesh);
            }
        }
        plan.mesh = self.mesh.clone();
        for item in &written.items {
            match item {
                PlanItem::Mesh(_) | PlanItem::Dims(_) | PlanItem::Error(_) => {}
                PlanItem::Step(step) => plan.steps.extend(self.step(step)),
                PlanItem::Settings(settings) => match settings.kind {
                    SettingsKind::Batch => plan.batch = self.batch(settings),
                    SettingsKind::Precision => plan.precision = self.precision(settings),
                },
                PlanItem::Memory(limit) => plan.memory = self.memory(limit),
                PlanItem::Remat(remat) => {
                    let remat = self.remat(remat);
                    plan.remat.extend(remat);
                }
                PlanItem::Optimizer(optimizer) => plan.optimizer = self.optimizer(optimizer),
                PlanItem::Allow(allow) => plan.leave.extend(self.leave(allow)),
                PlanItem::Expect(expect) => {
                    let expect = self.expectations(expect);
                    plan.expect.extend(expect);
                }
                PlanItem::Later(later) => self.not_supported(later.keyword.span, &later.keyword.name),
            }
        }
        self.pins();
        self.check_batch(&plan);
        self.check_divisions(&plan);
        plan
    }

    fn not_supported(&mut self, span: Span, what: &str) {
        self.diagnostics.push(
            Diagnostic::error(Code::NotSupported, format!("`{what}` is not supported yet"))
                .label(span, "of a later version"),
        );
    }

    /// Reports entries that stand twice though a plan has one of each.
    fn single_entries(&mut self) {
        let mut seen: Vec<(String, Span)> = Vec::new();
        for item in &self.plan.items {
            let what = match item {
                PlanItem::Mesh(_) => "mesh".to_owned(),
                PlanItem::Settings(settings) => match settings.kind {
                    SettingsKind::Batch => "batch".to_owned(),
                    SettingsKind::Precision => "precision".to_owned(),
                },
                PlanItem::Memory(_) => "memory".to_owned(),
                PlanItem::Optimizer(_) => "optimizer".to_owned(),
                PlanItem::Remat(remat) => {
                    let names = remat.target.iter().flat_map(|path| &path.segments);
                    let names: Vec<&str> = names.map(|name| name.name.as_str()).collect();
                    format!("remat {}", names.join(".")).trim_end().to_owned()
                }
                PlanItem::Step(ast::Step { name, body: ast::StepBody::Rules(_), .. }) => {
                    format!("step {}", name.name)
                }
                // Several parts of state may rest along several axes.
                PlanItem::Step(ast::Step { body: ast::StepBody::Zero { .. }, .. })
                | PlanItem::Dims(_)
                | PlanItem::Allow(_)
                | PlanItem::Expect(_)
                | PlanItem::Later(_)
                | PlanItem::Error(_) => continue,
            };
            if let Some((_, first)) = seen.iter().find(|(known, _)| *known == what) {
                self.diagnostics.push(
                    Diagnostic::error(Code::DuplicateEntry, format!("`{what}` stands twice in the plan"))
                        .label(item.span(), "the second")
                        .label(*first, "the first"),
                );
            }
            seen.push((what, item.span()));
        }
    }

    fn mesh(&mut self, mesh: &ast::Mesh) {
        let mut ranks = 1u64;
        for axis in &mesh.axes {
            if let Some(first) = self.mesh.iter().find(|known| known.name == axis.name.name) {
                self.diagnostics.push(
                    Diagnostic::error(
                        Code::DuplicateName,
                        format!("mesh axis `{}` is declared twice", axis.name.name),
                    )
                    .label(axis.span, "declared again")
                    .label(first.span, "first declared here"),
                );
                continue;
            }
            let Some(axis) = self.mesh_axis(axis) else { continue };
            ranks = ranks.saturating_mul(axis.size);
            self.mesh.push(axis);
        }
        if ranks > MOST_RANKS {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidMesh, format!("a mesh of {ranks} ranks"))
                    .label(mesh.span, format!("at most {MOST_RANKS}")),
            );
        }
    }

    fn mesh_axis(&mut self, axis: &ast::MeshAxis) -> Option<MeshAxis> {
        let mut parts = Vec::new();
        let size = match &axis.size {
            MeshSize::Ranks(ranks) => self.ranks(ranks)?,
            MeshSize::Parts(written) => {
                for part in written {
                    let MeshSize::Ranks(ranks) = &part.size else {
                        self.diagnostics.push(
                            Diagnostic::error(Code::InvalidMesh, "parts of an axis have no parts")
                                .label(part.span, "one level is enough"),
                        );
                        return None;
                    };
                    parts.push((part.name.name.clone(), self.ranks(ranks)?));
                }
                parts.iter().fold(1u64, |total, (_, size)| total.saturating_mul(*size))
            }
        };
        let size = match self.overrides.get(&axis.name.name) {
            Some(size) if parts.is_empty() => size,
            Some(given) => {
                if given != size {
                    let title = format!("`-D {}={given}`: the axis is made of parts", axis.name.name);
                    self.diagnostics.push(
                        Diagnostic::error(Code::InvalidOverride, title)
                            .label(axis.span, format!("{size} ranks, by its parts")),
                    );
                }
                size
            }
            None => size,
        };
        Some(MeshAxis { name: axis.name.name.clone(), parts, size, span: axis.span })
    }

    fn ranks(&mut self, ranks: &Expr) -> Option<u64> {
        match integer(ranks) {
            Ok(ranks) if ranks <= MOST_RANKS => Some(ranks),
            Ok(_) | Err(_) => {
                self.diagnostics.push(
                    Diagnostic::error(Code::InvalidMesh, "not a number of ranks")
                        .label(ranks.span, format!("a positive integer, at most {MOST_RANKS}"))
                        .hint("mesh { dp: 2, tp: 4 }"),
                );
                None
            }
        }
    }

    /// The ranks along an axis or a part of one, as rules write it.
    fn axis_size(&self, text: &str) -> u64 {
        let (name, part) = text.split_once('.').map_or((text, None), |(name, part)| (name, Some(part)));
        let Some(axis) = self.mesh.iter().find(|axis| axis.name == name) else { return 1 };
        match part {
            None => axis.size,
            Some(part) => axis.parts.iter().find(|(known, _)| known == part).map_or(1, |(_, size)| *size),
        }
    }

    /// The axes of a rule as text, each known and none twice.
    fn axes(&mut self, axes: &[ast::AxisRef]) -> Option<Vec<String>> {
        let mut found: Vec<String> = Vec::new();
        for axis in axes {
            let text = super::types::axis_text(axis);
            if !self.is_axis(&text) {
                self.unknown_axis(&text, axis.span);
                return None;
            }
            let overlaps = |known: &String| {
                let (a, b) = (known.split('.').next(), text.split('.').next());
                a == b && (*known == text || !known.contains('.') || !text.contains('.'))
            };
            if found.iter().any(overlaps) {
                self.diagnostics.push(
                    Diagnostic::error(Code::AxisTwice, format!("axis `{text}` twice in one placement"))
                        .label(axis.span, "again"),
                );
                return None;
            }
            found.push(text);
        }
        Some(found)
    }

    fn is_axis(&self, text: &str) -> bool {
        let (name, part) = text.split_once('.').map_or((text, None), |(name, part)| (name, Some(part)));
        let axis = self.mesh.iter().find(|axis| axis.name == name);
        axis.is_some_and(|axis| part.is_none_or(|part| axis.parts.iter().any(|(known, _)| known == part)))
    }

    fn unknown_axis(&mut self, text: &str, span: Span) {
        let mut known: Vec<String> = Vec::new();
        for axis in &self.mesh {
            known.push(axis.name.clone());
            known.extend(axis.parts.iter().map(|(part, _)| format!("{}.{part}", axis.name)));
        }
        let title = format!("plan `{}` has no mesh axis `{text}`", self.plan.name.name);
        let mut diagnostic = Diagnostic::error(Code::UnknownAxis, title).label(span, "unknown");
        if let Some(near) = did_you_mean(text, known.iter().map(String::as_str)) {
            diagnostic = diagnostic.hint_edit(near.to_owned(), span, near);
        } else {
            diagnostic = diagnostic.hint(format!("mesh {{ …, {text}: 2 }}"));
        }
        if !known.is_empty() {
            diagnostic = diagnostic.note(format!("axes: {}", known.join(", ")));
        }
        self.diagnostics.push(diagnostic);
    }

    /// Inline placements bind every plan, so their axes must be there.
    fn pins(&mut self) {
        for pin in &self.model.pins {
            for axis in &pin.axes {
                if !self.is_axis(axis) {
                    self.unknown_axis(axis, pin.span);
                    if let Some(last) = self.diagnostics.last_mut() {
                        last.reason = Some("a placement in the model binds every plan".to_owned());
                    }
                }
            }
        }
    }
}
