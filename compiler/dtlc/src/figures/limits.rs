//! Holds a compilation against what its plan promises: `memory` and `expect`.

use super::{Figures, bytes};
use crate::failure::Failure;
use crate::pipeline::Compilation;
use dtlc_lang::plan::Expect;
use dtlc_lang::{Code, Compiled, Diagnostic};

/// Lines of the largest buffers that a refusal lists.
const LARGEST: usize = 8;

/// Everything that the plan promised and the compilation does not keep.
///
/// # Errors
/// A bug.
pub fn refusals(
    compiled: &Compiled,
    _compilation: &Compilation,
    figures: &Figures,
) -> Result<Vec<Diagnostic>, Failure> {
    let Some(plan) = &compiled.plan else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let peak = figures.memory.peak;
    if let Some(limit) = plan.memory.filter(|limit| peak > limit.bytes) {
        let (needs, may) = (bytes(peak), bytes(limit.bytes));
        let title = format!("plan `{}` needs {needs} a rank and may use {may}", plan.name);
        let diagnostic = Diagnostic::error(Code::MemoryExceeded, title)
            .label(limit.span, format!("{} bytes over", peak - limit.bytes))
            .why("memory is planned before anything runs: this is what a step touches, to the byte")
            .hint("shard more, keep less for the backward pass (`remat`), or make `micro` smaller");
        found.push(with_largest(diagnostic, figures));
    }
    for expectation in &plan.expect {
        match expectation {
            Expect::Peak { bytes: limit, span } if peak > *limit => {
                let title = format!("peak memory is {}, not at most {}", bytes(peak), bytes(*limit));
                let diagnostic = Diagnostic::error(Code::ExpectationBroken, title)
                    .label(*span, format!("found {peak} bytes, expected at most {limit}"))
                    .why("a plan's `expect` is a contract");
                found.push(with_largest(diagnostic, figures));
            }
            Expect::Peak { .. } => {}
            Expect::Collectives { layer, phase, axis, counts, span } => {
                let scope = layer.as_deref().unwrap_or("step");
                let matches = |one: &&super::CollectiveFigure| {
                    one.scope == scope
                        && phase.as_deref().is_none_or(|phase| one.phase == phase)
                        && axis.as_deref().is_none_or(|axis| one.axis == axis)
                };
                let here: Vec<_> = figures.collectives.iter().filter(matches).collect();
                found.extend(broken_counts(&here, counts).map(|text| {
                    let mut diagnostic = Diagnostic::error(Code::ExpectationBroken, text)
                        .label(*span, "this contract")
                        .why("a plan's `expect` is a contract; kinds that it does not name are expected not to occur");
                    for one in here {
                        let (kind, count, span, why) = (one.kind, one.per_run, &one.span, &one.why);
                        diagnostic = diagnostic.note(format!("{count} {kind} at {span}: {why}"));
                    }
                    diagnostic
                }));
            }
        }
    }
    Ok(found)
}

/// Both figures of a contract that is broken; none where it is kept.
fn broken_counts(here: &[&super::CollectiveFigure], expected: &[(String, u64)]) -> Option<String> {
    let mut actual: Vec<(String, u64)> = Vec::new();
    for one in here {
        match actual.iter_mut().find(|(kind, _)| kind == one.kind) {
            Some((_, count)) => *count += one.per_run,
            None => actual.push((one.kind.to_owned(), one.per_run)),
        }
    }
    let count = |list: &[(String, u64)], kind: &str| {
        list.iter().find(|(name, _)| name == kind).map_or(0, |(_, count)| *count)
    };
    let kinds = actual.iter().chain(expected).map(|(kind, _)| kind.as_str());
    let kept = kinds.into_iter().all(|kind| count(&actual, kind) == count(expected, kind));
    let list = |list: &[(String, u64)]| match list {
        [] => "none".to_owned(),
        list => list.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", "),
    };
    (!kept).then(|| format!("expected {}, found {}", list(expected), list(&actual)))
}

fn with_largest(mut diagnostic: Diagnostic, figures: &Figures) -> Diagnostic {
    for line in figures.memory.by_line.iter().take(LARGEST) {
        let values = line.values.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
        diagnostic = diagnostic.note(format!("{} at {}: {values}", bytes(line.bytes), line.span));
    }
    diagnostic
}
