//! Splits every instruction as was decided and puts a reshard where a value is not as its use needs it.
//!
//! Each instruction is split by one factor an axis. Its arguments are brought to what that asks; its
//! results are what comes out: split by the factor, or partial where it was summed over. A partial
//! result is left partial while its only use can pass it on, and resolved at the use otherwise, straight
//! to what the use wants. Loops are in `scan`, masks over pads in `pad`.

use super::assign::Assignments;
use super::copies::Copy;
use super::error::PlacementError;
use super::factors::{Factor, factors};
use super::propagate::{Chosen, choose, is_update};
use super::stores::{Owners, Stores, add_shards};
use cranelift_entity::{EntitySet, SecondaryMap};
use dtlc_ir::{
    Axis, Inst, Literal, Op, Origin, Phase, Placement, Program, ReduceOp, Region, Role, ScalarOp, StateKind,
    Type, Value,
};
use smallvec::SmallVec;

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
    pub update: &'a Assignments<'a>,
    pub stores: &'a Stores,
    pub owners: Owners,
    pub leave: EntitySet<Value>,
    pub uses: SecondaryMap<Value, u32>,
    pub born: SecondaryMap<Value, Option<Phase>>,
    pub depth: SecondaryMap<Value, usize>,
    pub freedom: SecondaryMap<Value, Freedom>,
    /// Axes on which a partial gradient is left partial by all its uses that are linear in it.
    pub lasting: SecondaryMap<Value, SmallVec<[Axis; 2]>>,
    pub copies: SecondaryMap<Value, Vec<Copy>>,
    pub copied: Vec<Value>,
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
    leave: EntitySet<Value>,
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
        leave,
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

    pub(super) fn is_whole_sum(&self, value: Value) -> bool {
        self.program.ty(value).placement.partials().is_empty()
    }

    /// The decisions that an instruction of this phase follows.
    pub(super) fn decisions(&self, phase: Phase) -> &Assignments<'_> {
        if is_update(phase) { self.update } else { self.decided }
    }

    pub(super) fn inst(&mut self, inst: Inst) -> Result<(), PlacementError> {
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
        if self.is_narrowed_weight(&inst) {
            // Converted where it is stored, a weight moves in the smaller type.
            let placement = self.program.ty(inst.args[0]).placement.clone();
            let name = self.program.values[inst.args[0]].name.clone();
            let converted = &mut self.program.values[inst.results[0]];
            converted.ty.placement = placement;
            converted.name = converted.name.take().or(name);
            self.push(inst);
            return Ok(());
        }
        self.split(inst);
        Ok(())
    }

    fn is_narrowed_weight(&self, inst: &Inst) -> bool {
        let is_weight = |&value: &Value| self.program.values[value].role == Role::Parameter;
        let (Op::Map(ScalarOp::Cast), [arg], [result]) = (&inst.op, &inst.args[..], &inst.results[..]) else {
            return false;
        };
        let bytes = |value: Value| self.program.ty(value).dtype.bytes();
        [arg, result].into_iter().all(is_weight)
            && bytes(*result) < bytes(*arg)
            && self.freedom[*arg] == Freedom::None
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

    fn makes_zeros(&self, inst: &Inst) -> bool {
        match &inst.op {
            Op::Constant(Literal::Float(value)) => *value == 0.0,
            Op::Constant(Literal::Int(value)) => *value == 0,
            Op::Map(ScalarOp::Cast) => self.freedom[inst.args[0]] == Freedom::Zeros,
            _ => false,
        }
    }

    /// Appends an instruction whose arguments and results are where they stay.
    pub(super) fn append(&mut self, inst: Inst) {
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

    /// Places a value whose placement was open.
    pub(super) fn settle(&mut self, value: Value, placement: Placement) {
        self.program.values[value].ty.placement = placement;
        self.freedom[value] = Freedom::None;
    }

    /// Zeros in another place are made there.
    pub(super) fn zeros(&mut self, value: Value, target: &Placement, phase: Phase) -> Value {
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
    pub(super) fn new_value(
        &mut self,
        op: Op,
        args: &[Value],
        ty: Type,
        origin: Origin,
        phase: Phase,
    ) -> Value {
        let value = self.program.add_value(ty, origin);
        let results = SmallVec::from_slice(&[value]);
        self.push(Inst { op, args: SmallVec::from_slice(args), results, phase });
        value
    }
}
