//! Flash attention of bf16, forward and backward, as devices of 9.0 launch it, its tiles in bulk: what maps describe, against the formula as closely as on all
//! others, and faults seeded into kernel and maps.

use crate::attention::{calls, judge, judge_forward};
use crate::attention_tensor::{CHUNKS, NARROW, odd_shapes};
use crate::bench::{Bench, Placing, compiled};
use crate::faults::{catch_on, fault};
use crate::faults_attention::{as_one, judge_directions};
use crate::support::Numbers;
use crate::support::attention::{Case, Packing, Shape};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::{DeviceArgument, DeviceCall, DeviceLaunch, MappedTensor};
use dtlc_kernels::signature::{Causality, Element};

/// A call as devices of 9.0 launch it.
pub fn in_bulk(mut call: DeviceCall) -> DeviceCall {
    for launch in &mut call.launches {
        if let Some(alternative) = launch.alternative.take() {
            *launch = *alternative;
        }
    }
    call
}

/// The forward call as those launch it.
fn forward_in_bulk(case: &Case) -> DeviceCall {
    let [forward, _] = calls(case).map(in_bulk);
    assert!(is_in_bulk(&forward.launches[0]), "maps describe it");
    forward
}

pub fn is_in_bulk(launch: &DeviceLaunch) -> bool {
    launch.name.contains("_bulk_")
}

fn maps(launch: &DeviceLaunch) -> Vec<MappedTensor> {
    let map = |argument: &DeviceArgument| match argument {
        DeviceArgument::Map(map) => Some(*map),
        DeviceArgument::Pointer(_)
        | DeviceArgument::Pointers { .. }
        | DeviceArgument::Integer(_)
        | DeviceArgument::Scratch(_)
        | DeviceArgument::Constant(_) => None,
    };
    launch.arguments.iter().filter_map(map).collect()
}

/// Two groups and one, rings that go round and not, heads of parts of rows and of several, lengths and windows across steps, blocks that see nothing.
#[test]
fn attention_that_arrives_in_bulk() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let mut numbers = Numbers(51);
    let both = Causality::Bidirectional;
    let longer = Shape { q_len: 70, causality: both, ..NARROW };
    // Rings that go round, and heads of several rows of 128 bytes.
    let own = [
        Shape {
            q_len: 130,
            q_offset: 400,
            k_len: 500,
            window: Some(300),
            head_dim: 72,
            value_dim: 16,
            ..NARROW
        },
        Shape { k_len: 400, head_dim: 128, value_dim: 128, ..longer },
        Shape { k_len: 200, window: Some(u64::MAX), head_dim: 256, value_dim: 192, ..longer },
        Shape { q_len: 9, k_len: 70, causality: both, head_dim: 130, value_dim: 256, kv_heads: 2, ..NARROW },
        Shape { q_len: 40, k_len: 150, causality: both, head_dim: 256, value_dim: 128, ..NARROW },
        Shape {
            element: Element::F16,
            q_len: 70,
            k_len: 150,
            q_offset: 80,
            head_dim: 72,
            value_dim: 24,
            ..NARROW
        },
    ];
    let shapes = odd_shapes().into_iter().chain(own);
    for (number, shape) in shapes.enumerate() {
        let case = Case::stepping(shape, CHUNKS, &mut numbers);
        let [forward, backward] = calls(&case).map(in_bulk);
        let all: Vec<_> = forward.launches.iter().chain(&backward.launches).map(is_in_bulk).collect();
        let widest = shape.head_dim.max(shape.value_dim);
        // Two blocks that share keys share no row of 128 bytes.
        let divides =
            widest <= 128 || shape.head_dim.is_multiple_of(128) && shape.value_dim.is_multiple_of(128);
        assert_eq!(all, [true, false, true, divides]);
        let placing = if number % 2 == 0 { Placing::Aligned } else { Placing::Behind(16) };
        let difference = judge(&case, [&forward, &backward], &mut bench, placing);
        assert_eq!(difference, None, "{:?}", case.spec);
    }
}

/// Tensors that maps describe are those of positive strides of whole chunks; of heads of any number of dimensions a map has one.
#[test]
fn what_maps_describe() {
    let shape = Shape {
        batch: 2,
        kv_heads: 3,
        group: 2,
        q_len: 70,
        k_len: 90,
        head_dim: 72,
        value_dim: 40,
        ..NARROW
    };
    let case = Case::stepping(shape, CHUNKS, &mut Numbers(52));
    let call = forward_in_bulk(&case);
    let found = maps(&call.launches[0]);
    let sizes: Vec<_> =
        found.iter().map(|map| (map.buffer, map.sizes[0], map.sizes[1], map.box_sizes)).collect();
    let expected = [(0, 72, 70, [64, 128, 1]), (1, 72, 90, [64, 128, 1]), (2, 40, 90, [64, 128, 1])];
    assert_eq!(sizes, expected);
    let of_keys = case.spec.forward.k;
    assert_eq!(found[1].strides[0], 2 * of_keys.sequence as u64);
    assert!(is_none(&case, |case| case.spec.forward.q.sequence += 1), "positions that start anywhere");
    assert!(is_none(&case, |case| case.spec.forward.v.kv_head += 4), "heads that do");
    assert!(is_none(&case, |case| case.spec.forward.k.batch *= -1), "backwards");
    assert!(!is_none(&case, |case| case.spec.forward.o.sequence += 1), "outputs are written through no map");
}

/// Whether no maps describe a case with this changed.
fn is_none(case: &Case, change: fn(&mut Case)) -> bool {
    let mut changed = Case::stepping(case.shape, CHUNKS, &mut Numbers(52));
    change(&mut changed);
    let [forward, _] = calls(&changed).map(in_bulk);
    !is_in_bulk(&forward.launches[0])
}

/// Heads of the usual widths: for sm_90a, without warnings, which tell of products that wait for each other, and in registers.
#[test]
fn attention_in_bulk_compiles() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let whole = Shape { q_len: 300, k_len: 300, group: 4, kv_heads: 2, ..NARROW };
    let long = Shape { packing: Packing::Runs(90), ..whole };
    let asked = Shape { softcap: Some(30.0), window: Some(1000), ..long };
    let short = Shape { q_len: 60, ..asked };
    for (shape, width) in
        [(long, 64), (asked, 128), (short, 128), (Shape { packing: Packing::Whole, ..asked }, 256)]
    {
        let shape = Shape { head_dim: width, value_dim: width, ..shape };
        let case = Case::stepping(shape, CHUNKS, &mut Numbers(53));
        for launch in
            calls(&case).map(in_bulk).iter().flat_map(|call| &call.launches).filter(|it| is_in_bulk(it))
        {
            let stages = launch.source.split("STAGES = ").nth(1).and_then(|text| text.split(';').next());
            let binary = compiled(launch, Architecture::Sm90a);
            let registers = binary.report().kernels[0].registers;
            println!(
                "{} of {} queries, heads of {width}, softcap {:?}: {} stages, {registers} registers",
                launch.name,
                shape.q_len,
                shape.softcap,
                stages.expect("it has stages"),
            );
            let ptx = binary.ptx;
            assert!(ptx.contains("wgmma.mma_async.sync.aligned.m64n") && !ptx.contains(".local"));
            assert!(ptx.contains("cp.async.bulk.tensor.3d") && !ptx.contains("cp.async.cg"));
        }
    }
}

/// Two groups, six steps in four stages, keys of two strips of features, and values of one.
const LONG: Shape = Shape {
    kv_heads: 2,
    q_len: 70,
    k_len: 650,
    q_offset: 580,
    softcap: Some(1.5),
    head_dim: 80,
    value_dim: 24,
    ..NARROW
};

#[test]
fn faults_in_what_arrives() {
    let case = Case::stepping(LONG, CHUNKS, &mut Numbers(54));
    let faults = [
        // Who waits for whom.
        fault(0, "wait_for_phase(full[stage.number], stage.round % 2);", ""),
        fault(0, "full[stage.number], stage.round % 2", "full[stage.number], (stage.round + 1) % 2"),
        fault(0, "wait_for_phase(empty[stage.number], (stage.round + 1) % 2);", ""),
        fault(0, "empty[stage.number], (stage.round + 1) % 2", "empty[stage.number], stage.round % 2"),
        fault(0, "arrive(empty[Stage(step).number]);", ""),
        fault(
            0,
            "end_products<0>(outputs, weights);\n        incoming.leave(step);",
            "incoming.leave(step);\n        end_products<0>(outputs, weights);",
        ),
        fault(0, "MULTIPLYING_WARPS = THREADS / 32", "MULTIPLYING_WARPS = THREADS / 64"),
        fault(0, "make_barrier(full[stage], 1);", "make_barrier(full[stage], 2);"),
        fault(0, "make_barrier(empty[stage], MULTIPLYING_WARPS);", ""),
        fault(0, "asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");", ""),
        fault(0, "    __syncthreads();\n    if (threadIdx.x >= THREADS)", "    if (threadIdx.x >= THREADS)"),
        fault(0, "asm volatile(\"bar.sync 1, %0;\" ::\"n\"(THREADS) : \"memory\");", ""),
        fault(0, "end_products<1>(scores)", "end_products<2>(scores)"),
        fault(0, "incoming.await(steps);\n    add_weighted_rows", "add_weighted_rows"),
        // What arrives, and where.
        fault(0, "is_first ? Queries::BYTES : ValueTile::BYTES", "ValueTile::BYTES"),
        fault(0, "is_last ? 0 : KeyTile::BYTES", "KeyTile::BYTES"),
        fault(0, "return key_stage(step + 1) + KeyTile::BYTES", "return key_stage(step + 1)"),
        fault(0, "STAGE_BYTES = KeyTile::BYTES + ValueTile::BYTES", "STAGE_BYTES = KeyTile::BYTES"),
        fault(0, "map, strip * 64, first, head", "map, first, strip * 64, head"),
        fault(0, "map, strip * 64, first, head", "map, 0, first, head"),
        fault(0, "static_cast<unsigned>(strip) * Place::Strip::BYTES, map", "0u, map"),
        fault(0, "v, first_key(step - 1), value_head", "v, first_key(step), value_head"),
        fault(0, "k, first_key(step), key_head", "k, step * COLUMNS / 2, key_head"),
        fault(0, "k, first_key(step), key_head", "k, first_key(step), 0"),
        fault(0, "head_of_map<Q>(block.head, Q_HEAD_STRIDE)", "0"),
        fault(0, "step <= end;", "step < end;"),
        // Which group has what.
        fault(0, "warp_of_block() / 4 * TILES_DOWN * ROWS_OF_GROUP", "0"),
        fault(
            0,
            "(left, first_row + down * ROWS_OF_GROUP, feature)",
            "(left, down * ROWS_OF_GROUP, feature)",
        ),
        fault(0, "key < keys.end;", "key <= keys.end;"),
    ];
    let call = forward_in_bulk(&case);
    catch_on(Architecture::Sm90a, &call, &faults, |call, bench| {
        judge_forward(&case, call, bench, Placing::Aligned)
    });

    // Queries from 148 on see nothing, and so no query of the third block: what came for it would come for nobody.
    let shape =
        Shape { q_len: 260, k_len: 9, causality: Causality::Bidirectional, window: Some(140), ..NARROW };
    let case = Case::stepping(shape, CHUNKS, &mut Numbers(55));
    let call = forward_in_bulk(&case);
    let faults = [
        fault(0, "end > 0 && step <= end", "step <= end"),
        fault(0, "q, block.first_query", "q, 0"),
        fault(0, "sum == 0.0f ? 0.0f : 1.0f / sum", "1.0f / sum"),
    ];
    catch_on(Architecture::Sm90a, &call, &faults, |call, bench| {
        judge_forward(&case, call, bench, Placing::Aligned)
    });
}

#[test]
fn faults_in_what_arrives_for_gradients() {
    let shape = Shape { group: 2, q_len: 130, k_len: 300, q_offset: 170, window: Some(150), ..LONG };
    let case = Case::stepping(shape, CHUNKS, &mut Numbers(57));
    let call = as_one(calls(&case).map(in_bulk));
    assert!([2, 3].into_iter().all(|launch| is_in_bulk(&call.launches[launch])), "maps describe it");
    let faults = [
        fault(2, "await_stage(Stage(step));", ""),
        fault(3, "await_stage(Stage(step));", ""),
        fault(2, "give_back(step);", ""),
        fault(3, "give_back(step);", ""),
        fault(
            2,
            "add_step(outputs, rows, FIRST_STAGE + Stage(step)",
            "add_step(outputs, rows, FIRST_STAGE + Stage(step + 1)",
        ),
        fault(3, "seeing, FIRST_STAGE + Stage(step)", "seeing, FIRST_STAGE + Stage(step + 1)"),
        fault(2, "STAGE_BYTES + (is_first ? FIRST_STAGE : 0)", "STAGE_BYTES"),
        fault(3, "STAGE_BYTES + (is_first ? FIRST_STAGE : 0)", "STAGE_BYTES"),
        fault(2, "await_multiplying();\n    write", "write"),
        fault(3, "await_multiplying();\n    write", "write"),
        fault(2, "(0, q, block.first_query,", "(0, q, 0,"),
        fault(2, "o_gradient, block.first_query,", "o_gradient, 0,"),
        fault(2, "v, steps.first_key(step), value_head", "v, steps.first_key(step), 0"),
        fault(3, "(0, k, block.first_key,", "(0, k, 0,"),
        fault(3, "head_of_map<Q>(head, Q_HEAD_STRIDE)", "0"),
        fault(
            3,
            "head_of(block.head_number(step));\n        const int first_query",
            "head_of(block.first_head);\n        const int first_query",
        ),
        fault(3, "stage + QueryTile::BYTES, o_gradient", "stage, o_gradient"),
    ];
    catch_on(Architecture::Sm90a, &call, &faults, |call, bench| {
        judge_directions(&case, call, bench, Placing::Aligned)
    });
}

/// What is wrong in a map.
type Change = fn(&mut MappedTensor);

#[test]
fn faults_in_maps() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let shape = Shape { k_len: 150, q_len: 65, q_offset: 90, ..LONG };
    let case = Case::stepping(shape, CHUNKS, &mut Numbers(56));
    let call = forward_in_bulk(&case);
    assert_eq!(judge_forward(&case, &call, &mut bench, Placing::Aligned), None);
    let faults: [(&str, Change); 6] = [
        ("one position too few", |map| map.sizes[1] -= 1),
        ("one head too few", |map| map.sizes[2] -= 1),
        ("too few features", |map| map.sizes[0] -= 8),
        ("positions are nearer", |map| map.strides[0] -= 16),
        ("heads are nearer", |map| map.strides[1] -= 16),
        ("a box of fewer positions", |map| map.box_sizes[1] = 64),
    ];
    for tensor in 0..3 {
        for (what, change) in faults {
            let mut faulty = call.clone();
            let Some(DeviceArgument::Map(map)) = faulty.launches[0].arguments.get_mut(tensor) else {
                panic!("a map")
            };
            change(map);
            let seen = judge_forward(&case, &faulty, &mut bench, Placing::Aligned);
            println!("tensor {tensor}: {what}: {}", seen.expect(what));
        }
    }
}
