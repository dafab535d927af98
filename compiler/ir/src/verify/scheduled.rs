//! The last stage: the sharded rules, every reshard lowered, and fused kernels that hold what a kernel can.

use super::sharded::Rules;
use super::structure::check;
use super::{Scheduled, Verified};
use crate::fault::Fault;
use crate::op::Op;
use crate::program::{Inst, Program};

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
    Ok(Verified::new(program))
}

fn fusable(inst: &Inst) -> Result<(), String> {
    match inst.op {
        Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } | Op::Map(_) | Op::Reduce { .. } => Ok(()),
        Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } => Ok(()),
        Op::Pad { .. } | Op::Concat { .. } | Op::LocalSlice => Ok(()),
        Op::Dot | Op::Take { .. } | Op::ScatterAdd { .. } | Op::StopGradient | Op::Scan(_) | Op::Fused(_) => {
            Err(format!("a fused kernel can't hold {}", inst.op.name()))
        }
        Op::Attention(_) | Op::AttentionGradient(_) | Op::Reshard(_) | Op::Collective(_) => {
            Err(format!("a fused kernel can't hold {}", inst.op.name()))
        }
    }
}
