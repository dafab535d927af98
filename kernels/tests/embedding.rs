//! Take and scatter-add against plain loops: shards of a vocabulary, ids outside, both types, any number of
//! parts.

mod support;

use dtlc_kernels::{
    embedding::{scatter_add, take},
    signature::{Accumulation, Element, ScatterAddSpec, TakeSpec},
};
use support::{Numbers, Stored, least_rounding, rounding, run_parts};

const ELEMENTS: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

#[test]
fn take_reads_the_shard_and_zeros_elsewhere() {
    let mut numbers = Numbers(1);
    for element in ELEMENTS {
        for (tokens, vocabulary, width, offset) in
            [(1, 1, 1, 0), (33, 10, 7, 0), (50, 9, 65, 9), (8, 5, 3, 100)]
        {
            let spec = TakeSpec { tokens, vocabulary, width, element };
            let table = Stored::random(element, vocabulary * width, &mut numbers);
            let ids = random_ids(tokens, offset + vocabulary + 5, &mut numbers);
            for parts in [1, 2, 5] {
                let mut output = Stored::random(element, tokens * width, &mut numbers);
                let to = output.pointer_mut();
                run_parts(parts, 0, |part, _| {
                    // SAFETY: the buffers have the sizes that the spec states.
                    unsafe {
                        take(&spec, table.pointer(), ids.as_ptr(), to, offset as i64, part);
                    }
                });
                for (index, &id) in ids.iter().enumerate() {
                    let row = (id as i32 as i64) - offset as i64;
                    for column in 0..width {
                        let inside = (0..vocabulary as i64).contains(&row);
                        let expected = if inside { table.get(row as usize * width + column) } else { 0.0 };
                        assert_eq!(output.get(index * width + column), expected);
                    }
                }
            }
        }
    }
}

#[test]
fn scatter_add_sums_tokens_in_order() {
    let mut numbers = Numbers(2);
    for source in ELEMENTS {
        for output in ELEMENTS {
            for accumulation in [Accumulation::Overwrite, Accumulation::Add] {
                for (tokens, vocabulary, width, offset) in
                    [(1, 1, 1, 0), (200, 10, 7, 0), (99, 9, 70, 9), (64, 40, 129, 3)]
                {
                    let spec = ScatterAddSpec { tokens, vocabulary, width, source, output, accumulation };
                    check_scatter(&spec, offset, &mut numbers);
                }
            }
        }
    }
}

fn check_scatter(spec: &ScatterAddSpec, offset: usize, numbers: &mut Numbers) {
    let source = Stored::random(spec.source, spec.tokens * spec.width, numbers);
    let ids = random_ids(spec.tokens, offset + spec.vocabulary + 3, numbers);
    let old = Stored::random(spec.output, spec.vocabulary * spec.width, numbers);
    let run = |parts| {
        let mut output = old.clone();
        let to = output.pointer_mut();
        run_parts(parts, spec.scratch_bytes(), |part, scratch| {
            // SAFETY: the buffers have the sizes that the spec states.
            unsafe {
                scatter_add(spec, source.pointer(), ids.as_ptr(), to, offset as i64, scratch, part);
            }
        });
        output
    };
    let whole = run(1);
    for row in 0..spec.vocabulary {
        for column in 0..spec.width {
            let at = row * spec.width + column;
            let hits =
                ids.iter().enumerate().filter(|&(_, &id)| i64::from(id as i32) == (row + offset) as i64);
            let values: Vec<f64> = hits.map(|(token, _)| source.get(token * spec.width + column)).collect();
            let kept = if spec.accumulation == Accumulation::Add { old.get(at) } else { 0.0 };
            let expected = kept + values.iter().sum::<f64>();
            let magnitude = kept.abs() + values.iter().map(|value| value.abs()).sum::<f64>();
            let bound = (values.len() + 1) as f64 * rounding(Element::F32) * magnitude
                + rounding(spec.output) * 1.01 * expected.abs()
                + least_rounding(spec.output);
            assert!((whole.get(at) - expected).abs() <= bound);
        }
    }
    for parts in [2, 3, 7] {
        assert!(run(parts) == whole, "{parts} parts differ");
    }
}

/// Ids below `bound`, one of them negative.
fn random_ids(count: usize, bound: usize, numbers: &mut Numbers) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..count).map(|_| numbers.below(bound) as u32).collect();
    ids[count / 2] = -100i32 as u32;
    ids
}
