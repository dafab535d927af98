//! The golden examples on an emulated device, on one, two and four ranks, against numbers made by JAX and PyTorch in f64.
//!
//! An emulated step takes seconds, so gradients are under all of a few plans, and five steps of training under one.

use crate::library::nvrtc;
use crate::start::on_device;
use dtlc_tests::golden::{gradients_match, training_matches};

/// On one, two and four ranks, with every kind of collective that the examples have.
const PLANS: [&str; 3] = ["one", "tp2_sp", "zero3_dp4"];

#[test]
fn llama_gradients_on_a_device() {
    if nvrtc().is_some() {
        PLANS.iter().for_each(|plan| gradients_match("llama", plan, on_device));
    }
}

#[test]
fn gpt2_gradients_on_a_device() {
    if nvrtc().is_some() {
        PLANS.iter().for_each(|plan| gradients_match("gpt2", plan, on_device));
    }
}

#[test]
fn llama_training_on_two_ranks_of_a_device() {
    if nvrtc().is_some() {
        training_matches("llama", "tp2_sp", on_device);
    }
}

#[test]
fn gpt2_training_on_four_ranks_of_a_device() {
    if nvrtc().is_some() {
        training_matches("gpt2", "zero3_dp4", on_device);
    }
}
