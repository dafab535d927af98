//! Flash attention against f64, forward and backward: odd lengths, grouped heads, windows, caps, offsets,
//! queries that see nothing, both element types, every instruction set, and the same bits for any number of
//! parts.

mod support;

use dtlc_kernels::{
    isa::Isa,
    signature::{Causality, Element},
};
use support::{
    Numbers, Stored,
    attention::{Case, Packing, Shape, at},
    formula::Precision,
};

const PLAIN: Shape = Shape {
    batch: 1,
    kv_heads: 1,
    group: 1,
    q_len: 1,
    k_len: 1,
    head_dim: 1,
    value_dim: 1,
    q_offset: 0,
    k_offset: 0,
    causality: Causality::Causal,
    window: None,
    softcap: None,
    packing: Packing::Whole,
    element: Element::F32,
};

/// Checks all outputs of the case on every instruction set, and that parts do not change their bits.
fn check(case: &Case) {
    for &isa in Isa::available() {
        let outputs = case.run(isa, 1);
        assert_eq!(case.difference(&outputs, Precision::F32), None, "{:?}", case.shape);
        for parts in [2, 3] {
            assert!(case.run(isa, parts) == outputs, "{parts} parts differ: {:?}", case.shape);
        }
    }
}

#[test]
fn small_cases_of_every_kind() {
    let mut numbers = Numbers(1);
    for _ in 0..250 {
        let shape = Shape {
            batch: numbers.pick(&[1, 2]),
            kv_heads: numbers.pick(&[1, 2, 3]),
            group: numbers.pick(&[1, 2, 3]),
            q_len: numbers.pick(&[1, 2, 5, 16, 17, 33]),
            k_len: numbers.pick(&[1, 3, 7, 16, 19, 40]),
            head_dim: numbers.pick(&[1, 4, 7, 16, 24]),
            value_dim: numbers.pick(&[1, 5, 8, 20]),
            q_offset: numbers.pick(&[0, 0, 8, -6, 1000]),
            k_offset: numbers.pick(&[0, 0, 4, 990]),
            causality: numbers.pick(&[Causality::Causal, Causality::Bidirectional]),
            window: numbers.pick(&[None, None, Some(1), Some(4), Some(11), Some(u64::MAX)]),
            softcap: numbers.pick(&[None, None, Some(0.7), Some(30.0)]),
            packing: Packing::Whole,
            element: numbers.pick(&[Element::F32, Element::Bf16, Element::F16]),
        };
        check(&Case::random(shape, &mut numbers));
    }
}

#[test]
fn lengths_past_one_block() {
    let mut numbers = Numbers(2);
    for element in [Element::F32, Element::Bf16, Element::F16] {
        let long = Shape { q_len: 300, k_len: 300, head_dim: 40, value_dim: 24, element, ..PLAIN };
        for shape in [
            Shape { kv_heads: 2, group: 2, ..long },
            Shape { window: Some(70), softcap: Some(2.0), ..long },
            Shape { causality: Causality::Bidirectional, q_len: 129, k_len: 257, ..long },
            Shape { causality: Causality::Bidirectional, window: Some(150), ..long },
            Shape { q_offset: 150, q_len: 140, ..long },
            Shape { q_offset: -100, window: Some(30), ..long },
            Shape { q_len: 3, k_len: 128, head_dim: 600, value_dim: 70, q_offset: 126, ..long },
        ] {
            check(&Case::random(shape, &mut numbers));
        }
    }
}

#[test]
fn documents_of_every_kind() {
    let mut numbers = Numbers(6);
    for _ in 0..150 {
        let shape = Shape {
            batch: numbers.pick(&[1, 2]),
            kv_heads: numbers.pick(&[1, 2, 3]),
            group: numbers.pick(&[1, 2]),
            q_len: numbers.pick(&[1, 5, 17, 33]),
            k_len: numbers.pick(&[1, 7, 16, 40]),
            head_dim: numbers.pick(&[1, 7, 16]),
            value_dim: numbers.pick(&[1, 5, 8]),
            q_offset: numbers.pick(&[0, 0, 8, -6]),
            k_offset: numbers.pick(&[0, 0, 4]),
            causality: numbers.pick(&[Causality::Causal, Causality::Bidirectional]),
            window: numbers.pick(&[None, None, Some(4)]),
            softcap: numbers.pick(&[None, None, Some(0.7)]),
            packing: numbers.pick(&[Packing::Runs(1), Packing::Runs(9), Packing::Mixed(3), Packing::One]),
            element: numbers.pick(&[Element::F32, Element::Bf16]),
        };
        check(&Case::random(shape, &mut numbers));
    }
}

/// Blocks of keys without a document of the queries' are left out, wherever they are.
#[test]
fn documents_of_whole_blocks() {
    let mut numbers = Numbers(7);
    for element in [Element::F32, Element::Bf16] {
        let long = Shape { q_len: 390, k_len: 390, head_dim: 8, value_dim: 8, element, ..PLAIN };
        for shape in [
            Shape { packing: Packing::Runs(200), group: 2, ..long },
            Shape { packing: Packing::Runs(300), causality: Causality::Bidirectional, ..long },
            Shape { packing: Packing::Runs(40), window: Some(70), kv_heads: 2, ..long },
            Shape { packing: Packing::Mixed(2), q_offset: 150, q_len: 140, ..long },
        ] {
            check(&Case::random(shape, &mut numbers));
        }
    }
}

/// What one document gives is what there is without documents, to the bit.
#[test]
fn one_document_changes_nothing() {
    for (seed, causality) in [(8, Causality::Causal), (9, Causality::Bidirectional)] {
        let shape = Shape { q_len: 150, k_len: 150, head_dim: 5, value_dim: 6, group: 2, causality, ..PLAIN };
        let mut case = Case::random(Shape { packing: Packing::One, ..shape }, &mut Numbers(seed));
        let packed = case.run(Isa::detect(), 1);
        case.spec.forward.documents = None;
        assert!(case.run(Isa::detect(), 1) == packed);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let mut numbers = Numbers(3);
    let shape = Shape { q_len: 40, k_len: 150, head_dim: 8, value_dim: 4, q_offset: 110, ..PLAIN };
    let mut case = Case::random(shape, &mut numbers);
    case.spec.forward.scale = 400.0;
    let outputs = case.run(Isa::detect(), 1);
    for stored in [&outputs.o, &outputs.lse, &outputs.q_gradient, &outputs.k_gradient, &outputs.v_gradient] {
        assert!((0..stored.len()).all(|index| stored.get(index).is_finite()));
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    let mut numbers = Numbers(4);
    let shape = Shape { q_len: 20, k_len: 10, head_dim: 4, value_dim: 4, q_offset: -10, ..PLAIN };
    let case = Case::random(shape, &mut numbers);
    let outputs = case.run(Isa::detect(), 1);
    for query in case.queries().filter(|query| query[3] < 10) {
        assert_eq!(outputs.lse.get(at(&case.spec.forward.lse, query, 0)), f64::NEG_INFINITY);
        for feature in 0..4 {
            assert_eq!(outputs.o.get(at(&case.spec.forward.o, query, feature)), 0.0);
            assert_eq!(outputs.q_gradient.get(at(&case.spec.q_gradient, query, feature)), 0.0);
        }
    }
    check(&case);
}

/// Nothing of the formula above: central differences of the f64 loss.
#[test]
fn gradients_are_finite_differences() {
    let mut numbers = Numbers(5);
    let shape = Shape { group: 2, q_len: 6, k_len: 7, head_dim: 3, value_dim: 2, q_offset: 2, ..PLAIN };
    let packed = Packing::Mixed(2);
    for (window, softcap, packing) in
        [(None, None, Packing::Whole), (Some(4), Some(1.5), Packing::Whole), (None, Some(1.5), packed)]
    {
        let shape = Shape { batch: 2, kv_heads: 2, window, softcap, packing, ..shape };
        let mut case = Case::random(shape, &mut numbers);
        let outputs = case.run(Isa::detect(), 1);
        let (forward, spec) = (case.spec.forward.clone(), case.spec.clone());
        let (key_count, query_count) = (shape.k_len, shape.q_len);
        for [batch, kv_head] in [[0, 0], [1, 1], [0, 1]] {
            for position in 0..query_count {
                let index = [batch, kv_head, 1, position];
                let given = outputs.q_gradient.get(at(&spec.q_gradient, index, 1));
                difference(&mut case, |case| &mut case.q, at(&forward.q, index, 1), given);
            }
            for position in 0..key_count {
                let index = [batch, kv_head, 0, position];
                let given = outputs.k_gradient.get(at(&spec.k_gradient, index, 2));
                difference(&mut case, |case| &mut case.k, at(&forward.k, index, 2), given);
                let given = outputs.v_gradient.get(at(&spec.v_gradient, index, 0));
                difference(&mut case, |case| &mut case.v, at(&forward.v, index, 0), given);
            }
        }
    }
}

/// Holds a gradient against the central difference of the loss in one input.
fn difference(case: &mut Case, tensor: fn(&mut Case) -> &mut Stored, index: usize, given: f64) {
    let old = tensor(case).get(index);
    let mut loss = |value: f64| {
        tensor(case).set(index, value);
        (tensor(case).get(index), case.loss())
    };
    let (above, below) = (loss(old + 1e-3), loss(old - 1e-3));
    loss(old);
    let slope = (above.1 - below.1) / (above.0 - below.0);
    assert!((given - slope).abs() < 2e-5, "{given} is not {slope}");
}
