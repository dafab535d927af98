//! The golden examples on an emulated device, on one, two and four ranks, against numbers made by JAX and PyTorch in f64.

use crate::library::nvrtc;
use crate::start::on_device;
use dtlc_tests::golden::{gradients_match, training_matches};

/// On one, two and four ranks, with every kind of collective that the examples have.
const PLANS: [&str; 3] = ["one", "tp2_sp", "zero3_dp4"];

fn under_every_plan(check: impl Fn(&str)) {
    if nvrtc().is_some() {
        PLANS.iter().for_each(|plan| check(plan));
    }
}

#[test]
fn llama_gradients_on_a_device() {
    under_every_plan(|plan| gradients_match("llama", plan, on_device));
}

#[test]
fn llama_training_on_a_device() {
    under_every_plan(|plan| training_matches("llama", plan, on_device));
}

#[test]
fn gpt2_gradients_on_a_device() {
    under_every_plan(|plan| gradients_match("gpt2", plan, on_device));
}

#[test]
fn gpt2_training_on_a_device() {
    under_every_plan(|plan| training_matches("gpt2", plan, on_device));
}
