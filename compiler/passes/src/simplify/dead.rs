//! Removes what no yield needs: instructions, and carries, stacks and outputs of scans.

use dtlc_ir::{Inst, Op, Program, Region, Scan, Value};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Removes dead code from the main region and all inside it.
pub fn remove(program: &mut Program) {
    let mut live: FxHashSet<Value> = program.main.yields.iter().copied().collect();
    mark(&program.main, &mut live);
    sweep(&mut program.main, &live);
}

/// Adds all that the live values of a region need.
fn mark(region: &Region, live: &mut FxHashSet<Value>) {
    for inst in region.insts.iter().rev() {
        match &inst.op {
            Op::Scan(scan) => mark_scan(scan, inst, live),
            _ if inst.results.iter().any(|result| live.contains(result)) => live.extend(&inst.args),
            _ => {}
        }
    }
}

/// A carry is needed where its result or its value in the body is; the latter may follow from another carry.
fn mark_scan(scan: &Scan, inst: &Inst, live: &mut FxHashSet<Value>) {
    let params = &scan.body.params;
    loop {
        let before = live.len();
        for (index, &value) in scan.body.yields.iter().enumerate() {
            let carried = index < scan.carries && live.contains(&params[index]);
            if carried || live.contains(&inst.results[index]) {
                live.insert(value);
            }
        }
        mark(&scan.body, live);
        if live.len() == before {
            break;
        }
    }
    for (index, &arg) in inst.args.iter().enumerate() {
        let needed = match params.get(index) {
            Some(param) if index < scan.carries => {
                live.contains(param) || live.contains(&inst.results[index])
            }
            Some(param) => live.contains(param),
            None => {
                accumulated(scan, inst, index - params.len()).is_some_and(|result| live.contains(&result))
            }
        };
        if needed {
            live.insert(arg);
        }
    }
}

/// The result of output number `wanted` among those with an initial value.
fn accumulated(scan: &Scan, inst: &Inst, wanted: usize) -> Option<Value> {
    let outputs = scan.outputs.iter().enumerate();
    let mut accumulates = outputs.filter(|(_, output)| output.has_initial());
    accumulates.nth(wanted).map(|(index, _)| inst.results[scan.carries + index])
}

fn sweep(region: &mut Region, live: &FxHashSet<Value>) {
    region.insts.retain_mut(|inst| {
        if let Op::Scan(_) = inst.op {
            sweep_scan(inst, live);
            return !inst.results.is_empty();
        }
        inst.results.iter().any(|result| live.contains(result))
    });
}

/// Keeps of a scan what is live.
fn sweep_scan(inst: &mut Inst, live: &FxHashSet<Value>) {
    let (args, results) = (inst.args.clone(), inst.results.clone());
    let Op::Scan(scan) = &mut inst.op else { return };
    let (carries, slices) = (scan.carries, scan.body.params.len());
    let keep_carry: Vec<bool> = (0..carries)
        .map(|index| live.contains(&results[index]) || live.contains(&scan.body.params[index]))
        .collect();
    let keep_slice = |index: usize| live.contains(&scan.body.params[index]);
    let keep_param: Vec<bool> = (0..slices)
        .map(|index| if index < carries { keep_carry[index] } else { keep_slice(index) })
        .collect();
    let keep_yield: Vec<bool> = (0..results.len())
        .map(|index| if index < carries { keep_carry[index] } else { live.contains(&results[index]) })
        .collect();
    let accumulates = scan.outputs.iter().zip(&keep_yield[carries..]);
    let keep_init: Vec<bool> =
        accumulates.filter(|(output, _)| output.has_initial()).map(|(_, &keep)| keep).collect();

    scan.outputs = kept(&scan.outputs, &keep_yield[carries..]).collect();
    scan.body.yields = kept(&scan.body.yields, &keep_yield).collect();
    scan.body.params = kept(&scan.body.params, &keep_param).collect();
    scan.stacks = keep_param[carries..].iter().filter(|&&keep| keep).count();
    scan.carries = keep_carry.iter().filter(|&&keep| keep).count();
    sweep(&mut scan.body, live);
    inst.results = kept(&results, &keep_yield).collect();
    let keep_arg: SmallVec<[bool; 8]> = keep_param.into_iter().chain(keep_init).collect();
    inst.args = kept(&args, &keep_arg).collect();
}

fn kept<'a, T: Clone>(items: &'a [T], keep: &'a [bool]) -> impl Iterator<Item = T> + 'a {
    items.iter().zip(keep).filter(|(_, keep)| **keep).map(|(item, _)| item.clone())
}
