//! Simplification: each rule on a program of its own, and that nothing computed changes.

mod support;

use dtlc_ir::{Builder, DType, Op, Program, ReduceOp, Region, ScalarOp, Type, Value};
use dtlc_passes::{Gradients, differentiate, simplify};
use support::{Sketch, arguments, difference, output, scan, sum};

/// Instructions of the main region and all inside it.
fn count(region: &Region, wanted: &dyn Fn(&Op) -> bool) -> usize {
    let inside = |op: &Op| op.region().map_or(0, |region| count(region, wanted));
    region.insts.iter().map(|inst| usize::from(wanted(&inst.op)) + inside(&inst.op)).sum()
}

fn total(program: &Program) -> usize {
    count(&program.main, &|_| true)
}

/// Simplifies a program with a loss that sums what `append` makes of `x: f32[A, B]`.
fn simplified(append: impl FnOnce(&mut Builder, Value) -> Value) -> Program {
    let mut sketch = Sketch::new();
    let [a, b] = sketch.dims([("A", 2), ("B", 4)]);
    let x = sketch.weight("x", &[a, b]);
    let result = sketch.build(|builder| append(builder, x));
    let loss = sketch.build(|builder| sum(builder, result));
    let program = sketch.finish([("loss", loss)]);
    let mut after = program.clone();
    simplify(&mut after, Gradients::Taken);
    let arguments = arguments(&program, -1.0, 1.0);
    let expected = output(&program, &arguments, "loss");
    assert!(difference(&output(&after, &arguments, "loss"), &expected) < 1e-12);
    after
}

#[test]
fn arithmetic_that_changes_nothing_goes() {
    let program = simplified(|builder, x| {
        let one = builder.float(1.0, DType::F32);
        let two = builder.float(2.0, DType::F32);
        let minus = builder.map(ScalarOp::Neg, &[two]);
        let half = builder.div(one, minus);
        let zero = builder.fill(0.0, &builder.ty(x).clone());
        let x = builder.mul(one, x);
        let x = builder.add(x, zero);
        let x = builder.map(ScalarOp::Neg, &[x]);
        let x = builder.map(ScalarOp::Neg, &[x]);
        builder.mul(x, half)
    });
    // A constant, the product, the sum.
    assert_eq!(total(&program), 3);
}

#[test]
fn casts_that_lose_nothing_go_and_others_stay() {
    let program = simplified(|builder, x| {
        let low = builder.cast(x, DType::Bf16);
        let back = builder.cast(low, DType::F32);
        let again = builder.cast(back, DType::Bf16);
        builder.cast(again, DType::F32)
    });
    assert_eq!(count(&program.main, &|op| *op == Op::Map(ScalarOp::Cast)), 2);
}

#[test]
fn equal_instructions_are_one_and_dead_ones_none() {
    let program = simplified(|builder, x| {
        let (left, right) = (builder.map(ScalarOp::Exp, &[x]), builder.map(ScalarOp::Exp, &[x]));
        builder.map(ScalarOp::Sin, &[x]);
        builder.add(left, right)
    });
    assert_eq!(count(&program.main, &|op| matches!(op, Op::Map(ScalarOp::Exp | ScalarOp::Sin))), 1);
}

#[test]
fn movements_there_and_back_go() {
    let program = simplified(|builder, x| {
        let [a, b] = builder.ty(x).dims[..] else { panic!("two dims") };
        let (c, d, e) = (
            builder.program.add_dim("C", 4),
            builder.program.add_dim("D", 4),
            builder.program.add_dim("E", 8),
        );
        let x = builder.rename(x, b, c);
        let x = builder.rename(x, c, d);
        let x = builder.rename(x, d, b);
        let x = builder.merge(x, &[a, b], e);
        builder.split(x, e, &[a, b])
    });
    assert_eq!(total(&program), 1);
}

#[test]
fn the_gradients_of_slices_are_laid_end_to_end() {
    let mut sketch = Sketch::new();
    let [a, b, half] = sketch.dims([("A", 2), ("B", 5), ("half", 2)]);
    let x = sketch.weight("x", &[a, b]);
    let result = sketch.build(|builder| {
        let first = builder.slice(x, b, 0, Some(half));
        let second = builder.slice(x, b, 2, Some(half));
        let last = builder.slice(x, b, 4, None);
        let second = builder.map(ScalarOp::Sin, &[second]);
        let sum = builder.mul(first, second);
        builder.mul(sum, last)
    });
    let mut program = sketch.weighted_loss(result);
    differentiate(&mut program, DType::F32, 1).expect("it can be differentiated");
    let mut after = program.clone();
    simplify(&mut after, Gradients::Taken);
    let arguments = arguments(&program, -1.0, 1.0);
    let [before, found] = [&program, &after].map(|program| output(program, &arguments, "grad.x"));
    assert!(difference(&found, &before) < 1e-12);
    assert_eq!(count(&after.main, &|op| matches!(op, Op::Pad { .. })), 0);
    assert_eq!(count(&after.main, &|op| matches!(op, Op::Concat { .. })), 1);
}

#[test]
fn what_a_scan_does_not_change_leaves_it() {
    let mut sketch = Sketch::new();
    let [l, d] = sketch.dims([("L", 3), ("D", 4)]);
    let (layers, unused) = (sketch.weight("layers", &[l, d]), sketch.weight("unused", &[l, d]));
    let start = sketch.weight("start", &[d]);
    let result = sketch.build(|builder| {
        let results = scan(builder, l, &[start, start], &[layers, unused, layers], |builder, params| {
            let [x, kept, layer, unused, again] = params[..] else { panic!("five parameters") };
            let positions = builder.iota(d);
            let positions = builder.cast(positions, DType::F32);
            let wave = builder.map(ScalarOp::Cos, &[positions]);
            let x = builder.mul(x, layer);
            let x = builder.mul(x, wave);
            let x = builder.mul(x, again);
            let x = builder.mul(x, kept);
            let dead = builder.map(ScalarOp::Exp, &[unused]);
            vec![x, kept, dead, layer, x]
        });
        let layers = builder.reduce(ReduceOp::Sum, results[3], &[l]);
        let stacked = builder.reduce(ReduceOp::Sum, results[4], &[l]);
        let sum = builder.add(results[0], results[1]);
        let sum = builder.add(sum, stacked);
        builder.add(sum, layers)
    });
    let program = sketch.weighted_loss(result);
    let mut after = program.clone();
    simplify(&mut after, Gradients::ToCome);
    let arguments = arguments(&program, 0.5, 1.5);
    let [before, found] = [&program, &after].map(|program| output(program, &arguments, "loss"));
    assert!(difference(&found, &before) < 1e-12);
    let scan = after.main.insts.iter().find_map(|inst| match &inst.op {
        Op::Scan(scan) => Some(scan),
        _ => None,
    });
    let scan = scan.expect("the scan stays");
    assert_eq!((scan.carries, scan.stacks, scan.outputs.len()), (1, 1, 1));
    assert_eq!(scan.body.insts.len(), 4);
}

#[test]
fn gradients_are_stopped_until_they_are_taken() {
    let mut sketch = Sketch::new();
    let [d] = sketch.dims([("D", 4)]);
    let x = sketch.weight("x", &[d]);
    let result = sketch.build(|builder| {
        let stopped = builder.push_one(Op::StopGradient, &[x], Type::new(DType::F32, [d]));
        builder.mul(stopped, x)
    });
    let mut program = sketch.weighted_loss(result);
    let stops = |program: &Program| count(&program.main, &|op| *op == Op::StopGradient);
    simplify(&mut program, Gradients::ToCome);
    assert_eq!(stops(&program), 1);
    differentiate(&mut program, DType::F32, 1).expect("it can be differentiated");
    simplify(&mut program, Gradients::Taken);
    assert_eq!(stops(&program), 0);
    let arguments = arguments(&program, 0.5, 1.5);
    let expected: Vec<f64> = arguments[0].data.iter().zip(&arguments[1].data).map(|(x, w)| x * w).collect();
    assert!(difference(&output(&program, &arguments, "grad.x"), &expected) < 1e-12);
}
