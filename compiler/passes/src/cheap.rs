//! Which values are cheaper to compute again than to store and read back.

use dtlc_ir::{DType, Inst, Op, Program, ScalarOp};

/// Whether an instruction makes something that each use may as well have its own copy of: constants,
/// coordinates, what a cast widens or repeats, and other names of the same elements.
pub fn is_cheap(program: &Program, inst: &Inst) -> bool {
    match inst.op {
        Op::Constant(_) | Op::Iota { .. } | Op::Rename { .. } => true,
        Op::Map(ScalarOp::Cast) => {
            let (from, to) = (program.ty(inst.args[0]), program.ty(inst.results[0]));
            lossless(from.dtype, to.dtype) || from.elements(program) < to.elements(program)
        }
        _ => false,
    }
}

/// Whether every number of type `from` is one of type `to`.
pub fn lossless(from: DType, to: DType) -> bool {
    from == to || (from.is_half() && to == DType::F32) || from == DType::Bool
}
