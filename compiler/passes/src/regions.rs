//! Changes to regions that several passes share.

use crate::uses::for_each_use;
use dtlc_ir::{Inst, Op, Program, Region, Scan, ScanOutput, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeSet;

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

/// Slices of stacks that two scans over the same both read: the first body's with the second's.
pub fn shared_slices(first: &Inst, second: &Inst) -> Vec<(Value, Value)> {
    let (Op::Scan(one), Op::Scan(other)) = (&first.op, &second.op) else { return Vec::new() };
    let slices = |scan: &Scan| scan.carries..scan.carries + scan.stacks;
    let twin = |position: usize| {
        let found = slices(other).find(|&found| second.args[found] == first.args[position])?;
        Some((one.body.params[position], other.body.params[found]))
    };
    slices(one).filter_map(twin).collect()
}

/// Lets a scan yield a value of its body, of all iterations in a stack, which it returns.
pub fn add_stack_output(
    program: &mut Program,
    scan: &mut Scan,
    results: &mut SmallVec<[Value; 2]>,
    value: Value,
) -> Value {
    let mut info = program.values[value].clone();
    info.ty.dims.insert(0, scan.dim);
    let stack = program.values.push(info);
    scan.body.yields.push(value);
    scan.outputs.push(ScanOutput::Stack);
    results.push(stack);
    stack
}

/// Lets a scan read a stack, a slice an iteration.
pub fn add_stack_input(scan: &mut Scan, args: &mut SmallVec<[Value; 4]>, stack: Value, slice: Value) {
    let at = scan.carries + scan.stacks;
    args.insert(at, stack);
    scan.body.params.insert(at, slice);
    scan.stacks += 1;
}

/// Sorts units so that each stands behind what it uses; among those that could come next, the one that
/// came first originally.
pub fn ordered(units: Vec<(usize, Inst)>) -> Vec<Inst> {
    let mut maker: FxHashMap<Value, usize> = FxHashMap::default();
    for (unit, (_, inst)) in units.iter().enumerate() {
        maker.extend(inst.results.iter().map(|&result| (result, unit)));
    }
    let mut waiting = vec![0usize; units.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
    for (unit, (_, inst)) in units.iter().enumerate() {
        for_each_use(inst, &mut |value| {
            if let Some(&source) = maker.get(&value) {
                waiting[unit] += 1;
                users[source].push(unit);
            }
        });
    }
    let mut ready: BTreeSet<(usize, usize)> =
        (0..units.len()).filter(|&unit| waiting[unit] == 0).map(|unit| (units[unit].0, unit)).collect();
    let mut order = Vec::with_capacity(units.len());
    while let Some((_, unit)) = ready.pop_first() {
        order.push(unit);
        for &user in &users[unit] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.insert((units[user].0, user));
            }
        }
    }
    let mut insts: Vec<Option<Inst>> = units.into_iter().map(|(_, inst)| Some(inst)).collect();
    order.into_iter().filter_map(|unit| insts[unit].take()).collect()
}
