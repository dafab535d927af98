//! Attention over sequences of several documents each, forward and backward, by every family of kernels: on the ordinary cores, on the tensor cores by
//! warps and by groups, and in bulk. Against the formula, as without documents; which keys are not even read; and faults.

use crate::attention::{PLAIN, attended, calls, check, is_on_tensor_cores, judge};
use crate::attention_bulk::{in_bulk, is_in_bulk};
use crate::attention_tensor::{CHUNKS, NARROW};
use crate::bench::{Bench, Placing, without_alternatives};
use crate::faults::{Fault, catch_on, fault};
use crate::faults_attention::{as_one, judge_directions};
use crate::support::Numbers;
use crate::support::attention::{Case, Packing, Shape, at};
use crate::tensor_cores::ARCHITECTURES;
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::DeviceCall;
use dtlc_kernels::isa::Isa;
use dtlc_kernels::signature::Causality;

/// Runs across blocks and steps, single positions, documents in any order that come again, queries that see nothing.
fn shapes(base: Shape) -> [Shape; 4] {
    let both = Causality::Bidirectional;
    let long = Shape { q_len: 130, k_len: 130, packing: Packing::Runs(90), ..base };
    [
        Shape { batch: 2, kv_heads: 2, group: 2, head_dim: 20, value_dim: 12, softcap: Some(1.5), ..long },
        Shape { q_len: 9, k_len: 70, causality: both, packing: Packing::Mixed(2), ..long },
        Shape { k_len: 200, q_offset: 70, window: Some(60), packing: Packing::Runs(1), ..long },
        Shape { causality: both, k_len: 240, k_offset: -60, packing: Packing::Runs(200), ..long },
    ]
}

#[test]
fn documents_on_the_ordinary_cores() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    for shape in shapes(PLAIN) {
        let case = Case::random(shape, &mut Numbers(61));
        assert!(!calls(&case).iter().any(is_on_tensor_cores));
        check(&case, &mut bench, Placing::Aligned);
    }
}

#[test]
fn documents_on_the_tensor_cores() {
    for architecture in ARCHITECTURES {
        let Some(mut bench) = Bench::new(architecture) else { return };
        for (number, shape) in shapes(NARROW).into_iter().enumerate() {
            let case = Case::stepping(shape, if number % 2 == 0 { CHUNKS } else { 1 }, &mut Numbers(62));
            assert!(calls(&case).iter().all(is_on_tensor_cores));
            check(&case, &mut bench, Placing::Aligned);
        }
    }
}

#[test]
fn documents_in_bulk() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    for shape in shapes(NARROW) {
        let case = Case::stepping(Shape { q_len: shape.q_len.min(80), ..shape }, CHUNKS, &mut Numbers(63));
        let [forward, backward] = calls(&case).map(in_bulk);
        assert!(
            [&forward.launches[0], &backward.launches[1], &backward.launches[2]].map(is_in_bulk) == [true; 3]
        );
        let difference = judge(&case, [&forward, &backward], &mut bench, Placing::Aligned);
        assert_eq!(difference, None, "{:?}", case.spec);
    }
}

/// Values of other documents in steps of their own are no numbers, which would show in the outputs if anything read them.
#[test]
fn keys_of_other_documents_are_not_read() {
    let both = Causality::Bidirectional;
    let of = |base: Shape| Shape { q_len: 150, k_len: 600, causality: both, packing: Packing::One, ..base };
    let families = [
        (PLAIN, Architecture::Sm80, false),
        (NARROW, Architecture::Sm80, false),
        (NARROW, Architecture::Sm90a, false),
        (NARROW, Architecture::Sm90a, true),
    ];
    for (base, architecture, is_bulk) in families {
        let Some(mut bench) = Bench::new(architecture) else { return };
        let mut case = Case::stepping(of(base), CHUNKS, &mut Numbers(65));
        let strides = case.spec.forward.clone();
        let documents = strides.documents.expect("there are some");
        for key in 0..600 {
            let place = [0, 0, 0, key];
            // A multiple of every step from a multiple of the CPU's on.
            let is_other = !(256..384).contains(&key);
            case.k_documents[at(&documents.k, place, 0)] = if is_other { 3 } else { 7 };
            let poisoned = if is_other { f64::NAN } else { 1.0 };
            (0..16).for_each(|feature| case.v.set(at(&strides.v, place, feature), poisoned));
        }
        let [forward, _] = calls(&case).map(if is_bulk { in_bulk } else { without_alternatives });
        let sized = case.run(Isa::detect(), 1);
        let buffers = attended(&case, &sized, &forward, &mut bench, Placing::Aligned).expect("it runs");
        let outputs = crate::support::Stored::of_bytes(base.element, &buffers[3]);
        for (query, feature) in (0..150).flat_map(|query| (0..16).map(move |feature| (query, feature))) {
            let index = at(&strides.o, [0, 0, 0, query], feature);
            // All that is seen has the value 1: the CPU leaves the others out too, by blocks of its own.
            for output in [outputs.get(index), sized.o.get(index)] {
                let is_right = (output - 1.0).abs() < 1e-2;
                assert!(is_right, "{output} of query {query} by {}", forward.launches[0].name);
            }
        }
    }
}

/// What is wrong with who belongs to whom, and with what is left out.
const FAULTS: [Fault; 12] = [
    fault(0, "return document == other;", "return true;"),
    fault(2, "return document == other;", "return document <= other;"),
    fault(3, "return document == other;", "return document >= other;"),
    fault(0, "numbers_of_keys + start_of<KDocuments>(head)", "numbers_of_keys"),
    fault(3, "numbers_of_queries + start_of<QDocuments>(head)", "numbers_of_queries"),
    fault(0, "numbers_of_queries[min(query, Q_LEN - 1)", "numbers_of_queries[min(query + 1, Q_LEN - 1)"),
    fault(2, "numbers_of_keys[min(key, K_LEN - 1)", "numbers_of_keys[min(key + 1, K_LEN - 1)"),
    fault(0, "position + 1};", "position / 2};"),
    fault(2, "__syncthreads();\n#pragma unroll 1\n    for (unsigned warp", "for (unsigned warp"),
    fault(0, "span.least <= number && number <= span.greatest", "number == span.greatest"),
    fault(0, "max(span.greatest, number);", "number;"),
    fault(0, "max(range.end, found[warp].end)", "found[warp].end"),
];

fn catch_all(architecture: Architecture, case: &Case, call: &DeviceCall) {
    catch_on(architecture, call, &FAULTS, |call, bench| {
        judge_directions(case, call, bench, Placing::Aligned)
    });
}

/// Several short documents in a block and one across blocks, of two sequences and heads that differ.
fn faulty_case(base: Shape) -> Case {
    let shape =
        Shape { batch: 2, group: 2, causality: Causality::Bidirectional, q_len: 90, k_len: 200, ..base };
    Case::stepping(Shape { packing: Packing::Runs(40), ..shape }, CHUNKS, &mut Numbers(66))
}

#[test]
fn faults_in_documents_on_the_ordinary_cores() {
    let case = faulty_case(PLAIN);
    catch_all(Architecture::Sm80, &case, &as_one(calls(&case).map(without_alternatives)));
}

#[test]
fn faults_in_documents_on_the_tensor_cores() {
    let case = faulty_case(NARROW);
    catch_all(Architecture::Sm80, &case, &as_one(calls(&case).map(without_alternatives)));
}

#[test]
fn faults_in_documents_in_bulk() {
    let case = faulty_case(NARROW);
    catch_all(Architecture::Sm90a, &case, &as_one(calls(&case).map(in_bulk)));
}
