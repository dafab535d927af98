//! Every operation's gradient against central differences, in f64.

mod support;

use dtlc_ir::interpret::{Options, Rounding, Tensor, interpret};
use dtlc_ir::{
    Attention, Builder, DType, Factors, Literal, Op, Packing, Program, ReduceOp, ScalarOp, Type, Value,
};
use dtlc_passes::{Gradients, differentiate, simplify};
use support::{Sketch, arguments, difference, output, scan, sum};

const STEP: f64 = 1e-5;

/// Compares the gradient of every parameter with central differences of the loss.
fn check(program: &Program, low: f64, high: f64) {
    let arguments = arguments(program, low, high);
    let mut joint = program.clone();
    differentiate(&mut joint, DType::F32, 1).expect("it can be differentiated");
    let mut simple = program.clone();
    simplify(&mut simple, Gradients::ToCome);
    differentiate(&mut simple, DType::F32, 1).expect("it can be differentiated");
    simplify(&mut simple, Gradients::Taken);
    for (index, state) in program.states.iter().enumerate() {
        let name = format!("grad.{}", state.path);
        let found = output(&joint, &arguments, &name);
        let simplified = output(&simple, &arguments, &name);
        assert!(difference(&simplified, &found) < 1e-9, "{}: {simplified:?}\n{found:?}", state.path);
        let expected = differences(program, &arguments, index);
        assert!(expected.iter().any(|&slope| slope != 0.0), "the loss does not depend on {}", state.path);
        let error = difference(&found, &expected);
        assert!(error < 1e-6, "{}: {error}\n{found:?}\n{expected:?}", state.path);
    }
}

fn differences(program: &Program, arguments: &[Tensor], index: usize) -> Vec<f64> {
    let mut arguments = arguments.to_vec();
    let mut loss = |element: usize, step: f64| {
        let before = arguments[index].data[element];
        arguments[index].data[element] = before + step;
        let loss = output(program, &arguments, "loss")[0];
        arguments[index].data[element] = before;
        loss
    };
    let elements = 0..program.ty(program.states[index].value).elements(program) as usize;
    elements.map(|element| (loss(element, STEP) - loss(element, -STEP)) / (2.0 * STEP)).collect()
}

/// One function of two parameters, the second of which broadcasts and has its dims the other way round.
fn check_pair(low: f64, high: f64, append: impl FnOnce(&mut Builder, Value, Value) -> Value) {
    let mut sketch = Sketch::new();
    let [a, b, c] = sketch.dims([("A", 3), ("B", 2), ("C", 4)]);
    let (x, y) = (sketch.weight("x", &[a, b, c]), sketch.weight("y", &[c, a]));
    let result = sketch.build(|builder| append(builder, x, y));
    check(&sketch.weighted_loss(result), low, high);
}

#[test]
fn functions_of_one_argument() {
    use ScalarOp::*;
    for op in [Neg, Abs, Exp, Log, Sqrt, Rsqrt, Tanh, Sigmoid, Erf, Sin, Cos] {
        check_pair(0.2, 2.0, |builder, x, y| {
            let sum = builder.add(x, y);
            builder.map(op, &[sum])
        });
    }
    check_pair(-2.0, -0.2, |builder, x, y| {
        let product = builder.mul(x, y);
        let minus = builder.map(Neg, &[product]);
        let size = builder.map(Abs, &[minus]);
        let whole = builder.map(Floor, &[x]);
        let scaled = builder.mul(size, whole);
        let stopped = builder.push_one(Op::StopGradient, &[scaled], builder.ty(scaled).clone());
        let stopped = builder.scale(stopped, 0.0);
        builder.add(scaled, stopped)
    });
}

#[test]
fn functions_of_two_arguments() {
    use ScalarOp::*;
    for op in [Add, Sub, Mul, Div, Rem, Pow, Min, Max] {
        check_pair(0.3, 2.0, |builder, x, y| builder.map(op, &[x, y]));
    }
    check_pair(-1.0, 1.0, |builder, x, y| {
        let condition = builder.map(Less, &[x, y]);
        let product = builder.mul(x, y);
        builder.select(condition, product, y)
    });
}

#[test]
fn reductions() {
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        check_pair(-1.0, 1.0, |builder, x, y| {
            let product = builder.mul(x, y);
            let [_, b, _] = builder.ty(product).dims[..] else { panic!("three dims") };
            builder.reduce(op, product, &[b])
        });
    }
}

#[test]
fn a_maximum_shares_its_gradient_at_ties() {
    let mut sketch = Sketch::new();
    let [a] = sketch.dims([("A", 4)]);
    let x = sketch.weight("x", &[a]);
    let loss = sketch.build(|builder| builder.reduce(ReduceOp::Max, x, &[a]));
    let mut program = sketch.finish([("loss", loss)]);
    let arguments = [Tensor::from_fn([(a, 4)], |index| [1.0, 3.0, 3.0, 2.0][index])];
    differentiate(&mut program, DType::F32, 1).expect("it can be differentiated");
    assert_eq!(output(&program, &arguments, "grad.x"), [0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn products() {
    let mut sketch = Sketch::new();
    let [b, s, d, f] = sketch.dims([("B", 2), ("S", 3), ("D", 4), ("F", 5)]);
    let (x, w) = (sketch.weight("x", &[b, s, d]), sketch.weight("w", &[f, s, d]));
    let product = sketch.build(|builder| builder.dot(x, w, &[d]));
    assert_eq!(sketch.program.ty(product).dims[..], [s, b, f]);
    check(&sketch.weighted_loss(product), -1.0, 1.0);
}

/// What a gradient multiplies is read as its product reads it.
#[test]
fn products_of_tf32() {
    let mut sketch = Sketch::new();
    let [b, d, f] = sketch.dims([("B", 2), ("D", 4), ("F", 5)]);
    let (x, w) = (sketch.weight("x", &[b, d]), sketch.weight("w", &[f, d]));
    let product = sketch.build(|builder| builder.dot_of(Factors::Tf32, x, w, &[d]));
    let mut program = sketch.weighted_loss(product);
    check(&program, -1.0, 1.0);
    differentiate(&mut program, DType::F32, 1).expect("it can be differentiated");
    let dots = program.main.insts.iter().filter(|inst| matches!(inst.op, Op::Dot(_)));
    let factors: Vec<&Op> = dots.map(|inst| &inst.op).collect();
    assert_eq!(factors, [&Op::Dot(Factors::Tf32); 3]);
}

#[test]
fn movements() {
    let mut sketch = Sketch::new();
    let [a, b, c, ab, more, cut, other] =
        sketch.dims([("A", 3), ("B", 2), ("C", 4), ("AB", 6), ("more", 9), ("cut", 3), ("other", 4)]);
    let (x, y) = (sketch.weight("x", &[a, b, c]), sketch.weight("y", &[c]));
    let result = sketch.build(|builder| {
        let merged = builder.merge(x, &[a, b], ab);
        let square = builder.mul(merged, merged);
        let padded = builder.pad(square, Some(ab), 2, more);
        let kept = builder.slice(padded, more, 1, Some(ab));
        let split = builder.split(kept, ab, &[a, b]);
        let part = builder.slice(split, c, 1, Some(cut));
        let element = builder.slice(part, cut, 2, None);
        let single = builder.pad(element, None, 1, cut);
        let renamed = builder.rename(y, c, other);
        let joined = builder.concat(&[part, element], &[Some(cut), None], c);
        let product = builder.mul(joined, renamed);
        let scaled = builder.mul(product, single);
        builder.add(scaled, part)
    });
    check(&sketch.weighted_loss(result), -1.0, 1.0);
}

#[test]
fn rows() {
    let mut sketch = Sketch::new();
    let [b, s, v, d] = sketch.dims([("B", 2), ("S", 3), ("V", 3), ("D", 4)]);
    let (table, scores) = (sketch.weight("table", &[d, v]), sketch.weight("scores", &[b, v, d]));
    let indices = sketch.input("indices", DType::U32, &[b, s]);
    let result = sketch.build(|builder| {
        let rows = builder.take(table, indices, v);
        let square = builder.mul(rows, rows);
        let spread = builder.scatter_add(square, indices, v);
        let again = builder.take(spread, indices, v);
        let picked = builder.take(scores, indices, v);
        builder.mul(again, picked)
    });
    check(&sketch.weighted_loss(result), -1.0, 1.0);
}

#[test]
fn attention_with_groups_window_and_softcap() {
    let mut sketch = Sketch::new();
    let [b, s, t, kv, g, k, w] =
        sketch.dims([("B", 2), ("S", 4), ("T", 4), ("KV", 2), ("G", 2), ("K", 3), ("W", 2)]);
    let q = sketch.weight("q", &[b, s, kv, g, k]);
    let (key, value) = (sketch.weight("k", &[b, t, kv, k]), sketch.weight("v", &[b, t, kv, w]));
    let attention = Attention {
        query: s,
        key: t,
        head: k,
        value: w,
        causal: true,
        window: Some(3),
        packing: Packing::Documents,
        softcap: Some(2.0),
        scale: 0.7,
    };
    let result = sketch.build(|builder| {
        let out = Type::new(DType::F32, [b, s, kv, g, w]);
        let lse = Type::new(DType::F32, [b, s, kv, g]);
        // Two positions each.
        let mut documents = |dim| {
            let position = builder.push_one(Op::Iota { dim }, &[], Type::new(DType::I32, [dim]));
            let position = builder.cast(position, DType::U32);
            let two = builder.push_one(Op::Constant(Literal::Int(2)), &[], Type::scalar(DType::U32));
            builder.map(ScalarOp::Div, &[position, two])
        };
        let (of_queries, of_keys) = (documents(s), documents(t));
        let args = [q, key, value, of_queries, of_keys];
        builder.push(Op::Attention(attention), &args, [out, lse])[0]
    });
    check(&sketch.weighted_loss(result), -1.0, 1.0);
}

/// Layers with a stacked and a shared parameter, a captured activation, the layer's index, two carries, a
/// stacked output, and a scan inside.
#[test]
fn a_scan_that_captures() {
    let mut sketch = Sketch::new();
    let [l, n, b, d] = sketch.dims([("L", 3), ("N", 2), ("B", 2), ("D", 3)]);
    let start = sketch.weight("start", &[b, d]);
    let layers = sketch.weight("layers", &[l, d]);
    let shared = sketch.weight("shared", &[d]);
    let inner = sketch.weight("inner", &[l, n, d]);
    let result = sketch.build(|builder| {
        let captured = builder.map(ScalarOp::Tanh, &[start]);
        let one = builder.fill(1.0, &Type::new(DType::F32, [b]));
        let results = scan(builder, l, &[start, one], &[layers, inner], |builder, params| {
            let [x, total, layer, inner] = params[..] else { panic!("four parameters") };
            let index = builder.push_one(Op::Iota { dim: l }, &[], Type::scalar(DType::I32));
            let index = builder.cast(index, DType::F32);
            let scaled = builder.mul(layer, index);
            let scaled = builder.add(scaled, shared);
            let x = builder.mul(x, scaled);
            let x = scan(builder, n, &[x], &[inner], |builder, params| {
                let sum = builder.add(params[0], params[1]);
                let bent = builder.map(ScalarOp::Sin, &[sum]);
                vec![builder.mul(bent, captured)]
            })[0];
            let rows = builder.reduce(ReduceOp::Sum, x, &[d]);
            let total = builder.mul(total, rows);
            let kept = builder.map(ScalarOp::Exp, &[x]);
            vec![x, total, kept]
        });
        let kept = builder.mul(results[2], captured);
        let kept = builder.reduce(ReduceOp::Sum, kept, &[l]);
        let sum = builder.add(kept, results[0]);
        builder.add(sum, results[1])
    });
    check(&sketch.weighted_loss(result), 0.2, 1.2);
}

#[test]
fn an_unused_parameter_has_a_gradient_of_zeros() {
    let mut sketch = Sketch::new();
    let [d] = sketch.dims([("D", 3)]);
    let (x, unused) = (sketch.weight("x", &[d]), sketch.weight("unused", &[d]));
    let loss = sketch.build(|builder| sum(builder, x));
    let mut program = sketch.finish([("loss", loss)]);
    differentiate(&mut program, DType::F32, 1).expect("it can be differentiated");
    let arguments = arguments(&program, 0.0, 1.0);
    assert_eq!(output(&program, &arguments, "grad.unused"), [0.0; 3]);
    assert_eq!(program.ty(unused).dims[..], [d]);
}

#[test]
fn a_parameter_in_low_precision_has_its_gradient_in_the_plans() {
    let mut sketch = Sketch::new();
    let [b, d, f] = sketch.dims([("B", 2), ("D", 3), ("F", 4)]);
    let x = sketch.input("x", DType::Bf16, &[b, d]);
    let w = sketch.parameter("w", Type::new(DType::Bf16, [d, f]));
    let loss = sketch.build(|builder| {
        let product = builder.dot(x, w, &[d]);
        let product = builder.cast(product, DType::F32);
        sum(builder, product)
    });
    let mut program = sketch.finish([("loss", loss)]);
    differentiate(&mut program, DType::F32, 1).expect("it can be differentiated");
    let gradient = program.outputs[1].value;
    assert_eq!(program.ty(gradient), &Type::new(DType::F32, [d, f]));
    assert_eq!(program.values[gradient].gradient_of, Some(w));
    assert_eq!(program.values[gradient].role, dtlc_ir::Role::Gradient);
    dtlc_ir::verify::structure(&program).expect("it is well formed");
}

/// Gradients of 2^-26 times a sum, whose cotangents no f16 is near: they are lost, unless the loss is scaled.
#[test]
fn a_scaled_loss_keeps_gradients_that_f16_would_lose() {
    let gradient = |loss_scale: u64, rounding: Rounding| {
        let mut sketch = Sketch::new();
        let [b, d, f] = sketch.dims([("B", 2), ("D", 3), ("F", 4)]);
        let x = sketch.input("x", DType::F16, &[b, d]);
        let w = sketch.parameter("w", Type::new(DType::F16, [d, f]));
        let loss = sketch.build(|builder| {
            let product = builder.dot(x, w, &[d]);
            let product = builder.cast(product, DType::F32);
            let product = builder.scale(product, f64::exp2(-26.0));
            sum(builder, product)
        });
        let mut program = sketch.finish([("loss", loss)]);
        differentiate(&mut program, DType::F16, loss_scale).expect("it can be differentiated");
        dtlc_ir::verify::structure(&program).expect("it is well formed");
        let mut arguments = arguments(&program, 0.25, 1.0);
        let halves = arguments.iter_mut().flat_map(|argument| &mut argument.data);
        halves.for_each(|number| *number = (*number * 64.0).round() / 64.0);
        let outcome = interpret(&program, &arguments, &Options { rounding, ..Options::default() });
        outcome.expect("it can be interpreted").output(&program, "grad.w").expect("it is there").data.clone()
    };
    let exact = gradient(1, Rounding::None);
    assert!(exact.iter().all(|number| *number > f64::exp2(-28.0)));
    assert_eq!(gradient(1024, Rounding::None), exact);
    assert_eq!(gradient(1024, Rounding::Storage), exact);
    assert_eq!(gradient(1, Rounding::Storage), vec![0.0; exact.len()]);
}
