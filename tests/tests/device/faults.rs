//! Seeded faults: one thing in a source made wrong, and what must notice: a check of the emulator or the comparison. Each case
//! without its fault passes first, so that it is the fault that is caught.

use crate::bench::{Bench, Placing, without_alternatives};
use crate::embedding::Scatter;
use crate::matmul::{Batch, Case as Product, Innermost, Shape as ProductShape, plain};
use crate::support::Numbers;
use crate::tensor_cores::{large_shapes, plain_bf16};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::collective::{BlockCopy, Reduction};
use dtlc_kernels::cuda::{
    BlockReduction, DeviceArgument, DeviceCall, MappedTensor, Pattern, ReducedElement, copy_blocks, fill,
    matmul, reduce, scatter_add, take,
};
use dtlc_kernels::signature::{Accumulation, Element, ScatterAddSpec, TakeSpec};

/// What is wrong in one launch: text, and what stands there instead.
pub struct Fault {
    launch: usize,
    from: &'static str,
    to: &'static str,
}

/// A fault of this launch.
pub const fn fault(launch: usize, from: &'static str, to: &'static str) -> Fault {
    Fault { launch, from, to }
}

/// Seeds each fault into a call and asks `judge` what it sees.
pub fn catch(
    call: &DeviceCall,
    faults: &[Fault],
    judge: impl FnMut(&DeviceCall, &mut Bench) -> Option<String>,
) {
    catch_on(Architecture::Sm80, call, faults, judge);
}

/// The same with code for this architecture.
pub fn catch_on(
    architecture: Architecture,
    call: &DeviceCall,
    faults: &[Fault],
    mut judge: impl FnMut(&DeviceCall, &mut Bench) -> Option<String>,
) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    assert_eq!(judge(call, &mut bench), None);
    let mut bench = bench.for_faults();
    for Fault { launch, from, to } in faults {
        let mut faulty = call.clone();
        let source = &mut faulty.launches[*launch].source;
        assert_eq!(source.matches(from).count(), 1, "`{from}` in\n{source}");
        *source = source.replace(from, to);
        let seen = judge(&faulty, &mut bench);
        assert!(seen.is_some(), "not caught: `{from}` became `{to}`");
        println!("`{from}` became `{to}`: {}", seen.unwrap_or_default());
    }
}

/// The first buffer that is not as the sound call leaves it: for kernels that are held to exact bits.
fn judge_bits<'a>(
    call: &'a DeviceCall,
    buffers: &'a [Vec<u8>],
    integers: &'a [i64],
    placing: Placing,
) -> impl FnMut(&DeviceCall, &mut Bench) -> Option<String> + 'a {
    move |faulty, bench| {
        let (mut expected, mut found) = (buffers.to_vec(), buffers.to_vec());
        bench.run(call, &mut expected, integers, placing).unwrap_or_else(|error| panic!("{error}"));
        if let Err(error) = bench.run(faulty, &mut found, integers, placing) {
            return Some(error.to_string());
        }
        let differs = |(found, expected): (&Vec<u8>, &Vec<u8>)| found != expected;
        let position = found.iter().zip(&expected).position(differs)?;
        Some(format!("buffer {position} differs"))
    }
}

#[test]
fn in_products() {
    let shape =
        ProductShape { batch: vec![Batch::Both(2)], accumulation: Accumulation::Add, ..plain(70, 67, 35) };
    let layout = [Innermost::Others, Innermost::Others, Innermost::Others];
    let case = Product::dense(&shape, layout, &mut Numbers(1));
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "right_piece);\n            __syncthreads();", "right_piece);"),
        fault(0, "right_piece);\n    __syncthreads();", "right_piece);"),
        fault(0, "pairs[1 - current].left, left_piece", "pairs[current].left, left_piece"),
        fault(0, "line < Operand::LINES &&", "line <= Operand::LINES &&"),
        fault(0, "term < end_term", "term <= end_term"),
        fault(0, "row < Left::LINES && column", "row <= Left::LINES && column"),
        fault(0, "LINES + QUAD]", "LINES + 1]"),
        fault(0, "ACCUMULATES ? old + product : product", "product"),
        fault(0, "output += Output::of_product(product)", "output += Output::of_product(0)"),
        fault(0, "row * Output::ROW_STRIDE", "row * Left::LINE_STRIDE"),
        fault(0, "term += first_term;", ""),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
}

/// Seven steps, so that the last is in the first stage again, with rests of every kind.
fn on_tensor_cores(innermost: [Innermost; 3], step: usize, accumulation: Accumulation) -> Product {
    let shape = ProductShape { batch: vec![Batch::Both(2)], accumulation, ..plain_bf16(70, 67, 203) };
    Product::padded(&shape, innermost, step, &mut Numbers(5))
}

#[test]
fn in_products_on_tensor_cores() {
    let case = on_tensor_cores([Innermost::Others; 3], 8, Accumulation::Overwrite);
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "wait_for_groups<AHEAD - 1>()", "wait_for_groups<AHEAD>()"),
        fault(0, "__syncthreads();\n            begin_stage", "begin_stage"),
        fault(0, "__syncthreads();\n    store_sums", "store_sums"),
        fault(0, "__syncwarp();\n            store_rows", "store_rows"),
        fault(0, "    }\n    close_group();", "        close_group();\n    }"),
        fault(
            0,
            "(sums, static_cast<unsigned>(step) % STAGES",
            "(sums, static_cast<unsigned>(step + 1) % STAGES",
        ),
        fault(0, "begin_stage(step + AHEAD", "begin_stage(step + AHEAD + 1"),
        fault(
            0,
            "return Piece{Place::place(row, chunk)",
            "return Piece{row * Place::ROW_BYTES + chunk * 16u",
        ),
        fault(0, "|| line < Operand::LINES", "|| true"),
        fault(0, "|| term < TERMS", "|| true"),
        fault(0, "is_whole ? CHUNK : min(rest, CHUNK)", "CHUNK"),
        fault(0, "place + 8 * ROOM_PITCH", "place + 4 * ROOM_PITCH"),
        fault(0, "column + COUNT <= Right::LINES", "true"),
        fault(0, "in_group % rows_of_group", "in_group % GROUP"),
        fault(0, "across_of_strip(number) * 8;", "across_of_strip(number) * 4;"),
    ];
    // A warp for itself has one part of columns.
    let call = without_alternatives(call);
    let [of_all @ .., _] = &faults;
    catch(&call, of_all, |call, bench| case.judge(call, bench, Placing::Aligned));
    catch_on(Architecture::Sm90a, &call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
    let faults = [
        fault(0, "Place::place(lane % 8, chunk)", "Place::place(lane % 4, chunk)"),
        fault(0, "late_matrix = lane / 16;", "late_matrix = lane / 16 * 2;"),
        fault(0, "SIDE == Side::LEFT ? odd_matrix", "SIDE == Side::RIGHT ? odd_matrix"),
        fault(0, "right.at[across % 2 * 2], right", "right.at[across % 2], right"),
        fault(0, "<!ROWS_ARE_LINES>(tile", "<ROWS_ARE_LINES>(tile"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
}

/// Faults in what four warps multiply together.
#[test]
fn in_products_of_groups() {
    let case = on_tensor_cores([Innermost::Others; 3], 8, Accumulation::Overwrite);
    let call = without_alternatives(matmul(&case.spec, None).expect("a valid descriptor"));
    let faults = [
        fault(0, "asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");", ""),
        fault(0, "asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");", ""),
        fault(0, "asm volatile(\"fence.proxy.async;\" ::: \"memory\");", ""),
        fault(0, "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
        fault(0, "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;"),
        fault(0, "AHEAD = STAGES - 2", "AHEAD = STAGES - 1"),
        fault(0, "SWIZZLE = ROW_BYTES == 128 ? 1 : 2", "SWIZZLE = ROW_BYTES == 128 ? 1 : 3"),
        fault(0, "EIGHT_ROWS = 8 * ROW_BYTES / 16", "EIGHT_ROWS = 4 * ROW_BYTES / 16"),
        fault(0, "\"n\"(Left::TERMS_ARE_NEIGHBOURS ? 0 : 1)", "\"n\"(1)"),
        fault(0, "\"n\"(Right::TERMS_ARE_NEIGHBOURS ? 0 : 1)", "\"n\"(1)"),
        fault(0, "setp.ne.b32 adds, 1, 0", "setp.ne.b32 adds, 0, 0"),
        fault(0, "line * ROW_BYTES + term * sizeof(Factor)", "line * ROW_BYTES + term"),
        fault(0, "threadIdx.x / 32 % 4 * 16", "threadIdx.x / 32 * 8"),
    ];
    catch_on(Architecture::Sm90a, &call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));

    // Rows of terms, more than 64 lines of them.
    let [_, (large, _)] = large_shapes();
    let case =
        Product::dense(&large, [Innermost::Lines, Innermost::Lines, Innermost::Others], &mut Numbers(7));
    let call = without_alternatives(matmul(&case.spec, None).expect("a valid descriptor"));
    let faults = [
        fault(0, "? 1 : Place::ROWS * ROW_BYTES / 16", "? 1 : 8 * ROW_BYTES / 16"),
        fault(0, "line / LINES_OF_ROW * Place::ROWS", "line / LINES_OF_ROW * 8"),
        fault(0, "Place::ROWS * ROW_BYTES + term * ROW_BYTES", "Place::ROWS * ROW_BYTES + term"),
        fault(0, "row + down * 64", "row"),
    ];
    catch_on(Architecture::Sm90a, &call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
}

/// The call as devices of 9.0 launch it.
fn in_bulk(case: &Product) -> DeviceCall {
    let mut call = matmul(&case.spec, None).expect("a valid descriptor");
    let alternative = call.launches[0].alternative.take().expect("maps describe it");
    call.launches[0] = *alternative;
    call
}

/// Faults in what arrives in bulk. Eight steps in six stages, so that two are used again.
#[test]
fn in_products_that_arrive_in_bulk() {
    let shape = ProductShape { batch: vec![Batch::Both(2)], ..plain_bf16(70, 67, 500) };
    let case =
        Product::padded(&shape, [Innermost::Others, Innermost::Lines, Innermost::Others], 8, &mut Numbers(8));
    let call = in_bulk(&case);
    let faults = [
        fault(0, "wait_for_phase(full[stage.number], stage.round % 2);", ""),
        fault(0, "full[stage.number], stage.round % 2", "full[stage.number], (stage.round + 1) % 2"),
        fault(0, "wait_for_phase(empty[stage.number], (stage.round + 1) % 2);", ""),
        fault(0, "empty[stage.number], (stage.round + 1) % 2", "empty[stage.number], stage.round % 2"),
        fault(0, "open_stage(stage, STAGE_BYTES)", "open_stage(stage, LeftTile::BYTES)"),
        fault(0, "open_stage(stage, STAGE_BYTES)", "open_stage(stage, 2 * STAGE_BYTES)"),
        fault(0, "arrive(empty[Stage(step).number]);", ""),
        fault(0, "give_back(step - 1)", "give_back(step)"),
        fault(0, "aligned 1;\" ::: \"memory\");\n        if", "aligned 2;\" ::: \"memory\");\n        if"),
        fault(0, "MULTIPLYING_WARPS = THREADS / 32", "MULTIPLYING_WARPS = THREADS / 64"),
        fault(0, "asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");", ""),
        fault(0, "    __syncthreads();\n    if (threadIdx.x >= THREADS)", "    if (threadIdx.x >= THREADS)"),
        fault(0, "make_barrier(full[stage], 1);", "make_barrier(full[stage], 2);"),
        fault(0, "make_barrier(empty[stage], MULTIPLYING_WARPS);", ""),
        fault(0, "asm volatile(\"bar.sync 1, %0;\" ::\"n\"(THREADS) : \"memory\");", ""),
        fault(
            0,
            "begin_box(tile, map, first_term, first_line",
            "begin_box(tile, map, first_line, first_term",
        ),
        fault(0, "left, first_row, term, left_product", "left, first_row, term, 0"),
        fault(0, "right, first_column, term, right_product", "right, first_column, term, right_product + 1"),
        fault(0, "(first_step + step) * TILE_TERMS", "(first_step + step) * TILE_TERMS / 2"),
        fault(0, "stage.first_byte() + LeftTile::BYTES, right", "stage.first_byte(), right"),
        fault(0, "SWIZZLE = ROW_BYTES == 128 ? 1 : 2", "SWIZZLE = ROW_BYTES == 128 ? 2 : 1"),
    ];
    catch_on(Architecture::Sm90a, &call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));

    // More than 64 lines of a row of terms.
    let [_, (large, _)] = large_shapes();
    let case =
        Product::dense(&large, [Innermost::Lines, Innermost::Lines, Innermost::Others], &mut Numbers(9));
    let faults = [
        fault(0, "first_line + strip * 64, first_term", "first_line + strip * 32, first_term"),
        fault(0, "static_cast<unsigned>(strip) * Place::Strip::BYTES", "0"),
    ];
    catch_on(Architecture::Sm90a, &in_bulk(&case), &faults, |call, bench| {
        case.judge(call, bench, Placing::Aligned)
    });
}

/// What is wrong in a map.
type Change = fn(&mut MappedTensor);

/// Faults in the maps of what arrives in bulk.
#[test]
fn in_maps() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let shape = ProductShape { batch: vec![Batch::Both(2)], ..plain_bf16(70, 67, 100) };
    let case = Product::padded(&shape, [Innermost::Others; 3], 8, &mut Numbers(10));
    let call = in_bulk(&case);
    assert_eq!(case.judge(&call, &mut bench, Placing::Aligned), None);
    let faults: [(&str, Change); 7] = [
        ("terms and lines of the tensor change places", |map| map.sizes.swap(0, 1)),
        ("one product too few", |map| map.sizes[2] -= 1),
        ("too few terms", |map| map.sizes[0] = 96),
        ("lines are nearer", |map| map.strides[0] -= 16),
        ("products are nearer", |map| map.strides[1] -= 16),
        ("a box of fewer lines", |map| map.box_sizes[1] = 32),
        ("the other factor's tensor", |map| map.buffer = 1 - map.buffer),
    ];
    for (what, change) in faults {
        let mut faulty = call.clone();
        let Some(DeviceArgument::Map(map)) = faulty.launches[0].arguments.first_mut() else {
            panic!("a map")
        };
        change(map);
        let seen = case.judge(&faulty, &mut bench, Placing::Aligned);
        println!("{what}: {}", seen.expect(what));
    }
}

#[test]
fn in_products_on_tensor_cores_of_other_layouts() {
    let case = on_tensor_cores([Innermost::Lines, Innermost::Lines, Innermost::Others], 8, Accumulation::Add);
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "ldmatrix.sync.aligned.m8n8.x4.trans", "ldmatrix.sync.aligned.m8n8.x4"),
        fault(0, "(ROWS_ARE_LINES ? term : line) / CHUNK", "(ROWS_ARE_LINES ? line : term) / CHUNK"),
        fault(0, "pair(old.x, sums[0]", "pair(old.y, sums[0]"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
    let faults = [
        fault(0, "address(operand) % sizeof(Chunk) == 0", "true"),
        fault(0, "address(output) % 16 == 0", "true"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Behind(2)));

    let case =
        on_tensor_cores([Innermost::Lines, Innermost::Others, Innermost::Others], 1, Accumulation::Add);
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "number < piece.count", "true"),
        fault(0, "number % OF_WORD * 16", "16"),
        fault(0, "piece.line + number, piece.term", "piece.line, piece.term + number"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
}

#[test]
fn in_products_in_parts() {
    let shape = ProductShape { batch: vec![Batch::Both(2)], ..plain_bf16(70, 67, 1030) };
    let case = Product::dense(&shape, [Innermost::Others; 3], &mut Numbers(6));
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "% PARTS) * STEPS_OF_PART", "% PARTS) * STEPS_OF_PART / 2"),
        fault(0, "min(first_step + STEPS_OF_PART, STEPS)", "STEPS"),
        fault(0, "output += Output::of_product(block / TILES)", "output += Output::of_product(product)"),
        fault(1, "sum += first[part * PART]", "sum = first[part * PART]"),
        fault(1, "row * PART_PITCH + column", "row * Right::LINES + column"),
        fault(1, "product * PARTS * PART", "product * PART"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
}

#[test]
fn in_embeddings() {
    let spec = ScatterAddSpec {
        tokens: 90,
        vocabulary: 9,
        width: 130,
        source: Element::F32,
        output: Element::F32,
        accumulation: Accumulation::Overwrite,
    };
    let case = Scatter::random(spec, 3, &mut Numbers(2));
    let call = scatter_add(&case.spec).expect("a valid descriptor");
    let faults = [
        fault(1, "middle[vector] =", "if (false) middle[vector] ="),
        fault(2, "row >= 0 && row < VOCABULARY", "row < VOCABULARY"),
        fault(2, "atomicMin", "atomicMax"),
        fault(3, "token + lane < TOKENS &&", ""),
        fault(3, "missing -= __popc(named)", "missing = 0"),
        fault(3, "named &= named - 1", "named = 0"),
        fault(3, "totals[number] += widen", "totals[number] = widen"),
        fault(3, "number * 32 +", "number +"),
        fault(3, "/ STRIPS;\n        const", "/ STRIPS / 2;\n        const"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench));

    let spec = TakeSpec { tokens: 5, vocabulary: 3, width: 6, element: Element::F32 };
    let ids: Vec<u8> = [2, 5, 0, 4, 1_u32].iter().flat_map(|id| id.to_le_bytes()).collect();
    let buffers = [(0..72).collect(), ids, vec![0xee; 120]];
    let call = take(&spec);
    let faults = [
        fault(0, "row < VOCABULARY", "row <= VOCABULARY"),
        fault(0, "is_there ? reinterpret_cast", "true ? reinterpret_cast"),
        fault(0, "table) | address(output) | ROW_BYTES) % 16 == 0", "table) | address(output)) % 16 == 0"),
    ];
    catch(&call, &faults, judge_bits(&call, &buffers, &[1], Placing::Aligned));
}

#[test]
fn in_copies_and_reductions() {
    let bytes = |count: usize| (0..count).map(|index| index as u8).collect::<Vec<u8>>();
    let call = fill(Pattern::Half(0x1234), 50);
    let faults = [
        fault(0, "(0 - address(target)) % 16", "(0 - address(target)) % 8"),
        fault(0, "byte < head", "byte + 1 < head"),
        fault(0, "/ 16;\n    const long long tail", "/ 16 + 1;\n    const long long tail"),
    ];
    catch(&call, &faults, judge_bits(&call, &[vec![0; 53]], &[], Placing::Behind(6)));

    let copy = BlockCopy {
        rows: 2,
        columns: 3,
        block_bytes: 20,
        destination_row_stride: 20,
        destination_column_stride: 40,
        source_row_stride: 60,
        source_column_stride: 20,
    };
    let call = copy_blocks(&copy);
    let faults = [
        fault(0, "all % 16 == 0", "all % 4 == 0"),
        fault(0, "row * blocks.target_row_stride", "row * blocks.source_row_stride"),
        fault(0, "block % columns;", "block % columns / 2;"),
    ];
    catch(&call, &faults, judge_bits(&call, &[bytes(120), vec![0; 120]], &[], Placing::Aligned));

    let spec = BlockReduction {
        sources: 2,
        targets: 2,
        element: ReducedElement::U32,
        reduction: Reduction::Sum,
        range: 4..21,
        inner: 4,
        middle: 3,
        source_outer_stride: 12,
        source_middle_stride: 4,
        target_outer_stride: 4,
        target_middle_stride: 8,
    };
    let call = reduce(&spec).expect("a valid descriptor");
    let faults = [
        fault(0, "element < end;", "element <= end + 3;"),
        fault(0, "middle_piece * block.target_middle", "middle_piece * block.source_middle"),
        fault(0, "sizes % WIDTH == 0", "true"),
        fault(0, "target < TARGETS; ++target) {\n            *", "target < 1; ++target) {\n            *"),
        fault(0, "int source = 1;", "int source = 2;"),
    ];
    let buffers = [bytes(96), bytes(96), vec![0; 96], vec![0; 96]];
    catch(&call, &faults, judge_bits(&call, &buffers, &[], Placing::Aligned));
}
