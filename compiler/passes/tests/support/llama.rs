//! A tiny Llama-like program: tied embedding, stacked layers with normalisation, grouped attention, dropout
//! and an auxiliary sum over layers, and a loss over the labels that count.

use super::{Sketch, scan};
use dtlc_ir::{Attention, Builder, DType, Dim, Op, Packing, Program, ReduceOp, ScalarOp, Type, Value};

/// What may be added to the model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// Weight decay written into the loss, over a stacked parameter inside the layers.
    Penalty,
    /// A term that needs a mean over all micro-batches before the layers can be differentiated.
    BatchStatistic,
}

pub struct Dims {
    micro: Dim,
    b: Dim,
    s: Dim,
    d: Dim,
    kv: Dim,
    g: Dim,
    k: Dim,
    f: Dim,
    v: Dim,
    l: Dim,
}

/// The forward program, with the dimension of micro-batches.
pub fn llama(extra: Extra) -> (Program, Dim) {
    let mut sketch = Sketch::new();
    let [micro, b, s, d, kv, g, k, f, v, l] = sketch.dims([
        ("M", 3),
        ("B", 2),
        ("S", 4),
        ("D", 6),
        ("KV", 2),
        ("G", 2),
        ("K", 2),
        ("F", 5),
        ("V", 7),
        ("L", 2),
    ]);
    let dims = Dims { micro, b, s, d, kv, g, k, f, v, l };
    let tokens = sketch.input("tokens", DType::U32, &[micro, b, s]);
    let labels = sketch.input("labels", DType::U32, &[micro, b, s]);
    let step = sketch.input("step", DType::U32, &[]);
    let embed = sketch.weight("embed", &[v, d]);
    let layers = [
        sketch.weight("layers.norm", &[l, d]),
        sketch.weight("layers.wq", &[l, d, kv, g, k]),
        sketch.weight("layers.wk", &[l, d, kv, k]),
        sketch.weight("layers.wv", &[l, d, kv, k]),
        sketch.weight("layers.wo", &[l, kv, g, k, d]),
        sketch.weight("layers.up", &[l, d, f]),
        sketch.weight("layers.down", &[l, f, d]),
    ];
    let shared = sketch.weight("shared", &[d]);
    let (loss, logits) = sketch.build(|builder| {
        let x = builder.take(embed, tokens, v);
        let zero = builder.float(0.0, DType::F32);
        let results = scan(builder, l, &[x, zero], &layers, |builder, params| {
            layer(builder, &dims, params, shared, step, extra)
        });
        let x = norm(builder, results[0], d);
        let logits = builder.dot(x, embed, &[d]);
        let loss = masked_mean(builder, &dims, logits, labels);
        let auxiliary = builder.scale(results[1], 0.01);
        let loss = builder.add(loss, auxiliary);
        let loss = if extra == Extra::BatchStatistic { statistic(builder, loss, results[0]) } else { loss };
        (loss, logits)
    });
    (sketch.finish([("loss", loss), ("logits", logits)]), micro)
}

fn layer(
    builder: &mut Builder,
    dims: &Dims,
    params: &[Value],
    shared: Value,
    step: Value,
    extra: Extra,
) -> Vec<Value> {
    let &[x, auxiliary, scale, wq, wk, wv, wo, up, down] = params else { panic!("nine parameters") };
    let normal = norm(builder, x, dims.d);
    let scaled = builder.mul(normal, scale);
    let scaled = builder.add(scaled, shared);
    let [q, key, value] = [wq, wk, wv].map(|weight| builder.dot(scaled, weight, &[dims.d]));
    let t = match builder.program.find_dim("T") {
        Some(dim) => dim,
        None => builder.program.add_dim("T", 4),
    };
    let [q, key] = [q, key].map(|value| turned(builder, dims, value));
    let (key, value) = (builder.rename(key, dims.s, t), builder.rename(value, dims.s, t));
    let attention = Attention {
        query: dims.s,
        key: t,
        head: dims.k,
        value: dims.k,
        causal: true,
        window: None,
        packing: Packing::Whole,
        softcap: None,
        scale: 0.7,
    };
    let out = builder.ty(q).clone();
    let lse = Type::new(DType::F32, out.dims.iter().copied().filter(|&dim| dim != dims.k));
    let mixed = builder.push(Op::Attention(attention), &[q, key, value], [out, lse])[0];
    let mixed = builder.dot(mixed, wo, &[dims.kv, dims.g, dims.k]);
    let mixed = dropped(builder, dims, mixed, step);
    let x = builder.add(x, mixed);
    let hidden = builder.dot(x, up, &[dims.d]);
    let gate = builder.map(ScalarOp::Sigmoid, &[hidden]);
    let gated = builder.mul(hidden, gate);
    let made = builder.dot(gated, down, &[dims.f]);
    let square = builder.mul(gate, gate);
    let busy = builder.reduce(ReduceOp::Sum, square, &[dims.micro, dims.b, dims.s, dims.f]);
    let mut auxiliary = builder.add(auxiliary, busy);
    if extra == Extra::Penalty {
        let square = builder.mul(up, up);
        let size = builder.reduce(ReduceOp::Sum, square, &[dims.d, dims.f]);
        auxiliary = builder.add(auxiliary, size);
    }
    vec![builder.add(x, made), auxiliary]
}

/// Multiplied with the cosine of position and channel, as rotary embeddings are.
fn turned(builder: &mut Builder, dims: &Dims, value: Value) -> Value {
    let [position, channel] = [dims.s, dims.k].map(|dim| {
        let coordinate = builder.iota(dim);
        builder.cast(coordinate, DType::F32)
    });
    let angle = builder.mul(position, channel);
    let wave = builder.map(ScalarOp::Cos, &[angle]);
    builder.mul(value, wave)
}

fn dropped(builder: &mut Builder, dims: &Dims, value: Value, step: Value) -> Value {
    let own = builder.ty(value).dims.clone();
    let numbered = std::iter::once(dims.l).chain(own.iter().copied()).collect();
    let uniform = Op::Random { stream: 0, dims: numbered };
    let uniform = builder.push_one(uniform, &[step], Type::new(DType::F32, own));
    let rate = builder.float(0.3, DType::F32);
    let kept = builder.map(ScalarOp::GreaterEqual, &[uniform, rate]);
    let zero = builder.float(0.0, DType::F32);
    builder.select(kept, value, zero)
}

fn norm(builder: &mut Builder, x: Value, d: Dim) -> Value {
    let square = builder.mul(x, x);
    let sum = builder.reduce(ReduceOp::Sum, square, &[d]);
    let mean = builder.scale(sum, 1.0 / 6.0);
    let epsilon = builder.float(1e-5, DType::F32);
    let mean = builder.add(mean, epsilon);
    let factor = builder.map(ScalarOp::Rsqrt, &[mean]);
    builder.mul(x, factor)
}

/// Cross-entropy over the labels that are not 0.
fn masked_mean(builder: &mut Builder, dims: &Dims, logits: Value, labels: Value) -> Value {
    let largest = builder.reduce(ReduceOp::Max, logits, &[dims.v]);
    let largest = builder.push_one(Op::StopGradient, &[largest], builder.ty(largest).clone());
    let shifted = builder.sub(logits, largest);
    let powers = builder.map(ScalarOp::Exp, &[shifted]);
    let total = builder.reduce(ReduceOp::Sum, powers, &[dims.v]);
    let log = builder.map(ScalarOp::Log, &[total]);
    let picked = builder.take(shifted, labels, dims.v);
    let entropy = builder.sub(log, picked);
    let zero = builder.integer(0, DType::U32);
    let counts = builder.map(ScalarOp::NotEqual, &[labels, zero]);
    let counts = builder.cast(counts, DType::F32);
    let all = [dims.micro, dims.b, dims.s];
    let kept = builder.mul(entropy, counts);
    let [sum, count] = [kept, counts].map(|value| builder.reduce(ReduceOp::Sum, value, &all));
    builder.div(sum, count)
}

/// The loss plus a root of a sum over the whole batch.
fn statistic(builder: &mut Builder, loss: Value, x: Value) -> Value {
    let square = builder.mul(x, x);
    let sum = super::sum(builder, square);
    let root = builder.map(ScalarOp::Sqrt, &[sum]);
    builder.add(loss, root)
}
