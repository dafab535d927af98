//! Equal to itself: random models under random plans, and every file that once showed a fault.
//!
//! `DTLC_CASES=N` judges N cases instead of those that fit a run in CI, `DTLC_SEED=S` starts at another seed. A case
//! that fails is made small and written to `tests/cases`, where it is judged from then on.

use dtlc_tests::random::Case;
use dtlc_tests::random::judge::{Verdict, judge};
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
    for seed in first..first + count {
        let case = Case::generate(seed);
        match judge(&case.source()) {
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
