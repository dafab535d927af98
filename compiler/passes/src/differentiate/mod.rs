//! `logical` → `joint`, first part: reverse-mode differentiation of the whole program.
//!
//! Before: forward instructions and the output `loss`. After: the same, then backward instructions and an
//! output `grad.PATH` for each parameter. Cotangents are summed in the order that uses are met from the end,
//! stand in the forward value's element type (a parameter's in that of the plan's gradients), carry the origin
//! of the forward instruction, and name the value that they are the gradient of. Everything that a loop's
//! backward body reads of the forward body is saved; what is not worth its memory is for `remat` to drop.
//!
//! The rules stand in one file per group of operations. At ties `Min` and `Max` of two arguments give the
//! gradient to the first; a reduction's maximum shares it equally among the largest elements.

mod activity;
mod contraction;
mod elementwise;
mod movement;
mod scan;

use crate::error::PassError;
use crate::interface::seal;
use cranelift_entity::{EntitySet, SecondaryMap};
use dtlc_ir::{Builder, DType, Inst, Op, Output, Phase, Program, ReduceOp, Role, StateKind, Type, Value};

/// Adds the backward pass and an output `grad.PATH` of element type `gradients` for each parameter, in the
/// order of the states. A parameter that the loss does not depend on has a gradient of zeros.
///
/// What is differentiated is `loss_scale`, a power of two, times the loss, so that no small gradient is lost to a format with few
/// exponents; where a parameter's gradient is finished, summed over micro-batches and ranks, it is divided by that, in f32, which is its
/// output's type then (Micikevicius et al., "Mixed Precision Training", 2018).
///
/// # Errors
/// There is no output `loss`, or a parameter flows through an operation that has no gradient.
pub fn differentiate(program: &mut Program, gradients: DType, loss_scale: u64) -> Result<(), PassError> {
    let loss = program.outputs.iter().find(|output| output.name == "loss");
    let loss = loss.ok_or_else(|| PassError::bug("a program without a loss"))?.value;
    let mut tape = Tape { active: activity::active(program), cotangents: SecondaryMap::new(), gradients };
    let mut forward = std::mem::take(&mut program.main.insts);
    let mut builder = Builder::new(program, Phase::Backward);
    let seed = builder.fill(loss_scale as f64, &builder.ty(loss).clone());
    tape.add(&mut builder, loss, seed);
    tape.reverse(&mut builder, &mut forward)?;
    let mut outputs = tape.outputs(&mut builder);
    forward.append(&mut builder.region.insts);
    if loss_scale != 1 {
        let mut builder = Builder::new(program, Phase::Update);
        unscale(&mut builder, &mut outputs, loss_scale);
        forward.append(&mut builder.region.insts);
    }
    program.main.insts = forward;
    program.outputs.extend(outputs);
    seal(program);
    Ok(())
}

/// Divides gradients by what the loss was multiplied by. As part of the update, that waits until they are complete.
fn unscale(builder: &mut Builder, gradients: &mut [Output], loss_scale: u64) {
    builder.role = Role::Gradient;
    for output in gradients {
        builder.origin = builder.program.values[output.value].origin;
        let wide = builder.cast(output.value, DType::F32);
        output.value = builder.scale(wide, 1.0 / loss_scale as f64);
    }
}

/// The cotangents found so far.
struct Tape {
    /// Values that depend on a parameter in a way that can be differentiated.
    active: EntitySet<Value>,
    /// The sum of what the uses met so far contribute; as the region under construction sees it.
    cotangents: SecondaryMap<Value, Option<Value>>,
    /// Element type of parameters' gradients.
    gradients: DType,
}

impl Tape {
    /// Adds the backward of `forward`, last instruction first.
    fn reverse(&mut self, builder: &mut Builder, forward: &mut [Inst]) -> Result<(), PassError> {
        for inst in forward.iter_mut().rev() {
            if inst.results.iter().any(|&result| self.cotangents[result].is_some()) {
                builder.origin = builder.program.values[inst.results[0]].origin;
                self.inst(builder, inst)?;
            }
        }
        Ok(())
    }

    fn inst(&mut self, builder: &mut Builder, inst: &mut Inst) -> Result<(), PassError> {
        if let Op::Scan(_) = inst.op {
            return scan::scan(self, builder, inst);
        }
        let (result, args) = (inst.results[0], &inst.args);
        let Some(cotangent) = self.cotangents[result] else {
            return Err(PassError::bug("a loss that depends on the log-sum-exp of an attention"));
        };
        match &inst.op {
            Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } | Op::StopGradient => {}
            Op::Map(op) => elementwise::map(self, builder, *op, args, result, cotangent),
            Op::Reduce { op, .. } => contraction::reduce(self, builder, *op, args[0], result, cotangent),
            Op::Dot(factors) => contraction::dot(self, builder, *factors, args, cotangent),
            Op::Attention(attention) => contraction::attention(self, builder, attention, inst, cotangent),
            Op::Rename { .. }
            | Op::Split { .. }
            | Op::Merge { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Take { .. }
            | Op::ScatterAdd { .. } => movement::movement(self, builder, &inst.op, args, cotangent),
            Op::AttentionGradient(_) => {
                return Err(PassError::bug("an attention is differentiated twice"));
            }
            Op::Scan(_) | Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done | Op::Fused(_) => {
                return Err(PassError::bug("differentiation met an operation of a later stage"));
            }
        }
        Ok(())
    }

    fn is_active(&self, value: Value) -> bool {
        self.active.contains(value)
    }

    /// The type of the cotangent of `value`.
    fn cotangent_type(&self, program: &Program, value: Value) -> Type {
        let info = &program.values[value];
        let dtype = if info.role == Role::Parameter { self.gradients } else { info.ty.dtype };
        Type::new(dtype, info.ty.dims.iter().copied())
    }

    /// Adds to the cotangent of `value`, if it needs one. Dims that `value` lacks are summed over.
    fn add(&mut self, builder: &mut Builder, value: Value, contribution: Value) {
        if !self.is_active(value) {
            return;
        }
        let ty = self.cotangent_type(builder.program, value);
        let contribution = sum_to(builder, contribution, &ty);
        self.mark(builder.program, contribution, value);
        let total = match self.cotangents[value] {
            None => contribution,
            Some(sum) => {
                let total = builder.add(sum, contribution);
                self.mark(builder.program, total, value);
                total
            }
        };
        self.cotangents[value] = Some(total);
    }

    /// Notes that `gradient` belongs to `value`, unless it is another value's already.
    fn mark(&self, program: &mut Program, gradient: Value, value: Value) {
        let forward = program.values[value].clone();
        let info = &mut program.values[gradient];
        if info.gradient_of.is_some() {
            return;
        }
        info.gradient_of = Some(value);
        info.name = forward.name.map(|name| format!("d_{name}"));
        info.role = if forward.role == Role::Parameter { Role::Gradient } else { info.role };
    }

    /// The cotangent of `value`, zeros if nothing depends on it.
    fn finish(&self, builder: &mut Builder, value: Value) -> Value {
        match self.cotangents[value] {
            Some(cotangent) => cotangent,
            None => builder.fill(0.0, &self.cotangent_type(builder.program, value)),
        }
    }

    fn outputs(&self, builder: &mut Builder) -> Vec<Output> {
        let of = |state: &dtlc_ir::State| (state.path.clone(), state.value, state.kind.clone());
        let states: Vec<_> = builder.program.states.iter().map(of).collect();
        let mut outputs = Vec::new();
        for (path, value, kind) in states {
            let StateKind::Parameter(_) = kind else { continue };
            builder.origin = builder.program.values[value].origin;
            builder.role = Role::Gradient;
            let gradient = self.finish(builder, value);
            self.mark(builder.program, gradient, value);
            outputs.push(Output { name: format!("grad.{path}"), value: gradient });
        }
        outputs
    }
}

/// `value` as `ty`, with the dims that `ty` lacks summed over.
fn sum_to(builder: &mut Builder, value: Value, ty: &Type) -> Value {
    let of_value = builder.ty(value).clone();
    let gone: Vec<_> = of_value.dims.iter().copied().filter(|&dim| !ty.has(dim)).collect();
    if gone.is_empty() {
        return builder.conform(value, ty);
    }
    let sum = builder.reduce(ReduceOp::Sum, value, &gone);
    builder.program.values[sum].ty.dtype = sum_dtype(of_value.dtype, ty.dtype);
    builder.conform(sum, ty)
}

/// The element type of a sum of `terms` where `wanted` is: sums are computed in f32, and kept so if that helps.
fn sum_dtype(terms: DType, wanted: DType) -> DType {
    match (terms, wanted) {
        (DType::Bf16 | DType::F16, DType::F32) => DType::F32,
        (terms, _) => terms,
    }
}
