//! `gpu-check` on files that stand in for built ones: what it compares, prints and writes, and that it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A folder with these programs, each a shell script that prints a step's line as often as it is asked.
fn folder(programs: &[(&str, &str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let list: String = programs.iter().map(|(kind, name, _)| format!("{kind} {name}\n")).collect();
    fs::write(folder.path().join("programs"), list).expect("it is written");
    for (_, name, script) in programs {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is made executable");
    }
    folder
}

/// A program that prints this loss on the device, and 1 on the CPU.
fn loss(on_device: &str) -> String {
    let line = r#"echo "{\"loss\": $loss, \"grad_norm\": 2.0, \"step_ms\": 3.5}""#;
    format!(
        "loss=1.0; case \"$*\" in *'--device emu'*) loss={on_device};; esac\n\
         case \"$*\" in *'--steps 5'*) {line}; {line}; {line};; esac\n{line}; {line}"
    )
}

fn check(folder: &Path, seconds: &str) -> (bool, String, serde_json::Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-check"));
    let output =
        command.args(["--device", "emu", "--seconds", seconds]).arg(folder).output().expect("it starts");
    let written = fs::read_to_string(folder.join("result.json")).expect("a result");
    let written = serde_json::from_str(&written).expect("JSON");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned(), written)
}

#[test]
fn what_agrees_passes_and_what_is_timed_is_written() {
    let script = loss("1.000001");
    let folder = folder(&[("check", "near", &script), ("time", "quick", &script)]);
    let (good, printed, written) = check(folder.path(), "60");
    assert!(good, "{printed}");
    assert!(
        printed.contains("near: as on the CPU to 1.0e-6") && printed.contains("3.500 ms a step"),
        "{printed}"
    );
    assert!(printed.contains("not there: NCCL"), "{printed}");
    assert_eq!(written["rows"][1]["step_ms"], 3.5);
    assert!((written["rows"][0]["apart"].as_f64().expect("a number") - 1e-6).abs() < 1e-9);
}

#[test]
fn what_differs_fails_or_is_no_number_fails_the_check() {
    for (script, reason) in [
        (loss("1.0001"), "off by 1.0e-4"),
        (loss("null"), "off by NaN"),
        ("echo this is why >&2; exit 3".to_owned(), "0 of 2 steps: this is why"),
        ("true".to_owned(), "0 of 2 steps: no message"),
    ] {
        let folder = folder(&[("check", "program", &script)]);
        let (good, printed, written) = check(folder.path(), "60");
        assert!(!good && printed.contains(reason), "{printed}");
        assert_eq!(written["good"], false);
    }
}

#[test]
fn it_ends_when_its_time_is_up() {
    let folder = folder(&[("check", "slow", "exec sleep 60"), ("time", "late", "exec sleep 60")]);
    let begun = Instant::now();
    let (good, printed, _) = check(folder.path(), "1");
    assert!(begun.elapsed().as_secs() < 30, "{printed}");
    assert!(
        !good && printed.contains("the time was up") && printed.contains("no time was left"),
        "{printed}"
    );
}
