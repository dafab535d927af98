//! What a compilation costs: the figures behind `dtlc explain`, in the shape of its JSON.
//!
//! Reads the stages of a [`Compilation`]; changes nothing. Memory and work are the busiest rank's: all ranks run one
//! program on shards of equal size, pads included, so every rank is.

mod annotate;
mod flops;
mod limits;
mod memory;
mod overrides;

pub use annotate::{annotated, shortened};
pub use limits::refusals;
pub use memory::Memory;

use crate::failure::Failure;
use crate::pipeline::{Compilation, Scheduled};
use dtlc_ir::{OriginInfo, Program};
use dtlc_lang::Compiled;
use dtlc_passes::Chunked;
use dtlc_passes::report::{CollectiveUse, collectives};
use flops::flops;
use serde::{Serialize, Serializer};

/// The figures of a compilation. Keys are those of `cli.md`.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Ranks of the mesh.
    pub ranks: u64,
    /// Axes of the mesh as the plan writes it.
    #[serde(serialize_with = "as_map")]
    pub mesh: Vec<(String, u64)>,
    /// Parameters of the model, all layers counted.
    pub params: u64,
    /// Work of a step.
    pub flops: Flops,
    /// Memory of a rank.
    pub memory: Memory,
    /// Every collective in the program's order.
    pub collectives: Vec<CollectiveFigure>,
    /// Products too large to hold, which are computed in chunks.
    pub chunked: Vec<ChunkedFigure>,
    /// There are no pipelines yet: always one stage.
    pub pipeline: Pipeline,
}

/// Floating-point operations of a step on a rank: two for each multiplication and addition of matrix products and
/// attention, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Flops {
    /// The mathematics once; causal attention counted as half.
    pub model: u64,
    /// With what is computed again for the backward pass.
    pub hardware: u64,
}

/// One call in the program's text.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveFigure {
    /// `all_gather` and the like.
    pub kind: &'static str,
    /// `tp`, `dp,tp`, or a part such as `tp.0`.
    pub axis: String,
    /// The layer that it stands in, or `step`.
    pub scope: String,
    /// `forward`, `recompute`, `backward`, `gradient` or `update`.
    pub phase: &'static str,
    /// Calls in a step.
    pub per_step: u64,
    /// Calls in one run of the scope.
    pub per_run: u64,
    /// The full (gathered, or not yet reduced) size of one call on a rank.
    pub bytes: u64,
    /// What a rank sends for it in a ring.
    pub wire_bytes: u64,
    /// Why, with every tensor that goes along.
    pub why: String,
    /// The same, one entry a tensor.
    #[serde(skip)]
    pub reasons: Vec<String>,
    /// Where the source asks for it.
    pub span: String,
}

/// A product that is never whole in memory.
#[derive(Clone, Debug, Serialize)]
pub struct ChunkedFigure {
    /// What it is called.
    pub name: String,
    /// `file:line:column`.
    pub span: String,
    /// The dimension that is cut.
    pub dim: String,
    /// Chunks on a rank.
    pub chunks: u64,
    /// Bytes on a rank, if it were whole.
    pub bytes: u64,
}

/// The pipeline: none yet.
#[derive(Clone, Debug, Serialize)]
pub struct Pipeline {
    /// Stages.
    pub stages: u64,
    /// Micro-batches of a step.
    pub microbatches: u64,
    /// The schedule; `none` with one stage.
    pub schedule: &'static str,
    /// The part of a step in which a stage waits.
    pub bubble: f64,
}

impl Figures {
    /// The figures of a whole compilation.
    ///
    /// # Errors
    /// A compilation that did not go to its end: a bug.
    pub fn new(compiled: &Compiled, compilation: &Compilation) -> Result<Self, Failure> {
        let scheduled = scheduled(compilation)?;
        let mesh = compiled.plan.iter().flat_map(|plan| &plan.mesh);
        let params = compiled.model.parameter_count();
        Ok(Self {
            ranks: scheduled.program.mesh.ranks(),
            mesh: mesh.map(|axis| (axis.name.clone(), axis.size)).collect(),
            params: params
                .ok_or_else(|| Failure::Fault("more parameters than 64 bits can count".to_owned()))?,
            flops: flops(&scheduled.planned),
            memory: Memory::new(compilation)?,
            collectives: collectives(&scheduled.planned)
                .iter()
                .map(|one| collective_figure(&scheduled.planned, one))
                .collect(),
            chunked: scheduled.chunked.iter().map(|one| chunked_figure(&scheduled.planned, one)).collect(),
            pipeline: Pipeline {
                stages: 1,
                microbatches: compilation.micro_batches,
                schedule: "none",
                bubble: 0.0,
            },
        })
    }
}

/// The scheduled stage.
///
/// # Errors
/// A compilation that did not get there: a bug.
pub fn scheduled(compilation: &Compilation) -> Result<&Scheduled, Failure> {
    let scheduled = compilation.scheduled.as_ref();
    scheduled.ok_or_else(|| Failure::Bug("a compilation that stopped before its schedule".to_owned()))
}

/// `file:line:column`, or `dtlc` for what no line of the source asks for.
#[must_use]
pub fn place(info: &OriginInfo) -> String {
    if info.line == 0 {
        return "dtlc".to_owned();
    }
    format!("{}:{}:{}", info.file, info.line, info.column)
}

/// A number of bytes for people, in decimal units.
#[must_use]
pub fn bytes(count: u64) -> String {
    scaled(count, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// A number of things for people.
#[must_use]
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A large number for people: `1.23 T`.
#[must_use]
pub fn scaled(count: u64, units: &[&str]) -> String {
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if unit == 0 { 0 } else { 2 };
    format!("{value:.decimals$} {}", units[unit]).trim_end().to_owned()
}

fn collective_figure(program: &Program, one: &CollectiveUse) -> CollectiveFigure {
    CollectiveFigure {
        kind: one.kind.name(),
        axis: one.axis.clone(),
        scope: one.scope.clone(),
        phase: one.phase.name(),
        per_step: one.per_step,
        per_run: one.per_run,
        bytes: one.bytes,
        wire_bytes: one.wire_bytes,
        why: one.why.join("; "),
        reasons: one.why.clone(),
        span: place(&program.origins[one.origin]),
    }
}

fn chunked_figure(program: &Program, one: &Chunked) -> ChunkedFigure {
    ChunkedFigure {
        name: one.name.clone(),
        span: place(&program.origins[one.origin]),
        dim: one.dim.clone(),
        chunks: one.chunks,
        bytes: one.whole,
    }
}

fn as_map<S: Serializer>(entries: &[(String, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(name, size)| (name, size)))
}
