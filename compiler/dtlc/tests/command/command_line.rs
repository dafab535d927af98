//! The command's manners: exit statuses, help, diagnostics for files that can't be used, a reader that goes away.

use crate::support::{Dtlc, source};
use std::io::{Read, Write};
use std::process::Stdio;

#[test]
fn every_command_has_help_with_an_example() {
    let dtlc = Dtlc::new();
    let overview = dtlc.expect(0, &["--help"]).stdout;
    for command in ["check", "fmt", "emit", "explain", "verify", "run", "train", "snapshot", "build"] {
        assert!(overview.contains(&format!("\n  {command} ")), "{command} is not in the overview");
        let help = dtlc.expect(0, &[command, "--help"]).stdout;
        assert!(help.contains("Example"), "{command} has no example:\n{help}");
        assert!(help.contains(&format!("dtlc {command} ")), "{command}'s example is another's:\n{help}");
        assert!(help.contains("--json"), "{command} without --json:\n{help}");
    }
}

#[test]
fn usage_ends_with_2() {
    let dtlc = Dtlc::new();
    for arguments in [
        &["chekc", "tiny.dtl"][..],
        &["check"],
        &["check", "tiny.dtl", "-D", "F"],
        &["emit", "tiny.dtl", "-p", "one"],
        &["emit", "tiny.dtl", "-p", "one", "--stage", "sharded", "--rank", "1"],
        &["train", "tiny.dtl", "--data", "tiny.dtl", "--steps", "0"],
        &["explain", "E9999"],
    ] {
        let outcome = dtlc.expect(2, arguments);
        assert!(!outcome.stderr.is_empty() && outcome.stdout.is_empty(), "{arguments:?}");
        let outcome = dtlc.expect(2, &[arguments, &["--json"]].concat());
        let told: serde_json::Value = serde_json::from_str(&outcome.stderr)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", outcome.stderr));
        assert_eq!(told["error"], "usage", "{arguments:?}");
    }
}

#[test]
fn a_library_that_is_missing_is_named_with_where_it_was_looked_for() {
    let dtlc = Dtlc::new();
    let mut command = dtlc.command(&["emit", "tiny.dtl", "-p", "one", "--stage", "ptx"]);
    let nowhere = ["PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH"];
    nowhere.iter().fold(&mut command, |command, name| command.env(name, "nowhere"));
    let output = command.env("DTLC_CUDA_LIBS", "elsewhere").output().expect("the command starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is a CUDA toolkit in the usual place");
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    for part in ["libnvrtc.so.13", "elsewhere", "nowhere", "pip install", "DTLC_CUDA_LIBS"] {
        assert!(stderr.contains(part), "no `{part}`:\n{stderr}");
    }
}

#[test]
fn files_that_cannot_be_used_are_diagnosed() {
    let dtlc = Dtlc::new();
    dtlc.write("bytes.dtl", b"model \xff {}");
    dtlc.write("empty.dtl", b"");
    for command in ["check", "explain", "verify"] {
        assert!(dtlc.expect(1, &[command, "nowhere.dtl"]).stderr.contains("E0601"), "{command}");
        assert!(dtlc.expect(1, &[command, "."]).stderr.contains("directory"), "{command}");
        assert!(dtlc.expect(1, &[command, "bytes.dtl"]).stderr.contains("E0110"), "{command}");
    }
    assert!(dtlc.expect(1, &["fmt", "nowhere.dtl", "tiny.dtl"]).stderr.contains("nowhere.dtl"));
    assert!(dtlc.expect(1, &["explain", "empty.dtl"]).stderr.contains("no model"));
    let train = ["train", "tiny.dtl", "-p", "one", "--steps", "1", "--data", "nothing.txt"];
    assert!(dtlc.expect(1, &train).stderr.contains("nothing.txt"));
    let run = ["run", "tiny.dtl", "-p", "one", "--inputs", "tiny.dtl", "-o", "out.safetensors"];
    assert!(dtlc.expect(1, &run).stderr.contains("tiny.dtl"));
}

#[test]
fn an_unknown_plan_names_the_nearest() {
    let dtlc = Dtlc::new();
    let outcome = dtlc.expect(1, &["explain", "tiny.dtl", "-p", "tp3"]);
    assert!(outcome.stderr.contains("-p tp2"), "{}", outcome.stderr);
    let outcome = dtlc.expect(1, &["explain", "tiny.dtl"]);
    assert!(outcome.stderr.contains("one, tp2"), "{}", outcome.stderr);
}

#[test]
fn all_mistakes_come_at_once_and_as_json() {
    let dtlc = Dtlc::new();
    let text = std::fs::read_to_string(source("tests/files/tiny.dtl")).expect("the model");
    dtlc.write(
        "wrong.dtl",
        text.replace("Linear[D -> V]", "Linear[D -> Q]").replace("tanh(up(x))", "tahn(up(x))"),
    );
    let outcome = dtlc.expect(1, &["check", "wrong.dtl", "--json"]);
    assert!(outcome.stdout.is_empty());
    let found: serde_json::Value = serde_json::from_str(&outcome.stderr).expect("one JSON value");
    let found = found["diagnostics"].as_array().expect("a list").clone();
    assert!(found.len() >= 2, "{found:?}");
    for diagnostic in &found {
        let code = diagnostic["code"].as_str().expect("a code");
        assert!(code.starts_with('E') && code.len() == 5, "{code}");
        assert_eq!(diagnostic["severity"], "error");
        let span = diagnostic["labels"][0]["span"].as_str().expect("a place");
        assert!(span.starts_with("wrong.dtl:"), "{span}");
        assert!(dtlc.expect(0, &["explain", code]).stdout.contains(code));
    }
}

#[test]
fn plans_are_held_to_what_they_promise() {
    let dtlc = Dtlc::new();
    let text = std::fs::read_to_string(source("tests/files/tiny.dtl")).expect("the model");
    dtlc.expect(0, &["check", "tiny.dtl"]);
    dtlc.write("broken.dtl", text.replace("1 all_reduce", "2 all_gather"));
    let outcome = dtlc.expect(1, &["check", "broken.dtl"]);
    assert!(outcome.stderr.contains("E0502") && outcome.stderr.contains("all_gather"), "{}", outcome.stderr);
    dtlc.write("large.dtl", text.replace("  expect {", "  memory 10 kB\n  expect {"));
    for command in ["check", "explain"] {
        let outcome = dtlc.expect(1, &[command, "large.dtl", "-p", "tp2"]);
        assert!(outcome.stderr.contains("E0501"), "{}", outcome.stderr);
        // The largest buffers, by line.
        assert!(outcome.stderr.contains("nn.dtl:"), "{}", outcome.stderr);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dtlc = Dtlc::new();
    let mut child = dtlc
        .command(&["emit", "tiny.dtl", "-p", "tp2", "--stage", "clif"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(stderr, "");
}
