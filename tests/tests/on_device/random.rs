//! Random models under random plans on an emulated device: a slice of those that the CPU is judged by, and by the same
//! judge.

use crate::library::nvrtc;
use crate::start::on_device;
use dtlc_tests::random::Case;
use dtlc_tests::random::judge::{Verdict, examine};

/// The first seed, as in the suite on the CPU.
const FIRST: u64 = 1000;
/// Cases in CI.
const CASES: u64 = 8;

#[test]
fn random_models_on_a_device_compute_what_one_rank_means() {
    if nvrtc().is_none() {
        return;
    }
    let setting =
        |name: &str, default| std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(default);
    let (first, count) = (setting("DTLC_SEED", FIRST), setting("DTLC_CASES", CASES));
    let mut agreed = 0;
    for seed in first..first + count {
        let source = Case::generate(seed).source();
        match examine(&source, on_device).verdict {
            Verdict::Agrees => agreed += 1,
            Verdict::Degenerate => println!("seed {seed}: no numbers to compare"),
            Verdict::Refused(reason) => println!("seed {seed} refused: {reason}"),
            Verdict::Wrong(kind, text) => panic!("seed {seed}, {kind}: {text}\n{source}"),
        }
    }
    assert!(agreed * 2 >= count, "{agreed} of {count} cases could be compared");
}
