//! What the repository shows a newcomer, through the built command: every example, and the README's model, outputs and
//! training command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Models and plans of the benches: those of `golden/llama.dtl` in other sizes, so they would show the same twice.
const UNGUARDED: [&str; 1] = ["examples/peers.dtl"];

#[test]
fn every_example_is_canonical_and_without_mistakes() {
    for name in examples() {
        assert!(read(&root().join(&name)).starts_with("// "), "{name} does not say what it is");
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
    let examples: Vec<String> =
        examples().into_iter().filter(|name| !UNGUARDED.contains(&name.as_str())).collect();
    let names: Vec<&str> = examples.iter().map(String::as_str).collect();
    let output = dtlc(&root(), &[&["snapshot", "--json"], &names[..]].concat());
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut known = Vec::new();
    for line in printed.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON a snapshot");
        let snapshot = line["snapshot"].as_str().expect("its path").to_owned();
        let accept = "cargo run -p dtlc -- snapshot examples/*.dtl examples/*/*.dtl";
        assert_eq!(line["state"], "same", "{snapshot}\nto see: {accept}\nif it is meant: {accept} --accept");
        known.push(snapshot);
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What no plan makes any more guards nothing.
    known.sort();
    assert_eq!(files("examples", "snap"), known);
}

/// `dtl` blocks make `llama.dtl`; each `sh` block is run, and the `text` block behind it is what it prints.
/// `DTLC_UPDATE=1` writes the outputs anew.
#[test]
fn the_tutorial_is_what_comes_out() {
    let path = root().join("docs/tutorial.md");
    let tutorial = read(&path);
    let folder = tempfile::tempdir().expect("a folder");
    let blocks = |kind: &'static str| {
        tutorial.split("```").skip(1).step_by(2).filter_map(move |it| it.strip_prefix(kind))
    };
    let source = blocks("dtl\n").collect::<Vec<_>>().join("\n");
    fs::write(folder.path().join("llama.dtl"), source).expect("the model is written");
    good(&dtlc(folder.path(), &["fmt", "--check", "llama.dtl"]));
    good(&dtlc(folder.path(), &["check", "llama.dtl"]));
    let mut renewed = tutorial.clone();
    let (commands, outputs): (Vec<_>, Vec<_>) = (blocks("sh\n").collect(), blocks("text\n").collect());
    assert!(commands.len() == outputs.len() && commands.len() > 5, "a command for each output");
    for (command, shown) in commands.into_iter().zip(outputs) {
        let printed = shell(folder.path(), command);
        assert!(!printed.is_empty(), "nothing comes out of {command}");
        renewed = renewed.replacen(
            &format!("```sh\n{command}```\n\n```text\n{shown}```"),
            &format!("```sh\n{command}```\n\n```text\n{printed}```"),
            1,
        );
    }
    if std::env::var_os("DTLC_UPDATE").is_some() {
        fs::write(&path, &renewed).expect("the tutorial is written");
    }
    assert_eq!(read(&path), renewed, "docs/tutorial.md is stale; DTLC_UPDATE=1 writes it");
}

/// What a line of a shell prints in which `dtlc` is the command under test, without spaces at the ends of lines.
fn shell(folder: &Path, line: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_dtlc")).parent().expect("a folder");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").expect("a path"));
    let output = Command::new("sh").args(["-c", line]).current_dir(folder).env("PATH", path).output();
    let printed = good(&output.expect("a shell"));
    printed.lines().map(|line| format!("{}\n", line.trim_end())).collect()
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

fn examples() -> Vec<String> {
    let examples = files("examples", "dtl");
    assert!(examples.len() >= 7, "{examples:?}");
    examples
}

/// The files with this extension below a folder of the repository, by path from its root.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|other| other == extension) {
                found.push(path.strip_prefix(root()).expect("below it").to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
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
