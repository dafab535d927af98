//! The stage with placements: every operation runs on each rank's own parts, and only reshards and
//! collectives move data.

use super::structure::check;
use super::{Sharded, Verified, collective, partial, placement};
use crate::fault::Fault;
use crate::op::{Op, Scan, ScanOutput};
use crate::program::{Inst, Program, Region, Value};
use crate::text::print_type;
use crate::types::{Partial, Placement, ReduceOp, Type};
use cranelift_entity::EntitySet;

/// Checks a program with placements.
///
/// # Errors
/// The first rule broken.
pub fn sharded(program: &Program) -> Result<Verified<'_, Sharded>, Fault> {
    let rules = Rules::new(program);
    rules.signature("verify sharded")?;
    check(program, "verify sharded", &mut |_, inst| match inst.op {
        Op::Fused(_) => Err("nothing is fused before scheduling".into()),
        Op::Done => Err("nothing is in flight before scheduling".into()),
        _ => rules.inst(inst),
    })?;
    Ok(Verified::new(program))
}

/// The placement rules of a program.
pub(super) struct Rules<'a> {
    program: &'a Program,
    zeros: EntitySet<Value>,
}

impl<'a> Rules<'a> {
    pub(super) fn new(program: &'a Program) -> Rules<'a> {
        Rules { program, zeros: partial::zeros(program) }
    }

    /// What comes into a step and leaves it is whole, each type makes sense.
    pub(super) fn signature(&self, found_by: &str) -> Result<(), Fault> {
        let fault = |value: Value, message: String| {
            Fault::of_program(found_by, format!("%{}: {message}", self.program.display_value(value)))
        };
        for &value in &self.program.main.params {
            placement::well_formed(self.program, self.ty(value)).map_err(|message| fault(value, message))?;
        }
        let main = &self.program.main;
        let mut ports = main.params.iter().chain(&main.yields);
        match ports.find(|&&value| !self.ty(value).placement.partials().is_empty()) {
            Some(&value) => {
                Err(fault(value, "is partial, and a step takes and returns nothing partial".into()))
            }
            None => Ok(()),
        }
    }

    /// One instruction, its body aside.
    pub(super) fn inst(&self, inst: &Inst) -> Result<(), String> {
        let (args, results) = (self.types(&inst.args), self.types(&inst.results));
        let params = inst.op.region().map(|region| &region.params[..]).unwrap_or_default();
        for &value in inst.results.iter().chain(params) {
            placement::well_formed(self.program, self.ty(value))
                .map_err(|message| format!("%{}: {message}", self.program.display_value(value)))?;
        }
        match &inst.op {
            Op::Scan(scan) => self.scan(scan, &args, &results),
            Op::Fused(body) => self.fused(body, &args, &results),
            Op::Reshard(_) => collective::reshard(args[0], results[0]),
            Op::LocalSlice => collective::local_slice(self.program, args[0], results[0]),
            Op::Collective(call) => collective::collective(self.program, call, &args, &results),
            Op::Done => collective::done(&args, &results),
            Op::StopGradient => Err("differentiation leaves no stop_gradient".into()),
            Op::Constant(_)
            | Op::Iota { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot(_)
            | Op::Rename { .. } => self.local(inst, &args, &results),
            Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. } => {
                self.local(inst, &args, &results)
            }
            Op::Take { .. } | Op::ScatterAdd { .. } | Op::Random { .. } => self.local(inst, &args, &results),
            Op::Attention(_) | Op::AttentionGradient(_) => self.local(inst, &args, &results),
        }
    }

    fn ty(&self, value: Value) -> &'a Type {
        self.program.ty(value)
    }

    fn is_sum(&self, value: Value) -> bool {
        self.ty(value).placement.partials().iter().all(|partial| partial.op == ReduceOp::Sum)
    }

    fn types(&self, values: &[Value]) -> Vec<&'a Type> {
        values.iter().map(|&value| self.ty(value)).collect()
    }

    /// An operation that each rank runs by itself.
    fn local(&self, inst: &Inst, args: &[&Type], results: &[&Type]) -> Result<(), String> {
        let zero: Vec<bool> = inst.args.iter().map(|&arg| self.zeros.contains(arg)).collect();
        let passed = partial::passed(&inst.op, args, results[0], &zero)?;
        let born = placement::born(self.program, &inst.op, args, results)?;
        if inst.results.iter().all(|&result| self.zeros.contains(result) && self.is_sum(result)) {
            // Zeros are right under every placement: nothing is the sum of nothings.
            return Ok(());
        }
        for (result, mut expected) in results.iter().zip(born) {
            expected.extend(&passed);
            expected.sort_unstable();
            expected.dedup();
            let found: &[Partial] = result.placement.partials();
            if found != expected {
                let mut wanted = Type::scalar(result.dtype);
                expected.iter().for_each(|partial| wanted.placement.add_partial(partial.axis, partial.op));
                let [found, wanted] =
                    [*result, &wanted].map(|ty| print_type(self.program, &without_dims(ty)));
                return Err(format!("the result comes out as {wanted}, but says {found}"));
            }
        }
        Ok(())
    }

    fn scan(&self, scan: &Scan, args: &[&Type], results: &[&Type]) -> Result<(), String> {
        let (params, yields) = (self.types(&scan.body.params), self.types(&scan.body.yields));
        let (carries, stacks) = (scan.carries, scan.stacks);
        same(&args[..carries], &params[..carries], "an initial value and its carry")?;
        same(&yields[..carries], &params[..carries], "a yielded value and its carry")?;
        same(&results[..carries], &params[..carries], "a final value and its carry")?;
        same(&args[carries..carries + stacks], &params[carries..], "a stack and its slice")?;
        same(&results[carries..], &yields[carries..], "a stack and what it is made of")?;
        let mut initial = args[carries + stacks..].iter();
        for (output, result) in scan.outputs.iter().zip(&results[carries..]) {
            match output {
                ScanOutput::Stack => {}
                ScanOutput::Accumulate | ScanOutput::Sum => {
                    let initial: Vec<&Type> = initial.next().into_iter().copied().collect();
                    same(&initial, &[*result], "an initial value and what is added to it")?;
                }
            }
        }
        Ok(())
    }

    fn fused(&self, body: &Region, args: &[&Type], results: &[&Type]) -> Result<(), String> {
        same(args, &self.types(&body.params), "an argument and its parameter")?;
        same(&self.types(&body.yields), results, "a yield and its result")
    }
}

/// The element type and partial axes alone, for messages.
fn without_dims(ty: &Type) -> Type {
    let mut bare = Type::scalar(ty.dtype);
    ty.placement.partials().iter().for_each(|partial| bare.placement.add_partial(partial.axis, partial.op));
    bare
}

/// Placements that must be equal. A stack equals its slice only if the stacked dim isn't split.
fn same(one: &[&Type], other: &[&Type], what: &str) -> Result<(), String> {
    let placements =
        |types: &[&Type]| types.iter().map(|ty| ty.placement.clone()).collect::<Vec<Placement>>();
    match placements(one) == placements(other) {
        true => Ok(()),
        false => Err(format!("{what} are placed differently")),
    }
}
