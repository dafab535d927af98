//! `dtlc build`, and the files that it makes.

use crate::devices::with_compiler;
use crate::support::Dtlc;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a built file away from the model's folder; its environment is the test's with `told` added.
fn run(built: &Path, folder: &Path, arguments: &[&str], told: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(built);
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).envs(told.iter().copied());
    let Output { status, stdout, stderr } = command.output().expect("the built file starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

fn built() -> Dtlc {
    let dtlc = Dtlc::new();
    dtlc.write("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(40));
    let outcome = dtlc.expect(0, &["build", "tiny.dtl", "-p", "tp2", "-o", "trainer"]);
    assert!(outcome.stderr.contains("trainer holds Tiny under tp2"), "{}", outcome.stderr);
    dtlc
}

/// The losses and norms of a run's JSON lines.
fn figures(lines: &str) -> Vec<(String, String)> {
    let figure = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        (line["loss"].to_string(), line["grad_norm"].to_string())
    };
    lines.lines().map(figure).collect()
}

#[test]
fn a_built_file_trains_as_the_command_does() {
    let dtlc = built();
    let elsewhere = tempfile::tempdir().expect("a folder");
    std::fs::rename(dtlc.path("text.txt"), elsewhere.path().join("text.txt")).expect("it is moved");
    let trainer = elsewhere.path().join("moved");
    std::fs::rename(dtlc.path("trainer"), &trainer).expect("it is moved");
    let options = ["--data", "text.txt", "--steps", "5", "--seed", "3", "--json"];
    let (status, stdout, stderr) = run(&trainer, elsewhere.path(), &options, &[]);
    assert_eq!(status, 0, "{stderr}");
    std::fs::copy(elsewhere.path().join("text.txt"), dtlc.path("text.txt")).expect("it is copied");
    let same = dtlc.expect(0, &[&["train", "tiny.dtl", "-p", "tp2"], &options[..]].concat());
    assert_eq!(figures(&stdout).len(), 5);
    assert_eq!(figures(&stdout), figures(&same.stdout));
    // Checkpoints are those of the command, either way.
    let [first, rest] =
        ["3", "5"].map(|steps| ["--data", "text.txt", "--seed", "3", "--steps", steps, "--json"]);
    let save = ["--checkpoint", "run"];
    let (status, _, stderr) = run(&trainer, dtlc.folder.path(), &[&first[..], &save].concat(), &[]);
    assert_eq!(status, 0, "{stderr}");
    let resumed =
        dtlc.expect(0, &[&["train", "tiny.dtl", "-p", "tp2"], &rest[..], &save, &["--resume"]].concat());
    assert_eq!(figures(&resumed.stdout), figures(&stdout)[3..]);
}

#[test]
fn a_built_file_says_what_it_is_and_what_it_wants() {
    let dtlc = built();
    let (trainer, folder) = (dtlc.path("trainer"), dtlc.folder.path());
    let (status, stdout, _) = run(&trainer, folder, &["--help"], &[]);
    assert_eq!(status, 0);
    assert!(stdout.contains("Trains Tiny under the plan tp2") && stdout.contains("--checkpoint"), "{stdout}");
    assert!(!stdout.contains("FILE>") || !stdout.contains("--plan"), "{stdout}");
    for wrong in [&["--data", "text.txt"][..], &["-p", "one"], &["train", "tiny.dtl"]] {
        let (status, stdout, stderr) = run(&trainer, folder, wrong, &[]);
        assert_eq!((status, stdout.as_str()), (2, ""), "{stderr}");
    }
    let options = ["--data", "nowhere.txt", "--steps", "1"];
    let (status, _, stderr) = run(&trainer, folder, &options, &[]);
    assert!(status == 1 && stderr.contains("nowhere.txt"), "{status} {stderr}");
}

#[test]
fn a_file_built_for_a_device_runs_on_an_emulated_one() {
    let dtlc = built();
    let (folder, options) = (dtlc.folder.path(), ["--data", "text.txt", "--steps", "2", "--json"]);
    let emulated = ["--device", "emu"];
    let (status, _, stderr) = run(&dtlc.path("trainer"), folder, &[&options[..], &emulated].concat(), &[]);
    assert!(status == 3 && stderr.contains("--target cpu"), "{status} {stderr}");
    let Some(dtlc) = with_compiler() else { return };
    let folder = dtlc.folder.path();
    let mut command =
        dtlc.command(&["build", "tiny.dtl", "-p", "tp2", "--target", "cuda:sm_80", "-o", "gpu"]);
    let outcome = command.env("XDG_CACHE_HOME", dtlc.path("cache")).output().expect("the command starts");
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    // No compiler is needed any more.
    let told = [("DTLC_CUDA_LIBS", "/nowhere")];
    let gpu = dtlc.path("gpu");
    let (status, stdout, stderr) = run(&gpu, folder, &[&options[..], &emulated].concat(), &told);
    assert_eq!(status, 0, "{stderr}");
    let (status, on_cpu, stderr) = run(&gpu, folder, &[&options[..], &["--device", "cpu"]].concat(), &told);
    assert_eq!(status, 0, "{stderr}");
    let losses = |lines: &str| -> Vec<f64> {
        figures(lines).iter().map(|(loss, _)| loss.parse().expect("a number")).collect()
    };
    let (emulated, on_cpu) = (losses(&stdout), losses(&on_cpu));
    assert_eq!(emulated.len(), 2);
    for (left, right) in emulated.iter().zip(&on_cpu) {
        assert!((left - right).abs() < 1e-5 * right, "{left} on the device, {right} on the CPU");
    }
    // Where there is no driver, the default of such a file says so.
    if !Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists() {
        let (status, _, stderr) = run(&gpu, folder, &options, &told);
        assert!(status == 3 && stderr.contains("libcuda.so.1"), "{status} {stderr}");
    }
}

#[test]
fn a_damaged_file_never_trains() {
    let dtlc = built();
    let (trainer, folder) = (dtlc.path("trainer"), dtlc.folder.path());
    let bytes = std::fs::read(&trainer).expect("it is read");
    let length = |at: usize| {
        let at = bytes.len() - 32 + 8 * at;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize
    };
    let (header, program) = (length(0), length(1));
    let end = bytes.len() - 32;
    let damage = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut damaged = bytes.clone();
        change(&mut damaged);
        std::fs::write(&trainer, damaged).expect("it is written");
        let (status, stdout, stderr) = run(&trainer, folder, &["--data", "text.txt", "--steps", "1"], &[]);
        assert!((1..=3).contains(&status) && stdout.is_empty(), "{name}: {status} {stdout} {stderr}");
        assert!(stderr.contains("damaged"), "{name}: {stderr}");
    };
    damage("lengths", &|bytes| bytes[end..end + 16].fill(0xff));
    damage("header", &|bytes| bytes[end - program - header] = b'x');
    damage("program", &|bytes| bytes[end - program / 2] ^= 0x40);
    damage("cut off", &|bytes| bytes.truncate(end));
    damage("stripped", &|bytes| bytes.truncate(end - program - header));
}

#[test]
fn what_can_not_be_built_says_why() {
    let dtlc = Dtlc::new();
    let build = ["build", "tiny.dtl", "-p", "tp2", "-o", "trainer"];
    for target in ["gpu", "cuda:", "cuda:sm_90", "cpu:avx2"] {
        let refused = dtlc.expect(2, &[&build[..], &["--target", target]].concat());
        assert!(refused.stderr.contains("sm_90a"), "{}", refused.stderr);
    }
    let own = dtlc.path("own-dtlc");
    std::fs::copy(env!("CARGO_BIN_EXE_dtlc"), &own).expect("a copy");
    let (status, _, stderr) =
        run(&own, dtlc.folder.path(), &["build", "tiny.dtl", "-p", "tp2", "-o", "own-dtlc"], &[]);
    assert!(status == 1 && stderr.contains("would write over it"), "{status} {stderr}");
    let nowhere = dtlc.expect(1, &["build", "tiny.dtl", "-p", "tp2", "-o", "missing/trainer"]);
    assert!(nowhere.stderr.contains("missing/trainer"), "{}", nowhere.stderr);
    assert!(!dtlc.path("trainer").exists());
}
