//! Runs a target on mutants of its seeds: case by case from a seed, without memory of earlier ones, so that every
//! finding can be made again from its number.

use super::mutate::mutant;
use super::{STACK_BYTES, Target, corpus};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// What a target did wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which input: a kept file, a seed, or a case's number.
    pub name: String,
    /// The input.
    pub input: Vec<u8>,
    /// What the panic said.
    pub message: String,
}

/// Where a run stops.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// After so many cases.
    Cases(u64),
    /// After so long.
    Time(Duration),
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Cases that were run.
    pub cases: u64,
    /// What they found; one a message.
    pub findings: Vec<Finding>,
    /// The case that took longest, and how long.
    pub slowest: (u64, Duration),
}

/// Runs what once failed, the seeds as they are, and then mutants from a seed on.
///
/// # Panics
/// Where no thread can be made.
pub fn run(target: &'static Target, first: u64, limit: Limit) -> Outcome {
    let thread = std::thread::Builder::new().name(target.name.to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || run_here(target, first, limit));
    let spawned = spawned.unwrap_or_else(|error| panic!("no thread to fuzz on: {error}"));
    spawned.join().unwrap_or_else(|_| panic!("the runner itself panicked"))
}

fn run_here(target: &Target, first: u64, limit: Limit) -> Outcome {
    let start = Instant::now();
    let mut outcome = Outcome::default();
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has nothing to start from", target.name);
    for (name, input) in corpus::findings(target.name) {
        outcome.record(target, name, input);
    }
    for (index, input) in seeds.iter().enumerate() {
        outcome.record(target, format!("seed {index}"), input.clone());
    }
    for case in first.. {
        let over = match limit {
            Limit::Cases(cases) => case - first >= cases,
            Limit::Time(time) => start.elapsed() >= time,
        };
        if over {
            break;
        }
        let begun = Instant::now();
        outcome.record(target, format!("case {case}"), mutant(target.form, &seeds, case));
        outcome.cases += 1;
        let took = begun.elapsed();
        if took > outcome.slowest.1 {
            outcome.slowest = (case, took);
        }
    }
    outcome
}

impl Outcome {
    fn record(&mut self, target: &Target, name: String, input: Vec<u8>) {
        let Some(message) = fault(target, &input) else { return };
        // Where it happened and the beginning say what it is; the rest may quote the input.
        let kind = |message: &str| message.chars().take(60).collect::<String>();
        if self.findings.iter().all(|known| kind(&known.message) != kind(&message)) {
            self.findings.push(Finding { name, input, message });
        }
    }
}

/// What a target does wrong with an input.
pub fn fault(target: &Target, input: &[u8]) -> Option<String> {
    let caught = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).err()?;
    let text = caught.downcast_ref::<String>().cloned();
    Some(text.or_else(|| caught.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
}
