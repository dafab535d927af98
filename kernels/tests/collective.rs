//! Reductions in a fixed order and blocked copies.

mod support;

use dtlc_kernels::{
    collective::{BlockCopy, Reduction, copy_blocks, reduce},
    signature::Element,
};
use half::{bf16, f16};
use support::{Numbers, Stored};

fn narrow(element: Element, value: f32) -> f64 {
    match element {
        Element::F32 => f64::from(value),
        Element::Bf16 => f64::from(bf16::from_f32(value)),
        Element::F16 => f64::from(f16::from_f32(value)),
    }
}

#[test]
fn reductions_combine_in_the_order_of_the_list() {
    let mut numbers = Numbers(1);
    for element in [Element::F32, Element::Bf16, Element::F16] {
        for count in [1, 2, 3, 5] {
            let sources: Vec<Stored> =
                (0..count).map(|_| Stored::random(element, 1000, &mut numbers)).collect();
            let pointers: Vec<*const u8> = sources.iter().map(Stored::pointer).collect();
            for reduction in [Reduction::Sum, Reduction::Maximum] {
                let before = Stored::random(element, 1000, &mut numbers);
                let mut result = before.clone();
                // SAFETY: every buffer has 1000 elements.
                unsafe { reduce(result.pointer_mut(), &pointers, element, reduction, 3..997) };
                for index in 0..1000 {
                    let values = sources.iter().map(|source| source.get(index) as f32);
                    let expected = match reduction {
                        Reduction::Sum => values.reduce(|total, value| total + value),
                        Reduction::Maximum => values.reduce(f32::max),
                    };
                    let expected = narrow(element, expected.expect("a source"));
                    let inside = (3..997).contains(&index);
                    assert_eq!(result.get(index), if inside { expected } else { before.get(index) });
                }
            }
        }
    }
}

#[test]
fn a_source_may_be_the_destination() {
    let mut numbers = Numbers(2);
    let first = Stored::random(Element::F32, 700, &mut numbers);
    let mut second = Stored::random(Element::F32, 700, &mut numbers);
    let old = second.clone();
    let pointers = [first.pointer(), second.pointer_mut().cast_const()];
    // SAFETY: every buffer has 700 elements.
    unsafe { reduce(second.pointer_mut(), &pointers, Element::F32, Reduction::Sum, 0..700) };
    for index in 0..700 {
        assert_eq!(second.get(index), f64::from(first.get(index) as f32 + old.get(index) as f32));
    }
}

#[test]
fn maximum_keeps_nan() {
    let (ones, mut nan) = ([1.0f32; 4], [0.0f32; 4]);
    nan[2] = f32::NAN;
    for sources in [[&ones, &nan], [&nan, &ones]] {
        let mut result = [0.0f32; 4];
        let pointers = sources.map(|source| source.as_ptr().cast());
        // SAFETY: every buffer has 4 elements.
        unsafe { reduce(result.as_mut_ptr().cast(), &pointers, Element::F32, Reduction::Maximum, 0..4) };
        assert!(result[2].is_nan() && result[3] == 1.0);
    }
}

#[test]
fn blocks_are_copied_and_nothing_else() {
    let source: Vec<u8> = (0..200).map(|value| value as u8).collect();
    let mut destination = vec![255u8; 120];
    let copy = BlockCopy {
        rows: 3,
        columns: 2,
        block_bytes: 5,
        destination_row_stride: 30,
        destination_column_stride: 7,
        source_row_stride: 60,
        source_column_stride: 20,
    };
    // SAFETY: the last block ends at 2·60 + 20 + 5 in the source and 2·30 + 7 + 5 in the destination.
    unsafe { copy_blocks(&copy, destination.as_mut_ptr(), source.as_ptr(), 0..3) };
    let mut expected = vec![255u8; 120];
    for row in 0..3 {
        for column in 0..2 {
            for byte in 0..5 {
                expected[row * 30 + column * 7 + byte] = (row * 60 + column * 20 + byte) as u8;
            }
        }
    }
    assert_eq!(destination, expected);
}
