//! Products of f32 that are read as tf32, on the tensor cores and, with a factor of another type, on the ordinary ones, against the CPU's: both round
//! each factor to the same number, so that the bounds are those of sums in f32. The text is one for all architectures: the bench holds sm_90a's to it.

use crate::bench::{Bench, Placing, compiled};
use crate::faults::{catch, fault};
use crate::matmul::{Batch, Case, Innermost, OPERANDS, Shape, check, plain};
use crate::support::{Numbers, Stored};
use crate::tensor_cores::{ROW_MAJOR, alignments};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::{DeviceLaunch, matmul};
use dtlc_kernels::signature::{Accumulation, Element, Factors};

const MULTIPLIES: &str = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32";

/// A product of f32 as tf32, without batch.
fn plain_tf32(m: usize, n: usize, k: usize) -> Shape {
    Shape { factors: Factors::Tf32, ..plain(m, n, k) }
}

fn launches(case: &Case) -> Vec<DeviceLaunch> {
    matmul(&case.spec, None).expect("a valid descriptor").launches
}

#[test]
fn every_transpose_in_tf32() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(31);
    for a in OPERANDS {
        for b in OPERANDS {
            for c in OPERANDS {
                // Whole chunks; and parts of chunks at the end of aligned lines, or lines that start anywhere.
                let rest = if a == b { (70, 67, 35, 4, true) } else { (70, 67, 35, 1, false) };
                for (m, n, k, step, aligned) in [(72, 80, 132, 1, true), rest] {
                    let shape = plain_tf32(m, n, k);
                    let case = Case::padded(&shape, [a, b, c], step, &mut numbers);
                    let [launch] = &launches(&case)[..] else { panic!("one launch") };
                    assert_eq!(alignments(launch), [aligned; 3]);
                    assert!(launch.alternative.is_none());
                    check(&shape, &case, &mut bench, Placing::Aligned);
                }
            }
        }
    }
}

/// Sizes that fall short of a tile, loops of every kind, sums in parts, and what becomes of the sums.
#[test]
fn edges_batches_parts_and_broken_contractions_in_tf32() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(32);
    let half_output = [Element::F32, Element::F32, Element::Bf16];
    let added = |scale: f32, shape: Shape| Shape { accumulation: Accumulation::Add, scale, ..shape };
    let shapes = [
        plain_tf32(1, 1, 1),
        plain_tf32(1, 200, 17),
        plain_tf32(130, 1, 40),
        Shape { contraction: vec![], ..plain_tf32(5, 7, 1) },
        Shape { contraction: vec![0], ..plain_tf32(3, 4, 1) },
        Shape { elements: half_output, ..plain_tf32(65, 72, 150) },
        added(-0.3, Shape { contraction: vec![3, 16], elements: half_output, ..plain_tf32(33, 40, 1) }),
        added(0.125, Shape { contraction: vec![4, 3, 7], ..plain_tf32(40, 72, 1) }),
        added(1.0, Shape { batch: vec![Batch::OnlyB(5)], ..plain_tf32(17, 9, 50) }),
        Shape { batch: vec![Batch::Both(3), Batch::OnlyA(2), Batch::OnlyB(2)], ..plain_tf32(20, 65, 19) },
    ];
    for shape in shapes {
        let innermost = [(); 3].map(|()| numbers.pick(&OPERANDS));
        check(&shape, &Case::padded(&shape, innermost, 4, &mut numbers), &mut bench, Placing::Aligned);
        check(&shape, &Case::random(&shape, &mut numbers), &mut bench, Placing::Aligned);
    }
    let in_parts = Shape { batch: vec![Batch::Both(2)], scale: -0.5, ..plain_tf32(70, 67, 16 * 16 * 2 + 5) };
    for shape in [in_parts.clone(), Shape { contraction: vec![5, 104], ..in_parts }] {
        let case = Case::random(&shape, &mut numbers);
        let launches = launches(&case);
        assert!(launches[0].source.contains("PARTS = 3;") && launches.len() == 2);
        check(&shape, &case, &mut bench, Placing::Aligned);
    }
}

/// What the descriptor says is aligned may begin anywhere.
#[test]
fn operands_of_tf32_that_begin_between_chunks() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let shape = Shape { accumulation: Accumulation::Add, ..plain_tf32(72, 80, 100) };
    let case = Case::dense(&shape, ROW_MAJOR, &mut Numbers(33));
    assert_eq!(alignments(&launches(&case)[0]), [true; 3]);
    for bytes in [4, 8, 16] {
        check(&shape, &case, &mut bench, Placing::Behind(bytes));
    }
}

/// A product that fills a device, and what its source says of its tiles.
fn large_shapes() -> [(Shape, &'static str); 2] {
    [
        (Shape { batch: vec![Batch::Both(32)], ..plain_tf32(136, 264, 20) }, "TILE_COLUMNS = 256"),
        (Shape { batch: vec![Batch::Both(32)], ..plain_tf32(136, 136, 20) }, "TILE_COLUMNS = 128"),
    ]
}

/// The larger tiles.
#[test]
fn products_of_tf32_that_fill_a_device() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(34);
    let layouts = [[Innermost::Lines, Innermost::Lines, Innermost::Others], ROW_MAJOR];
    for ((shape, tiles), innermost) in large_shapes().into_iter().zip(layouts) {
        let case = Case::dense(&shape, innermost, &mut numbers);
        assert!(launches(&case)[0].source.contains(tiles));
        check(&shape, &case, &mut bench, Placing::Aligned);
    }
}

/// With a factor that is no f32 the ordinary cores multiply what the tensor cores would; factors that are halves are what they are.
#[test]
fn mixed_factors_and_halves() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(35);
    let (f32, bf16, f16) = (Element::F32, Element::Bf16, Element::F16);
    for elements in [[f32, bf16, f32], [f16, f32, bf16], [bf16, f16, f32], [bf16, bf16, f32]] {
        let shape = Shape { elements, ..plain_tf32(66, 31, 33) };
        let case = Case::random(&shape, &mut numbers);
        assert!(!launches(&case)[0].source.contains("FACTOR_NAME \"tf32\""));
        check(&shape, &case, &mut bench, Placing::Aligned);
    }
}

/// Products of one term, so that nothing is summed: the same numbers as the CPU makes of those that are between two of tf32 and beside that, of
/// every exponent, and of what is no finite number.
#[test]
fn factors_are_rounded_as_on_the_cpu() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let beside = |bits: u32| [bits, bits | 0xfff, bits | 0x1000, bits | 0x1001, bits | 0x1fff];
    let exponents = (0..=0xff_u32).map(|exponent| exponent << 23);
    let magnitudes = exponents.flat_map(|bits| [bits, bits | 0x2000, bits | 0x7f_e000]).flat_map(beside);
    let words: Vec<u8> =
        magnitudes.flat_map(|bits| [bits, bits | 1 << 31]).flat_map(|bits| bits.to_ne_bytes()).collect();
    let m = words.len() / 4;
    // With lines that are neighbours, and on the ordinary cores.
    for (innermost, right) in [
        (Innermost::Others, Element::F32),
        (Innermost::Lines, Element::F32),
        (Innermost::Others, Element::Bf16),
    ] {
        let shape = Shape { elements: [Element::F32, right, Element::F32], ..plain_tf32(m, 1, 1) };
        let mut case =
            Case::dense(&shape, [innermost, Innermost::Others, Innermost::Others], &mut Numbers(36));
        case.a = Stored::of_bytes(Element::F32, &words);
        case.b.set(0, 1.0);
        let call = matmul(&case.spec, None).expect("a valid descriptor");
        let output =
            case.output(&call, &mut bench, Placing::Aligned).unwrap_or_else(|error| panic!("{error}"));
        let (found, expected) = (Stored::of_bytes(Element::F32, &output), case.on_host());
        for index in 0..m {
            let (found, expected) = (found.get(index), expected.get(index));
            let is_same = found == expected || found.is_nan() && expected.is_nan();
            assert!(is_same, "{}: {found}, not {expected}", case.a.get(index));
        }
    }
}

#[test]
fn products_of_tf32_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let mut numbers = Numbers(37);
    let [(wide, _), (large, _)] = large_shapes();
    let turned = [Innermost::Lines, Innermost::Lines, Innermost::Others];
    let long = |shape: Shape| Shape { contraction: vec![2048], ..shape };
    let shapes = [
        (plain_tf32(64, 64, 64), ROW_MAJOR, 4),
        (plain_tf32(64, 64, 1024), ROW_MAJOR, 1),
        (
            Shape { accumulation: Accumulation::Add, scale: 0.1, ..plain_tf32(65, 63, 67) },
            [Innermost::Others; 3],
            1,
        ),
        (long(wide.clone()), [Innermost::Others; 3], 1),
        (long(wide.clone()), ROW_MAJOR, 1),
        (long(wide), turned, 1),
        (long(large), turned, 1),
    ];
    for (shape, innermost, step) in shapes {
        let launches = launches(&Case::padded(&shape, innermost, step, &mut numbers));
        let [launch, rest @ ..] = launches.as_slice() else { panic!("{shape:?}: no launch") };
        let rows_are_lines = innermost[..2].contains(&Innermost::Others);
        for architecture in Architecture::ALL {
            let binary = compiled(launch, architecture);
            let registers = binary.report().kernels[0].registers;
            println!("{} {innermost:?} for {}: {registers} registers", launch.name, architecture.name());
            let ptx = binary.ptx;
            assert!(ptx.contains(MULTIPLIES) && ptx.contains("cvt.rna.tf32.f32") && !ptx.contains("wgmma"));
            assert_eq!(ptx.contains("ldmatrix.sync.aligned.m8n8.x4.shared"), rows_are_lines, "{shape:?}");
            assert!(!ptx.contains(".trans") && !ptx.contains(".local"), "{shape:?}");
            for launch in rest {
                compiled(launch, architecture);
            }
        }
    }
}

/// Seven steps, so that the last is in the first stage again, with rests of every kind.
fn seven_steps(innermost: [Innermost; 3], step: usize) -> Case {
    let shape = Shape { batch: vec![Batch::Both(2)], ..plain_tf32(70, 67, 103) };
    Case::padded(&shape, innermost, step, &mut Numbers(38))
}

#[test]
fn faults_in_products_of_tf32() {
    // Lines' rows.
    let case = seven_steps([Innermost::Others; 3], 4);
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "wait_for_groups<AHEAD - 1>()", "wait_for_groups<AHEAD>()"),
        fault(0, "__syncthreads();\n            begin_stage", "begin_stage"),
        fault(0, "__syncthreads();\n    store_sums", "store_sums"),
        fault(0, "loaded.at[matrix] = rounded(loaded.at[matrix]);", ""),
        fault(0, "(SIDE == Side::LEFT ? late_matrix : odd_matrix) * CHUNK", "late_matrix * CHUNK"),
        fault(0, "FRAGMENT_TERMS = 2 * CHUNK", "FRAGMENT_TERMS = 4 * CHUNK"),
        fault(0, "static_cast<int>(sizeof(Factor)) * count", "2 * count"),
        fault(0, "is_whole ? CHUNK : min(rest, CHUNK)", "CHUNK"),
        fault(0, "right.at[across % 2 * 2], right", "right.at[across % 2], right"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
    // Terms' rows.
    let case = seven_steps([Innermost::Lines, Innermost::Lines, Innermost::Others], 4);
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "Place::place(lane % 4, first", "Place::place(lane / 4 % 4, first"),
        fault(0, "+ lane / 4 * 4)", "+ lane % 8 * 4)"),
        fault(0, "first + first_term * Place::ROW_BYTES", "first + first_term * 2 * Place::ROW_BYTES"),
        fault(0, "(SIDE == Side::LEFT ? is_odd : is_late) ? 8 : 0", "is_odd ? 8 : 0"),
        fault(0, "(SIDE == Side::LEFT ? is_late : is_odd) ? CHUNK", "is_late ? CHUNK"),
        fault(0, "loaded.at[matrix] = rounded(loaded.at[matrix]);", ""),
        fault(0, "address(operand) % sizeof(Chunk) == 0", "true"),
    ];
    let [faults @ .., unaligned] = faults;
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
    catch(&call, &[unaligned], |call, bench| case.judge(call, bench, Placing::Behind(4)));
    // Numbers one by one.
    let case = seven_steps([Innermost::Lines, Innermost::Others, Innermost::Others], 1);
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "OF_WORD = sizeof(unsigned) / sizeof(Factor)", "OF_WORD = 2"),
        fault(0, "number < piece.count", "true"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
    // On the ordinary cores.
    let shape = Shape { elements: [Element::F32, Element::Bf16, Element::F32], ..plain_tf32(40, 33, 20) };
    let case = Case::random(&shape, &mut Numbers(39));
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    let faults = [
        fault(0, "ROUNDS_FACTORS = true", "ROUNDS_FACTORS = false"),
        fault(0, "+ 0x1000) & ~0x1fffu", ") & ~0x1fffu"),
    ];
    catch(&call, &faults, |call, bench| case.judge(call, bench, Placing::Aligned));
}

/// A swizzle whose banks meet does not compile.
#[test]
fn words_are_read_from_all_banks() {
    let Some(nvrtc) = crate::library::nvrtc() else { return };
    let case = seven_steps([Innermost::Lines, Innermost::Lines, Innermost::Others], 4);
    let source = launches(&case)[0].source.clone();
    let compiles = |source: &str| {
        nvrtc.compile_ptx(dtlc_codegen::cuda::nvrtc::Job { source, architecture: Architecture::Sm80 }).is_ok()
    };
    assert!(compiles(&source));
    let faulty =
        source.replace("!Operand::TERMS_ARE_NEIGHBOURS ? 2 : 1>", "!Operand::TERMS_ARE_NEIGHBOURS ? 1 : 1>");
    assert!(faulty != source && !compiles(&faulty));
}
