//! Partial sums in realisation: which instructions pass them on, where they are resolved, and sums over
//! the iterations of a loop.

use super::assign::describe;
use super::propagate::{Chosen, is_update};
use super::realise::{Freedom, Need, Realiser};
use dtlc_ir::{Axis, Dim, Inst, Op, Placement, ReduceOp, Role, ScalarOp, Type, Value};
use smallvec::SmallVec;

impl Realiser<'_> {
    /// The axes on which the arguments' partial sums pass through to the results. Factors on those axes
    /// are given up: what comes later resolves the sum and splits at once.
    pub(super) fn passing(&self, inst: &Inst, chosen: &mut SmallVec<[Chosen; 4]>) -> SmallVec<[Axis; 2]> {
        let mut axes: SmallVec<[Axis; 2]> = SmallVec::new();
        for &arg in &inst.args {
            for partial in self.program.ty(arg).placement.partials() {
                if !axes.contains(&partial.axis) && self.passes(inst, partial.axis) {
                    axes.push(partial.axis);
                }
            }
        }
        loop {
            let entry_axes = |choice: &Chosen| &self.decided.entries[choice.entry].axes;
            let torn = chosen.iter().find(|choice| {
                let inside = entry_axes(choice).iter().filter(|axis| axes.contains(axis)).count();
                inside > 0 && inside < entry_axes(choice).len()
            });
            let Some(torn) = torn else { break };
            let torn = entry_axes(torn).clone();
            axes.retain(|axis| !torn.contains(axis));
        }
        chosen
            .retain(|choice| !self.decided.entries[choice.entry].axes.iter().any(|axis| axes.contains(axis)));
        axes
    }

    /// Whether an instruction is linear in all that is partial on `axis`, and nothing else it reads would
    /// have to be.
    fn passes(&self, inst: &Inst, axis: Axis) -> bool {
        let partial = |arg: Value| self.can_stay_partial(inst, arg, axis);
        let apart = |arg: Value| {
            let placement = &self.program.ty(arg).placement;
            let decided = self.decisions(inst.phase).placement(arg);
            placement.partial_on(axis).is_none()
                && placement.dim_on(axis).is_none()
                && decided.dim_on(axis).is_none()
        };
        match &inst.op {
            Op::Map(op) => {
                self.map_passes(*op, &inst.args, self.program.ty(inst.results[0]), &partial, &apart)
            }
            Op::Reduce { op: ReduceOp::Sum, .. }
            | Op::Rename { .. }
            | Op::Split { .. }
            | Op::Merge { .. } => partial(inst.args[0]),
            Op::Slice { .. } | Op::Pad { .. } | Op::StopGradient => partial(inst.args[0]),
            Op::Reduce { op: ReduceOp::Max, .. } | Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } => {
                false
            }
            // Linear too, but a product usually makes more of less: the sum is cheaper before.
            Op::Dot(_) => {
                let (left, right) = (inst.args[0], inst.args[1]);
                let lasts = |arg: Value| self.lasting[arg].contains(&axis) && partial(arg);
                lasts(left) && apart(right) || apart(left) && lasts(right)
            }
            Op::Concat { .. } => inst.args.iter().all(|&arg| partial(arg)),
            Op::ScatterAdd { .. } => partial(inst.args[0]) && apart(inst.args[1]),
            Op::Take { .. } => false,
            Op::Attention(_) | Op::AttentionGradient(_) | Op::Scan(_) | Op::Fused(_) => false,
            Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => false,
        }
    }

    /// The same for a scalar function, by which arguments may stay partial and which have nothing on the axis.
    fn map_passes(
        &self,
        op: ScalarOp,
        args: &[Value],
        result: &Type,
        partial: &dyn Fn(Value) -> bool,
        apart: &dyn Fn(Value) -> bool,
    ) -> bool {
        match op {
            ScalarOp::Add | ScalarOp::Sub => args.iter().all(|&arg| partial(arg)),
            ScalarOp::Neg => partial(args[0]),
            // Between floats; what is rounded to whole numbers has to be whole before.
            ScalarOp::Cast => {
                partial(args[0]) && result.dtype.is_float() && self.program.ty(args[0]).dtype.is_float()
            }
            ScalarOp::Mul => {
                let (left, right) = (args[0], args[1]);
                partial(left) && apart(right) || apart(left) && partial(right)
            }
            ScalarOp::Div => result.dtype.is_float() && partial(args[0]) && apart(args[1]),
            ScalarOp::Select => {
                let zero = |arg: Value| self.freedom[arg] == Freedom::Zeros && apart(arg);
                let (condition, one, other) = (args[0], args[1], args[2]);
                let branches = partial(one) && (partial(other) || zero(other)) || zero(one) && partial(other);
                apart(condition) && branches
            }
            ScalarOp::Abs | ScalarOp::Exp | ScalarOp::Log | ScalarOp::Sqrt | ScalarOp::Rsqrt => false,
            ScalarOp::Tanh | ScalarOp::Sigmoid | ScalarOp::Erf | ScalarOp::Sin | ScalarOp::Cos => false,
            ScalarOp::Floor | ScalarOp::Not | ScalarOp::Rem | ScalarOp::Pow | ScalarOp::Min => false,
            ScalarOp::Max | ScalarOp::Equal | ScalarOp::NotEqual | ScalarOp::Less => false,
            ScalarOp::LessEqual | ScalarOp::Greater | ScalarOp::GreaterEqual => false,
            ScalarOp::And | ScalarOp::Or => false,
        }
    }

    /// Whether a partial argument has this as its only use. A parameter's gradient is complete before
    /// the update.
    fn can_stay_partial(&self, inst: &Inst, arg: Value, axis: Axis) -> bool {
        let info = &self.program.values[arg];
        let completes =
            is_update(inst.phase) && !self.born[arg].is_some_and(is_update) && info.role == Role::Gradient;
        let lasts = self.uses[arg] == 1 || self.lasting[arg].contains(&axis);
        info.ty.placement.partial_on(axis) == Some(ReduceOp::Sum) && lasts && !completes
    }

    /// Gradients of keys and values that several groups of queries share are partial where the groups are
    /// on different ranks. All that follows is linear in them and smaller than the sum would save, so they
    /// stay partial up to the gradient of the block's input, which is summed anyway, and that of the weight.
    pub(super) fn note_lasting(&mut self, inst: &Inst, passing: &[Axis]) {
        if let Op::AttentionGradient(_) = inst.op {
            for &result in &inst.results {
                let partials = self.program.ty(result).placement.partials();
                self.lasting[result] = partials.iter().map(|partial| partial.axis).collect();
            }
        } else if !matches!(inst.op, Op::Dot(_)) {
            let lasts = |axis: &Axis| inst.args.iter().any(|&arg| self.lasting[arg].contains(axis));
            let axes: SmallVec<[Axis; 2]> = passing.iter().copied().filter(lasts).collect();
            inst.results.iter().for_each(|&result| self.lasting[result] = axes.clone());
        }
    }

    /// A value's placement once its partial sums are resolved to what is decided for it.
    pub(super) fn resolved(&self, value: Value) -> Placement {
        let mut placement = self.program.ty(value).placement.clone();
        let partials: SmallVec<[Axis; 2]> = placement.partials().iter().map(|partial| partial.axis).collect();
        partials.iter().for_each(|&axis| placement.remove_axis(axis));
        for assigned in self.decided.of(value) {
            let axes = &self.decided.entries[assigned.entry].axes;
            if axes.iter().all(|axis| partials.contains(axis))
                && (self.program.dims[assigned.dim].pad || self.divides(&placement, assigned.dim, axes))
            {
                axes.iter().for_each(|&axis| placement.add_shard(assigned.dim, axis));
            }
        }
        placement
    }

    /// Where a value goes that leaves its block: a partial sum stays one if nothing else uses it, and a
    /// parameter's gradient goes to its store.
    pub(super) fn leaving(&self, value: Value) -> Placement {
        let ty = self.program.ty(value);
        let is_sum = ty.placement.partials().iter().all(|partial| partial.op == ReduceOp::Sum);
        let mut placement =
            if self.uses[value] == 1 && is_sum { ty.placement.clone() } else { self.resolved(value) };
        let owner = self.owners[value].filter(|_| self.program.values[value].role == Role::Gradient);
        let shards = owner.map(|owner| self.stores.gradients[owner].as_slice()).unwrap_or_default();
        for &(dim, entry) in shards.iter().filter(|shard| ty.has(shard.0)) {
            let axes = &self.decided.entries[entry].axes;
            if axes.iter().all(|&axis| placement.dim_on(axis).is_none()) {
                axes.iter().for_each(|&axis| placement.remove_axis(axis));
                self.make_room(&mut placement, dim, axes);
                axes.iter().for_each(|&axis| placement.add_shard(dim, axis));
            }
        }
        placement
    }

    /// A gradient may be made in more parts than its parameter has in use; where the store's parts on top of
    /// those don't come out even, they take the place of those.
    fn make_room(&self, placement: &mut Placement, dim: Dim, axes: &[Axis]) {
        if !self.divides(placement, dim, axes) {
            let split: Vec<Axis> = placement.axes_of(dim).collect();
            split.into_iter().for_each(|axis| placement.remove_axis(axis));
        }
    }

    /// Whether these axes divide what a placement leaves of a dimension.
    fn divides(&self, placement: &Placement, dim: Dim, axes: &[Axis]) -> bool {
        let parts = self.program.mesh.group_size(placement.axes_of(dim).chain(axes.iter().copied()));
        self.program.dims[dim].size.is_multiple_of(parts)
    }

    /// The arguments of an addition to a sum whose placement is still open: that sum, and what is added.
    pub(super) fn accumulation(&self, inst: &Inst) -> Option<(usize, usize)> {
        if inst.op != Op::Map(ScalarOp::Add) {
            return None;
        }
        let is_sum = |index: usize| self.freedom[inst.args[index]] == Freedom::Sum;
        match (is_sum(0), is_sum(1)) {
            (true, false) => Some((0, 1)),
            (false, true) => Some((1, 0)),
            (true, true) | (false, false) => None,
        }
    }

    /// The sum takes the placement of what is added to it.
    pub(super) fn accumulate(&mut self, mut inst: Inst, sum: usize, added: usize) {
        let target = self.leaving(inst.args[added]);
        let why = format!("by the sum that {} is added to", describe(&self.program, inst.args[added]));
        let need = Need { why, ..self.need_of_born(inst.args[added], "") };
        inst.args[added] = self.reshard(inst.args[added], &target, &need);
        self.settle(inst.args[sum], target.clone());
        self.program.values[inst.results[0]].ty.placement = target;
        self.push(inst);
    }
}
