//! The local rules. Each looks at one instruction and what defines its arguments, and says which value
//! its result is, after appending what that takes.

use super::{Gradients, Rewriter};
use crate::cheap::lossless;
use dtlc_ir::interpret::{apply as evaluate, literal, stored};
use dtlc_ir::{Builder, DType, Dim, Inst, Literal, Op, ScalarOp, Type, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The value that the only result of `inst` equals, if a rule knows one.
pub fn apply(rewriter: &mut Rewriter, inst: &Inst) -> Option<Value> {
    let &result = inst.results.first()?;
    let ty = rewriter.builder.ty(result).clone();
    match &inst.op {
        Op::Map(ScalarOp::Cast) => cast(rewriter, inst.args[0], &ty),
        Op::Map(op) => fold(rewriter, *op, &inst.args, &ty)
            .or_else(|| neutral(rewriter, *op, &inst.args, &ty))
            .or_else(|| add_pads(rewriter, *op, &inst.args, &ty)),
        Op::Reduce { dims, .. } if dims.is_empty() => Some(rewriter.builder.conform(inst.args[0], &ty)),
        Op::Rename { from, to } => rename(rewriter, inst.args[0], *from, *to, &ty),
        Op::Split { dim, .. } => {
            inverse(rewriter, inst.args[0], &ty, |op| matches!(op, Op::Merge { into, .. } if into == dim))
        }
        Op::Merge { into, .. } => {
            inverse(rewriter, inst.args[0], &ty, |op| matches!(op, Op::Split { dim, .. } if dim == into))
        }
        Op::Concat { pieces, into } => flatten(rewriter, &inst.args, pieces, *into, &ty),
        Op::StopGradient if rewriter.gradients == Gradients::Taken => Some(inst.args[0]),
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Reduce { .. }
        | Op::Dot(_)
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Take { .. }
        | Op::ScatterAdd { .. }
        | Op::Random { .. }
        | Op::StopGradient
        | Op::Attention(_)
        | Op::AttentionGradient(_)
        | Op::Scan(_)
        | Op::Reshard(_)
        | Op::LocalSlice
        | Op::Collective(_)
        | Op::Done
        | Op::Fused(_) => None,
    }
}

/// Lets a scalar function read what its arguments broadcast or permute: it does that by itself.
pub fn read_through_casts(builder: &Builder, definitions: &FxHashMap<Value, Inst>, inst: &mut Inst) -> bool {
    let Op::Map(_) = inst.op else { return false };
    let mut changed = false;
    for arg in &mut inst.args {
        if let Some(definition) = definitions.get(arg)
            && definition.op == Op::Map(ScalarOp::Cast)
            && builder.ty(definition.args[0]).dtype == builder.ty(*arg).dtype
        {
            *arg = definition.args[0];
            changed = true;
        }
    }
    changed
}

/// A cast to the same type; of a constant; of a cast that lost nothing.
fn cast(rewriter: &mut Rewriter, arg: Value, ty: &Type) -> Option<Value> {
    let of_arg = rewriter.builder.ty(arg).clone();
    if of_arg == *ty {
        return Some(arg);
    }
    let definition = rewriter.definitions.get(&arg)?;
    match definition.op {
        Op::Constant(_) if ty.dims.is_empty() => fold(rewriter, ScalarOp::Cast, &[arg], ty),
        Op::Map(ScalarOp::Cast) => {
            let source = definition.args[0];
            let exact = lossless(rewriter.builder.ty(source).dtype, of_arg.dtype);
            exact.then(|| rewriter.builder.conform(source, ty))
        }
        _ => None,
    }
}

/// The number that every element of a value is.
fn number(rewriter: &Rewriter, value: Value) -> Option<f64> {
    let definition = rewriter.definitions.get(&value)?;
    match definition.op {
        Op::Constant(value) => Some(literal(value)),
        Op::Map(ScalarOp::Cast) => {
            let source = definition.args[0];
            let (from, to) = (rewriter.builder.ty(source).dtype, rewriter.builder.ty(value).dtype);
            lossless(from, to).then(|| number(rewriter, source)).flatten()
        }
        _ => None,
    }
}

/// A function of constants. Their f32 arithmetic is done in f64.
fn fold(rewriter: &mut Rewriter, op: ScalarOp, args: &[Value], ty: &Type) -> Option<Value> {
    let mut numbers = [0.0; 3];
    for (slot, &arg) in numbers.iter_mut().zip(args) {
        *slot = number(rewriter, arg)?;
    }
    let from = rewriter.builder.ty(args[0]).dtype;
    let value = evaluate(op, from, ty.dtype, numbers);
    let literal = match ty.dtype {
        DType::F32 => Literal::Float(value),
        DType::Bf16 | DType::F16 => Literal::Float(stored(value, ty.dtype)),
        DType::I32 | DType::U32 => Literal::Int(value as i64),
        DType::Bool => Literal::Bool(value != 0.0),
    };
    let folded = rewriter.builder.constant(literal, ty.dtype);
    Some(rewriter.builder.conform(folded, ty))
}

/// Functions that hand one argument through.
fn neutral(rewriter: &mut Rewriter, op: ScalarOp, args: &[Value], ty: &Type) -> Option<Value> {
    let is = |value: Value, wanted: f64| number(rewriter, value) == Some(wanted);
    let same = match (op, args) {
        (ScalarOp::Add, &[other, zero]) | (ScalarOp::Sub, &[other, zero]) if is(zero, 0.0) => other,
        (ScalarOp::Add, &[zero, other]) if is(zero, 0.0) => other,
        (ScalarOp::Mul, &[other, one]) | (ScalarOp::Div, &[other, one]) if is(one, 1.0) => other,
        (ScalarOp::Mul, &[one, other]) if is(one, 1.0) => other,
        (ScalarOp::Select, &[condition, then, otherwise]) => {
            if number(rewriter, condition)? != 0.0 {
                then
            } else {
                otherwise
            }
        }
        (ScalarOp::Neg, &[arg]) => {
            let definition = rewriter.definitions.get(&arg)?;
            if definition.op != Op::Map(ScalarOp::Neg) {
                return None;
            }
            definition.args[0]
        }
        _ => return None,
    };
    Some(rewriter.builder.conform(same, ty))
}

/// The sum of two parts that lie end to end is their concatenation.
fn add_pads(rewriter: &mut Rewriter, op: ScalarOp, args: &[Value], ty: &Type) -> Option<Value> {
    if op != ScalarOp::Add {
        return None;
    }
    let [left, right] = [padded(rewriter, args[0])?, padded(rewriter, args[1])?];
    let (first, second) = if left.start <= right.start { (left, right) } else { (right, left) };
    if first.into != second.into || first.end != second.start || rewriter.builder.ty(args[0]) != ty {
        return None;
    }
    let pieces = [first.dim, second.dim];
    let values = [first.value, second.value];
    let dims = &rewriter.builder.program.dims;
    let into = dims[first.into].clone();
    let whole = first.start == 0 && second.end == into.size;
    let joined = if whole {
        first.into
    } else {
        rewriter.builder.program.fresh_dim(&into.name, second.end - first.start)
    };
    let order = ty.dims.iter().map(|&dim| if dim == first.into { joined } else { dim });
    let op = Op::Concat { pieces: SmallVec::from_slice(&pieces), into: joined };
    let value = rewriter.builder.push_one(op, &values, Type::new(ty.dtype, order));
    if whole {
        return Some(value);
    }
    let op = Op::Pad { dim: Some(joined), start: first.start, into: first.into };
    Some(rewriter.builder.push_one(op, &[value], ty.clone()))
}

/// A value that is zero outside of `start..end` of `into`.
struct Padded {
    value: Value,
    dim: Option<Dim>,
    into: Dim,
    start: u64,
    end: u64,
}

fn padded(rewriter: &Rewriter, value: Value) -> Option<Padded> {
    let definition = rewriter.definitions.get(&value)?;
    let Op::Pad { dim, start, into } = definition.op else { return None };
    let size = dim.map_or(1, |dim| rewriter.builder.program.dims[dim].size);
    Some(Padded { value: definition.args[0], dim, into, start, end: start + size })
}

/// A rename of a rename.
fn rename(rewriter: &mut Rewriter, arg: Value, from: Dim, to: Dim, ty: &Type) -> Option<Value> {
    let definition = rewriter.definitions.get(&arg)?;
    let Op::Rename { from: first, to: between } = definition.op else { return None };
    let source = definition.args[0];
    if between != from || rewriter.builder.ty(source).has(to) && first != to {
        return None;
    }
    if first == to {
        return (rewriter.builder.ty(source) == ty).then_some(source);
    }
    Some(rewriter.builder.push_one(Op::Rename { from: first, to }, &[source], ty.clone()))
}

/// What a split merges or a merge splits, if it has the type wanted.
fn inverse(rewriter: &Rewriter, arg: Value, ty: &Type, undoes: impl Fn(&Op) -> bool) -> Option<Value> {
    let definition = rewriter.definitions.get(&arg)?;
    let source = *definition.args.first()?;
    (undoes(&definition.op) && rewriter.builder.ty(source) == ty).then_some(source)
}

/// A concatenation of concatenations.
fn flatten(
    rewriter: &mut Rewriter,
    args: &[Value],
    pieces: &[Option<Dim>],
    into: Dim,
    ty: &Type,
) -> Option<Value> {
    let (mut values, mut dims): (Vec<Value>, SmallVec<[Option<Dim>; 4]>) = Default::default();
    for (&arg, &piece) in args.iter().zip(pieces) {
        match rewriter.definitions.get(&arg).map(|definition| (&definition.op, &definition.args)) {
            Some((Op::Concat { pieces: inner, into }, args)) if Some(*into) == piece => {
                values.extend(args);
                dims.extend(inner.iter().copied());
            }
            _ => {
                values.push(arg);
                dims.push(piece);
            }
        }
    }
    let grew = values.len() > args.len();
    grew.then(|| rewriter.builder.push_one(Op::Concat { pieces: dims, into }, &values, ty.clone()))
}
