//! Rewrites a region so that each group of instructions is one [`Op::Fused`], in an order that respects
//! every dependency and stays close to the original one.

use super::group::{Fate, Grouping};
use crate::regions::ordered;
use crate::uses::for_each_use;
use dtlc_ir::{Inst, Op, Phase, Program, Region, Scan, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Replaces the instructions of a region by kernels and what is left alone.
pub(super) fn rebuild(program: &mut Program, region: &mut Region, grouping: &Grouping) {
    let insts = std::mem::take(&mut region.insts);
    let mut units: Vec<(usize, Inst)> = Vec::new();
    for (index, inst) in insts.iter().enumerate() {
        match grouping.fates[index] {
            Fate::Alone => units.push((index, inst.clone())),
            Fate::Copied if is_wanted_outside(grouping, index) => {
                units.push((index, kernel(program, &insts, grouping, &[index])));
            }
            Fate::Copied | Fate::Grouped(_) => {}
        }
    }
    for members in grouping.groups.iter().filter(|members| !members.is_empty()) {
        let last = members[members.len() - 1];
        units.push((last, kernel(program, &insts, grouping, members)));
    }
    region.insts = ordered(units);
    separate_yields(program, region);
}

/// Whether something that is no kernel uses a copied instruction.
fn is_wanted_outside(grouping: &Grouping, index: usize) -> bool {
    let alone = |&user: &usize| grouping.fates[user] == Fate::Alone;
    grouping.escapes[index] || grouping.users[index].iter().any(alone)
}

/// One kernel of some instructions, and of the copied ones that they use.
fn kernel(program: &mut Program, insts: &[Inst], grouping: &Grouping, members: &[usize]) -> Inst {
    let mut members = with_copied(insts, grouping, members);
    // A product comes first; nothing that it reads is made in the kernel.
    members.sort_by_key(|&member| !matches!(insts[member].op, Op::Dot(_)));
    let inside: FxHashSet<usize> = members.iter().copied().collect();
    let mut body = Region::default();
    let mut args: SmallVec<[Value; 4]> = SmallVec::new();
    let mut renamed: FxHashMap<Value, Value> = FxHashMap::default();
    for &member in &members {
        let inst = &insts[member];
        let mut copy = inst.clone();
        for arg in &mut copy.args {
            *arg = *renamed.entry(*arg).or_insert_with_key(|&outer| {
                args.push(outer);
                let inner = copy_value(program, outer);
                body.params.push(inner);
                inner
            });
        }
        for result in &mut copy.results {
            let inner = copy_value(program, *result);
            renamed.insert(*result, inner);
            *result = inner;
        }
        body.insts.push(copy);
    }
    let mut results: SmallVec<[Value; 2]> = SmallVec::new();
    for &member in &members {
        let copied = grouping.fates[member] == Fate::Copied;
        let wanted = if copied { members.len() == 1 || is_last(&members, member, grouping) } else { true };
        let outside = |user: &usize| !inside.contains(user);
        if wanted && (grouping.escapes[member] || grouping.users[member].iter().any(outside)) {
            results.extend_from_slice(&insts[member].results);
        }
    }
    body.yields = results.iter().map(|result| renamed[result]).collect();
    let phase = members.last().map_or(Phase::Forward, |&last| insts[last].phase);
    Inst { op: Op::Fused(body), args, results, phase }
}

/// Whether a kernel was made for the sake of this copied instruction: it is the last, and no member is a group's.
fn is_last(members: &[usize], member: usize, grouping: &Grouping) -> bool {
    members.last() == Some(&member) && members.iter().all(|&other| grouping.fates[other] == Fate::Copied)
}

/// The members and, before them, the copied instructions that they need.
fn with_copied(insts: &[Inst], grouping: &Grouping, members: &[usize]) -> Vec<usize> {
    let mut all: Vec<usize> = members.to_vec();
    let mut at = 0;
    while at < all.len() {
        for arg in &insts[all[at]].args {
            if let Some(&maker) = grouping.definition.get(arg)
                && grouping.fates[maker] == Fate::Copied
                && !all.contains(&maker)
            {
                all.push(maker);
            }
        }
        at += 1;
    }
    all.sort_unstable();
    all
}

fn copy_value(program: &mut Program, value: Value) -> Value {
    let info = program.values[value].clone();
    program.values.push(info)
}

/// Gives every yield a definition of its own in the region: what is yielded twice, or comes from outside
/// or from a parameter, is copied by an empty kernel, so that each yield can have a place of its own.
fn separate_yields(program: &mut Program, region: &mut Region) {
    let mut roots: FxHashMap<Value, Value> = FxHashMap::default();
    let mut fresh: FxHashSet<Value> = FxHashSet::default();
    for inst in &region.insts {
        for &result in &inst.results {
            if super::shape::is_alias(&inst.op) {
                let root = roots.get(&inst.args[0]).copied().unwrap_or(inst.args[0]);
                roots.insert(result, root);
            } else {
                fresh.insert(result);
            }
        }
    }
    for position in 0..region.yields.len() {
        let value = region.yields[position];
        let root = roots.get(&value).copied().unwrap_or(value);
        if !fresh.remove(&root) {
            let phase = region.insts.last().map_or(Phase::Forward, |inst| inst.phase);
            region.yields[position] = copy_of(program, region, value, phase);
        }
    }
}

/// Makes each accumulated output of a loop the result of a kernel or product that nothing else uses, since
/// that instruction then adds it to the stack.
pub(super) fn separate_accumulated(program: &mut Program, scan: &mut Scan) {
    for (number, output) in scan.outputs.iter().enumerate() {
        let position = scan.carries + number;
        let value = scan.body.yields[position];
        let maker = scan.body.insts.iter().find(|inst| inst.results.contains(&value));
        let adds =
            maker.is_some_and(|inst| matches!(inst.op, Op::Fused(_) | Op::Dot(_) | Op::ScatterAdd { .. }));
        let mut uses = 0;
        for inst in &scan.body.insts {
            for_each_use(inst, &mut |used| uses += u32::from(used == value));
        }
        if output.has_initial() && !(adds && uses == 0) {
            let phase = scan.body.insts.last().map_or(Phase::Backward, |inst| inst.phase);
            scan.body.yields[position] = copy_of(program, &mut scan.body, value, phase);
        }
    }
}

fn copy_of(program: &mut Program, region: &mut Region, value: Value, phase: Phase) -> Value {
    let inner = copy_value(program, value);
    let result = copy_value(program, value);
    let body = Region { params: vec![inner], insts: Vec::new(), yields: vec![inner] };
    region.insts.push(Inst {
        op: Op::Fused(body),
        args: SmallVec::from_slice(&[value]),
        results: SmallVec::from_slice(&[result]),
        phase,
    });
    result
}
