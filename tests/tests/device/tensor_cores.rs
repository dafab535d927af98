//! Products of bf16 and f16 on the tensor cores, against the CPU's: every transpose, edge and tile size, wherever the operands begin.

use crate::bench::{Bench, Placing, compiled, without_alternatives};
use crate::matmul::{Batch, Case, Innermost, OPERANDS, Shape, check, plain};
use crate::support::Numbers;
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::{DeviceArgument, DeviceLaunch, matmul};
use dtlc_kernels::signature::{Accumulation, Element};

/// A product of bf16 without batch.
pub fn plain_bf16(m: usize, n: usize, k: usize) -> Shape {
    Shape { elements: [Element::Bf16; 3], ..plain(m, n, k) }
}

pub const ROW_MAJOR: [Innermost; 3] = [Innermost::Others, Innermost::Lines, Innermost::Others];

fn launch(case: &Case) -> DeviceLaunch {
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let [launch] = <[DeviceLaunch; 1]>::try_from(call.launches).expect("one launch");
    launch
}

/// Which of left, right and output are read or written 16 bytes at once.
pub fn alignments(launch: &DeviceLaunch) -> Vec<bool> {
    let stated = launch.source.split("IS_ALIGNED = ").skip(1);
    stated.map(|behind| behind.starts_with("true")).collect()
}

/// Those whose texts differ.
pub const ARCHITECTURES: [Architecture; 2] = [Architecture::Sm80, Architecture::Sm90a];

#[test]
fn every_transpose_in_bf16() {
    ARCHITECTURES.into_iter().for_each(every_transpose);
}

fn every_transpose(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let mut numbers = Numbers(11);
    for a in OPERANDS {
        for b in OPERANDS {
            for c in OPERANDS {
                // Whole chunks; and parts of chunks at the end of aligned lines, or lines that start anywhere.
                let rest = if a == b { (70, 67, 35, 8, true) } else { (70, 67, 35, 1, false) };
                for (m, n, k, step, aligned) in [(72, 80, 232, 1, true), rest] {
                    let shape = plain_bf16(m, n, k);
                    let case = Case::padded(&shape, [a, b, c], step, &mut numbers);
                    let launch = launch(&case);
                    assert_eq!(alignments(&launch), [aligned; 3]);
                    // Parts of chunks at the end of aligned lines arrive in bulk too.
                    assert_eq!(launch.alternative.is_some(), aligned);
                    check(&shape, &case, &mut bench, Placing::Aligned);
                    if aligned && architecture == Architecture::Sm90a {
                        check_without_alternatives(&case, &mut bench);
                    }
                }
            }
        }
    }
}

/// In f16 the same text names another type: every layout of the factors, with whole chunks and lines that start anywhere, outputs in f16 and f32,
/// and sums in parts.
#[test]
fn products_of_f16() {
    ARCHITECTURES.into_iter().for_each(of_f16);
}

fn of_f16(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let mut numbers = Numbers(23);
    let halves = [Element::F16; 3];
    let wide_output = [Element::F16, Element::F16, Element::F32];
    for a in OPERANDS {
        for b in OPERANDS {
            let (step, elements) = if a == b { (8, halves) } else { (1, wide_output) };
            let k = if a == b { 75 } else { 40 };
            let shape = Shape { elements, scale: -0.3, ..plain(70, 67, k) };
            let case = Case::padded(&shape, [a, b, b], step, &mut numbers);
            check(&shape, &case, &mut bench, Placing::Aligned);
            if a == b && architecture == Architecture::Sm90a {
                check_without_alternatives(&case, &mut bench);
            }
        }
    }
    let shape = Shape { elements: halves, accumulation: Accumulation::Add, ..plain(35, 33, 32 * 16 * 2 + 5) };
    check(&shape, &Case::random(&shape, &mut numbers), &mut bench, Placing::Aligned);
}

/// Where an operand begins does not decide bits: what devices of 9.0 launch where it is between chunks gives the same as what they do elsewhere.
fn check_without_alternatives(case: &Case, bench: &mut Bench) {
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let plain = without_alternatives(call.clone());
    let mut output =
        |call| case.output(call, bench, Placing::Aligned).unwrap_or_else(|error| panic!("{error}"));
    assert!(output(&call) == output(&plain), "{:?}", case.spec);
}

/// Sizes that fall short of a tile, loops of every kind, and what becomes of the sums.
#[test]
fn edges_batches_and_broken_contractions_in_bf16() {
    ARCHITECTURES.into_iter().for_each(edges_batches_and_broken_contractions);
}

fn edges_batches_and_broken_contractions(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let mut numbers = Numbers(12);
    let wide_output = [Element::Bf16, Element::Bf16, Element::F32];
    let added = |scale: f32, shape: Shape| Shape { accumulation: Accumulation::Add, scale, ..shape };
    let shapes = [
        plain_bf16(1, 1, 1),
        plain_bf16(1, 200, 17),
        plain_bf16(130, 1, 40),
        Shape { contraction: vec![], ..plain_bf16(5, 7, 1) },
        Shape { contraction: vec![0], ..plain_bf16(3, 4, 1) },
        Shape { elements: wide_output, ..plain_bf16(65, 72, 300) },
        added(-0.3, Shape { contraction: vec![3, 16], elements: wide_output, ..plain_bf16(33, 40, 1) }),
        added(0.125, Shape { contraction: vec![4, 3, 7], ..plain_bf16(40, 72, 1) }),
        added(1.0, Shape { batch: vec![Batch::OnlyB(5)], ..plain_bf16(17, 9, 50) }),
        Shape { batch: vec![Batch::Both(3), Batch::OnlyA(2), Batch::OnlyB(2)], ..plain_bf16(20, 65, 19) },
    ];
    for shape in shapes {
        let innermost = [(); 3].map(|()| numbers.pick(&OPERANDS));
        let case = Case::padded(&shape, innermost, 8, &mut numbers);
        check(&shape, &case, &mut bench, Placing::Aligned);
        let case = Case::random(&shape, &mut numbers);
        check(&shape, &case, &mut bench, Placing::Aligned);
    }
}

/// What the descriptor says is aligned may begin anywhere.
#[test]
fn operands_that_begin_between_chunks() {
    ARCHITECTURES.into_iter().for_each(between_chunks);
}

fn between_chunks(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let shape = Shape { accumulation: Accumulation::Add, ..plain_bf16(72, 80, 200) };
    let case = Case::dense(&shape, ROW_MAJOR, &mut Numbers(13));
    assert_eq!(alignments(&launch(&case)), [true; 3]);
    for bytes in [2, 8, 16] {
        check(&shape, &case, &mut bench, Placing::Behind(bytes));
    }
}

/// A product with this many tiles of the two larger sizes at least, and what its source says of its tiles.
pub fn large_shapes() -> [(Shape, &'static str); 2] {
    [
        (Shape { batch: vec![Batch::Both(32)], ..plain_bf16(136, 264, 40) }, "TILE_COLUMNS = 256"),
        (Shape { batch: vec![Batch::Both(32)], ..plain_bf16(136, 136, 40) }, "TILE_COLUMNS = 128"),
    ]
}

/// The larger tiles.
#[test]
fn products_of_bf16_that_fill_a_device() {
    ARCHITECTURES.into_iter().for_each(products_that_fill);
}

fn products_that_fill(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let mut numbers = Numbers(14);
    let layouts = [[Innermost::Lines, Innermost::Lines, Innermost::Others], ROW_MAJOR];
    for ((shape, tiles), innermost) in large_shapes().into_iter().zip(layouts) {
        let case = Case::dense(&shape, innermost, &mut numbers);
        assert!(launch(&case).source.contains(tiles));
        check(&shape, &case, &mut bench, Placing::Aligned);
    }
}

/// Which products arrive in bulk: those of factors whose elements a map finds, by lines, terms and products.
#[test]
fn what_maps_describe() {
    let mut numbers = Numbers(20);
    let mut maps_of = |shape: &Shape, innermost: [Innermost; 3], step: usize, change: fn(&mut Case)| {
        let mut case = Case::padded(shape, innermost, step, &mut numbers);
        change(&mut case);
        launch(&case).alternative.map(|launch| {
            let maps = launch.arguments.iter().filter_map(|argument| match argument {
                DeviceArgument::Map(map) => Some((map.sizes, map.strides)),
                _ => None,
            });
            maps.collect::<Vec<_>>()
        })
    };
    let mut maps = |shape: &Shape, step: usize, change| maps_of(shape, ROW_MAJOR, step, change);
    let shape = plain_bf16(70, 67, 35);
    let padded = vec![([35, 70, 1], [80, 128]), ([67, 35, 1], [144, 128])];
    assert_eq!(maps(&shape, 8, |_| {}), Some(padded));
    assert_eq!(maps(&shape, 1, |_| {}), None, "lines that start anywhere");
    assert_eq!(maps(&Shape { contraction: vec![0], ..shape.clone() }, 8, |_| {}), None, "no terms");
    assert_eq!(maps(&Shape { contraction: vec![4, 12], ..shape.clone() }, 8, |_| {}), None, "and two");
    assert_eq!(maps(&shape, 8, |case| case.spec.a_row_stride = -40), None, "backwards");
    // Two loops of which the right factor has the outer one alone: places of its products are two, of the left's six.
    let batch = Shape { batch: vec![Batch::Both(2), Batch::OnlyA(3)], ..plain_bf16(16, 24, 32) };
    let expected = vec![([32, 16, 6], [64, 1024]), ([24, 32, 2], [48, 1536])];
    assert_eq!(maps(&batch, 1, |_| {}), Some(expected));
    let loops = Shape { contraction: vec![4, 16], ..shape };
    let one = maps_of(&loops, [Innermost::Others; 3], 1, |case| case.spec.a_row_stride = 80);
    assert_eq!(
        one,
        Some(vec![([64, 70, 1], [160, 128]), ([64, 67, 1], [128, 128])]),
        "two loops that are one"
    );
}

/// Rings that go round, products of several loops, sums that are added, and few lines or terms: in bulk.
#[test]
fn products_that_arrive_in_bulk() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let mut numbers = Numbers(21);
    let wide_output = [Element::Bf16, Element::Bf16, Element::F32];
    let shapes = [
        plain_bf16(1, 1, 1),
        plain_bf16(3, 130, 500),
        Shape { elements: wide_output, scale: -0.3, ..plain_bf16(65, 63, 509) },
        Shape { accumulation: Accumulation::Add, ..plain_bf16(67, 70, 129) },
        Shape { batch: vec![Batch::Both(2), Batch::OnlyA(3), Batch::OnlyB(2)], ..plain_bf16(17, 9, 66) },
        Shape { batch: vec![Batch::Both(3)], ..plain_bf16(70, 67, 32 * 16 * 2 + 5) },
    ];
    for shape in shapes {
        let innermost = [(); 3].map(|()| numbers.pick(&OPERANDS));
        let case = Case::padded(&shape, innermost, 8, &mut numbers);
        let call = matmul(&case.spec, None).expect("a valid descriptor");
        assert!(call.launches[0].alternative.is_some(), "{shape:?}");
        check(&shape, &case, &mut bench, Placing::Aligned);
        check_without_alternatives(&case, &mut bench);
    }
}

/// Tiles in an order that stays near: more than one group of rows, the last one short.
#[test]
fn a_product_of_many_tiles() {
    let Some(mut bench) = Bench::new(Architecture::Sm100a) else { return };
    let shape = plain_bf16(64 * 19 - 3, 64 * 3 - 3, 9);
    let case = Case::random(&shape, &mut Numbers(15));
    check(&shape, &case, &mut bench, Placing::Aligned);
}

#[test]
fn products_on_tensor_cores_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let mut numbers = Numbers(16);
    let [(wide, _), (large, _)] = large_shapes();
    let shapes = [
        (plain_bf16(64, 64, 64), ROW_MAJOR, 8),
        (plain_bf16(64, 64, 1024), ROW_MAJOR, 1),
        (
            Shape { accumulation: Accumulation::Add, scale: 0.1, ..plain_bf16(65, 63, 67) },
            [Innermost::Others; 3],
            1,
        ),
        (Shape { elements: [Element::F16; 3], ..wide.clone() }, ROW_MAJOR, 1),
        (wide, ROW_MAJOR, 1),
        (large, [Innermost::Lines, Innermost::Lines, Innermost::Others], 1),
    ];
    for (shape, innermost, step) in shapes {
        let call = matmul(&Case::padded(&shape, innermost, step, &mut numbers).spec, None);
        let launches = call.expect("a valid descriptor").launches;
        let [launch, rest @ ..] = launches.as_slice() else { panic!("{shape:?}: no launch") };
        // The text of f16 is that of bf16 but for a name.
        let (half, architectures) = match shape.elements[0] {
            Element::F16 => ("f16", &ARCHITECTURES[..]),
            Element::Bf16 | Element::F32 => ("bf16", &Architecture::ALL[..]),
        };
        let alignments = alignments(launch);
        let is_copied = alignments[..2].contains(&true);
        let is_transposed = [innermost[0], innermost[1]].contains(&Innermost::Lines);
        for &architecture in architectures {
            let binary = compiled(launch, architecture);
            println!(
                "{} for {}: {} registers",
                launch.name,
                architecture.name(),
                binary.report().kernels[0].registers
            );
            let ptx = binary.ptx;
            let is_group = architecture == Architecture::Sm90a;
            assert_eq!(ptx.contains("wgmma.mma_async.sync.aligned.m64n"), is_group, "{shape:?}");
            assert_ne!(
                ptx.contains(&format!("mma.sync.aligned.m16n8k16.row.col.f32.{half}.{half}.f32")),
                is_group,
                "{shape:?}"
            );
            assert_ne!(ptx.contains("ldmatrix.sync.aligned.m8n8.x4"), is_group, "{shape:?}");
            assert_eq!(ptx.contains("cp.async.cg.shared.global"), is_copied, "{shape:?}");
            assert_eq!(ptx.contains("st.global.v4"), alignments[2], "{shape:?}");
            assert_eq!(ptx.contains("x4.trans"), is_transposed && !is_group, "{shape:?}");
            assert!(!ptx.contains(".local"), "{shape:?}");
            for launch in rest {
                compiled(launch, architecture);
            }
        }
    }
}

/// Every tile in bulk, from rows of lines and of terms: for sm_90a, without warnings, which tell of products that wait for each other, and in registers.
#[test]
fn products_in_bulk_compile() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let [(wide, _), (large, _)] = large_shapes();
    let shapes = [(wide, "STAGES = 4;"), (large, "STAGES = 6;"), (plain_bf16(64, 64, 64), "STAGES = 6;")];
    for (shape, stages) in shapes {
        for innermost in [[Innermost::Others; 3], [Innermost::Lines, Innermost::Lines, Innermost::Others]] {
            let mut case = Case::dense(&shape, innermost, &mut Numbers(22));
            case.spec.contraction[0].extent = 4096;
            let call = matmul(&case.spec, None).expect("a valid descriptor");
            let launch = call.launches[0].alternative.as_deref().expect("maps describe it");
            assert!(launch.source.contains(stages));
            let binary = compiled(launch, Architecture::Sm90a);
            let registers = binary.report().kernels[0].registers;
            println!("{} {innermost:?}: {registers} registers, {:?}", launch.name, instructions(&binary.ptx));
            let ptx = binary.ptx;
            assert!(ptx.contains("wgmma.mma_async.sync.aligned.m64n") && !ptx.contains(".local"));
            assert!(ptx.contains("cp.async.bulk.tensor.3d") && !ptx.contains("cp.async.cg"));
        }
    }
}

/// How many products and bulk copies a text has, and lines of instructions.
fn instructions(ptx: &str) -> [usize; 3] {
    let count = |start: &str| ptx.matches(start).count();
    [count("wgmma.mma_async"), count("cp.async.bulk"), ptx.lines().filter(|line| line.ends_with(';')).count()]
}

/// Loops of many steps, in which products of groups go on while the next are begun: the assembler must see that they may.
#[test]
fn long_sums_on_tensor_cores_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    for (shape, _) in large_shapes() {
        for innermost in [[Innermost::Others; 3], [Innermost::Lines, Innermost::Lines, Innermost::Others]] {
            let mut case = Case::dense(&shape, innermost, &mut Numbers(19));
            case.spec.contraction[0].extent = 4096;
            for architecture in Architecture::ALL {
                let report = compiled(&launch(&case), architecture).report();
                println!(
                    "{innermost:?} for {}: {} registers",
                    architecture.name(),
                    report.kernels[0].registers
                );
            }
        }
    }
}

/// Blocks that share a tile: parts of sums of equal length but the last, for several products, added up into every kind of output.
#[test]
fn sums_in_parts() {
    ARCHITECTURES.into_iter().for_each(parts);
}

fn parts(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let mut numbers = Numbers(18);
    let shape = Shape { scale: -0.5, ..plain_bf16(70, 67, 32 * 16 * 2 + 5) };
    let shapes = [
        Shape { batch: vec![Batch::Both(3)], ..shape.clone() },
        Shape { accumulation: Accumulation::Add, ..shape.clone() },
        Shape { contraction: vec![5, 216], elements: [Element::Bf16, Element::Bf16, Element::F32], ..shape },
    ];
    for shape in shapes {
        let case = Case::random(&shape, &mut numbers);
        let call = matmul(&case.spec, None).expect("a valid descriptor");
        assert_eq!(call.launches.len(), 2);
        assert!(call.launches[1].source.contains("PARTS = 3;"));
        check(&shape, &case, &mut bench, Placing::Aligned);
    }
}

/// Offsets of more than 31 bits.
#[test]
fn a_product_that_reaches_far_compiles() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let mut case = Case::dense(&plain_bf16(8, 64, 72), ROW_MAJOR, &mut Numbers(17));
    (case.spec.m, case.spec.a_row_stride) = (60_000, 80_000);
    let launch = launch(&case);
    assert!(launch.source.contains("using Offset = long long;"));
    assert_eq!(alignments(&launch), [true; 3]);
    compiled(&launch, Architecture::Sm80);
}
