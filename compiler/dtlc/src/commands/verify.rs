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
use dtlc_lang::{Compiled, Options};
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
    let differences = [&found.loss, &found.gradients.worst, &found.parameters.worst];
    let Some(beyond) = differences.into_iter().find(|difference| !difference.is_explained()) else {
        return Ok(());
    };
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

fn is_good(found: &Differences) -> bool {
    [&found.loss, &found.gradients.worst, &found.parameters.worst].iter().all(|it| it.is_explained())
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
            "ok": is_good(found),
            "loss_rel_err": found.loss.error,
            "max_grad_rel_err": found.gradients.largest,
            "max_param_rel_err": found.parameters.largest,
            "worst": worst.name,
            "bound": worst.bound,
            "shrunk": changes.iter().map(|it| json!({ "name": it.name, "from": it.from, "to": it.to })).collect::<Vec<_>>(),
        }));
    }
    if !changes.is_empty() {
        let list: Vec<String> = changes
            .iter()
            .map(|change| format!("{} {} -> {}", change.name, change.from, change.to))
            .collect();
        output.text(&format!("in small: {}\n", list.join(", ")))?;
    }
    let line = |what: &str, it: &Difference| format!("  {what:<10} {:.2e} of {:.1e}", it.error, it.bound);
    output.text(&format!(
        "{} rank(s) against one, errors relative and what rounding explains:\n{}\n{}  worst {}\n{}  worst {}\n",
        found.ranks,
        line("loss", &found.loss),
        line("gradients", gradient),
        gradient.name,
        line("parameters", parameter),
        parameter.name,
    ))
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
    let mut changes = shrink::sizes(file, &compiled.model, plan, lowered.micro_batches, &mesh);
    changes.extend(mesh);
    // What the command line says stands.
    changes.retain(|change| options.overrides.iter().all(|(name, _)| *name != change.name));
    let mut smaller = options.clone();
    smaller.overrides.extend(changes.iter().map(|change| (change.name.clone(), change.to.to_string())));
    let compiled = source.compile(&smaller)?;
    Ok((compiled, changes))
}
