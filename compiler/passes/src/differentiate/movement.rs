//! Gradients of operations that move elements: each is the transposed movement.

use super::{Tape, sum_dtype};
use dtlc_ir::{Builder, Dim, Op, ScalarOp, Type, Value};

/// Contributes to the arguments of an operation that moves elements.
pub fn movement(tape: &mut Tape, builder: &mut Builder, op: &Op, args: &[Value], cotangent: Value) {
    let contribution = match op {
        Op::Rename { from, to } => builder.rename(cotangent, *to, *from),
        Op::Split { dim, into } => builder.merge(cotangent, into, *dim),
        Op::Merge { dims, into } => builder.split(cotangent, *into, dims),
        Op::Slice { dim, start, into } => {
            let ty = Type::new(builder.ty(cotangent).dtype, builder.ty(args[0]).dims.iter().copied());
            builder.push_one(Op::Pad { dim: *into, start: *start, into: *dim }, &[cotangent], ty)
        }
        Op::Pad { dim, start, into } => builder.slice(cotangent, *into, *start, *dim),
        Op::Concat { pieces, into } => return concat(tape, builder, args, pieces, *into, cotangent),
        Op::Take { dim } => return take(tape, builder, args, *dim, cotangent),
        Op::ScatterAdd { dim } => builder.take(cotangent, args[1], *dim),
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot(_)
        | Op::Random { .. }
        | Op::StopGradient
        | Op::Attention(_)
        | Op::AttentionGradient(_)
        | Op::Scan(_)
        | Op::Reshard(_)
        | Op::LocalSlice
        | Op::Collective(_)
        | Op::Done
        | Op::Fused(_) => return,
    };
    tape.add(builder, args[0], contribution);
}

/// Each piece gets its part.
fn concat(
    tape: &mut Tape,
    builder: &mut Builder,
    args: &[Value],
    pieces: &[Option<Dim>],
    into: Dim,
    cotangent: Value,
) {
    let mut start = 0;
    for (&arg, &piece) in args.iter().zip(pieces) {
        if tape.is_active(arg) {
            let part = builder.slice(cotangent, into, start, piece);
            tape.add(builder, arg, part);
        }
        start += piece.map_or(1, |dim| builder.program.dims[dim].size);
    }
}

/// Rows are added up where they were taken from. Where the table shares dims with the indices each element
/// of a row is taken at most once, so that a comparison does it.
fn take(tape: &mut Tape, builder: &mut Builder, args: &[Value], dim: Dim, cotangent: Value) {
    let (table, indices) = (args[0], args[1]);
    if !tape.is_active(table) {
        return;
    }
    let shares = builder.ty(indices).dims.iter().any(|&dim| builder.ty(table).has(dim));
    let rows = if shares {
        let coordinate = builder.iota(dim);
        let coordinate = builder.cast(coordinate, builder.ty(indices).dtype);
        let taken = builder.map(ScalarOp::Equal, &[indices, coordinate]);
        let zero = builder.number(0.0, builder.ty(cotangent).dtype);
        builder.select(taken, cotangent, zero)
    } else {
        let wanted = tape.cotangent_type(builder.program, table);
        let ty = Type { dtype: sum_dtype(builder.ty(cotangent).dtype, wanted.dtype), ..wanted };
        builder.push_one(Op::ScatterAdd { dim }, &[cotangent, indices], ty)
    };
    tape.add(builder, table, rows);
}
