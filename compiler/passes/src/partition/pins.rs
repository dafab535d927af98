//! Inline placements in realisation. An instruction makes its result where the plan's steps split it; where
//! that is not what the result's own type says, the value moves once, right there, and all its uses see it
//! where its type has it. A partial sum that is pinned is completed in the same movement.

use super::realise::{Need, Realiser};
use dtlc_ir::{Axis, Dim, Inst, Op, Phase, Placement, Value};
use smallvec::SmallVec;

impl Realiser<'_> {
    /// Appends an instruction whose arguments and results are placed, and brings results to their pins.
    pub(super) fn push(&mut self, mut inst: Inst) {
        let phase = inst.phase;
        let mut pinned: SmallVec<[(Value, Value, Placement); 2]> = SmallVec::new();
        for result in &mut inst.results {
            if let Some((made, target)) = self.unpin(*result) {
                pinned.push((made, *result, target));
                *result = made;
            }
        }
        self.append(inst);
        for (made, value, target) in pinned {
            self.move_to_pin(made, value, &target, phase);
        }
    }

    /// Brings a parameter of a loop's body to its pin, at the start of the body. Returns the parameter.
    pub(super) fn enter_pinned(&mut self, param: Value, phase: Phase) -> Value {
        let Some((made, target)) = self.unpin(param) else { return param };
        self.depth[made] = self.frames.len() - 1;
        self.born[made] = self.born[param];
        self.move_to_pin(made, param, &target, phase);
        made
    }

    /// For a value that is not where it is pinned: a value for where it is made, and where it has to be.
    fn unpin(&mut self, value: Value) -> Option<(Value, Placement)> {
        let ty = self.program.ty(value);
        let holds = |axes: &[Axis], dim| axes.iter().all(|&axis| ty.placement.dim_on(axis) == Some(dim));
        let is_met = |&(dim, entry): &(Dim, _)| holds(&self.decided.entries[entry].axes, dim);
        if self.decided.pins(value).iter().all(is_met) {
            return None;
        }
        let mut target = self.decided.placement(value);
        for partial in ty.placement.partials() {
            if target.dim_on(partial.axis).is_none() {
                target.add_partial(partial.axis, partial.op);
            }
        }
        if target == ty.placement {
            return None;
        }
        let info = self.program.values[value].clone();
        let made = self.program.add_value(info.ty, info.origin);
        self.program.values[made].name = info.name;
        self.program.values[made].role = info.role;
        self.uses[made] = 1;
        Some((made, target))
    }

    fn move_to_pin(&mut self, made: Value, value: Value, target: &Placement, phase: Phase) {
        let origin = self.program.values[value].origin;
        let need = Need { phase, origin, why: "by the placement that its type states".to_string() };
        let op = Op::Reshard(self.reason_to_move(value, made, target, &need));
        self.program.values[value].ty.placement = target.clone();
        let (args, results) = (SmallVec::from_slice(&[made]), SmallVec::from_slice(&[value]));
        self.append(Inst { op, args, results, phase: self.phase_of_move(made, phase) });
    }
}
