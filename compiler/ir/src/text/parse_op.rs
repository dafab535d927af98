//! Parses operations with their attributes.

use super::parse::{
    Pair, Result, Rule, Tables, exactly, fail, first, named, number, only, reduce_op, unquote,
};
use crate::dim::Dim;
use crate::op::{
    Attention, Collective, CollectiveKind, Factors, Literal, Op, Packing, Reason, ScalarOp, Scan, ScanOutput,
};
use crate::program::Region;
use crate::types::ReduceOp;
use smallvec::SmallVec;

/// The operation that `pair` writes, given the body and the reasons that stand behind its arguments.
pub(super) fn op(tables: &Tables, pair: Pair<'_>, body: Option<Region>, reasons: Vec<Reason>) -> Result<Op> {
    let takes_body = pair.as_rule() == Rule::scan || pair.as_str() == "fused";
    if takes_body != body.is_some() {
        return fail(&pair, if takes_body { "this has a body" } else { "this has no body" });
    }
    Ok(match pair.as_rule() {
        Rule::constant => Op::Constant(literal(only(pair)?)?),
        Rule::iota => Op::Iota { dim: tables.dim(&only(pair)?)? },
        Rule::reduce => {
            let [op, dims] = exactly(pair)?;
            Op::Reduce { op: reduce_op(&op)?, dims: self::dims(tables, dims)? }
        }
        Rule::dot => Op::Dot(match pair.into_inner().next() {
            Some(_) => Factors::Tf32,
            None => Factors::AsStored,
        }),
        Rule::rename => {
            let [from, to] = exactly(pair)?;
            Op::Rename { from: tables.dim(&from)?, to: tables.dim(&to)? }
        }
        Rule::split => {
            let [dim, into] = exactly(pair)?;
            Op::Split { dim: tables.dim(&dim)?, into: dims(tables, into)? }
        }
        Rule::merge => {
            let [dims, into] = exactly(pair)?;
            Op::Merge { dims: self::dims(tables, dims)?, into: tables.dim(&into)? }
        }
        Rule::slice => slice(tables, pair)?,
        Rule::pad => pad(tables, pair)?,
        Rule::concat => concat(tables, pair)?,
        Rule::take => Op::Take { dim: tables.dim(&only(pair)?)? },
        Rule::scatter_add => Op::ScatterAdd { dim: tables.dim(&only(pair)?)? },
        Rule::random => {
            let [stream, dims] = exactly(pair)?;
            Op::Random { stream: number(&stream)?, dims: self::dims(tables, dims)? }
        }
        Rule::attention => Op::Attention(attention(tables, pair)?),
        Rule::attention_gradient => Op::AttentionGradient(attention(tables, pair)?),
        Rule::scan => Op::Scan(scan(tables, pair, body.unwrap_or_default())?),
        Rule::collective => Op::Collective(collective(tables, pair, reasons)?),
        Rule::plain => plain(&pair, body, reasons)?,
        _ => return fail(&pair, "unknown operation"),
    })
}

/// `because "..." with leave`.
pub(super) fn reason(pair: Pair<'_>) -> Result<Reason> {
    let leave_to_gather = pair.clone().into_inner().nth(1).is_some();
    let [text] = first(pair)?;
    Ok(Reason { text: unquote(text.as_str()), leave_to_gather })
}

fn plain(pair: &Pair<'_>, body: Option<Region>, mut reasons: Vec<Reason>) -> Result<Op> {
    match pair.as_str() {
        "stop_gradient" => Ok(Op::StopGradient),
        "fused" => Ok(Op::Fused(body.unwrap_or_default())),
        "local_slice" => Ok(Op::LocalSlice),
        "done" => Ok(Op::Done),
        "reshard" => match (reasons.pop(), reasons.is_empty()) {
            (Some(reason), true) => Ok(Op::Reshard(reason)),
            (Some(_) | None, _) => fail(pair, "a reshard has one reason"),
        },
        _ => Ok(Op::Map(named(pair, &ScalarOp::ALL, ScalarOp::name)?)),
    }
}

fn literal(pair: Pair<'_>) -> Result<Literal> {
    Ok(match pair.as_rule() {
        Rule::float => Literal::Float(number(&pair)?),
        Rule::integer => Literal::Int(number(&pair)?),
        _ => Literal::Bool(pair.as_str() == "true"),
    })
}

fn dims<A: FromIterator<Dim>>(tables: &Tables, pair: Pair<'_>) -> Result<A> {
    pair.into_inner().map(|name| tables.dim(&name)).collect()
}

fn slice(tables: &Tables, pair: Pair<'_>) -> Result<Op> {
    let into = pair.clone().into_inner().nth(2).map(|into| tables.dim(&into)).transpose()?;
    let [dim, start] = first(pair)?;
    Ok(Op::Slice { dim: tables.dim(&dim)?, start: number(&start)?, into })
}

fn pad(tables: &Tables, pair: Pair<'_>) -> Result<Op> {
    let parts: Vec<Pair<'_>> = pair.clone().into_inner().collect();
    match &parts[..] {
        [into, start] => Ok(Op::Pad { dim: None, start: number(start)?, into: tables.dim(into)? }),
        [dim, into, start] => {
            Ok(Op::Pad { dim: Some(tables.dim(dim)?), start: number(start)?, into: tables.dim(into)? })
        }
        _ => fail(&pair, "expected `pad[D -> E from 0]`"),
    }
}

fn concat(tables: &Tables, pair: Pair<'_>) -> Result<Op> {
    let mut pieces = SmallVec::new();
    let mut into = None;
    for part in pair.clone().into_inner() {
        match (part.as_rule(), part.clone().into_inner().next()) {
            (Rule::piece, Some(piece)) if piece.as_rule() == Rule::name => {
                pieces.push(Some(tables.dim(&piece)?));
            }
            (Rule::piece, _) => pieces.push(None),
            (_, _) => into = Some(tables.dim(&part)?),
        }
    }
    match into {
        Some(into) => Ok(Op::Concat { pieces, into }),
        None => fail(&pair, "expected `concat[D, E -> F]`"),
    }
}

fn attention(tables: &Tables, pair: Pair<'_>) -> Result<Attention> {
    let [query, key, head, value, scale] = first(pair.clone())?;
    let mut attention = Attention {
        query: tables.dim(&query)?,
        key: tables.dim(&key)?,
        head: tables.dim(&head)?,
        value: tables.dim(&value)?,
        causal: false,
        window: None,
        packing: Packing::Whole,
        softcap: None,
        scale: number(&scale)?,
    };
    for part in pair.into_inner().skip(5) {
        match part.as_rule() {
            Rule::causal => attention.causal = true,
            Rule::window => attention.window = Some(number(&only(part)?)?),
            Rule::softcap => attention.softcap = Some(number(&only(part)?)?),
            Rule::documents => attention.packing = Packing::Documents,
            _ => return fail(&part, "unexpected in an attention"),
        }
    }
    Ok(attention)
}

fn scan(tables: &Tables, pair: Pair<'_>, body: Region) -> Result<Scan> {
    let [dim] = first(pair.clone())?;
    let mut scan =
        Scan { dim: tables.dim(&dim)?, reverse: false, body, carries: 0, stacks: 0, outputs: Vec::new() };
    let mut counts = Vec::new();
    for part in pair.into_inner().skip(1) {
        match part.as_rule() {
            Rule::reverse => scan.reverse = true,
            Rule::integer => counts.push(number(&part)?),
            Rule::scan_outputs => {
                let outputs = part.into_inner().map(|output| match output.as_str() {
                    "accumulate" => ScanOutput::Accumulate,
                    "sum" => ScanOutput::Sum,
                    _ => ScanOutput::Stack,
                });
                scan.outputs = outputs.collect();
            }
            _ => return fail(&part, "unexpected in a scan"),
        }
    }
    if let [carries, stacks] = counts[..] {
        (scan.carries, scan.stacks) = (carries, stacks);
    }
    Ok(scan)
}

fn collective(tables: &Tables, pair: Pair<'_>, reasons: Vec<Reason>) -> Result<Collective> {
    let [kind] = first(pair.clone())?;
    let kind = named(&kind, &CollectiveKind::ALL, CollectiveKind::name)?;
    let mut collective = Collective { kind, axes: SmallVec::new(), reduce: ReduceOp::Sum, reasons };
    for part in pair.into_inner().skip(1) {
        match part.as_rule() {
            Rule::reduce_op if kind.reduces() => collective.reduce = reduce_op(&part)?,
            Rule::reduce_op => return fail(&part, "this collective combines nothing"),
            _ => collective.axes.push(tables.axis(&part)?),
        }
    }
    Ok(collective)
}
