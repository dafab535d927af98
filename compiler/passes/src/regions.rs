//! Changes to regions that several passes share.

use dtlc_ir::{Inst, Program, Region, Value};
use rustc_hash::FxHashMap;

/// Replaces what a region reads, regions inside it included.
pub fn substitute(region: &mut Region, replacements: &FxHashMap<Value, Value>) {
    let replace = |value: &mut Value| *value = replacements.get(value).copied().unwrap_or(*value);
    for inst in &mut region.insts {
        inst.args.iter_mut().for_each(replace);
        if let Some(inside) = inst.op.region_mut() {
            substitute(inside, replacements);
        }
    }
    region.yields.iter_mut().for_each(replace);
}

/// Gives whatever an instruction defines, inside it too, a value of its own, and lets it read the ones that
/// `copies` has already.
pub fn copy(program: &mut Program, inst: &mut Inst, copies: &mut FxHashMap<Value, Value>) {
    inst.args.iter_mut().for_each(|arg| *arg = copies.get(arg).copied().unwrap_or(*arg));
    if let Some(region) = inst.op.region_mut() {
        copy_all(program, &mut region.params, copies);
        region.insts.iter_mut().for_each(|inst| copy(program, inst, copies));
        region.yields.iter_mut().for_each(|value| *value = copies.get(value).copied().unwrap_or(*value));
    }
    copy_all(program, &mut inst.results, copies);
}

fn copy_all(program: &mut Program, values: &mut [Value], copies: &mut FxHashMap<Value, Value>) {
    for value in values {
        let copied = program.values.push(program.values[*value].clone());
        copies.insert(*value, copied);
        *value = copied;
    }
}
