//! Who takes part in a row, and the command line of each.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the Python that has JAX and PyTorch.
const PYTHON: &str = "DTLC_PEERS_PYTHON";

/// What the contestants are started from.
pub struct Environment {
    root: PathBuf,
    dtlc: PathBuf,
    python: Option<String>,
    compiles: bool,
}

/// What a contestant is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `dtlc` in f32, which comes first.
    Own,
    /// `dtlc` in bf16, held against itself in f32.
    OwnNarrow,
    /// Another framework in f32, which has to compute the same losses.
    Peer,
}

/// One program that does the work.
pub struct Contestant {
    /// As printed.
    pub name: &'static str,
    /// What it is held against.
    pub kind: Kind,
    /// Makes its command anew for each run.
    pub command: Box<dyn Fn() -> Command>,
    /// Steps that it runs.
    pub steps: usize,
}

impl Environment {
    /// The environment of this process: `dtlc` beside it, the repository above it.
    pub fn find(quick: bool) -> Result<Environment, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let own = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
        let dtlc = own.with_file_name("dtlc");
        if !dtlc.exists() {
            return Err(format!("{} is not there: start this with scripts/bench-peers", dtlc.display()));
        }
        let python = std::env::var(PYTHON).ok();
        if python.is_none() {
            println!("{PYTHON} is not set, so dtlc runs alone");
        }
        Ok(Environment { root, dtlc, python, compiles: !quick })
    }

    /// Everyone who can do a row; `dtlc` is first.
    pub fn contestants(
        &self,
        folder: &Path,
        size: &'static str,
        mesh: &'static str,
        steps: usize,
    ) -> Vec<Contestant> {
        let mut all = vec![self.own("dtlc", Kind::Own, folder, [size, mesh], steps)];
        if (size, mesh) == ("base", "one") {
            all.push(self.own("dtlc, bf16", Kind::OwnNarrow, folder, [size, "one_bf16"], steps));
        }
        if self.python.is_some() {
            all.push(self.peer("JAX", "jax_peer.py", folder, [size, mesh], steps, &[]));
            all.push(self.peer("PyTorch", "torch_peer.py", folder, [size, mesh], steps, &[]));
            // Under DTensor and FSDP2 the compiled step is not faster here, and takes half a minute to make.
            if self.compiles && ["one", "dp2"].contains(&mesh) {
                all.push(self.peer(
                    "torch.compile",
                    "torch_peer.py",
                    folder,
                    [size, mesh],
                    steps,
                    &["--compile"],
                ));
            }
        }
        all
    }

    fn own(
        &self,
        name: &'static str,
        kind: Kind,
        folder: &Path,
        [size, mesh]: [&str; 2],
        steps: usize,
    ) -> Contestant {
        let (dtlc, root) = (self.dtlc.clone(), self.root.clone());
        let plan = format!("{size}_{mesh}");
        let file = |kind: &str| folder.join(format!("{size}.{kind}.safetensors"));
        let (data, weights) = (file("data"), file("weights"));
        let command = move || {
            let mut command = Command::new(&dtlc);
            command.current_dir(&root).args(["train", "examples/peers.dtl", "-p", &plan, "--json"]);
            command.arg("--data").arg(&data).arg("--weights").arg(&weights);
            command.args(["--steps", &steps.to_string()]);
            command
        };
        Contestant { name, kind, command: Box::new(command), steps }
    }

    fn peer(
        &self,
        name: &'static str,
        script: &str,
        folder: &Path,
        [size, mesh]: [&'static str; 2],
        steps: usize,
        more: &'static [&'static str],
    ) -> Contestant {
        let python = self.python.clone().unwrap_or_default();
        let script = self.root.join("benches/peers").join(script);
        let folder = folder.to_owned();
        let command = move || {
            let mut command = Command::new(&python);
            command.arg(&script).args([size, mesh]).arg(&folder).arg(steps.to_string()).args(more);
            // What a user's shell may set to steer other libraries would slow NumPy's.
            command.env_remove("OPENBLAS_CORETYPE").env_remove("OPENBLAS_L2_SIZE");
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            // Compiled once for all rounds of this run, and never before it.
            command.env("TORCHINDUCTOR_CACHE_DIR", folder.join("inductor"));
            command
        };
        Contestant { name, kind: Kind::Peer, command: Box::new(command), steps }
    }
}
