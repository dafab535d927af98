//! Faults seeded into attention, on the ordinary cores and on the tensor cores.

use crate::attention::{PLAIN, calls, judge};
use crate::attention_tensor::{CHUNKS, NARROW};
use crate::bench::{Bench, Placing, without_alternatives};
use crate::faults::{Fault, catch, catch_on, fault};
use crate::support::Numbers;
use crate::support::attention::{Case, Shape};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::DeviceCall;
use dtlc_kernels::signature::Causality;

/// What every device launches for both directions.
fn both_directions(case: &Case) -> DeviceCall {
    as_one(calls(case).map(without_alternatives))
}

/// The launches of both directions as one call, with the forward's first.
pub fn as_one([mut call, backward]: [DeviceCall; 2]) -> DeviceCall {
    call.launches.extend(backward.launches);
    DeviceCall { scratch_bytes: backward.scratch_bytes, ..call }
}

/// What is wrong with the results of both.
pub fn judge_directions(
    case: &Case,
    call: &DeviceCall,
    bench: &mut Bench,
    placing: Placing,
) -> Option<String> {
    let forward = DeviceCall { scratch_bytes: 0, launches: call.launches[..1].to_vec() };
    let backward = DeviceCall { launches: call.launches[1..].to_vec(), ..*call };
    judge(case, [&forward, &backward], bench, placing)
}

#[test]
fn in_attention() {
    let shape = Shape {
        kv_heads: 2,
        group: 2,
        q_len: 70,
        k_len: 90,
        q_offset: 13,
        window: Some(30),
        softcap: Some(1.5),
        head_dim: 20,
        ..PLAIN
    };
    let case = Case::random(shape, &mut Numbers(3));
    let faults = [
        fault(0, "behind >= 0", "behind > 0"),
        fault(0, "behind < WINDOW", "behind <= WINDOW"),
        fault(0, "distance + queries.end, 0", "distance + queries.end - 20, 0"),
        fault(0, "- WINDOW + 1, 0, end", "- WINDOW + 8, 0, end"),
        fault(0, "number / GROUP % KV_HEADS", "number % KV_HEADS"),
        fault(3, "__syncthreads();\n        add_products(outputs", "add_products(outputs"),
        fault(
            0,
            "FEATURES_OF_ROW; first_feature += CHUNK) {\n        __syncthreads();",
            "FEATURES_OF_ROW; first_feature += CHUNK) {",
        ),
        fault(0, "outputs[row][feature] *= decay;", ""),
        fault(0, "running.sum[row] * decay +", "running.sum[row] +"),
        fault(0, "position < count && feature < FEATURES_OF_ROW) {", "feature < FEATURES_OF_ROW) {"),
        fault(
            1,
            "sum += __shfl_xor_sync(0xffffffffu, sum, distance);",
            "sum += __shfl_xor_sync(0xffffu, sum, distance);",
        ),
        fault(2, "(gradient - query.delta)", "gradient"),
        fault(2, "__fmaf_rn(-ratio, ratio, 1.0f)", "1.0f"),
        fault(3, "keys.end - 1 + WINDOW", "keys.end - 40 + WINDOW"),
        fault(3, "head_of(first_head + group)", "head_of(first_head)"),
        fault(3, "store_weights(weights, gradients);", ""),
    ];
    catch(&both_directions(&case), &faults, |call, bench| {
        judge_directions(&case, call, bench, Placing::Aligned)
    });
}

#[test]
fn in_attention_without_a_mask() {
    let shape = Shape { causality: Causality::Bidirectional, q_len: 9, k_len: 70, ..PLAIN };
    let case = Case::random(shape, &mut Numbers(4));
    let faults = [
        fault(0, "query < Q_LEN && key < K_LEN &&", "query < Q_LEN &&"),
        fault(
            0,
            "int distance = 8; distance > 0; distance /= 2) {\n        x += ",
            "int distance = 4; distance > 0; distance /= 2) {\n        x += ",
        ),
    ];
    catch(&both_directions(&case), &faults, |call, bench| {
        judge_directions(&case, call, bench, Placing::Aligned)
    });
}

/// Four tiles of columns for each block, parts of chunks, and outputs that lie otherwise in shared memory than what was there.
const LONG: Shape = Shape {
    kv_heads: 2,
    group: 2,
    q_len: 70,
    k_len: 200,
    q_offset: 130,
    softcap: Some(1.5),
    head_dim: 20,
    value_dim: 12,
    ..NARROW
};
/// A window across tiles.
const WINDOWED: Shape = Shape { k_len: 90, q_offset: 13, window: Some(30), ..LONG };

fn catch_on_tensor_cores(case: &Case, faults: &[Fault], placing: Placing) {
    catch(&both_directions(case), faults, |call, bench| judge_directions(case, call, bench, placing));
}

#[test]
fn in_attention_on_tensor_cores() {
    let faults = [
        // What arrives, and who is done with it.
        fault(0, "wait_for_groups<0>();\n    publish", "wait_for_groups<1>();\n    publish"),
        fault(3, "wait_for_groups<0>();\n    publish", "wait_for_groups<1>();\n    publish"),
        fault(0, "publish();\n    __syncthreads();", ""),
        fault(2, "publish();\n    __syncthreads();", ""),
        fault(3, "publish();\n    __syncthreads();", ""),
        fault(0, "__syncthreads();\n    write_outputs", "write_outputs"),
        fault(0, "__syncwarp();\n    store_outputs", "store_outputs"),
        fault(2, "begin_stage(step + 1)", "begin_stage(step + 2)"),
        fault(3, "begin_stage(step + 1)", "begin_stage(step + 2)"),
        fault(0, "(step) % STAGES * STAGE_BYTES", "(step) * 0"),
        // Where it lies.
        fault(
            0,
            "byte = tile + Place::place(row, chunk)",
            "byte = tile + row * Place::ROW_BYTES + chunk * 16u",
        ),
        fault(0, "Place::place(lane % 8, chunk)", "Place::place(lane % 4, chunk)"),
        fault(0, "SIDE == Side::LEFT ? odd_matrix", "SIDE == Side::RIGHT ? odd_matrix"),
        fault(2, "<Side::RIGHT, false,", "<Side::RIGHT, true,"),
        fault(3, "(gradients, Keys::BYTES,", "(gradients, 0,"),
        // What comes in from and goes out to device memory.
        fault(0, "position < rows.count ?", "true ?"),
        fault(0, "rows.count ? clamped(FEATURES_OF_ROW - feature, 0, CHUNK)", "rows.count ? CHUNK"),
        fault(2, "is_aligned && count == CHUNK", "is_aligned"),
        fault(3, "position < end ?", "true ?"),
    ];
    let case = Case::stepping(LONG, CHUNKS, &mut Numbers(31));
    catch_on_tensor_cores(&case, &faults, Placing::Aligned);

    // Keys whose gradients two blocks make.
    let faults = [
        fault(3, "__syncthreads();\n    write_outputs", "write_outputs"),
        fault(3, "stage, block.part * KEY_FEATURES)", "stage, 0)"),
        fault(3, "block.part * KEY_FEATURES);\n    store", "0);\n    store"),
    ];
    let shape = Shape { head_dim: 132, value_dim: 20, ..NARROW };
    let case = Case::stepping(shape, CHUNKS, &mut Numbers(36));
    catch_on_tensor_cores(&case, &faults, Placing::Aligned);
}

#[test]
fn in_what_attention_on_tensor_cores_computes() {
    let faults = [
        // Which lane has what.
        fault(0, "% 32 / 4;", "% 32 / 8;"),
        fault(0, "half * 8 +", "half * 4 +"),
        fault(
            0,
            "across * 8 + static_cast<int>(threadIdx.x) % 4 * 2",
            "across * 8 + static_cast<int>(threadIdx.x) % 4",
        ),
        fault(0, "\"f\"(high), \"f\"(low)", "\"f\"(low), \"f\"(high)"),
        fault(2, "pair_of(early[2], early[3])", "pair_of(late[0], late[1])"),
        fault(0, "threadIdx.x % 4 * 4;", "threadIdx.x % 4 * 2;"),
        fault(
            0,
            "(products[down][across + 1], rows[down], columns.at[2], columns.at[3])",
            "(products[down][across + 1], rows[down], columns.at[1], columns.at[3])",
        ),
        fault(3, "half * 2 + column % 2", "column % 2 * 2 + half"),
        // Who sees whom.
        fault(0, "key >= keys.first", "key > keys.first"),
        fault(0, "key < keys.end;", "key <= keys.end;"),
        fault(2, "key < keys.end;", "key <= keys.end;"),
        fault(3, "query >= queries.first", "query > queries.first"),
        fault(3, "query < queries.end", "query <= queries.end"),
        // The softmax.
        fault(0, "sum *= decay;", ""),
        fault(0, "running.decay[down][number / 2]", "running.decay[down][0]"),
        fault(0, "x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));", ""),
        fault(0, "x += __shfl_xor_sync(0xffffffffu, x, 1);", ""),
        fault(0, "running.maximum[down][half], LN_OF_2", "running.maximum[down][half], 1.0f"),
        // The gradient of a score.
        fault(3, "slopes[down][column / 2][index], terms", "1.0f, terms"),
        // The group.
        fault(3, "head_of(block.head_number(step))", "head_of(block.first_head)"),
        fault(3, "head_number = block.head_number(step)", "head_number = block.first_head"),
        fault(3, "return GROUP * steps_of_head", "return steps_of_head"),
    ];
    let case = Case::stepping(WINDOWED, CHUNKS, &mut Numbers(32));
    catch_on_tensor_cores(&case, &faults, Placing::Aligned);
}

#[test]
fn in_attention_on_tensor_cores_of_other_layouts() {
    let faults = [
        fault(0, "address(rows.at) % sizeof(Chunk) == 0", "true"),
        fault(3, "address(tensor) % sizeof(Chunk) == 0", "true"),
    ];
    let case = Case::stepping(WINDOWED, CHUNKS, &mut Numbers(33));
    catch_on_tensor_cores(&case, &faults, Placing::Behind(4));

    let faults = [
        fault(0, "number < count) {", "true) {"),
        fault(2, "number % 2 * 16", "16"),
        fault(3, "number < count; ++number", "number < CHUNK; ++number"),
    ];
    let case = Case::stepping(WINDOWED, 1, &mut Numbers(34));
    catch_on_tensor_cores(&case, &faults, Placing::Aligned);

    // The second block of queries sees nothing, so its queries may still be on their way when it writes.
    let shape =
        Shape { causality: Causality::Bidirectional, q_len: 150, k_len: 9, window: Some(100), ..NARROW };
    let faults = [
        fault(0, "wait_for_groups<0>();\n    __syncthreads", "__syncthreads"),
        fault(2, "wait_for_groups<0>();\n    __syncthreads", "__syncthreads"),
        fault(0, "greatest == minus_infinity() ? 0.0f : greatest", "greatest"),
        fault(0, "sum == 0.0f ? 0.0f : 1.0f / sum", "1.0f / sum"),
    ];
    let case = Case::stepping(shape, CHUNKS, &mut Numbers(35));
    catch_on_tensor_cores(&case, &faults, Placing::Aligned);
}

fn catch_in_groups(case: &Case, faults: &[Fault]) {
    catch_on(Architecture::Sm90a, &both_directions(case), faults, |call, bench| {
        judge_directions(case, call, bench, Placing::Aligned)
    });
}

/// Faults in what four warps multiply together: what is there for products, and what they are done with.
#[test]
fn in_attention_of_groups() {
    let fence = "asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");";
    let commit = "asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");";
    let wait = "asm volatile(\"wgmma.wait_group.sync.aligned %0;\" ::\"n\"(LEFT) : \"memory\");";
    let proxy_fence = "asm volatile(\"fence.proxy.async;\" ::: \"memory\");";
    let faults = [
        fault(0, fence, ""),
        fault(3, commit, ""),
        fault(2, wait, ""),
        fault(0, proxy_fence, ""),
        fault(0, "end_products<1>(scores)", "end_products<2>(scores)"),
        fault(
            0,
            "end_products<0>(outputs, weights);\n        incoming",
            "end_products<1>(outputs, weights);\n        incoming",
        ),
        fault(0, "end_products<0>(outputs, weights);\n}", "}"),
        fault(0, "end_step(step - 1);\n        incoming", "incoming"),
        fault(2, "end_products<1>(scores)", "end_products<2>(scores)"),
        fault(2, "end_products<0>(gradients)", "end_products<1>(gradients)"),
        fault(3, "end_products<1>(gradients)", "end_products<2>(gradients)"),
        fault(3, "end_products<0>(outputs.values", "end_products<1>(outputs.values"),
        fault(0, "publish();\n    __syncthreads();", "publish();"),
        fault(0, "incoming.await(steps);\n    add_weighted_rows", "add_weighted_rows"),
        fault(0, "        begin_values(step);", "        begin_values(step - 1);"),
        fault(0, "Incoming::value_stage(step - 1)", "Incoming::value_stage(step)"),
    ];
    let case = Case::stepping(Shape { q_len: 60, ..LONG }, CHUNKS, &mut Numbers(41));
    catch_in_groups(&case, &faults);
}

/// Where products of groups find factors, and what attention makes of them.
#[test]
fn in_what_attention_of_groups_computes() {
    let faults = [
        fault(0, "ROW_BYTES == 64 ? 2 : 3", "ROW_BYTES == 64 ? 3 : 2"),
        fault(0, "EIGHT_ROWS = 8 * ROW_BYTES / 16", "EIGHT_ROWS = 4 * ROW_BYTES / 16"),
        fault(2, "feature % FEATURES_OF_STRIP *", "0 *"),
        fault(0, "row / FRAGMENT * ROWS_OF_GROUP +", "row / FRAGMENT * FRAGMENT +"),
        fault(0, "down * ROWS_OF_GROUP, feature", "down * 32, feature"),
        fault(0, "weights[down][across / 2], columns", "weights[down][0], columns"),
        fault(0, "key < keys.end;", "key <= keys.end;"),
        fault(3, "query >= queries.first", "query > queries.first"),
        fault(0, "leave(step);\n        decay_outputs(outputs, running);", "leave(step);"),
        fault(2, "slopes[down][across][index],", "1.0f,"),
    ];
    let case = Case::stepping(WINDOWED, CHUNKS, &mut Numbers(42));
    catch_in_groups(&case, &faults);

    // Strips beside each other, whole ones for each of two blocks.
    let faults =
        [fault(2, "? STRIP_BYTES / 16 : 1", "? EIGHT_ROWS : 1"), fault(3, "CHUNKS / PARTS>", "CHUNKS>")];
    let shape = Shape { head_dim: 132, value_dim: 20, ..NARROW };
    catch_in_groups(&Case::stepping(shape, CHUNKS, &mut Numbers(43)), &faults);
}
