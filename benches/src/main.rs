//! `bench-peers`: trains the models of `examples/peers.dtl` with `dtlc` and with its peers, and prints ratios.
//!
//! Contestants run in turn, each in a process of its own, on the same weights and batches; the least step time of all
//! rounds counts, so that being interrupted does not. Measures from outside; trains nothing itself.

mod contestant;
mod process;
mod row;
mod work;

use clap::Parser;
use contestant::Environment;
use row::{MESHES, Row};
use std::path::Path;
use std::process::ExitCode;
use work::Size;

/// Trains the models of examples/peers.dtl with dtlc, JAX and PyTorch in turn and prints ratios.
#[derive(Parser)]
struct Arguments {
    /// Rows to measure, by plan or by the start of its name, such as `base_one` or `small`; all where left out
    rows: Vec<String>,
    /// One short round of Tiny and Small, without torch.compile
    #[arg(long)]
    quick: bool,
    /// Times that every contestant of a row runs
    #[arg(long, default_value_t = 2)]
    rounds: usize,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("bench-peers: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Measures all rows; false where a contestant failed or computed something else.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let environment = Environment::find(arguments.quick)?;
    let folder = tempfile::tempdir().map_err(|error| format!("no folder for the work: {error}"))?;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load of the machine before: {}", load.split(' ').next().unwrap_or("unknown"));
    println!("{}", row::HEADER);
    let mut good = true;
    for size in Size::ALL.iter().filter(|size| !arguments.quick || size.name != "base") {
        let wanted: Vec<&str> =
            MESHES.into_iter().filter(|mesh| arguments.wants(&format!("{}_{mesh}", size.name))).collect();
        if wanted.is_empty() {
            continue;
        }
        let steps = if arguments.quick { size.steps.div_ceil(2) } else { size.steps };
        write_work(folder.path(), size, steps)?;
        for mesh in wanted {
            let contestants = environment.contestants(folder.path(), size.name, mesh, steps);
            let rounds = if arguments.quick { 1 } else { arguments.rounds };
            let row = Row::measure(size, mesh, &contestants, rounds);
            print!("{row}");
            good &= row.is_good();
        }
    }
    Ok(good)
}

fn write_work(folder: &Path, size: &Size, steps: usize) -> Result<(), String> {
    size.write(folder, steps).map_err(|error| error.to_string())
}

impl Arguments {
    fn wants(&self, plan: &str) -> bool {
        self.rows.is_empty()
            || self.rows.iter().any(|row| plan == row || plan.starts_with(&format!("{row}_")))
    }
}
