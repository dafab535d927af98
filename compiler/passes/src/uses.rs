//! Who uses what: walks over the values that instructions read, nested regions included.
//!
//! Shared by the passes that reorder, fuse or drop instructions. Changes nothing.

use dtlc_ir::{Inst, Op, Region, Value};
use rustc_hash::FxHashSet;

/// Calls `visit` for every value that an instruction reads from outside itself: its arguments, and what
/// the body of a scan captures.
pub fn for_each_use(inst: &Inst, visit: &mut dyn FnMut(Value)) {
    for &arg in &inst.args {
        visit(arg);
    }
    if let Op::Scan(scan) = &inst.op {
        for value in captures(&scan.body) {
            visit(value);
        }
    }
}

/// The values that a region uses and does not define, each once, in order of first use.
pub fn captures(region: &Region) -> Vec<Value> {
    let mut defined = FxHashSet::default();
    collect_defined(region, &mut defined);
    let mut seen = FxHashSet::default();
    let mut found = Vec::new();
    let mut visit = |value: Value| {
        if !defined.contains(&value) && seen.insert(value) {
            found.push(value);
        }
    };
    visit_region(region, &mut visit);
    found
}

fn collect_defined(region: &Region, defined: &mut FxHashSet<Value>) {
    defined.extend(&region.params);
    for inst in &region.insts {
        defined.extend(&inst.results);
        if let Some(body) = inst.op.region() {
            collect_defined(body, defined);
        }
    }
}

/// Calls `visit` for each value that a region or one inside it reads, in order.
pub fn visit_region(region: &Region, visit: &mut dyn FnMut(Value)) {
    for inst in &region.insts {
        for &arg in &inst.args {
            visit(arg);
        }
        if let Some(body) = inst.op.region() {
            visit_region(body, visit);
        }
    }
    for &value in &region.yields {
        visit(value);
    }
}
