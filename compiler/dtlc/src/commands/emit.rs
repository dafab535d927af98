//! `dtlc emit`: one stage as text.

use crate::cli::{Emit, EmitStage, Source};
use crate::device::nvrtc_failure;
use crate::failure::Failure;
use crate::load::{SourceText, options};
use crate::output::Output;
use crate::pipeline::{Compilation, Mode, Stage, compile};
use dtlc_codegen::assemble::Assembled;
use dtlc_codegen::cuda::nvrtc::{Architecture, Job, Nvrtc, Search};
use dtlc_codegen::cuda::{self, Places};
use dtlc_ir::text;
use dtlc_lang::{Options, SourceMap};
use dtlc_runtime::program::text::Detail;
use serde_json::json;

/// Prints a stage.
///
/// # Errors
/// The file is at fault, or there is no such stage or rank.
pub fn run(arguments: &Emit, output: &Output) -> Result<(), Failure> {
    let Emit { source: Source { file, choice }, stage, rank } = arguments;
    let source = SourceText::read(file)?;
    let text = stage_text(&source, &options(choice), *stage, *rank, Detail::Full)?;
    if output.json {
        return output.json(&json!({ "stage": name(*stage), "text": text }));
    }
    output.text(&text)
}

/// The text of a stage.
///
/// # Errors
/// The file is at fault, or there is no such stage or rank.
pub fn stage_text(
    source: &SourceText,
    options: &Options,
    stage: EmitStage,
    rank: Option<u64>,
    detail: Detail,
) -> Result<String, Failure> {
    let last = match stage {
        EmitStage::Ast => return syntax(source),
        EmitStage::Model | EmitStage::Logical => Stage::Logical,
        EmitStage::Joint => Stage::Joint,
        EmitStage::Sharded => Stage::Sharded,
        EmitStage::Scheduled => Stage::Scheduled,
        EmitStage::Kernels | EmitStage::Cuda | EmitStage::Ptx | EmitStage::Clif | EmitStage::Program => {
            Stage::Program
        }
    };
    let compiled = source.compile(options)?;
    let ranks: u64 = compiled.plan.iter().flat_map(|plan| &plan.mesh).map(|axis| axis.size).product();
    if let Some(rank) = rank.filter(|&rank| rank >= ranks) {
        return Err(Failure::Usage(format!("there is no rank {rank}: the plan has {ranks}, counted from 0")));
    }
    if stage == EmitStage::Model {
        return Ok(match detail {
            Detail::Full => dtlc_lang::text::print(&compiled.model),
            Detail::Step => compiled.model.to_string(),
        });
    }
    let mode = Mode::of_plan(compiled.plan.as_ref());
    let compilation =
        compile(&compiled, mode, last).map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    let text = match stage {
        EmitStage::Kernels => assembled(&compilation).map(kernels),
        EmitStage::Cuda => {
            assembled(&compilation).map(|assembled| cuda(assembled, Places::Comments)).transpose()?
        }
        EmitStage::Ptx => assembled(&compilation).map(ptx).transpose()?,
        EmitStage::Clif => assembled(&compilation).map(clif),
        EmitStage::Program => {
            assembled(&compilation).map(|assembled| program(assembled, rank, detail)).transpose()?
        }
        EmitStage::Logical | EmitStage::Joint | EmitStage::Sharded | EmitStage::Scheduled => ir(&compilation)
            .map(match detail {
                Detail::Full => text::print,
                Detail::Step => step,
            }),
        // They have returned above.
        EmitStage::Ast | EmitStage::Model => None,
    };
    text.ok_or_else(|| Failure::Bug(format!("stage `{}` was not reached", name(stage))))
}

/// A stage's name on the command line.
#[must_use]
pub fn name(stage: EmitStage) -> String {
    clap::ValueEnum::to_possible_value(&stage).map_or_else(String::new, |value| value.get_name().to_owned())
}

fn syntax(source: &SourceText) -> Result<String, Failure> {
    let mut sources = SourceMap::new();
    let added = sources.add_bytes(source.name.clone(), &source.bytes).map_err(|diagnostic| vec![*diagnostic]);
    match added.and_then(|file| dtlc_lang::format::format(sources.file(file))) {
        Ok(text) => Ok(text),
        Err(diagnostics) => Err(Failure::Input { diagnostics, sources }),
    }
}

/// The last stage of the IR that was reached.
fn ir(compilation: &Compilation) -> Option<&dtlc_ir::Program> {
    let scheduled = compilation.scheduled.as_ref().map(|scheduled| &scheduled.program);
    let sharded = compilation.sharded.as_ref().map(|sharded| &sharded.program);
    scheduled.or(sharded).or(compilation.joint.as_ref()).or(Some(&compilation.logical))
}

/// What a change of a program's meaning shows in: sizes and instructions.
fn step(program: &dtlc_ir::Program) -> String {
    let mut text = format!("program {}\n", program.name);
    for axis in program.mesh.axes.values() {
        text.push_str(&format!("axis {} = {}\n", axis.full_name(), axis.size));
    }
    for dim in program.dims.values() {
        text.push_str(&format!("dim {} = {}{}\n", dim.name, dim.size, if dim.pad { " pad" } else { "" }));
    }
    text.push_str(&text::print_placements(program));
    text
}

fn assembled(compilation: &Compilation) -> Option<&Assembled> {
    compilation.assembled.as_ref()
}

fn kernels(assembled: &Assembled) -> String {
    assembled.kernels.iter().map(|listing| format!("{}\n", listing.kernel)).collect()
}

fn cuda(assembled: &Assembled, places: Places) -> Result<String, Failure> {
    let kernels = cuda::emit_program(assembled).map_err(|error| Failure::Bug(error.to_string()))?;
    Ok(cuda::file(&kernels, places))
}

/// What NVRTC makes of stage `cuda`, for the oldest architecture: all others can run it.
fn ptx(assembled: &Assembled) -> Result<String, Failure> {
    let source = cuda(assembled, Places::Directives)?;
    let compiled = Nvrtc::load(&Search::of_environment(), None)
        .and_then(|nvrtc| nvrtc.compile(Job { source: &source, architecture: Architecture::Sm80 }));
    match compiled {
        Ok(binary) => Ok(binary.ptx),
        Err(error) => Err(nvrtc_failure(&error)),
    }
}

fn clif(assembled: &Assembled) -> String {
    let texts = assembled.kernels.iter();
    texts.map(|listing| format!("; {}\n{}\n", listing.kernel.name, listing.clif.trim_end())).collect()
}

/// The runtime's program, and where in the mesh a rank stands.
fn program(assembled: &Assembled, rank: Option<u64>, detail: Detail) -> Result<String, Failure> {
    let program = &assembled.program;
    let text = program.to_text(detail)?;
    let Some(rank) = rank else { return Ok(text) };
    let stands = json!({ "number": rank, "coordinates": program.mesh.coordinates(rank) });
    Ok(text.replacen('{', &format!("{{\n  \"rank\": {stands},"), 1))
}
