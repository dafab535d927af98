//! What `explain` says of the large examples: collectives by block, direction and phase, and the memory that the ZeRO
//! paper prints.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// `dtlc explain … --json` on a file of the repository.
fn explain(file: &str, plan: &str, overrides: &[String]) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtlc"));
    command.current_dir(root).args(["explain", file, "-p", plan, "--json"]);
    for value in overrides {
        command.args(["-D", value]);
    }
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{plan}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Calls a run of `Block`, as `phase kind axis` with their number.
fn calls_of_a_block(explained: &Value, layers: u64) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for call in explained["collectives"].as_array().expect("a list") {
        assert!(call["why"].as_str().is_some_and(|why| !why.is_empty()), "a reason: {call}");
        assert!(call["span"].as_str().is_some_and(|span| span.contains(".dtl:")), "a line: {call}");
        if call["scope"] == "Block" {
            let word = |key: &str| call[key].as_str().unwrap_or_default().to_owned();
            let name = format!("{} {} {}", word("phase"), word("kind"), word("axis"));
            let times = call["per_step"].as_u64().expect("a number");
            assert_eq!(times % layers, 0, "{call}");
            *calls.entry(name).or_insert(0) += times / layers;
        }
    }
    calls
}

fn expected<const N: usize>(calls: [(&str, u64); N]) -> BTreeMap<String, u64> {
    calls.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
}

fn llama(plan: &str) -> Value {
    explain("examples/llama3.dtl", plan, &[])
}

#[test]
fn parameter_counts_are_exact() {
    for (plan, count) in
        [("b8_one", 8_030_261_248u64), ("b70_tp8", 70_553_706_496), ("b405_tp8_dp2048", 405_853_388_800)]
    {
        assert_eq!(llama(plan)["params"], count, "{plan}");
    }
}

#[test]
fn one_rank_moves_nothing() {
    assert_eq!(llama("b8_one")["collectives"].as_array().map(Vec::len), Some(0));
}

#[test]
fn tensor_parallelism_reduces_once_after_attention_and_once_after_the_mlp() {
    let calls = calls_of_a_block(&llama("b70_tp8"), 80);
    assert_eq!(calls, expected([("forward all_reduce tp", 2), ("backward all_reduce tp", 2)]));
}

#[test]
fn sequence_parallelism_gathers_and_scatters_twice_a_direction() {
    let explained = llama("b70_tp8_sp");
    let block = [
        ("forward all_gather tp", 2),
        ("forward reduce_scatter tp", 2),
        ("backward all_gather tp", 2),
        ("backward reduce_scatter tp", 2),
        ("recompute all_gather tp", 2),
    ];
    assert_eq!(calls_of_a_block(&explained, 80), expected(block));
    let gradients = explained["collectives"].as_array().expect("a list").iter();
    let gradients: Vec<&Value> = gradients.filter(|call| call["phase"] == "gradient").collect();
    assert_eq!(gradients.len(), 1, "the norms' gradients, once a step over the whole stack: {gradients:?}");
    assert_eq!((&gradients[0]["kind"], &gradients[0]["axis"]), (&"all_reduce".into(), &"tp".into()));
    assert_eq!(gradients[0]["per_step"], 1);
}

#[test]
fn the_logits_of_a_large_vocabulary_are_in_chunks_whose_statistics_are_reduced_together() {
    for (plan, ways, calls) in [("b8_one", 1, 0), ("b70_tp8", 8, 2)] {
        let explained = llama(plan);
        let chunked = explained["chunked"].as_array().expect("a list");
        assert_eq!(chunked.len(), 1, "{plan}");
        let logits = &chunked[0];
        assert!(logits["span"].as_str().is_some_and(|span| span.contains(".dtl:")), "{plan}: {logits}");
        assert_eq!(logits["bytes"], 8192 * 128_256 * 2 / ways, "{plan}");
        assert_eq!((&logits["dim"], &logits["chunks"]), (&Value::from("S"), &Value::from(16)), "{plan}");
        // A maximum, and the two sums in one call.
        let all = explained["collectives"].as_array().expect("a list");
        let of_loss = |call: &&Value| {
            call["phase"] == "forward" && call["span"].as_str().is_some_and(|span| span.contains("loss.dtl"))
        };
        let found: Vec<&Value> = all.iter().filter(of_loss).collect();
        assert_eq!(found.len(), calls, "{plan}: {found:?}");
        assert!(found.iter().all(|call| call["per_step"] == 1), "{plan}: {found:?}");
    }
    let small = explain("examples/golden/llama.dtl", "tp2", &[]);
    assert_eq!(small["chunked"].as_array().map(Vec::len), Some(0));
}

#[test]
fn what_follows_from_a_weight_that_is_gathered_again_is_not_kept() {
    let explained = llama("b70_zero3_dp64");
    for line in explained["memory"]["by_line"].as_array().expect("a list") {
        let norm =
            line["values"].as_array().expect("a list").iter().any(|value| value == "layers.norm_attn.out");
        // One block's at most, not those of all 80.
        assert!(!norm || line["bytes"].as_u64() < Some(2 << 30), "{line}");
    }
}

#[test]
fn zero_3_gathers_a_block_in_one_call_and_scatters_its_gradients_in_one() {
    let calls = calls_of_a_block(&llama("b70_zero3_dp64"), 80);
    let block =
        [("forward all_gather dp", 1), ("backward all_gather dp", 1), ("backward reduce_scatter dp", 1)];
    assert_eq!(calls, expected(block));
}

/// Also where a block has biases and offsets, which only the computation that is repeated needs again.
#[test]
fn zero_3_gathers_a_block_in_one_call_whatever_is_recomputed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gpt2.dtl");
    let example = format!("{}/../../examples/gpt2.dtl", env!("CARGO_MANIFEST_DIR"));
    let example = std::fs::read_to_string(example).expect("the example");
    for remat in ["full", "none"] {
        let plan = format!(
            "plan stored for Gpt2 {{\n  mesh {{ dp: 4 }}\n  step data: acts B -> dp\n  step zero(3): over dp\n  \
             batch {{ seq 1024, global 4, micro 1 }}\n  remat Block: {remat}\n  optimizer sgd {{ lr 0.1 }}\n}}\n"
        );
        std::fs::write(&path, format!("{example}\n{plan}")).expect("it is written");
        let calls = calls_of_a_block(&explain(path.to_str().expect("UTF-8"), "stored", &[]), 12);
        let block =
            [("forward all_gather dp", 1), ("backward all_gather dp", 1), ("backward reduce_scatter dp", 1)];
        assert_eq!(calls, expected(block), "remat {remat}");
    }
}

/// A size of model, with the overrides that give it and how many parameters the paper speaks of.
struct Model {
    psi: f64,
    overrides: &'static [&'static str],
    /// GB on one rank, as printed, for each number of ranks: stages 1, 2 and 3.
    cells: &'static [(u64, [&'static str; 3])],
}

/// Table 1 of "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv 1910.02054).
const TABLE: [Model; 3] = [
    Model {
        psi: 7.5e9,
        overrides: &[],
        cells: &[
            (1, ["120", "120", "120"]),
            (4, ["52.5", "41.3", "30"]),
            (16, ["35.6", "21.6", "7.5"]),
            (64, ["31.4", "16.6", "1.88"]),
            (256, ["30.4", "15.4", "0.47"]),
            (1024, ["30.1", "15.1", "0.12"]),
        ],
    },
    Model {
        psi: 128e9,
        overrides: &["D=12288", "H=96", "L=70"],
        cells: &[
            (1, ["2048", "2048", "2048"]),
            (4, ["896", "704", "512"]),
            (16, ["608", "368", "128"]),
            (64, ["536", "284", "32"]),
            (256, ["518", "263", "8"]),
            (1024, ["513", "257", "2"]),
        ],
    },
    Model {
        psi: 1e12,
        overrides: &["D=25600", "H=200", "L=127"],
        cells: &[
            (1, ["16000", "16000", "16000"]),
            (4, ["7000", "5500", "4000"]),
            (16, ["4750", "2875", "1000"]),
            (64, ["4187", "2218", "250"]),
            (256, ["4046", "2054", "62.5"]),
            (1024, ["4011", "2013", "15.6"]),
        ],
    },
];

/// Half a unit of the last printed digit, one unit where the paper cut digits off instead of rounding; and a
/// fiftieth of what stage 3 stores, since biases of heads are left whole where the ranks do not divide them.
fn tolerance(cell: &str, stage: usize) -> f64 {
    let decimals = cell.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let unit = 10f64.powi(-(decimals as i32));
    let whole = if stage == 3 { 0.02 * cell.parse::<f64>().expect("a number") } else { 0.0 };
    unit + whole
}

#[test]
fn stored_memory_is_that_of_the_zero_paper() {
    for Model { psi, overrides, cells } in TABLE {
        for (ranks, stages) in cells {
            for (index, cell) in stages.iter().enumerate() {
                let stage = index + 1;
                let mesh = [format!("dp={ranks}"), format!("global={ranks}")];
                let all: Vec<String> = overrides.iter().map(|value| value.to_string()).chain(mesh).collect();
                let explained = explain("examples/papers/zero.dtl", &format!("stage{stage}"), &all);
                let bytes = |key: &str| explained["memory"][key].as_f64().expect("bytes");
                let stored = bytes("params") + bytes("grads") + bytes("optimizer");
                let gigabytes = stored / explained["params"].as_f64().expect("a count") * psi / 1e9;
                let printed: f64 = cell.parse().expect("a number");
                let error = (gigabytes - printed).abs();
                assert!(
                    error <= tolerance(cell, stage),
                    "{psi} parameters, {ranks} ranks, stage {stage}: {gigabytes} GB, printed {cell}"
                );
            }
        }
    }
}

#[test]
fn the_paper_s_figure_is_met_to_its_digits() {
    for (plan, printed) in [("stage0", "120.0"), ("stage1", "31.4"), ("stage2", "16.6"), ("stage3", "1.9")] {
        let explained = explain("examples/papers/zero.dtl", plan, &[]);
        let bytes = |key: &str| explained["memory"][key].as_f64().expect("bytes");
        let stored = bytes("params") + bytes("grads") + bytes("optimizer");
        assert_eq!(format!("{:.1}", stored / 1e9), printed, "{plan}");
    }
}

/// What `explain` prints is a program: compiled again, it moves the same data.
#[test]
fn what_explain_prints_means_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("examples/bytes.dtl", "node4"),
        ("examples/bytes.dtl", "zero3"),
        ("examples/papers/zero.dtl", "hpz"),
        ("examples/golden/llama.dtl", "tp4"),
        ("examples/golden/llama.dtl", "dp2_tp2_accum2"),
        ("examples/golden/gpt2.dtl", "tp2_sp"),
        ("examples/golden/gpt2.dtl", "hsdp_2x2"),
        ("examples/llama3.dtl", "b70_tp8_sp"),
        ("examples/llama3.dtl", "b405_tp8_dp2048"),
    ];
    for (file, plan) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dtlc"));
        let printed =
            command.current_dir(&root).args(["explain", file, "-p", plan]).output().expect("it runs");
        let path = folder.path().join("printed.dtl");
        std::fs::write(&path, &printed.stdout).expect("it is written");
        let again = explain(&path.to_string_lossy(), plan, &[]);
        assert_eq!(moves(&again), moves(&explain(file, plan, &[])), "{file}, {plan}");
    }
}

/// Every collective but for its reason and line.
fn moves(explained: &Value) -> Vec<String> {
    let calls = explained["collectives"].as_array().expect("a list").iter();
    let keys = ["kind", "axis", "scope", "phase", "per_step", "bytes"];
    calls.map(|call| keys.map(|key| call[key].to_string()).join(" ")).collect()
}
