//! From a typed model and plan to ranks that run: compiles, goes through the bytes of the artifact, starts a session.

use crate::failure::Failure;
use crate::pipeline::{Mode, Stage, compile_parts};
use dtlc_ir::{Op, Program as IrProgram, Region, ScalarOp, Value};
use dtlc_lang::model::Model;
use dtlc_lang::plan::Plan;
use dtlc_lang::{Compiled, SourceMap};
use dtlc_runtime::program::Program;
use dtlc_runtime::session::{Options, Session};

/// Compiles a program and starts its ranks, with all state at zero.
///
/// # Errors
/// The model or the plan is at fault, this machine can't run it, or a bug.
pub fn start(compiled: &Compiled, mode: Mode) -> Result<Session, Failure> {
    start_parts(&compiled.sources, &compiled.model, compiled.plan.as_ref(), mode)
}

/// The same for a model and plan of one's own making.
///
/// # Errors
/// As [`start`].
pub fn start_parts(
    sources: &SourceMap,
    model: &Model,
    plan: Option<&Plan>,
    mode: Mode,
) -> Result<Session, Failure> {
    let compilation = compile_parts(sources, model, plan, mode, Stage::Program)
        .map_err(|trouble| trouble.into_failure(sources))?;
    let assembled =
        compilation.assembled.ok_or_else(|| Failure::Bug("a compilation without a program".to_owned()))?;
    // What runs is what was written: the same bytes that an artifact holds.
    let bytes = assembled.program.to_bytes()?;
    let program = Program::from_bytes(&bytes)?;
    Ok(Session::start(program, Options::default())?)
}

/// The sizes of the tables that integer inputs index: names of inputs, and the smallest size each.
#[must_use]
pub fn index_bounds(program: &IrProgram) -> Vec<(String, u64)> {
    let mut bounds = Vec::new();
    for input in &program.inputs {
        let mut aliases = vec![input.value];
        let mut bound = None;
        walk(program, &program.main, &mut aliases, &mut bound);
        if let Some(bound) = bound {
            bounds.push((input.name.clone(), bound));
        }
    }
    bounds
}

/// Follows an input through what keeps its numbers, to the tables that it indexes.
fn walk(program: &IrProgram, region: &Region, aliases: &mut Vec<Value>, bound: &mut Option<u64>) {
    for inst in &region.insts {
        let is_alias = |arg: Option<&Value>| arg.is_some_and(|arg| aliases.contains(arg));
        if let Op::Scan(scan) = &inst.op {
            // Its carries and slices are the body's first parameters, in the order of the arguments.
            let inner: Vec<Value> = inst
                .args
                .iter()
                .zip(&scan.body.params)
                .filter(|(arg, _)| is_alias(Some(arg)))
                .map(|(_, &param)| param)
                .collect();
            aliases.extend(inner);
            walk(program, &scan.body, aliases, bound);
        } else if let Op::Take { dim } = &inst.op
            && is_alias(inst.args.get(1))
        {
            let size = program.dims[*dim].size;
            *bound = Some(bound.map_or(size, |known| known.min(size)));
        } else if keeps_numbers(&inst.op) && is_alias(inst.args.first()) {
            aliases.extend(&inst.results);
        }
    }
}

fn keeps_numbers(op: &Op) -> bool {
    let is_cast = matches!(op, Op::Map(ScalarOp::Cast));
    is_cast || matches!(op, Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. })
}
