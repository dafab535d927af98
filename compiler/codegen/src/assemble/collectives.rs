//! Collectives: which blocks of which tensors travel over which axes.

use super::place::{axis_id, dtype};
use super::{Assembler, Result, permute};
use dtlc_ir::{Axis, Collective, CollectiveKind, Dim, Inst, ReduceOp, Type, Value};
use dtlc_runtime::program as target;
use target::{CollectiveTensor, Part, Position, Transfer};

impl Assembler<'_> {
    pub(super) fn collective(&mut self, inst: &Inst, collective: &Collective) -> Result<target::Operation> {
        let reduction = match collective.reduce {
            ReduceOp::Sum => target::Reduction::Sum,
            ReduceOp::Max => target::Reduction::Max,
        };
        let kind = match collective.kind {
            CollectiveKind::AllGather => target::CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter => target::CollectiveKind::ReduceScatter(reduction),
            CollectiveKind::AllReduce => target::CollectiveKind::AllReduce(reduction),
            CollectiveKind::AllToAll => target::CollectiveKind::AllToAll,
            CollectiveKind::Permute => target::CollectiveKind::Permute(self.permutation(inst, collective)?),
        };
        let mut axes: Option<Vec<Axis>> = None;
        let mut tensors = Vec::new();
        for (&source, &target) in inst.args.iter().zip(&inst.results) {
            let (transfer, order) = self.transfer(inst, collective, source, target)?;
            if axes.get_or_insert_with(|| order.clone()) != &order {
                return Err(self.unforeseen(inst, "tensors that order the axes differently"));
            }
            tensors.push(CollectiveTensor {
                source: self.buffer(source)?,
                target: self.buffer(target)?,
                dtype: dtype(self.program.ty(source).dtype),
                transfer,
            });
        }
        let axes = axes.unwrap_or_default().into_iter().map(axis_id).collect();
        let flight = target::FlightId(self.started);
        self.started += 1;
        self.flights.extend(inst.results.iter().map(|&result| (result, flight)));
        Ok(target::Operation::Collective(target::Collective { flight, kind, axes, tensors }))
    }

    pub(super) fn done(&mut self, inst: &Inst) -> Result<target::Operation> {
        let flight = inst.args.first().and_then(|arg| self.flights.get(arg)).copied();
        flight.map(target::Operation::Done).ok_or_else(|| self.unforeseen(inst, "nothing is in flight"))
    }

    /// How one tensor's blocks lie, and the order of the axes that numbers them.
    fn transfer(
        &self,
        inst: &Inst,
        collective: &Collective,
        source: Value,
        target: Value,
    ) -> Result<(Transfer, Vec<Axis>)> {
        let (from, to) = (self.program.ty(source), self.program.ty(target));
        let unforeseen = |message: &str| self.unforeseen(inst, message);
        match collective.kind {
            CollectiveKind::AllReduce | CollectiveKind::Permute => {
                Ok((Transfer::whole(self.local_elements(source)), collective.axes.to_vec()))
            }
            CollectiveKind::AllGather => {
                let (dim, axes) =
                    minor_shard(from, to, collective).ok_or_else(|| unforeseen("no gathered dim"))?;
                let (outer, _) = self.around(source, dim);
                Ok((Transfer::all_gather(outer, self.part(dim, source, target)), axes))
            }
            CollectiveKind::ReduceScatter => {
                let (dim, axes) =
                    minor_shard(to, from, collective).ok_or_else(|| unforeseen("no scattered dim"))?;
                let (outer, _) = self.around(target, dim);
                Ok((Transfer::reduce_scatter(outer, self.part(dim, target, source)), axes))
            }
            CollectiveKind::AllToAll => {
                let gathered = minor_shard(from, to, collective);
                let split = minor_shard(to, from, collective);
                let (Some((gathered, axes)), Some((split, other))) = (gathered, split) else {
                    return Err(unforeseen("an all-to-all of one dimension"));
                };
                if axes != other {
                    return Err(unforeseen("an all-to-all that reorders axes"));
                }
                Ok((self.exchange(source, target, gathered, split), axes))
            }
        }
    }

    /// The one permutation that all tensors of a call go through.
    fn permutation(&self, inst: &Inst, collective: &Collective) -> Result<target::Permutation> {
        let mut tensors = inst.args.iter().zip(&inst.results).map(|(&source, &target)| {
            let (from, to) = (self.program.ty(source), self.program.ty(target));
            permute::sources(self.program, &collective.axes, from, to)
        });
        let sources = tensors.next().flatten().ok_or_else(|| self.unforeseen(inst, "no permutation"))?;
        if tensors.any(|other| other.as_ref() != Some(&sources)) {
            return Err(self.unforeseen(inst, "tensors that move differently in one permutation"));
        }
        Ok(target::Permutation { sources })
    }

    fn exchange(&self, source: Value, target: Value, gathered: Dim, split: Dim) -> Transfer {
        // Strides do not tell: a dimension of which a rank holds one element has that of the one around it.
        let ty = self.program.ty(source);
        let split_outside = ty.position(split) < ty.position(gathered);
        let (outside, inside) = if split_outside { (split, gathered) } else { (gathered, split) };
        // The sharded one of the two sides holds the part, the other one the whole.
        let sides = |dim| if dim == split { (target, source) } else { (source, target) };
        let (_, behind) = self.around(source, inside);
        let (outer, row) = self.around(source, outside);
        let between = row / (self.extent(source, inside) * behind).max(1);
        let part = |dim, rest: u64| {
            let (sharded, whole) = sides(dim);
            Part { block: self.extent(sharded, dim) * rest, whole: self.extent(whole, dim) * rest }
        };
        let position = if split_outside { Position::SplitOutside } else { Position::SplitInside };
        Transfer::all_to_all(outer, part(outside, between), part(inside, behind), position)
    }

    /// A dim and all behind it, where it is sharded and where it is whole.
    fn part(&self, dim: Dim, sharded: Value, whole: Value) -> Part {
        let (_, behind) = self.around(sharded, dim);
        Part { block: behind * self.extent(sharded, dim), whole: behind * self.extent(whole, dim) }
    }

    /// Local elements in front of a dim and behind it.
    fn around(&self, value: Value, dim: Dim) -> (u64, u64) {
        let inner = self.stride(value, dim).unwrap_or(1);
        let outer = self.local_elements(value) / (inner * self.extent(value, dim)).max(1);
        (outer, inner)
    }
}

/// The dim that `sharded` has on all of the collective's axes, as its minor ones, and `whole` has not; with the axes
/// in the order in which they split it.
fn minor_shard(sharded: &Type, whole: &Type, collective: &Collective) -> Option<(Dim, Vec<Axis>)> {
    sharded.dims.iter().find_map(|&dim| {
        let axes: Vec<Axis> = sharded.placement.axes_of(dim).collect();
        let kept: Vec<Axis> = whole.placement.axes_of(dim).collect();
        let minor = axes.strip_prefix(kept.as_slice())?;
        let all =
            minor.len() == collective.axes.len() && minor.iter().all(|axis| collective.axes.contains(axis));
        all.then(|| (dim, minor.to_vec()))
    })
}
