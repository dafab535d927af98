//! Typed helpers on [`Builder`]: each appends one instruction and works out its result type.
//!
//! Result dimensions follow one rule an operation: `map` takes the union in order of first appearance,
//! `dot` batch dims, then free dims of the left, then of the right; everything else keeps the argument's
//! order with the dims that come in the place of those that go. Passes that need another type use
//! [`Builder::push_one`]. Nothing is checked here: the verifier does that.

use crate::dim::Dim;
use crate::op::{Factors, Literal, Op, ScalarOp};
use crate::program::{Builder, Value};
use crate::types::{DType, ReduceOp, Type};
use smallvec::SmallVec;

impl Builder<'_> {
    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        self.program.ty(value)
    }

    /// A scalar constant.
    pub fn constant(&mut self, literal: Literal, dtype: DType) -> Value {
        self.push_one(Op::Constant(literal), &[], Type::scalar(dtype))
    }

    /// An integer constant.
    pub fn integer(&mut self, value: i64, dtype: DType) -> Value {
        self.constant(Literal::Int(value), dtype)
    }

    /// A number as a constant of any numeric element type.
    pub fn number(&mut self, value: f64, dtype: DType) -> Value {
        match dtype {
            DType::F32 | DType::Bf16 | DType::F16 => self.float(value, dtype),
            DType::I32 | DType::U32 => self.integer(value as i64, dtype),
            DType::Bool => self.constant(Literal::Bool(value != 0.0), dtype),
        }
    }

    /// `i32[dim]`: the coordinate along `dim`.
    pub fn iota(&mut self, dim: Dim) -> Value {
        self.push_one(Op::Iota { dim }, &[], Type::new(DType::I32, [dim]))
    }

    /// A scalar function other than a cast. Arguments have one element type, but for a condition.
    pub fn map(&mut self, op: ScalarOp, args: &[Value]) -> Value {
        let ty = map_type(self, op, args);
        self.push_one(Op::Map(op), args, ty)
    }

    /// `value` as `dtype`; itself if it is that already.
    pub fn cast(&mut self, value: Value, dtype: DType) -> Value {
        let ty = Type { dtype, ..self.ty(value).clone() };
        self.conform(value, &ty)
    }

    /// `value` converted, broadcast and permuted to `ty`; itself if it has that type already.
    pub fn conform(&mut self, value: Value, ty: &Type) -> Value {
        if self.ty(value) == ty {
            return value;
        }
        self.push_one(Op::Map(ScalarOp::Cast), &[value], ty.clone())
    }

    /// A number in every element of a tensor of type `ty`.
    pub fn fill(&mut self, value: f64, ty: &Type) -> Value {
        let scalar = self.number(value, ty.dtype);
        self.conform(scalar, ty)
    }

    /// `left + right`.
    pub fn add(&mut self, left: Value, right: Value) -> Value {
        self.map(ScalarOp::Add, &[left, right])
    }

    /// `left - right`.
    pub fn sub(&mut self, left: Value, right: Value) -> Value {
        self.map(ScalarOp::Sub, &[left, right])
    }

    /// `left * right`.
    pub fn mul(&mut self, left: Value, right: Value) -> Value {
        self.map(ScalarOp::Mul, &[left, right])
    }

    /// `left / right`.
    pub fn div(&mut self, left: Value, right: Value) -> Value {
        self.map(ScalarOp::Div, &[left, right])
    }

    /// `condition ? then : otherwise`, element by element.
    pub fn select(&mut self, condition: Value, then: Value, otherwise: Value) -> Value {
        self.map(ScalarOp::Select, &[condition, then, otherwise])
    }

    /// `value * factor`.
    pub fn scale(&mut self, value: Value, factor: f64) -> Value {
        let factor = self.float(factor, self.program.ty(value).dtype);
        self.mul(value, factor)
    }

    /// The elements along `dims` combined.
    pub fn reduce(&mut self, op: ReduceOp, value: Value, dims: &[Dim]) -> Value {
        let ty = replace_dims(self.ty(value), dims, &[]);
        self.push_one(Op::Reduce { op, dims: SmallVec::from_slice(dims) }, &[value], ty)
    }

    /// The product of two arguments of one element type, summed over `over`; other shared dims are batch dims.
    pub fn dot(&mut self, left: Value, right: Value, over: &[Dim]) -> Value {
        self.dot_of(Factors::AsStored, left, right, over)
    }

    /// The same of factors that are read so.
    pub fn dot_of(&mut self, factors: Factors, left: Value, right: Value, over: &[Dim]) -> Value {
        let (lhs, rhs) = (self.ty(left), self.ty(right));
        let batch = lhs.dims.iter().filter(|&&dim| rhs.has(dim) && !over.contains(&dim));
        let free_left = lhs.dims.iter().filter(|&&dim| !rhs.has(dim));
        let free_right = rhs.dims.iter().filter(|&&dim| !lhs.has(dim));
        let ty = Type::new(lhs.dtype, batch.chain(free_left).chain(free_right).copied());
        self.push_one(Op::Dot(factors), &[left, right], ty)
    }

    /// `value` with `to` for `from`; itself if they are the same.
    pub fn rename(&mut self, value: Value, from: Dim, to: Dim) -> Value {
        if from == to {
            return value;
        }
        let ty = replace_dims(self.ty(value), &[from], &[to]);
        self.push_one(Op::Rename { from, to }, &[value], ty)
    }

    /// One dimension as several.
    pub fn split(&mut self, value: Value, dim: Dim, into: &[Dim]) -> Value {
        let ty = replace_dims(self.ty(value), &[dim], into);
        self.push_one(Op::Split { dim, into: SmallVec::from_slice(into) }, &[value], ty)
    }

    /// Adjacent dimensions as one.
    pub fn merge(&mut self, value: Value, dims: &[Dim], into: Dim) -> Value {
        let ty = replace_dims(self.ty(value), dims, &[into]);
        self.push_one(Op::Merge { dims: SmallVec::from_slice(dims), into }, &[value], ty)
    }

    /// The elements of `dim` from `start` on as `into`, or the one at `start`.
    pub fn slice(&mut self, value: Value, dim: Dim, start: u64, into: Option<Dim>) -> Value {
        let ty = replace_dims(self.ty(value), &[dim], into.as_slice());
        self.push_one(Op::Slice { dim, start, into }, &[value], ty)
    }

    /// Zeros around `value` along `into`. A single element's dimension comes first.
    pub fn pad(&mut self, value: Value, dim: Option<Dim>, start: u64, into: Dim) -> Value {
        let ty = replace_dims(self.ty(value), dim.as_slice(), &[into]);
        self.push_one(Op::Pad { dim, start, into }, &[value], ty)
    }

    /// Values end to end along `into`; the first piece says where it stands. `values` must not be empty.
    pub fn concat(&mut self, values: &[Value], pieces: &[Option<Dim>], into: Dim) -> Value {
        let ty = replace_dims(self.ty(values[0]), pieces[0].as_slice(), &[into]);
        self.push_one(Op::Concat { pieces: SmallVec::from_slice(pieces), into }, values, ty)
    }

    /// Rows of `table`; dims that table and indices share are batch dims.
    pub fn take(&mut self, table: Value, indices: Value, dim: Dim) -> Value {
        let rows = self.ty(table);
        let fresh: SmallVec<[Dim; 4]> =
            self.ty(indices).dims.iter().copied().filter(|&dim| !rows.has(dim)).collect();
        let ty = replace_dims(rows, &[dim], &fresh);
        self.push_one(Op::Take { dim }, &[table, indices], ty)
    }

    /// `updates` added to rows of zeros; `dim` comes in the place of the indices' dims.
    pub fn scatter_add(&mut self, updates: Value, indices: Value, dim: Dim) -> Value {
        let gone = self.ty(indices).dims.clone();
        let ty = replace_dims(self.ty(updates), &gone, &[dim]);
        self.push_one(Op::ScatterAdd { dim }, &[updates, indices], ty)
    }
}

/// `ty` without `gone`, and with `come` in the place of the first of them (in front if there is none).
fn replace_dims(ty: &Type, gone: &[Dim], come: &[Dim]) -> Type {
    let at = ty.dims.iter().position(|dim| gone.contains(dim)).unwrap_or(0);
    let kept = |dims: &[Dim]| dims.iter().copied().filter(|dim| !gone.contains(dim)).collect::<Vec<_>>();
    let (before, after) = (kept(&ty.dims[..at]), kept(&ty.dims[at..]));
    Type::new(ty.dtype, before.into_iter().chain(come.iter().copied()).chain(after))
}

fn map_type(builder: &Builder, op: ScalarOp, args: &[Value]) -> Type {
    use ScalarOp::*;
    let dtype = match op {
        Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual | And | Or | Not => DType::Bool,
        Select => builder.ty(args[1]).dtype,
        Neg | Abs | Exp | Log | Sqrt | Rsqrt | Tanh | Sigmoid | Erf | Sin | Cos | Floor | Cast | Add
        | Sub | Mul | Div | Rem | Pow | Min | Max => builder.ty(args[0]).dtype,
    };
    let mut ty = Type::scalar(dtype);
    for &arg in args {
        for &dim in &builder.ty(arg).dims {
            if !ty.has(dim) {
                ty.dims.push(dim);
            }
        }
    }
    ty
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Phase, Program};

    #[test]
    fn types_follow_names() {
        let mut program = Program::new("test");
        let [b, s, d, v] = [("B", 2), ("S", 3), ("D", 4), ("V", 5)].map(|(n, size)| program.add_dim(n, size));
        let mut builder = Builder::new(&mut program, Phase::Forward);
        let x = builder.fill(1.0, &Type::new(DType::F32, [b, s, d]));
        let table = builder.fill(1.0, &Type::new(DType::F32, [d, v]));
        let row = builder.fill(1.0, &Type::new(DType::F32, [v, b]));
        let indices = builder.fill(1.0, &Type::new(DType::I32, [b, s]));

        let scores = builder.dot(x, table, &[d]);
        assert_eq!(builder.ty(scores), &Type::new(DType::F32, [b, s, v]));
        let sum = builder.add(row, x);
        assert_eq!(builder.ty(sum), &Type::new(DType::F32, [v, b, s, d]));
        let picked = builder.take(scores, indices, v);
        assert_eq!(builder.ty(picked), &Type::new(DType::F32, [b, s]));
        let rows = builder.take(table, indices, v);
        assert_eq!(builder.ty(rows), &Type::new(DType::F32, [d, b, s]));
        let back = builder.scatter_add(rows, indices, v);
        assert_eq!(builder.ty(back), &Type::new(DType::F32, [d, v]));
        let merged = builder.merge(x, &[s, d], v);
        assert_eq!(builder.ty(merged), &Type::new(DType::F32, [b, v]));
    }
}
