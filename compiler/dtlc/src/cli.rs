//! The command line: names, flags and help. What each command does stands in `commands`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use dtlc_codegen::cuda::nvrtc::Architecture;
use std::path::PathBuf;

/// What stands at the end of `dtlc --help`.
const OVERVIEW: &str = "\
Examples:
  dtlc check model.dtl                      all mistakes of a file, under every plan
  dtlc explain model.dtl -p node8           where everything lives, what moves, what it costs
  dtlc verify model.dtl -p node8            the sharded program against one rank, in small
  dtlc train model.dtl -p node8 --data text --steps 100

Exit status: 0 good, 1 the input is at fault, 2 usage, 3 a fault at run time, 4 a bug of dtlc, 130 interrupted.
Colour and progress bars are for terminals only; NO_COLOR turns colour off.";

/// Compiles, explains, checks and trains sharded models written in `.dtl`.
#[derive(Debug, Parser)]
#[command(name = "dtlc", version, after_help = OVERVIEW, max_term_width = 100, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print results as JSON, one value a line, and diagnostics as one object on standard error.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "the variants' documentation is the help text of their arguments")]
pub enum Command {
    Check(Check),
    Fmt(Fmt),
    Emit(Emit),
    Explain(Explain),
    Verify(Verify),
    Run(Run),
    Train(Train),
    Snapshot(Snapshot),
    Build(Build),
}

/// A file, its plan, and sizes that override what it says.
#[derive(Args, Clone, Debug)]
pub struct Source {
    /// The `.dtl` file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    #[expect(missing_docs, reason = "a flattened argument's documentation would replace the command's")]
    pub choice: Choice,
}

/// Which plan, and sizes that override what the file says.
#[derive(Args, Clone, Debug, Default)]
pub struct Choice {
    /// The plan. Left out: the file's only one; a file without plans runs on one rank, in f32.
    #[arg(short, long, value_name = "NAME")]
    pub plan: Option<String>,
    /// Override a sized dimension, an axis of the mesh, or `seq`, `global`, `micro` of the batch.
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE", value_parser = parse_override)]
    pub define: Vec<(String, String)>,
}

/// Parse, type, place and plan the memory of every plan; show all mistakes at once.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  dtlc check examples/llama3.dtl

Succeeds where every model is well-formed and every plan fits its mesh, its `memory` and its `expect`.")]
pub struct Check {
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub source: Source,
}

/// Bring files into their canonical form; comments are kept.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dtlc fmt model.dtl                        rewrites the file
  dtlc fmt --check examples/*.dtl           changes nothing; exit status 1 and a diff where one would change")]
pub struct Fmt {
    /// The files.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Only say what would change.
    #[arg(long)]
    pub check: bool,
}

/// Print one stage of the compilation as text.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dtlc emit model.dtl --stage logical       the mathematics, on one device
  dtlc emit model.dtl -p tp2 --stage sharded
  dtlc emit model.dtl -p tp2 --stage clif   what the code generator is given
  dtlc emit model.dtl -p tp2 --stage cuda   the same kernels for a GPU

The stages in their order: ast, model, logical (forward), joint (with backward and optimizer), sharded (with
placements and reshards), scheduled (with collectives, fused kernels), kernels, then clif and program for the CPU, cuda
(CUDA C++) and ptx (by NVRTC, for sm_80) for GPUs. From `logical` to `scheduled` the text is the same language. These texts
are for people and reviews: no command reads them, but for that of ast. Matrix products and attention come from a
library and are no part of kernels, cuda and ptx.")]
pub struct Emit {
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub source: Source,
    /// The stage.
    #[arg(long, value_enum, value_name = "STAGE")]
    pub stage: EmitStage,
    /// The rank. One program serves all ranks of the mesh, so this only checks that there is such a rank, and
    /// resolves its coordinates in `program`.
    #[arg(long, value_name = "R")]
    pub rank: Option<u64>,
}

/// What `emit` can print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the stage its name says")]
pub enum EmitStage {
    Ast,
    Model,
    Logical,
    Joint,
    Sharded,
    Scheduled,
    Kernels,
    Cuda,
    Ptx,
    Clif,
    Program,
}

/// Show placements, collectives, memory and work of a plan, or what a diagnostic's code means.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dtlc explain examples/llama3.dtl -p b70_tp8_sp
  dtlc explain examples/llama3.dtl -p b70_tp8_sp --json
  dtlc explain E0467

The model is printed with every placement written out; it is legal input. Memory and work are the busiest rank's, work
is for a step and counts matrix products and attention: `model` is the mathematics once, causal attention as half;
`hardware` adds what is computed again.")]
pub struct Explain {
    /// The `.dtl` file, or a code such as E0467.
    #[arg(value_name = "FILE|CODE")]
    pub subject: PathBuf,
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub choice: Choice,
}

/// Run the sharded program in small against one rank: loss, every gradient, every updated parameter.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  dtlc verify examples/llama3.dtl -p b70_tp8_sp

Sizes are made small, the mesh is kept (cut down to 16 ranks, every axis at 2 or more); the sizes are printed.
Parameters and inputs are random. The error of a tensor is its largest difference over the larger of its own largest element and
1e-3 of the model's largest gradient; parameters are compared after one step of SGD. Above 1e-5, and always in bf16,
each tensor is held to what sampled rounding of the plan does to it; beyond that the exit status is 3. Requirements of the file hold in small too:
what they need keeps its size.")]
pub struct Verify {
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub source: Source,
    /// Seed of parameters and inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where to run the ranks and the one that they are held against.
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub device: Device,
}

/// Evaluate a model once on given inputs.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dtlc run model.dtl --inputs batch.safetensors --weights w.safetensors -o out.safetensors
  dtlc run model.dtl -p dp2 --inputs batch.safetensors --wrt params -o grads.safetensors

The inputs hold what the model's `loss` takes, by name, unsharded. The result holds `loss`, the model's named outputs
and, with `--wrt params`, `grad.PATH` for every parameter, not clipped.")]
pub struct Run {
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub source: Source,
    /// The inputs (safetensors).
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// Parameters by path (safetensors); left out, they start as the model says.
    #[arg(long, value_name = "FILE")]
    pub weights: Vec<PathBuf>,
    /// What to take gradients of.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub wrt: Option<WithRespectTo>,
    /// Where results go (safetensors).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Seed of initial values and of what is random in the model.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Stop at the first value that is NaN or infinite, and name its line. Slower.
    #[arg(long)]
    pub check_finite: bool,
    /// Where to run.
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub device: Device,
}

/// What gradients can be taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WithRespectTo {
    /// All parameters.
    Params,
}

/// Where programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// Ranks are threads of this process, or processes where a launcher started one for each.
    Cpu,
    /// Ranks share a GPU, through NVIDIA's driver and NVRTC. Tested with a library that stands in for the driver, on no GPU yet.
    Cuda,
    /// A process's ranks share an emulated GPU, which checks every access: the kernels of a GPU without one. Needs NVRTC; slow.
    Emu,
}

/// Train a model.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dtlc train examples/bytes.dtl -p node4 --data README.md docs --steps 200
  dtlc train model.dtl --data tokens.bin --steps 1000 --checkpoint runs/a --every 100
  dtlc train model.dtl --data tokens.bin --steps 2000 --checkpoint runs/a --resume
  torchrun --nproc-per-node 4 --no-python dtlc train model.dtl -p node4 --data tokens.bin --steps 1000

Data is text (its bytes are the tokens; a folder stands for the text files in it), token files (`.bin`, u16 or u32 as the
vocabulary needs), or a safetensors file whose tensors carry a leading step dimension. Ctrl-C ends the step, writes a
checkpoint where `--checkpoint` asks for them, and exits with 130; a second one ends at once.

Ranks are threads of one process. Started by torchrun, srun or mpirun as one of several, it runs the rank that the launcher
gives it, and there must be as many as the plan has: `dtlc build` makes a file for that, whose `--help` says more.")]
pub struct Train {
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub source: Source,
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub training: Training,
    /// Where to run.
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub device: Device,
}

/// How to train, whatever it is.
#[derive(Args, Clone, Debug)]
pub struct Training {
    /// What to train on: files of one kind, or folders of text.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    pub data: Vec<PathBuf>,
    /// Steps of the whole run; with `--resume`, those of the checkpoint count.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Start from these parameters (safetensors); not with `--resume`, which has the checkpoint's.
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    pub weights: Vec<PathBuf>,
    /// Write checkpoints to this folder: at the end, and as `--every` says.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints.
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// Go on from the newest checkpoint of the folder.
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// Seed of initial values, of the order of the data, and of what is random in the model; 1 by default. With
    /// `--resume` the checkpoint's.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop at the first value that is NaN or infinite, and name its line. Slower.
    #[arg(long)]
    pub check_finite: bool,
    /// How long a rank waits for another before it gives up, and for all to come at the start. The others wait as well while
    /// rank 0 writes a checkpoint.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub timeout: u64,
}

/// Train with a program that this executable holds.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Data is text, token files (`.bin`) or a safetensors file, as `dtlc train` takes it. Ctrl-C ends the step, writes a checkpoint
where `--checkpoint` asks for them, and exits with 130; a second one ends at once.

Started alone, its ranks are threads of one process. Started once a rank by a launcher,
  torchrun --nproc-per-node 4 --no-python ./model --data text --steps 100
  srun -n 4 ./model --data text --steps 100
  mpirun -n 4 ./model --data text --steps 100
each process is one rank, to the same bits. They meet where MASTER_ADDR and MASTER_PORT say, or on the first host of Slurm's
step, or on this machine. Each reads data, weights and checkpoints itself; rank 0 prints and writes. When one fails, is
killed or does not come within `--timeout`, the others end and say so.

Exit status: 0 good, 1 the input is at fault, 2 usage, 3 a fault at run time, 4 a bug of dtlc, 130 interrupted."
)]
pub struct Built {
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub training: Training,
    /// Where to run; what it is built for, if not given.
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Print results as JSON, one value a line, and diagnostics as one object on standard error.
    #[arg(long)]
    pub json: bool,
}

/// Compare a stage's text with the snapshot beside the file.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dtlc snapshot examples/llama3.dtl         shows what changed; exit status 1 if anything did
  dtlc snapshot model.dtl --accept          writes what is new

Every plan of a file has its own snapshot, FILE.PLAN.STAGE.snap; a file without plans has FILE.STAGE.snap. It holds what
`emit` prints, without the tables and source positions around the instructions, and of the optimizer's arithmetic only
each state's new value.")]
pub struct Snapshot {
    /// The files.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The stage.
    #[arg(long, value_enum, value_name = "STAGE", default_value_t = EmitStage::Sharded)]
    pub stage: EmitStage,
    /// Write new and changed snapshots, and delete those whose plan is gone.
    #[arg(long)]
    pub accept: bool,
}

/// Build one self-contained executable that trains.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  dtlc build model.dtl -p node8 -o train-model
  ./train-model --data tokens.bin --steps 1000 --checkpoint runs/a
  dtlc build model.dtl -p node8 --target cuda:sm_90a -o train-model

The executable holds the program and what runs it, and needs no `.dtl` file and no compiler. It takes the options of `train`
but FILE, `-p` and `-D`, and runs its ranks as threads of one process, or as the processes of torchrun, srun or mpirun.")]
pub struct Build {
    #[command(flatten)]
    #[expect(missing_docs, reason = "see `Source`")]
    pub source: Source,
    /// `cpu`, or `cuda` with architectures: `cuda:sm_80,sm_90a`. Without them there is code for all that are known.
    #[arg(long, value_name = "TARGET", default_value = "cpu", value_parser = parse_target)]
    pub target: BuildTarget,
    /// The executable.
    #[arg(short, long, value_name = "BIN")]
    pub output: PathBuf,
}

/// What a built file has code for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildTarget {
    /// This processor.
    Cpu,
    /// CUDA devices.
    Cuda(Vec<Architecture>),
}

fn parse_target(text: &str) -> Result<BuildTarget, String> {
    let known = || Architecture::ALL.map(Architecture::name).join(", ");
    let named = |name: &str| {
        let found = Architecture::ALL.into_iter().find(|architecture| architecture.name() == name);
        found.ok_or_else(|| format!("no architecture `{name}`; there are {}", known()))
    };
    match text.split_once(':') {
        None if text == "cpu" => Ok(BuildTarget::Cpu),
        None if text == "cuda" => Ok(BuildTarget::Cuda(Architecture::ALL.to_vec())),
        Some(("cuda", names)) => names.split(',').map(named).collect::<Result<_, _>>().map(BuildTarget::Cuda),
        Some(_) | None => Err(format!("expected `cpu`, `cuda` or `cuda:` with some of {}", known())),
    }
}

fn parse_override(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE, as in -D L=2".to_owned()),
    }
}
