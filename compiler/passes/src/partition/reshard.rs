//! Lowers each reshard to the cheapest sequence of slices and collectives.
//!
//! ```text
//! before   %1: f32[S@tp, D] = reshard %0          %0: f32[S, D] partial(sum: tp)
//! after    %1: f32[S@tp, D] = reduce_scatter[sum: tp] %0
//! ```
//!
//! The search goes over placements. Nothing on the way is larger on a rank than the larger end, so what
//! both ends hold split is never gathered (the aim of arXiv 2112.01075), unless the user gave leave.

use super::error::{PlacementError, PlacementErrorKind};
use dtlc_ir::{
    Axis, Collective, CollectiveKind, Inst, Op, Placement, Program, Reason, ReduceOp, Region, Shard, Type,
};
use smallvec::SmallVec;

/// What a sequence costs: bytes that a rank sends, then the number of calls.
pub(super) type Cost = (u64, u32);

/// One move: a collective over axes, or none for a slice of what is there.
#[derive(Clone, Debug)]
struct Move {
    kind: Option<CollectiveKind>,
    axes: SmallVec<[Axis; 2]>,
    reduce: ReduceOp,
    to: Placement,
}

/// Lowers every reshard of a program.
///
/// # Errors
/// Reshards that would have to gather what both ends hold split, and for which there is no leave.
pub fn plan_reshards(program: &mut Program) -> Result<(), Vec<PlacementError>> {
    let mut main = std::mem::take(&mut program.main);
    let mut errors = Vec::new();
    plan_region(program, &mut main, &mut errors);
    program.main = main;
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// What it costs to bring a value of this type to `target`; none where there is no way.
pub(super) fn cost(program: &Program, from: &Type, target: &Placement) -> Option<Cost> {
    search(program, from, target, false).map(|(cost, _)| cost)
}

fn plan_region(program: &mut Program, region: &mut Region, errors: &mut Vec<PlacementError>) {
    let mut planned = Vec::with_capacity(region.insts.len());
    for mut inst in std::mem::take(&mut region.insts) {
        if let Op::Scan(scan) = &mut inst.op {
            plan_region(program, &mut scan.body, errors);
        }
        let Op::Reshard(reason) = &inst.op else {
            planned.push(inst);
            continue;
        };
        match plan(program, &inst, reason) {
            Ok(insts) => planned.extend(insts),
            // Both directions of one value are one mistake.
            Err(error) if errors.iter().any(|other| other.message == error.message) => {}
            Err(error) => errors.push(error),
        }
    }
    region.insts = planned;
}

fn plan(program: &mut Program, inst: &Inst, reason: &Reason) -> Result<Vec<Inst>, PlacementError> {
    let (source, result) = (inst.args[0], inst.results[0]);
    let target = program.ty(result).placement.clone();
    let found = search(program, program.ty(source), &target, reason.leave_to_gather);
    let Some((_, mut moves)) = found else { return Err(needs_leave(program, inst, reason)) };
    if moves.is_empty() {
        moves.push(Move { kind: None, axes: SmallVec::new(), reduce: ReduceOp::Sum, to: target });
    }
    let mut insts: Vec<Inst> = Vec::new();
    let mut at = source;
    let last = moves.len();
    for (index, step) in moves.into_iter().enumerate() {
        let to = if index + 1 == last { result } else { intermediate(program, result, step.to.clone()) };
        let op = match step.kind {
            None => Op::LocalSlice,
            Some(kind) => {
                let reasons = vec![reason.clone()];
                Op::Collective(Collective { kind, axes: step.axes, reduce: step.reduce, reasons })
            }
        };
        insts.push(Inst {
            op,
            args: SmallVec::from_slice(&[at]),
            results: SmallVec::from_slice(&[to]),
            phase: inst.phase,
        });
        at = to;
    }
    Ok(insts)
}

/// A value like the reshard's result, on the way to it.
fn intermediate(program: &mut Program, like: dtlc_ir::Value, placement: Placement) -> dtlc_ir::Value {
    let mut info = program.values[like].clone();
    info.ty.placement = placement;
    program.values.push(info)
}

fn needs_leave(program: &Program, inst: &Inst, reason: &Reason) -> PlacementError {
    let info = &program.values[inst.results[0]];
    let name = info.name.clone().map_or_else(|| "a value".to_string(), |name| format!("`{name}`"));
    // A gradient has no path that a plan could say.
    let path = info.name.as_ref().filter(|_| info.gradient_of.is_none());
    let at = path.map_or_else(String::new, |path| format!(" at {path}"));
    let message = format!("{name} can only move by gathering all of it on every rank");
    PlacementError::new(PlacementErrorKind::NeedsLeave, message)
        .at_model(info.origin, "needed elsewhere here")
        .because([reason.text.clone()])
        .hint(format!("`allow gather{at}` in the plan, or the same axes for both"))
}

/// The cheapest sequence of moves (Dijkstra's search; there are a handful of placements in reach).
fn search(program: &Program, from: &Type, target: &Placement, leave: bool) -> Option<(Cost, Vec<Move>)> {
    let mut open: Vec<(Cost, Placement, Vec<Move>)> = vec![((0, 0), from.placement.clone(), Vec::new())];
    let mut done: Vec<Placement> = Vec::new();
    let bound = from.local_elements(program).max(from.with_placement(target.clone()).local_elements(program));
    loop {
        let best = open.iter().enumerate().min_by_key(|(_, (cost, _, _))| *cost).map(|(index, _)| index)?;
        let (spent, placement, path) = open.swap_remove(best);
        if placement == *target {
            return Some((spent, path));
        }
        if done.contains(&placement) {
            continue;
        }
        for step in moves(program, &placement, target, leave) {
            let held = from.with_placement(step.to.clone());
            let is_small = leave || held.local_elements(program) <= bound;
            if done.contains(&step.to)
                || !is_small
                || !divides(program, &from.with_placement(placement.clone()), &held)
            {
                continue;
            }
            let bytes = spent.0 + wire_bytes(program, from, &placement, &step);
            let slices = step.kind.is_none() && path.last().is_some_and(|last| last.kind.is_none());
            let to = step.to.clone();
            let mut path = path.clone();
            if slices {
                path.pop();
            }
            path.push(step);
            open.push(((bytes, path.len() as u32), to, path));
        }
        done.push(placement);
    }
}

/// Whether a move keeps to whole elements: each dim is divided by its axes or may be padded, and the parts
/// before and after nest, which pads can break unless one end is whole.
fn divides(program: &Program, from: &Type, to: &Type) -> bool {
    from.dims.iter().all(|&dim| {
        let info = &program.dims[dim];
        let ways = |ty: &Type| program.mesh.group_size(ty.placement.axes_of(dim));
        let (coarse, fine) = if ways(from) < ways(to) { (from, to) } else { (to, from) };
        let parts = ways(fine) / ways(coarse);
        let nests = coarse.local_size(program, dim) == parts * fine.local_size(program, dim);
        info.size.is_multiple_of(ways(fine)) || info.pad && (nests || ways(coarse) == 1)
    })
}

/// Bytes that a rank sends for a move, in a ring.
fn wire_bytes(program: &Program, ty: &Type, from: &Placement, step: &Move) -> u64 {
    let Some(kind) = step.kind else { return 0 };
    let ranks = program.mesh.group_size(step.axes.iter().copied());
    let local = |placement: &Placement| ty.with_placement(placement.clone()).local_bytes(program);
    ring_bytes(kind, ranks, local(from).max(local(&step.to)))
}

/// Bytes that a rank sends for a collective over `ranks` whose full size is `bytes`, in a ring.
pub(crate) fn ring_bytes(kind: CollectiveKind, ranks: u64, bytes: u64) -> u64 {
    let once = (u128::from(bytes) * u128::from(ranks.saturating_sub(1)) / u128::from(ranks.max(1))) as u64;
    match kind {
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => once,
        CollectiveKind::AllReduce => 2 * once,
        CollectiveKind::Permute => bytes,
    }
}

/// The moves from a placement that go towards the target.
fn moves(program: &Program, from: &Placement, target: &Placement, leave: bool) -> Vec<Move> {
    let mut moves = Vec::new();
    reductions(from, target, &mut moves);
    for run in minor_runs(program, from) {
        let dim = run.dim;
        let wanted = target.dim_on(run.axes[0]);
        let together = run.axes.iter().all(|&axis| target.dim_on(axis) == wanted);
        let mut to = from.clone();
        run.axes.iter().for_each(|&axis| to.remove_axis(axis));
        let ascending = run.axes.is_sorted();
        let split = run.axes.iter().any(|&axis| target.dim_on(axis).is_some());
        if ascending && (!split || leave) {
            moves.push(movement(CollectiveKind::AllGather, &run.axes, to.clone()));
        }
        if let Some(other) = wanted.filter(|&other| together && ascending && other != dim) {
            run.axes.iter().for_each(|&axis| to.add_shard(other, axis));
            moves.push(movement(CollectiveKind::AllToAll, &run.axes, to));
        }
    }
    slices(from, target, &mut moves);
    swaps(from, &mut moves);
    substitutions(program, from, target, &mut moves);
    moves
}

fn movement(kind: CollectiveKind, axes: &[Axis], to: Placement) -> Move {
    let mut axes: SmallVec<[Axis; 2]> = SmallVec::from_slice(axes);
    axes.sort_unstable();
    Move { kind: Some(kind), axes, reduce: ReduceOp::Sum, to }
}

/// All-reduces over all partial axes that end whole, and reduce-scatters to the dimensions that end split.
fn reductions(from: &Placement, target: &Placement, moves: &mut Vec<Move>) {
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        let of_op = from.partials().iter().filter(|partial| partial.op == op).map(|partial| partial.axis);
        let owed: SmallVec<[Axis; 2]> = of_op.filter(|&axis| target.partial_on(axis).is_none()).collect();
        let whole: SmallVec<[Axis; 2]> =
            owed.iter().copied().filter(|&axis| target.dim_on(axis).is_none()).collect();
        // A scatter is cheaper for what ends split, but its parts may not come out even.
        for axes in [whole, owed] {
            if !axes.is_empty() {
                let mut to = from.clone();
                axes.iter().for_each(|&axis| to.remove_axis(axis));
                moves.push(Move { reduce: op, ..movement(CollectiveKind::AllReduce, &axes, to) });
            }
        }
    }
    let summed = |axis: Axis| from.partial_on(axis) == Some(ReduceOp::Sum);
    let shards = target.shards();
    for start in 0..shards.len() {
        for end in start + 1..=shards.len() {
            let run = &shards[start..end];
            if run.iter().all(|shard| shard.dim == run[0].dim && summed(shard.axis)) {
                let mut axes: SmallVec<[Axis; 2]> = run.iter().map(|shard| shard.axis).collect();
                axes.sort_unstable();
                let mut to = from.clone();
                axes.iter().for_each(|&axis| to.remove_axis(axis));
                axes.iter().for_each(|&axis| to.add_shard(run[0].dim, axis));
                moves.push(movement(CollectiveKind::ReduceScatter, &axes, to));
            }
        }
    }
}

/// Splits of a dimension over axes that hold all of it: over one, or at once over all that are still to come,
/// as pads may not nest otherwise.
fn slices(from: &Placement, target: &Placement, moves: &mut Vec<Move>) {
    let is_missing = |axis: Axis| from.dim_on(axis).is_none() && from.partial_on(axis).is_none();
    for (index, shard) in target.shards().iter().enumerate() {
        let missing: SmallVec<[Axis; 4]> =
            target.axes_of(shard.dim).filter(|&axis| is_missing(axis)).collect();
        let is_first = target.shards()[..index].iter().all(|other| other.dim != shard.dim);
        let mut groups: SmallVec<[&[Axis]; 2]> = SmallVec::new();
        groups.extend((is_first && missing.len() > 1).then_some(missing.as_slice()));
        let alone = [shard.axis];
        groups.extend(is_missing(shard.axis).then_some(alone.as_slice()));
        for axes in groups {
            let mut to = from.clone();
            axes.iter().for_each(|&axis| to.add_shard(shard.dim, axis));
            moves.push(Move { kind: None, axes: SmallVec::new(), reduce: ReduceOp::Sum, to });
        }
    }
}

/// Minor-most axes of one dimension.
struct Run {
    dim: dtlc_ir::Dim,
    axes: SmallVec<[Axis; 4]>,
}

fn minor_runs(program: &Program, from: &Placement) -> Vec<Run> {
    let mut runs = Vec::new();
    for dim in program.dims.keys().filter(|&dim| from.axes_of(dim).next().is_some()) {
        let axes: SmallVec<[Axis; 4]> = from.axes_of(dim).collect();
        runs.extend((0..axes.len()).map(|start| Run { dim, axes: axes[start..].iter().copied().collect() }));
    }
    runs
}

/// Exchanges neighbouring axes of one dimension: each rank sends all that it has to one other.
fn swaps(from: &Placement, moves: &mut Vec<Move>) {
    let shards = from.shards();
    for index in 1..shards.len() {
        let (left, right) = (shards[index - 1], shards[index]);
        if left.dim != right.dim {
            continue;
        }
        let mut order: Vec<Shard> = shards.to_vec();
        order.swap(index - 1, index);
        let to = with_shards(from, &order);
        moves.push(movement(CollectiveKind::Permute, &[left.axis, right.axis], to));
    }
}

/// Splits a dimension over another axis of the same size: each rank gets all that one other has.
fn substitutions(program: &Program, from: &Placement, target: &Placement, moves: &mut Vec<Move>) {
    let is_free = |axis: Axis| from.dim_on(axis).is_none() && from.partial_on(axis).is_none();
    let size = |axis: Axis| program.mesh.axes[axis].size;
    for (index, shard) in from.shards().iter().enumerate() {
        let leaves = target.dim_on(shard.axis).is_none();
        let others =
            target.axes_of(shard.dim).filter(|&axis| is_free(axis) && size(axis) == size(shard.axis));
        for axis in others.filter(|_| leaves) {
            let mut order: Vec<Shard> = from.shards().to_vec();
            order[index].axis = axis;
            let to = with_shards(from, &order);
            moves.push(movement(CollectiveKind::Permute, &[shard.axis, axis], to));
        }
    }
}

/// The same partial sums with other shards.
fn with_shards(from: &Placement, shards: &[Shard]) -> Placement {
    let mut to = Placement::replicated();
    from.partials().iter().for_each(|partial| to.add_partial(partial.axis, partial.op));
    shards.iter().for_each(|shard| to.add_shard(shard.dim, shard.axis));
    to
}
