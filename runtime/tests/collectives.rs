//! Every collective against the obvious computation, on groups over one axis and several; and as messages between
//! processes, which have to leave the same bits.

mod support;

use dtlc_runtime::program::*;
use dtlc_runtime::session::{ArenaStart, Options, Session};
use dtlc_runtime::tensor::HostTensor;
use support::*;

const MESHES: &[&[(&str, u32)]] =
    &[&[("a", 1)], &[("a", 2)], &[("a", 2), ("b", 2)], &[("a", 2), ("b", 4)], &[("a", 3), ("b", 2)]];

/// All ranks' buffers of `count` elements as one tensor with the rank first.
fn for_each_rank(program: &Program, dtype: DType, count: u64) -> Layout {
    let mut layout = Layout::replicated(dtype, &[("rank", program.mesh.ranks()), ("x", count)]);
    for axis in (0..program.mesh.axes.len() as u32).map(AxisId) {
        layout = layout.placed(0, axis);
    }
    layout
}

/// The lists of axes to try on a mesh: each alone, all in order, all in reverse.
fn groups(program: &Program) -> Vec<Vec<AxisId>> {
    let all: Vec<AxisId> = (0..program.mesh.axes.len() as u32).map(AxisId).collect();
    let reversed = all.iter().rev().copied().collect();
    let mut groups: Vec<Vec<AxisId>> = all.iter().map(|&axis| vec![axis]).collect();
    groups.extend([all, reversed]);
    groups
}

/// The ranks of a rank's group in order of index, and the rank's own index.
fn group_of(mesh: &Mesh, axes: &[AxisId], rank: u64) -> (Vec<u64>, u64) {
    let own = mesh.coordinates(rank);
    let same = |other: &u64| {
        let theirs = mesh.coordinates(*other);
        (0..own.len()).all(|axis| own[axis] == theirs[axis] || axes.contains(&AxisId(axis as u32)))
    };
    let mut members: Vec<u64> = (0..mesh.ranks()).filter(same).collect();
    members.sort_by_key(|&member| mesh.group_index(axes, &mesh.coordinates(member)));
    (members, mesh.group_index(axes, &own))
}

/// Runs one collective of two tensors of which the first is checked, and returns each rank's target.
fn run(
    program: &mut Program,
    axes: &[AxisId],
    kind: CollectiveKind,
    transfer: Transfer,
    sources: &[Vec<f32>],
    target_elements: u64,
) -> Vec<Vec<f32>> {
    program.inputs.clear();
    program.outputs.clear();
    let layout = for_each_rank(program, DType::F32, sources[0].len() as u64);
    let source = input(program, "in", layout, 0);
    let layout = for_each_rank(program, DType::F32, target_elements);
    let target = output(program, "out", layout, 0);
    let spare = BufferRef { offset: 32768, ..target.clone() };
    let tensor = |target| CollectiveTensor { source: source.clone(), target, dtype: DType::F32, transfer };
    let tensors = vec![tensor(target), tensor(spare)];
    program.instructions = with_dones(vec![at(
        1,
        Operation::Collective(Collective { flight: FlightId(0), kind, axes: axes.to_vec(), tensors }),
    )]);
    let options = Options { arena: ArenaStart::Poisoned, ..Options::default() };
    let mut session = start(program, options);
    let shape = [program.mesh.ranks(), sources[0].len() as u64];
    let value = HostTensor::from_f32(&shape, &sources.concat());
    session.set_input("in", &value).expect("it fits");
    for step in 1..=3 {
        session.step(step, 0).expect("the step runs");
    }
    assert_same_by_messages(&session, &value, options);
    values(&session, "out").chunks(target_elements as usize).map(<[f32]>::to_vec).collect()
}

/// Each rank in a world of its own ends with the same bytes as in one process.
fn assert_same_by_messages(session: &Session, value: &HostTensor, options: Options) {
    let program = session.program();
    let expected = session.output(&program.outputs[0]).expect("it can be read");
    let collected = spread(program.mesh.ranks() as usize, |transport| {
        let options = Options { threads: Some(1), ..options };
        let mut session = Session::start_among(Some(transport), program.clone(), options).expect("it starts");
        session.set_input("in", value).expect("it fits");
        for step in 1..=3 {
            session.step(step, 0).expect("the step runs");
        }
        let collected = session.collect_output(&session.program().outputs[0]).expect("it is collected");
        session.part();
        collected
    });
    for (rank, collected) in collected.into_iter().enumerate() {
        assert_eq!(collected, (rank == 0).then(|| expected.clone()), "rank {rank}");
    }
}

/// Numbers whose sum depends on the order they are added in.
fn sources(ranks: u64, count: u64) -> Vec<Vec<f32>> {
    let value = |index: u64| ((index * 2_654_435_761 % 1_000_003) as f32 / 997.0 - 400.0).powi(3);
    (0..ranks).map(|rank| (0..count).map(|index| value(rank * count + index)).collect()).collect()
}

/// Calls `check` for every mesh and group.
fn everywhere(mut check: impl FnMut(&mut Program, &[AxisId], u64)) {
    for mesh in MESHES {
        let mut program = empty_program(mesh);
        for axes in groups(&program) {
            let members = program.mesh.group_size(&axes);
            check(&mut program, &axes, members);
        }
    }
}

#[test]
fn all_gather_puts_blocks_side_by_side() {
    everywhere(|program, axes, members| {
        let (outer, inner) = (5, 3);
        let sources = sources(program.mesh.ranks(), outer * inner);
        let transfer = Transfer::all_gather(outer, Part::even(inner, members));
        let targets =
            run(program, axes, CollectiveKind::AllGather, transfer, &sources, outer * inner * members);
        for rank in 0..program.mesh.ranks() {
            let (group, _) = group_of(&program.mesh, axes, rank);
            let row = |row: usize| {
                group
                    .iter()
                    .flat_map(|&member| sources[member as usize][row * 3..row * 3 + 3].to_vec())
                    .collect()
            };
            let expected: Vec<f32> =
                (0..outer as usize).flat_map(|index| -> Vec<f32> { row(index) }).collect();
            assert_eq!(targets[rank as usize], expected);
        }
    });
}

#[test]
fn reductions_add_in_the_order_of_the_group_on_every_rank() {
    everywhere(|program, axes, members| {
        for (reduction, combine) in [
            (Reduction::Sum, (|a, b| a + b) as fn(f32, f32) -> f32),
            (Reduction::Max, |a, b| if b > a { b } else { a }),
        ] {
            let (outer, inner) = (7, 37);
            let count = outer * inner * members;
            let sources = sources(program.mesh.ranks(), count);
            let whole = Transfer::whole(count);
            let reduced = run(program, axes, CollectiveKind::AllReduce(reduction), whole, &sources, count);
            let scatter = Transfer::reduce_scatter(outer, Part::even(inner, members));
            let kind = CollectiveKind::ReduceScatter(reduction);
            let scattered = run(program, axes, kind, scatter, &sources, outer * inner);
            for rank in 0..program.mesh.ranks() {
                let (group, own) = group_of(&program.mesh, axes, rank);
                let element = |index: usize| {
                    let values = group.iter().map(|&member| sources[member as usize][index]);
                    values.reduce(combine).expect("a group has members")
                };
                let expected: Vec<f32> = (0..count as usize).map(element).collect();
                assert_eq!(reduced[rank as usize], expected);
                let part = expected
                    .chunks(inner as usize)
                    .skip(own as usize)
                    .step_by(members as usize)
                    .collect::<Vec<_>>()
                    .concat();
                assert_eq!(scattered[rank as usize], part);
            }
        }
    });
}

/// Whole sizes that the group divides, and some that it doesn't: pads end as zeros.
#[test]
fn all_to_all_moves_a_shard_from_one_dimension_to_another() {
    everywhere(|program, axes, members| {
        for (missing_first, missing_second) in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 3)] {
            let (first, second) = (2 * members, 3 * members);
            let first = first.saturating_sub(missing_first).max(1);
            let second = second.saturating_sub(missing_second).max(1);
            for position in [Position::SplitOutside, Position::SplitInside] {
                exchange(program, axes, members, [first, second], position);
            }
        }
    });
}

/// The whole tensor of a group is `[2, first, 3, second, 2]`; `first` is split afterwards, or before.
fn exchange(
    program: &mut Program,
    axes: &[AxisId],
    members: u64,
    [first, second]: [u64; 2],
    position: Position,
) {
    let (outer, between, behind) = (2, 3, 2);
    let part = |size: u64, rest: u64| Part { block: size.div_ceil(members) * rest, whole: size * rest };
    let transfer = Transfer::all_to_all(outer, part(first, between), part(second, behind), position);
    let shape = [outer, first, between, second, behind];
    let (split_at, gather_at) = match position {
        Position::SplitOutside => (1, 3),
        Position::SplitInside => (3, 1),
    };
    // A rank's part of the whole when one dimension is sharded over the group, in row-major order.
    let part = |seed: u64, sharded: usize, index: u64| -> Vec<f32> {
        let block = shape[sharded].div_ceil(members);
        let mut local = shape;
        local[sharded] = block;
        let mut values = Vec::new();
        for flat in 0..local.iter().product::<u64>() {
            let (mut rest, mut whole, mut unit, mut there) = (flat, 0, 1, true);
            for at in (0..shape.len()).rev() {
                let start = if at == sharded { index * block } else { 0 };
                let coordinate = start + rest % local[at];
                there &= coordinate < shape[at];
                whole += coordinate * unit;
                (rest, unit) = (rest / local[at], unit * shape[at]);
            }
            values.push(if there { (seed * 10_000 + whole + 1) as f32 } else { 0.0 });
        }
        values
    };
    let mesh = program.mesh.clone();
    let parts = |sharded| -> Vec<Vec<f32>> {
        let of_rank = |rank| {
            let (group, index) = group_of(&mesh, axes, rank);
            part(group[0], sharded, index)
        };
        (0..mesh.ranks()).map(of_rank).collect()
    };
    let count = parts(split_at)[0].len() as u64;
    let targets = run(program, axes, CollectiveKind::AllToAll, transfer, &parts(gather_at), count);
    assert_eq!(targets, parts(split_at), "{shape:?} over {members}");
}

#[test]
fn permute_takes_from_the_source_that_the_permutation_names() {
    everywhere(|program, axes, members| {
        let sources = sources(program.mesh.ranks(), 11);
        let shifted =
            Permutation { sources: (0..members as u32).map(|i| (i + 1) % members as u32).collect() };
        let kind = CollectiveKind::Permute(shifted.clone());
        let targets = run(program, axes, kind, Transfer::whole(11), &sources, 11);
        for rank in 0..program.mesh.ranks() {
            let (group, own) = group_of(&program.mesh, axes, rank);
            let from = group[shifted.sources[own as usize] as usize];
            assert_eq!(targets[rank as usize], sources[from as usize]);
        }
    });
}

#[test]
fn all_reduce_works_in_place_and_in_every_type() {
    for (dtype, reduction) in [
        (DType::F32, Reduction::Sum),
        (DType::Bf16, Reduction::Sum),
        (DType::F16, Reduction::Sum),
        (DType::I32, Reduction::Sum),
        (DType::U32, Reduction::Max),
        (DType::Bool, Reduction::Max),
    ] {
        let mut program = empty_program(&[("a", 4)]);
        let count = 4096;
        let layout = for_each_rank(&program, dtype, count);
        let from = input(&mut program, "in", layout.clone(), 0);
        let to = output(&mut program, "out", layout, 0);
        let bytes = from.bytes;
        let copy = Operation::Copy {
            source: from,
            target: to.clone(),
            rows: 1,
            row_bytes: bytes,
            source_pitch: 0,
            target_pitch: 0,
        };
        let tensor =
            CollectiveTensor { source: to.clone(), target: to, dtype, transfer: Transfer::whole(count) };
        let kind = CollectiveKind::AllReduce(reduction);
        let collective =
            Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
        program.instructions = with_dones(vec![at(0, copy), at(1, Operation::Collective(collective))]);
        let mut session = start(&program, Options { threads: Some(2), ..Options::default() });
        // Element i of rank r is 1 if r = i mod 4 and 0 else, so that each type can hold the result.
        let whole: Vec<f32> =
            (0..4 * count).map(|index| if index / count == index % 4 { 1.0 } else { 0.0 }).collect();
        let tensor = match dtype {
            DType::F32 | DType::Bf16 | DType::F16 => HostTensor::from_f32(&[4, count], &whole),
            DType::I32 | DType::U32 | DType::Bool => {
                let whole: Vec<u32> = whole.iter().map(|&value| value as u32).collect();
                HostTensor::from_u32(&[4, count], &whole)
            }
        };
        session.set_input("in", &tensor).expect("it fits");
        session.step(1, 0).expect("the step runs");
        assert_same_by_messages(&session, &tensor, Options::default());
        assert_eq!(values(&session, "out"), vec![1.0; 4 * count as usize], "{dtype:?}");
    }
}

#[test]
fn bf16_sums_are_rounded_once() {
    // 256 + 1 + 1 is 258 in f32 and in bf16; adding one at a time in bf16 would stay at 256.
    let mut program = empty_program(&[("a", 3)]);
    let layout = for_each_rank(&program, DType::Bf16, 1);
    let source = input(&mut program, "in", layout.clone(), 0);
    let target = output(&mut program, "out", layout, 0);
    let tensors = vec![CollectiveTensor { source, target, dtype: DType::Bf16, transfer: Transfer::whole(1) }];
    let kind = CollectiveKind::AllReduce(Reduction::Sum);
    program.instructions = with_dones(vec![at(
        0,
        Operation::Collective(Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors }),
    )]);
    let mut session = start(&program, Options::default());
    let value = HostTensor::from_f32(&[3, 1], &[256.0, 1.0, 1.0]);
    session.set_input("in", &value).expect("it fits");
    session.step(1, 0).expect("the step runs");
    assert_same_by_messages(&session, &value, Options::default());
    assert_eq!(values(&session, "out"), [258.0; 3]);
}

/// Rows that the last members' blocks reach beyond: what is there travels, pads end as zeros.
#[test]
fn blocks_that_pads_cut_short_are_gathered_and_scattered() {
    everywhere(|program, axes, members| {
        let (outer, inner) = (3u64, 4u64);
        if members == 1 {
            return;
        }
        for row in [inner * members, inner * members - 1, inner * members - inner] {
            let part = Part { block: inner, whole: row };
            let there = |member: u64| row.saturating_sub(member * inner).min(inner);
            let blocks = sources(program.mesh.ranks(), outer * inner);
            let transfer = Transfer::all_gather(outer, part);
            let targets = run(program, axes, CollectiveKind::AllGather, transfer, &blocks, outer * row);
            let wholes = sources(program.mesh.ranks(), outer * row);
            let transfer = Transfer::reduce_scatter(outer, part);
            let kind = CollectiveKind::ReduceScatter(Reduction::Sum);
            let parts = run(program, axes, kind, transfer, &wholes, outer * inner);
            for rank in 0..program.mesh.ranks() {
                let (group, own) = group_of(&program.mesh, axes, rank);
                let mut gathered = Vec::new();
                let mut scattered = Vec::new();
                for line in 0..outer {
                    for (index, &member) in group.iter().enumerate() {
                        let start = (line * inner) as usize;
                        let block = &blocks[member as usize][start..start + there(index as u64) as usize];
                        gathered.extend_from_slice(block);
                    }
                    for element in 0..inner {
                        let at = (line * row + own * inner + element) as usize;
                        let sum = group.iter().map(|&member| wholes[member as usize].get(at).copied());
                        let sum = sum.fold(0.0, |sum, value| sum + value.unwrap_or(0.0));
                        scattered.push(if element < there(own) { sum } else { 0.0 });
                    }
                }
                assert_eq!(targets[rank as usize], gathered, "row {row} of {members}");
                assert_eq!(parts[rank as usize], scattered, "row {row} of {members}");
            }
        }
    });
}
