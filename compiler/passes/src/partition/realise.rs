//! Splits every instruction as was decided and puts a reshard where a value is not as its use needs it.
//!
//! Each instruction is split by one factor an axis. Its arguments are brought to what that asks; its
//! results are what comes out: split by the factor, or partial where it was summed over. A partial
//! result is left partial while its only use can pass it on, and resolved at the use otherwise, straight
//! to what the use wants. Loops are in `scan`, masks over pads in `pad`.

use super::assign::{Assignments, describe};
use super::error::PlacementError;
use super::factors::{Factor, factors};
use super::propagate::{Chosen, choose, is_update};
use super::reshard::cost;
use super::stores::{Owners, Stores, add_shards};
use cranelift_entity::SecondaryMap;
use dtlc_ir::{
    Axis, Inst, Literal, Op, Origin, Phase, Placement, Program, Reason, ReduceOp, Region, Role, ScalarOp,
    StateKind, Type, Value,
};
use smallvec::SmallVec;

/// Another place that a value was brought to.
#[derive(Clone, Copy, Debug)]
struct Copy {
    value: Value,
    class: Class,
    /// Whether the value itself is a partial sum, which this completes.
    completes: bool,
    depth: usize,
}

/// Parts of the step that share no gathered values: what the forward pass gathered is never kept for the
/// backward pass. A completed sum is shared by all, as it takes no more memory than the partial one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Forward,
    Backward,
    Update,
}

/// A value whose placement its use decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Freedom {
    /// Placed.
    #[default]
    None,
    /// All zeros: right under every placement, a partial one too.
    Zeros,
    /// The carry of a loop that starts as zeros and is only added to.
    Sum,
}

/// Who needs a value somewhere else.
#[derive(Clone)]
pub(super) struct Need {
    /// The phase of the use.
    pub phase: Phase,
    /// The origin of the use.
    pub origin: Origin,
    /// What the use is and why it needs it, to follow "it is needed".
    pub why: String,
}

/// The program while it is rewritten. Values keep their numbers and get placements; reshards add values.
pub(super) struct Realiser<'a> {
    pub program: Program,
    pub decided: &'a Assignments<'a>,
    update: &'a Assignments<'a>,
    stores: &'a Stores,
    owners: Owners,
    pub uses: SecondaryMap<Value, u32>,
    pub born: SecondaryMap<Value, Option<Phase>>,
    pub depth: SecondaryMap<Value, usize>,
    pub freedom: SecondaryMap<Value, Freedom>,
    /// Axes on which a partial gradient is left partial by all its uses that are linear in it.
    lasting: SecondaryMap<Value, SmallVec<[Axis; 2]>>,
    copies: SecondaryMap<Value, Vec<Copy>>,
    copied: Vec<Value>,
    pub frames: Vec<Vec<Inst>>,
}

/// Rewrites a program.
///
/// # Errors
/// Only bugs of ours.
pub(super) fn realise(
    mut program: Program,
    decided: &Assignments<'_>,
    update: &Assignments<'_>,
    stores: &Stores,
    owners: Owners,
) -> Result<Program, Vec<PlacementError>> {
    let main = std::mem::take(&mut program.main);
    let mut uses = SecondaryMap::new();
    count_uses(&main, &mut uses);
    let mut realiser = Realiser {
        program,
        decided,
        update,
        stores,
        owners,
        uses,
        born: SecondaryMap::new(),
        depth: SecondaryMap::new(),
        freedom: SecondaryMap::new(),
        lasting: SecondaryMap::new(),
        copies: SecondaryMap::new(),
        copied: Vec::new(),
        frames: vec![Vec::new()],
    };
    realiser.main(main).map_err(|error| vec![error])?;
    Ok(realiser.program)
}

fn count_uses(region: &Region, uses: &mut SecondaryMap<Value, u32>) {
    for inst in &region.insts {
        inst.args.iter().for_each(|&arg| uses[arg] += 1);
        if let Some(body) = inst.op.region() {
            count_uses(body, uses);
        }
    }
    region.yields.iter().for_each(|&value| uses[value] += 1);
}

impl Realiser<'_> {
    fn main(&mut self, mut main: Region) -> Result<(), PlacementError> {
        for &param in &main.params {
            self.program.values[param].ty.placement = self.decided.placement(param);
        }
        for index in 0..self.program.states.len() {
            let value = self.program.states[index].value;
            let placement = self.state_placement(index);
            self.program.values[value].ty.placement = placement;
        }
        for inst in std::mem::take(&mut main.insts) {
            self.inst(inst)?;
        }
        let mut next = 0;
        for index in 0..self.program.states.len() {
            if self.program.states[index].updated.is_some() {
                let delivered = self.deliver_state(index, main.yields[next]);
                main.yields[next] = delivered;
                self.program.states[index].updated = Some(delivered);
                next += 1;
            }
        }
        for index in 0..self.program.outputs.len() {
            let delivered = self.deliver_output(main.yields[next]);
            main.yields[next] = delivered;
            self.program.outputs[index].value = delivered;
            next += 1;
        }
        main.insts = self.frames.pop().ok_or_else(|| PlacementError::internal("no frame left"))?;
        self.program.main = main;
        Ok(())
    }

    /// Where a state rests: as its parameter is used, and split further by its store.
    fn state_placement(&self, index: usize) -> Placement {
        let state = &self.program.states[index];
        let parameter = match &state.kind {
            StateKind::Parameter(_) => index,
            StateKind::Master(parameter) | StateKind::Optimizer { parameter, .. } => *parameter,
        };
        let like = if self.program.ty(state.value).dims
            == self.program.ty(self.program.states[parameter].value).dims
        {
            self.program.states[parameter].value
        } else {
            state.value
        };
        let mut placement = self.decided.placement(like);
        add_shards(&mut placement, &self.stores.states[index], self.decided);
        placement
    }

    fn deliver_state(&mut self, index: usize, value: Value) -> Value {
        let state = &self.program.states[index];
        let target = self.program.ty(state.value).placement.clone();
        let why = format!("where `{}` is stored", state.path);
        let need = Need { phase: Phase::Update, origin: self.program.values[value].origin, why };
        self.reshard(value, &target, &need)
    }

    /// An output is whole or split, as it comes, but never partial.
    fn deliver_output(&mut self, value: Value) -> Value {
        let class = |copy: &&Copy| copy.depth == 0 && self.is_whole_sum(copy.value);
        if !self.is_whole_sum(value)
            && let Some(copy) = self.copies[value].iter().find(class)
        {
            return copy.value;
        }
        let target = self.resolved(value);
        let need = self.need_of_born(value, "by the result of the step");
        self.reshard(value, &target, &need)
    }

    fn is_whole_sum(&self, value: Value) -> bool {
        self.program.ty(value).placement.partials().is_empty()
    }

    /// A need in the phase that the value was made in.
    pub fn need_of_born(&self, value: Value, why: &str) -> Need {
        let phase = self.born[value].unwrap_or(Phase::Forward);
        Need { phase, origin: self.program.values[value].origin, why: why.to_string() }
    }

    /// The decisions that an instruction of this phase follows.
    fn decisions(&self, phase: Phase) -> &Assignments<'_> {
        if is_update(phase) { self.update } else { self.decided }
    }

    pub fn inst(&mut self, inst: Inst) -> Result<(), PlacementError> {
        if matches!(inst.op, Op::Scan(_)) {
            return self.scan(inst);
        }
        if let Some((sum, added)) = self.accumulation(&inst) {
            self.accumulate(inst, sum, added);
            return Ok(());
        }
        for &arg in &inst.args {
            if self.freedom[arg] == Freedom::Sum {
                let placement = self.decided.placement(arg);
                self.settle(arg, placement);
            }
        }
        self.split(inst);
        Ok(())
    }

    /// Brings the arguments to where the chosen factors need them and places the results.
    fn split(&mut self, mut inst: Inst) {
        let factors = factors(&self.program, &inst);
        let mut chosen = choose(&inst, &factors, self.decisions(inst.phase)).chosen;
        let passing = self.passing(&inst, &mut chosen);
        let original = inst.clone();
        for index in 0..inst.args.len() {
            let target = self.argument_placement(inst.args[index], index, &factors, &chosen, &passing);
            let need = self.need_of_inst(&original, &chosen, inst.args[index], &target);
            inst.args[index] = self.reshard(inst.args[index], &target, &need);
        }
        self.mask_pads(&mut inst, &factors, &chosen);
        for (index, &result) in inst.results.iter().enumerate() {
            let mut placement = Placement::replicated();
            for choice in &chosen {
                let factor = &factors[choice.factor];
                for &axis in &self.decided.entries[choice.entry].axes {
                    match factor.results[index] {
                        Some(dim) => placement.add_shard(dim, axis),
                        None => placement.add_partial(axis, factor.reduce),
                    }
                }
            }
            passing.iter().for_each(|&axis| placement.add_partial(axis, ReduceOp::Sum));
            self.program.values[result].ty.placement = placement;
        }
        self.note_lasting(&original, &passing);
        if self.makes_zeros(&original) {
            self.freedom[inst.results[0]] = Freedom::Zeros;
        }
        self.push(inst);
    }

    /// Gradients of keys and values that several groups of queries share are partial where the groups are
    /// on different ranks. All that follows is linear in them and smaller than the sum would save, so they
    /// stay partial up to the gradient of the block's input, which is summed anyway, and that of the weight.
    fn note_lasting(&mut self, inst: &Inst, passing: &[Axis]) {
        if let Op::AttentionGradient(_) = inst.op {
            for &result in &inst.results {
                let partials = self.program.ty(result).placement.partials();
                self.lasting[result] = partials.iter().map(|partial| partial.axis).collect();
            }
        } else if inst.op != Op::Dot {
            let lasts = |axis: &Axis| inst.args.iter().any(|&arg| self.lasting[arg].contains(axis));
            let axes: SmallVec<[Axis; 2]> = passing.iter().copied().filter(lasts).collect();
            inst.results.iter().for_each(|&result| self.lasting[result] = axes.clone());
        }
    }

    fn makes_zeros(&self, inst: &Inst) -> bool {
        match &inst.op {
            Op::Constant(Literal::Float(value)) => *value == 0.0,
            Op::Constant(Literal::Int(value)) => *value == 0,
            Op::Map(ScalarOp::Cast) => self.freedom[inst.args[0]] == Freedom::Zeros,
            _ => false,
        }
    }

    /// Appends an instruction whose arguments and results are placed.
    pub fn push(&mut self, inst: Inst) {
        let depth = self.frames.len() - 1;
        for &result in &inst.results {
            self.depth[result] = depth;
            if self.born[result].is_none() {
                self.born[result] = Some(inst.phase);
            }
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.push(inst);
        }
    }

    fn argument_placement(
        &self,
        arg: Value,
        index: usize,
        factors: &[Factor],
        chosen: &[Chosen],
        passing: &[Axis],
    ) -> Placement {
        let mut placement = Placement::replicated();
        for choice in chosen {
            if let Some(dim) = factors[choice.factor].args[index] {
                for &axis in &self.decided.entries[choice.entry].axes {
                    placement.add_shard(dim, axis);
                }
            }
        }
        let current = &self.program.ty(arg).placement;
        for &axis in passing {
            if let Some(op) = current.partial_on(axis) {
                placement.add_partial(axis, op);
            }
        }
        placement
    }

    /// The axes on which the arguments' partial sums pass through to the results. Factors on those axes
    /// are given up: what comes later resolves the sum and splits at once.
    fn passing(&self, inst: &Inst, chosen: &mut SmallVec<[Chosen; 4]>) -> SmallVec<[Axis; 2]> {
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
            Op::Map(op) => match op {
                ScalarOp::Add | ScalarOp::Sub => inst.args.iter().all(|&arg| partial(arg)),
                ScalarOp::Neg => partial(inst.args[0]),
                ScalarOp::Cast => partial(inst.args[0]) && self.program.ty(inst.results[0]).dtype.is_float(),
                ScalarOp::Mul => {
                    let (left, right) = (inst.args[0], inst.args[1]);
                    partial(left) && apart(right) || apart(left) && partial(right)
                }
                ScalarOp::Div => partial(inst.args[0]) && apart(inst.args[1]),
                ScalarOp::Select => {
                    let zero = |arg: Value| self.freedom[arg] == Freedom::Zeros && apart(arg);
                    let (condition, one, other) = (inst.args[0], inst.args[1], inst.args[2]);
                    let branches =
                        partial(one) && (partial(other) || zero(other)) || zero(one) && partial(other);
                    apart(condition) && branches
                }
                ScalarOp::Abs | ScalarOp::Exp | ScalarOp::Log | ScalarOp::Sqrt | ScalarOp::Rsqrt => false,
                ScalarOp::Tanh | ScalarOp::Sigmoid | ScalarOp::Erf | ScalarOp::Sin | ScalarOp::Cos => false,
                ScalarOp::Floor | ScalarOp::Not | ScalarOp::Rem | ScalarOp::Pow | ScalarOp::Min => false,
                ScalarOp::Max | ScalarOp::Equal | ScalarOp::NotEqual | ScalarOp::Less => false,
                ScalarOp::LessEqual | ScalarOp::Greater | ScalarOp::GreaterEqual => false,
                ScalarOp::And | ScalarOp::Or => false,
            },
            Op::Reduce { op: ReduceOp::Sum, .. }
            | Op::Rename { .. }
            | Op::Split { .. }
            | Op::Merge { .. } => partial(inst.args[0]),
            Op::Slice { .. } | Op::Pad { .. } | Op::StopGradient => partial(inst.args[0]),
            Op::Reduce { op: ReduceOp::Max, .. } | Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } => {
                false
            }
            // Linear too, but a product usually makes more of less: the sum is cheaper before.
            Op::Dot => {
                let (left, right) = (inst.args[0], inst.args[1]);
                let lasts = |arg: Value| self.lasting[arg].contains(&axis) && partial(arg);
                lasts(left) && apart(right) || apart(left) && lasts(right)
            }
            Op::Concat { .. } => inst.args.iter().all(|&arg| partial(arg)),
            Op::Take { .. } | Op::ScatterAdd { .. } => false,
            Op::Attention(_) | Op::AttentionGradient(_) | Op::Scan(_) | Op::Fused(_) => false,
            Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) => false,
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

    /// A value's placement once its partial sums are resolved to what is decided for it.
    pub fn resolved(&self, value: Value) -> Placement {
        let mut placement = self.program.ty(value).placement.clone();
        let partials: SmallVec<[Axis; 2]> = placement.partials().iter().map(|partial| partial.axis).collect();
        partials.iter().for_each(|&axis| placement.remove_axis(axis));
        for assigned in self.decided.of(value) {
            let axes = &self.decided.entries[assigned.entry].axes;
            if axes.iter().all(|axis| partials.contains(axis)) {
                axes.iter().for_each(|&axis| placement.add_shard(assigned.dim, axis));
            }
        }
        placement
    }

    /// Where a value goes that leaves its block: a partial sum stays one if nothing else uses it, and a
    /// parameter's gradient goes to its store.
    pub fn leaving(&self, value: Value) -> Placement {
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
                axes.iter().for_each(|&axis| placement.add_shard(dim, axis));
            }
        }
        placement
    }

    /// The arguments of an addition to a sum whose placement is still open: that sum, and what is added.
    fn accumulation(&self, inst: &Inst) -> Option<(usize, usize)> {
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
    fn accumulate(&mut self, mut inst: Inst, sum: usize, added: usize) {
        let target = self.leaving(inst.args[added]);
        let why = format!("by the sum that {} is added to", describe(&self.program, inst.args[added]));
        let need = Need { why, ..self.need_of_born(inst.args[added], "") };
        inst.args[added] = self.reshard(inst.args[added], &target, &need);
        self.settle(inst.args[sum], target.clone());
        self.program.values[inst.results[0]].ty.placement = target;
        self.push(inst);
    }

    /// Places a value whose placement was open.
    pub fn settle(&mut self, value: Value, placement: Placement) {
        self.program.values[value].ty.placement = placement;
        self.freedom[value] = Freedom::None;
    }

    /// The value brought to `target`: itself, a copy that exists, or a new one by a reshard.
    pub fn reshard(&mut self, value: Value, target: &Placement, need: &Need) -> Value {
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
        let text = self.reason(source, target, need);
        let origin = if self.is_whole_sum(source) { need.origin } else { self.program.values[source].origin };
        let info = self.program.values[value].clone();
        let moved = self.program.add_value(info.ty.with_placement(target.clone()), origin);
        self.program.values[moved].name = info.name;
        self.program.values[moved].role = info.role;
        self.program.values[moved].gradient_of = info.gradient_of;
        let reason = Reason { text, leave_to_gather: false };
        let inst = Inst {
            op: Op::Reshard(reason),
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

    /// Zeros in another place are made there.
    fn zeros(&mut self, value: Value, target: &Placement, phase: Phase) -> Value {
        let ty = self.program.ty(value).clone();
        let origin = self.program.values[value].origin;
        let mut scalar_placement = Placement::replicated();
        target.partials().iter().for_each(|partial| scalar_placement.add_partial(partial.axis, partial.op));
        let scalar = Type::scalar(ty.dtype).with_placement(scalar_placement);
        let literal = if ty.dtype.is_float() { Literal::Float(0.0) } else { Literal::Int(0) };
        let constant = self.new_value(Op::Constant(literal), &[], scalar, origin, phase);
        if ty.dims.is_empty() {
            return constant;
        }
        self.new_value(Op::Map(ScalarOp::Cast), &[constant], ty.with_placement(target.clone()), origin, phase)
    }

    /// Appends an instruction with one result that is placed already.
    pub fn new_value(&mut self, op: Op, args: &[Value], ty: Type, origin: Origin, phase: Phase) -> Value {
        let value = self.program.add_value(ty, origin);
        let results = SmallVec::from_slice(&[value]);
        self.push(Inst { op, args: SmallVec::from_slice(args), results, phase });
        value
    }

    /// The phase that moving a value counts to.
    fn phase_of_move(&self, value: Value, phase: Phase) -> Phase {
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
    pub fn forget_copies(&mut self, depth: usize) {
        for value in std::mem::take(&mut self.copied) {
            self.copies[value].retain(|copy| copy.depth < depth);
            if !self.copies[value].is_empty() {
                self.copied.push(value);
            }
        }
    }

    fn need_of_inst(&self, inst: &Inst, chosen: &[Chosen], arg: Value, target: &Placement) -> Need {
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
    fn reason(&self, source: Value, target: &Placement, need: &Need) -> String {
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

fn class(phase: Phase) -> Class {
    match phase {
        Phase::Forward => Class::Forward,
        Phase::Recompute | Phase::Backward => Class::Backward,
        Phase::Gradient | Phase::Update => Class::Update,
    }
}
