//! Bad files given to the command, one kind a test: data, weights, inputs, checkpoints, and places that can't be written.
//! Each ends with a clear error, and what was there before is still there.

use crate::support::{Dtlc, Outcome};
use dtlc_runtime::files::safetensors::read_all;
use dtlc_runtime::files::weights::save_tensors;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

const RUN: [&str; 8] =
    ["run", "tiny.dtl", "-p", "one", "--inputs", "inputs.safetensors", "-o", "out.safetensors"];

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| index * 7 % 256).collect()
}

fn inputs(tokens: &[u32], labels: &[u32]) -> IndexMap<String, HostTensor> {
    let tensor = |values: &[u32]| HostTensor::from_u32(&[4, 8], values);
    [("tokens".to_owned(), tensor(tokens)), ("labels".to_owned(), tensor(labels))].into()
}

/// A folder with inputs for `run` and text for `train`.
fn prepared() -> Dtlc {
    let dtlc = Dtlc::new();
    save(&dtlc, "inputs.safetensors", &inputs(&tokens(32), &tokens(32)));
    dtlc.write("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(40));
    dtlc
}

fn save(dtlc: &Dtlc, name: &str, tensors: &IndexMap<String, HostTensor>) {
    save_tensors(&dtlc.path(name), tensors).expect("the tensors are written");
}

fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "tiny.dtl", "-p", "one", "--steps", "2"][..], more].concat()
}

/// Runs a command that has to refuse a file, naming the parts.
fn refused(dtlc: &Dtlc, arguments: &[&str], parts: &[&str]) -> Outcome {
    let outcome = dtlc.expect(1, arguments);
    for part in parts {
        assert!(outcome.stderr.contains(part), "{arguments:?} without `{part}`:\n{}", outcome.stderr);
    }
    outcome
}

/// A safetensors file with this header and so many bytes of data.
fn forged(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn hostile_safetensors() {
    let dtlc = prepared();
    let whole = std::fs::read(dtlc.path("inputs.safetensors")).expect("the inputs");
    let entry = |name: &str, shape: &str, offsets: &str| {
        format!(r#""{name}":{{"dtype":"U32","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let two = |left: String, right: String| format!("{{{left},{right}}}");
    let mut files: Vec<Vec<u8>> = (0..16).map(|part| whole[..whole.len() * part / 16].to_vec()).collect();
    files.extend([
        [&(1u64 << 60).to_le_bytes()[..], &whole[8..]].concat(),
        [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat(),
        [&whole[..], &[0]].concat(),
        forged("{", 0),
        forged("[]", 0),
        forged(&"[".repeat(100_000), 0),
        // Overlapping, with a gap, behind the end, the wrong way round.
        forged(&two(entry("tokens", "[4,8]", "[0,128]"), entry("labels", "[4,8]", "[64,192]")), 192),
        forged(&two(entry("tokens", "[4,8]", "[0,128]"), entry("labels", "[4,8]", "[256,384]")), 384),
        forged(&two(entry("tokens", "[4,8]", "[0,128]"), entry("labels", "[4,8]", "[128,256]")), 128),
        forged(&format!("{{{}}}", entry("tokens", "[4,8]", "[128,0]")), 128),
        // Sizes whose product overflows, and one that its bytes don't have.
        forged(&format!("{{{}}}", entry("tokens", "[4294967296,4294967296,4]", "[0,128]")), 128),
        forged(&format!("{{{}}}", entry("tokens", "[18446744073709551615,2]", "[0,128]")), 128),
        forged(&format!("{{{}}}", entry("tokens", "[4,9]", "[0,128]")), 128),
        forged(&format!("{{{}}}", entry("tokens", "[-1]", "[0,4]")), 4),
        forged(&format!("{{{}}}", entry("tokens", "[4,8]", "[0,128]").replace("U32", "Q4")), 128),
    ]);
    for (index, bytes) in files.iter().enumerate() {
        dtlc.write("hostile.safetensors", bytes);
        let mut arguments = RUN.to_vec();
        arguments[5] = "hostile.safetensors";
        refused(&dtlc, &arguments, &["E060"]);
        refused(&dtlc, &[&RUN[..], &["--weights", "hostile.safetensors"]].concat(), &["E060"]);
        refused(&dtlc, &train(&["--data", "hostile.safetensors"]), &["E060"]);
        dtlc.write("run/step-00000002.safetensors", bytes);
        let resume = ["--data", "text.txt", "--checkpoint", "run", "--resume"];
        refused(&dtlc, &train(&resume), &["step-00000002"]);
        assert!(!dtlc.path("out.safetensors").exists(), "file {index}");
    }
}

#[test]
fn labels_and_tokens_out_of_range() {
    let dtlc = prepared();
    let with = |at: usize, value: u32| {
        let mut values = tokens(32);
        values[at] = value;
        values
    };
    save(&dtlc, "inputs.safetensors", &inputs(&tokens(32), &with(11, 256)));
    refused(&dtlc, &RUN, &["E0602", "labels", "256", "element 11", "`V`"]);
    save(&dtlc, "inputs.safetensors", &inputs(&with(3, 4_000_000_000), &tokens(32)));
    refused(&dtlc, &RUN, &["E0602", "tokens", "4000000000", "element 3"]);
    save(&dtlc, "inputs.safetensors", &inputs(&tokens(32), &with(11, u32::MAX)));
    dtlc.expect(0, &RUN);
    let step = |labels: &[u32]| -> IndexMap<String, HostTensor> {
        let named = [("tokens", tokens(64)), ("labels", labels.to_vec())];
        named.map(|(name, values)| (name.to_owned(), HostTensor::from_u32(&[2, 4, 8], &values))).into()
    };
    let mut labels = tokens(64);
    labels[40] = 999;
    save(&dtlc, "steps.safetensors", &step(&labels));
    let outcome = refused(&dtlc, &train(&["--data", "steps.safetensors"]), &["step 2", "labels", "999"]);
    assert!(outcome.stdout.contains("step 1/2"), "{}", outcome.stdout);
    labels[40] = u32::MAX;
    save(&dtlc, "steps.safetensors", &step(&labels));
    dtlc.expect(0, &train(&["--data", "steps.safetensors"]));
    let words: Vec<u8> = (0..200u16).flat_map(|token| (token * 2).to_le_bytes()).collect();
    dtlc.write("tokens.bin", words);
    refused(&dtlc, &train(&["--data", "tokens.bin"]), &["vocabulary of 256"]);
}

#[test]
fn shapes_and_types_that_disagree() {
    let dtlc = prepared();
    let mut given = inputs(&tokens(32), &tokens(32));
    given.insert("labels".to_owned(), HostTensor::from_u32(&[8, 4], &tokens(32)));
    save(&dtlc, "inputs.safetensors", &given);
    refused(&dtlc, &RUN, &["E0602", "labels", "[4, 8]", "[8, 4]"]);
    given.insert("labels".to_owned(), HostTensor::from_f32(&[4, 8], &[0.5; 32]));
    save(&dtlc, "inputs.safetensors", &given);
    refused(&dtlc, &RUN, &["labels"]);
    given = inputs(&tokens(32), &tokens(32));
    given.insert("more".to_owned(), HostTensor::from_u32(&[1], &[1]));
    save(&dtlc, "inputs.safetensors", &given);
    refused(&dtlc, &RUN, &["more"]);
    save(&dtlc, "inputs.safetensors", &inputs(&tokens(32), &tokens(32)));
    let weights = [("embed.weight".to_owned(), HostTensor::from_f32(&[16, 256], &[0.0; 4096]))].into();
    save(&dtlc, "weights.safetensors", &weights);
    refused(
        &dtlc,
        &[&RUN[..], &["--weights", "weights.safetensors"]].concat(),
        &["embed.weight", "head.weight"],
    );
    let short = [("tokens".to_owned(), HostTensor::from_u32(&[2, 4, 7], &tokens(56)))].into();
    save(&dtlc, "steps.safetensors", &short);
    let parts = ["`tokens` has shape [2, 4, 7], and [steps, 4, 8] is", "no `labels` of shape [steps, 4, 8]"];
    refused(&dtlc, &train(&["--data", "steps.safetensors"]), &parts);
    save(&dtlc, "steps.safetensors", &IndexMap::new());
    refused(&dtlc, &train(&["--data", "steps.safetensors"]), &["tokens"]);
}

/// The parameters after two steps of training, the values of some made others by `change`.
fn changed_weights(
    dtlc: &Dtlc,
    which: &str,
    change: impl Fn(usize) -> Option<f32>,
) -> IndexMap<String, HostTensor> {
    dtlc.expect(0, &train(&["--data", "text.txt", "--checkpoint", "whole"]));
    let mut weights = read_all(&dtlc.path("whole/step-00000002.safetensors")).expect("the checkpoint");
    weights.retain(|name, _| name.starts_with("param."));
    for (_, tensor) in weights.iter_mut().filter(|(name, _)| name.starts_with(which)) {
        for (index, word) in tensor.bytes.chunks_exact_mut(4).enumerate() {
            if let Some(value) = change(index) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    weights
}

#[test]
fn not_a_number_in_weights_data_and_checkpoints() {
    let dtlc = prepared();
    let nan = changed_weights(&dtlc, "param.head.weight", |index| (index == 7).then_some(f32::NAN));
    save(&dtlc, "nan.safetensors", &nan);
    let parts = ["E0601", "param.head.weight", "NaN", "element 7"];
    refused(&dtlc, &train(&["--data", "text.txt", "--weights", "nan.safetensors"]), &parts);
    refused(&dtlc, &[&RUN[..], &["--weights", "nan.safetensors"]].concat(), &parts);
    // A checkpoint of a run that was lost.
    let path = dtlc.path("whole/step-00000002.safetensors");
    let mut bytes = std::fs::read(&path).expect("the checkpoint");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&path, bytes).expect("it is written");
    let resume = ["--data", "text.txt", "--checkpoint", "whole", "--resume"];
    refused(&dtlc, &train(&resume), &["inf", "lost"]);
    // What a step starts from is the one or the other.
    let both = dtlc.expect(2, &train(&[&resume[..], &["--weights", "nan.safetensors"]].concat()));
    assert!(both.stderr.contains("--resume") && both.stderr.contains("--weights"), "{}", both.stderr);
    // A step that none can follow.
    let whole = String::from_utf8_lossy(&std::fs::read(&path).expect("the checkpoint")).into_owned();
    assert!(whole.contains(r#""step":"2""#), "no step in the checkpoint");
    let bytes = std::fs::read(&path).expect("the checkpoint");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let text = std::str::from_utf8(&bytes[8..8 + header]).expect("JSON");
    let text = text.replace(r#""step":"2""#, &format!(r#""step":"{}""#, u64::MAX));
    let bytes = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &bytes[8 + header..]].concat();
    std::fs::write(&path, bytes).expect("it is written");
    refused(&dtlc, &train(&resume), &["step 18446744073709551615", "none follows"]);
    let model = "model M {\n  dims B, S, D = 4\n  param w: [D]\n  fn loss(x: f32[B, S, D]) -> f32[] \
                 {\n    mean(x * f32(w))\n  }\n}\n";
    dtlc.write("floats.dtl", model);
    let mut values = [1.0; 32];
    values[5] = f32::NAN;
    save(&dtlc, "floats.safetensors", &[("x".to_owned(), HostTensor::from_f32(&[2, 4, 4], &values))].into());
    let run = ["run", "floats.dtl", "--inputs", "floats.safetensors", "-o", "out.safetensors"];
    refused(&dtlc, &run, &["E0602", "`x` holds NaN (element 5)"]);
}

#[test]
fn values_that_become_infinite_are_named_by_line_on_request() {
    let dtlc = prepared();
    let huge = changed_weights(&dtlc, "param.", |_| Some(3e38));
    save(&dtlc, "huge.safetensors", &huge);
    let weights = ["--weights", "huge.safetensors"];
    for plan in ["one", "tp2"] {
        let mut run = RUN.to_vec();
        run[3] = plan;
        dtlc.expect(0, &[&run[..], &weights].concat());
        let outcome = dtlc.expect(3, &[&run[..], &weights, &["--check-finite"]].concat());
        // The first product in `Linear`.
        assert!(outcome.stderr.contains("infinity at stdlib/nn.dtl:13:13"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("layers.up.y"), "{}", outcome.stderr);
        let mut steps = train(&["--data", "text.txt", "--check-finite"]);
        steps[3] = plan;
        dtlc.expect(0, &steps);
        let outcome = dtlc.expect(3, &[&steps[..], &weights].concat());
        assert!(outcome.stderr.contains("step 1: rank"), "{}", outcome.stderr);
    }
}

#[test]
fn a_run_that_goes_on_otherwise_says_what_differs() {
    let dtlc = prepared();
    dtlc.expect(0, &train(&["--data", "text.txt", "--checkpoint", "run"]));
    let resume = |data: &'static str| {
        let more = ["--data", data, "--checkpoint", "run", "--resume"];
        [&["train", "tiny.dtl", "-p", "one", "--steps", "3"][..], &more].concat()
    };
    dtlc.write("other.txt", "pack my box with five dozen liquor jugs. ".repeat(40));
    let outcome = dtlc.expect(0, &resume("other.txt"));
    assert!(outcome.stderr.contains("trained on so far"), "{}", outcome.stderr);
    // Of other kinds too it is what they hold that counts, not how much.
    let steps = |first: u32| -> IndexMap<String, HostTensor> {
        let values: Vec<u32> = (0..4 * 36).map(|index| (index * 7 + first) % 256).collect();
        [("tokens".to_owned(), HostTensor::from_u32(&[4, 4, 9], &values))].into()
    };
    for (first, name) in [(0, "steps.safetensors"), (1, "moved.safetensors"), (0, "same.safetensors")] {
        save(&dtlc, name, &steps(first));
        let words: Vec<u8> =
            (0..400u16).flat_map(|word| (word + first as u16).min(255).to_le_bytes()).collect();
        dtlc.write(&name.replace("safetensors", "bin"), words);
    }
    for kind in ["safetensors", "bin"] {
        let [folder, data] = ["run", "steps"].map(|name| format!("{name}.{kind}"));
        dtlc.expect(0, &train(&["--data", &data, "--checkpoint", &folder]));
        for (steps, name, warns) in [("3", "moved", true), ("4", "moved", false), ("3", "same", false)] {
            let data = format!("{name}.{kind}");
            let arguments = ["train", "tiny.dtl", "-p", "one", "--steps", steps, "--data", &data];
            let outcome = dtlc.run(&[&arguments[..], &["--checkpoint", &folder, "--resume"]].concat());
            let warned = outcome.stderr.contains("trained on so far");
            assert!(outcome.status == 0 && warned == (warns || name == "same"), "{data}: {}", outcome.stderr);
        }
    }
    let mut last = resume("other.txt");
    last[5] = "4";
    assert!(!dtlc.expect(0, &last).stderr.contains("trained on so far"));
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    let master = "precision { compute bf16, params bf16, master f32 }\n  optimizer adamw";
    dtlc.write("tiny.dtl", text.replacen("optimizer adamw", master, 1));
    refused(&dtlc, &resume("other.txt"), &["masters", "--weights run/step-00000004.safetensors"]);
    dtlc.expect(0, &train(&["--data", "text.txt", "--weights", "run/step-00000004.safetensors"]));
}

#[test]
fn data_without_text() {
    let dtlc = prepared();
    std::fs::create_dir(dtlc.path("empty")).expect("a folder");
    dtlc.write("empty/.hidden", "text that does not count");
    dtlc.write("empty/binary", b"\xff\xfe");
    refused(&dtlc, &train(&["--data", "empty"]), &["no text in `empty`"]);
    dtlc.write("nothing.txt", "");
    refused(&dtlc, &train(&["--data", "nothing.txt"]), &["nothing.txt"]);
    dtlc.write("short.txt", "short");
    refused(&dtlc, &train(&["--data", "short.txt"]), &["5 tokens", "needs 9"]);
    refused(&dtlc, &train(&["--data", "/dev/zero"]), &["/dev/zero", "device"]);
    refused(&dtlc, &["check", "/dev/zero"], &["/dev/zero"]);
    dtlc.write("odd.bin", b"odd");
    refused(&dtlc, &train(&["--data", "odd.bin"]), &["odd.bin", "2-byte"]);
    refused(&dtlc, &train(&["--data", "odd.bin", "text.txt"]), &["mixed"]);
}

#[test]
fn directories_where_files_are_meant() {
    let dtlc = prepared();
    for name in ["folder", "folder.dtl", "folder.safetensors", "folder.bin"] {
        std::fs::create_dir(dtlc.path(name)).expect("a folder");
    }
    for command in ["check", "explain", "verify", "fmt", "snapshot"] {
        refused(&dtlc, &[command, "folder.dtl"], &["folder.dtl"]);
    }
    for (at, name) in [(1, "folder.dtl"), (5, "folder.safetensors"), (7, "folder")] {
        let mut arguments = RUN.to_vec();
        arguments[at] = name;
        refused(&dtlc, &arguments, &[name]);
    }
    refused(&dtlc, &[&RUN[..], &["--weights", "folder.safetensors"]].concat(), &["folder.safetensors"]);
    refused(&dtlc, &train(&["--data", "text.txt", "--checkpoint", "text.txt"]), &["text.txt"]);
    dtlc.write("use.dtl", "use folder::A\nlayer B[D] { fn (x: [D]) -> [D] { x } }\n");
    refused(&dtlc, &["check", "use.dtl"], &["folder"]);
}

/// Runs the command in a shell, behind what makes the shell's environment a bad one.
fn behind(dtlc: &Dtlc, limits: &str, arguments: &[&str]) -> Outcome {
    let output = Command::new("sh")
        .args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_dtlc")])
        .args(arguments)
        .current_dir(dtlc.folder.path())
        .output()
        .expect("a shell");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Outcome {
        status: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// The names in the folder.
fn names(dtlc: &Dtlc, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dtlc.path(folder)).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<String> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_full_disk_loses_nothing() {
    let dtlc = prepared();
    dtlc.expect(0, &[&RUN[..], &["--wrt", "params"]].concat());
    dtlc.expect(0, &train(&["--data", "text.txt", "--checkpoint", "run"]));
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write(
        "loose.dtl",
        format!("{}{}", text.replace("  embed", "      embed"), "// more\n".repeat(2000)),
    );
    let kept = ["out.safetensors", "run/step-00000002.safetensors", "loose.dtl"];
    let before = kept.map(|name| std::fs::read(dtlc.path(name)).expect("it is there"));
    let (files, checkpoints) = (names(&dtlc, "."), names(&dtlc, "run"));
    // No file may be larger than a few kB; what is written says so instead of ending the process.
    let full = "trap '' XFSZ; ulimit -f 8";
    let resume =
        ["train", "tiny.dtl", "-p", "one", "--steps", "3", "--data", "text.txt", "--checkpoint", "run"];
    for arguments in [
        &[&RUN[..], &["--wrt", "params"]].concat()[..],
        &[&resume[..], &["--resume"]].concat(),
        &["fmt", "loose.dtl"],
    ] {
        let outcome = behind(&dtlc, full, arguments);
        assert_eq!(outcome.status, 1, "{arguments:?}\n{}", outcome.stderr);
        assert!(outcome.stderr.contains("E0601"), "{}", outcome.stderr);
    }
    assert_eq!(kept.map(|name| std::fs::read(dtlc.path(name)).expect("it is there")), before);
    assert_eq!((names(&dtlc, "."), names(&dtlc, "run")), (files, checkpoints), "something is left over");
    let outcome = behind(&dtlc, "exec > /dev/full", &["explain", "tiny.dtl", "-p", "one"]);
    assert_eq!(outcome.status, 3, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("standard output can't be written"), "{}", outcome.stderr);
}

fn mode(dtlc: &Dtlc, name: &str) -> u32 {
    std::fs::metadata(dtlc.path(name)).expect("it is there").permissions().mode() & 0o7777
}

fn set_mode(dtlc: &Dtlc, name: &str, mode: u32) {
    std::fs::set_permissions(dtlc.path(name), std::fs::Permissions::from_mode(mode)).expect("it is set");
}

/// The commands that write to a place which they are given.
fn writers(place: &str) -> [Vec<&str>; 2] {
    [[&RUN[..7], &[place]].concat(), vec!["build", "tiny.dtl", "-p", "one", "-o", place]]
}

#[test]
fn links_pipes_and_modes_stay_what_they_are() {
    let dtlc = prepared();
    for (at, writes) in writers("link").iter().enumerate() {
        dtlc.write("folder/target", "old");
        set_mode(&dtlc, "folder/target", 0o640);
        // A link to a link, each from its own folder; and one that leads to nothing yet.
        for (to, link) in [("target", "folder/near"), ("folder/near", "link")] {
            let _ = std::fs::remove_file(dtlc.path(link));
            symlink(to, dtlc.path(link)).expect("a link");
        }
        for expected in [[0o640, 0o750][at], 0o666] {
            dtlc.expect(0, writes);
            assert!(dtlc.path("link").is_symlink() && dtlc.path("folder/near").is_symlink());
            assert!(std::fs::read(dtlc.path("folder/target")).expect("it is there").len() > 3);
            assert!(expected == 0o666 || mode(&dtlc, "folder/target") == expected, "{writes:?}");
            std::fs::remove_file(dtlc.path("folder/target")).expect("it is there");
        }
    }
    assert_eq!(names(&dtlc, "folder"), ["near"], "something is left over");
    symlink("circle", dtlc.path("circle")).expect("a link");
    refused(&dtlc, &writers("circle")[0], &["circle", "E0601"]);
    for writes in writers("pipe") {
        let made = Command::new("mkfifo").arg(dtlc.path("pipe")).status().expect("mkfifo runs");
        assert!(made.success());
        let path = dtlc.path("pipe");
        let reader = std::thread::spawn(move || std::fs::read(path).expect("the pipe reads").len());
        let status = dtlc.expect(0, &writes);
        let kind = std::fs::symlink_metadata(dtlc.path("pipe")).expect("it is there").file_type();
        assert!(kind.is_fifo(), "{writes:?} replaced the pipe: {}", status.stdout);
        assert!(reader.join().expect("no panic") > 50, "{writes:?}");
        std::fs::remove_file(dtlc.path("pipe")).expect("it is there");
    }
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write("loose.dtl", text.replace("  embed", "      embed"));
    set_mode(&dtlc, "loose.dtl", 0o600);
    symlink("loose.dtl", dtlc.path("name.dtl")).expect("a link");
    dtlc.expect(0, &["fmt", "name.dtl"]);
    dtlc.expect(0, &["fmt", "--check", "loose.dtl"]);
    assert!(dtlc.path("name.dtl").is_symlink() && mode(&dtlc, "loose.dtl") == 0o600);
}

#[test]
fn what_is_read_is_never_written_over() {
    let dtlc = prepared();
    symlink("tiny.dtl", dtlc.path("other-name")).expect("a link");
    dtlc.write("part.dtl", "layer Twice[D] {\n  fn (x: [.., D]) -> [.., D] { x + x }\n}\n");
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write("tiny.dtl", format!("use part::Twice\n{text}").replace("head(layers", "head(twice(layers"));
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    let text = text
        .replace("embed(tokens)))", "embed(tokens))))")
        .replace("  head =", "  twice = Twice[D]\n  head =");
    dtlc.write("tiny.dtl", text);
    save(&dtlc, "weights.safetensors", &changed_weights(&dtlc, "none", |_| None));
    let kept = ["tiny.dtl", "part.dtl", "inputs.safetensors", "weights.safetensors"];
    let before = kept.map(|name| std::fs::read(dtlc.path(name)).expect("it is there"));
    for place in ["tiny.dtl", "./tiny.dtl", "other-name", "part.dtl"] {
        for writes in writers(place) {
            refused(&dtlc, &writes, &["E0601", place, "is read"]);
        }
    }
    for place in ["inputs.safetensors", "weights.safetensors"] {
        let writes = [&writers(place)[0][..], &["--weights", "weights.safetensors"]].concat();
        refused(&dtlc, &writes, &["E0601", place, "is read"]);
    }
    assert_eq!(kept.map(|name| std::fs::read(dtlc.path(name)).expect("it is there")), before);
}

#[test]
fn places_without_permission() {
    let dtlc = prepared();
    // Even the superuser makes no files there.
    let outcome = dtlc.expect(1, &[&RUN[..7], &["/proc/out.safetensors"]].concat());
    assert!(outcome.stderr.contains("E0601"), "{}", outcome.stderr);
    let outcome = dtlc.expect(1, &train(&["--data", "text.txt", "--checkpoint", "/proc/run"]));
    assert!(outcome.stderr.contains("E0601") && outcome.stdout.is_empty(), "{}", outcome.stderr);
    // A file that can be opened and not read.
    for arguments in [&["check", "/proc/self/mem"][..], &train(&["--data", "/proc/self/mem"])] {
        let outcome = dtlc.expect(1, arguments);
        assert!(outcome.stderr.contains("/proc/self/mem"), "{}", outcome.stderr);
    }
}

#[test]
fn readers_that_go_away() {
    let dtlc = prepared();
    // A training that ends for it is no whole one.
    for (status, arguments) in [
        (0, &["explain", "tiny.dtl", "-p", "tp2"][..]),
        (130, &["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--steps", "100000", "--json"]),
        (0, &["explain", "--help"]),
    ] {
        let mut child = dtlc
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
        assert_eq!(child.wait().expect("it ends").code(), Some(status), "{arguments:?}: {stderr}");
        assert_eq!(stderr, "");
    }
    for closed in ["exec 2>&-", "exec >&- 2>&-", "exec <&-"] {
        assert_eq!(behind(&dtlc, closed, &["check", "nowhere.dtl"]).status, 1, "{closed}");
        assert_eq!(behind(&dtlc, closed, &["check", "tiny.dtl"]).status, 0, "{closed}");
    }
}

/// Resident bytes and open files of a process.
fn held(pid: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is running");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    (kilobytes << 10, std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its files").count())
}

#[test]
fn ten_thousand_steps_leak_nothing() {
    let dtlc = prepared();
    let text = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    dtlc.write("tiny.dtl", text.replace("mesh { dp: 2, tp: 2 }", "mesh { dp: 1, tp: 2 }"));
    let mut child = dtlc
        .command(&["train", "tiny.dtl", "-p", "tp2", "--data", "text.txt", "--steps", "10100", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut after = |steps: usize| {
        let line = lines.nth(steps - 1).expect("a step").expect("UTF-8");
        assert!(line.contains("\"loss\":"), "{line}");
        held(child.id())
    };
    let (early, late) = (after(1000), after(9000));
    // Not even 30 bytes a step.
    assert!(late.0 <= early.0 + (256 << 10), "{} bytes after 1,000 steps, {} after 10,000", early.0, late.0);
    assert_eq!(early.1, late.1, "open files");
    lines.for_each(drop);
    assert!(child.wait().expect("it ends").success());
}
