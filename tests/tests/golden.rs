//! The examples under `examples/golden` against numbers made by JAX and PyTorch in f64.

use dtlc_tests::backend::on_cpu;
use dtlc_tests::golden::{gradients_match, training_matches};

const PLANS: [&str; 13] = [
    "one",
    "dp2",
    "tp2",
    "tp4",
    "tp2_sp",
    "dp2_tp2",
    "zero1_dp2",
    "zero2_dp2",
    "zero3_dp2",
    "zero3_dp4",
    "hsdp_2x2",
    "accum2",
    "dp2_tp2_accum2",
];

#[test]
fn llama_gradients_under_every_plan() {
    PLANS.iter().for_each(|plan| gradients_match("llama", plan, on_cpu));
}

#[test]
fn llama_training_under_every_plan() {
    PLANS.iter().for_each(|plan| training_matches("llama", plan, on_cpu));
}

#[test]
fn gpt2_gradients_under_every_plan() {
    PLANS.iter().for_each(|plan| gradients_match("gpt2", plan, on_cpu));
}

#[test]
fn gpt2_training_under_every_plan() {
    PLANS.iter().for_each(|plan| training_matches("gpt2", plan, on_cpu));
}
