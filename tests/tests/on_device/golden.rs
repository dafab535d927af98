//! The golden examples on an emulated device, on one, two and four ranks, against numbers made by JAX and PyTorch in f64.
//!
//! An emulated step takes seconds, so gradients are under all of a few plans, and five steps of training under one. In bf16 and f16 the
//! first step is held to what rounding does to it.

use crate::library::nvrtc;
use crate::start::{on_device, truncating};
use dtlc_tests::backend::on_cpu;
use dtlc_tests::golden::{gradients_match, training_matches};
use dtlc_tests::golden_half::Bounds;

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

/// In 16 bits on a device and on the CPU, of both formats; and what rounds wrongly is beyond its bounds.
fn halves_are_within_their_rounding(model: &str) {
    for plan in PLANS {
        let format = if plan == "tp2_sp" { "f16" } else { "bf16" };
        let bounds = Bounds::of(model, plan, format);
        for on in [on_cpu, on_device] {
            let broken = bounds.broken(on);
            assert!(broken.is_empty(), "{model} under {plan} in {format}:\n{}", broken.join("\n"));
        }
        if (model, plan) == ("llama", "one") {
            let broken = bounds.broken(truncating);
            println!("rounded towards zero:\n{}", broken.join("\n"));
            assert!(!broken.is_empty(), "rounding towards zero does not show");
        }
    }
}

#[test]
fn llama_gradients_in_16_bits() {
    if nvrtc().is_some() {
        halves_are_within_their_rounding("llama");
    }
}

#[test]
fn gpt2_gradients_in_16_bits() {
    if nvrtc().is_some() {
        halves_are_within_their_rounding("gpt2");
    }
}
