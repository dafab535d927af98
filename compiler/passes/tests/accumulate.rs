//! A step in micro-batches computes what it computes in one.

mod support;

use dtlc_ir::{DType, Dim, Op, Program, ReduceOp, Region, ScanOutput, Value};
use dtlc_passes::{Gradients, PassErrorKind, accumulate, differentiate, simplify};
use support::llama::{Extra, llama};
use support::{Sketch, arguments, difference, output, sum};

/// Differentiated, and the same rolled up.
fn both(forward: &Program, micro: Dim) -> [Program; 2] {
    let mut whole = forward.clone();
    simplify(&mut whole, Gradients::ToCome);
    differentiate(&mut whole, DType::F32, 1).expect("it can be differentiated");
    simplify(&mut whole, Gradients::Taken);
    let mut rolled = whole.clone();
    accumulate(&mut rolled, micro).expect("it is a sum over micro-batches");
    let before = rolled.clone();
    simplify(&mut rolled, Gradients::Taken);
    compare(&before, &rolled);
    [whole, rolled]
}

fn compare(one: &Program, other: &Program) {
    let arguments = arguments(one, -0.8, 0.8);
    for named in &one.outputs {
        let [expected, found] = [one, other].map(|program| output(program, &arguments, &named.name));
        let error = difference(&found, &expected);
        assert!(error < 1e-10, "{}: {error}", named.name);
    }
}

fn values(region: &Region, visit: &mut dyn FnMut(Value)) {
    for inst in &region.insts {
        inst.results.iter().for_each(|&result| visit(result));
        if let Some(inside) = inst.op.region() {
            inside.params.iter().for_each(|&param| visit(param));
            values(inside, visit);
        }
    }
}

#[test]
fn a_language_model() {
    for extra in [Extra::Nothing, Extra::Penalty] {
        let (forward, micro) = llama(extra);
        compare_gradients_exist(&forward);
        let [whole, rolled] = both(&forward, micro);
        compare(&whole, &rolled);
        let logits =
            rolled.outputs.iter().find(|output| output.name == "logits").expect("it is an output").value;
        values(&rolled.main, &mut |value| {
            assert!(value == logits || !rolled.ty(value).has(micro), "{}", rolled.display_value(value));
        });
    }
}

/// The loss depends on all of the fixture, so that comparing its gradients means something.
fn compare_gradients_exist(forward: &Program) {
    let mut joint = forward.clone();
    differentiate(&mut joint, DType::F32, 1).expect("it can be differentiated");
    let arguments = arguments(&joint, -0.8, 0.8);
    for state in &joint.states {
        let gradient = output(&joint, &arguments, &format!("grad.{}", state.path));
        assert!(gradient.iter().any(|&slope| slope.abs() > 1e-6), "{}", state.path);
    }
}

#[test]
fn the_gradients_of_stacked_layers_are_added_where_they_lie() {
    let (forward, micro) = llama(Extra::Nothing);
    let [_, rolled] = both(&forward, micro);
    let scans = |region: &Region| -> Vec<dtlc_ir::Scan> {
        let scan = |inst: &dtlc_ir::Inst| match &inst.op {
            Op::Scan(scan) => Some(scan.clone()),
            _ => None,
        };
        region.insts.iter().filter_map(scan).collect()
    };
    let loops = scans(&rolled.main);
    // One for the number of labels, one for the rest.
    assert_eq!(loops.len(), 2);
    assert_eq!((loops[0].carries, loops[0].stacks), (1, 1));
    let layers = scans(&loops[1].body);
    assert_eq!(layers.len(), 2);
    assert!(layers[1].reverse);
    let stacked = 7;
    let accumulates = layers[1].outputs.iter().filter(|output| **output == ScanOutput::Accumulate).count();
    assert_eq!(accumulates, stacked);
}

#[test]
fn a_loss_without_gradients() {
    let (mut forward, micro) = llama(Extra::BatchStatistic);
    simplify(&mut forward, Gradients::Taken);
    let mut rolled = forward.clone();
    accumulate(&mut rolled, micro).expect("what is combined last can be anything");
    simplify(&mut rolled, Gradients::Taken);
    compare(&forward, &rolled);
}

#[test]
fn a_statistic_of_all_micro_batches_is_refused() {
    let (mut forward, micro) = llama(Extra::BatchStatistic);
    differentiate(&mut forward, DType::F32, 1).expect("it can be differentiated");
    let error = accumulate(&mut forward, micro).expect_err("it is no sum over micro-batches");
    assert_eq!(error.kind, PassErrorKind::NotASum);
}

#[test]
fn maxima_and_fixed_terms_and_low_precision() {
    let mut sketch = Sketch::new();
    let [micro, b, d] = sketch.dims([("M", 3), ("B", 2), ("D", 4)]);
    let x = sketch.input("x", DType::F32, &[micro, b, d]);
    let low = sketch.input("low", DType::Bf16, &[micro, b, d]);
    let w = sketch.weight("w", &[d]);
    let (loss, largest, total, count) = sketch.build(|builder| {
        let product = builder.dot(x, w, &[d]);
        let square = builder.mul(w, w);
        let (varying, fixed) = (sum(builder, product), sum(builder, square));
        let largest = builder.reduce(ReduceOp::Max, x, &[micro, b]);
        let total = builder.reduce(ReduceOp::Sum, low, &[micro, b]);
        let ones = builder.cast(x, DType::I32);
        let count = sum(builder, ones);
        (builder.add(varying, fixed), largest, total, count)
    });
    let forward = sketch.finish([("loss", loss), ("largest", largest), ("total", total), ("count", count)]);
    let [whole, rolled] = both(&forward, micro);
    compare(&whole, &rolled);
    let scan = rolled.main.insts.iter().find_map(|inst| match &inst.op {
        Op::Scan(scan) => Some(scan),
        _ => None,
    });
    let carries = &scan.expect("there is a loop").body.params;
    assert!(carries.iter().all(|&carry| rolled.ty(carry).dtype != DType::Bf16 || rolled.ty(carry).has(b)));
}
