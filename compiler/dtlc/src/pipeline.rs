//! The only ordered list of passes: from a typed model and plan to a program that runs.
//!
//! The text of a file becomes a typed model in `dtlc-lang`; everything behind that is here, with the verifier between
//! passes. Each stage's program is kept for whoever shows it. Reads no files and prints nothing.

use crate::diagnose::Trouble;
use dtlc_codegen::assemble::{Assembled, assemble};
use dtlc_codegen::cranelift::TargetFeatures;
use dtlc_ir::{Placement, Program, Type, verify};
use dtlc_lang::model::Model;
use dtlc_lang::plan::Plan;
use dtlc_lang::{Compiled, SourceMap, Span};
use dtlc_passes::limits::{check_limits, check_memory};
use dtlc_passes::memory::plan_memory;
use dtlc_passes::partition::{
    Partitioned, PlacementError, PlacementRequest, merge_collectives, partition, plan_reshards,
};
use dtlc_passes::{
    ChunkBudget, Chunked, Lowered, Position, chunk, fuse, joint, lower, rematerialise, start_collectives,
};

pub use dtlc_passes::Mode;

/// The stages of the IR, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The model on one device.
    Logical,
    /// With the backward pass and the optimizer.
    Joint,
    /// With placements.
    Sharded,
    /// With collectives, kernels and a memory plan.
    Scheduled,
    /// Ready to run.
    Program,
}

/// Every stage of a compilation, up to the one that was asked for.
#[derive(Clone, Debug)]
pub struct Compilation {
    /// Micro-batches that a rank works through in a step.
    pub micro_batches: u64,
    /// Stage `logical`.
    pub logical: Program,
    /// Stage `joint`.
    pub joint: Option<Program>,
    /// Stage `sharded`.
    pub sharded: Option<Sharded>,
    /// Stage `scheduled`.
    pub scheduled: Option<Scheduled>,
    /// Stages `kernels` and `program`.
    pub assembled: Option<Assembled>,
}

/// A program with placements.
#[derive(Clone, Debug)]
pub struct Sharded {
    /// The program, with a reshard wherever data moves.
    pub program: Program,
    /// Parameters that a store rule left whole, as no dimension was divided: the path and the rule.
    pub left_whole: Vec<(String, String)>,
    /// For each parameter that has a gradient, the type that it is stored in until the update.
    pub gradient_stores: Vec<Type>,
    /// For each state, where it lies while it is used.
    pub uses: Vec<Placement>,
    /// Rules from which nothing follows.
    pub idle: Vec<PlacementError>,
}

/// A program in the order that it runs in.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The program with its collectives, before fusion.
    pub planned: Program,
    /// The fused program with its memory plan.
    pub program: Program,
    /// The products that are computed in chunks.
    pub chunked: Vec<Chunked>,
}

/// Compiles a typed model as far as `last`.
///
/// # Errors
/// What the plan or the model asks for and a pass can't do; or a bug of ours.
pub fn compile(input: &Compiled, mode: Mode, last: Stage) -> Result<Compilation, Trouble> {
    compile_within(input, mode, last, &ChunkBudget::default())
}

/// The same, with products in other chunks than those of this machine.
///
/// # Errors
/// As [`compile`].
pub fn compile_within(
    input: &Compiled,
    mode: Mode,
    last: Stage,
    budget: &ChunkBudget,
) -> Result<Compilation, Trouble> {
    let Compiled { sources, model, plan } = input;
    stages(sources, model, plan.as_ref(), mode, last, budget)
}

/// The same for a model and a plan of one's own making.
///
/// # Errors
/// As [`compile`].
pub fn compile_parts(
    sources: &SourceMap,
    model: &Model,
    plan: Option<&Plan>,
    mode: Mode,
    last: Stage,
) -> Result<Compilation, Trouble> {
    stages(sources, model, plan, mode, last, &ChunkBudget::default())
}

fn stages(
    sources: &SourceMap,
    model: &Model,
    plan: Option<&Plan>,
    mode: Mode,
    last: Stage,
    budget: &ChunkBudget,
) -> Result<Compilation, Trouble> {
    let lowered = lower(model, plan, &|span| position(sources, span))?;
    verify::logical(&lowered.program)?;
    let micro_batches = lowered.micro.map_or(1, |dim| lowered.program.dims[dim].size);
    let logical = lowered.program.clone();
    let mut compilation =
        Compilation { micro_batches, logical, joint: None, sharded: None, scheduled: None, assembled: None };
    if last == Stage::Logical {
        return Ok(compilation);
    }

    let lowered = join(lowered, plan, mode)?;
    compilation.joint = Some(lowered.program.clone());
    if last == Stage::Joint {
        return Ok(compilation);
    }

    let sharded = shard(&lowered, model, plan)?;
    compilation.sharded = Some(sharded.clone());
    if last == Stage::Sharded {
        return Ok(compilation);
    }

    let scheduled = schedule(sharded.program, plan, budget)?;
    if last == Stage::Program {
        let features = TargetFeatures::host().map_err(Trouble::Machine)?;
        compilation.assembled = Some(assemble(&scheduled.program, features)?);
    }
    compilation.scheduled = Some(scheduled);
    Ok(compilation)
}

/// `logical` → `joint`.
fn join(mut lowered: Lowered, plan: Option<&Plan>, mode: Mode) -> Result<Lowered, Trouble> {
    joint(&mut lowered, plan, mode)?;
    verify::joint(&lowered.program)?;
    Ok(lowered)
}

/// `joint` → `sharded`.
fn shard(lowered: &Lowered, model: &Model, plan: Option<&Plan>) -> Result<Sharded, Trouble> {
    let mut request = PlacementRequest::default();
    // Without a mesh there is nothing that an annotation could be about.
    if let Some(plan) = plan.filter(|plan| !plan.mesh.is_empty()) {
        request = PlacementRequest::from_plan(plan, model, |dim| lowered.dims[dim].to_vec());
        request.add_pins(&lowered.program, &lowered.pins);
    }
    let origins = &lowered.program;
    let partitioned =
        partition(lowered.program.clone(), &request).map_err(|errors| Trouble::placement(errors, origins))?;
    let Partitioned { program, left_whole, gradient_stores, uses, idle } = partitioned;
    verify::sharded(&program)?;
    Ok(Sharded { program, left_whole, gradient_stores, uses, idle })
}

/// `sharded` → `scheduled`.
fn schedule(mut program: Program, plan: Option<&Plan>, budget: &ChunkBudget) -> Result<Scheduled, Trouble> {
    let origins = program.clone();
    plan_reshards(&mut program).map_err(|errors| Trouble::placement(errors, &origins))?;
    rematerialise(&mut program, plan.map_or(&[], |plan| &plan.remat));
    let chunked = chunk(&mut program, budget);
    merge_collectives(&mut program);
    verify::sharded(&program)?;
    let planned = program.clone();
    fuse(&mut program);
    start_collectives(&mut program);
    verify::scheduled(&program)?;
    check_limits(&program)?;
    let memory = plan_memory(&program);
    check_memory(&program, &memory)?;
    program.memory = Some(memory);
    Ok(Scheduled { planned, program, chunked })
}

fn position(sources: &SourceMap, span: Span) -> Position {
    let place = sources.position(span);
    Position { file: sources.file(span.file).name.clone(), line: place.line, column: place.column }
}
