//! When a kernel may write its result over an argument.

use dtlc_ir::{CollectiveKind, Inst, Op, Program, Region, Value};

/// Whether `inst` may store its result number `result` where its argument `arg` lies, given that nobody
/// reads the argument afterwards.
pub(super) fn may_overwrite(program: &Program, inst: &Inst, arg: Value, result: usize) -> bool {
    let (from, to) = (program.ty(arg), program.ty(inst.results[result]));
    if from.dtype.bytes() != to.dtype.bytes() || from.local_elements(program) != to.local_elements(program) {
        return false;
    }
    match &inst.op {
        Op::Fused(body) => {
            // A product is whole before anything is made of it.
            let is_product = body.product().is_some_and(|product| product.results[0] == body.yields[result]);
            !is_product
                && from.dims == to.dims
                && inst.args.iter().zip(&body.params).all(|(&outer, &inner)| {
                    outer != arg || is_read_where_written(program, body, inner, body.yields[result])
                })
        }
        Op::Collective(collective) => {
            collective.kind == CollectiveKind::AllReduce && inst.args.get(result) == Some(&arg)
        }
        _ => false,
    }
}

/// Whether each element of a parameter, and of what is computed from it element by element, is only read by the
/// iteration that stores the same element of the yield.
fn is_read_where_written(program: &Program, body: &Region, param: Value, stored: Value) -> bool {
    let dims = &program.ty(stored).dims;
    let mut elements = vec![param];
    body.insts.iter().all(|inst| {
        let reads = inst.args.iter().any(|arg| elements.contains(arg));
        match &inst.op {
            Op::Map(_) => {
                let result = inst.results[0];
                if reads {
                    elements.push(result);
                }
                !reads || program.ty(result).dims == *dims
            }
            Op::Reduce { .. } => {
                // Rows are finished before they are stored; columns are not.
                let (whole, kept) = (program.ty(inst.args[0]), program.ty(inst.results[0]));
                whole.dims.starts_with(&kept.dims) && (!reads || whole.dims == *dims)
            }
            // A view reads other elements than the one at hand.
            _ => !reads,
        }
    })
}
