//! Joins collectives of one block that can go together into one call: the weights that a block gathers,
//! the gradients it reduces, the scalars of a norm, all gradients at the end of a step.
//!
//! Only collectives of equal kind, axes, phase and reduction join, and only if no data flows from one to
//! another. A later one moves up to the first where its argument is there already and the move costs no
//! memory to speak of; or the earlier ones move down, where nothing has used their results yet.

use super::propagate::is_update;
use crate::uses::for_each_use;
use cranelift_entity::SecondaryMap;
use dtlc_ir::{Axis, CollectiveKind, Inst, Op, Phase, Program, ReduceOp, Region, Role, ScalarOp, Value};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Joins collectives in every region of a program.
pub fn merge_collectives(program: &mut Program) {
    let mut main = std::mem::take(&mut program.main);
    merge_region(program, &mut main);
    program.main = main;
}

/// What has to be equal.
#[derive(Clone, PartialEq)]
struct Key {
    kind: CollectiveKind,
    axes: SmallVec<[Axis; 2]>,
    phase: Phase,
    reduce: ReduceOp,
    /// Whether it moves parameters: those of a block go together, and apart from its activations.
    weights: bool,
    /// For a permutation, the axes that split each dimension it moves, before and after: who gets what of whom.
    turns: Vec<[SmallVec<[Axis; 2]>; 2]>,
}

/// Collectives that become one call, at the position of an instruction.
struct Group {
    key: Key,
    members: Vec<usize>,
    position: usize,
    open: bool,
}

fn merge_region(program: &Program, region: &mut Region) {
    for inst in &mut region.insts {
        if let Op::Scan(scan) = &mut inst.op {
            merge_region(program, &mut scan.body);
        }
    }
    postpone(region);
    advance(program, region);
    let groups = groups(program, region);
    apply(region, &groups);
}

/// Moves what waits for collectives of the update behind what doesn't, so that they come together.
fn postpone(region: &mut Region) {
    let mut levels: SecondaryMap<Value, u32> = SecondaryMap::new();
    let mut keyed: Vec<(u32, Inst)> = Vec::with_capacity(region.insts.len());
    for inst in std::mem::take(&mut region.insts) {
        let mut level = 0;
        for_each_use(&inst, &mut |value| level = level.max(levels[value]));
        let waits = is_update(inst.phase) && matches!(inst.op, Op::Collective(_));
        inst.results.iter().for_each(|&result| levels[result] = level + u32::from(waits));
        keyed.push((level, inst));
    }
    keyed.sort_by_key(|(level, _)| *level);
    region.insts = keyed.into_iter().map(|(_, inst)| inst).collect();
}

/// Moves the conversions of what a block gathers of its weights to its start, so that the gathers can go together.
fn advance(program: &Program, region: &mut Region) {
    if runs_layers(program, region) {
        return;
    }
    let defined = definitions(region);
    let moved = region.insts.iter().filter(|inst| matches!(inst.op, Op::Collective(_)));
    let moved: FxHashSet<Value> = moved.flat_map(|inst| inst.args.iter().copied()).collect();
    let is_early = |inst: &Inst| {
        let is_weight = inst.results.iter().all(|result| program.values[*result].role == Role::Parameter);
        let is_used = inst.results.iter().any(|result| moved.contains(result));
        inst.op == Op::Map(ScalarOp::Cast) && is_weight && is_used && defined[inst.args[0]].is_none()
    };
    let (early, late): (Vec<Inst>, Vec<Inst>) =
        std::mem::take(&mut region.insts).into_iter().partition(is_early);
    region.insts = early.into_iter().chain(late).collect();
}

fn turns(program: &Program, inst: &Inst) -> Vec<[SmallVec<[Axis; 2]>; 2]> {
    let (from, to) = (program.ty(inst.args[0]), program.ty(inst.results[0]));
    let both = |&dim| [from, to].map(|ty| ty.placement.axes_of(dim).collect());
    from.dims.iter().map(both).filter(|[before, after]| before != after).collect()
}

fn groups(program: &Program, region: &Region) -> Vec<Group> {
    let defined = definitions(region);
    let is_block = !runs_layers(program, region);
    let mut used = vec![false; region.insts.len()];
    // Where each instruction will stand, as far as is known.
    let mut stands: Vec<usize> = (0..region.insts.len()).collect();
    let mut groups: Vec<Group> = Vec::new();
    for (index, inst) in region.insts.iter().enumerate() {
        for_each_use(inst, &mut |value| {
            if let Some(definition) = defined[value] {
                used[definition] = true;
            }
        });
        let Op::Collective(collective) = &inst.op else { continue };
        let key = Key {
            kind: collective.kind,
            axes: collective.axes.clone(),
            phase: inst.phase,
            reduce: collective.reduce,
            weights: inst.args.iter().all(|&arg| program.values[arg].role == Role::Parameter),
            turns: if collective.kind == CollectiveKind::Permute { turns(program, inst) } else { Vec::new() },
        };
        let same = groups.iter_mut().rev().find(|group| group.open && group.key == key);
        let Some(group) = same else {
            groups.push(Group { key, members: vec![index], position: index, open: true });
            continue;
        };
        let is_there = inst.args.iter().all(|&arg| defined[arg].is_none_or(|at| stands[at] < group.position));
        let is_unused = group.members.iter().all(|&member| !used[member]);
        if is_unused {
            group.members.push(index);
            group.position = index;
            group.members.iter().for_each(|&member| stands[member] = index);
        } else if is_there && (is_block && key.weights || keeps_size(key.kind)) {
            group.members.push(index);
            stands[index] = group.position;
        } else {
            group.open = false;
            groups.push(Group { key, members: vec![index], position: index, open: true });
        }
    }
    groups
}

/// Whether a region runs a stack of layers: a loop, perhaps within others, over slices of parameters. Loops over chunks
/// of rows have none.
fn runs_layers(program: &Program, region: &Region) -> bool {
    region.insts.iter().any(|inst| match &inst.op {
        Op::Scan(scan) => {
            let mut stacks = inst.args[scan.carries..scan.carries + scan.stacks].iter();
            stacks.any(|&arg| program.values[arg].role == Role::Parameter) || runs_layers(program, &scan.body)
        }
        _ => false,
    })
}

/// Whether the result is no larger than the argument, so that an earlier call holds no more memory.
fn keeps_size(kind: CollectiveKind) -> bool {
    match kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => true,
        CollectiveKind::AllToAll | CollectiveKind::Permute => true,
        CollectiveKind::AllGather => false,
    }
}

/// The instruction of this region that defines each value.
fn definitions(region: &Region) -> SecondaryMap<Value, Option<usize>> {
    let mut defined = SecondaryMap::new();
    for (index, inst) in region.insts.iter().enumerate() {
        inst.results.iter().for_each(|&result| defined[result] = Some(index));
    }
    defined
}

fn apply(region: &mut Region, groups: &[Group]) {
    let mut insts: Vec<Option<Inst>> = std::mem::take(&mut region.insts).into_iter().map(Some).collect();
    for group in groups.iter().filter(|group| group.members.len() > 1) {
        let members: Vec<Inst> = group.members.iter().filter_map(|&index| insts[index].take()).collect();
        insts[group.position] = join(members);
    }
    region.insts = insts.into_iter().flatten().collect();
}

/// One call for all.
fn join(members: Vec<Inst>) -> Option<Inst> {
    let mut members = members.into_iter();
    let mut joined = members.next()?;
    for member in members {
        joined.args.extend(member.args);
        joined.results.extend(member.results);
        if let (Op::Collective(all), Op::Collective(one)) = (&mut joined.op, member.op) {
            all.reasons.extend(one.reasons);
        }
    }
    Some(joined)
}
