//! `bench-compile`: time and memory of `dtlc explain` and `dtlc emit --stage program` for the largest plan of
//! `examples/llama3.dtl`, and how both change with layers and ranks. Compiles in turn; the least of all rounds counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Times that each command runs.
const ROUNDS: usize = 20;
/// Between two looks at a process's memory.
const LOOK: Duration = Duration::from_micros(500);
const PLAN: &str = "b405_tp8_dp2048";

/// One command and what it took at best.
struct Case {
    name: &'static str,
    arguments: Vec<String>,
    seconds: f64,
    /// Greatest peak of resident memory that was seen.
    peak_bytes: u64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("bench-compile: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let dtlc = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("dtlc");
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let many = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/llama3.dtl");
    let few = with_few_ranks(&many, folder.path())?;
    let mut cases = [
        case("explain", &["explain"], &many, &[]),
        case("emit --stage program", &["emit", "--stage", "program"], &many, &[]),
        case("128 layers", &["emit", "--stage", "program"], &many, &["-D", "L=128"]),
        case("2 layers", &["emit", "--stage", "program"], &many, &["-D", "L=2"]),
        case("8 ranks", &["emit", "--stage", "program"], &few, &[]),
    ];
    for _ in 0..ROUNDS {
        for case in &mut cases {
            case.measure(&dtlc)?;
        }
    }
    for case in &cases {
        println!("{:>20}: {:.3} s, {:.0} MB", case.name, case.seconds, case.peak_bytes as f64 / 1e6);
    }
    let [_, emit, many_layers, few_layers, few_ranks] = &cases;
    println!("128 layers take {:.2} times what 2 take", many_layers.seconds / few_layers.seconds);
    println!("16,384 ranks take {:.2} times what 8 take", emit.seconds / few_ranks.seconds);
    Ok(())
}

fn case(name: &'static str, command: &[&str], file: &Path, more: &[&str]) -> Case {
    let mut arguments: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    arguments.extend([file.display().to_string(), "-p".to_owned(), PLAN.to_owned()]);
    arguments.extend(more.iter().map(|&word| word.to_owned()));
    Case { name, arguments, seconds: f64::INFINITY, peak_bytes: 0 }
}

/// The same file with the plan on 8 ranks.
fn with_few_ranks(file: &Path, folder: &Path) -> Result<PathBuf, String> {
    let mut text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    for (old, new) in [("dp: 2048, tp: 8", "dp: 2, tp: 4"), ("global 2048 }", "global 2 }")] {
        if text.matches(old).count() != 1 {
            return Err(format!("`{old}` is not once in {}", file.display()));
        }
        text = text.replace(old, new);
    }
    let few = folder.join("few_ranks.dtl");
    fs::write(&few, text).map_err(|error| format!("{}: {error}", few.display()))?;
    Ok(few)
}

impl Case {
    fn measure(&mut self, dtlc: &Path) -> Result<(), String> {
        let begun = Instant::now();
        let mut child = Command::new(dtlc)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", dtlc.display()))?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            self.peak_bytes = self.peak_bytes.max(peak_of(child.id()));
            std::thread::sleep(LOOK);
        };
        self.seconds = self.seconds.min(begun.elapsed().as_secs_f64());
        if status.success() { Ok(()) } else { Err(format!("{}: {status}", self.name)) }
    }
}

/// Peak resident bytes of a process so far.
fn peak_of(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    1024 * line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0u64)
}
