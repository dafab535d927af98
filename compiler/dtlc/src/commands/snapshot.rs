//! `dtlc snapshot`: a stage's text against the file beside the source.
//!
//! A snapshot holds what a step computes. Source positions stand in it in the reasons for what moves only: elsewhere a
//! line that moves is no change.

use crate::cli::Snapshot;
use crate::commands::emit::{name, stage_text};
use crate::failure::Failure;
use crate::files::{self, FileLoader};
use crate::load::SourceText;
use crate::output::Output;
use dtlc_lang::{Options, PlanChoice, check_all};
use dtlc_runtime::program::text::Detail;
use serde_json::json;
use similar::TextDiff;
use std::path::{Path, PathBuf};

/// Compares snapshots, or accepts what is new.
///
/// # Errors
/// A file is at fault, or a snapshot differs.
pub fn run(arguments: &Snapshot, output: &Output) -> Result<(), Failure> {
    let mut differs = false;
    for path in &arguments.files {
        let source = SourceText::read(path)?;
        let checked = check_all(&FileLoader, &source.name, &source.bytes);
        let mut plans: Vec<Option<String>> = checked.plans.into_iter().map(|(plan, _)| Some(plan)).collect();
        if plans.is_empty() {
            plans.push(None);
        }
        for plan in plans {
            differs |= compare(arguments, output, path, &source, plan)?;
        }
    }
    if differs { Err(Failure::Refused) } else { Ok(()) }
}

/// Compares one snapshot; whether it differs and was not accepted.
fn compare(
    arguments: &Snapshot,
    output: &Output,
    path: &Path,
    source: &SourceText,
    plan: Option<String>,
) -> Result<bool, Failure> {
    let snapshot = snapshot_path(path, plan.as_deref(), &name(arguments.stage));
    let options = Options { plan: plan.map_or(PlanChoice::None, PlanChoice::Named), overrides: Vec::new() };
    let new = stage_text(source, &options, arguments.stage, None, Detail::Step)?;
    let old = if snapshot.exists() { Some(files::read(&snapshot)?) } else { None };
    let state = match &old {
        Some(old) if *old == new.as_bytes() => "same",
        Some(_) => "changed",
        None => "new",
    };
    let accepted = state != "same" && arguments.accept;
    if accepted {
        files::write(&snapshot, new.as_bytes())?;
    }
    let shown = snapshot.display();
    if output.json {
        output.json(&json!({ "snapshot": shown.to_string(), "state": state, "accepted": accepted }))?;
    } else if accepted {
        output.text(&format!("{shown}: {state}, accepted\n"))?;
    } else if state != "same" {
        let old = old.unwrap_or_default();
        let old = String::from_utf8_lossy(&old);
        let diff = TextDiff::from_lines(old.as_ref(), new.as_str());
        output.text(&diff.unified_diff().header(&format!("{shown}"), "now").to_string())?;
        output.note(&format!("{shown}: {state}; `--accept` writes it"));
    }
    Ok(state != "same" && !accepted)
}

/// `FILE.PLAN.STAGE.snap`, beside the file.
fn snapshot_path(path: &Path, plan: Option<&str>, stage: &str) -> PathBuf {
    let mut name = path.file_name().map(std::ffi::OsStr::to_owned).unwrap_or_default();
    name.push(plan.map(|plan| format!(".{plan}")).unwrap_or_default());
    name.push(format!(".{stage}.snap"));
    path.with_file_name(name)
}
