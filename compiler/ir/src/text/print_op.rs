//! Prints an operation with its attributes, without arguments.

use super::names::word;
use crate::dim::Dim;
use crate::op::{Attention, Collective, Factors, Literal, Op, Packing, Scan, ScanOutput};
use crate::program::Program;

/// `reduce_sum[D, K]`.
pub(super) fn op_text(program: &Program, op: &Op) -> String {
    let name = op.name();
    let dim = |dim: &Dim| word(&program.dims[*dim].name);
    let list = |dims: &[Dim]| dims.iter().map(dim).collect::<Vec<_>>().join(", ");
    match op {
        Op::Constant(literal) => format!("const {}", literal_text(*literal)),
        Op::Iota { dim: along } | Op::Take { dim: along } | Op::ScatterAdd { dim: along } => {
            format!("{name}[{}]", dim(along))
        }
        Op::Reduce { op: _, dims } => format!("{name}[{}]", list(dims)),
        Op::Rename { from, to } => format!("rename[{} -> {}]", dim(from), dim(to)),
        Op::Split { dim: from, into } => format!("split[{} -> {}]", dim(from), list(into)),
        Op::Merge { dims, into } => format!("merge[{} -> {}]", list(dims), dim(into)),
        Op::Slice { dim: from, start, into: None } => format!("slice[{} from {start}]", dim(from)),
        Op::Slice { dim: from, start, into: Some(into) } => {
            format!("slice[{} from {start} -> {}]", dim(from), dim(into))
        }
        Op::Pad { dim: None, start, into } => format!("pad[-> {} from {start}]", dim(into)),
        Op::Pad { dim: Some(from), start, into } => {
            format!("pad[{} -> {} from {start}]", dim(from), dim(into))
        }
        Op::Concat { pieces, into } => {
            let pieces: Vec<String> = pieces
                .iter()
                .map(|piece| match piece {
                    Some(piece) => dim(piece),
                    None => "*".to_string(),
                })
                .collect();
            format!("concat[{} -> {}]", pieces.join(", "), dim(into))
        }
        Op::Random { stream, dims } => format!("random[stream {stream} over {}]", list(dims)),
        Op::Attention(attention) | Op::AttentionGradient(attention) => {
            format!("{name}[{}]", attention_text(program, attention))
        }
        Op::Scan(scan) => format!("scan[{}]", scan_text(program, scan)),
        Op::Collective(collective) => format!("{name}[{}]", collective_text(program, collective)),
        Op::Dot(Factors::Tf32) => format!("{name}[tf32]"),
        Op::Dot(Factors::AsStored)
        | Op::Map(_)
        | Op::StopGradient
        | Op::Reshard(_)
        | Op::LocalSlice
        | Op::Done
        | Op::Fused(_) => name.to_string(),
    }
}

fn literal_text(literal: Literal) -> String {
    match literal {
        Literal::Float(value) => format!("{value:?}"),
        Literal::Int(value) => value.to_string(),
        Literal::Bool(value) => value.to_string(),
    }
}

fn attention_text(program: &Program, attention: &Attention) -> String {
    let dim = |dim: Dim| word(&program.dims[dim].name);
    let mut text = format!(
        "query {}, key {}, head {}, value {}, scale {:?}",
        dim(attention.query),
        dim(attention.key),
        dim(attention.head),
        dim(attention.value),
        attention.scale
    );
    if attention.causal {
        text.push_str(", causal");
    }
    if let Some(window) = attention.window {
        text.push_str(&format!(", window {window}"));
    }
    if let Some(softcap) = attention.softcap {
        text.push_str(&format!(", softcap {softcap:?}"));
    }
    match attention.packing {
        Packing::Whole => {}
        Packing::Documents => text.push_str(", documents"),
    }
    text
}

fn scan_text(program: &Program, scan: &Scan) -> String {
    let mut text = word(&program.dims[scan.dim].name);
    if scan.reverse {
        text.push_str(", reverse");
    }
    text.push_str(&format!(", carries {}, stacks {}", scan.carries, scan.stacks));
    if !scan.outputs.is_empty() {
        let outputs: Vec<&str> = scan
            .outputs
            .iter()
            .map(|output| match output {
                ScanOutput::Stack => "stack",
                ScanOutput::Accumulate => "accumulate",
                ScanOutput::Sum => "sum",
            })
            .collect();
        text.push_str(&format!(", outputs ({})", outputs.join(", ")));
    }
    text
}

fn collective_text(program: &Program, collective: &Collective) -> String {
    let axes: Vec<String> =
        collective.axes.iter().map(|&axis| super::print::axis_text(program, axis)).collect();
    let reduce =
        if collective.kind.reduces() { format!("{}: ", collective.reduce.name()) } else { String::new() };
    format!("{reduce}{}", axes.join(", "))
}
