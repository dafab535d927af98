//! What a pass refuses, as diagnostics: code, places, reasons, hint.
//!
//! From the passes' own error types to [`Diagnostic`]; decides nothing and prints nothing.

use crate::failure::Failure;
use crate::pipeline::Compilation;
use dtlc_codegen::assemble::AssembleError;
use dtlc_ir::{Fault, Origin, OriginInfo, Placement, Program};
use dtlc_lang::plan::MeshAxis;
use dtlc_lang::{Code, Compiled, Diagnostic, SourceFile, SourceMap, Span};
use dtlc_passes::partition::{self, PlacementError, PlacementErrorKind};
use dtlc_passes::{PassError, PassErrorKind, Place};

/// Why a compilation ended early.
#[derive(Debug)]
pub enum Trouble {
    /// A pass can't do what the model or the plan asks for.
    Pass(PassError),
    /// Placements that can't be, each place in the model as a position in its file.
    Placement(Vec<(PlacementError, Vec<Option<OriginInfo>>)>),
    /// The command line asks for what can't be.
    Usage(String),
    /// This machine can't run programs.
    Machine(String),
    /// A bug of ours.
    Bug(String),
}

impl Trouble {
    /// Placement errors about a program, whose origins they name.
    #[must_use]
    pub fn placement(errors: Vec<PlacementError>, program: &Program) -> Self {
        let info = |place: &partition::Place| match place {
            partition::Place::Plan(_) => None,
            partition::Place::Model(origin) => origin_info(program, *origin),
        };
        let located = errors.into_iter().map(|error| {
            let places = error.places.iter().map(|(place, _)| info(place)).collect();
            (error, places)
        });
        Self::Placement(located.collect())
    }

    /// The same for a user, with the texts that it points into.
    #[must_use]
    pub fn into_failure(self, sources: &SourceMap) -> Failure {
        let diagnostics = match self {
            Self::Pass(error) if error.kind == PassErrorKind::Bug => return Failure::Bug(error.to_string()),
            Self::Pass(error) => vec![of_pass(&error, sources)],
            Self::Placement(errors) => {
                let internal = errors.iter().find(|(error, _)| error.kind == PlacementErrorKind::Internal);
                if let Some((error, _)) = internal {
                    return Failure::Bug(error.message.clone());
                }
                errors.iter().map(|(error, places)| of_placement(error, places, sources)).collect()
            }
            Self::Usage(text) => return Failure::Usage(text),
            Self::Machine(text) => return Failure::Fault(text),
            Self::Bug(text) => return Failure::Bug(text),
        };
        Failure::Input { diagnostics, sources: sources.clone() }
    }
}

/// What a plan asks for in vain: rules from which nothing follows, and axes of its mesh that nothing is split over.
#[must_use]
pub fn remarks(compiled: &Compiled, compilation: &Compilation) -> Vec<Diagnostic> {
    let (Some(plan), Some(sharded)) = (&compiled.plan, &compilation.sharded) else { return Vec::new() };
    let rules = sharded.idle.iter();
    let rules = rules.map(|remark| of_placement(remark, &vec![None; remark.places.len()], &compiled.sources));
    let idle = plan.mesh.iter().filter(|axis| axis.size > 1 && !is_split(&sharded.program, &axis.name));
    let axes = idle.map(|MeshAxis { name, size, span, .. }| {
        let title = format!("nothing is split over `{name}`");
        let label = format!("its {size} ranks compute the same");
        let hint = format!("step data: acts B -> {name}    // or another dimension");
        Diagnostic::warning(Code::NoEffect, title).label(*span, label).hint(hint)
    });
    rules.chain(axes).collect()
}

/// Whether a value of a program lies in parts over an axis, or is a sum that is spread over it.
fn is_split(program: &Program, axis: &str) -> bool {
    let parts = program.mesh.find(axis);
    let is_spread = |placement: &Placement| {
        parts.iter().any(|&part| placement.dim_on(part).is_some() || placement.partial_on(part).is_some())
    };
    program.values.values().any(|info| is_spread(&info.ty.placement))
}

impl From<PassError> for Trouble {
    fn from(error: PassError) -> Self {
        Self::Pass(error)
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Bug(fault.to_string())
    }
}

impl From<AssembleError> for Trouble {
    fn from(error: AssembleError) -> Self {
        Self::Bug(error.to_string())
    }
}

/// The origin's place, where the source has one.
#[must_use]
pub fn origin_info(program: &Program, origin: Origin) -> Option<OriginInfo> {
    program.origins.get(origin).filter(|info| info.line > 0).cloned()
}

/// The word or sign of the source that an origin stands at.
#[must_use]
pub fn span_of(info: &OriginInfo, sources: &SourceMap) -> Option<Span> {
    let file = sources.files().find(|file| file.name == info.file)?;
    let start = offset(file, info.line, info.column)?;
    let rest = file.text.get(start as usize..)?;
    let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
    let length = if word > 0 { word } else { rest.chars().next().map_or(0, char::len_utf8) };
    Some(Span::new(file.id, start, start + length as u32))
}

fn offset(file: &SourceFile, line: u32, column: u32) -> Option<u32> {
    let text = &file.text;
    let before = line.checked_sub(1)? as usize;
    let start = if before == 0 { 0 } else { text.match_indices('\n').nth(before - 1)?.0 + 1 };
    let inside: usize =
        text[start..].chars().take(column.saturating_sub(1) as usize).map(char::len_utf8).sum();
    Some((start + inside) as u32)
}

fn of_pass(error: &PassError, sources: &SourceMap) -> Diagnostic {
    let code = match error.kind {
        PassErrorKind::Batch => Code::InvalidBatch,
        PassErrorKind::Dimension => Code::UnusableDimension,
        PassErrorKind::NotASum => Code::LossNotASum,
        PassErrorKind::NoOptimizer => Code::NoOptimizer,
        PassErrorKind::TooLarge => Code::TooLarge,
        PassErrorKind::Limit => Code::LimitReached,
        PassErrorKind::Bug => Code::Fault,
    };
    let mut diagnostic = Diagnostic::error(code, error.text.clone());
    let span = match &error.place {
        Place::Span(span) => Some(*span),
        Place::Origin(info) => span_of(info, sources),
        Place::Nowhere => None,
    };
    if let Some(span) = span {
        diagnostic = diagnostic.label(span, "here");
    }
    match &error.help {
        Some(help) => diagnostic.hint(help.clone()),
        None => diagnostic,
    }
}

fn of_placement(error: &PlacementError, places: &[Option<OriginInfo>], sources: &SourceMap) -> Diagnostic {
    let code = match error.kind {
        PlacementErrorKind::UnknownAxis => Code::UnknownAxis,
        PlacementErrorKind::AxisTwice => Code::AxisTwice,
        PlacementErrorKind::NoMatch | PlacementErrorKind::UnknownName => Code::RuleMatchesNothing,
        PlacementErrorKind::NotDivisible => Code::NotDivided,
        PlacementErrorKind::DuplicateRule => Code::ConflictingRules,
        PlacementErrorKind::Conflict => Code::RuleConflict,
        PlacementErrorKind::StackedDimension => Code::NotSupported,
        PlacementErrorKind::NeedsLeave => Code::NeedsLeave,
        PlacementErrorKind::NoEffect => Code::NoEffect,
        PlacementErrorKind::Internal => Code::Fault,
    };
    let of_severity =
        if error.kind == PlacementErrorKind::NoEffect { Diagnostic::warning } else { Diagnostic::error };
    let mut diagnostic = of_severity(code, error.message.clone());
    for ((place, label), info) in error.places.iter().zip(places) {
        let span = match place {
            partition::Place::Plan(span) => Some(*span),
            partition::Place::Model(_) => info.as_ref().and_then(|info| span_of(info, sources)),
        };
        if let Some(span) = span {
            diagnostic = diagnostic.label(span, label.clone());
        }
    }
    for reason in &error.reasons {
        diagnostic = diagnostic.note(reason.clone());
    }
    match &error.hint {
        Some(hint) => diagnostic.hint(hint.clone()),
        None => diagnostic,
    }
}
