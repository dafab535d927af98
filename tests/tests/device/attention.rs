//! Flash attention forward and backward against the formula that the CPU's kernels are held to, as closely but for weights that the
//! tensor cores take in bf16: odd lengths and heads, groups, windows, caps, offsets, queries that see nothing. Here on the ordinary cores.

use crate::bench::{Bench, Placing, compiled, without_alternatives};
use crate::support::attention::{Case, Outputs, Packing, Shape, at};
use crate::support::formula::Precision;
use crate::support::{Numbers, Stored};
use crate::tensor::untouched;
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_emulator::DriverError;
use dtlc_kernels::cuda::{DeviceCall, DeviceLaunch, attention, attention_backward};
use dtlc_kernels::isa::Isa;
use dtlc_kernels::signature::{Causality, Element, HeadStrides};

/// One causal head.
pub const PLAIN: Shape = Shape {
    batch: 1,
    kv_heads: 1,
    group: 1,
    q_len: 70,
    k_len: 70,
    head_dim: 16,
    value_dim: 16,
    q_offset: 0,
    k_offset: 0,
    causality: Causality::Causal,
    window: None,
    softcap: None,
    packing: Packing::Whole,
    element: Element::F32,
};

/// What is wrong with the results of the two calls, if anything is.
pub fn judge(
    case: &Case,
    [forward, backward]: [&DeviceCall; 2],
    bench: &mut Bench,
    placing: Placing,
) -> Option<String> {
    let Shape { q_offset, k_offset, .. } = case.shape;
    let (spec, shape) = (&case.spec, &case.shape);
    // As large as those of the CPU.
    let sized = case.run(Isa::detect(), 1);
    let mut buffers = match attended(case, &sized, forward, bench, placing) {
        Ok(buffers) => buffers,
        Err(error) => return Some(error.to_string()),
    };
    buffers.push(case.o_gradient.bytes());
    buffers.extend([&sized.q_gradient, &sized.k_gradient, &sized.v_gradient].map(empty));
    buffers.extend(documents(case));
    if let Err(error) = bench.run(backward, &mut buffers, &[q_offset, k_offset], placing) {
        return Some(error.to_string());
    }
    let [o, lse] = forward_results(case, &sized, &buffers);
    let query_rows = [shape.batch, shape.kv_heads, shape.group, shape.q_len];
    let key_rows = [shape.batch, shape.kv_heads, 1, shape.k_len];
    let result = |number: usize, like: &Stored, strides: &HeadStrides, rows: [usize; 4], features: usize| {
        without_gaps(Stored::of_bytes(like.element, &buffers[number]), strides, rows, features)
    };
    let (head, value) = (shape.head_dim, shape.value_dim);
    let outputs = Outputs {
        o,
        lse,
        q_gradient: result(6, &sized.q_gradient, &spec.q_gradient, query_rows, head),
        k_gradient: result(7, &sized.k_gradient, &spec.k_gradient, key_rows, head),
        v_gradient: result(8, &sized.v_gradient, &spec.v_gradient, key_rows, value),
    };
    case.difference(&outputs, precision(case, forward))
}

/// What is wrong with the results of the forward call alone.
pub fn judge_forward(case: &Case, call: &DeviceCall, bench: &mut Bench, placing: Placing) -> Option<String> {
    let sized = case.run(Isa::detect(), 1);
    match attended(case, &sized, call, bench, placing) {
        Ok(buffers) => {
            let [o, lse] = forward_results(case, &sized, &buffers);
            case.forward_difference(&Outputs { o, lse, ..sized }, precision(case, call))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// The buffers of the forward call when it has run.
pub fn attended(
    case: &Case,
    sized: &Outputs,
    call: &DeviceCall,
    bench: &mut Bench,
    placing: Placing,
) -> Result<Vec<Vec<u8>>, DriverError> {
    let Shape { q_offset, k_offset, .. } = case.shape;
    let mut buffers =
        vec![case.q.bytes(), case.k.bytes(), case.v.bytes(), empty(&sized.o), empty(&sized.lse)];
    buffers.extend(documents(case));
    bench.run(call, &mut buffers, &[q_offset, k_offset], placing)?;
    buffers.truncate(5);
    Ok(buffers)
}

/// The numbers of documents, which stand behind all other buffers.
fn documents(case: &Case) -> Vec<Vec<u8>> {
    let bytes = |numbers: &Vec<u32>| numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    match case.spec.forward.documents {
        Some(_) => [&case.q_documents, &case.k_documents].map(bytes).into(),
        None => Vec::new(),
    }
}

fn empty(like: &Stored) -> Vec<u8> {
    untouched(like.element, like.len()).bytes()
}

/// Outputs and log-sum-exps.
fn forward_results(case: &Case, sized: &Outputs, buffers: &[Vec<u8>]) -> [Stored; 2] {
    let (spec, shape) = (&case.spec.forward, &case.shape);
    let rows = [shape.batch, shape.kv_heads, shape.group, shape.q_len];
    let result = |number: usize, like: &Stored, strides: &HeadStrides, features: usize| {
        without_gaps(Stored::of_bytes(like.element, &buffers[number]), strides, rows, features)
    };
    [result(3, &sized.o, &spec.o, shape.value_dim), result(4, &sized.lse, &spec.lse, 1)]
}

/// The tensor cores multiply by weights of bf16.
fn precision(case: &Case, forward: &DeviceCall) -> Precision {
    match is_on_tensor_cores(forward) {
        true => Precision::of_weights(case.shape.element),
        false => Precision::F32,
    }
}

/// Whether the products of a call are made there.
pub fn is_on_tensor_cores(call: &DeviceCall) -> bool {
    let on = |launch: &DeviceLaunch| ["mma.sync", "wgmma."].iter().any(|text| launch.source.contains(text));
    call.launches.iter().any(on)
}

/// Forward and backward.
pub fn calls(case: &Case) -> [DeviceCall; 2] {
    let forward = attention(&case.spec.forward).expect("a valid descriptor");
    [forward, attention_backward(&case.spec).expect("a valid descriptor")]
}

/// The tensor with 0 where no element lies and nothing was written, as the CPU's results have it.
fn without_gaps(
    mut stored: Stored,
    strides: &HeadStrides,
    [batch, kv_heads, group, length]: [usize; 4],
    features: usize,
) -> Stored {
    let mut is_gap = vec![true; stored.len()];
    for row in 0..batch * kv_heads * group * length {
        let (head, position) = (row / length, row % length);
        let place = [head / (kv_heads * group), head / group % kv_heads, head % group, position];
        (0..features).for_each(|feature| is_gap[at(strides, place, feature)] = false);
    }
    let nothing = untouched(stored.element, 1).bytes();
    let bytes = stored.bytes();
    for (index, element) in bytes.chunks(nothing.len()).enumerate() {
        if is_gap[index] && element == nothing {
            stored.set(index, 0.0);
        }
    }
    stored
}

/// Holds both directions of a case to the formula, by what every device launches.
pub fn check(case: &Case, bench: &mut Bench, placing: Placing) {
    let [forward, backward] = calls(case).map(without_alternatives);
    if let Some(difference) = judge(case, [&forward, &backward], bench, placing) {
        panic!("{difference}\n{:?} {placing:?}", case.spec);
    }
}

#[test]
fn odd_shapes_of_every_kind() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(1);
    let both = Causality::Bidirectional;
    let long = Shape { q_len: 130, k_len: 130, ..PLAIN };
    let shapes = [
        Shape { q_len: 1, k_len: 1, head_dim: 1, value_dim: 1, ..PLAIN },
        Shape { batch: 2, kv_heads: 2, group: 3, q_len: 33, k_len: 40, head_dim: 7, value_dim: 5, ..PLAIN },
        Shape { head_dim: 24, value_dim: 20, window: Some(70), softcap: Some(2.0), ..long },
        Shape { q_len: 65, causality: both, window: Some(30), q_offset: 50, k_offset: 3, ..long },
        // Queries that see nothing.
        Shape { k_len: 100, q_offset: 930, k_offset: 940, group: 2, softcap: Some(0.7), ..PLAIN },
        Shape { q_len: 9, k_len: 66, causality: both, head_dim: 130, value_dim: 70, ..PLAIN },
        // Heads that are too wide for the tensor cores.
        Shape { kv_heads: 2, q_len: 20, head_dim: 260, value_dim: 33, element: Element::Bf16, ..PLAIN },
    ];
    for shape in shapes {
        let case = Case::random(shape, &mut numbers);
        assert!(!calls(&case).iter().any(is_on_tensor_cores));
        check(&case, &mut bench, Placing::Aligned);
    }
}

#[test]
fn a_later_architecture() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let shape = Shape { group: 2, q_len: 65, k_len: 129, q_offset: 64, ..PLAIN };
    check(&Case::random(shape, &mut Numbers(2)), &mut bench, Placing::Aligned);
}

#[test]
fn attention_compiles_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let shape = Shape { head_dim: 128, value_dim: 128, group: 2, ..PLAIN };
    let case = Case::random(shape, &mut Numbers(3));
    for launch in calls(&case).iter().flat_map(|call| &call.launches) {
        Architecture::ALL.into_iter().for_each(|architecture| drop(compiled(launch, architecture)));
    }
}
