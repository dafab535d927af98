//! What each operation computes on one rank, from the tensors that the rank holds.

use super::Rounding;
use super::attention;
use super::scalar;
use super::tensor::{Tensor, walk};
use crate::dim::Dim;
use crate::op::{Factors, Op, ScalarOp};
use crate::program::Program;
use crate::random::{random_bits, uniform};
use crate::types::{DType, ReduceOp, Type};
use std::borrow::Cow;
use std::cell::Cell;

/// Where an operation runs.
pub(super) struct Site<'a> {
    pub(super) program: &'a Program,
    /// The rank's coordinate on each mesh axis; none where placements are ignored.
    pub(super) coordinates: Option<&'a [u64]>,
    /// The dimensions of the enclosing scans with the loops' indices.
    pub(super) loops: &'a [(Dim, u64)],
    pub(super) seed: u64,
    pub(super) rounding: Rounding,
    /// How many numbers have been rounded within the operation.
    pub(super) roundings: Cell<u64>,
}

impl Site<'_> {
    /// A number within an operation, such as a sum so far, as what computes in f32 has it. Equal numbers are rounded
    /// by separate chance: kernels come to them on several ways.
    pub(super) fn within(&self, value: f64) -> f64 {
        self.rounded_within(value, DType::F32)
    }

    /// Such a number as a factor of elements of type `dtype`. Matrix units take both factors in one type, so a kernel may round what it
    /// has in f32 to theirs.
    pub(super) fn factor(&self, value: f64, dtype: DType) -> f64 {
        match dtype {
            DType::Bf16 | DType::F16 => self.rounded_within(value, dtype),
            DType::F32 | DType::I32 | DType::U32 | DType::Bool => value,
        }
    }

    /// A factor of a product that reads its factors as tf32.
    fn tf32(&self, value: f64) -> f64 {
        match self.rounding {
            Rounding::None | Rounding::Beside(_) => value,
            Rounding::Storage => scalar::tf32(value),
            Rounding::Chance(seed) => scalar::tf32_by_chance(value, seed),
        }
    }

    fn rounded_within(&self, value: f64, dtype: DType) -> f64 {
        match self.rounding {
            Rounding::None | Rounding::Storage => value,
            Rounding::Chance(seed) => scalar::stored_by_chance(value, dtype, self.next(seed)),
            Rounding::Beside(seed) => scalar::beside(value, self.next(seed)),
        }
    }

    /// A seed for the next number within the operation.
    fn next(&self, seed: u64) -> u64 {
        let count = self.roundings.get() + 1;
        self.roundings.set(count);
        seed.wrapping_add(count << 32)
    }

    /// How many elements of `dim` a value of type `ty` has here.
    pub(super) fn size(&self, ty: &Type, dim: Dim) -> usize {
        match self.coordinates {
            Some(_) => ty.local_size(self.program, dim) as usize,
            None => self.program.dims[dim].size as usize,
        }
    }

    /// The global coordinate of the first element of `dim` that a value of type `ty` has here.
    pub(super) fn start(&self, ty: &Type, dim: Dim) -> u64 {
        let Some(coordinates) = self.coordinates else { return 0 };
        let part = ty.placement.axes_of(dim).fold(0, |part, axis| {
            part * self.program.mesh.axes[axis].size + coordinates[axis.as_u32() as usize]
        });
        part * ty.local_size(self.program, dim)
    }

    /// The dimensions of a value here, with sizes.
    pub(super) fn shape(&self, ty: &Type) -> Vec<(Dim, usize)> {
        ty.dims.iter().map(|&dim| (dim, self.size(ty, dim))).collect()
    }

    fn zeros(&self, ty: &Type) -> Tensor {
        Tensor::filled(self.shape(ty), 0.0)
    }
}

/// The results of an operation that neither holds a region nor moves data.
///
/// # Errors
/// Where the operation isn't one of those.
pub(super) fn evaluate(
    site: &Site<'_>,
    op: &Op,
    args: &[&Tensor],
    arg_types: &[&Type],
    results: &[&Type],
) -> Result<Vec<Tensor>, String> {
    let ty = results[0];
    let result = match op {
        Op::Constant(literal) => Tensor::filled(site.shape(ty), scalar::literal(*literal)),
        Op::Iota { dim } => iota(site, *dim, ty),
        Op::Map(op) => map(site, *op, args, arg_types, ty),
        Op::Reduce { op, dims } => reduce(site, *op, dims, args[0], ty),
        Op::Dot(factors) => dot(site, *factors, args[0], args[1], ty),
        Op::Rename { from, to } => {
            let shape =
                args[0].shape().into_iter().map(|(dim, size)| (if dim == *from { *to } else { dim }, size));
            args[0].reshaped(shape.collect::<Vec<_>>())
        }
        // The memory order of argument and result is the same, so the elements are.
        Op::Split { .. } | Op::Merge { .. } => args[0].reshaped(site.shape(ty)),
        Op::Slice { dim, start, into } => slice(site, *dim, *start as usize, *into, args[0], ty),
        Op::Pad { dim, start, into } => {
            let mut result = site.zeros(ty);
            place(&mut result, args[0], *dim, *start as usize, *into);
            result
        }
        Op::Concat { pieces, into } => {
            let mut result = site.zeros(ty);
            let mut start = 0;
            for (arg, piece) in args.iter().zip(pieces) {
                place(&mut result, arg, *piece, start, *into);
                start += piece.map_or(1, |piece| arg.size(piece));
            }
            result
        }
        Op::Take { dim } => take(site, *dim, args, arg_types, ty),
        Op::ScatterAdd { dim } => scatter_add(site, *dim, args, ty),
        Op::Random { stream, dims } => random(site, *stream, dims, args[0].data[0] as u32, ty),
        Op::StopGradient => args[0].clone(),
        Op::Attention(options) => return Ok(attention::forward(site, options, args, arg_types, results)),
        Op::AttentionGradient(options) => {
            return Ok(attention::gradient(site, options, args, arg_types, results));
        }
        Op::Scan(_) | Op::Fused(_) => return Err("has a region".into()),
        Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => return Err("moves data".into()),
    };
    Ok(vec![result.ordered(&ty.dims)])
}

fn iota(site: &Site<'_>, dim: Dim, ty: &Type) -> Tensor {
    if ty.has(dim) {
        let start = site.start(ty, dim);
        return Tensor::from_fn(site.shape(ty), |index| (start + index as u64) as f64);
    }
    Tensor::scalar(loop_index(site, dim) as f64)
}

/// The index of the innermost enclosing loop over `dim`.
fn loop_index(site: &Site<'_>, dim: Dim) -> u64 {
    site.loops.iter().rev().find(|&&(other, _)| other == dim).map_or(0, |&(_, index)| index)
}

fn map(site: &Site<'_>, op: ScalarOp, args: &[&Tensor], arg_types: &[&Type], ty: &Type) -> Tensor {
    let space = site.shape(ty);
    let mut result = site.zeros(ty);
    let strides: Vec<Vec<usize>> = args.iter().map(|arg| arg.strides(&space)).collect();
    let (from, mut next) = (arg_types[0].dtype, 0);
    walk(&space, &strides, |_, at| {
        let mut values = [0.0; 3];
        for (value, (arg, &at)) in values.iter_mut().zip(args.iter().zip(at)) {
            *value = arg.data[at];
        }
        result.data[next] = scalar::apply(op, from, ty.dtype, values);
        next += 1;
    });
    result
}

fn reduce(site: &Site<'_>, op: ReduceOp, dims: &[Dim], arg: &Tensor, ty: &Type) -> Tensor {
    let kept = site.shape(ty);
    let mut result = Tensor::filled(kept.iter().copied(), scalar::identity(op));
    let space: Vec<(Dim, usize)> =
        kept.into_iter().chain(dims.iter().map(|&dim| (dim, arg.size(dim)))).collect();
    walk(&space, &[result.strides(&space), arg.strides(&space)], |_, at| {
        result.data[at[0]] = site.within(scalar::combine(op, result.data[at[0]], arg.data[at[1]]));
    });
    result
}

fn dot(site: &Site<'_>, factors: Factors, left: &Tensor, right: &Tensor, ty: &Type) -> Tensor {
    let [left, right] = [left, right].map(|factor| match factors {
        Factors::AsStored => Cow::Borrowed(factor),
        Factors::Tf32 => {
            let mut rounded = factor.clone();
            rounded.data.iter_mut().for_each(|value| *value = site.tf32(*value));
            Cow::Owned(rounded)
        }
    });
    let mut result = site.zeros(ty);
    let mut space = site.shape(ty);
    space.extend(left.shape().into_iter().filter(|&(dim, _)| !ty.has(dim)));
    walk(&space, &[result.strides(&space), left.strides(&space), right.strides(&space)], |_, at| {
        result.data[at[0]] = site.within(result.data[at[0]] + left.data[at[1]] * right.data[at[2]]);
    });
    result
}

fn slice(site: &Site<'_>, dim: Dim, start: usize, into: Option<Dim>, arg: &Tensor, ty: &Type) -> Tensor {
    let mut result = site.zeros(ty);
    let space = site.shape(ty);
    let mut strides = arg.strides(&space);
    if let Some(at) = into.and_then(|into| ty.position(into)) {
        strides[at] = arg.stride(dim);
    }
    let base = start * arg.stride(dim);
    walk(&space, &[result.strides(&space), strides], |_, at| {
        result.data[at[0]] = arg.data[base + at[1]];
    });
    result
}

/// Writes `arg` into `result` at `start` along `into`, which its own dimension `dim` becomes.
fn place(result: &mut Tensor, arg: &Tensor, dim: Option<Dim>, start: usize, into: Dim) {
    let space = arg.shape();
    let as_result = |&(at, size): &(Dim, usize)| (if Some(at) == dim { into } else { at }, size);
    let strides = result.strides(&space.iter().map(as_result).collect::<Vec<_>>());
    let base = start * result.stride(into);
    walk(&space, &[strides, arg.strides(&space)], |_, at| result.data[base + at[0]] = arg.data[at[1]]);
}

fn take(site: &Site<'_>, dim: Dim, args: &[&Tensor], arg_types: &[&Type], ty: &Type) -> Tensor {
    let (table, indices) = (args[0], args[1]);
    let rows = table.size(dim);
    let start = site.start(arg_types[0], dim) as f64;
    let mut result = site.zeros(ty);
    let space = site.shape(ty);
    walk(&space, &[result.strides(&space), table.strides(&space), indices.strides(&space)], |_, at| {
        let index = indices.data[at[2]];
        let row = index - start;
        if row >= 0.0 && row < rows as f64 && index < site.program.dims[dim].size as f64 {
            result.data[at[0]] = table.data[at[1] + row as usize * table.stride(dim)];
        }
    });
    result
}

fn scatter_add(site: &Site<'_>, dim: Dim, args: &[&Tensor], ty: &Type) -> Tensor {
    let (updates, indices) = (args[0], args[1]);
    let mut result = site.zeros(ty);
    let (rows, stride) = (site.size(ty, dim), result.stride(dim));
    let start = site.start(ty, dim) as f64;
    let space = updates.shape();
    walk(&space, &[result.strides(&space), updates.strides(&space), indices.strides(&space)], |_, at| {
        let index = indices.data[at[2]];
        let row = index - start;
        if row >= 0.0 && row < rows as f64 && index < site.program.dims[dim].size as f64 {
            let sum = &mut result.data[at[0] + row as usize * stride];
            *sum = site.within(*sum + updates.data[at[1]]);
        }
    });
    result
}

fn random(site: &Site<'_>, stream: u32, dims: &[Dim], step: u32, ty: &Type) -> Tensor {
    let space = site.shape(ty);
    let mut result = site.zeros(ty);
    let mut next = 0;
    walk(&space, &[], |coordinates, _| {
        let index = dims.iter().fold(0_u64, |index, &dim| {
            let coordinate = match ty.position(dim) {
                Some(at) => site.start(ty, dim) + coordinates[at] as u64,
                None => loop_index(site, dim),
            };
            index * site.program.dims[dim].size + coordinate
        });
        result.data[next] = f64::from(uniform(random_bits(site.seed, step, stream, index)));
        next += 1;
    });
    result
}
