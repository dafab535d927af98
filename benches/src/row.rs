//! One row: a model on a mesh, measured for every contestant in turn, and its lines of the table.

use crate::contestant::Contestant;
use crate::process::{Run, run};
use crate::work::Size;
use std::fmt;

/// The meshes, as the plans' names end.
pub const MESHES: [&str; 5] = ["one", "dp2", "tp2", "tp2_sp", "fsdp2"];

/// The table's head.
pub const HEADER: &str = "\
| plan | | tokens/s | GFLOP/s | first step, s | peak, MiB | losses differ by |
| --- | --- | --- | --- | --- | --- | --- |";

/// Steps whose losses are compared.
const COMPARED: usize = 5;
/// Losses of the same work in f32 differ by less, relative to the loss.
const AGREEMENT: f64 = 1e-5;

/// What was measured.
pub struct Row {
    plan: String,
    tokens: f64,
    operations: f64,
    results: Vec<(&'static str, Result<Run, String>)>,
}

impl Row {
    /// Runs all contestants `rounds` times in turn; of each figure the best stays, of first steps the first.
    pub fn measure(size: &Size, mesh: &str, contestants: &[Contestant], rounds: usize) -> Row {
        let mut results: Vec<(&'static str, Result<Run, String>)> = Vec::new();
        for round in 0..rounds.max(1) {
            for (index, contestant) in contestants.iter().enumerate() {
                let again = run(contestant);
                if round == 0 {
                    results.push((contestant.name, again));
                    continue;
                }
                match (&mut results[index].1, again) {
                    (Ok(best), Ok(again)) => {
                        best.least_step = best.least_step.min(again.least_step);
                        // Compiled code that was kept makes later rounds' first steps no first steps.
                        if contestant.name != "torch.compile" {
                            best.first_step = best.first_step.min(again.first_step);
                        }
                        best.peak_bytes = best.peak_bytes.min(again.peak_bytes);
                    }
                    (result @ Ok(_), Err(reason)) => *result = Err(reason),
                    (Err(_), _) => {}
                }
            }
        }
        let plan = format!("{}_{mesh}", size.name);
        Row { plan, tokens: size.tokens() as f64, operations: size.operations(), results }
    }

    /// Whether all contestants did the work, and the same work.
    pub fn is_good(&self) -> bool {
        self.results.iter().all(|(_, result)| {
            result.as_ref().is_ok_and(|run| self.difference(run).is_none_or(|found| found < AGREEMENT))
        })
    }

    /// How far the first losses are from `dtlc`'s, relative to them.
    fn difference(&self, other: &Run) -> Option<f64> {
        let (_, own) = self.results.first()?;
        let pairs = own.as_ref().ok()?.losses.iter().zip(&other.losses).take(COMPARED);
        pairs.map(|(own, other)| ((own - other) / own).abs()).reduce(f64::max)
    }

    fn peers(&self) -> impl Iterator<Item = &Run> {
        self.results.iter().skip(1).filter_map(|(_, result)| result.as_ref().ok())
    }

    /// `dtlc` against the best peer in each figure: speed (more is better), first step and memory (less is better).
    fn ratios(&self) -> Option<String> {
        let own = self.results.first()?.1.as_ref().ok()?;
        let least = |figure: fn(&Run) -> f64| self.peers().map(figure).reduce(f64::min);
        let speed = least(|run| run.least_step)? / own.least_step;
        let first = own.first_step / least(|run| run.first_step)?;
        let memory = own.peak_bytes as f64 / least(|run| run.peak_bytes as f64)?;
        Some(format!(
            "{speed:.2} times the best peer's speed, {first:.2} of its first step, {memory:.2} of its memory"
        ))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, result) in &self.results {
            match result {
                Ok(run) => {
                    let difference = match self.difference(run) {
                        Some(found) if *name != "dtlc" => format!("{found:.0e}"),
                        _ => String::new(),
                    };
                    writeln!(
                        f,
                        "| {} | {name} | {:.0} | {:.1} | {:.2} | {:.0} | {difference} |",
                        self.plan,
                        self.tokens / run.least_step,
                        self.operations / run.least_step / 1e9,
                        run.first_step,
                        run.peak_bytes as f64 / f64::from(1 << 20),
                    )?;
                }
                Err(reason) => writeln!(f, "| {} | {name} | failed: {reason} |", self.plan)?,
            }
        }
        match self.ratios() {
            Some(ratios) => writeln!(f, "| {} | **ratios** | {ratios} |", self.plan),
            None => Ok(()),
        }
    }
}
