//! `--device`: the same numbers on an emulated GPU as on the CPU, and what is said where something is missing.

use crate::libraries::compile;
use crate::support::Dtlc;
use dtlc_runtime::files::safetensors::read_all;
use std::io::Write;

/// A folder with a text to train on; compiled kernels are kept in it. None where there is no NVRTC to test with.
pub fn with_compiler() -> Option<Dtlc> {
    let dtlc = Dtlc::new();
    dtlc.write("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(40));
    let probe = emulated(&dtlc, &["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--steps", "1"]);
    if probe.0 == 0 {
        return Some(dtlc);
    }
    let is_missing = probe.0 == 3 && probe.2.contains("pip install");
    assert!(is_missing && std::env::var_os("CI").is_none_or(|value| value != "true"), "{}", probe.2);
    let _ = writeln!(std::io::stderr(), "SKIPPED: {}", probe.2);
    None
}

/// Runs a command with `--device emu`: its status and what it prints.
fn emulated(dtlc: &Dtlc, arguments: &[&str]) -> (i32, String, String) {
    let mut command = dtlc.command(&[arguments, &["--device", "emu"]].concat());
    let output = command.env("XDG_CACHE_HOME", dtlc.path("cache")).output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn good(dtlc: &Dtlc, arguments: &[&str]) -> String {
    let (status, stdout, stderr) = emulated(dtlc, arguments);
    assert_eq!(status, 0, "dtlc {}\n{stdout}\n{stderr}", arguments.join(" "));
    stdout
}

fn losses(lines: &str) -> Vec<f64> {
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("a line is JSON");
    lines.lines().map(|text| line(text)["loss"].as_f64().expect("a loss")).collect()
}

fn assert_near(left: &[f64], right: &[f64]) {
    assert_eq!(left.len(), right.len());
    for (left, right) in left.iter().zip(right) {
        assert!((left - right).abs() <= 1e-5 * left, "{left} and {right}");
    }
}

#[test]
fn an_emulated_device_trains_resumes_evaluates_and_verifies() {
    let Some(dtlc) = with_compiler() else { return };
    let train = ["train", "tiny.dtl", "--data", "text.txt", "--json", "--steps"];
    let whole = losses(&dtlc.expect(0, &[&train[..], &["4", "-p", "one"]].concat()).stdout);
    assert_near(&whole, &losses(&good(&dtlc, &[&train[..], &["4", "-p", "tp2"]].concat())));
    // A rank alone on its device replays its step from the second on, with the optimizer's step numbers set anew.
    assert_near(&whole, &losses(&good(&dtlc, &[&train[..], &["4", "-p", "one"]].concat())));
    // A checkpoint is of no device.
    dtlc.expect(0, &[&train[..], &["2", "-p", "one", "--checkpoint", "run"]].concat());
    let rest = good(&dtlc, &[&train[..], &["4", "-p", "tp2", "--checkpoint", "run", "--resume"]].concat());
    assert_near(&whole[2..], &losses(&rest));

    let verified = good(&dtlc, &["verify", "tiny.dtl", "-p", "tp2", "--json"]);
    assert!(verified.contains("\"ok\":true") && verified.contains("\"ranks\":4"), "{verified}");
}

#[test]
fn an_emulated_device_evaluates_to_the_same_gradients() {
    let Some(dtlc) = with_compiler() else { return };
    let tokens: Vec<u32> = (0..32).map(|number| number * 7 % 256).collect();
    let tensor = dtlc_runtime::tensor::HostTensor::from_u32(&[4, 8], &tokens);
    let inputs = ["tokens", "labels"].map(|name| (name.to_owned(), tensor.clone())).into_iter().collect();
    dtlc_runtime::files::weights::save_tensors(&dtlc.path("in.safetensors"), &inputs).expect("it is written");
    let run = ["run", "tiny.dtl", "--inputs", "in.safetensors", "--wrt", "params", "-p"];
    dtlc.expect(0, &[&run[..], &["one", "-o", "cpu.safetensors"]].concat());
    good(&dtlc, &[&run[..], &["tp2", "-o", "emu.safetensors"]].concat());
    let read = |name: &str| read_all(&dtlc.path(name)).expect("it reads");
    let (expected, found) = (read("cpu.safetensors"), read("emu.safetensors"));
    assert!(expected.len() > 5 && expected.len() == found.len());
    for (name, expected) in expected {
        let (expected, found) = (expected.to_f32(), found[&name].to_f32());
        let scale = expected.iter().fold(1e-3f32, |most, value| most.max(value.abs()));
        let apart = expected.iter().zip(&found).map(|(left, right)| (left - right).abs());
        assert!(apart.fold(0.0, f32::max) <= 1e-5 * scale, "{name}");
    }
}

#[test]
fn what_is_compiled_does_not_depend_on_the_folder() {
    let Some(dtlc) = with_compiler() else { return };
    let other = Dtlc::new();
    let [here, there] = [&dtlc, &other].map(|dtlc| {
        let mut command = dtlc.command(&["emit", "tiny.dtl", "-p", "tp2", "--stage", "ptx"]);
        let output = command.env("XDG_CACHE_HOME", dtlc.path("cache")).output().expect("the command starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    });
    assert!(here == there, "PTX depends on the folder that it is made in");
    let names: Vec<&str> = here.lines().filter(|line| line.trim_start().starts_with(".file")).collect();
    assert!(names.iter().any(|name| name.contains("/./tiny.dtl")), "{names:?}");
    assert!(names.iter().all(|name| name.contains("\"/./")), "{names:?}");
}

#[test]
fn what_a_device_needs_is_named_with_where_it_was_looked_for() {
    let dtlc = Dtlc::new();
    let arguments = ["train", "tiny.dtl", "-p", "one", "--data", "tiny.dtl", "--steps", "1"];
    let mut command = dtlc.command(&[&arguments[..], &["--device", "emu"]].concat());
    let nowhere = ["PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH"];
    nowhere.iter().fold(&mut command, |command, name| command.env(name, "nowhere"));
    let output = command.env("DTLC_CUDA_LIBS", "elsewhere").output().expect("the command starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is a CUDA toolkit in the usual place");
    } else {
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        for part in ["libnvrtc.so.13", "elsewhere", "pip install", "DTLC_CUDA_LIBS", "--device cpu"] {
            assert!(stderr.contains(part), "no `{part}`:\n{stderr}");
        }
    }
    for command in ["train", "verify"] {
        let rest = if command == "train" { &arguments[1..] } else { &arguments[1..4] };
        let outcome = dtlc.run(&[&[command][..], rest, &["--device", "cuda"]].concat());
        if outcome.status == 0 {
            let _ = writeln!(std::io::stderr(), "SKIPPED: there is a GPU");
            continue;
        }
        assert_eq!(outcome.status, 3, "{}", outcome.stderr);
        for part in ["libcuda.so.1", "--device emu"] {
            assert!(outcome.stderr.contains(part), "no `{part}`:\n{}", outcome.stderr);
        }
        let is_missing = outcome.stderr.contains("was not found");
        assert!(!is_missing || outcome.stderr.contains("/usr/lib64"), "{}", outcome.stderr);
    }
}

#[test]
fn each_process_of_a_machine_opens_a_gpu_of_its_own() {
    let dtlc = Dtlc::new();
    compile("cuda.rs", dtlc.folder.path(), "libcuda.so.1", "libcuda.so", &["two_devices"]);
    let train = ["train", "tiny.dtl", "-p", "tp2", "--data", "tiny.dtl", "--steps", "1", "--device", "cuda"];
    let mut command = dtlc.command(&train);
    // By its place on the machine, not among all; the stand-in has two.
    let place = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "4")];
    command.envs(place).envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "9")]);
    let output = command.env("LD_LIBRARY_PATH", dtlc.folder.path()).output().expect("the command starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("GPU 2 is asked for") && stderr.contains("shows 2"), "{stderr}");
}
