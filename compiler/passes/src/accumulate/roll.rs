//! Builds the loops over micro-batches.

use super::classify::{Class, Facts, class_at, level_of, not_a_sum};
use crate::error::PassError;
use crate::regions::{copy, substitute};
use crate::uses::{captures, for_each_use};
use dtlc_ir::{
    Binding, Builder, DType, Dim, Inst, Op, Phase, Program, ReduceOp, Region, Role, ScalarOp, Scan,
    ScanOutput, Type, Value,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// The values that complete results replace.
type Replacements = FxHashMap<Value, Value>;

/// What becomes of a loop's value over all micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complete {
    /// Their sum.
    Sum,
    /// Their maximum.
    Max,
    /// All of them, along the dimension.
    Stack,
}

/// The state of rolling up a program.
pub struct Roll<'facts> {
    micro: Dim,
    facts: &'facts Facts,
    /// What stands for a loop's value after the loop.
    pub complete: Replacements,
    /// Values that keep the dimension.
    pub keeps: FxHashSet<Value>,
}

impl<'facts> Roll<'facts> {
    /// Starts with nothing complete.
    pub fn new(micro: Dim, facts: &'facts Facts) -> Roll<'facts> {
        Roll { micro, facts, complete: Replacements::default(), keeps: FxHashSet::default() }
    }

    /// Lets an instruction outside of the loops read complete values.
    pub fn redirect(&self, inst: &mut Inst) {
        redirect(inst, &self.complete);
    }

    /// Appends a loop that computes `sums` alone, from copies of the instructions `slice`.
    pub fn early(
        &mut self,
        builder: &mut Builder,
        slice: Vec<Inst>,
        sums: &[Value],
    ) -> Result<(), PassError> {
        if sums.is_empty() {
            return Ok(());
        }
        let mut copies = Replacements::default();
        let mut inner = Builder::new(&mut *builder.program, Phase::Forward);
        for inst in slice {
            let at = inner.region.insts.len();
            self.rolled(&mut inner, inst)?;
            for inst in &mut inner.region.insts[at..] {
                copy(inner.program, inst, &mut copies);
            }
        }
        let mut body = Loop::default();
        let wanted: Vec<(Value, Complete)> =
            sums.iter().map(|&sum| (sum, completion(self.facts, sum))).collect();
        for &(value, how) in &wanted {
            let copied = copies.get(&value).copied().unwrap_or(value);
            body.finish(&mut inner, value, copied, how);
        }
        let region = inner.region;
        self.append(builder, body, region, &wanted);
        Ok(())
    }

    /// Appends the loop over all of `rolled`, which hands out `wanted`.
    pub fn main(
        &mut self,
        builder: &mut Builder,
        rolled: Vec<Inst>,
        wanted: &[Value],
    ) -> Result<(), PassError> {
        if rolled.is_empty() {
            return Ok(());
        }
        let mut inner = Builder::new(&mut *builder.program, Phase::Forward);
        for inst in rolled {
            self.rolled(&mut inner, inst)?;
        }
        let mut body = Loop::default();
        let wanted: Vec<(Value, Complete)> =
            wanted.iter().map(|&value| (value, completion(self.facts, value))).collect();
        for &(value, how) in &wanted {
            if how != Complete::Sum || !body.accumulate_in_place(&mut inner, value) {
                body.finish(&mut inner, value, value, how);
            }
        }
        let region = inner.region;
        self.append(builder, body, region, &wanted);
        Ok(())
    }

    /// Appends one instruction to a loop.
    fn rolled(&self, inner: &mut Builder, mut inst: Inst) -> Result<(), PassError> {
        let level = level_of(self.facts, &inst);
        let by_then = |value: &Value| class_at(self.facts, *value, level) == Class::Fixed;
        let complete = self.complete.iter().filter(|(value, _)| by_then(value));
        let complete: Replacements = complete.map(|(&value, &sum)| (value, sum)).collect();
        self.share(inner, &mut inst, level)?;
        redirect(&mut inst, &complete);
        inner.region.insts.push(inst);
        Ok(())
    }

    /// Gives each micro-batch an equal part of the fixed terms of partial sums in a scan.
    fn share(&self, outer: &mut Builder, inst: &mut Inst, level: usize) -> Result<(), PassError> {
        let Op::Scan(scan) = &mut inst.op else { return Ok(()) };
        let params = scan.body.params.clone();
        for (arg, &param) in inst.args.iter_mut().zip(&params[..scan.carries]) {
            if self.is_partial(param, level) && !self.is_partial(*arg, level) {
                *arg = self.part(outer, *arg)?;
            }
        }
        let Region { insts, yields, .. } = std::mem::take(&mut scan.body);
        let mut inner = Builder::new(&mut *outer.program, outer.phase);
        for mut inst in insts {
            inner.origin = inner.program.values[inst.results[0]].origin;
            match &inst.op {
                Op::Scan(_) => self.share(&mut inner, &mut inst, level)?,
                op if has_terms(op) && self.is_partial(inst.results[0], level) => {
                    let first = usize::from(*op == Op::Map(ScalarOp::Select));
                    for arg in inst.args.iter_mut().skip(first) {
                        if !self.is_partial(*arg, level) {
                            *arg = self.part(&mut inner, *arg)?;
                        }
                    }
                }
                _ => {}
            }
            inner.region.insts.push(inst);
        }
        for (index, &value) in yields.iter().enumerate() {
            let carried = index < scan.carries && self.is_partial(params[index], level);
            let whole = carried && !self.is_partial(value, level);
            let value = if whole { self.part(&mut inner, value)? } else { value };
            inner.region.yields.push(value);
        }
        scan.body = Region { params, ..inner.region };
        Ok(())
    }

    fn is_partial(&self, value: Value, level: usize) -> bool {
        matches!(class_at(self.facts, value, level), Class::Partial(_))
    }

    /// One micro-batch's share of a value that is the same for all.
    fn part(&self, builder: &mut Builder, value: Value) -> Result<Value, PassError> {
        if !builder.ty(value).dtype.is_float() {
            return Err(not_a_sum(builder.program, value));
        }
        let count = builder.program.dims[self.micro].size;
        Ok(builder.scale(value, 1.0 / count as f64))
    }

    /// Appends the scan, and notes what its results complete.
    fn append(
        &mut self,
        builder: &mut Builder,
        mut body: Loop,
        mut region: Region,
        wanted: &[(Value, Complete)],
    ) {
        let slices = self.slice_inputs(builder.program, &mut body, &region);
        substitute(&mut region, &slices);
        region.params = body.carries.iter().chain(&body.slices).copied().collect();
        region.yields = body.nexts.iter().chain(&body.outputs).copied().collect();
        let mut types: Vec<Type> = body.inits.iter().map(|&init| builder.ty(init).clone()).collect();
        types.extend(body.outputs.iter().map(|&output| builder.ty(output).clone()));
        let args: Vec<Value> = body.inits.iter().chain(&body.stacks).copied().collect();
        let scan = Scan {
            dim: self.micro,
            reverse: false,
            carries: body.inits.len(),
            stacks: body.stacks.len(),
            outputs: vec![ScanOutput::Stack; body.outputs.len()],
            body: region,
        };
        builder.region.insts.append(&mut body.before);
        let made = builder.push_scan(scan, &args, types);
        let carried = wanted.iter().filter(|(_, how)| *how != Complete::Stack);
        let stacked = wanted.iter().filter(|(_, how)| *how == Complete::Stack);
        for (&(value, how), &result) in carried.chain(stacked).zip(&made) {
            describe(builder.program, result, value);
            if how == Complete::Stack {
                self.keeps.insert(result);
            }
            let info = builder.program.values[value].clone();
            (builder.origin, builder.role) = (info.origin, info.role);
            let result = builder.cast(result, info.ty.dtype);
            self.complete.insert(value, result);
        }
        (builder.origin, builder.role) = (builder.program.no_origin(), Role::Activation);
    }

    /// Hands the loop the current slice of each input that it reads.
    fn slice_inputs(&mut self, program: &mut Program, body: &mut Loop, region: &Region) -> Replacements {
        let inputs: Vec<Value> = program.inputs.iter().map(|input| input.value).collect();
        let mut slices = Replacements::default();
        for value in captures(region) {
            if !inputs.contains(&value) || !program.ty(value).has(self.micro) {
                continue;
            }
            let slice = program.values.push(program.values[value].clone());
            body.stacks.push(value);
            body.slices.push(slice);
            slices.insert(value, slice);
            self.keeps.insert(value);
            let named = program.bindings.iter().filter(|binding| binding.value == value).cloned();
            let too: Vec<Binding> = named.map(|binding| Binding { value: slice, ..binding }).collect();
            program.bindings.extend(too);
        }
        slices
    }
}

/// A loop under construction: what stands before it, and its interface.
#[derive(Default)]
struct Loop {
    before: Vec<Inst>,
    inits: Vec<Value>,
    carries: Vec<Value>,
    nexts: Vec<Value>,
    stacks: Vec<Value>,
    slices: Vec<Value>,
    outputs: Vec<Value>,
}

impl Loop {
    /// Hands out `value`, which the body calls `inside`.
    fn finish(&mut self, inner: &mut Builder, value: Value, inside: Value, how: Complete) {
        let ty = running_type(inner.program, value);
        inner.origin = inner.program.values[value].origin;
        let maker = inner.region.insts.iter().find(|inst| inst.results.contains(&inside));
        inner.phase = maker.map_or(Phase::Forward, |inst| inst.phase);
        let next = match how {
            Complete::Stack => return self.outputs.push(inside),
            Complete::Sum => {
                let carry = self.carry(inner, value, &ty, 0.0);
                let part = inner.cast(inside, ty.dtype);
                inner.add(carry, part)
            }
            Complete::Max => {
                let least = if ty.dtype.is_float() { f64::NEG_INFINITY } else { f64::from(i32::MIN) };
                let carry = self.carry(inner, value, &ty, least);
                inner.map(ScalarOp::Max, &[carry, inside])
            }
        };
        describe(inner.program, next, value);
        self.nexts.push(next);
    }

    /// Lets the layer loop that stacks `value` add to the running stack. Whether it can.
    fn accumulate_in_place(&mut self, inner: &mut Builder, value: Value) -> bool {
        let ty = running_type(inner.program, value);
        let mut read = false;
        for inst in &inner.region.insts {
            for_each_use(inst, &mut |used| read |= used == value);
        }
        let maker = inner.region.insts.iter().position(|inst| inst.results.contains(&value));
        let Some(at) = maker.filter(|_| !read && ty == *inner.ty(value)) else { return false };
        let result = inner.region.insts[at].results.iter().position(|&result| result == value).unwrap_or(0);
        let Op::Scan(scan) = &inner.region.insts[at].op else { return false };
        if result < scan.carries {
            return false;
        }
        let before = &scan.outputs[..result - scan.carries];
        let earlier = before.iter().filter(|output| output.has_initial()).count();
        let position = scan.carries + scan.stacks + earlier;
        inner.phase = inner.region.insts[at].phase;
        let carry = self.carry(inner, value, &ty, 0.0);
        let inst = &mut inner.region.insts[at];
        inst.args.insert(position, carry);
        if let Op::Scan(scan) = &mut inst.op {
            scan.outputs[result - scan.carries] = ScanOutput::Accumulate;
        }
        self.nexts.push(value);
        true
    }

    /// A carry that starts as `initial` everywhere.
    fn carry(&mut self, inner: &mut Builder, value: Value, ty: &Type, initial: f64) -> Value {
        let mut outside = Builder::new(&mut *inner.program, inner.phase);
        outside.role = outside.program.values[value].role;
        let init = outside.fill(initial, ty);
        self.before.append(&mut outside.region.insts);
        let carry = inner.program.add_value(ty.clone(), inner.program.values[value].origin);
        describe(inner.program, carry, value);
        self.inits.push(init);
        self.carries.push(carry);
        carry
    }
}

/// How a loop hands out a value.
fn completion(facts: &Facts, value: Value) -> Complete {
    match class_at(facts, value, 0) {
        Class::Partial(ReduceOp::Sum) => Complete::Sum,
        Class::Partial(ReduceOp::Max) => Complete::Max,
        Class::Varying | Class::Fixed => Complete::Stack,
    }
}

/// The type of a running sum: gradients have the one that the plan says, the rest is summed in f32.
fn running_type(program: &Program, value: Value) -> Type {
    let info = &program.values[value];
    match (info.role, info.ty.dtype) {
        (Role::Activation | Role::Parameter | Role::Optimizer, DType::Bf16 | DType::F16) => {
            Type { dtype: DType::F32, ..info.ty.clone() }
        }
        _ => info.ty.clone(),
    }
}

/// `copy` stands for the same as `value`.
fn describe(program: &mut Program, copy: Value, value: Value) {
    let info = program.values[value].clone();
    let target = &mut program.values[copy];
    (target.name, target.origin, target.role, target.gradient_of) =
        (info.name, info.origin, info.role, info.gradient_of);
}

/// Operations whose result is a sum of several arguments, or one of them.
fn has_terms(op: &Op) -> bool {
    matches!(op, Op::Map(ScalarOp::Add | ScalarOp::Sub | ScalarOp::Select) | Op::Concat { .. })
}

fn redirect(inst: &mut Inst, replacements: &Replacements) {
    inst.args.iter_mut().for_each(|arg| *arg = replacements.get(arg).copied().unwrap_or(*arg));
    if let Some(region) = inst.op.region_mut() {
        substitute(region, replacements);
    }
}

/// Lets the program's states and outputs be the complete values.
pub fn redirect_outputs(program: &mut Program, complete: &Replacements) {
    let follow = |value: &mut Value| *value = complete.get(value).copied().unwrap_or(*value);
    program.outputs.iter_mut().for_each(|output| follow(&mut output.value));
    program.states.iter_mut().filter_map(|state| state.updated.as_mut()).for_each(follow);
}

/// Takes the dimension out of all types but those of inputs, of `keeps`, and out of reductions.
pub fn strip(program: &mut Program, micro: Dim, keeps: &FxHashSet<Value>) {
    let inputs: FxHashSet<Value> = program.inputs.iter().map(|input| input.value).collect();
    for (value, info) in program.values.iter_mut() {
        if !keeps.contains(&value) && !inputs.contains(&value) {
            info.ty.dims.retain(|dim| *dim != micro);
        }
    }
    strip_reductions(&mut program.main, micro);
}

fn strip_reductions(region: &mut Region, micro: Dim) {
    for inst in &mut region.insts {
        if let Op::Reduce { dims, .. } = &mut inst.op {
            dims.retain(|dim| *dim != micro);
            if dims.is_empty() {
                inst.op = Op::Map(ScalarOp::Cast);
            }
        }
        if let Some(inside) = inst.op.region_mut() {
            strip_reductions(inside, micro);
        }
    }
}
