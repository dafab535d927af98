//! Gradients of products, reductions and attention.

use super::{Tape, sum_dtype};
use dtlc_ir::{Attention, Builder, DType, Factors, Inst, Op, ReduceOp, ScalarOp, Type, Value};

/// The gradient of one argument is the product of the cotangent with the other. The two are separate
/// instructions, so that a schedule can put off the parameter's. Both read their factors as the product itself does.
pub fn dot(tape: &mut Tape, builder: &mut Builder, factors: Factors, args: &[Value], cotangent: Value) {
    for index in 0..2 {
        let (arg, other) = (args[index], args[1 - index]);
        if !tape.is_active(arg) {
            continue;
        }
        let dtype = builder.ty(other).dtype;
        let cotangent = builder.cast(cotangent, dtype);
        let wanted = tape.cotangent_type(builder.program, arg);
        let ty = Type { dtype: sum_dtype(dtype, wanted.dtype), ..wanted };
        let pair = if index == 0 { [cotangent, other] } else { [other, cotangent] };
        let gradient = builder.push_one(Op::Dot(factors), &pair, ty);
        tape.add(builder, arg, gradient);
    }
}

/// A sum hands its cotangent to every element; a maximum shares it among the largest.
pub fn reduce(
    tape: &mut Tape,
    builder: &mut Builder,
    op: ReduceOp,
    arg: Value,
    result: Value,
    cotangent: Value,
) {
    let of_arg = builder.ty(arg).clone();
    let share = match op {
        ReduceOp::Sum => cotangent,
        ReduceOp::Max => {
            let largest = builder.cast(result, of_arg.dtype);
            let largest = builder.map(ScalarOp::Equal, &[arg, largest]);
            let gone: Vec<_> =
                of_arg.dims.iter().copied().filter(|&dim| !builder.ty(result).has(dim)).collect();
            let ones = builder.cast(largest, DType::F32);
            let count = builder.reduce(ReduceOp::Sum, ones, &gone);
            let count = builder.cast(count, builder.ty(cotangent).dtype);
            let share = builder.div(cotangent, count);
            let zero = builder.number(0.0, builder.ty(share).dtype);
            builder.select(largest, share, zero)
        }
    };
    let whole = Type { dtype: of_arg.dtype, ..tape.cotangent_type(builder.program, arg) };
    let spread = builder.conform(share, &whole);
    tape.add(builder, arg, spread);
}

/// One fused backward makes all three. Documents are numbers of which nothing is a function.
pub fn attention(
    tape: &mut Tape,
    builder: &mut Builder,
    attention: &Attention,
    inst: &Inst,
    cotangent: Value,
) {
    let (out, lse) = (inst.results[0], inst.results[1]);
    let (tensors, documents) = inst.args.split_at(3);
    let args = [tensors, &[out, lse, cotangent], documents].concat();
    let types: Vec<Type> = tensors.iter().map(|&arg| builder.ty(arg).clone()).collect();
    let gradients = builder.push(Op::AttentionGradient(attention.clone()), &args, types);
    for (&arg, &gradient) in tensors.iter().zip(&gradients) {
        tape.add(builder, arg, gradient);
    }
}
