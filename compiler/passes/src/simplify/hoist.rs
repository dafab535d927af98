//! Takes out of a scan's body what is the same in each iteration.
//!
//! Values that are cheaper to compute again than to read (constants, coordinates, broadcasts) are copied out
//! for what goes, and stay for what does not; constants that a body reads from outside come into it.

use crate::cheap::is_cheap;
use crate::regions::{copy, substitute};
use crate::uses::captures;
use dtlc_ir::{Dim, Inst, Op, Program, Region, Scan, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// The instructions that can stand before the scan over `dim`, and the body without them.
pub fn hoist(program: &mut Program, dim: Dim, body: Region) -> (Vec<Inst>, Region) {
    let Region { params, insts, yields } = body;
    let mut varying: FxHashSet<Value> = params.iter().copied().collect();
    let (mut movable, mut inside) = (Vec::new(), Vec::new());
    for inst in insts {
        let stays = !may_move(&inst.op, dim) || inst.args.iter().any(|arg| varying.contains(arg));
        if stays {
            varying.extend(&inst.results);
            inside.push(inst);
        } else if is_cheap(program, &inst) {
            movable.push((inst.clone(), Cost::Cheap));
            inside.push(inst);
        } else {
            movable.push((inst, Cost::Worth));
        }
    }
    (moved(program, movable), Region { params, insts: inside, yields })
}

/// Gives a scan's body its own copies of the constants that it reads; whether there were any.
pub fn sink(program: &mut Program, definitions: &FxHashMap<Value, Inst>, scan: &mut Scan) -> bool {
    let constant = |value: &Value| definitions.get(value).filter(|inst| matches!(inst.op, Op::Constant(_)));
    let captured = captures(&scan.body);
    let mut constants: Vec<Inst> = captured.iter().filter_map(constant).cloned().collect();
    let mut copies: FxHashMap<Value, Value> = FxHashMap::default();
    // They belong to the layer that they are in now.
    let origin = scan.body.insts.first().map(|inst| program.values[inst.results[0]].origin);
    for inst in &mut constants {
        copy(program, inst, &mut copies);
        let info = &mut program.values[inst.results[0]];
        info.origin = origin.unwrap_or(info.origin);
    }
    substitute(&mut scan.body, &copies);
    scan.body.insts.splice(0..0, constants);
    !copies.is_empty()
}

/// Whether a value is worth keeping rather than computing again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cost {
    Cheap,
    Worth,
}

/// The instructions worth moving, and copies of the cheap ones that they need.
fn moved(program: &mut Program, movable: Vec<(Inst, Cost)>) -> Vec<Inst> {
    let mut needed: FxHashSet<Value> = FxHashSet::default();
    for (inst, cost) in movable.iter().rev() {
        if *cost == Cost::Worth || needed.contains(&inst.results[0]) {
            needed.extend(&inst.args);
        }
    }
    let mut copies: FxHashMap<Value, Value> = FxHashMap::default();
    let mut all = Vec::new();
    for (mut inst, cost) in movable {
        inst.args.iter_mut().for_each(|arg| *arg = copies.get(arg).copied().unwrap_or(*arg));
        if cost == Cost::Cheap {
            if !needed.contains(&inst.results[0]) {
                continue;
            }
            let info = program.values[inst.results[0]].clone();
            let copy = program.values.push(info);
            copies.insert(inst.results[0], copy);
            inst.results = SmallVec::from_slice(&[copy]);
        }
        all.push(inst);
    }
    all
}

/// Whether an operation computes the same inside the scan over `dim` and outside.
fn may_move(op: &Op, over: Dim) -> bool {
    match op {
        Op::Iota { dim } => *dim != over,
        Op::Random { dims, .. } => !dims.contains(&over),
        Op::Scan(_) => false,
        Op::Constant(_)
        | Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot(_)
        | Op::Rename { .. }
        | Op::Split { .. }
        | Op::Merge { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Take { .. }
        | Op::ScatterAdd { .. }
        | Op::StopGradient
        | Op::Attention(_)
        | Op::AttentionGradient(_) => true,
        Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done | Op::Fused(_) => false,
    }
}
