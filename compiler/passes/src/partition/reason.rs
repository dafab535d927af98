//! Says why a value moves: where it is and by which step, who needs it elsewhere and by which step.

use super::assign::describe;
use super::propagate::Chosen;
use super::realise::{Need, Realiser};
use dtlc_ir::{Axis, Inst, Phase, Placement, Value};

impl Realiser<'_> {
    /// A need in the phase that the value was made in.
    pub(super) fn need_of_born(&self, value: Value, why: &str) -> Need {
        let phase = self.born[value].unwrap_or(Phase::Forward);
        Need { phase, origin: self.program.values[value].origin, why: why.to_string() }
    }

    pub(super) fn need_of_inst(
        &self,
        inst: &Inst,
        chosen: &[Chosen],
        arg: Value,
        target: &Placement,
    ) -> Need {
        let origin = inst
            .results
            .first()
            .map_or(self.program.no_origin(), |&result| self.program.values[result].origin);
        let current = &self.program.ty(arg).placement;
        if current == target {
            return Need { phase: inst.phase, origin, why: String::new() };
        }
        let what = match inst.results.first() {
            Some(&result) => format!("`{}` to {}", inst.op.name(), describe(&self.program, result)),
            None => format!("`{}`", inst.op.name()),
        };
        let differs = |choice: &&Chosen| {
            let axes = &self.decided.entries[choice.entry].axes;
            axes.iter().any(|&axis| {
                current.dim_on(axis) != target.dim_on(axis)
                    || current.partial_on(axis) != target.partial_on(axis)
            })
        };
        let split = chosen.iter().find(differs).map(|choice| {
            let decisions = self.decisions(inst.phase);
            let entry = &decisions.entries[choice.entry];
            let dim = decisions.of(choice.from).iter().find(|held| held.entry == choice.entry);
            let dim = dim.map_or("?", |held| self.program.dims[held.dim].name.as_str());
            let axes = decisions.mesh.display(&entry.axes);
            format!(", which is split by {dim}@{axes} (step `{}`)", decisions.step_name(choice.entry))
        });
        Need { phase: inst.phase, origin, why: format!("by {what}{}", split.unwrap_or_default()) }
    }

    /// Why a value moves.
    pub(super) fn reason(&self, source: Value, target: &Placement, need: &Need) -> String {
        let from = &self.program.ty(source).placement;
        let name = describe(&self.program, source);
        let because = self.decided.of(source).iter().find(|assigned| {
            let axes = &self.decided.entries[assigned.entry].axes;
            axes.iter().any(|&axis| {
                from.dim_on(axis) == Some(assigned.dim) && target.dim_on(axis) != from.dim_on(axis)
            })
        });
        let because = because.map(|held| format!(" (step `{}`)", self.decided.step_name(held.entry)));
        format!(
            "{name} is {}{} and is needed {} {}",
            self.placement_text(from, target),
            because.unwrap_or_default(),
            self.placement_text(target, from),
            need.why
        )
    }

    /// What a placement says of the axes on which it differs from another.
    fn placement_text(&self, placement: &Placement, other: &Placement) -> String {
        let mesh = &self.program.mesh;
        let mut words: Vec<String> = Vec::new();
        let mut whole: Vec<Axis> = Vec::new();
        let mut partial: Vec<Axis> = Vec::new();
        for axis in mesh.axes.keys() {
            let same = placement.dim_on(axis) == other.dim_on(axis)
                && placement.partial_on(axis) == other.partial_on(axis);
            match (placement.dim_on(axis), placement.partial_on(axis)) {
                _ if same => {}
                (Some(dim), _) => {
                    words.push(format!("{}@{}", self.program.dims[dim].name, mesh.display(&[axis])))
                }
                (None, Some(_)) => partial.push(axis),
                (None, None) => whole.push(axis),
            }
        }
        if !partial.is_empty() {
            words.push(format!("partial over {}", mesh.display(&partial)));
        }
        if !whole.is_empty() {
            words.push(format!("whole on {}", mesh.display(&whole)));
        }
        words.join(", ")
    }
}
