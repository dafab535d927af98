//! Random plans for a small Llama: each is refused with an error of the user's, or computes the same.

use crate::llama::{llama, tied};
use crate::support::{Numbers, check_request, joint, request, with_update};
use dtlc_ir::{Phase, Program, Region, Value};
use dtlc_passes::partition::{
    Partitioned, PlacementErrorKind, PlacementRequest, RuleRequest, StepRequest, partition, plan_reshards,
};

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

/// Pins a dimension of up to two values of the forward pass, after all steps. Returns the pins as text.
fn pin(numbers: &mut Numbers, program: &Program, request: &mut PlacementRequest) -> String {
    let mut values = Vec::new();
    forward(&program.main, &mut values);
    values.retain(|&value| !program.ty(value).dims.is_empty());
    let axes: Vec<String> = request.mesh.axes.values().map(|axis| axis.name.clone()).collect();
    let mut rules = Vec::new();
    for _ in 0..numbers.below(3) {
        let value = *numbers.one_of(&values);
        let dim = *numbers.one_of(&program.ty(value).dims);
        let axis = numbers.one_of(&axes).as_str();
        let place = RuleRequest::place(&program.dims[dim].name, &[dim], &[axis]);
        rules.push(RuleRequest { values: vec![value], ..place });
    }
    let text = rules.iter().map(|rule| format!("\npin {}: {}", rule.values[0], rule.text())).collect();
    if !rules.is_empty() {
        request.steps.push(StepRequest { name: "inline".to_string(), rules });
    }
    text
}

/// What the forward pass makes, loops' bodies included.
fn forward(region: &Region, values: &mut Vec<Value>) {
    for inst in region.insts.iter().filter(|inst| inst.phase == Phase::Forward) {
        values.extend(&inst.results);
        if let Some(body) = inst.op.region() {
            forward(body, values);
        }
    }
}

/// Whatever the steps say, a pinned value lies where it is pinned.
fn pins_hold(program: &Program, request: &PlacementRequest, plan: &str) {
    for rule in request.steps.iter().flat_map(|step| &step.rules) {
        for &value in &rule.values {
            let placement = &program.ty(value).placement;
            let axes = program.mesh.axes.iter().filter(|(_, info)| info.name == rule.axes[0]);
            for (axis, info) in axes {
                assert_eq!(
                    placement.dim_on(axis),
                    Some(rule.dims[0]),
                    "{plan}\n{} on {}",
                    rule.text(),
                    info.name
                );
            }
        }
    }
}

/// Leaves out each rule that is said to change nothing, which must be true; how many were.
fn without_idle_rules(
    program: &Program,
    request: &PlacementRequest,
    made: &Partitioned,
    plan: &str,
) -> usize {
    let is_idle = |rule: &RuleRequest| {
        made.idle.iter().any(|remark| remark.message == format!("`{}` changes nothing", rule.text()))
    };
    let mut tried = 0;
    for (step, index) in rules(request).filter(|&(step, index)| is_idle(&request.steps[step].rules[index])) {
        let mut less = request.clone();
        let rule = less.steps[step].rules.remove(index);
        let without =
            partition(program.clone(), &less).unwrap_or_else(|errors| panic!("{plan}: {errors:#?}"));
        // A rule that places nothing may still split an axis into parts, which have other names then.
        if without.program.mesh != made.program.mesh {
            continue;
        }
        assert!(
            without.program.values == made.program.values,
            "{plan}\nnot the same without {}",
            rule.text()
        );
        tried += 1;
    }
    tried
}

fn rules(request: &PlacementRequest) -> impl Iterator<Item = (usize, usize)> {
    let steps = request.steps.iter().enumerate();
    steps.flat_map(|(step, request)| (0..request.rules.len()).map(move |rule| (step, rule)))
}

#[test]
fn random_plans_are_refused_or_compute_the_same() {
    let mut numbers = Numbers(seed());
    let programs =
        [15, 16].map(|vocabulary| [with_update(joint(&llama(vocabulary))), joint(&tied(vocabulary))]);
    let (mut ran, mut idle) = (0, 0);
    for _ in 0..cases() {
        let program = &programs[numbers.below(2)][numbers.below(2)];
        let plan = plan(&mut numbers);
        if !plan.contains("P ") || program.find_dim("P").is_some() {
            let mut request = request(program, &plan);
            let plan = plan + &pin(&mut numbers, program, &mut request);
            match partition(program.clone(), &request) {
                // Pads that don't nest can only be gathered, which takes leave.
                Ok(made) if plan_reshards(&mut made.program.clone()).is_err() => {
                    let why = plan_reshards(&mut made.program.clone());
                    assert!(plan.contains(" pad"), "{plan}: {why:#?}");
                }
                Ok(made) => {
                    pins_hold(&made.program, &request, &plan);
                    idle += without_idle_rules(program, &request, &made, &plan);
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
    assert!(idle * 40 > cases(), "only {idle} rules changed nothing");
}

/// More cases than the default for a long run.
fn cases() -> usize {
    std::env::var("DTLC_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40)
}

fn seed() -> u64 {
    std::env::var("DTLC_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}
