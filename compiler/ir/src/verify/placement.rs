//! How operations may act on sharded dimensions: each rank computes on its own parts alone.
//!
//! An operation runs over coordinates. Where two operands share one, they must be split alike along it;
//! where a result lacks a coordinate that is split, each rank has only a part of the result, and the
//! result is partial there. Axis by axis the rest follows, as no type may use an axis twice.

use crate::dim::{Axis, Dim};
use crate::op::{Attention, Op};
use crate::program::Program;
use crate::types::{Partial, ReduceOp, Type};

/// Whether a type by itself makes sense: each axis used once, each shard on a dim that the type has and
/// that divides (or may be padded).
pub(super) fn well_formed(program: &Program, ty: &Type) -> Result<(), String> {
    let placement = &ty.placement;
    let shards = placement.shards().iter().map(|shard| shard.axis);
    let used: Vec<Axis> = shards.chain(placement.partials().iter().map(|partial| partial.axis)).collect();
    for (at, &axis) in used.iter().enumerate() {
        let name = program.mesh.axes.get(axis).map_or("?".into(), |info| info.full_name());
        require(!used[..at].contains(&axis), || format!("axis `{name}` is used twice in one type"))?;
    }
    for shard in placement.shards() {
        let info = &program.dims[shard.dim];
        require(ty.has(shard.dim), || format!("`{}` is sharded in a type that lacks it", info.name))?;
        let ways = program.mesh.group_size(placement.axes_of(shard.dim));
        require(info.size.is_multiple_of(ways) || info.pad, || {
            format!("`{}` of size {} doesn't divide {ways} ways", info.name, info.size)
        })?;
    }
    Ok(())
}

/// Checks the sharded dimensions of an operation that runs on each rank by itself.
///
/// Returns for each result the axes along which it comes out partial because a coordinate that it lacks
/// is split.
pub(super) fn born(
    program: &Program,
    op: &Op,
    args: &[&Type],
    results: &[&Type],
) -> Result<Vec<Vec<Partial>>, String> {
    let mut check = Check { program, args, results, born: vec![Vec::new(); results.len()] };
    check.op(op)?;
    Ok(check.born)
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

struct Check<'a> {
    program: &'a Program,
    args: &'a [&'a Type],
    results: &'a [&'a Type],
    born: Vec<Vec<Partial>>,
}

impl Check<'_> {
    fn op(&mut self, op: &Op) -> Result<(), String> {
        match op {
            // Any part of these can be made from its coordinates.
            Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } => Ok(()),
            Op::Map(_) | Op::StopGradient => self.kept(&[]),
            Op::Reduce { op, dims: _ } => {
                self.kept(&[])?;
                self.gone(self.args[0], *op)
            }
            Op::Dot(_) => {
                self.kept(&[])?;
                self.gone(self.args[0], ReduceOp::Sum)
            }
            Op::Rename { from, to } => {
                self.kept(&[*to])?;
                self.alike(&[(self.args[0], *from), (self.results[0], *to)])
            }
            Op::Split { dim, into } => {
                self.kept(into)?;
                self.factors(self.args[0], *dim, self.results[0], into)
            }
            Op::Merge { dims, into } => {
                self.kept(&[*into])?;
                self.factors(self.results[0], *into, self.args[0], dims)
            }
            Op::Slice { dim, start: _, into } => self.cut(&[Some(*dim)], *into),
            Op::Pad { dim, start: _, into } => self.cut(&[*dim], Some(*into)),
            Op::Concat { pieces, into } => self.cut(pieces, Some(*into)),
            Op::Take { dim } => {
                self.kept(&[])?;
                let axes = self.args[0].placement.axes_of(*dim);
                self.born[0].extend(axes.map(|axis| Partial { axis, op: ReduceOp::Sum }));
                Ok(())
            }
            Op::ScatterAdd { dim } => {
                // A result sharded along `dim` keeps its own rows of what every rank adds.
                self.kept(&[*dim])?;
                self.gone(self.args[1], ReduceOp::Sum)
            }
            Op::Attention(attention) => self.attention(attention, &[]),
            Op::AttentionGradient(attention) => self.attention(attention, &[1, 2]),
            Op::Scan(_) | Op::Fused(_) => Err("the placements of its body decide".into()),
            Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => Err("moves data".into()),
        }
    }

    /// Each result dim but `fresh` ones is split as in the arguments that have it.
    fn kept(&self, fresh: &[Dim]) -> Result<(), String> {
        for result in self.results {
            for &dim in result.dims.iter().filter(|dim| !fresh.contains(dim)) {
                let parts: Vec<(&Type, Dim)> =
                    self.args.iter().filter(|arg| arg.has(dim)).map(|arg| (*arg, dim)).collect();
                // A result may be split along what it is broadcast over.
                self.alike(&parts)?;
                if let Some(&part) = parts.first() {
                    self.alike(&[part, (result, dim)])?;
                }
            }
        }
        Ok(())
    }

    /// `dim` is split alike in all arguments that have it, and `results`, which lack it, come out partial.
    fn reduced(&mut self, dim: Dim, op: ReduceOp, results: &[usize]) -> Result<(), String> {
        let parts: Vec<(&Type, Dim)> =
            self.args.iter().filter(|arg| arg.has(dim)).map(|arg| (*arg, dim)).collect();
        self.alike(&parts)?;
        for axis in parts.iter().take(1).flat_map(|(ty, dim)| ty.placement.axes_of(*dim)) {
            for &result in results {
                self.born[result].push(Partial { axis, op });
            }
        }
        Ok(())
    }

    /// What `arg` has and the result lacks is combined.
    fn gone(&mut self, arg: &Type, op: ReduceOp) -> Result<(), String> {
        let result = self.results[0];
        arg.dims.iter().filter(|&&dim| !result.has(dim)).try_for_each(|&dim| self.reduced(dim, op, &[0]))
    }

    /// `pieces`, one an argument, are cut out of a dim or put together to one, `into` in the result.
    fn cut(&self, pieces: &[Option<Dim>], into: Option<Dim>) -> Result<(), String> {
        self.kept(into.as_slice())?;
        into.map_or(Ok(()), |into| self.whole(self.results[0], into))?;
        let mut pieces = self.args.iter().zip(pieces);
        pieces.try_for_each(|(arg, piece)| piece.map_or(Ok(()), |piece| self.whole(arg, piece)))
    }

    /// The same axes in the same order split each of these dims.
    fn alike(&self, parts: &[(&Type, Dim)]) -> Result<(), String> {
        let axes = |(ty, dim): &(&Type, Dim)| ty.placement.axes_of(*dim).collect::<Vec<Axis>>();
        for window in parts.windows(2) {
            let (one, other) = (axes(&window[0]), axes(&window[1]));
            require(one == other, || {
                let name = |part: &(&Type, Dim)| self.program.dims[part.1].name.clone();
                let show = |axes: &[Axis]| match axes {
                    [] => "nothing".to_string(),
                    _ => axes
                        .iter()
                        .map(|&axis| self.program.mesh.axes[axis].full_name())
                        .collect::<Vec<_>>()
                        .join(", "),
                };
                let (first, second) = (name(&window[0]), name(&window[1]));
                format!("`{first}` split over {} meets `{second}` split over {}", show(&one), show(&other))
            })?;
        }
        Ok(())
    }

    fn whole(&self, ty: &Type, dim: Dim) -> Result<(), String> {
        require(ty.placement.axes_of(dim).next().is_none(), || {
            format!("`{}` is cut, so it can't be sharded", self.program.dims[dim].name)
        })
    }

    /// The axes of `dim` in `product` lie on its factors, major first; a factor is used up before the
    /// next is split.
    fn factors(&self, product: &Type, dim: Dim, ty: &Type, factors: &[Dim]) -> Result<(), String> {
        let name = &self.program.dims[dim].name;
        let axes: Vec<Axis> = factors.iter().flat_map(|&factor| ty.placement.axes_of(factor)).collect();
        require(axes.iter().copied().eq(product.placement.axes_of(dim)), || {
            format!("the factors of `{name}` aren't split as it is")
        })?;
        let mut used_up = true;
        for &factor in factors {
            let ways = self.program.mesh.group_size(ty.placement.axes_of(factor));
            let size = self.program.dims[factor].size;
            require(ways == 1 || (used_up && size.is_multiple_of(ways)), || {
                format!("the parts of `{name}` aren't those of its factors")
            })?;
            used_up = used_up && ways == size;
        }
        Ok(())
    }

    /// Batch dims, groups and queries may be split; `partial` are the results that lack the last two.
    fn attention(&mut self, attention: &Attention, partial: &[usize]) -> Result<(), String> {
        let Attention { query, key, head, value, .. } = *attention;
        for dim in [key, head, value] {
            for ty in self.args.iter().chain(self.results) {
                require(ty.placement.axes_of(dim).next().is_none(), || {
                    format!("`{}` can't be split in an attention", self.program.dims[dim].name)
                })?;
            }
        }
        self.kept(&[])?;
        let over_queries: Vec<Dim> =
            self.args[0].dims.iter().copied().filter(|&dim| !self.args[1].has(dim) && dim != head).collect();
        debug_assert!(over_queries.contains(&query));
        over_queries.into_iter().try_for_each(|dim| self.reduced(dim, ReduceOp::Sum, partial))
    }
}
