//! Prints a typed model.

use crate::model::{
    Block, DimId, Dimension, Element, Elementwise, Graph, Model, Node, NodeId, Operation, Param, Pin,
    ScopeId, Target, TensorType,
};
use crate::source::Span;
use std::fmt::{self, Display, Formatter};

/// The whole model. [`super::parse`] reads it back.
pub fn print(model: &Model) -> String {
    Printer::new(model, Detail::Full).model()
}

impl Display for Model {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&Printer::new(self, Detail::Step).model())
    }
}

/// How much a printer says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// Everything.
    Full,
    /// What is computed.
    Step,
}

struct Printer<'a> {
    model: &'a Model,
    graph: &'a Graph,
    detail: Detail,
    text: String,
}

impl<'a> Printer<'a> {
    fn new(model: &'a Model, detail: Detail) -> Self {
        Printer { model, graph: &model.graph, detail, text: String::new() }
    }

    fn model(mut self) -> String {
        let model = self.model;
        self.line(0, &format!("model {} {{", word(&model.name)));
        if self.detail == Detail::Full {
            for (role, dim) in [("batch", model.batch), ("sequence", model.sequence)] {
                dim.iter().for_each(|&dim| self.line(1, &format!("{role} {}", self.dim(dim))));
            }
        }
        model.dims.values().for_each(|dim| self.dimension(dim));
        if self.detail == Detail::Full {
            model.scopes.keys().for_each(|scope| self.scope(scope));
        }
        model.params.values().for_each(|param| self.param(param));
        let inputs = self
            .graph
            .inputs
            .iter()
            .map(|it| format!("{}: {}{}", word(&it.name), type_text(model, &it.ty), self.place(it.span)));
        let inputs = inputs.collect::<Vec<_>>().join(", ");
        self.line(1, &format!("loss({inputs}) {{"));
        self.block(&self.graph.block, 2);
        self.line(1, "}");
        if self.detail == Detail::Full {
            self.names();
        }
        self.line(0, "}");
        self.text
    }

    fn line(&mut self, depth: usize, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn dimension(&mut self, dim: &Dimension) {
        let mut text = format!("dim {} = {}", word(&dim.name), dim.size);
        if !dim.factors.is_empty() {
            text.push_str(&format!(" = {}", list(self.model, &dim.factors, " * ")));
        }
        text.push_str(if dim.open { " open" } else { "" });
        text.push_str(&self.place(dim.span));
        self.line(1, &text);
    }

    fn scope(&mut self, id: ScopeId) {
        let scope = &self.model.scopes[id];
        let parent = scope.parent.map_or(String::new(), |parent| format!(" in {parent}"));
        let (instance, layer) = (word(&scope.instance), word(&scope.layer));
        let number = id.as_u32();
        self.line(1, &format!("scope {number} {instance}: {layer}{parent}{}", self.place(scope.span)));
    }

    fn param(&mut self, param: &Param) {
        let ty = TensorType { element: param.element, dims: param.dims.clone() };
        let mut text = format!("param {}", word(&param.path));
        if !param.stack.is_empty() {
            text.push_str(&format!(" stacked over {}", list(self.model, &param.stack, ", ")));
        }
        let ty = type_text(self.model, &ty);
        text.push_str(&format!(": {ty} = {:?} kind {:?}", param.init, param.kind));
        if let Some(alias) = &param.alias {
            text.push_str(&format!(" as {}", quote(alias)));
        }
        if self.detail == Detail::Full {
            if param.numbered != param.path {
                text.push_str(&format!(" numbered {}", quote(&param.numbered)));
            }
            text.push_str(&format!(
                " named {} in {}{}",
                word(&param.name),
                param.scope,
                self.place(param.span)
            ));
        }
        self.line(1, &text);
    }

    fn block(&mut self, block: &Block, depth: usize) {
        for &id in &block.nodes {
            let Node { operation, args, ty, span, scope } = &self.graph.nodes[id];
            let ty = type_text(self.model, ty);
            let mut text = format!("{id}: {ty} = {}", operation_text(self.model, operation));
            if !args.is_empty() {
                text.push_str(&format!(" {}", nodes(args)));
            }
            if self.detail == Detail::Full {
                text.push_str(&format!(" in {scope}{}", self.place(*span)));
            }
            if let Operation::Repeat { body, .. } = operation {
                self.line(depth, &(text + " {"));
                self.block(body, depth + 1);
                self.line(depth, "}");
            } else {
                self.line(depth, &text);
            }
        }
        self.line(depth, format!("yield {}", nodes(&block.results)).trim_end());
    }

    /// What plans select by name.
    fn names(&mut self) {
        let model = self.model;
        if !model.outputs.is_empty() {
            let outputs: Vec<String> = model.outputs.iter().map(|name| word(name)).collect();
            self.line(1, &format!("outputs {}", outputs.join(", ")));
        }
        for binding in &model.bindings {
            let (name, target) = (word(&binding.name), self.target(binding.target));
            self.line(1, &format!("let {name} in {} = {target}", binding.scope));
        }
        for Pin { target, dim, axes, span } in &model.pins {
            let axes: Vec<String> = axes.iter().map(|axis| word(axis)).collect();
            let (target, dim) = (self.target(*target), self.dim(*dim));
            self.line(1, &format!("pin {target}: {dim} to {}{}", axes.join(", "), self.place(*span)));
        }
    }

    fn target(&self, target: Target) -> String {
        match target {
            Target::Node(node) => node.to_string(),
            Target::Param(param) => format!("param {}", word(&self.model.params[param].path)),
        }
    }

    fn dim(&self, dim: DimId) -> String {
        word(&self.model.dims[dim].name)
    }

    /// ` @0:12..17`: file, first byte, one past the last.
    fn place(&self, span: Span) -> String {
        match self.detail {
            Detail::Full => format!(" @{}:{}..{}", span.file.as_u32(), span.start, span.end),
            Detail::Step => String::new(),
        }
    }
}

/// `text` as it is if it is a plain word of the grammar, else in quotes.
fn word(text: &str) -> String {
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    if starts && plain { text.to_owned() } else { quote(text) }
}

/// `text` in quotes, escaped as in JSON.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn nodes(ids: &[NodeId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn list(model: &Model, dims: &[DimId], with: &str) -> String {
    dims.iter().map(|&dim| word(&model.dims[dim].name)).collect::<Vec<_>>().join(with)
}

/// A type as the source has it.
pub fn type_text(model: &Model, ty: &TensorType) -> String {
    let element = match ty.element {
        Element::Float => "",
        Element::F32 => "f32",
        Element::Bf16 => "bf16",
        Element::F16 => "f16",
        Element::I32 => "i32",
        Element::U32 => "u32",
        Element::Bool => "bool",
    };
    format!("{element}[{}]", list(model, &ty.dims, ", "))
}

pub(super) fn elementwise_name(function: Elementwise) -> String {
    format!("{function:?}").to_lowercase()
}

fn operation_text(model: &Model, operation: &Operation) -> String {
    let name = |dim: &DimId| word(&model.dims[*dim].name);
    let all = |dims: &[DimId]| list(model, dims, ", ");
    match operation {
        Operation::Input(index) => format!("input {}", word(&model.graph.inputs[*index].name)),
        Operation::Carry(index) => format!("carry {index}"),
        Operation::Param(param) => format!("param {}", word(&model.params[*param].path)),
        Operation::Number(number) => format!("{number:?}"),
        Operation::Truth(truth) => format!("{truth}"),
        Operation::Iota(dim) => format!("iota[{}]", name(dim)),
        Operation::Elementwise(function) => elementwise_name(*function),
        Operation::Cast => "cast".to_owned(),
        Operation::Dot { over } => format!("dot[{}]", all(over)),
        Operation::Reduce { with, over } => format!("{}[{}]", format!("{with:?}").to_lowercase(), all(over)),
        Operation::Take(dim) => format!("take[{}]", name(dim)),
        Operation::Slice { dim, start, into: Some(into) } => {
            format!("slice[{} -> {}] start {start}", name(dim), name(into))
        }
        Operation::Slice { dim, start, into: None } => format!("slice[{} = {start}]", name(dim)),
        Operation::Concat { pieces, into } => {
            let pieces = pieces.iter().map(|piece| piece.as_ref().map_or_else(|| "*".to_owned(), name));
            format!("concat[{} -> {}]", pieces.collect::<Vec<_>>().join(", "), name(into))
        }
        Operation::Split { dim, into } => format!("split[{} -> {}]", name(dim), all(into)),
        Operation::Merge { dims, into } => format!("merge[{} -> {}]", all(dims), name(into)),
        Operation::Rename { from, to } => format!("rename[{} -> {}]", name(from), name(to)),
        Operation::StopGradient => "stop_gradient".to_owned(),
        Operation::Random => "random".to_owned(),
        Operation::Attention(it) => {
            let mut text = format!(
                "attention[{}, {}, {} -> {}]",
                name(&it.query),
                name(&it.key),
                name(&it.head),
                name(&it.value)
            );
            text.push_str(if it.causal { " causal" } else { "" });
            if let Some(window) = it.window {
                text.push_str(&format!(" window {window}"));
            }
            if let Some(cap) = it.softcap {
                text.push_str(&format!(" softcap {cap:?}"));
            }
            text.push_str(if it.documents { " documents" } else { "" });
            text.push_str(&format!(" scale {:?}", it.scale));
            text
        }
        Operation::Repeat { dim, .. } => format!("repeat[{}]", name(dim)),
        Operation::Project(index) => format!("project {index}"),
    }
}
