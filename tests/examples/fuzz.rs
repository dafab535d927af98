//! Fuzzes by hand: `fuzz TARGET SECONDS [FIRST]` runs mutants from a case on, `fuzz TARGET FILE` one input, and
//! `fuzz TARGET FOLDER` writes what a target starts from. Findings go to the folder `DTLC_KEEP`.

use dtlc_tests::fuzz::runner::{Finding, Limit, fault, run};
use dtlc_tests::fuzz::{TARGETS, Target, target};
use std::path::Path;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = arguments.first().and_then(|name| target(name));
    let (Some(target), Some(what)) = (named, arguments.get(1)) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        println!(
            "fuzz TARGET SECONDS [FIRST] | fuzz TARGET FILE | fuzz TARGET FOLDER\ntargets: {}",
            names.join(", ")
        );
        return;
    };
    if Path::new(what).is_dir() {
        return write_seeds(target, Path::new(what));
    }
    let Ok(seconds) = what.parse::<u64>() else {
        let input = std::fs::read(what).unwrap_or_else(|error| panic!("{what}: {error}"));
        println!("{}", fault(target, &input).unwrap_or_else(|| "no fault".to_owned()));
        return;
    };
    let first = arguments.get(2).and_then(|first| first.parse().ok()).unwrap_or_default();
    let outcome = run(target, first, Limit::Time(Duration::from_secs(seconds)));
    for Finding { name, input, message } in &outcome.findings {
        println!("{name}: {}", message.chars().take(300).collect::<String>());
        if let Ok(folder) = std::env::var("DTLC_KEEP") {
            let path = format!("{folder}/{}-{}", target.name, name.replace(' ', "-"));
            std::fs::write(&path, input).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }
    let (case, time) = outcome.slowest;
    println!(
        "{}: {} cases from {first}, {} finding(s), slowest {case} with {time:?}",
        target.name,
        outcome.cases,
        outcome.findings.len()
    );
}

fn write_seeds(target: &Target, folder: &Path) {
    for (index, seed) in (target.seeds)().iter().enumerate() {
        let path = folder.join(format!("seed-{index:03}"));
        std::fs::write(&path, seed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
