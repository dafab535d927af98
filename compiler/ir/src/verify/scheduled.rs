//! The last stage: the sharded rules, every reshard lowered, every collective waited for before its results are
//! read, and fused kernels that hold what a kernel can.

use super::sharded::Rules;
use super::structure::check;
use super::{Scheduled, Verified};
use crate::fault::Fault;
use crate::op::Op;
use crate::program::{Inst, Program, Region, Value};
use rustc_hash::FxHashSet;

/// Checks a program as code generation takes it.
///
/// # Errors
/// The first rule broken.
pub fn scheduled(program: &Program) -> Result<Verified<'_, Scheduled>, Fault> {
    let rules = Rules::new(program);
    rules.signature("verify scheduled")?;
    check(program, "verify scheduled", &mut |_, inst| {
        rules.inst(inst)?;
        if let Op::Fused(body) = &inst.op {
            let rest = if body.product().is_some() { &body.insts[1..] } else { &body.insts };
            rest.iter().try_for_each(fusable)?;
            goes_on(program, body)?;
        }
        let resharded = matches!(inst.op, Op::Reshard(_));
        if resharded { Err("scheduling leaves no reshard".into()) } else { Ok(()) }
    })?;
    let flight = |message| Fault::of_program("verify scheduled", message);
    in_flight(program, &program.main, &FxHashSet::default()).map_err(flight)?;
    Ok(Verified::new(program))
}

/// Every collective of a region is waited for there, once, all its results together, and nothing else reads what it
/// brings but through that. `outer` are the results of the collectives around the region.
fn in_flight(program: &Program, region: &Region, outer: &FxHashSet<Value>) -> Result<(), String> {
    let mut started = outer.clone();
    let mut flying: Vec<&[Value]> = Vec::new();
    for inst in &region.insts {
        if let Op::Done = inst.op {
            let waited = flying.iter().position(|results| **results == inst.args[..]);
            flying.swap_remove(waited.ok_or("a done waits for all results of one collective")?);
            continue;
        }
        landed(program, &started, &inst.args)?;
        if let Op::Collective(_) = inst.op {
            started.extend(&inst.results);
            flying.push(&inst.results);
        }
        if let Some(body) = inst.op.region() {
            in_flight(program, body, &started)?;
        }
    }
    landed(program, &started, &region.yields)?;
    match flying.iter().flat_map(|results| *results).next() {
        Some(&value) => Err(format!("nothing waits for %{}", program.display_value(value))),
        None => Ok(()),
    }
}

/// None of the values that are read is what a collective brings.
fn landed(program: &Program, started: &FxHashSet<Value>, read: &[Value]) -> Result<(), String> {
    match read.iter().find(|value| started.contains(value)) {
        Some(&value) => Err(format!("%{} is read in flight", program.display_value(value))),
        None => Ok(()),
    }
}

/// A kernel that begins with a product goes on with its results, each at its own point.
fn goes_on(program: &Program, body: &Region) -> Result<(), String> {
    let Some(product) = body.product() else { return Ok(()) };
    let dims = &program.ty(product.results[0]).dims;
    let mut made_of_it = FxHashSet::from_iter([product.results[0]]);
    if body.insts.len() == 1 {
        return Err("a kernel of a product alone".into());
    }
    if product.args.iter().any(|arg| !body.params.contains(arg)) {
        return Err("a kernel makes what its product reads".into());
    }
    for inst in &body.insts[1..] {
        if matches!(inst.op, Op::Reduce { .. }) {
            return Err("a kernel with a product reduces".into());
        }
        if inst.args.iter().any(|arg| made_of_it.contains(arg)) {
            if !matches!(inst.op, Op::Map(_)) || program.ty(inst.results[0]).dims != *dims {
                return Err("a kernel uses results of its product elsewhere than at their own points".into());
            }
            made_of_it.extend(&inst.results);
        }
    }
    Ok(())
}

fn fusable(inst: &Inst) -> Result<(), String> {
    match inst.op {
        Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } | Op::Map(_) | Op::Reduce { .. } => Ok(()),
        Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } => Ok(()),
        Op::Pad { .. } | Op::Concat { .. } | Op::LocalSlice => Ok(()),
        Op::Dot(_)
        | Op::Take { .. }
        | Op::ScatterAdd { .. }
        | Op::StopGradient
        | Op::Scan(_)
        | Op::Fused(_) => Err(format!("a fused kernel can't hold {}", inst.op.name())),
        Op::Attention(_) | Op::AttentionGradient(_) | Op::Reshard(_) | Op::Collective(_) | Op::Done => {
            Err(format!("a fused kernel can't hold {}", inst.op.name()))
        }
    }
}
