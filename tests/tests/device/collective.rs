//! Fills, copies and reductions, against the CPU's and against plain loops.

use crate::bench::{Bench, Placing, compiled};
use crate::support::Numbers;
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::collective::{BlockCopy, Reduction, copy_blocks as copy_on_host, reduce as reduce_on_host};
use dtlc_kernels::cuda::{
    BlockReduction, DeviceArgument, Pattern, ReducedElement, copy_blocks, copy_rows, fill, reduce,
};
use dtlc_kernels::signature::Element;

fn random_bytes(numbers: &mut Numbers, count: usize) -> Vec<u8> {
    (0..count).map(|_| numbers.below(256) as u8).collect()
}

#[test]
fn fills_of_every_pattern_length_and_alignment() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    for (pattern, size) in
        [(Pattern::Byte(7), 1), (Pattern::Half(0x3f80), 2), (Pattern::Word(0x3f80_0001), 4)]
    {
        let once = match pattern {
            Pattern::Byte(byte) => vec![byte],
            Pattern::Half(half) => half.to_le_bytes().to_vec(),
            Pattern::Word(word) => word.to_le_bytes().to_vec(),
        };
        for elements in [0, 1, 2, 5, 31, 400] {
            for behind in [0, 4, 8, 12] {
                let bytes = elements * size;
                // What lies behind stays.
                let mut buffers = [vec![0xee; bytes + 9]];
                let call = fill(pattern, bytes as u64);
                bench
                    .run(&call, &mut buffers, &[], Placing::Behind(behind + size))
                    .unwrap_or_else(|error| panic!("{error}"));
                let mut expected = once.repeat(elements);
                expected.resize(bytes + 9, 0xee);
                assert_eq!(buffers[0], expected, "{elements} of {pattern:?}, {behind}");
            }
        }
    }
}

#[test]
fn copies_of_blocks() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(1);
    for unit in [1, 2, 4, 16] {
        for (rows, columns, block) in [(1, 1, 0), (1, 1, 37), (3, 5, 2), (70, 3, 9), (5, 1, 300)] {
            let gap = unit * numbers.below(3);
            let block_bytes = unit * block;
            let inner = block_bytes + gap;
            // The target is the other way round.
            let copy = BlockCopy {
                rows,
                columns,
                block_bytes,
                source_row_stride: columns * inner,
                source_column_stride: inner,
                destination_row_stride: block_bytes + unit,
                destination_column_stride: rows * (block_bytes + unit),
            };
            let source = random_bytes(&mut numbers, rows * columns * inner);
            let mut expected = vec![0xee; rows * columns * (block_bytes + unit)];
            // SAFETY: both buffers were made as large as the strides reach.
            unsafe { copy_on_host(&copy, expected.as_mut_ptr(), source.as_ptr(), 0..rows) };
            for placing in [Placing::Aligned, Placing::Behind(unit)] {
                let mut buffers = [source.clone(), vec![0xee; expected.len()]];
                bench
                    .run(&copy_blocks(&copy), &mut buffers, &[], placing)
                    .unwrap_or_else(|error| panic!("{error}"));
                assert!(buffers[1] == expected, "{copy:?} {placing:?}");
            }
        }
    }
    let mut buffers = [random_bytes(&mut numbers, 3 * 10), vec![0; 3 * 7]];
    bench
        .run(&copy_rows(3, 7, 10, 7), &mut buffers, &[], Placing::Aligned)
        .unwrap_or_else(|error| panic!("{error}"));
    let expected: Vec<u8> = buffers[0].chunks(10).flat_map(|row| row[..7].to_vec()).collect();
    assert_eq!(buffers[1], expected);
}

/// A reduction of a block of these pieces, the target's the other way round.
fn reduction(
    element: ReducedElement,
    reduction: Reduction,
    sources: u32,
    [outer, middle, inner]: [u64; 3],
) -> BlockReduction {
    BlockReduction {
        sources,
        targets: 2,
        element,
        reduction,
        range: 0..outer * middle * inner,
        inner,
        middle,
        source_outer_stride: middle * inner,
        source_middle_stride: inner,
        target_outer_stride: inner,
        target_middle_stride: outer * inner,
    }
}

fn element_bytes(element: ReducedElement) -> usize {
    match element {
        ReducedElement::Float(element) => element.bytes(),
        ReducedElement::I32 | ReducedElement::U32 => 4,
        ReducedElement::U8 => 1,
    }
}

/// One element of each source, combined.
fn combined(element: ReducedElement, reduction: Reduction, values: &[&[u8]]) -> Vec<u8> {
    let word = |bytes: &&[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let words = || values.iter().map(word);
    match (element, reduction) {
        (ReducedElement::Float(float), _) => {
            // The kernel wants aligned operands.
            let aligned: Vec<u64> = values
                .iter()
                .map(|bytes| bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)))
                .collect();
            let sources: Vec<*const u8> =
                aligned.iter().map(|bits| std::ptr::from_ref(bits).cast()).collect();
            let mut result = 0_u64;
            // SAFETY: each has one element, aligned to eight bytes.
            unsafe {
                reduce_on_host(std::ptr::from_mut(&mut result).cast(), &sources, float, reduction, 0..1)
            };
            result.to_le_bytes()[..float.bytes()].to_vec()
        }
        (ReducedElement::I32 | ReducedElement::U32, Reduction::Sum) => {
            words().fold(0, u32::wrapping_add).to_le_bytes().to_vec()
        }
        (ReducedElement::I32, Reduction::Maximum) => {
            words().map(u32::cast_signed).max().expect("a source").to_le_bytes().to_vec()
        }
        (ReducedElement::U32, Reduction::Maximum) => words().max().expect("a source").to_le_bytes().to_vec(),
        (ReducedElement::U8, Reduction::Sum) => {
            vec![values.iter().map(|bytes| bytes[0]).fold(0, u8::wrapping_add)]
        }
        (ReducedElement::U8, Reduction::Maximum) => {
            vec![values.iter().map(|bytes| bytes[0]).max().expect("a source")]
        }
    }
}

fn element_at(buffer: &[u8], bytes: usize, index: u64) -> &[u8] {
    &buffer[index as usize * bytes..][..bytes]
}

/// Random bytes as floats are of every size; sums that differ in order differ in bits.
fn sources(numbers: &mut Numbers, spec: &BlockReduction) -> Vec<Vec<u8>> {
    let bytes = element_bytes(spec.element) * spec.range.end as usize;
    (0..spec.sources).map(|_| random_bytes(numbers, bytes)).collect()
}

fn same(element: ReducedElement, found: &[u8], expected: &[u8]) -> bool {
    let is_nan = |bytes: &[u8]| match element {
        ReducedElement::Float(Element::F32) => {
            f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).is_nan()
        }
        ReducedElement::Float(Element::Bf16) => f32::from_le_bytes([0, 0, bytes[0], bytes[1]]).is_nan(),
        ReducedElement::Float(Element::F16) => half::f16::from_le_bytes([bytes[0], bytes[1]]).is_nan(),
        ReducedElement::I32 | ReducedElement::U32 | ReducedElement::U8 => false,
    };
    found == expected || is_nan(found) && is_nan(expected)
}

#[test]
fn reductions_have_the_bits_of_the_cpus() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(2);
    let floats = [Element::F32, Element::Bf16, Element::F16].map(ReducedElement::Float);
    for element in floats.into_iter().chain([ReducedElement::I32, ReducedElement::U32, ReducedElement::U8]) {
        for how in [Reduction::Sum, Reduction::Maximum] {
            for (count, shape) in [(3, [1, 1, 1]), (2, [2, 3, 5]), (19, [1, 1, 999]), (3, [3, 2, 16])] {
                let spec = reduction(element, how, count, shape);
                let given = sources(&mut numbers, &spec);
                let bytes = element_bytes(element);
                for placing in [Placing::Aligned, Placing::Behind(bytes)] {
                    let empty = vec![0xee; given[0].len()];
                    let mut buffers = given.clone();
                    buffers.extend([empty.clone(), empty]);
                    let call = reduce(&spec).expect("a valid descriptor");
                    bench.run(&call, &mut buffers, &[], placing).unwrap_or_else(|error| panic!("{error}"));
                    let [outer, middle, inner] = shape;
                    for index in 0..spec.range.end {
                        let (piece, within) = (index / inner, index % inner);
                        let target = piece % middle * outer * inner + piece / middle * inner + within;
                        let values: Vec<&[u8]> =
                            given.iter().map(|source| element_at(source, bytes, index)).collect();
                        let expected = combined(element, how, &values);
                        for buffer in &buffers[count as usize..] {
                            let found = element_at(buffer, bytes, target);
                            assert!(
                                same(element, found, &expected),
                                "{spec:?} {placing:?} {index}: {found:?} {expected:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// A member's share of an all-reduce: a range, and a target that is a source.
#[test]
fn a_share_is_reduced_in_place_and_nothing_else() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let mut spec = reduction(ReducedElement::Float(Element::F32), Reduction::Sum, 3, [1, 1, 50]);
    spec.range = 20..33;
    let value = |source: u32, index: usize| (source * 1000) as f32 + index as f32;
    let source =
        |number: u32| (0..50).flat_map(|index| value(number, index).to_le_bytes()).collect::<Vec<u8>>();
    let mut buffers: Vec<Vec<u8>> = (0..3).map(source).collect();
    let mut call = reduce(&spec).expect("a valid descriptor");
    // The targets are sources 1 and 2.
    let targets = &mut call.launches[0].arguments[1];
    assert_eq!(*targets, DeviceArgument::Pointers { first: 3, count: 2 });
    *targets = DeviceArgument::Pointers { first: 1, count: 2 };
    bench.run(&call, &mut buffers, &[], Placing::Aligned).unwrap_or_else(|error| panic!("{error}"));
    for (number, buffer) in (0..3).zip(&buffers) {
        for index in 0..50 {
            let found = element_at(buffer, 4, index as u64);
            let is_target = (20..33).contains(&index) && number != 0;
            let sum = value(0, index) + value(1, index) + value(2, index);
            let expected = if is_target { sum } else { value(number, index) };
            assert_eq!(found, expected.to_le_bytes(), "source {number}, element {index}");
        }
    }
}

#[test]
fn all_of_them_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let copy = copy_rows(3, 7, 10, 7);
    let elements =
        [ReducedElement::Float(Element::F32), ReducedElement::Float(Element::Bf16), ReducedElement::U8];
    let reductions = elements.map(|element| {
        // Eight ranks of a node.
        let spec = BlockReduction { targets: 8, ..reduction(element, Reduction::Sum, 8, [1, 1, 64]) };
        reduce(&spec).expect("a valid descriptor")
    });
    for call in [fill(Pattern::Byte(0), 9), copy].iter().chain(&reductions) {
        for architecture in Architecture::ALL {
            compiled(&call.launches[0], architecture);
        }
    }
    // Of many ranks' parts the text is no longer than of eight, up to what a launch can be given.
    let of_ranks = |sources| BlockReduction {
        targets: 1,
        ..reduction(ReducedElement::Float(Element::Bf16), Reduction::Sum, sources, [1, 1, 64])
    };
    let length = |sources| {
        let call = reduce(&of_ranks(sources)).expect("a valid descriptor");
        compiled(&call.launches[0], Architecture::Sm90a).ptx.lines().count()
    };
    let (few, many) = (length(17), length(4086));
    assert!(many <= few + few / 10, "{few} lines for 17 ranks, {many} for 4086");
    assert!(reduce(&of_ranks(4087)).is_err());
}
