//! Judges random cases or files by hand: `judge FILE`, `judge show SEED`, `judge slopes FIRST COUNT`, `judge FIRST COUNT`,
//! `judge half FIRST COUNT` for those from FIRST on that compute in 16 bits or in tf32. Prints verdicts as they come, and writes what
//! fails, made small, to the folder `DTLC_KEEP`; at the end how often each operation was there.

use dtlc_tests::backend::on_cpu;
use dtlc_tests::random::Case;
use dtlc_tests::random::coverage::Coverage;
use dtlc_tests::random::judge::{Verdict, examine, judge, judge_slopes};
use dtlc_tests::random::shrink::shrink;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    match &arguments[..] {
        [word, seed] if word == "show" => {
            println!("{}", Case::generate(number(seed).unwrap_or_default()).source());
        }
        [word, first, count] if word == "slopes" => {
            let first = number(first).unwrap_or_default();
            for seed in first..first + number(count).unwrap_or(1) {
                println!("{seed} {:?}", judge_slopes(&Case::generate(seed).source()));
            }
        }
        [word, first, count] if word == "half" => {
            let (first, count) = (number(first).unwrap_or_default(), number(count).unwrap_or(1));
            several((first..).filter(|&seed| is_coarse(seed)).take(count as usize));
        }
        [first, count] => {
            let first = number(first).unwrap_or_default();
            several(first..first + number(count).unwrap_or(1));
        }
        [path] => {
            let source = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            match judge(&source) {
                Verdict::Wrong(kind, text) => println!("{kind}\n{text}"),
                other => println!("{other:?}"),
            }
        }
        _ => println!("judge FILE | judge show SEED | judge slopes FIRST COUNT | judge [half] FIRST COUNT"),
    }
}

/// Whether the seed's values have 16 bits, or its products read tf32.
fn is_coarse(seed: u64) -> bool {
    Case::generate(seed).plan.shared.iter().any(|entry| entry.starts_with("precision"))
}

fn several(seeds: impl Iterator<Item = u64>) {
    let mut tally = [0u64; 4];
    let mut coverage = Coverage::default();
    for seed in seeds {
        let case = Case::generate(seed);
        let judgement = examine(&case.source(), on_cpu);
        coverage.join(&judgement.coverage);
        match judgement.verdict {
            Verdict::Agrees => tally[0] += 1,
            Verdict::Refused(reason) => {
                tally[1] += 1;
                println!("{seed} refused {reason}");
            }
            Verdict::Degenerate => {
                tally[2] += 1;
                println!("{seed} degenerate");
            }
            Verdict::Wrong(kind, text) => {
                tally[3] += 1;
                let start: String = text.chars().take(300).collect();
                println!("{seed} WRONG {kind}: {start}");
                if let Ok(folder) = std::env::var("DTLC_KEEP") {
                    let path = format!("{folder}/seed{seed}.dtl");
                    let written = std::fs::write(&path, shrink(&case, &kind).source());
                    written.unwrap_or_else(|error| panic!("{path}: {error}"));
                }
            }
        }
    }
    println!("{:?}", coverage.operations);
    println!("{} agree, {} refused, {} degenerate, {} wrong", tally[0], tally[1], tally[2], tally[3]);
}
