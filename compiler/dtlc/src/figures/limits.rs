//! Holds a compilation against what its plan promises: `memory` and `expect`.

use super::{Figures, bytes, place, scheduled};
use crate::failure::Failure;
use crate::pipeline::Compilation;
use cranelift_entity::PrimaryMap;
use dtlc_ir::{Origin, OriginInfo};
use dtlc_lang::{Code, Compiled, Diagnostic};
use dtlc_passes::expect::{BrokenContract, Uncounted, check_contracts, uncounted};

/// Lines of the largest buffers that a refusal lists.
const LARGEST: usize = 8;

/// Everything that the plan promised and the compilation does not keep.
///
/// # Errors
/// A bug.
pub fn refusals(
    compiled: &Compiled,
    compilation: &Compilation,
    figures: &Figures,
) -> Result<Vec<Diagnostic>, Failure> {
    let Some(plan) = &compiled.plan else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let peak = figures.memory.peak;
    if let Some(limit) = plan.memory.filter(|limit| peak > limit.bytes) {
        let (needs, may) = (bytes(peak), bytes(limit.bytes));
        let title = format!("plan `{}` needs {needs} a rank and may use {may}", plan.name);
        let diagnostic = Diagnostic::error(Code::MemoryExceeded, title)
            .label(limit.span, format!("{} over", bytes(peak - limit.bytes)))
            .why("memory is planned before anything runs: this is what a step touches, to the byte")
            .hint("`remat full` keeps less; or shard more, or make `micro` smaller");
        found.push(with_largest(diagnostic, figures));
    }
    let planned = &scheduled(compilation)?.planned;
    let vain = uncounted(planned, &plan.expect);
    let broken = check_contracts(planned, &plan.expect, peak);
    let broken: Vec<BrokenContract> =
        broken.into_iter().filter(|broken| vain.iter().all(|vain| vain.span != broken.span)).collect();
    found.extend(vain.iter().map(vain_contract));
    // A contract counts several kinds of collectives, and is one mistake however many of them differ.
    for contract in broken.chunk_by(|left, right| left.span == right.span) {
        found.push(broken_contract(contract, &planned.origins, figures));
    }
    Ok(found)
}

fn vain_contract(Uncounted { layer, span, counted }: &Uncounted) -> Diagnostic {
    let title = format!("collectives are not counted per `{layer}`");
    let diagnostic = Diagnostic::error(Code::InvalidExpectation, title)
        .label(*span, "no stack is made of it")
        .why("a layer's calls are those in the loop over its stack; all others are calls of the step");
    match counted.first() {
        Some(known) => diagnostic.hint(format!("per {known}: …    // or step: …")),
        None => diagnostic.hint("step: …"),
    }
}

fn broken_contract(
    contract: &[BrokenContract],
    origins: &PrimaryMap<Origin, OriginInfo>,
    figures: &Figures,
) -> Diagnostic {
    let peak = figures.memory.peak;
    let is_peak = |broken: &BrokenContract| broken.counted.is_empty() && broken.found == peak;
    let said = |broken: &BrokenContract| match is_peak(broken) {
        true => {
            let (needs, may) = (bytes(broken.found), bytes(broken.expected));
            (
                format!("the peak is {needs}, and the plan expects at most {may}"),
                format!("{} over", bytes(broken.found - broken.expected)),
            )
        }
        false => (broken.message.clone(), format!("expected {}, found {}", broken.expected, broken.found)),
    };
    let (messages, labels): (Vec<String>, Vec<String>) = contract.iter().map(said).unzip();
    let mut diagnostic = Diagnostic::error(Code::ExpectationBroken, messages.join("; "))
        .label(contract[0].span, labels.join("; "))
        .why("a plan's `expect` is a contract; kinds of collectives that it does not name are expected not to be there");
    for call in contract.iter().flat_map(|broken| &broken.counted) {
        let (count, kind, phase) = (call.per_run, call.kind.name(), call.phase.name());
        let (at, why) = (place(&origins[call.origin]), call.why.join("; "));
        diagnostic = diagnostic.note(format!("{count} {kind} {phase} at {at}: {why}"));
    }
    if contract.iter().any(is_peak) { with_largest(diagnostic, figures) } else { diagnostic }
}

fn with_largest(mut diagnostic: Diagnostic, figures: &Figures) -> Diagnostic {
    for line in figures.memory.by_line.iter().take(LARGEST) {
        let values = line.values.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
        diagnostic = diagnostic.note(format!("{} at {}: {values}", bytes(line.bytes), line.span));
    }
    diagnostic
}
