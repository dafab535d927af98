//! Loops in realisation: where carries, slices and stacks live.
//!
//! A carry has the placement decided for it in the body, but for one that starts as zeros and is only
//! added to: it takes the placement of what is added, so that gradients and losses stay partial sums
//! through all iterations and are resolved once. A slice lives where its stack does, so parameters
//! arrive as they are stored and are gathered in the block that uses them.

use super::error::PlacementError;
use super::realise::{Freedom, Need, Realiser};
use dtlc_ir::{Inst, Op, Phase, Placement, Region, ScalarOp, Scan, Value};

impl Realiser<'_> {
    pub(super) fn scan(&mut self, mut inst: Inst) -> Result<(), PlacementError> {
        let Op::Scan(mut scan) = std::mem::replace(&mut inst.op, Op::StopGradient) else {
            return Err(PlacementError::internal("not a scan"));
        };
        let depth = self.frames.len();
        for index in 0..scan.body.params.len() {
            let (arg, param) = (inst.args[index], scan.body.params[index]);
            self.depth[param] = depth;
            self.born[param] = self.born[arg];
            if index < scan.carries {
                self.enter_carry(&mut inst.args[index], &scan.body, param, inst.phase);
            } else {
                let target = self.resolved(arg);
                let need = self.need_of_born(arg, "by a loop over its slices");
                inst.args[index] = self.reshard(arg, &target, &need);
                self.program.values[param].ty.placement = target;
            }
        }
        self.frames.push(Vec::new());
        for index in scan.carries..scan.body.params.len() {
            scan.body.params[index] = self.enter_pinned(scan.body.params[index], inst.phase);
        }
        for body_inst in std::mem::take(&mut scan.body.insts) {
            self.inst(body_inst)?;
        }
        self.leave_carries(&mut scan);
        let initial_stacks = self.leave_outputs(&mut scan, &inst.args);
        scan.body.insts = self.frames.pop().ok_or_else(|| PlacementError::internal("no frame left"))?;
        self.forget_copies(depth);
        for index in 0..scan.carries {
            let placement = self.program.ty(scan.body.params[index]).placement.clone();
            inst.args[index] = self.start_at(inst.args[index], &placement, inst.phase);
        }
        for (index, placement) in initial_stacks {
            inst.args[index] = self.start_at(inst.args[index], &placement, inst.phase);
        }
        for (&value, &result) in scan.body.yields.iter().zip(&inst.results) {
            self.program.values[result].ty.placement = self.program.ty(value).placement.clone();
            self.born[result] = self.born[value];
        }
        inst.op = Op::Scan(scan);
        self.push(inst);
        Ok(())
    }

    fn enter_carry(&mut self, init: &mut Value, body: &Region, param: Value, phase: Phase) {
        let is_free = self.freedom[*init] != Freedom::None && self.decided.pins(param).is_empty();
        if is_free && self.is_only_added_to(body, param) {
            self.freedom[param] = Freedom::Sum;
            return;
        }
        if self.freedom[*init] == Freedom::Sum {
            let placement = self.decided.placement(*init);
            self.settle(*init, placement);
        }
        let placement = self.decided.placement(param);
        let origin = self.program.values[param].origin;
        let need = Need { phase, origin, why: "by the loop that carries it on".to_string() };
        *init = self.reshard(*init, &placement, &need);
        self.program.values[param].ty.placement = placement;
    }

    /// Whether the only thing that a body does with a carry is to add to it.
    fn is_only_added_to(&self, body: &Region, param: Value) -> bool {
        if self.uses[param] != 1 {
            return false;
        }
        let dims = |value: Value| &self.program.ty(value).dims;
        body.insts.iter().any(|inst| {
            let Some(position) = inst.args.iter().position(|&arg| arg == param) else { return false };
            match &inst.op {
                Op::Map(ScalarOp::Add) => {
                    let alike = |&arg: &Value| dims(arg).iter().all(|dim| dims(param).contains(dim));
                    inst.args.iter().all(alike)
                        && inst.args.iter().all(|&arg| dims(arg).len() == dims(param).len())
                }
                Op::Scan(inner) if position < inner.carries => {
                    self.is_only_added_to(&inner.body, inner.body.params[position])
                }
                Op::Scan(inner) => position >= inner.carries + inner.stacks,
                _ => false,
            }
        })
    }

    fn leave_carries(&mut self, scan: &mut Scan) {
        for index in 0..scan.carries {
            let (param, value) = (scan.body.params[index], scan.body.yields[index]);
            if self.freedom[param] == Freedom::Sum {
                let placement = self.leaving(value);
                self.settle(param, placement);
            }
            let target = self.program.ty(param).placement.clone();
            let need = self.need_of_born(value, "by the next iteration of the loop");
            scan.body.yields[index] = self.reshard(value, &target, &need);
        }
    }

    /// Delivers what the body stacks. Returns where initial stacks have to be, by argument.
    fn leave_outputs(&mut self, scan: &mut Scan, args: &[Value]) -> Vec<(usize, Placement)> {
        let mut initial_stacks = Vec::new();
        let mut next = scan.carries + scan.stacks;
        for index in 0..scan.outputs.len() {
            let value = scan.body.yields[scan.carries + index];
            let mut target = self.leaving(value);
            if scan.outputs[index].has_initial() {
                let initial = args[next];
                if self.freedom[initial] == Freedom::None {
                    target = self.program.ty(initial).placement.clone();
                }
                initial_stacks.push((next, target.clone()));
                next += 1;
            }
            let need = self.need_of_born(value, "by the stack of all iterations");
            scan.body.yields[scan.carries + index] = self.reshard(value, &target, &need);
        }
        initial_stacks
    }

    /// Brings the start of a loop to where the loop keeps it.
    fn start_at(&mut self, value: Value, placement: &Placement, phase: Phase) -> Value {
        match self.freedom[value] {
            Freedom::Sum => {
                self.settle(value, placement.clone());
                value
            }
            Freedom::None | Freedom::Zeros => {
                let origin = self.program.values[value].origin;
                let need = Need { phase, origin, why: "by the loop that starts from it".to_string() };
                self.reshard(value, placement, &need)
            }
        }
    }
}
