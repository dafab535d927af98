//! Seeded faults in what products do with their results where they are made. Each must be caught, as in [`crate::faults`].

use crate::bench::{Placing, without_alternatives};
use crate::epilogue::{Fused, between_vectors, in_parts};
use crate::epilogue_kernels::{accumulated, by_heads, gated};
use crate::faults::{catch, catch_on, fault};
use crate::matmul::{Batch, Innermost, Shape, plain};
use crate::support::Numbers;
use crate::tensor_cores::{ROW_MAJOR, plain_bf16};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::{DeviceArgument, Keeps};

#[test]
fn in_epilogues_of_vectors() {
    let shape = Shape { batch: vec![Batch::Both(2)], scale: 0.1, ..plain_bf16(70, 80, 104) };
    let fused = Fused { keeps: Keeps::Results, ..Fused::new(&shape, ROW_MAJOR, gated, &mut Numbers(41)) };
    let call = without_alternatives(fused.call());
    let faults = [
        fault(0, "elements, element + further};", "elements, element};"),
        fault(0, "element += further;", ""),
        fault(
            0,
            "return widen(narrow<Output::Element>(result_of(sum, 0.0f)));",
            "return result_of(sum, 0.0f);",
        ),
        fault(0, "result_of(sum, 0.0f)));", "sum));"),
        fault(0, "epilogue(element, results, loads);", ""),
        fault(0, "place.epilogue.load(place.element)", "place.epilogue.load(0)"),
        fault(0, "read_rows_ahead(ahead, output, strip_row", "read_rows_ahead(ahead, output, row"),
        fault(0, "room + number * ROOM_OF_WARP, sums", "room, sums"),
        fault(0, "output, room + number * ROOM_OF_WARP", "output, room"),
        fault(0, "        __syncwarp();\n    }\n#pragma", "    }\n#pragma"),
        fault(0, "(ARE_PUT_FIRST ? STRIPS : 1)", "1"),
        fault(0, "at[number] = read_back(sums[number]);", "at[number] = read_back(sums[0]);"),
        fault(0, "        store_vector(place.elements + place.element, sums, Nothing{});", ""),
        fault(0, "store_vector(place.elements + place.element", "store_vector(place.elements"),
        fault(0, "store_vector(place, sums, ahead[number]);", ""),
        fault(
            0,
            "Results& results, Loads loads) const {\n        const int d = element % 80;\n        const int line = element / 80;",
            "Results& results, Loads loads) const {\n        const int d = element % 80;\n        const int line = element / 81;",
        ),
        fault(0, " = results.at[at];", " = results.at[0];"),
        fault(0, "tensor3}, elements, 0}", "tensor3}, elements, 1}"),
    ];
    catch(&call, &faults, |call, bench| fused.judge(call, bench, Placing::Aligned));

    // As in larger tiles, whose strips have no room beside each other.
    let mut call = call;
    let source = &mut call.launches[0].source;
    *source = source.replace("HAS_EPILOGUE && ALL_HAVE_ROOM;", "false;");
    let faults = [
        fault(0, "                move_up(sums);", ""),
        fault(0, "before = part - PARTS_OF_STRIP", "before = part - PARTS_OF_STRIP + 1"),
        fault(0, "__syncwarp();\n            store_rows", "store_rows"),
    ];
    catch(&call, &faults, |call, bench| fused.judge(call, bench, Placing::Aligned));
}

/// Rests of vectors, heads that no vector is in, and kept results that begin between vectors.
#[test]
fn in_epilogues_of_single_results() {
    let shape = Shape { scale: 0.1, ..plain_bf16(40, 35, 40) };
    let fused = Fused::new(&shape, [Innermost::Others; 3], gated, &mut Numbers(42));
    let call = without_alternatives(fused.call());
    let faults = [
        fault(0, "place.epilogue(place.element, read_back(sum));", ""),
        fault(0, "place.epilogue(place.element, read_back(sum));", "place.epilogue(place.element, sum);"),
        fault(
            0,
            "result) const {\n        const int d = element % 35;\n        const int line = element / 35;",
            "result) const {\n        const int d = element % 35;\n        const int line = element / 36;",
        ),
        fault(0, " = result;", " = 0.0f;"),
    ];
    catch(&call, &faults, |call, bench| fused.judge(call, bench, Placing::Aligned));

    let fused = Fused::new(&plain_bf16(8, 40, 40), ROW_MAJOR, by_heads::<20>, &mut Numbers(43));
    let faults = [
        fault(
            0,
            "epilogue(element + number, read_back(sums[number]));",
            "epilogue(element, read_back(sums[number]));",
        ),
        fault(
            0,
            "epilogue(element + number, read_back(sums[number]));",
            "epilogue(element + number, read_back(sums[0]));",
        ),
    ];
    let call = without_alternatives(fused.call());
    catch(&call, &faults, |call, bench| fused.judge(call, bench, Placing::Aligned));

    let fused = between_vectors();
    let call = without_alternatives(fused.call());
    let faults = [fault(0, "KEEPS_RESULTS ? address(place.elements + place.element) : 0", "0")];
    catch(&call, &faults, |call, bench| fused.judge(call, bench, Placing::Behind(4)));
}

#[test]
fn in_epilogues_on_ordinary_cores_and_of_parts() {
    let shape = Shape { batch: vec![Batch::Both(2)], scale: 0.1, ..plain(70, 67, 5) };
    let fused = Fused::new(&shape, ROW_MAJOR, accumulated, &mut Numbers(44));
    let call = fused.call();
    let faults = [
        fault(0, "            move_up(sums);", ""),
        fault(0, "sums[row - 1][column] = sums[row][column];", "sums[row][column] = sums[row - 1][column];"),
        fault(0, "HAS_EPILOGUE ? 0 : row_number", "row_number"),
        fault(0, "element += further;", ""),
    ];
    catch(&call, &faults, |call, bench| fused.judge(call, bench, Placing::Aligned));

    let shape = Shape { batch: vec![Batch::Both(2)], scale: 0.1, ..plain_bf16(20, 24, 1032) };
    let fused = in_parts(&shape, gated);
    let call = without_alternatives(fused.call());
    let faults = [
        fault(1, "elements, element + further};", "elements, element};"),
        fault(1, "row * Output::ROW_STRIDE", "row * Output::COLUMN_STRIDE"),
    ];
    catch(&call, &faults, |call, bench| fused.judge(call, bench, Placing::Aligned));
}

/// Faults in what a launch is given, in bulk too.
#[test]
fn in_arguments_of_epilogues() {
    let fused = Fused::new(&plain_bf16(24, 40, 40), [Innermost::Others; 3], gated, &mut Numbers(45));
    let mut call = fused.call();
    let bulk = call.launches[0].alternative.take().expect("maps describe it");
    call.launches[0] = *bulk;
    catch_on(Architecture::Sm90a, &call, &[fault(0, "element + further};", "element};")], |call, bench| {
        fused.judge(call, bench, Placing::Aligned)
    });
    let pointers = [(4, 5), (5, 6), (6, 4)];
    catch_on(Architecture::Sm90a, &call, &[], |sound, bench| {
        for (from, to) in pointers {
            let mut faulty = sound.clone();
            let arguments = faulty.launches[0].arguments.iter_mut();
            arguments.filter(|argument| **argument == DeviceArgument::Pointer(from)).for_each(|argument| {
                *argument = DeviceArgument::Pointer(to);
            });
            let seen = fused.judge(&faulty, bench, Placing::Aligned);
            println!("buffer {from} became {to}: {}", seen.expect("it is caught"));
        }
        fused.judge(sound, bench, Placing::Aligned)
    });
}
