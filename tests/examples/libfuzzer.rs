//! Fuzzing that follows coverage: libFuzzer around the target that `DTLC_FUZZ_TARGET` names, with our own mutations
//! beside its. Built and run by `scripts/fuzz`.
#![no_main]

use dtlc_tests::fuzz::mutate::edit;
use dtlc_tests::fuzz::{TARGETS, Target, target};
use dtlc_tests::random::rng::Rng;
use libfuzzer_sys::{Corpus, fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::LazyLock;

static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("DTLC_FUZZ_TARGET").unwrap_or_default();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    target(&name).unwrap_or_else(|| panic!("DTLC_FUZZ_TARGET is none of {}", names.join(", ")))
});

fuzz_target!(|bytes: &[u8]| -> Corpus {
    (CHOSEN.run)(bytes);
    Corpus::Keep
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 4 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut rng = Rng::new(seed.into());
    let own = data[..size].to_vec();
    let edited = edit(CHOSEN.form, own.clone(), &own, &mut rng);
    let length = edited.len().min(max_size);
    data[..length].copy_from_slice(&edited[..length]);
    length
});
