//! `dtlc verify`: many ranks against one, in small.

use crate::cli::Verify;
use crate::device::Processor;
use crate::failure::Failure;
use crate::launcher::require_one_process;
use crate::load::{SourceText, options};
use crate::output::Output;
use crate::pipeline::{Mode, Stage, compile};
use crate::verification::shrink::{self, Change};
use crate::verification::{Differences, compare};
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
    if is_good(&found) {
        return Ok(());
    }
    let errors = [&found.gradient, &found.parameter];
    if let Some((_, name)) = errors.into_iter().find(|(error, _)| error.is_nan()) {
        return Err(Failure::Fault(format!(
            "`{name}` is not a number, so there is nothing to compare; `dtlc train --check-finite` names the first value \
             that is not"
        )));
    }
    Err(Failure::Fault(format!(
        "{} rank(s) and one differ by more than {:.1e}, worst in `{}`",
        found.ranks, found.bound, found.gradient.1
    )))
}

fn is_good(found: &Differences) -> bool {
    // A comparison with NaN is false.
    [found.loss, found.gradient.0, found.parameter.0].iter().all(|&error| error <= found.bound)
}

fn show(found: &Differences, changes: &[Change], output: &Output) -> Result<(), Failure> {
    let worst = if found.gradient.0 >= found.parameter.0 { &found.gradient.1 } else { &found.parameter.1 };
    if output.json {
        return output.json(&json!({
            "ranks": found.ranks,
            "ok": is_good(found),
            "loss_rel_err": found.loss,
            "max_grad_rel_err": found.gradient.0,
            "max_param_rel_err": found.parameter.0,
            "worst": worst,
            "bound": found.bound,
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
    output.text(&format!(
        "{} rank(s) against one, errors relative (bound {:.1e}):\n  loss       {:.2e}\n  gradients  {:.2e}  worst {}\n  parameters {:.2e}  worst {}\n",
        found.ranks, found.bound, found.loss, found.gradient.0, found.gradient.1, found.parameter.0, found.parameter.1
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
