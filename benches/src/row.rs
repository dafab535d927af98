//! One row: a model on a mesh, measured for every contestant in turn, and its lines of the table.

use crate::contestant::{Contestant, Kind};
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
    names: Vec<(&'static str, Kind)>,
    results: Vec<Result<Run, String>>,
}

impl Row {
    /// Runs all contestants `rounds` times in turn; of each figure the best stays, of first steps the first.
    pub fn measure(size: &Size, mesh: &str, contestants: &[Contestant], rounds: usize) -> Row {
        let mut results: Vec<Result<Run, String>> = Vec::new();
        for round in 0..rounds.max(1) {
            for (index, contestant) in contestants.iter().enumerate() {
                let again = run(contestant);
                if round == 0 {
                    results.push(again);
                    continue;
                }
                match (&mut results[index], again) {
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
        let names = contestants.iter().map(|contestant| (contestant.name, contestant.kind)).collect();
        Row { plan, names, tokens: size.tokens() as f64, operations: size.operations(), results }
    }

    /// Whether all contestants did the work, and all in f32 the same.
    pub fn is_good(&self) -> bool {
        self.names.iter().zip(&self.results).all(|((_, kind), result)| {
            result.as_ref().is_ok_and(|run| match kind {
                Kind::Own | Kind::OwnNarrow => true,
                Kind::Peer => self.difference(run).is_none_or(|found| found < AGREEMENT),
            })
        })
    }

    /// How far the first losses are from `dtlc`'s, relative to them.
    fn difference(&self, other: &Run) -> Option<f64> {
        let own = self.of(Kind::Own).next()?;
        let pairs = own.losses.iter().zip(&other.losses).take(COMPARED);
        pairs.map(|(own, other)| ((own - other) / own).abs()).reduce(f64::max)
    }

    /// What contestants of a kind showed.
    fn of(&self, wanted: Kind) -> impl Iterator<Item = &Run> {
        let wanted = self.names.iter().zip(&self.results).filter(move |((_, kind), _)| *kind == wanted);
        wanted.filter_map(|(_, result)| result.as_ref().ok())
    }

    /// `dtlc` against the best peer in each figure: speed (more is better), first step and memory (less is better).
    fn ratios(&self) -> Option<String> {
        let own = self.of(Kind::Own).next()?;
        let least = |figure: fn(&Run) -> f64| self.of(Kind::Peer).map(figure).reduce(f64::min);
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
        for ((name, kind), result) in self.names.iter().zip(&self.results) {
            match result {
                Ok(run) => {
                    let difference = match self.difference(run) {
                        Some(found) if *kind != Kind::Own => format!("{found:.0e}"),
                        Some(_) | None => String::new(),
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
        if let (Some(own), Some(narrow)) = (self.of(Kind::Own).next(), self.of(Kind::OwnNarrow).next()) {
            let ratio = own.least_step / narrow.least_step;
            writeln!(f, "| {} | **bf16** | {ratio:.2} times the speed of f32 |", self.plan)?;
        }
        match self.ratios() {
            Some(ratios) => writeln!(f, "| {} | **ratios** | {ratios} |", self.plan),
            None => Ok(()),
        }
    }
}
