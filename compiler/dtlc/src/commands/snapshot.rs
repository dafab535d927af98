//! `dtlc snapshot`: a stage's text against the file beside the source.
//!
//! A snapshot holds what a step computes. Source positions stand in it in the reasons for what moves only, with files as they are named beside
//! this one: elsewhere a line that moves is no change.

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
        for plan in &plans {
            differs |= compare(arguments, output, path, &source, plan.as_deref())?;
        }
        differs |= gone(arguments, output, path, &plans)?;
    }
    if differs { Err(Failure::Refused) } else { Ok(()) }
}

/// Compares one snapshot; whether it differs and was not accepted.
fn compare(
    arguments: &Snapshot,
    output: &Output,
    path: &Path,
    source: &SourceText,
    plan: Option<&str>,
) -> Result<bool, Failure> {
    let snapshot = snapshot_path(path, plan, &name(arguments.stage));
    let choice = plan.map_or(PlanChoice::None, |plan| PlanChoice::Named(plan.to_owned()));
    let options = Options { plan: choice, overrides: Vec::new() };
    let new = from_beside(path, &stage_text(source, &options, arguments.stage, None, Detail::Step)?);
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
    } else if let Some(old) = old.filter(|_| state != "same") {
        let old = String::from_utf8_lossy(&old);
        let diff = TextDiff::from_lines(old.as_ref(), new.as_str());
        output.text(&diff.unified_diff().header(&format!("{shown}"), "now").to_string())?;
        output.note(&format!("{shown}: changed; `--accept` writes it"));
    } else if state == "new" {
        output.text(&format!("{shown}: new, {} lines; `--accept` writes it\n", new.lines().count()))?;
    }
    Ok(state != "same" && !accepted)
}

/// A stage's text whose reasons name files as one names them in the file's own folder: from wherever it is asked for, a snapshot is the same.
fn from_beside(path: &Path, text: &str) -> String {
    match path.parent().and_then(Path::to_str) {
        None | Some("") => text.to_owned(),
        Some(folder) => text.replace(&format!("({}/", folder.trim_end_matches('/')), "("),
    }
}

/// Looks for snapshots of this stage whose plan the file no longer has; whether there are some that were not deleted.
fn gone(
    arguments: &Snapshot,
    output: &Output,
    path: &Path,
    plans: &[Option<String>],
) -> Result<bool, Failure> {
    let stage = name(arguments.stage);
    let current: Vec<PathBuf> =
        plans.iter().map(|plan| snapshot_path(path, plan.as_deref(), &stage)).collect();
    let Some(file) = path.file_name().and_then(|name| name.to_str()) else { return Ok(false) };
    let is_snapshot = |name: &str| {
        let plan = name.strip_prefix(file).and_then(|rest| rest.strip_suffix(&format!(".{stage}.snap")));
        plan.is_some_and(|plan| plan.is_empty() || plan.starts_with('.') && !plan[1..].contains('.'))
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).map_err(|error| files::unusable(folder, &error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut stale: Vec<PathBuf> =
        names.filter(|name| is_snapshot(name)).map(|name| path.with_file_name(name)).collect();
    // What was not written as a snapshot is somebody's own.
    let first_word = |path: &PathBuf| {
        let bytes = std::fs::read(path).ok()?;
        bytes.split(u8::is_ascii_whitespace).next().map(<[u8]>::to_vec)
    };
    let words: Vec<_> = current.iter().filter_map(first_word).collect();
    stale.retain(|snapshot| {
        !current.contains(snapshot) && first_word(snapshot).is_some_and(|word| words.contains(&word))
    });
    stale.sort();
    for snapshot in &stale {
        if arguments.accept {
            std::fs::remove_file(snapshot).map_err(|error| files::unusable(snapshot, &error))?;
        }
        let (shown, accepted) = (snapshot.display(), arguments.accept);
        if output.json {
            output.json(&json!({ "snapshot": shown.to_string(), "state": "gone", "accepted": accepted }))?;
        } else {
            let end = if accepted { "deleted" } else { "`--accept` deletes it" };
            output.text(&format!("{shown}: its plan is gone; {end}\n"))?;
        }
    }
    Ok(!stale.is_empty() && !arguments.accept)
}

/// `FILE.PLAN.STAGE.snap`, beside the file.
fn snapshot_path(path: &Path, plan: Option<&str>, stage: &str) -> PathBuf {
    let mut name = path.file_name().map(std::ffi::OsStr::to_owned).unwrap_or_default();
    name.push(plan.map(|plan| format!(".{plan}")).unwrap_or_default());
    name.push(format!(".{stage}.snap"));
    path.with_file_name(name)
}
