//! Which operations pass a partial value on: those linear in it.

use crate::op::{Literal, Op, ScalarOp};
use crate::program::{Program, Region, Value};
use crate::types::{Partial, ReduceOp, Type};
use cranelift_entity::EntitySet;

/// The partial axes that a result of `op`, of the element type of `result`, has from its arguments.
///
/// `zero` says which arguments are zero everywhere.
///
/// # Errors
/// Where an argument is partial and the operation isn't linear in it.
pub(super) fn passed(op: &Op, args: &[&Type], result: &Type, zero: &[bool]) -> Result<Vec<Partial>, String> {
    match op {
        Op::Map(op) => map(*op, args, result, zero),
        Op::Reduce { op, dims: _ } => only(args, &[0], |partial| partial.op == *op),
        Op::Dot(_) => factor(args),
        // The same elements in another shape.
        Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } | Op::StopGradient => {
            only(args, &[0], |_| true)
        }
        // Zeros come in, the identity of sums alone.
        Op::Pad { .. } | Op::Take { .. } | Op::ScatterAdd { .. } => only(args, &[0], is_sum),
        Op::Concat { .. } => all_alike(args, &[]),
        Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } => only(args, &[], is_sum),
        Op::Attention(_) | Op::AttentionGradient(_) => only(args, &[], is_sum),
        Op::Scan(_) | Op::Fused(_) => Err("the placements of its body decide".into()),
        Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => Err("moves data".into()),
    }
}

/// The values that are zero everywhere by their definition.
pub(super) fn zeros(program: &Program) -> EntitySet<Value> {
    let mut zeros = EntitySet::new();
    collect(&program.main, &mut zeros);
    zeros
}

fn collect(region: &Region, zeros: &mut EntitySet<Value>) {
    for inst in &region.insts {
        let zero = match literal(&inst.op) {
            Some(literal) => literal == 0.0,
            None => {
                let is_cast = matches!(inst.op, Op::Map(ScalarOp::Cast));
                is_cast && inst.args.iter().all(|&arg| zeros.contains(arg))
            }
        };
        if zero {
            zeros.extend(inst.results.iter().copied());
        }
        if let Some(body) = inst.op.region() {
            collect(body, zeros);
        }
    }
}

fn literal(op: &Op) -> Option<f64> {
    let Op::Constant(literal) = op else { return None };
    Some(match *literal {
        Literal::Float(value) => value,
        Literal::Int(value) => value as f64,
        Literal::Bool(value) => f64::from(u8::from(value)),
    })
}

fn is_sum(partial: Partial) -> bool {
    partial.op == ReduceOp::Sum
}

fn partials(ty: &Type) -> Vec<Partial> {
    ty.placement.partials().to_vec()
}

fn fault<T>(index: usize) -> Result<T, String> {
    Err(format!("argument {} is partial, and this isn't linear in it", index + 1))
}

/// Only the arguments `linear` may be partial (at most one is), and only as `fits` says.
fn only(args: &[&Type], linear: &[usize], fits: impl Fn(Partial) -> bool) -> Result<Vec<Partial>, String> {
    for (index, arg) in args.iter().enumerate() {
        let allowed = linear.contains(&index) && partials(arg).into_iter().all(&fits);
        if !allowed && !partials(arg).is_empty() {
            return fault(index);
        }
    }
    Ok(linear.iter().flat_map(|&index| partials(args[index])).collect())
}

/// A product: along each axis at most one of the two factors is partial.
fn factor(args: &[&Type]) -> Result<Vec<Partial>, String> {
    let mut all: Vec<Partial> = Vec::new();
    for (index, arg) in args.iter().enumerate() {
        for partial in partials(arg) {
            if !is_sum(partial) {
                return fault(index);
            }
            if all.iter().any(|other| other.axis == partial.axis) {
                return Err("both factors are partial along one axis".into());
            }
            all.push(partial);
        }
    }
    Ok(all)
}

/// A sum: along each axis all terms are partial or none is. Those in `zero` don't count.
fn all_alike(terms: &[&Type], zero: &[bool]) -> Result<Vec<Partial>, String> {
    let is_zero = |index: usize| zero.get(index).copied().unwrap_or(false);
    let counted: Vec<&&Type> =
        terms.iter().enumerate().filter(|&(index, _)| !is_zero(index)).map(|(_, ty)| ty).collect();
    let first = counted.first().map(|ty| partials(ty)).unwrap_or_default();
    if counted.iter().any(|ty| partials(ty) != first) {
        return Err("one term is partial along an axis where another isn't".into());
    }
    Ok(first)
}

fn map(op: ScalarOp, args: &[&Type], result: &Type, zero: &[bool]) -> Result<Vec<Partial>, String> {
    use ScalarOp::*;
    match op {
        Neg => only(args, &[0], is_sum),
        Cast if args[0].dtype.is_float() && result.dtype.is_float() => only(args, &[0], |_| true),
        Mul => factor(args),
        Div => only(args, &[0], is_sum),
        Add | Sub => {
            only(args, &[0, 1], is_sum)?;
            all_alike(args, &[])
        }
        Select => {
            only(args, &[1, 2], is_sum)?;
            all_alike(&args[1..], zero.get(1..).unwrap_or_default())
        }
        Abs | Exp | Log | Sqrt | Rsqrt | Tanh | Sigmoid | Erf | Sin | Cos | Floor | Not | Cast => {
            only(args, &[], is_sum)
        }
        Rem | Pow | Min | Max | Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual | And | Or => {
            only(args, &[], is_sum)
        }
    }
}
