//! Equal to itself: random models under random plans, and every file that once showed a fault.
//!
//! `DTLC_CASES=N` judges N cases instead of those that fit a run in CI, `DTLC_SEED=S` starts at another seed. A case
//! that fails is made small and written to `tests/cases`, where it is judged from then on. Of the operations that there
//! are, all have to come about.

use dtlc_ir::{CollectiveKind, ScalarOp};
use dtlc_tests::backend::on_cpu;
use dtlc_tests::random::Case;
use dtlc_tests::random::coverage::Coverage;
use dtlc_tests::random::judge::{Verdict, examine, judge, judge_slopes};
use dtlc_tests::random::shrink::shrink;
use std::path::Path;

/// Cases in CI.
const CASES: u64 = 250;
/// The first seed in CI.
const FIRST: u64 = 1000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn many_ranks_compute_what_one_does() {
    let first = setting("DTLC_SEED", FIRST);
    let count = setting("DTLC_CASES", CASES);
    let (mut refused, mut failed) = (0, Vec::new());
    let mut coverage = Coverage::default();
    for seed in first..first + count {
        let case = Case::generate(seed);
        let judgement = examine(&case.source(), on_cpu);
        coverage.join(&judgement.coverage);
        match judgement.verdict {
            Verdict::Agrees => {}
            Verdict::Degenerate => refused += 1,
            Verdict::Refused(reason) => {
                println!("seed {seed} refused: {reason}");
                refused += 1;
            }
            Verdict::Wrong(kind, _) => {
                let small = shrink(&case, &kind).source();
                let path = format!("{}/cases/seed{seed}.dtl", env!("CARGO_MANIFEST_DIR"));
                std::fs::write(&path, &small).unwrap_or_else(|error| panic!("{path}: {error}"));
                failed.push(format!("seed {seed}, {kind}: {path}\n{small}\n{:?}", judge(&small)));
            }
        }
    }
    assert!(failed.is_empty(), "{} of {count} cases fail:\n{}", failed.len(), failed.join("\n"));
    // A generator whose cases are mostly refused would test nothing.
    assert!(refused * 3 <= count, "{refused} of {count} cases are refused");
    let all = every_operation();
    let missing = coverage.missing(&all);
    assert!(missing.is_empty() || count < CASES, "no case has {missing:?}");
}

/// The operations of the IR's sample that has one of each kind, every scalar function, and every collective with each
/// way to combine that the compiler has a use for.
fn every_operation() -> Coverage {
    let sample = include_str!("../../compiler/ir/tests/samples/every_op.ir");
    let program = dtlc_ir::text::parse(sample).unwrap_or_else(|error| panic!("{error:?}"));
    let mut coverage = Coverage::default();
    coverage.add(&program);
    let scalar = ScalarOp::ALL.iter().map(|op| op.name().to_owned());
    let collectives = CollectiveKind::ALL.iter().map(|kind| match kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => format!("{} sum", kind.name()),
        CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute => kind.name().into(),
    });
    let maximum = ["all_reduce max".to_owned()];
    coverage.operations.extend(scalar.chain(collectives).chain(maximum).map(|name| (name, 1)));
    coverage
}

#[test]
fn gradients_of_whole_models_are_slopes_of_their_losses() {
    let first = setting("DTLC_SEED", FIRST);
    let count = setting("DTLC_CASES", CASES) / 10;
    let mut checked = 0;
    for seed in first..first + count {
        match judge_slopes(&Case::generate(seed).source()) {
            Verdict::Agrees => checked += 1,
            Verdict::Degenerate => println!("seed {seed}: no slope to compare with"),
            Verdict::Refused(reason) => println!("seed {seed}: {reason}"),
            Verdict::Wrong(_, text) => panic!("seed {seed}: {text}"),
        }
    }
    assert!(checked * 2 >= count, "{checked} of {count} checked");
}

#[test]
fn what_once_failed_agrees() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> =
        entries.map(|entry| entry.unwrap_or_else(|error| panic!("{error}")).path()).collect();
    paths.sort();
    for path in paths {
        let source =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(judge(&source), Verdict::Agrees, "{}", path.display());
    }
}
