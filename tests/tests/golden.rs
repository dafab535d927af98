//! The examples under `examples/golden` against numbers made by JAX and PyTorch in f64.

use dtlc_codegen::assemble::Assembled;
use dtlc_runtime::program::{Instruction, Operation, Program};
use dtlc_runtime::session::Session;
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

/// Products that a device may make at once wait for nothing of each other: the last first, they give the same.
fn turned(mut assembled: Assembled) -> Result<Session, String> {
    let order = assembled.program.clone();
    let lengths = turn(&order, &mut assembled.program.instructions, &mut Vec::new());
    let several = lengths.into_iter().filter(|count| *count >= 2).count();
    println!("{}: {several}", assembled.program.name);
    // Gpt2 has queries, keys and values in one product.
    let least = if assembled.program.name.starts_with("Llama") { 5 } else { 1 };
    assert!(several >= least, "{}: {several} runs of several products", assembled.program.name);
    on_cpu(assembled)
}

/// Turns the runs of a list of instructions around, and gives their lengths.
fn turn(program: &Program, body: &mut [Instruction], loops: &mut Vec<u32>) -> Vec<usize> {
    let mut lengths: Vec<usize> = program.runs(body, loops).into_iter().map(<[Instruction]>::len).collect();
    let mut rest = &mut *body;
    for length in lengths.clone() {
        let (run, others) = rest.split_at_mut(length);
        run.reverse();
        rest = others;
    }
    for instruction in body {
        if let Operation::Loop(nested) = &mut instruction.operation {
            loops.push(nested.count);
            lengths.extend(turn(program, &mut nested.body, loops));
            loops.pop();
        }
    }
    lengths
}

#[test]
fn products_of_a_run_are_made_in_any_order() {
    for model in ["llama", "gpt2"] {
        for plan in ["one", "tp2_sp", "zero3_dp4", "accum2"] {
            training_matches(model, plan, turned);
        }
    }
}
