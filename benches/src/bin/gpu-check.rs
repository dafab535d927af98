//! `gpu-check`: asks a GPU what `scripts/gpu-check pack` has prepared. Runs each built file on the CPU and on the device and compares
//! what they say; times steps on the device and, where there is a PyTorch that sees a GPU, in that. Prints a table, writes JSON.
//!
//! Compiles nothing and computes nothing itself. Starting a file loads all of its machine code. Ends within its seconds.

use clap::Parser;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// What f32 may differ by between two devices in so few steps, relative, as in `tests/golden`.
const BOUND: f64 = 1e-5;
/// Steps that are compared, and steps of which the quickest counts.
const CHECKED: u64 = 2;
const TIMED: u64 = 5;
/// What is not asked yet.
const NOT_THERE: [&str; 2] = [
    "NCCL: it takes several GPUs, and this asks one",
    "times of single kernels: rows are whole training steps, most of whose time is one operation's",
];

/// Checks and times what `scripts/gpu-check pack` has put into a folder.
#[derive(Parser)]
struct Arguments {
    /// The folder
    folder: PathBuf,
    /// `cuda`, or `emu` for a dry run
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Seconds until the end; what is not done by then is said to be left out
    #[arg(long, default_value_t = 480)]
    seconds: u64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("gpu-check: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Does all rows; false where one failed.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let list = arguments.folder.join("programs");
    let list = fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let run = Run { folder: &arguments.folder, device: &arguments.device, end };
    let mut rows = Vec::new();
    for line in list.lines() {
        let row = match line.split_once(' ') {
            Some(("check", name)) => run.checked(name),
            Some(("time", name)) => run.timed(name),
            Some(_) | None => return Err(format!("`{line}` is no line of `programs`")),
        };
        println!("{}", text(&row));
        rows.push(row);
    }
    NOT_THERE.iter().for_each(|line| println!("not there: {line}"));
    let good = rows.iter().all(|row| row["failure"].is_null());
    let result = json!({ "device": arguments.device, "good": good, "rows": rows, "not_there": NOT_THERE });
    let path = arguments.folder.join("result.json");
    fs::write(&path, format!("{result:#}\n")).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(good)
}

/// A line of the table.
fn text(row: &Value) -> String {
    let name = row["name"].as_str().unwrap_or_default();
    if let Some(failure) = row["failure"].as_str() {
        return format!("{name:>16}: FAILED: {failure}");
    }
    if let Some(apart) = row["apart"].as_f64() {
        return format!("{name:>16}: as on the CPU to {apart:.1e} (bound {BOUND:.0e})");
    }
    let Some(ours) = row["step_ms"].as_f64() else { return format!("{name:>16}: no time was left") };
    let peer = |key: &str, what: &str| match (row[key].as_f64(), row[key].as_str()) {
        (Some(theirs), _) => format!(", {:.2} times {what}", theirs / ours),
        (None, reason) => format!(", {what}: {}", reason.unwrap_or("not there")),
    };
    format!("{name:>16}: {ours:.3} ms a step{}{}", peer("eager", "PyTorch"), peer("compile", "torch.compile"))
}

struct Run<'a> {
    folder: &'a Path,
    device: &'a str,
    end: Instant,
}

/// What a run printed of each step.
struct Steps {
    /// Losses and norms of gradients.
    numbers: Vec<f64>,
    /// Milliseconds of the quickest.
    least: f64,
}

impl Run<'_> {
    /// The device's losses and norms against the CPU's.
    fn checked(&self, name: &str) -> Value {
        let on = |device: &str| self.built(name, device, CHECKED);
        let apart = on("cpu").and_then(|cpu| Ok((cpu, on(self.device)?))).and_then(|(cpu, device)| {
            let pairs = cpu.numbers.iter().zip(&device.numbers);
            let apart = pairs.map(|(left, right)| (left - right).abs() / left.abs()).fold(0.0, worse);
            let is_near = cpu.numbers.len() == device.numbers.len() && apart <= BOUND;
            if is_near {
                Ok(apart)
            } else {
                Err(format!("off by {apart:.1e} from the CPU, bound {BOUND:.0e}"))
            }
        });
        match apart {
            Ok(apart) => json!({ "name": name, "kind": "check", "apart": apart }),
            Err(reason) => json!({ "name": name, "kind": "check", "failure": reason }),
        }
    }

    /// A step's least time here and in PyTorch.
    fn timed(&self, name: &str) -> Value {
        let mut row = json!({ "name": name, "kind": "time" });
        if self.left() == 0 {
            return row;
        }
        match self.built(name, self.device, TIMED) {
            Ok(steps) => row["step_ms"] = json!(steps.least),
            Err(reason) => row["failure"] = json!(reason),
        }
        for mode in ["eager", "compile"] {
            row[mode] = match self.device {
                "cuda" => self.peer(name, mode).map_or_else(Value::from, |steps| json!(steps.least)),
                _ => json!("not asked in a dry run"),
            };
        }
        row
    }

    fn built(&self, name: &str, device: &str, steps: u64) -> Result<Steps, String> {
        let mut command = self.command(&self.folder.join(name));
        command.arg("--data").arg(self.folder.join("text"));
        command.args(["--steps", &steps.to_string(), "--seed", "1", "--json", "--device", device]);
        steps_of(command, steps)
    }

    /// PyTorch's, with the sizes in `work.dtl`.
    fn peer(&self, name: &str, mode: &str) -> Result<Steps, String> {
        let python = std::env::var_os("DTLC_PEERS_PYTHON").unwrap_or_else(|| "python3".into());
        let mut command = self.command(Path::new(&python));
        command.arg(self.folder.join("torch_gpu.py")).arg(self.folder.join("work.dtl"));
        command.args([name, mode, &TIMED.to_string()]);
        steps_of(command, TIMED)
    }

    fn left(&self) -> u64 {
        self.end.saturating_duration_since(Instant::now()).as_secs()
    }

    /// Ended when the time is up.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.arg(format!("{}", self.left().max(1))).arg(program);
        command
    }
}

/// The larger, or a NaN.
fn worse(left: f64, right: f64) -> f64 {
    if left.is_nan() || left > right { left } else { right }
}

fn steps_of(mut command: Command, wanted: u64) -> Result<Steps, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps: Vec<Value> = lines.filter(|line| line["step_ms"].is_f64()).collect();
    if !output.status.success() || steps.len() as u64 != wanted {
        let complaints = String::from_utf8_lossy(&output.stderr);
        let last = complaints.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        let last = if output.status.code() == Some(124) { "the time was up" } else { last.trim() };
        return Err(format!("{} of {wanted} steps: {last}", steps.len()));
    }
    let numbers = steps.iter().flat_map(|step| [&step["loss"], &step["grad_norm"]]);
    let least = steps.iter().filter_map(|step| step["step_ms"].as_f64()).fold(f64::INFINITY, f64::min);
    // A NaN is `null` in JSON.
    Ok(Steps { numbers: numbers.map(|it| it.as_f64().unwrap_or(f64::NAN)).collect(), least })
}
