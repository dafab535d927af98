//! The typed model and plan as text: stage `model` of `dtlc emit`.
//!
//! For people and for tests; it is not read back.

use crate::model::{Block, DimId, Element, Graph, Model, NodeId, Operation, TensorType};
use std::fmt::{self, Display, Formatter, Write};

impl Display for Model {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "model {} {{", self.name)?;
        for dim in self.dims.values() {
            write!(f, "  dim {} = {}", dim.name, dim.size)?;
            if !dim.factors.is_empty() {
                write!(f, " = {}", list(self, &dim.factors, " * "))?;
            }
            writeln!(f, "{}", if dim.open { " // open" } else { "" })?;
        }
        for param in self.params.values() {
            let ty = TensorType { element: param.element, dims: param.dims.clone() };
            write!(f, "  param {}", param.path)?;
            if !param.stack.is_empty() {
                write!(f, " stacked over {}", list(self, &param.stack, ", "))?;
            }
            write!(f, ": {} = {:?} kind {:?}", type_text(self, &ty), param.init, param.kind)?;
            match &param.alias {
                Some(alias) => writeln!(f, " as {alias:?}")?,
                None => writeln!(f)?,
            }
        }
        let inputs = self.graph.inputs.iter().map(|it| format!("{}: {}", it.name, type_text(self, &it.ty)));
        writeln!(f, "  loss({}) {{", inputs.collect::<Vec<_>>().join(", "))?;
        let mut printer = Printer { model: self, graph: &self.graph, text: String::new() };
        printer.block(&self.graph.block, 2)?;
        f.write_str(&printer.text)?;
        f.write_str("  }\n}\n")
    }
}

struct Printer<'a> {
    model: &'a Model,
    graph: &'a Graph,
    text: String,
}

impl Printer<'_> {
    fn block(&mut self, block: &Block, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        for &id in &block.nodes {
            let node = &self.graph.nodes[id];
            let name = operation_text(self.model, &node.operation);
            let args = nodes(&node.args);
            let separator = if args.is_empty() { "" } else { " " };
            write!(self.text, "{indent}{id}: {} = {name}{separator}{args}", type_text(self.model, &node.ty))?;
            if let Operation::Repeat { body, .. } = &node.operation {
                writeln!(self.text, " {{")?;
                self.block(body, depth + 1)?;
                writeln!(self.text, "{indent}}}")?;
            } else {
                writeln!(self.text)?;
            }
        }
        writeln!(self.text, "{indent}yield {}", nodes(&block.results))
    }
}

fn nodes(ids: &[NodeId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn list(model: &Model, dims: &[DimId], with: &str) -> String {
    dims.iter().map(|&dim| model.dims[dim].name.as_str()).collect::<Vec<_>>().join(with)
}

/// A type as the source has it.
pub fn type_text(model: &Model, ty: &TensorType) -> String {
    let element = match ty.element {
        Element::Float => "",
        Element::F32 => "f32",
        Element::Bf16 => "bf16",
        Element::I32 => "i32",
        Element::U32 => "u32",
        Element::Bool => "bool",
    };
    format!("{element}[{}]", list(model, &ty.dims, ", "))
}

fn operation_text(model: &Model, operation: &Operation) -> String {
    let name = |dim: &DimId| model.dims[*dim].name.as_str();
    let all = |dims: &[DimId]| list(model, dims, ", ");
    match operation {
        Operation::Input(index) => format!("input {}", model.graph.inputs[*index].name),
        Operation::Carry(index) => format!("carry {index}"),
        Operation::Param(param) => format!("param {}", model.params[*param].path),
        Operation::Number(number) => format!("{number:?}"),
        Operation::Truth(truth) => format!("{truth}"),
        Operation::Iota(dim) => format!("iota[{}]", name(dim)),
        Operation::Elementwise(function) => format!("{function:?}").to_lowercase(),
        Operation::Cast => "cast".to_owned(),
        Operation::Dot { over } => format!("dot[{}]", all(over)),
        Operation::Reduce { with, over } => format!("{}[{}]", format!("{with:?}").to_lowercase(), all(over)),
        Operation::Take(dim) => format!("take[{}]", name(dim)),
        Operation::Slice { dim, start, into: Some(into) } => {
            format!("slice[{} -> {}] start {start}", name(dim), name(into))
        }
        Operation::Slice { dim, start, into: None } => format!("slice[{} = {start}]", name(dim)),
        Operation::Concat { pieces, into } => {
            let pieces = pieces.iter().map(|piece| piece.as_ref().map_or("1", name));
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
            text.push_str(&format!(" scale {:?}", it.scale));
            text
        }
        Operation::Repeat { dim, .. } => format!("repeat[{}]", name(dim)),
        Operation::Project(index) => format!("project {index}"),
    }
}
