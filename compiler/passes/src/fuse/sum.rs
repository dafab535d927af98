//! Sums over the iterations of a loop that a product or a scatter can add to by itself.
//!
//! ```text
//! before:  %s = scan[M](%zeros) {(%carry)        after:  %s = scan[M, outputs (sum)](%zeros) {()
//!            %part = dot %x, %y                            %part = dot %x, %y
//!            yield add %carry, %part }                     yield %part }
//! ```

use crate::uses::for_each_use;
use dtlc_ir::{Inst, Op, Program, Region, ScalarOp, Scan, ScanOutput, Value};

/// Makes outputs of a loop's carries that are nothing but such sums.
pub(super) fn in_place(program: &Program, inst: &mut Inst) {
    let Inst { op: Op::Scan(scan), args, results, .. } = inst else { return };
    let mut carry = 0;
    while carry < scan.carries {
        let Some((at, part)) = running_sum(program, scan, carry) else {
            carry += 1;
            continue;
        };
        scan.body.insts.remove(at);
        scan.body.params.remove(carry);
        scan.body.yields.remove(carry);
        scan.body.yields.push(part);
        scan.carries -= 1;
        scan.outputs.push(ScanOutput::Sum);
        let (initial, result) = (args.remove(carry), results.remove(carry));
        args.push(initial);
        results.push(result);
    }
}

/// The addition that is all that happens to a carry, and what it adds.
fn running_sum(program: &Program, scan: &Scan, carry: usize) -> Option<(usize, Value)> {
    let (param, next) = (scan.body.params[carry], scan.body.yields[carry]);
    let at = scan.body.insts.iter().position(|inst| inst.results.contains(&next))?;
    let add = &scan.body.insts[at];
    let part = match add.args[..] {
        [one, other] if one == param && add.op == Op::Map(ScalarOp::Add) => other,
        [one, other] if other == param && add.op == Op::Map(ScalarOp::Add) => one,
        _ => return None,
    };
    let maker = scan.body.insts.iter().find(|inst| inst.results.contains(&part))?;
    let adds = matches!(maker.op, Op::Dot(_) | Op::ScatterAdd { .. });
    let alone = [param, next, part].iter().all(|&value| uses(&scan.body, value) == 1);
    let alike = program.ty(part) == program.ty(param);
    (adds && alone && alike).then_some((at, part))
}

/// How often a region reads a value.
fn uses(region: &Region, value: Value) -> usize {
    let mut count = region.yields.iter().filter(|&&yielded| yielded == value).count();
    for inst in &region.insts {
        for_each_use(inst, &mut |used| count += usize::from(used == value));
    }
    count
}
