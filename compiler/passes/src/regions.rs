//! Walks over regions that several passes share.

use dtlc_ir::{Op, Region, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Calls `visit` for each value that a region reads, those of regions inside it too, in order.
pub fn for_each_use(region: &Region, visit: &mut impl FnMut(Value)) {
    for inst in &region.insts {
        inst.args.iter().for_each(|&arg| visit(arg));
        if let Some(inside) = inst.op.region() {
            for_each_use(inside, visit);
        }
    }
    region.yields.iter().for_each(|&value| visit(value));
}

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

/// The values of enclosing regions that a region reads, once each, in order of first use.
pub fn captured(region: &Region) -> Vec<Value> {
    let mut seen = FxHashSet::default();
    defined(region, &mut seen);
    let mut found = Vec::new();
    for_each_use(region, &mut |value| {
        if seen.insert(value) {
            found.push(value);
        }
    });
    found
}

/// Every value that a region or one inside it defines.
pub fn defined(region: &Region, values: &mut FxHashSet<Value>) {
    values.extend(&region.params);
    for inst in &region.insts {
        values.extend(&inst.results);
        if let Op::Scan(scan) = &inst.op {
            defined(&scan.body, values);
        } else if let Some(inside) = inst.op.region() {
            defined(inside, values);
        }
    }
}
