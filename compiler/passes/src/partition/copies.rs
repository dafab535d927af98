//! Reshards in realisation: a value is brought to a place once in each part of the step, from the copy that
//! it is cheapest to bring it from, and what doesn't change in a loop is brought before it.

use super::propagate::is_update;
use super::realise::{Freedom, Need, Realiser};
use super::reshard::cost;
use dtlc_ir::{Inst, Op, Phase, Placement, Reason, Role, Value};
use smallvec::SmallVec;

/// Another place that a value was brought to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub value: Value,
    class: Class,
    /// Whether the value itself is a partial sum, which this completes.
    completes: bool,
    pub depth: usize,
}

/// Parts of the step that share no gathered values: what the forward pass gathered is never kept for the
/// backward pass. A completed sum is shared by all, as it takes no more memory than the partial one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Forward,
    Backward,
    Update,
}

impl Realiser<'_> {
    /// The value brought to `target`: itself, a copy that exists, or a new one by a reshard.
    pub(super) fn reshard(&mut self, value: Value, target: &Placement, need: &Need) -> Value {
        if self.program.ty(value).placement == *target {
            return value;
        }
        if self.freedom[value] == Freedom::Zeros {
            return self.zeros(value, target, need.phase);
        }
        let phase = self.phase_of_move(value, need.phase);
        // What doesn't change in a loop is moved once, before it. Parameters are not: a block's gathered
        // weights live only while it runs.
        let here = self.frames.len() - 1;
        let depth = if self.program.values[value].role == Role::Parameter { here } else { self.depth[value] };
        let class = class(phase);
        let usable = |copy: &&Copy| (copy.class == class || copy.completes) && copy.depth <= depth;
        if let Some(copy) =
            self.copies[value].iter().filter(usable).find(|copy| self.is_at(copy.value, target))
        {
            return copy.value;
        }
        let usable_copies: Vec<Value> =
            self.copies[value].iter().filter(usable).map(|copy| copy.value).collect();
        let source = self.cheapest(value, &usable_copies, target);
        let origin = if self.is_whole_sum(source) { need.origin } else { self.program.values[source].origin };
        let info = self.program.values[value].clone();
        let moved = self.program.add_value(info.ty.with_placement(target.clone()), origin);
        self.program.values[moved].name = info.name;
        self.program.values[moved].role = info.role;
        self.program.values[moved].gradient_of = info.gradient_of;
        let inst = Inst {
            op: Op::Reshard(self.reason_to_move(value, source, target, need)),
            args: SmallVec::from_slice(&[source]),
            results: SmallVec::from_slice(&[moved]),
            phase,
        };
        self.depth[moved] = depth;
        self.born[moved] = self.born[value];
        self.frames[depth].push(inst);
        let completes = !self.is_whole_sum(source) && target.partials().is_empty();
        self.copies[value].push(Copy { value: moved, class, completes, depth });
        self.copied.push(value);
        moved
    }

    /// The reason for moving a value from the copy at `source`, with the leave that the plan gives for it.
    pub(super) fn reason_to_move(
        &self,
        value: Value,
        source: Value,
        target: &Placement,
        need: &Need,
    ) -> Reason {
        Reason { text: self.reason(source, target, need), leave_to_gather: self.leave.contains(value) }
    }

    fn is_at(&self, value: Value, target: &Placement) -> bool {
        self.program.ty(value).placement == *target
    }

    fn cheapest(&self, value: Value, copies: &[Value], target: &Placement) -> Value {
        let price = |source: Value| cost(&self.program, self.program.ty(source), target);
        let mut best = (price(value), value);
        for &copy in copies {
            let price = price(copy);
            let is_cheaper = match (price, best.0) {
                (Some(new), Some(old)) => new < old,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if is_cheaper {
                best = (price, copy);
            }
        }
        best.1
    }

    /// The phase that moving a value counts to.
    pub(super) fn phase_of_move(&self, value: Value, phase: Phase) -> Phase {
        let role = self.program.values[value].role;
        let born = self.born[value].unwrap_or(Phase::Forward);
        match phase {
            Phase::Forward => Phase::Forward,
            Phase::Recompute | Phase::Backward if role == Role::Parameter => Phase::Backward,
            Phase::Recompute => Phase::Recompute,
            Phase::Backward => match born {
                Phase::Forward | Phase::Recompute if role == Role::Activation => Phase::Recompute,
                Phase::Forward | Phase::Recompute | Phase::Backward | Phase::Gradient | Phase::Update => {
                    Phase::Backward
                }
            },
            Phase::Gradient | Phase::Update if role == Role::Gradient && !is_update(born) => Phase::Gradient,
            Phase::Gradient | Phase::Update => phase,
        }
    }

    /// Forgets the copies that were made inside the block that ends.
    pub(super) fn forget_copies(&mut self, depth: usize) {
        for value in std::mem::take(&mut self.copied) {
            self.copies[value].retain(|copy| copy.depth < depth);
            if !self.copies[value].is_empty() {
                self.copied.push(value);
            }
        }
    }
}

fn class(phase: Phase) -> Class {
    match phase {
        Phase::Forward => Class::Forward,
        Phase::Recompute | Phase::Backward => Class::Backward,
        Phase::Gradient | Phase::Update => Class::Update,
    }
}
