//! `dtlc verify`: many ranks against one, in small.

use crate::cli::Verify;
use crate::device::Processor;
use crate::failure::Failure;
use crate::launcher::require_one_process;
use crate::load::{SourceText, options};
use crate::output::Output;
use crate::pipeline::{Mode, Stage, compile};
use crate::verification::shrink::{self, Change};
use crate::verification::{Difference, Differences, compare};
use dtlc_lang::{Compiled, Diagnostic, Options};
use serde_json::json;

/// Compares the sharded program with one rank.
///
/// # Errors
/// The file is at fault, a run fails, or the difference is larger than rounding explains.
pub fn run(arguments: &Verify, output: &Output) -> Result<(), Failure> {
    require_one_process("dtlc verify")?;
    let processor = Processor::open(arguments.device, None)?;
    let target = processor.target()?;
    let source = SourceText::read(&arguments.source.file)?;
    let options = options(&arguments.source.choice);
    let compiled = source.compile(&options)?;
    let (compiled, changes) = shrunk(&source, &options, compiled)?;
    let found = compare(&compiled, (&processor, &target), arguments.seed)?;
    show(&found, &changes, output)?;
    if found.ranks == 1 {
        output.note("there is one rank, so the program was compared with itself: choose a plan with a mesh");
    }
    if !found.undecided.is_empty() {
        output.note(&format!(
            "rounding alone may change these by more than half of their size, so equal says little: {}",
            found.undecided.join(", ")
        ));
    }
    let Some(beyond) = found.unexplained() else { return Ok(()) };
    if beyond.error.is_nan() {
        return Err(Failure::Fault(format!(
            "`{}` is not a number, so there is nothing to compare; `dtlc train --check-finite` names the first value \
             that is not",
            beyond.name
        )));
    }
    Err(Failure::Fault(format!(
        "{} rank(s) and one differ by {:.1e} in `{}`, where rounding explains {:.1e}",
        found.ranks, beyond.error, beyond.name, beyond.bound
    )))
}

fn show(found: &Differences, changes: &[Change], output: &Output) -> Result<(), Failure> {
    let (gradient, parameter) = (&found.gradients.worst, &found.parameters.worst);
    if output.json {
        let worst = if gradient.error / gradient.bound >= parameter.error / parameter.bound {
            gradient
        } else {
            parameter
        };
        return output.json(&json!({
            "ranks": found.ranks,
            "ok": found.are_explained(),
            "loss_rel_err": found.loss.error,
            "max_grad_rel_err": found.gradients.largest,
            "max_param_rel_err": found.parameters.largest,
            "worst": worst.name,
            "bound": worst.bound,
            "undecided": found.undecided,
            "shrunk": changes.iter().map(|it| json!({ "name": it.name, "from": it.from, "to": it.to })).collect::<Vec<_>>(),
        }));
    }
    if !changes.is_empty() {
        output.text(&format!("in small: {}\n", listed(changes)))?;
    }
    let line = |what: &str, it: &Difference| format!("  {what:<10} {:.2e} of {:.1e}", it.error, it.bound);
    output.text(&format!(
        "{} rank(s) against one, errors relative and what rounding explains:\n{}\n{}  worst {}\n{}  worst {}\n",
        found.ranks,
        line("loss", &found.loss),
        line("gradients", gradient),
        named(gradient),
        line("parameters", parameter),
        named(parameter),
    ))
}

fn named(difference: &Difference) -> &str {
    if difference.name.is_empty() { "none: nothing to compare" } else { &difference.name }
}

/// The file compiled with smaller sizes, and which they are.
fn shrunk(
    source: &SourceText,
    options: &Options,
    compiled: Compiled,
) -> Result<(Compiled, Vec<Change>), Failure> {
    let mesh = shrink::mesh(compiled.plan.as_ref().map_or(&[], |plan| &plan.mesh));
    let lowered = compile(&compiled, Mode::Evaluate, Stage::Logical)
        .map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    let Some(file) = compiled.sources.files().next() else { return Ok((compiled, Vec::new())) };
    let plan = compiled.plan.as_ref();
    let mut sizes = shrink::sizes(file, &compiled.model, plan, lowered.micro_batches, &mesh);
    // What the command line says stands.
    let is_open = |change: &Change| options.overrides.iter().all(|(name, _)| *name != change.name);
    sizes.retain(is_open);
    let mesh: Vec<Change> = mesh.into_iter().filter(is_open).collect();
    allowed(sizes, |sizes| {
        let changes: Vec<Change> = sizes.iter().chain(&mesh).cloned().collect();
        let mut smaller = options.clone();
        smaller.overrides.extend(changes.iter().map(|change| (change.name.clone(), change.to.to_string())));
        Ok((source.compile(&smaller)?, changes))
    })
}

/// What these changes make, or as many of them as the file allows: its requirements, slices, products of sizes.
fn allowed<T>(mut sizes: Vec<Change>, make: impl Fn(&[Change]) -> Result<T, Failure>) -> Result<T, Failure> {
    loop {
        let failure = match make(&sizes) {
            Ok(made) => return Ok(made),
            Err(failure) => failure,
        };
        let broken = mistakes(&failure);
        let count = sizes.len();
        let pairs = (0..count).flat_map(|first| (first..count).map(move |second| (first, second)));
        // One alone first, then two that belong together, as in `F == 4 * D`.
        let mut ways: Vec<(usize, usize)> = pairs.collect();
        ways.sort_by_key(|(first, second)| first != second);
        let without = |(first, second): (usize, usize)| {
            let kept = sizes.iter().enumerate().filter(|(index, _)| *index != first && *index != second);
            kept.map(|(_, change)| change.clone()).collect::<Vec<_>>()
        };
        let helps = |rest: &Vec<Change>| match make(rest) {
            Ok(_) => true,
            Err(failure) => (1..broken).contains(&mistakes(&failure)),
        };
        match ways.into_iter().map(without).find(|rest| broken > 0 && helps(rest)) {
            Some(rest) => sizes = rest,
            None => return Err(with_changes(failure, &sizes)),
        }
    }
}

/// How many things are wrong with the smaller sizes, and so with none of the file's own; 0 where it isn't sizes.
fn mistakes(failure: &Failure) -> usize {
    match failure {
        Failure::Input { diagnostics, .. } => diagnostics.len(),
        _ => 0,
    }
}

/// Says in reports of numbers which of them are not the file's.
fn with_changes(failure: Failure, changes: &[Change]) -> Failure {
    match failure {
        Failure::Input { diagnostics, sources } if !changes.is_empty() => {
            let note = format!("verified in small: {}; with `-D` a size stays", listed(changes));
            let noted = |it: Diagnostic| it.note(note.clone());
            Failure::Input { diagnostics: diagnostics.into_iter().map(noted).collect(), sources }
        }
        other => other,
    }
}

fn listed(changes: &[Change]) -> String {
    let one = |change: &Change| format!("{} {} -> {}", change.name, change.from, change.to);
    changes.iter().map(one).collect::<Vec<_>>().join(", ")
}
