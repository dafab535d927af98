//! Built files under Open MPI's `mpirun`: one process for each rank, which speak over MPI.

use crate::devices::with_compiler;
use crate::support::Dtlc;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `mpirun` with four processes of a program, in a folder; none where there is no `mpirun` to test with.
fn mpirun(dtlc: &Dtlc, program: &[&str]) -> Option<Command> {
    if let Err(error) = Command::new("mpirun").arg("--version").output() {
        let required = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!required, "mpirun: {error}");
        let _ = writeln!(std::io::stderr(), "SKIPPED: mpirun: {error}");
        return None;
    }
    let mut command = Command::new("mpirun");
    // Tests run as whoever, on as many cores as there are.
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]).args(program);
    command.current_dir(dtlc.folder.path()).stdin(Stdio::null());
    Some(command)
}

fn trainer() -> Dtlc {
    let dtlc = Dtlc::new();
    dtlc.write("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(40));
    dtlc.expect(0, &["build", "tiny.dtl", "-p", "tp2", "-o", "trainer"]);
    dtlc
}

fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// Runs a built file alone and under `mpirun`: the same losses and checkpoints.
fn assert_same(dtlc: &Dtlc, arguments: &[&str]) {
    let run = |folder: &'static str| [arguments, &["--checkpoint", folder]].concat();
    let Some(mut command) = mpirun(dtlc, &run("processes")) else { return };
    let (status, found, stderr) = outcome(&mut command);
    assert_eq!(status, 0, "{stderr}");
    let alone = run("threads");
    let (status, expected, stderr) =
        outcome(Command::new(dtlc.path(alone[0])).args(&alone[1..]).current_dir(dtlc.folder.path()));
    assert_eq!(status, 0, "{stderr}");
    let losses = |lines: &str| -> Vec<String> {
        let loss = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).expect("a line is JSON")["loss"].to_string()
        };
        lines.lines().map(loss).collect()
    };
    assert_eq!(losses(&expected).len(), 2, "{expected}");
    assert_eq!(losses(&expected), losses(&found));
    let saved = |folder: &str| {
        std::fs::read(dtlc.path(&format!("{folder}/step-00000002.safetensors"))).expect("a checkpoint")
    };
    assert!(saved("threads") == saved("processes"), "other bytes");
}

#[test]
fn four_processes_on_the_cpu_train_as_four_threads_do() {
    let dtlc = trainer();
    assert_same(&dtlc, &["./trainer", "--data", "text.txt", "--json", "--steps", "2"]);
}

#[test]
fn four_processes_with_an_emulated_device_each_train_as_four_ranks_of_one() {
    let Some(dtlc) = with_compiler() else { return };
    let build = ["build", "tiny.dtl", "-p", "tp2", "--target", "cuda:sm_80", "-o", "gpu"];
    let built = dtlc.command(&build).env("XDG_CACHE_HOME", dtlc.path("cache")).output().expect("it starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    assert_same(&dtlc, &["./gpu", "--device", "emu", "--data", "text.txt", "--json", "--steps", "2"]);
}

#[test]
fn what_one_process_lacks_ends_all_and_is_said() {
    let dtlc = trainer();
    let script = "data=text.txt; [ \"$OMPI_COMM_WORLD_RANK\" = 3 ] && data=missing.txt; exec ./trainer --steps 2 --data $data";
    let Some(mut command) = mpirun(&dtlc, &["sh", "-c", script]) else { return };
    let (status, stdout, stderr) = outcome(&mut command);
    assert!((1..=3).contains(&status) && stdout.is_empty(), "{status} {stdout}");
    assert!(stderr.contains("missing.txt"), "{stderr}");
}

#[test]
fn a_process_that_stops_is_missed_when_time_is_up() {
    let dtlc = trainer();
    let script =
        "echo $$ > pid.$OMPI_COMM_WORLD_RANK; exec ./trainer --steps 1000000 --data text.txt --timeout 2";
    let Some(mut command) = mpirun(&dtlc, &["sh", "-c", script]) else { return };
    let mpirun = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let start = Instant::now();
    let pid = loop {
        let pid = std::fs::read_to_string(dtlc.path("pid.2")).unwrap_or_default();
        if pid.ends_with('\n') {
            break pid.trim().to_owned();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no process starts");
        std::thread::sleep(Duration::from_millis(20));
    };
    // In the middle of training, or before; either way nobody hears from it any more.
    std::thread::sleep(Duration::from_millis(500));
    assert!(Command::new("kill").args(["-STOP", &pid]).status().expect("kill is there").success());
    let left = mpirun.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&left.stderr);
    assert!(!left.status.success() && stderr.contains("rank 2"), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(120), "the others waited for long");
}
