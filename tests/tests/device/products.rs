//! Several products in one call, of equal and of different sizes, types and layouts, with epilogues and sums in parts: each as if it were alone.

use crate::bench::{Bench, Placing, compiled, without_alternatives};
use crate::epilogue::{Fused, Memory};
use crate::epilogue_kernels::{biased, gated};
use crate::faults::{catch_on, fault};
use crate::matmul::{Batch, Case, Innermost, Shape, plain};
use crate::support::{Numbers, Stored};
use crate::tensor_cores::{ARCHITECTURES, ROW_MAJOR, plain_bf16};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::{DeviceCall, Epilogue, MatmulOf, matmuls};
use dtlc_kernels::signature::{Accumulation, Element, Factors, MatmulSpec};

/// One of the products.
enum Member {
    Plain(Box<Case>),
    Fused(Box<Fused>),
}

impl Member {
    fn spec(&self) -> &MatmulSpec {
        match self {
            Member::Plain(case) => &case.spec,
            Member::Fused(fused) => &fused.product.spec,
        }
    }

    fn epilogue(&self) -> Option<Epilogue> {
        match self {
            Member::Plain(_) => None,
            Member::Fused(fused) => Some(fused.epilogue()),
        }
    }

    fn memory(&self) -> Memory {
        match self {
            Member::Plain(case) => [&case.a, &case.b, &case.c].map(Stored::bytes).into(),
            Member::Fused(fused) => fused.memory(),
        }
    }

    fn integers(&self) -> &[i64] {
        match self {
            Member::Plain(_) => &[],
            Member::Fused(fused) => &fused.integers,
        }
    }

    fn difference(&self, memory: &[Vec<u8>]) -> Option<String> {
        match self {
            Member::Plain(case) => case.difference(&memory[2]),
            Member::Fused(fused) => fused.difference(memory),
        }
    }
}

fn call(members: &[Member]) -> DeviceCall {
    let epilogues: Vec<Option<Epilogue>> = members.iter().map(Member::epilogue).collect();
    let (mut first_pointer, mut first_integer) = (0, 0);
    let mut products = Vec::new();
    for (member, epilogue) in members.iter().zip(&epilogues) {
        let epilogue = epilogue.as_ref();
        products.push(MatmulOf { spec: member.spec(), epilogue, first_pointer, first_integer });
        first_pointer += member.memory().len() as u32;
        first_integer += member.integers().len() as u32;
    }
    matmuls(&products).unwrap_or_else(|error| panic!("{error}"))
}

/// What is wrong with one of the products that a call makes.
fn judge(members: &[Member], call: &DeviceCall, bench: &mut Bench) -> Option<String> {
    let memories: Vec<Memory> = members.iter().map(Member::memory).collect();
    let mut memory = memories.concat();
    let integers: Vec<i64> = members.iter().flat_map(Member::integers).copied().collect();
    if let Err(error) = bench.run(call, &mut memory, &integers, Placing::Aligned) {
        return Some(error.to_string());
    }
    let mut rest = memory.as_slice();
    members.iter().zip(&memories).enumerate().find_map(|(number, (member, before))| {
        let (own, others) = rest.split_at(before.len());
        rest = others;
        Some(format!("product {number}: {}", member.difference(own)?))
    })
}

fn check(members: &[Member], launches: usize, architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let call = call(members);
    assert_eq!(call.launches.len(), launches);
    let calls = match architecture {
        Architecture::Sm90a => vec![without_alternatives(call.clone()), call],
        Architecture::Sm80 | Architecture::Sm100a => vec![call],
    };
    for call in calls {
        if let Some(difference) = judge(members, &call, &mut bench) {
            let sources: Vec<&str> = call.launches.iter().map(|launch| launch.source.as_str()).collect();
            panic!("{difference}\n{}", sources.join("\n"));
        }
    }
}

fn dense(shape: Shape, numbers: &mut Numbers) -> Member {
    Member::Plain(Box::new(Case::dense(&shape, ROW_MAJOR, numbers)))
}

/// Two that are alike, two of other sizes, one of them turned and of another type, and one that is empty.
fn of_several_sizes(numbers: &mut Numbers) -> Vec<Member> {
    let f16 = [Element::F16, Element::F16, Element::F32];
    let alike = |numbers: &mut Numbers| {
        dense(Shape { batch: vec![Batch::Both(2)], ..plain_bf16(72, 136, 40) }, numbers)
    };
    let turned = Shape { elements: f16, accumulation: Accumulation::Add, ..plain(72, 80, 232) };
    vec![
        alike(numbers),
        dense(Shape { batch: vec![Batch::Both(2)], ..plain_bf16(64, 200, 72) }, numbers),
        dense(plain_bf16(0, 8, 40), numbers),
        Member::Plain(Box::new(Case::dense(
            &turned,
            [Innermost::Lines, Innermost::Others, Innermost::Lines],
            numbers,
        ))),
        alike(numbers),
    ]
}

#[test]
fn products_of_several_sizes() {
    for architecture in ARCHITECTURES {
        check(&of_several_sizes(&mut Numbers(31)), 1, architecture);
    }
}

/// Of tensor maps, of tiles and of cores there may be several kinds: each has its launch. Sums in parts have one more each.
#[test]
fn products_of_several_kinds() {
    let numbers = &mut Numbers(32);
    let tf32 = Shape { factors: Factors::Tf32, ..plain(24, 67, 35) };
    // The first and the last share one: tiles of f32 as tf32 have as many bytes, and neither arrives in bulk.
    let members = [
        dense(plain_bf16(70, 67, 35), numbers),
        dense(Shape { scale: -0.3, ..plain(33, 40, 70) }, numbers),
        dense(plain_bf16(72, 80, 32 * 16 * 2), numbers),
        dense(Shape { accumulation: Accumulation::Add, ..plain(70, 67, 35) }, numbers),
        dense(plain_bf16(24, 16, 32 * 16 * 3), numbers),
        dense(tf32, numbers),
    ];
    for architecture in ARCHITECTURES {
        check(&members, 5, architecture);
    }
}

/// None of them fills a device with such tiles, but all of them do.
#[test]
fn products_that_fill_a_device_together() {
    let numbers = &mut Numbers(33);
    let large = |batch, k| Shape { batch: vec![Batch::Both(batch)], ..plain_bf16(136, 264, k) };
    let members = [dense(large(20, 24), numbers), dense(large(14, 40), numbers)];
    assert!(call(&members).launches[0].source.contains("TILE_COLUMNS = 256"));
    for architecture in ARCHITECTURES {
        check(&members, 1, architecture);
    }
}

/// One with a vector's width of neighbours and one of f32, each with its tensors and integers, beside one that has none.
fn with_epilogues(numbers: &mut Numbers) -> [Member; 3] {
    let wide = Shape { elements: [Element::Bf16, Element::Bf16, Element::F32], ..plain_bf16(65, 72, 40) };
    [
        Member::Fused(Box::new(Fused::new(&plain_bf16(70, 80, 40), ROW_MAJOR, biased, numbers))),
        dense(plain_bf16(72, 136, 40), numbers),
        Member::Fused(Box::new(Fused::new(&wide, ROW_MAJOR, gated, numbers))),
    ]
}

#[test]
fn products_with_epilogues() {
    for architecture in ARCHITECTURES {
        check(&with_epilogues(&mut Numbers(34)), 1, architecture);
    }
}

/// Arguments of a launch have an end: then there is another launch.
#[test]
fn more_products_than_arguments() {
    let numbers = &mut Numbers(35);
    let members: Vec<Member> =
        (0..12).map(|number| dense(plain_bf16(8, 8 * (number + 1), 8), numbers)).collect();
    check(&members, 2, Architecture::Sm90a);
}

/// Which block makes what, and with which arguments.
#[test]
fn faults_of_several_products() {
    let members = of_several_sizes(&mut Numbers(36));
    let faults = [
        fault(0, "    block -= 8;", ""),
        fault(0, "    block -= 4;", "    block -= 3;"),
        fault(0, "if (block < 4)", "if (block < 3)"),
        fault(0, "which = block / 12", "which = block / 11"),
        fault(0, "make_tile(block % 12, ", "make_tile(block, "),
        fault(0, "which == 0 ? argument6 : argument9", "argument9"),
        fault(0, "which == 0 ? argument8 : argument11", "argument8"),
        fault(0, "make_tile(block, argument0, argument1", "make_tile(block, argument1, argument0"),
    ];
    let call = without_alternatives(call(&members));
    catch_on(Architecture::Sm80, &call, &faults, |call, bench| judge(&members, call, bench));
}

/// The largest tiles, of equal and of different texts; small ones are among what `--test cuda` compiles of the examples.
#[test]
fn several_products_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let numbers = &mut Numbers(37);
    let large = |n| Shape { batch: vec![Batch::Both(32)], ..plain_bf16(1024, n, 512) };
    let members = [1024, 256, 256].map(|n| dense(large(n), numbers));
    let call = call(&members);
    let [launch] = call.launches.as_slice() else { panic!("{} launches", call.launches.len()) };
    let in_bulk = launch.alternative.as_deref().expect("one in bulk");
    let everywhere = Architecture::ALL.map(|architecture| (launch, architecture));
    for (launch, architecture) in everywhere.into_iter().chain([(in_bulk, Architecture::Sm90a)]) {
        let registers = compiled(launch, architecture).report().kernels[0].registers;
        println!("{} for {}: {registers} registers", launch.name, architecture.name());
    }
}
