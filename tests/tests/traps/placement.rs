//! Traps of placement: movements nobody asked for, nobody can trace, or that need more memory than there is.

use crate::support::{Plan, broken_promises, compile, compiled, figures, file};
use dtlc::pipeline::Mode;
use dtlc_ir::interpret::Tensor;
use dtlc_ir::{Op, Region, Role, text};
use dtlc_passes::memory::plan_memory;
use dtlc_passes::partition::{PlacementErrorKind, plan_reshards};
use dtlc_passes::{fuse, start_collectives};
use dtlc_tests::backend::run;

const MLP: &str = "
layer Mlp[D, F] {
  param up: [D, F]
  param down: [F, D]

  fn (x: [B, S@tp, D]) -> [B, S, D] {
    dot[F](tanh(dot[D](x, up)), down)
  }
}

model M {
  dims B, S, D = 8, F = 10
  mlp = Mlp[D, F]

  fn loss(x: [B, S, D]) -> f32[] { mean(tanh(f32(mlp(x)))) }
}
";

#[test]
fn xla_43774_every_collective_is_traced_to_lines_and_rules() {
    let entries = "mesh { tp: 2 }\nstep tensor: F -> tp\nbatch { seq 4, global 2 }\noptimizer sgd { lr 0.1 }";
    let source = file(MLP, &[Plan { name: "p", entries }]);
    let figures = figures(&source, "p");
    assert!(!figures.collectives.is_empty());
    for call in &figures.collectives {
        assert!(call.span.starts_with("case.dtl:"), "{call:?}");
        for reason in &call.reasons {
            // What is there, with its line, and what wants it elsewhere; what no line asks for is named.
            let lines = reason.matches("(case.dtl:").count();
            let wanted = reason.contains(" is needed ") && reason.contains(" by ");
            assert!(
                wanted && (lines >= 2 || reason.contains("`grad_norm`") || reason.contains("the step")),
                "{reason}"
            );
        }
    }
    // The annotation and the rule that do not agree are both named where they meet.
    let whys: Vec<&String> = figures.collectives.iter().flat_map(|call| &call.reasons).collect();
    let meets = |why: &&&String| why.contains("S@tp") && why.contains("F@tp (step `tensor`)");
    assert!(whys.iter().any(|why| meets(&why)), "{whys:#?}");
}

#[test]
fn xla_15402_a_bad_split_is_an_error_that_names_the_dimension() {
    for (rule, dim) in [("F -> tp", "`F`"), ("acts S -> tp", "`S`"), ("params D -> tp", "`D`")] {
        let entries = format!("mesh {{ tp: 3 }}\nstep bad: {rule}\nbatch {{ seq 4, global 2 }}");
        let model = MLP.replace("S@tp", "S");
        let source = format!("{model}\nplan p for M {{\n{entries}\n}}\n");
        let report = compile(&source, "p", Mode::Gradients).expect_err("3 divides none of 10, 4 and 8");
        assert!(report.contains("E0407") && report.contains(dim) && report.contains("step bad"), "{report}");
    }
}

/// A program that brings `input` from one placement to another on a mesh of 4 × 2.
fn reshard(from: &str, to: &str, dims: &str) -> String {
    format!(
        r#"program "case" {{
  mesh {{ x: 4, y: 2 }}
  dims {{ {dims} }}
  scopes {{ /: Model }}
  inputs {{ input = %input }}
  outputs {{ moved = %moved }}
  main(%input: f32[{from}]) {{
    %made: f32[{from}] = neg %input forward
    %moved: f32[{to}] = reshard %made because "a test" forward
    yield %moved
  }}
}}"#
    )
}

#[test]
fn jax_21562_a_reshard_over_two_axes_replicates_nothing() {
    let source = reshard("A@y, B, C@x", "A, B@x@y, C", "A = 16, B = 16, C = 16");
    let mut program = text::parse(&source).unwrap_or_else(|error| panic!("{error}"));
    plan_reshards(&mut program).unwrap_or_else(|errors| panic!("{errors:#?}"));
    let shown = text::print_step(&program);
    // An eighth of 16³ numbers at each end.
    let end = 16 * 16 * 16 * 4 / 8;
    for inst in &program.main.insts {
        assert!(program.ty(inst.results[0]).local_bytes(&program) <= end, "{shown}");
    }
    assert!(!shown.contains("all_gather"), "{shown}");
    fuse(&mut program);
    start_collectives(&mut program);
    let memory = plan_memory(&program);
    assert!(memory.arena_bytes <= 2 * end, "{} bytes at the peak\n{shown}", memory.arena_bytes);
    let dims: Vec<_> = program.dims.keys().map(|dim| (dim, 16)).collect();
    let numbers = Tensor::from_fn(dims, |index| index as f64);
    let moved = run(&program, std::slice::from_ref(&numbers), 1, 0).unwrap_or_else(|error| panic!("{error}"));
    assert!(moved[0].data.iter().zip(&numbers.data).all(|(moved, number)| *moved == -number));
}

#[test]
fn xla_15207_what_only_a_gather_can_move_asks_for_leave() {
    // Two elements over two of four ranks each: no third placement is between these two.
    let source = reshard("A@y, B", "A, B@y", "A = 2, B = 3");
    let parsed = text::parse(&source);
    let Ok(mut program) = parsed else { return };
    let errors = plan_reshards(&mut program).expect_err("no exchange brings it there");
    assert_eq!(errors[0].kind, PlacementErrorKind::NeedsLeave, "{errors:#?}");
}

/// A stack that stores its weights in parts.
fn stack(layers: u64, policy: &str) -> String {
    format!(
        "
use std::nn::{{RmsNorm, SwiGlu}}

layer Block[D, F] {{
  norm = RmsNorm[D]
  mlp = SwiGlu[D, F]

  fn (x: [B, S, D]) -> [B, S, D] {{ x + mlp(norm(x)) }}
}}

model M {{
  dims B, S, D = 32, F = 64, L = {layers}
  layers = repeat[L] Block[D, F]

  fn loss(x: [B, S, D]) -> f32[] {{ mean(tanh(f32(layers(x)))) }}
}}

plan p for M {{
  mesh {{ dp: 4 }}
  step data: acts B -> dp
  step zero(3): over dp
  batch {{ seq 2, global 4 }}
  remat Block: {policy}
  optimizer sgd {{ lr 0.1 }}
}}
"
    )
}

#[test]
fn pytorch_xla_6379_one_block_s_gathered_weights_live_at_a_time() {
    for policy in ["full", "none"] {
        let (_, compilation) = compiled(&stack(4, policy), "p", Mode::Train);
        let scheduled = compilation.scheduled.expect("scheduled");
        let program = &scheduled.planned;
        // Gathered weights are made in a loop over layers, and no loop keeps one.
        let mut loops = 0;
        for inst in &program.main.insts {
            match &inst.op {
                Op::Collective(_) => {
                    let gathered = inst.results.iter().any(|&value| {
                        program.values[value].role == Role::Parameter && program.ty(value).dims.len() > 1
                    });
                    assert!(!gathered, "{policy}: {}", text::print_step(program));
                }
                Op::Scan(scan) => {
                    loops += usize::from(gathers(program, &scan.body));
                    for &value in &inst.results {
                        let whole = program.ty(value).placement.is_replicated()
                            && program.values[value].role == Role::Parameter;
                        assert!(!whole, "{policy}: {}", text::print_step(program));
                    }
                }
                _ => {}
            }
        }
        assert!(loops >= 2, "{policy}: forward and backward each gather\n{}", text::print_step(program));
        // So what is gathered takes as much for 4 layers as for 16.
        let [few, many] = [4, 16].map(|layers| figures(&stack(layers, policy), "p"));
        let calls = |figures: &dtlc::figures::Figures| -> Vec<(&'static str, &'static str, u64, u64)> {
            let gathers = figures.collectives.iter().filter(|call| call.kind == "all_gather");
            gathers.map(|call| (call.kind, call.phase, call.per_run, call.bytes)).collect()
        };
        assert_eq!(calls(&few), calls(&many), "{policy}");
        let block: u64 = 4 * (3 * 32 * 64 + 32);
        let (few, many) = (few.memory.workspace, many.memory.workspace);
        assert!(many.abs_diff(few) < block, "{policy}: {few} bytes for 4 layers, {many} for 16");
    }
}

fn gathers(program: &dtlc_ir::Program, region: &Region) -> bool {
    region.insts.iter().any(|inst| {
        matches!(inst.op, Op::Collective(_))
            && inst.results.iter().any(|&value| program.values[value].role == Role::Parameter)
    })
}

#[test]
fn marin_8508_too_little_memory_is_known_when_compiling() {
    let source = stack(16, "none").replace("batch { seq 2, global 4 }", "batch { seq 512, global 64 }");
    let source = source.replace("remat", "memory 40 MB\n  remat");
    let report = broken_promises(&source, "p");
    assert!(report.contains("E0501") && report.contains("needs") && report.contains("40.00 MB"), "{report}");
    // What takes most stands first, with its line.
    let notes: Vec<&str> = report.lines().filter(|line| line.contains("note: ")).collect();
    assert!(notes.len() >= 3 && notes.iter().all(|line| line.contains(".dtl:")), "{report}");
    assert!(notes[0].contains("MB"), "{report}");
    // The same plan without the limit is fine, and so is one that keeps less.
    let enough = source.replace("memory 40 MB\n", "");
    assert_eq!(broken_promises(&enough, "p"), "");
    let needs = figures(&enough, "p").memory.peak;
    let frugal = source.replace("Block: none", "Block: full");
    assert!(figures(&frugal.replace("memory 40 MB\n", ""), "p").memory.peak < needs);
}
