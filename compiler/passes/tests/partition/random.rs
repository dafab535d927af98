//! Random plans for a small Llama: each is refused with an error of the user's, or computes the same.

use crate::llama::{llama, tied};
use crate::support::{Numbers, check_request, joint, request, with_update};
use dtlc_passes::partition::{PlacementErrorKind, partition, plan_reshards};

const DIMS: [&str; 12] = ["B", "S", "T", "D", "KV", "G", "K", "F", "V", "H=KV*G", "P", "KH"];
const MESHES: [&str; 4] = ["x 2", "x 2, y 2", "x 4", "x.a 2, x.b 2"];
const PATHS: [&str; 6] = ["Block.x", "Block.h", "Block.attn", "layers.attn.wq", "Attention", "Mlp"];
const ROLES: [&str; 5] = ["", "", "acts ", "params ", "opt, grads "];
const STORES: [&str; 4] = ["opt", "grads", "params", "opt, grads, params"];

fn axis(numbers: &mut Numbers, mesh: &str) -> &'static str {
    match (mesh, numbers.below(4)) {
        ("x 2, y 2", 0) => "y",
        ("x 2, y 2", 1) => "x y",
        ("x 2, y 2", 2) => "y x",
        ("x.a 2, x.b 2", 0) => "x.a",
        ("x.a 2, x.b 2", 1) => "x.b",
        _ => "x",
    }
}

fn plan(numbers: &mut Numbers) -> String {
    let mesh = *numbers.one_of(&MESHES);
    let mut lines = vec![format!("mesh {mesh}")];
    for step in 0..1 + numbers.below(4) {
        let mut rules = Vec::new();
        for _ in 0..1 + numbers.below(2) {
            let axis = axis(numbers, mesh);
            if numbers.below(4) == 0 {
                let largest = if numbers.below(3) == 0 { *numbers.one_of(&DIMS[..9]) } else { "largest" };
                rules.push(format!("store {} {largest} -> {axis}", numbers.one_of(&STORES)));
                continue;
            }
            let pad = if numbers.below(4) == 0 { " pad" } else { "" };
            let at =
                if numbers.below(3) == 0 { format!(" at {}", numbers.one_of(&PATHS)) } else { String::new() };
            rules.push(format!("{}{} -> {axis}{pad}{at}", numbers.one_of(&ROLES), numbers.one_of(&DIMS)));
        }
        lines.push(format!("s{step}: {}", rules.join("; ")));
    }
    lines.join("\n")
}

#[test]
fn random_plans_are_refused_or_compute_the_same() {
    let mut numbers = Numbers(seed());
    let programs =
        [15, 16].map(|vocabulary| [with_update(joint(&llama(vocabulary))), joint(&tied(vocabulary))]);
    let mut ran = 0;
    for _ in 0..cases() {
        let program = &programs[numbers.below(2)][numbers.below(2)];
        let plan = plan(&mut numbers);
        if !plan.contains("P ") || program.find_dim("P").is_some() {
            let request = request(program, &plan);
            match partition(program.clone(), &request) {
                // Pads that don't nest can only be gathered, which takes leave.
                Ok(made) if plan_reshards(&mut made.program.clone()).is_err() => {
                    assert!(plan.contains(" pad"), "{plan}");
                }
                Ok(_) => {
                    check_request(program, &request, &plan);
                    ran += 1;
                }
                Err(errors) => {
                    let is_ours = errors.iter().any(|error| error.kind == PlacementErrorKind::Internal);
                    assert!(!is_ours, "{plan}: {errors:#?}");
                }
            }
        }
    }
    assert!(ran * 10 > cases(), "only {ran} plans were good");
}

/// More cases than the default for a long run.
fn cases() -> usize {
    std::env::var("DTLC_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40)
}

fn seed() -> u64 {
    std::env::var("DTLC_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}
