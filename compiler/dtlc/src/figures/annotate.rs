//! Prints a model back with every placement in its place and every collective under the line that asks for it.
//!
//! Works on the text of the user's file: dimensions of types get their `@axis`, everything else becomes comments, so
//! that the result is legal input. What stands in other files is shown at the declaration that leads there.

use super::overrides::override_edits;
use super::{Figures, bytes, scheduled};
use crate::failure::Failure;
use crate::pipeline::{Compilation, Sharded};
use cranelift_entity::EntityRef;
use dtlc_ir::text::print_type;
use dtlc_ir::{Axis, Placement, Program, Scope};
use dtlc_lang::ast::{Block, Function, Item, Member, Pattern, Statement, Type, TypeDim, TypeKind};
use dtlc_lang::model::{DimId, Model, ScopeId, Target};
use dtlc_lang::{Compiled, SourceFile, Span, parse};
use dtlc_passes::report::collectives;
use std::ops::Range;

/// The root file's text with placements and collectives written in, and with the sizes that `-D` gave to `overridden`.
///
/// # Errors
/// A compilation that did not go to its end: a bug.
pub fn annotated(
    compiled: &Compiled,
    compilation: &Compilation,
    figures: &Figures,
    overridden: &[String],
) -> Result<String, Failure> {
    let Some(file) = compiled.sources.files().next() else { return Ok(String::new()) };
    let sharded = compilation.sharded.as_ref();
    let sharded = sharded.ok_or_else(|| Failure::Bug("a compilation without placements".to_owned()))?;
    let mut writer = Writer { file, model: &compiled.model, sharded, edits: Vec::new() };
    let chosen = compiled.plan.as_ref().map(|plan| plan.name.as_str());
    let mut end = 0;
    let items = parse(file).file.items;
    for item in &items {
        let other = match item {
            Item::Plan(plan) => Some(plan.name.name.as_str()) != chosen,
            Item::Model(model) => model.name.name != compiled.model.name,
            Item::Layer(_) | Item::Use(_) | Item::Optimizer(_) | Item::Function(_) | Item::Error(_) => false,
        };
        let begin = std::mem::replace(&mut end, item.span().end as usize);
        if other {
            writer.edits.push((begin..end, String::new()));
            continue;
        }
        match item {
            Item::Layer(layer) => writer.members(&layer.name.name, &layer.members),
            Item::Model(model) => writer.members(&model.name.name, &model.members),
            Item::Use(_) | Item::Optimizer(_) | Item::Function(_) | Item::Plan(_) => {}
            Item::Error(_) => {}
        }
    }
    writer.edits.extend(override_edits(compiled, &items, overridden));
    writer.collectives(&scheduled(compilation)?.planned, figures);
    Ok(writer.finish())
}

struct Writer<'a> {
    file: &'a SourceFile,
    model: &'a Model,
    sharded: &'a Sharded,
    /// Bytes to replace (mostly none, where text is inserted), and by what.
    edits: Vec<(Range<usize>, String)>,
}

impl Writer<'_> {
    fn members(&mut self, layer: &str, members: &[Member]) {
        for member in members {
            match member {
                Member::Param(param) => self.parameter(layer, &param.name.name, &param.ty),
                Member::Function(function) => self.function(layer, function),
                Member::If(choice) => {
                    let branches = choice.branches.iter().map(|branch| &branch.members);
                    for members in branches.chain(&choice.otherwise) {
                        self.members(layer, members);
                    }
                }
                Member::Dims(_) | Member::SubLayer(_) | Member::State(_) | Member::Error(_) => {}
            }
        }
    }

    /// A parameter's dimensions, as it lies while it is used.
    fn parameter(&mut self, layer: &str, name: &str, ty: &Type) {
        let model = self.model;
        let declared = model
            .params
            .values()
            .filter(|param| param.name == name && model.scopes[param.scope].layer == layer);
        let placed = declared.filter_map(|param| {
            let state = self.sharded.program.states.iter().position(|state| state.path == param.path)?;
            let placement = self.sharded.uses.get(state)?;
            Some(param.dims.iter().map(|&dim| self.axes(dim, placement)).collect::<Vec<_>>())
        });
        self.dimensions(ty, same(placed));
    }

    fn function(&mut self, layer: &str, function: &Function) {
        for parameter in &function.parameters {
            let found = self.bound(layer, &parameter.name.name);
            let placed = found.iter().map(|(dims, placement, _)| {
                dims.iter().map(|&dim| self.axes(dim, placement)).collect::<Vec<_>>()
            });
            let placed = same(placed);
            self.dimensions(&parameter.ty, placed);
        }
        self.block(layer, &function.body);
    }

    /// A `let` gets the type of its value as a comment.
    fn block(&mut self, layer: &str, block: &Block) {
        for statement in &block.statements {
            let Statement::Let(one) = statement else { continue };
            let Pattern::Name(name) = &one.pattern else { continue };
            let types = self.bound(layer, &name.name).into_iter().map(|(_, _, text)| text);
            if let Some(text) = same(types) {
                self.comment_behind(one.span, &text);
            }
        }
    }

    /// Values that a name in a layer is bound to: dims as written, placement, and the whole type.
    fn bound(&self, layer: &str, name: &str) -> Vec<(Vec<DimId>, Placement, String)> {
        let program = &self.sharded.program;
        let of_layer = |scope: ScopeId| self.model.scopes[scope].layer == layer;
        let bindings = self.model.bindings.iter().filter(|it| it.name == name && of_layer(it.scope));
        let found = bindings.filter_map(|binding| {
            let Target::Node(node) = binding.target else { return None };
            let scope = Scope::new(binding.scope.index());
            let value = program.bindings.iter().find(|it| it.scope == scope && it.name == name)?.value;
            let ty = program.ty(value);
            let dims = self.model.graph.nodes[node].ty.dims.clone();
            Some((dims, ty.placement.clone(), print_type(program, ty)))
        });
        found.collect()
    }

    /// `@tp` for the axes that a dimension of the model lies on; nothing where it is whole.
    fn axes(&self, dim: DimId, placement: &Placement) -> String {
        let program = &self.sharded.program;
        let atoms = self.model.atoms(dim).into_iter();
        let atoms = atoms.filter_map(|atom| program.find_dim(&self.model.dims[atom].name));
        let axes: Vec<Axis> = atoms.flat_map(|atom| placement.axes_of(atom).collect::<Vec<_>>()).collect();
        match program.mesh.names(&axes).as_slice() {
            [] => String::new(),
            [axis] => format!("@{axis}"),
            several => format!("@({})", several.join(", ")),
        }
    }

    /// Writes axes behind the dimensions of a type, one for each in order.
    fn dimensions(&mut self, ty: &Type, axes: Option<Vec<String>>) {
        let (TypeKind::Tensor { dims, .. }, Some(axes)) = (&ty.kind, axes) else { return };
        if dims.len() != axes.len() {
            return;
        }
        for (dim, axes) in dims.iter().zip(axes) {
            if let TypeDim::Named(placed) = dim
                && placed.axes.is_empty()
            {
                self.insert(placed.span.end as usize, axes);
            }
        }
    }

    /// Adds a comment at the end of the line that a span starts on.
    fn comment_behind(&mut self, span: Span, text: &str) {
        if span.file != self.file.id {
            return;
        }
        let start = span.start as usize;
        let end = self.file.text[start..].find('\n').map_or(self.file.text.len(), |at| start + at);
        self.insert(end, format!("  // {text}"));
    }

    /// A line for each collective under the one that asks for it.
    fn collectives(&mut self, program: &Program, figures: &Figures) {
        for (one, figure) in collectives(program).iter().zip(&figures.collectives) {
            let info = &program.origins[one.origin];
            let line =
                if info.file == self.file.name { Some(info.line) } else { self.declaration(info.scope) };
            let Some(line) = line.filter(|&line| line > 0) else { continue };
            let text = format!(
                "// {} {} over {}, {} a step, {} each: {}",
                figure.phase,
                figure.kind,
                figure.axis,
                figure.per_step,
                bytes(figure.bytes),
                shortened(&one.why)
            );
            self.line_below(line, &text);
        }
    }

    /// The line of this file that declares an instance, or one around it.
    fn declaration(&self, scope: Scope) -> Option<u32> {
        let mut at = Some(ScopeId::new(scope.index()));
        while let Some(scope) = at {
            let info = &self.model.scopes[scope];
            if info.span.file == self.file.id {
                return Some(self.file.position(info.span.start).line);
            }
            at = info.parent;
        }
        None
    }

    fn line_below(&mut self, line: u32, text: &str) {
        let above = self.file.line(line);
        let indent = &above[..above.len() - above.trim_start().len()];
        let starts = self.file.text.match_indices('\n').map(|(at, _)| at + 1);
        // The line below starts where this one's end is followed; the last line may have none.
        let Some(start) = starts.clone().nth(line as usize - 1) else { return };
        self.insert(start, format!("{indent}{text}\n"));
    }

    fn insert(&mut self, at: usize, text: String) {
        self.edits.push((at..at, text));
    }

    fn finish(mut self) -> String {
        // Stable: what is inserted at one place stays in order.
        self.edits.sort_by_key(|(range, _)| range.start);
        let text = &self.file.text;
        let mut result = String::new();
        let mut done = 0;
        for (range, new) in &self.edits {
            // What would be written into text that is gone is gone too.
            if range.start < done {
                continue;
            }
            result.push_str(&text[done..range.start]);
            result.push_str(new);
            done = range.end;
        }
        result.push_str(&text[done..]);
        result
    }
}

/// The first of several reasons, and how many there are.
#[must_use]
pub fn shortened(why: &[String]) -> String {
    match why {
        [] => String::new(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first}; and {} more", rest.len()),
    }
}

/// The one thing that all are; none where they differ or there are none.
fn same<T: PartialEq>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut all = all;
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}
