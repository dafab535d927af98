//! The command from a file to numbers: training, resuming, evaluating, verifying, stopping.

use crate::support::{Dtlc, source};
use dtlc_runtime::files::safetensors::read_all;
use dtlc_runtime::files::weights::save_tensors;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The JSON lines of a training run.
fn steps(dtlc: &Dtlc, arguments: &[&str]) -> Vec<serde_json::Value> {
    let fixed = ["train", "tiny.dtl", "--data", "text.txt", "--json"];
    let lines = dtlc.expect(0, &[&fixed[..], arguments].concat()).stdout;
    lines.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn with_text() -> Dtlc {
    let dtlc = Dtlc::new();
    dtlc.write("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(40));
    dtlc
}

fn number(line: &serde_json::Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {line}"))
}

#[test]
fn training_lowers_the_loss_the_same_on_any_ranks() {
    let dtlc = with_text();
    let one = steps(&dtlc, &["-p", "one", "--steps", "30"]);
    let four = steps(&dtlc, &["-p", "tp2", "--steps", "30"]);
    assert_eq!((one.len(), four.len()), (30, 30));
    for key in ["step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "peak_bytes"] {
        number(&one[0], key);
    }
    assert_eq!(number(&one[0], "tokens"), 32.0);
    let (first, last) = (number(&one[0], "loss"), number(&one[29], "loss"));
    assert!(last < first - 1.0, "the loss went from {first} to {last}");
    for (left, right) in one.iter().zip(&four) {
        let (left, right) = (number(left, "loss"), number(right, "loss"));
        assert!((left - right).abs() < 1e-4 * left, "{left} on one rank, {right} on four");
    }
}

#[test]
fn a_run_resumes_under_another_plan_where_it_stopped() {
    let dtlc = with_text();
    let whole = steps(&dtlc, &["-p", "one", "--steps", "6", "--seed", "5"]);
    steps(&dtlc, &["-p", "one", "--steps", "3", "--seed", "5", "--checkpoint", "run"]);
    let rest = steps(&dtlc, &["-p", "tp2", "--steps", "6", "--checkpoint", "run", "--resume"]);
    assert_eq!(rest.len(), 3);
    assert_eq!(number(&rest[0], "step"), 4.0);
    let (left, right) = (number(&whole[5], "loss"), number(&rest[2], "loss"));
    assert!((left - right).abs() < 1e-4 * left, "{left} in one go, {right} resumed");
    let fresh = ["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--steps", "2"];
    let nothing = dtlc.expect(1, &[&fresh[..], &["--checkpoint", "nowhere", "--resume"]].concat());
    assert!(nothing.stderr.contains("nowhere"), "{}", nothing.stderr);
}

#[test]
fn evaluation_writes_loss_and_gradients_by_name() {
    let dtlc = Dtlc::new();
    let tokens: Vec<u32> = (0..32).map(|index| index * 7 % 256).collect();
    let inputs: IndexMap<String, HostTensor> = [("tokens", 0), ("labels", 1)]
        .map(|(name, by)| {
            let shifted: Vec<u32> = tokens.iter().map(|token| (token + by) % 256).collect();
            (name.to_owned(), HostTensor::from_u32(&[4, 8], &shifted))
        })
        .into();
    save_tensors(&dtlc.path("inputs.safetensors"), &inputs).expect("the inputs are written");
    let mut results = Vec::new();
    for plan in ["one", "tp2"] {
        let output = format!("{plan}.safetensors");
        let arguments = ["--inputs", "inputs.safetensors", "--wrt", "params", "-o", &output];
        let printed = dtlc.json(&[&["run", "tiny.dtl", "-p", plan][..], &arguments].concat());
        assert!(printed["loss"].as_f64().is_some_and(|loss| loss > 1.0), "{printed}");
        results.push(read_all(&dtlc.path(&output)).expect("the results are there"));
    }
    assert!(results[0].contains_key("loss"));
    assert_eq!(results[0]["grad.layers.1.up.weight"].shape, [16, 32]);
    for (name, tensor) in &results[0] {
        let (left, right) = (tensor.to_f32(), results[1][name].to_f32());
        let scale = left.iter().fold(1e-3f32, |most, value| most.max(value.abs()));
        for (left, right) in left.iter().zip(&right) {
            assert!((left - right).abs() <= 1e-5 * scale, "{name}: {left} on one rank, {right} on four");
        }
    }
    let short: IndexMap<String, HostTensor> = inputs.into_iter().take(1).collect();
    save_tensors(&dtlc.path("short.safetensors"), &short).expect("the inputs are written");
    let outcome = dtlc.expect(
        1,
        &["run", "tiny.dtl", "-p", "one", "--inputs", "short.safetensors", "-o", "out.safetensors"],
    );
    assert!(
        outcome.stderr.contains("labels") && !dtlc.path("out.safetensors").exists(),
        "{}",
        outcome.stderr
    );
}

#[test]
fn bf16_follows_f32_within_its_rounding() {
    let dtlc = Dtlc::new();
    std::fs::copy(source("tests/files/attention.dtl"), dtlc.path("attention.dtl")).expect("the model");
    let wave = |count: u32, step: u32| -> Vec<f32> {
        (0..count).map(|index| (index * step % 33) as f32 / 32.0 - 0.5).collect()
    };
    let inputs: IndexMap<String, HostTensor> = [("x", 16, 7), ("weights", 8, 5)]
        .map(|(name, size, step)| {
            let values = wave(2 * 32 * size, step);
            (name.to_owned(), HostTensor::from_f32(&[2, 32, size.into()], &values))
        })
        .into();
    save_tensors(&dtlc.path("inputs.safetensors"), &inputs).expect("the inputs are written");
    let mut results = Vec::new();
    for plan in ["wide", "narrow"] {
        let arguments = ["--inputs", "inputs.safetensors", "--wrt", "params", "-o", "out.safetensors"];
        dtlc.expect(0, &[&["run", "attention.dtl", "-p", plan][..], &arguments].concat());
        results.push(read_all(&dtlc.path("out.safetensors")).expect("the results are there"));
    }
    for (name, wide) in &results[0] {
        let (wide, narrow) = (wide.to_f32(), results[1][name].to_f32());
        let scale = wide.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (left, right) in wide.iter().zip(&narrow) {
            // Some ten roundings of half of 2^-8 stand between a weight and the loss.
            assert!((left - right).abs() <= 0.04 * scale, "{name}: {left} in f32, {right} in bf16");
        }
    }
}

/// Plans `one` and `tp2` of the tests' model that compute in tf32.
fn write_in_tf32(dtlc: &Dtlc) {
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    let narrowed = text.replace("  optimizer adamw", "  precision { compute tf32 }\n  optimizer adamw");
    assert_eq!(narrowed.matches("compute tf32").count(), 2);
    dtlc.write("tiny.dtl", narrowed);
}

/// Losses in tf32 fall as those in f32 do, on any ranks, and are others: each factor is off by up to 2^-11 of itself, which is a
/// loss's first digits times some roundings of a thousandth.
#[test]
fn tf32_follows_f32_within_its_rounding() {
    let dtlc = with_text();
    let wide = steps(&dtlc, &["-p", "one", "--steps", "10"]);
    write_in_tf32(&dtlc);
    let one = steps(&dtlc, &["-p", "one", "--steps", "10"]);
    let four = steps(&dtlc, &["-p", "tp2", "--steps", "10"]);
    assert!(number(&one[9], "loss") < number(&one[0], "loss") - 0.3, "{:?}", one[9]);
    let losses =
        |lines: &[serde_json::Value]| -> Vec<f64> { lines.iter().map(|it| number(it, "loss")).collect() };
    let (wide, one, four) = (losses(&wide), losses(&one), losses(&four));
    assert_ne!(wide, one);
    for ((wide, one), four) in wide.iter().zip(&one).zip(&four) {
        assert!((one - wide).abs() < 2e-3 * wide, "{one} in tf32, {wide} in f32");
        assert!((one - four).abs() < 1e-3 * one, "{one} on one rank, {four} on four");
    }
    // What is said of the format where one is asked for that does not exist.
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write("wrong.dtl", text.replace("compute tf32", "compute tf32, grads tf32"));
    let refused = dtlc.expect(1, &["check", "wrong.dtl"]).stderr;
    assert!(refused.contains("nothing is stored or summed in tf32"), "{refused}");
    let emitted = dtlc.expect(0, &["emit", "tiny.dtl", "-p", "one", "--stage", "logical"]).stdout;
    assert!(emitted.contains("= dot[tf32] ") && !emitted.contains("= dot %"), "{emitted}");
}

#[test]
fn ranks_in_tf32_are_verified_against_one() {
    let dtlc = Dtlc::new();
    write_in_tf32(&dtlc);
    let found = dtlc.json(&["verify", "tiny.dtl", "-p", "tp2"]);
    assert_eq!((&found["ranks"], &found["ok"]), (&4.into(), &true.into()), "{found}");
}

#[test]
fn ranks_are_verified_against_one() {
    let dtlc = Dtlc::new();
    let found = dtlc.json(&["verify", "tiny.dtl", "-p", "tp2"]);
    assert_eq!((&found["ranks"], &found["ok"]), (&4.into(), &true.into()));
    for key in ["loss_rel_err", "max_grad_rel_err", "max_param_rel_err"] {
        assert!(number(&found, key) <= 1e-5, "{found}");
    }
    assert!(found["worst"].as_str().is_some_and(|worst| !worst.is_empty()), "{found}");
    let alone = dtlc.expect(0, &["verify", "tiny.dtl", "-p", "one"]).stderr;
    assert!(alone.contains("compared with itself"), "{alone}");
    let large = dtlc.expect(0, &["verify", "tiny.dtl", "-p", "tp2", "-D", "tp=16"]).stdout;
    assert!(large.contains("V 256 -> "), "{large}");
}

/// What a file requires of its sizes, a smaller one may break: those stay, others are made small.
#[test]
fn slices_hold_in_small() {
    let dtlc = Dtlc::new();
    let text = "model M {
  dims B, S, C = 64, F = C / 4, V = 256
  param table: [V, C] = normal(0.1)
  param q: [F, V] = normal(0.1)
  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    let x = take[V](table, tokens)
    let y = slice[C -> F](x, start = 16) + slice[C -> F](x, start = 48)
    mean(f32(dot[F](y, q)))
  }
}

plan dp2 for M {
  mesh { dp: 2 }
  step data: acts B -> dp
  batch { seq 4, global 2 }
}
";
    dtlc.write("slices.dtl", text);
    let outcome = dtlc.expect(0, &["verify", "slices.dtl", "--json"]);
    assert!(outcome.stdout.contains("\"V\"") && !outcome.stdout.contains("\"C\""), "{}", outcome.stdout);
}

#[test]
fn requirements_hold_in_small_and_under_the_plans_that_run() {
    let dtlc = Dtlc::new();
    let text = "layer Wide[D, F] {
  param up: [D, F] = normal(0.1)
  fn (x: [B, S, D]) -> [B, S, D] {
    require F == 4 * D && D % 32 == 0
    dot[F](dot[D](x, up), up)
  }
}

model M {
  dims B, S, D = 64, F = 256, V = 256
  param table: [V, D] = normal(0.1)
  wide = Wide[D, F]
  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    require S == 8
    mean(f32(wide(take[V](table, tokens))))
  }
}

plan dp2 for M {
  mesh { dp: 2 }
  step data: acts B -> dp
  batch { seq 8, global 8 }
}

plan short for M {
  batch { seq 4, global 8 }
}
";
    dtlc.write("wide.dtl", text);
    let checked = dtlc.expect(1, &["check", "wide.dtl"]).stderr;
    assert!(checked.matches("E0316").count() == 1 && checked.contains("S is 4"), "{checked}");
    assert!(checked.contains("note: under `short`"), "{checked}");
    dtlc.expect(0, &["check", "wide.dtl", "-D", "seq=8"]);
    let found = dtlc.json(&["verify", "wide.dtl", "-p", "dp2"]);
    let shrunk: Vec<&str> =
        found["shrunk"].as_array().expect("a list").iter().filter_map(|it| it["name"].as_str()).collect();
    assert!(shrunk.contains(&"V") && !shrunk.contains(&"D") && !shrunk.contains(&"F"), "{found}");
    // No two sizes alone mend this.
    let text = text.replace("    require F == 4 * D && D % 32 == 0\n", "");
    dtlc.write("wide.dtl", text.replace("require S == 8", "require F == 4 * D && V == F"));
    let broken = dtlc.expect(1, &["verify", "wide.dtl", "-p", "dp2"]).stderr;
    assert!(broken.contains("in small: D 64 -> ") && broken.contains("`-D`"), "{broken}");
    dtlc.expect(0, &["verify", "wide.dtl", "-p", "dp2", "-D", "V=256"]);
}

/// Gradients of queries and keys that nearly cancel are rounding in f32 to more than 1e-5, and in bf16 hardly anything else.
#[test]
fn what_cancels_is_told_from_what_is_wrong() {
    let dtlc = Dtlc::new();
    let llama = source("../../examples/golden/llama.dtl");
    let text = std::fs::read_to_string(llama).expect("the example");
    let shifted = text.replace("layers(embed(tokens))", "layers(embed(tokens) + shift)");
    let shifted = shifted.replace("  embed = ", "  param shift: [D] = normal(1.0)\n  embed = ");
    assert!(shifted.contains("+ shift") && shifted.contains("param shift"), "{text}");
    let plan = |name: &str, precision: &str| {
        format!(
            "\nplan {name} for Llama {{\n  mesh {{ tp: 2 }}\n  step t: KV, F, V -> tp\n  \
             batch {{ seq 12, global 8 }}\n{precision}}}\n"
        )
    };
    let narrow = "  precision { compute bf16, params bf16, grads bf16, master f32 }\n";
    dtlc.write("shifted.dtl", shifted + &plan("wide", "") + &plan("narrow", narrow));
    for seed in ["1", "2"] {
        let wide = dtlc.json(&["verify", "shifted.dtl", "-p", "wide", "--seed", seed]);
        assert!(number(&wide, "max_grad_rel_err") > 1e-5 && number(&wide, "bound") < 1e-3, "{wide}");
        assert_eq!(wide["undecided"], serde_json::json!([]));
        let narrow = dtlc.json(&["verify", "shifted.dtl", "-p", "narrow", "--seed", seed]);
        assert!(narrow["undecided"].to_string().contains("layers.0.wq"), "{narrow}");
    }
}

#[test]
fn unusual_placements_are_right_too() {
    let dtlc = Dtlc::new();
    std::fs::copy(source("tests/files/attention.dtl"), dtlc.path("attention.dtl")).expect("the model");
    for plan in ["moved", "rows", "turned"] {
        let found = dtlc.json(&["verify", "attention.dtl", "-p", plan]);
        assert!(number(&found, "max_grad_rel_err") <= 1e-5, "{plan}: {found}");
        assert!(number(&found, "max_param_rel_err") <= 1e-5, "{plan}: {found}");
    }
}

#[test]
fn a_rank_takes_its_part_of_a_dimension_that_its_axis_does_not_divide() {
    let dtlc = Dtlc::new();
    let llama = source("../../examples/golden/llama.dtl");
    let text = std::fs::read_to_string(llama).expect("the example");
    let plan = "
plan padded for Llama {
  mesh { b: 2, a: 2 }
  dims V = 255
  step first: acts H -> b
  step second: params V -> b pad
  step third: acts K -> a
  batch { seq 12, global 8 }
}
";
    dtlc.write("padded.dtl", text + plan);
    let found = dtlc.json(&["verify", "padded.dtl", "-p", "padded"]);
    assert!(number(&found, "max_param_rel_err") <= 1e-5, "{found}");
}

/// The checkpoints in the folder `run`.
fn checkpoints(dtlc: &Dtlc) -> Vec<String> {
    let entries = std::fs::read_dir(dtlc.path("run")).expect("the folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("step-")).collect()
}

#[test]
fn two_runs_never_write_to_one_folder() {
    let dtlc = with_text();
    let arguments = ["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--checkpoint", "run"];
    let mut first = dtlc
        .command(&[&arguments[..], &["--steps", "1000000000", "--every", "5"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut lines = BufReader::new(first.stdout.take().expect("piped")).lines();
    lines.nth(6).expect("steps").expect("UTF-8");
    for more in [&["--steps", "9"][..], &["--steps", "1000000000", "--resume"]] {
        let second = dtlc.expect(1, &[&arguments[..], more].concat());
        assert!(second.stderr.contains("run"), "{}", second.stderr);
    }
    let resumed = dtlc.expect(1, &[&arguments[..], &["--steps", "9", "--resume"]].concat());
    assert!(resumed.stderr.contains("another run writes"), "{}", resumed.stderr);
    let pid = first.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill is there").success());
    lines.for_each(drop);
    first.wait().expect("it ends");
    // The folder is free again.
    let done = checkpoints(&dtlc).len();
    dtlc.expect(0, &[&arguments[..], &["--steps", "1", "--resume"]].concat());
    assert_eq!(checkpoints(&dtlc).len(), done);
}

#[test]
fn an_interrupt_ends_the_step_and_saves() {
    let dtlc = with_text();
    let arguments = ["train", "tiny.dtl", "-p", "tp2", "--data", "text.txt", "--steps", "1000000000"];
    let mut child = dtlc
        .command(&[&arguments[..], &["--checkpoint", "run"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    lines.next().expect("a first step").expect("UTF-8");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill is there").success());
    let last = lines.map_while(Result::ok).last();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(checkpoints(&dtlc).len(), 1, "{last:?}");
}

#[test]
fn training_without_an_optimizer_says_what_to_add() {
    let dtlc = with_text();
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write("tiny.dtl", text.replace("optimizer adamw { lr 1e-2 }", ""));
    let outcome = dtlc.expect(1, &["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--steps", "1"]);
    assert!(outcome.stderr.contains("E0454") && outcome.stderr.contains("adamw"), "{}", outcome.stderr);
}

#[test]
fn checkpoints_of_two_runs_never_mix_and_a_bad_folder_is_found_before_the_first_step() {
    let dtlc = with_text();
    let fresh = ["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--steps", "2"];
    let into = |folder| [&fresh[..], &["--checkpoint", folder]].concat();
    dtlc.expect(0, &into("run"));
    let again = dtlc.expect(1, &into("run"));
    assert!(again.stderr.contains("--resume") && again.stdout.is_empty(), "{}{}", again.stdout, again.stderr);
    let file = dtlc.expect(1, &into("text.txt"));
    assert!(file.stderr.contains("text.txt") && file.stdout.is_empty(), "{}{}", file.stdout, file.stderr);
}

#[test]
fn a_loss_that_is_no_number_is_a_fault() {
    let dtlc = with_text();
    let arguments = ["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--steps", "2"];
    dtlc.expect(0, &[&arguments[..], &["--checkpoint", "run"]].concat());
    let mut weights = read_all(&dtlc.path("run/step-00000002.safetensors")).expect("the checkpoint");
    weights.retain(|name, _| name.starts_with("param."));
    for tensor in weights.values_mut() {
        tensor.bytes.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&3e38f32.to_le_bytes()));
    }
    save_tensors(&dtlc.path("huge.safetensors"), &weights).expect("the weights are written");
    let outcome = dtlc.expect(3, &[&arguments[..], &["--weights", "huge.safetensors"]].concat());
    assert!(outcome.stderr.contains("from step 1 on the loss was not a number"), "{}", outcome.stderr);
}

/// A model whose loss is `loss` of a weight `w`, and whose input is `x`.
fn scalar_model(loss: &str, optimizer: &str) -> String {
    format!(
        "model M {{\n  dims B\n  param w: f32[] = ones\n  fn loss(x: f32[B]) -> f32[] {{\n    {loss}\n  }}\n}}\nplan p for M \
         {{\n  batch {{ global 2 }}\n  optimizer {optimizer}\n}}\n"
    )
}

#[test]
fn what_is_not_finite_is_a_fault_and_never_a_checkpoint() {
    let dtlc = Dtlc::new();
    let data: IndexMap<String, HostTensor> =
        [("x".to_owned(), HostTensor::from_f32(&[4, 2], &[1e30; 8]))].into();
    save_tensors(&dtlc.path("x.safetensors"), &data).expect("the data is written");
    let ones: IndexMap<String, HostTensor> =
        [("x".to_owned(), HostTensor::from_f32(&[4, 2], &[1., 1., 1., 1., 1e30, 1e30, 1., 1.]))].into();
    save_tensors(&dtlc.path("late.safetensors"), &ones).expect("the data is written");
    for (loss, data, said) in [
        ("mean(w * x * x)", "x.safetensors", "from step 1 on the loss was infinite"),
        // The gradient's square is.
        ("mean(w * x)", "x.safetensors", "from step 1 on the gradient norm was infinite"),
        ("mean(w * x * x)", "late.safetensors", "from step 3 on the loss was infinite"),
    ] {
        dtlc.write("m.dtl", scalar_model(loss, "sgd { lr 1.0 }"));
        let arguments = ["train", "m.dtl", "--data", data, "--steps", "4"];
        let outcome = dtlc.expect(3, &arguments);
        assert!(outcome.stderr.contains(said), "{loss}: {}", outcome.stderr);
        assert!(!outcome.stdout.contains("tokens/s"), "it has no tokens: {}", outcome.stdout);
    }
    // The last good one stays, and can be gone on from.
    let every =
        ["train", "m.dtl", "--data", "late.safetensors", "--checkpoint", "run", "--every", "1", "--steps"];
    let outcome = dtlc.expect(3, &[&every[..], &["4"]].concat());
    assert!(outcome.stderr.contains("after step 3 `param.w` holds"), "{}", outcome.stderr);
    let mut names: Vec<_> = std::fs::read_dir(dtlc.path("run"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    assert_eq!(names, [".lock", "step-00000001.safetensors", "step-00000002.safetensors"]);
    let resumed = dtlc.expect(0, &[&every[..], &["2", "--resume"]].concat());
    assert!(resumed.stderr.contains("step 2 is done"), "{}", resumed.stderr);
}
