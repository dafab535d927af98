//! Runs one contestant and measures it from outside: times of its steps, first step and peak memory.

use crate::contestant::Contestant;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Instant;

/// What a run of a contestant showed.
pub struct Run {
    /// The loss of each step.
    pub losses: Vec<f64>,
    /// Seconds from the start of the process to the end of its first step.
    pub first_step: f64,
    /// Seconds of the quickest step.
    pub least_step: f64,
    /// Peak resident bytes of all its processes together.
    pub peak_bytes: u64,
}

/// Runs a contestant to its end.
pub fn run(contestant: &Contestant) -> Result<Run, String> {
    let mut command = (contestant.command)();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Its processes are found by their group.
    command.process_group(0);
    let begun = Instant::now();
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", contestant.name))?;
    let complaints = child.stderr.take().map(|mut stderr| {
        std::thread::spawn(move || {
            let mut text = String::new();
            // What can't be read isn't shown.
            let _ = stderr.read_to_string(&mut text);
            text
        })
    });
    let mut run = Run { losses: Vec::new(), first_step: 0.0, least_step: f64::INFINITY, peak_bytes: 0 };
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.map_err(|error| format!("{}: {error}", contestant.name))?;
        let Ok(report) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
        let (Some(loss), Some(milliseconds)) = (report["loss"].as_f64(), report["step_ms"].as_f64()) else {
            continue;
        };
        if run.losses.is_empty() {
            run.first_step = begun.elapsed().as_secs_f64();
        }
        run.losses.push(loss);
        run.least_step = run.least_step.min(milliseconds / 1e3);
        // Before the last step, since behind it the processes may be gone.
        if run.losses.len() + 1 == contestant.steps {
            run.peak_bytes = peak_of_group(child.id());
        }
    }
    let status = child.wait().map_err(|error| format!("{}: {error}", contestant.name))?;
    let complaints = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
    if !status.success() || run.losses.len() != contestant.steps {
        let last = complaints.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(format!("{status} behind {} of {} steps: {last}", run.losses.len(), contestant.steps));
    }
    Ok(run)
}

/// Peak resident bytes of a process group: the sum over its processes, pages that they share counted for each.
fn peak_of_group(group: u32) -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|process| {
            // Behind the name, which ends with the last parenthesis: state, parent, group.
            let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default();
            fields.split_whitespace().nth(2) == Some(&group.to_string())
        })
        .map(|process| {
            let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
            1024 * line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0u64)
        })
        .sum()
}
