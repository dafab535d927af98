//! What the command shows of a compilation: stages, figures, snapshots, canonical form.

use crate::support::Dtlc;
use dtlc_runtime::program::Program;
use dtlc_runtime::program::text::Detail;

#[test]
fn every_stage_prints() {
    let dtlc = Dtlc::new();
    for (stage, holds) in [
        ("ast", "layer Block[D, F] {"),
        ("model", "param layers.up.weight"),
        ("logical", "dot"),
        ("joint", "grad_norm"),
        ("sharded", "reshard"),
        ("scheduled", "all_reduce"),
        ("kernels", "kernel "),
        ("cuda", "__global__ "),
        ("clif", "function "),
        ("program", "\"arena_bytes\": "),
    ] {
        let text = dtlc.expect(0, &["emit", "tiny.dtl", "-p", "tp2", "--stage", stage]).stdout;
        assert!(text.contains(holds), "{stage}:\n{text}");
        let again = match stage {
            "model" => dtlc_lang::text::parse(&text).map(|model| dtlc_lang::text::print(&model)).ok(),
            "logical" | "joint" | "sharded" | "scheduled" => {
                dtlc_ir::text::parse(&text).map(|program| dtlc_ir::text::print(&program)).ok()
            }
            "program" => Program::from_text(&text).and_then(|program| program.to_text(Detail::Full)).ok(),
            _ => continue,
        };
        assert_eq!(again.as_ref(), Some(&text), "{stage} can't be read, or prints otherwise once it is");
    }
    let program = dtlc.expect(0, &["emit", "tiny.dtl", "-p", "tp2", "--stage", "program", "--rank", "3"]);
    let program: serde_json::Value = serde_json::from_str(&program.stdout).expect("JSON");
    assert_eq!(program["rank"]["coordinates"], serde_json::json!([1, 1]));
}

/// A line that moves changes no snapshot but those that have reasons, and a size that changes changes all.
#[test]
fn every_stage_can_be_kept() {
    let dtlc = Dtlc::new();
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    for stage in ["ast", "model", "logical", "joint", "sharded", "scheduled", "kernels", "clif", "program"] {
        dtlc.write("tiny.dtl", &text);
        dtlc.expect(0, &["snapshot", "tiny.dtl", "--stage", stage, "--accept"]);
        if !["ast", "sharded", "scheduled"].contains(&stage) {
            dtlc.write("tiny.dtl", format!("// A line more.\n{text}"));
        }
        assert_eq!(dtlc.expect(0, &["snapshot", "tiny.dtl", "--stage", stage]).stdout, "", "{stage}");
        dtlc.write("tiny.dtl", text.replace("F = 32", "F = 64"));
        assert!(
            dtlc.expect(1, &["snapshot", "tiny.dtl", "--stage", stage]).stdout.contains("+++"),
            "{stage}"
        );
    }
}

#[test]
fn overrides_change_sizes() {
    let dtlc = Dtlc::new();
    let text = dtlc.expect(0, &["emit", "tiny.dtl", "-p", "one", "--stage", "logical", "-D", "F=48"]).stdout;
    assert!(text.contains("F = 48"), "{text}");
    assert!(
        dtlc.expect(1, &["emit", "tiny.dtl", "-p", "one", "--stage", "logical", "-D", "Q=48"])
            .stderr
            .contains('Q')
    );
}

#[test]
fn figures_have_their_keys() {
    let dtlc = Dtlc::new();
    let figures = dtlc.json(&["explain", "tiny.dtl", "-p", "tp2"]);
    assert_eq!(figures["ranks"], 4);
    assert_eq!(figures["mesh"]["tp"], 2);
    // Embedding and head, then two layers.
    assert_eq!(figures["params"], 2 * 256 * 16 + 2 * (16 * 32 + 32 + 32 * 16));
    // Two sequences of 8 a rank, half of F and V: three products of each, two operations a multiplication.
    let forward = 2 * (2 * 8) * (2 * (16 * 16 + 16 * 16) + 16 * 128);
    assert_eq!(figures["flops"]["model"], 3 * forward);
    let memory = &figures["memory"];
    let bytes = |key: &str| memory[key].as_u64().unwrap_or_else(|| panic!("no `{key}`"));
    let parts = ["params", "grads", "optimizer", "activations", "workspace"].map(bytes);
    assert_eq!(parts.iter().sum::<u64>(), bytes("peak"));
    // Everything is split by V or F, in halves.
    let stored = 4 * (2 * 256 * 16 + 2 * (16 * 32 + 32 + 32 * 16)) / 2;
    assert_eq!(bytes("params"), stored);
    assert_eq!(bytes("grads"), stored);
    assert_eq!(bytes("optimizer"), 2 * stored);
    assert!(
        memory["by_line"][0]["span"].as_str().is_some() && memory["by_line"][0]["bytes"].as_u64().is_some()
    );
    let collectives = figures["collectives"].as_array().expect("a list");
    let in_block =
        collectives.iter().find(|it| it["scope"] == "Block" && it["phase"] == "forward").expect("one");
    assert_eq!(in_block["kind"], "all_reduce");
    assert_eq!(in_block["axis"], "tp");
    assert_eq!(in_block["per_step"], 2);
    assert_eq!(in_block["bytes"], 4 * 2 * 8 * 16);
    assert_eq!(in_block["wire_bytes"], 4 * 2 * 8 * 16);
    assert!(in_block["why"].as_str().is_some_and(|why| why.contains("partial over tp")));
    assert!(in_block["span"].as_str().is_some_and(|span| span.contains(".dtl:")));
    assert_eq!(figures["pipeline"]["stages"], 1);
    assert_eq!(figures["pipeline"]["microbatches"], 1);
}

/// Pins against a plan's step, two axes along one dimension, neither in the order of the mesh.
const PINNED: &str = "\
use std::loss::cross_entropy
use std::nn::{Embedding, Linear, RmsNorm}

model M {
  dims B, S, D = 32, F = 64, V = 50
  embed = Embedding[V, D]
  norm = RmsNorm[D]
  param up: [D, F@tp]
  param down: [F@tp, D]
  head = Linear[D -> V]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    let x: [B, S@tp, D] = embed(tokens)
    let h: [B, S, F@tp] = dot[D](norm(x), up)
    let y: [B@dp, S, D] = x + dot[F](h * sigmoid(h), down)
    mean(cross_entropy[V](head(y), labels))
  }
}

plan crossed for M {
  mesh { dp: 2, tp: 2 }
  step d: acts B -> tp
  batch { seq 16, global 4 }
  optimizer sgd { lr 0.1 }
}
";

/// With every placement pinned as it is printed, the same moves.
#[test]
fn what_explain_prints_is_legal_input_for_the_same_movements() {
    let dtlc = Dtlc::new();
    dtlc.write("pinned.dtl", PINNED);
    let example = |name: &str| format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let calls = |figures: &serde_json::Value| -> Vec<String> {
        let calls = figures["collectives"].as_array().expect("a list").iter();
        let keys = ["kind", "axis", "phase", "per_step", "bytes", "wire_bytes"];
        let mut calls: Vec<String> =
            calls.map(|call| keys.map(|key| call[key].to_string()).join(" ")).collect();
        calls.sort_unstable();
        calls
    };
    for (file, plan) in [
        ("tiny.dtl".to_owned(), "tp2"),
        ("pinned.dtl".to_owned(), "crossed"),
        (example("bytes.dtl"), "zero3"),
        (example("gpt2.dtl"), "dp2_tp2"),
        (example("llama3.dtl"), "b405_tp8_dp2048"),
    ] {
        let text = dtlc.expect(0, &["explain", &file, "-p", plan]).stdout;
        assert!(!text.contains("plan one"), "{text}");
        dtlc.write("again.dtl", &text);
        dtlc.expect(0, &["fmt", "--check", "again.dtl"]);
        let [first, second] = [&file, "again.dtl"].map(|file| dtlc.json(&["explain", file, "-p", plan]));
        assert_eq!(calls(&first), calls(&second), "{text}");
        assert_eq!(first["memory"]["peak"], second["memory"]["peak"], "{text}");
        assert_eq!(first["flops"], second["flops"], "{text}");
    }
    let text = dtlc.expect(0, &["explain", "tiny.dtl", "-p", "tp2"]).stdout;
    assert!(text.contains("B@dp") && text.contains("// forward all_reduce over tp"), "{text}");
}

/// Also where a comment comes before a model's first member, and where values have no names.
#[test]
fn what_explain_prints_is_formatted() {
    let dtlc = Dtlc::new();
    let example = format!("{}/../../examples/bytes.dtl", env!("CARGO_MANIFEST_DIR"));
    let text = dtlc.expect(0, &["explain", &example, "-p", "node4"]).stdout;
    assert!(text.contains("model Bytes {\n  // forward all_reduce over tp"), "{text}");
    dtlc.write("again.dtl", &text);
    dtlc.expect(0, &["fmt", "--check", "again.dtl"]);
    let nameless = |word: &str| word.strip_prefix('v').is_some_and(|rest| rest.parse::<u32>().is_ok());
    assert!(!text.split([' ', ',', '\n']).any(nameless), "{text}");
}

#[test]
fn snapshots_show_a_change_until_it_is_accepted() {
    let dtlc = Dtlc::new();
    let first = dtlc.expect(1, &["snapshot", "tiny.dtl"]).stdout;
    assert!(first.lines().count() == 2 && first.contains("tiny.dtl.tp2.sharded.snap: new, "), "{first}");
    dtlc.expect(0, &["snapshot", "tiny.dtl", "--accept"]);
    assert!(dtlc.path("tiny.dtl.tp2.sharded.snap").exists());
    assert_eq!(dtlc.expect(0, &["snapshot", "tiny.dtl"]).stdout, "");
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write("tiny.dtl", text.replace("F = 32", "F = 64"));
    let outcome = dtlc.expect(1, &["snapshot", "tiny.dtl"]);
    assert!(outcome.stdout.contains("\n-") && outcome.stdout.contains("F = 64"), "{}", outcome.stdout);
    dtlc.expect(0, &["snapshot", "tiny.dtl", "--accept"]);
    dtlc.expect(0, &["snapshot", "tiny.dtl"]);

    // The folder that one stands in is no part of it.
    let folder = dtlc.folder.path().to_owned();
    let (name, path) = (folder.file_name().expect("a name"), folder.join("tiny.dtl"));
    let beside = std::path::Path::new("..").join(name).join("tiny.dtl");
    for path in [path, beside] {
        let seen = dtlc.expect(0, &["snapshot", path.to_str().expect("a path")]).stdout;
        assert_eq!(seen, "", "{}", path.display());
    }
    let held = std::fs::read_to_string(dtlc.path("tiny.dtl.tp2.sharded.snap")).expect("a snapshot");
    assert!(held.contains("(tiny.dtl:"), "{held}");

    // A plan that has another name: its old snapshot is told of, and others' files are nobody's business.
    dtlc.write("other.dtl.tp2.sharded.snap", "");
    dtlc.write("tiny.dtl.notes.sharded.snap", "My own notes.");
    dtlc.write("tiny.dtl", text.replace("plan tp2 ", "plan tensor "));
    let gone = dtlc.expect(1, &["snapshot", "tiny.dtl"]).stdout;
    assert!(gone.contains("tp2.sharded.snap: its plan is gone"), "{gone}");
    assert!(!gone.contains("other") && !gone.contains("notes"), "{gone}");
    dtlc.expect(0, &["snapshot", "tiny.dtl", "--accept"]);
    assert!(!dtlc.path("tiny.dtl.tp2.sharded.snap").exists());
    assert!(dtlc.path("tiny.dtl.tensor.sharded.snap").exists());
    assert!(dtlc.path("other.dtl.tp2.sharded.snap").exists());
    assert!(dtlc.path("tiny.dtl.notes.sharded.snap").exists());
}

#[test]
fn formatting_is_checked_and_done() {
    let dtlc = Dtlc::new();
    dtlc.expect(0, &["fmt", "--check", "tiny.dtl"]);
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write("loose.dtl", text.replace("  embed = ", "      embed   = "));
    let outcome = dtlc.expect(1, &["fmt", "--check", "loose.dtl"]);
    assert!(outcome.stdout.contains("+  embed = "), "{}", outcome.stdout);
    dtlc.expect(0, &["fmt", "loose.dtl"]);
    assert_eq!(std::fs::read_to_string(dtlc.path("loose.dtl")).expect("the file"), text);
}

/// What is computed in bf16 is gathered in bf16 and reduced layer by layer, whichever type weights are stored in.
#[test]
fn weights_that_are_converted_move_as_those_that_are_not() {
    let dtlc = Dtlc::new();
    let model = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    let model = model.split("plan one").next().expect("a model").to_owned();
    let plan = |name: &str, precision: &str, (zero, batch, remat): (u32, &str, &str)| {
        format!(
            "plan {name} for Tiny {{\n  mesh {{ dp: 2 }}\n  step data: acts B -> dp\n  step zero({zero}): over dp\n  \
             batch {{ seq 8, global 8{batch} }}\n  precision {{ compute bf16, grads f32, {precision} }}\n  \
             optimizer adamw {{ lr 1e-2 }}\n{remat}}}\n"
        )
    };
    for case in [
        (3, "", ""),
        (3, "", "  remat Block: full\n"),
        (3, ", micro 2", "  remat Block: full\n"),
        (2, ", micro 2", ""),
    ] {
        let plans = plan("mixed", "params f32", case) + &plan("narrow", "params bf16, master f32", case);
        dtlc.write("mixed.dtl", format!("{model}{plans}"));
        let moved = |name: &str| -> Vec<String> {
            let figures = dtlc.json(&["explain", "mixed.dtl", "-p", name]);
            let calls = figures["collectives"].as_array().expect("a list").iter();
            let calls = calls.filter(|call| call["phase"] != "update");
            let what = |call: &serde_json::Value| {
                ["phase", "kind", "scope", "per_step", "bytes"].map(|key| call[key].to_string()).join(" ")
            };
            calls.map(what).collect()
        };
        let mixed = moved("mixed");
        assert_eq!(mixed, moved("narrow"), "{case:?}");
        let scattered = "\"backward\" \"reduce_scatter\" \"Block\"";
        assert!(mixed.iter().any(|call| call.starts_with(scattered)), "{case:?}: {mixed:#?}");
        dtlc.expect(0, &["verify", "mixed.dtl", "-p", "mixed"]);
    }
}

/// Gradients move and rest in the plan's format, and are divided behind that.
#[test]
fn a_scaled_loss_moves_and_stores_no_more() {
    let dtlc = Dtlc::new();
    let model = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    let model = model.split("plan one").next().expect("a model");
    let plan = |name: &str, scale: &str| {
        format!(
            "plan {name} for Tiny {{\n  mesh {{ dp: 2 }}\n  step data: acts B -> dp\n  step zero(2): over dp\n  \
             batch {{ seq 8, global 8, micro 2 }}\n  \
             precision {{ compute f16, params f16, grads f16, master f32{scale} }}\n  \
             optimizer adamw {{ lr 1e-2, clip 1.0 }}\n}}\n"
        )
    };
    dtlc.write("scaled.dtl", format!("{model}{}{}", plan("plain", ""), plan("scaled", ", loss_scale 1024")));
    let [plain, scaled] = ["plain", "scaled"].map(|name| {
        let figures = dtlc.json(&["explain", "scaled.dtl", "-p", name]);
        let calls = figures["collectives"].as_array().expect("a list").iter();
        let what = |call: &serde_json::Value| {
            ["phase", "kind", "scope", "per_step", "bytes"].map(|key| call[key].to_string())
        };
        let memory =
            ["params", "grads", "optimizer", "activations"].map(|key| figures["memory"][key].to_string());
        (calls.map(what).collect::<Vec<_>>(), memory)
    });
    assert_eq!(plain, scaled);
    dtlc.expect(0, &["verify", "scaled.dtl", "-p", "scaled"]);
}
