//! What the repository shows a newcomer, through the built command: every example, and the README's model, outputs and
//! training command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn every_example_is_canonical_and_without_mistakes() {
    let mut examples = Vec::new();
    collect(&root().join("examples"), &mut examples);
    examples.sort();
    assert!(examples.len() >= 7, "{examples:?}");
    for example in &examples {
        let name = example.strip_prefix(root()).expect("in the repository").to_string_lossy();
        assert!(read(example).starts_with("// "), "{name} does not say what it is");
        good(&dtlc(&root(), &["fmt", "--check", &name]));
        good(&dtlc(&root(), &["check", &name]));
    }
}

#[test]
fn what_the_readme_shows_is_what_comes_out() {
    let readme = read(&root().join("README.md"));
    let model = block(&readme, "```dtl\n");
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("tiny.dtl"), model).expect("the model is written");
    for (command, shown) in [("explain", "```\nmodel Tiny"), ("verify", "```\n2 rank(s)")] {
        let printed = good(&dtlc(folder.path(), &[command, "tiny.dtl"]));
        let shown = readme.find(shown).map(|at| &readme[at..]).expect("an output of the command");
        let shown = block(shown, "```\n");
        // Rounding of sums may differ with the processor's vectors.
        let figure = |line: &&str| *line != "  …" && !line.contains("e-");
        for line in shown.lines().filter(figure) {
            assert!(printed.lines().any(|other| other == line), "not printed any more: {line}\n{printed}");
        }
    }
}

#[test]
fn the_readme_trains() {
    let readme = read(&root().join("README.md"));
    let command = readme.lines().find(|line| line.starts_with("cargo run")).expect("a command");
    let (_, arguments) = command.split_once(" -- ").expect("arguments of dtlc");
    let mut arguments: Vec<&str> = arguments.split(' ').collect();
    let steps = arguments.iter().position(|word| *word == "--steps").expect("a number of steps");
    arguments[steps + 1] = "12";
    arguments.push("--json");
    let printed = good(&dtlc(&root(), &arguments));
    let losses: Vec<f64> = printed.lines().map(loss).collect();
    assert_eq!(losses.len(), 12);
    assert!(losses[11] < losses[0] - 1.0, "{losses:?}");
}

#[test]
fn placements_are_those_that_were_accepted() {
    let guarded = ["examples/bytes.dtl", "examples/llama3.dtl"];
    let output = dtlc(&root(), &[&["snapshot"], &guarded[..]].concat());
    let changes = String::from_utf8_lossy(&output.stdout);
    let accept = format!("cargo run -p dtlc -- snapshot {} --accept", guarded.join(" "));
    assert!(output.status.success(), "{changes}\nif this is meant: {accept}");
}

fn loss(line: &str) -> f64 {
    let step: serde_json::Value = serde_json::from_str(line).expect("a line of JSON a step");
    step["loss"].as_f64().expect("a loss")
}

/// The text between an opening fence and the next closing one.
fn block<'a>(text: &'a str, fence: &str) -> &'a str {
    let (_, rest) = text.split_once(fence).expect("a block");
    rest.split("```").next().expect("its text")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "dtl") {
            files.push(path);
        }
    }
}

fn dtlc(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtlc"));
    command.args(arguments).current_dir(folder).output().expect("dtlc runs")
}

/// What a command printed, which must have ended well.
fn good(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{printed}\n{complaints}", output.status);
    printed
}
