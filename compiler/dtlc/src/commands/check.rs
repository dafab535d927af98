//! `dtlc check`: every model and plan of a file, as far as its memory plan and contracts.

use crate::cli::Check;
use crate::diagnose::remarks;
use crate::failure::{Failure, show_diagnostics};
use crate::figures::{Figures, refusals};
use crate::files::FileLoader;
use crate::load::{SourceText, options};
use crate::output::Output;
use crate::pipeline::{Mode, Stage, compile};
use dtlc_lang::diagnostic::sort_diagnostics;
use dtlc_lang::{Checked, Code, Diagnostic, Options, PlanChoice, check_all};
use serde::Serialize;

/// What is said of a plan without fault.
#[derive(Debug, Serialize)]
struct PlanReport {
    /// None for a model that has no plan.
    plan: Option<String>,
    model: String,
    ranks: u64,
    params: u64,
    peak: u64,
}

/// Checks a file: all of it, or what one plan needs.
///
/// # Errors
/// Everything wrong with it.
pub fn run(arguments: &Check, output: &Output) -> Result<(), Failure> {
    let source = SourceText::read(&arguments.source.file)?;
    let checked = check_all(&FileLoader, &source.name, &source.bytes);
    let Checked { sources, mut diagnostics, models, plans, overridable } = checked;
    let mut choices: Vec<PlanChoice> =
        plans.iter().map(|(plan, _)| PlanChoice::Named(plan.clone())).collect();
    let mut overrides = vec![options(&arguments.source.choice).overrides; choices.len().max(1)];
    if let Some(name) = &arguments.source.choice.plan {
        choices = vec![PlanChoice::Named(name.clone())];
        // What is wrong with this plan is found again; what is wrong with others was not asked for.
        diagnostics.clear();
    } else if choices.is_empty() && models.len() == 1 {
        choices = vec![PlanChoice::None];
    } else {
        // A plan is checked with the sizes that it knows; one that no plan knows is refused by each.
        let known = |names: &[String], name: &str| names.iter().any(|known| known == name);
        for (own, names) in overrides.iter_mut().zip(&overridable) {
            own.retain(|(name, _)| {
                let name = name.strip_prefix("batch.").unwrap_or(name);
                known(names, name) || !overridable.iter().any(|names| known(names, name))
            });
        }
    }
    let mut reports = Vec::new();
    // What numbers break, and under which plans.
    let mut unmet: Vec<(Diagnostic, Vec<String>)> = Vec::new();
    let checks = choices.len();
    for (plan, overrides) in choices.into_iter().zip(overrides) {
        let name = match &plan {
            PlanChoice::Named(name) => name.clone(),
            PlanChoice::None | PlanChoice::Only => String::new(),
        };
        match check_plan(&source, Options { plan, overrides }) {
            Ok((report, found)) => {
                reports.push(report);
                diagnostics.extend(found);
            }
            Err(Failure::Input { diagnostics: found, .. }) => {
                for diagnostic in found {
                    match unmet.iter_mut().find(|(known, _)| *known == diagnostic) {
                        Some((_, under)) => under.push(name.clone()),
                        None if diagnostic.code == Code::Unmet => {
                            unmet.push((diagnostic, vec![name.clone()]))
                        }
                        None => diagnostics.push(diagnostic),
                    }
                }
            }
            Err(other) => return Err(other),
        }
    }
    diagnostics.extend(unmet.into_iter().map(|(diagnostic, under)| {
        let names: Vec<String> = under.iter().map(|name| format!("`{name}`")).collect();
        if under.len() == checks {
            diagnostic
        } else {
            diagnostic.note(format!("under {}", names.join(", ")))
        }
    }));
    sort_diagnostics(&mut diagnostics);
    if diagnostics.iter().any(Diagnostic::is_error) {
        return Err(Failure::Input { diagnostics, sources });
    }
    if output.json {
        let warnings: Vec<_> = diagnostics.iter().map(|diagnostic| diagnostic.to_json(&sources)).collect();
        return output.json(&serde_json::json!({ "ok": true, "plans": reports, "diagnostics": warnings }));
    }
    show_diagnostics(&diagnostics, &sources, output);
    for report in &reports {
        let name = report.plan.as_deref().unwrap_or("without a plan");
        let (params, peak) = (crate::figures::count(report.params), crate::figures::bytes(report.peak));
        output.text(&format!(
            "{}: {name}: {} rank(s), {params} parameters, {peak} a rank\n",
            report.model, report.ranks
        ))?;
    }
    output.text(&format!("{}: no mistakes\n", source.name))
}

/// Compiles under one plan; returns its figures and what its memory and contracts refuse.
fn check_plan(source: &SourceText, options: Options) -> Result<(PlanReport, Vec<Diagnostic>), Failure> {
    let compiled = source.compile(&options)?;
    let mode = Mode::of_plan(compiled.plan.as_ref());
    let compilation = compile(&compiled, mode, Stage::Program)
        .map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    let figures = Figures::new(&compiled, &compilation)?;
    let mut found = refusals(&compiled, &compilation, &figures)?;
    found.extend(remarks(&compiled, &compilation));
    let report = PlanReport {
        plan: compiled.plan.as_ref().map(|plan| plan.name.clone()),
        model: compiled.model.name.clone(),
        ranks: figures.ranks,
        params: figures.params,
        peak: figures.memory.peak,
    };
    Ok((report, found))
}
