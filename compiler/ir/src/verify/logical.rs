//! The stages before placement: one device, no movement.

use super::structure::check;
use super::{Joint, Logical, Verified};
use crate::fault::Fault;
use crate::op::Op;
use crate::program::{Inst, Program};

/// Checks a program as lowering makes it.
///
/// # Errors
/// The first rule broken.
pub fn logical(program: &Program) -> Result<Verified<'_, Logical>, Fault> {
    check(program, "verify logical", &mut |_, inst| on_one_device(inst))?;
    unplaced(program, "verify logical")?;
    Ok(Verified::new(program))
}

/// Checks a program as differentiation makes it.
///
/// # Errors
/// The first rule broken.
pub fn joint(program: &Program) -> Result<Verified<'_, Joint>, Fault> {
    let rule = &mut |_: &[usize], inst: &Inst| {
        let stopped = matches!(inst.op, Op::StopGradient);
        if stopped { Err("differentiation leaves no stop_gradient".into()) } else { on_one_device(inst) }
    };
    check(program, "verify joint", rule)?;
    unplaced(program, "verify joint")?;
    Ok(Verified::new(program))
}

fn on_one_device(inst: &Inst) -> Result<(), String> {
    match inst.op {
        Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => {
            Err("nothing moves before placement".into())
        }
        Op::Fused(_) => Err("nothing is fused before scheduling".into()),
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot(_)
        | Op::Rename { .. } => Ok(()),
        Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. } => Ok(()),
        Op::Take { .. } | Op::ScatterAdd { .. } | Op::Random { .. } | Op::StopGradient => Ok(()),
        Op::Attention(_) | Op::AttentionGradient(_) | Op::Scan(_) => Ok(()),
    }
}

fn unplaced(program: &Program, found_by: &str) -> Result<(), Fault> {
    let placed = program.values.keys().find(|&value| !program.ty(value).placement.is_replicated());
    placed.map_or(Ok(()), |value| {
        let name = program.display_value(value);
        Err(Fault::of_program(found_by, format!("%{name} is placed, before placement")))
    })
}
