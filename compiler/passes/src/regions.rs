//! Changes to regions that several passes share.

use dtlc_ir::{Region, Value};
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
