//! Which values a parameter flows into through operations that have a gradient.

use cranelift_entity::EntitySet;
use dtlc_ir::{Inst, Op, Program, Region, ScalarOp, Scan, StateKind, Value};

/// The parameters and all that depends on them smoothly.
pub fn active(program: &Program) -> EntitySet<Value> {
    let mut active = EntitySet::new();
    for state in &program.states {
        if let StateKind::Parameter(_) = state.kind {
            active.insert(state.value);
        }
    }
    region(program, &program.main, &mut active);
    active
}

fn region(program: &Program, region: &Region, active: &mut EntitySet<Value>) {
    for inst in &region.insts {
        if let Op::Scan(body) = &inst.op {
            scan(program, body, inst, active);
        } else if lets_through(&inst.op) && inst.args.iter().any(|&arg| active.contains(arg)) {
            let floats = inst.results.iter().filter(|&&result| program.ty(result).dtype.is_float());
            active.extend(floats.copied());
        }
    }
}

/// A carry is active as soon as one iteration makes it so.
fn scan(program: &Program, scan: &Scan, inst: &Inst, active: &mut EntitySet<Value>) {
    let params = &scan.body.params;
    for (&param, &arg) in params.iter().zip(&inst.args) {
        spread(active, arg, param);
    }
    loop {
        region(program, &scan.body, active);
        let mut changed = false;
        for (&param, &next) in params[..scan.carries].iter().zip(&scan.body.yields) {
            changed |= spread(active, next, param);
        }
        if !changed {
            break;
        }
    }
    for (&result, &next) in inst.results.iter().zip(&scan.body.yields) {
        spread(active, next, result);
    }
    for (&result, &param) in inst.results[..scan.carries].iter().zip(params) {
        spread(active, param, result);
    }
    let mut init = scan.carries + scan.stacks;
    for (index, output) in scan.outputs.iter().enumerate() {
        if output.has_initial() {
            spread(active, inst.args[init], inst.results[scan.carries + index]);
            init += 1;
        }
    }
}

/// Makes `to` active if `from` is; whether that is news.
fn spread(active: &mut EntitySet<Value>, from: Value, to: Value) -> bool {
    active.contains(from) && active.insert(to)
}

fn lets_through(op: &Op) -> bool {
    match op {
        Op::StopGradient | Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } => false,
        Op::Map(op) => *op != ScalarOp::Floor,
        Op::Reduce { .. }
        | Op::Dot(_)
        | Op::Rename { .. }
        | Op::Split { .. }
        | Op::Merge { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Take { .. }
        | Op::ScatterAdd { .. }
        | Op::Attention(_)
        | Op::AttentionGradient(_)
        | Op::Scan(_)
        | Op::Reshard(_)
        | Op::LocalSlice
        | Op::Collective(_)
        | Op::Done
        | Op::Fused(_) => true,
    }
}
