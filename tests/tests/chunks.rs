//! Large products in chunks: the logits of a large vocabulary are never whole, and training computes the same.

use dtlc::pipeline::{Mode, Stage, compile_within};
use dtlc_ir::memory::MemoryPlan;
use dtlc_ir::{Op, Program, Region};
use dtlc_lang::{Loaded, Options, PlanChoice};
use dtlc_passes::ChunkBudget;
use dtlc_tests::random::judge::{Verdict, judge};

/// Chunks of one row.
const ROWS: ChunkBudget = ChunkBudget { whole: 0, chunk: 0, rows: 0 };

/// A model with every part that a cross-entropy may have, under two plans.
fn source(body: &str, mesh: &str, steps: &str, batch: &str) -> String {
    let plan = |name: &str, mesh: &str, steps: &str, batch: &str| {
        format!(
            "plan {name} for M {{\n  mesh {{ {mesh} }}\n  {steps}\n  batch {{ {batch} }}\n  optimizer adamw {{ lr 1e-2, decay 0.1 on weight, clip 1.0 }}\n}}\n"
        )
    };
    format!(
        "use std::loss::cross_entropy\nuse std::nn::{{Embedding, Linear, RmsNorm}}\nmodel M {{\n  dims B, S, D = 6, V = 12\n  embed = Embedding[V, D]\n  norm = RmsNorm[D]\n  head = Linear[D -> V]\n  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {{\n    {body}\n  }}\n}}\n{}{}",
        plan("one", "dp: 1", "step data: acts B -> dp", "seq 4, global 8"),
        plan("many", mesh, steps, batch)
    )
}

const PLAIN: &str = "mean(cross_entropy[V](head(norm(embed(tokens))), labels), over = labels != 3)";
const WITH_Z: &str =
    "mean(cross_entropy[V](head(norm(embed(tokens))), labels, z = 0.1, ignore = 3), over = labels != 3)";
const CAPPED: &str =
    "let y = head(norm(embed(tokens)))\n    mean(cross_entropy[V](5.0 * tanh(0.2 * y), labels))";
const SQUARED: &str = "let l = mean(cross_entropy[V](head(norm(embed(tokens))), labels))\n    l * l";

const DATA: &str = "step data: acts B -> dp";
const VOCABULARY: &str = "step tensor: V -> tp";

/// The planned and the final program of a training step, with its memory.
fn compiled(
    path: &str,
    source: &str,
    plan: &str,
    budget: &ChunkBudget,
) -> (usize, Program, Program, MemoryPlan) {
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let options = Options { plan: PlanChoice::Named(plan.to_owned()), overrides: Vec::new() };
    let typed = dtlc_lang::compile(&nothing, path, source.as_bytes(), &options)
        .unwrap_or_else(|rejected| panic!("{:#?}", rejected.diagnostics));
    let compilation = compile_within(&typed, Mode::Train, Stage::Scheduled, budget)
        .unwrap_or_else(|trouble| panic!("{trouble:#?}"));
    let scheduled = compilation.scheduled.expect("the last stage was asked for");
    let memory = scheduled.program.memory.clone().expect("a schedule has a memory plan");
    (scheduled.chunked.len(), scheduled.planned, scheduled.program, memory)
}

/// How many products of the head a step makes, by the loops that they are in.
fn products(program: &Program, region: &Region, dims: &[&str]) -> usize {
    let count = |inst: &dtlc_ir::Inst| match &inst.op {
        Op::Dot(_) => {
            let ty = program.ty(inst.results[0]);
            let names: Vec<&str> = ty.dims.iter().map(|&dim| program.dims[dim].name.as_str()).collect();
            usize::from(dims.iter().all(|dim| names.contains(dim)))
        }
        op => op.region().map_or(0, |inside| products(program, inside, dims)),
    };
    region.insts.iter().map(count).sum()
}

/// The most bytes that any value takes which has the vocabulary and positions of sequences.
fn largest_logits(program: &Program, memory: &MemoryPlan) -> u64 {
    let logits = program.values.iter().filter(|(value, info)| {
        let has = |name: &str| info.ty.dims.iter().any(|&dim| program.dims[dim].name.starts_with(name));
        memory.place(*value).is_some() && has("V") && has("S")
    });
    logits.map(|(_, info)| info.ty.local_bytes(program)).max().unwrap_or(0)
}

#[test]
fn chunks_change_nothing() {
    let plans = [
        ("dp: 1", DATA, "seq 4, global 8"),
        ("dp: 2", DATA, "seq 4, global 8"),
        ("dp: 1", DATA, "seq 4, global 8, micro 2"),
        ("tp: 3", VOCABULARY, "seq 4, global 8"),
        ("dp: 2, tp: 2", "step data: acts B -> dp\n  step tensor: V -> tp", "seq 4, global 8, micro 2"),
        ("cp: 2", "step sequence: acts S -> cp", "seq 4, global 8"),
        ("dp: 2", "step data: acts B -> dp\n  step zero(3): over dp", "seq 4, global 8, micro 2"),
    ];
    for body in [PLAIN, WITH_Z, CAPPED, SQUARED] {
        for (mesh, steps, batch) in plans {
            let text = source(body, mesh, steps, batch);
            if body == SQUARED && batch.contains("micro") {
                continue; // No sum over micro-batches: refused.
            }
            let (chunked, ..) = compiled("case.dtl", &text, "many", &ROWS);
            assert!(chunked > 0, "nothing is in chunks\n{text}");
            assert_eq!(judge(&text), Verdict::Agrees, "{text}");
        }
    }
}

#[test]
fn logits_are_computed_again_only_behind_a_collective_or_a_whole_loss() {
    for (body, mesh, steps, expected) in [
        (PLAIN, "dp: 2", DATA, 1),
        (WITH_Z, "dp: 2", DATA, 1),
        (SQUARED, "dp: 1", DATA, 2),
        (PLAIN, "tp: 2", VOCABULARY, 2),
        (WITH_Z, "tp: 2", VOCABULARY, 2),
    ] {
        let text = source(body, mesh, steps, "seq 4, global 8");
        let (_, planned, ..) = compiled("case.dtl", &text, "many", &ROWS);
        assert_eq!(products(&planned, &planned.main, &["B.rows", "V"]), expected, "{mesh}\n{text}");
    }
}

#[test]
fn no_buffer_of_llama_3_holds_all_logits() {
    let path = "../examples/llama3.dtl";
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    // One sequence of 8192 tokens, 128256 words, f32; a chunk has 512 tokens.
    let whole = 8192 * 128_256 * 4;
    for (plan, ways) in [("b8_one", 1), ("b70_tp8", 8)] {
        let keep = ChunkBudget { whole: u64::MAX, ..ChunkBudget::default() };
        let (_, _, program, memory) = compiled(path, &text, plan, &keep);
        let before = (largest_logits(&program, &memory), memory.peak_bytes());
        let (chunked, _, program, memory) = compiled(path, &text, plan, &ChunkBudget::default());
        let after = (largest_logits(&program, &memory), memory.peak_bytes());
        println!("{plan}: logits {} -> {} bytes, peak {} -> {}", before.0, after.0, before.1, after.1);
        assert_eq!((chunked, before.0, after.0), (1, whole / ways, whole / ways / 16), "{plan}");
    }
}
