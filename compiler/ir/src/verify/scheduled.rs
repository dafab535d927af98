//! The last stage: the sharded rules, every reshard lowered, every collective waited for before its results are
//! read, and fused kernels that hold what a kernel can.

use super::sharded::Rules;
use super::structure::check;
use super::{Scheduled, Verified};
use crate::fault::Fault;
use crate::op::Op;
use crate::program::{Inst, Program, Region, Value};
use rustc_hash::{FxHashMap, FxHashSet};

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
            body.insts.iter().try_for_each(fusable)?;
        }
        let resharded = matches!(inst.op, Op::Reshard(_));
        if resharded { Err("scheduling leaves no reshard".into()) } else { Ok(()) }
    })?;
    let flight = |message| Fault::of_program("verify scheduled", message);
    in_flight(program, &program.main, &FxHashSet::default()).map_err(flight)?;
    Ok(Verified::new(program))
}

/// Every collective of a region is waited for there, once, all its results together, and nothing but that reads
/// what is in flight. `outer` is what is in flight around the region.
fn in_flight(program: &Program, region: &Region, outer: &FxHashSet<Value>) -> Result<(), String> {
    let mut flying: FxHashMap<Value, &[Value]> = FxHashMap::default();
    for inst in &region.insts {
        if let Op::Done = inst.op {
            let started = inst.args.first().and_then(|arg| flying.get(arg).copied());
            if started != Some(&inst.args[..]) {
                return Err("a done waits for all results of one collective".into());
            }
            flying.retain(|value, _| !inst.args.contains(value));
            continue;
        }
        landed(program, &flying, outer, &inst.args)?;
        if let Op::Collective(_) = inst.op {
            flying.extend(inst.results.iter().map(|&result| (result, &inst.results[..])));
        }
        if let Some(body) = inst.op.region() {
            let around = outer.iter().chain(flying.keys()).copied().collect();
            in_flight(program, body, &around)?;
        }
    }
    landed(program, &flying, outer, &region.yields)?;
    match flying.keys().min() {
        Some(&value) => Err(format!("nothing waits for %{}", program.display_value(value))),
        None => Ok(()),
    }
}

/// None of these values is in flight.
fn landed(
    program: &Program,
    flying: &FxHashMap<Value, &[Value]>,
    outer: &FxHashSet<Value>,
    read: &[Value],
) -> Result<(), String> {
    match read.iter().find(|value| flying.contains_key(value) || outer.contains(value)) {
        Some(&value) => Err(format!("%{} is read while it is in flight", program.display_value(value))),
        None => Ok(()),
    }
}

fn fusable(inst: &Inst) -> Result<(), String> {
    match inst.op {
        Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } | Op::Map(_) | Op::Reduce { .. } => Ok(()),
        Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } => Ok(()),
        Op::Pad { .. } | Op::Concat { .. } | Op::LocalSlice => Ok(()),
        Op::Dot | Op::Take { .. } | Op::ScatterAdd { .. } | Op::StopGradient | Op::Scan(_) | Op::Fused(_) => {
            Err(format!("a fused kernel can't hold {}", inst.op.name()))
        }
        Op::Attention(_) | Op::AttentionGradient(_) | Op::Reshard(_) | Op::Collective(_) | Op::Done => {
            Err(format!("a fused kernel can't hold {}", inst.op.name()))
        }
    }
}
