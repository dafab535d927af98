//! `dtlc train`.

use crate::cli::{Train, Training};
use crate::commands::watch;
use crate::device::Processor;
use crate::failure::{Failure, show_diagnostics};
use crate::launcher::Launched;
use crate::load::load;
use crate::machine;
use crate::output::Output;
use crate::pipeline::Mode;
use dtlc_lang::{Code, Compiled, Diagnostic, SourceMap};
use dtlc_runtime::files::checkpoint::{self, Progress};
use dtlc_runtime::files::data::{Data, DataOptions, TokenWidth};
use dtlc_runtime::files::digest;
use dtlc_runtime::files::values::IndexBound;
use dtlc_runtime::files::weights::load_weights;
use dtlc_runtime::session::{Options, Session};
use dtlc_runtime::train::{Checkpoints, Ending, StepReport, TrainOptions, train};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The seed where none is given.
const DEFAULT_SEED: u64 = 1;

/// Trains a model.
///
/// # Errors
/// The model, the plan or the data is at fault, a step fails, or Ctrl-C.
pub fn run(arguments: &Train, output: &Output) -> Result<(), Failure> {
    let launched = Launched::here()?;
    let processor = Processor::open(arguments.device, launched.as_ref())?;
    let target = processor.target()?;
    let compiled = load(&arguments.source)?;
    require_optimizer(&compiled)?;
    let bounds = machine::bounds(&compiled)?;
    let session = || {
        let artifact =
            machine::artifact(&compiled, Mode::Train, &target, watch(arguments.training.check_finite))?;
        machine::launch(&artifact, &processor, options(&arguments.training), launched.as_ref())
    };
    train_with(session, bounds, &arguments.training, output)
}

/// How a session trains.
#[must_use]
pub fn options(arguments: &Training) -> Options {
    let timeout = Duration::from_secs(arguments.timeout);
    Options { timeout, watch: watch(arguments.check_finite), ..Options::default() }
}

/// Trains in a session that `start` starts, of a program whose integer inputs index what `bounds` say.
///
/// # Errors
/// What `start` says, the data is at fault, a step fails, or Ctrl-C.
pub fn train_with(
    start: impl FnOnce() -> Result<Session, Failure>,
    bounds: Vec<IndexBound>,
    arguments: &Training,
    output: &Output,
) -> Result<(), Failure> {
    let stop = listen_for_interrupts()?;
    let mut session = start()?;
    let ended = train_in(&mut session, bounds, arguments, &stop, output);
    match &ended {
        Ok(_) => session.part(),
        Err(failure) => session.fail(&failure.text()),
    }
    match ended? {
        (Ending::Finished, written) => written,
        // Who only wanted the first lines must not take the run for a whole one.
        (Ending::Stopped { .. }, Err(Failure::ClosedPipe)) => {
            output.note("nobody reads the output any more, so training stops here");
            Err(Failure::Interrupted)
        }
        (Ending::Stopped { .. }, written) => written.and(Err(Failure::Interrupted)),
    }
}

/// How training ended, which is the same in all processes of a run, and what became of the output.
fn train_in(
    session: &mut Session,
    bounds: Vec<IndexBound>,
    arguments: &Training,
    stop: &AtomicBool,
    output: &Output,
) -> Result<(Ending, Result<(), Failure>), Failure> {
    // One process speaks for all.
    let speaker = session.is_first().then_some(output);
    if let (Some(output), Some(remark)) = (speaker, session.remark()) {
        output.note(remark);
    }
    let Start { progress: Progress { step: done, seed }, origin, data: before, lock: _lock } =
        prepare(arguments, session, speaker)?;
    let data = Data::open(&arguments.data, session.program(), data_options(&bounds, seed))?.held_to(bounds);
    if let Some(output) = speaker {
        if let Some(before) = before
            && before != data.fingerprint()?
        {
            warn_of_other_data(output);
        }
        if done >= arguments.steps {
            output.note(&format!("step {done} is done, and `--steps {}` asks for no more", arguments.steps));
        }
    }
    let checkpoints = arguments
        .checkpoint
        .clone()
        .map(|folder| Checkpoints { folder, interval: arguments.every.unwrap_or(0) });
    let options =
        TrainOptions { first_step: done + 1, last_step: arguments.steps, seed, origin, checkpoints };
    let mut progress = Display::new(speaker, arguments.steps, done);
    let ending = train(session, &data, &options, stop, |report| {
        if progress.show(report).is_err() {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let written = progress.finish();
    Ok((ending?, written))
}

/// Ctrl-C sets the flag, and ends the process where the flag is set already.
fn listen_for_interrupts() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let status = i32::from(crate::failure::INTERRUPTED);
        signal_hook::flag::register_conditional_shutdown(signal, status, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::Fault(format!("Ctrl-C can't be listened for: {error}")))?;
    }
    Ok(stop)
}

/// Training needs a plan with an optimizer.
///
/// # Errors
/// There is none.
pub fn require_optimizer(compiled: &Compiled) -> Result<(), Failure> {
    let diagnostic = match &compiled.plan {
        Some(plan) if plan.optimizer.is_some() => return Ok(()),
        Some(plan) => {
            let title = format!("plan `{}` cannot train: it has no optimizer", plan.name);
            Diagnostic::error(Code::NoOptimizer, title).label(plan.span, "this plan")
        }
        None => Diagnostic::error(Code::NoOptimizer, "training needs a plan, which names the optimizer"),
    };
    let diagnostic = diagnostic.hint("optimizer adamw { lr 3e-4 }");
    Err(Failure::Input { diagnostics: vec![diagnostic], sources: compiled.sources.clone() })
}

/// How to read data: tokens have to be in the vocabulary, which also says how wide they are.
fn data_options(bounds: &[IndexBound], seed: u64) -> DataOptions {
    match bounds.iter().find(|bound| bound.input == "tokens") {
        Some(bound) => DataOptions::for_vocabulary(bound.below, seed),
        None => DataOptions { seed, vocabulary: None, width: TokenWidth::U32 },
    }
}

/// Where a run starts.
struct Start {
    progress: Progress,
    /// A digest of the files that the state is from, where other processes have to have the same.
    origin: u64,
    /// What tells the data of the run so far from other.
    data: Option<String>,
    /// Keeps other runs out of the folder of checkpoints.
    lock: Option<File>,
}

fn warn_of_other_data(output: &Output) {
    let diagnostic =
        Diagnostic::warning(Code::UnfitData, "`--data` is not what the run was trained on so far")
            .why("steps go on where the run stopped, in an order made for the data given now");
    show_diagnostics(&[diagnostic], &SourceMap::new(), output);
}

/// Sets the state that a run starts from. Who speaks for it keeps the folder of checkpoints.
fn prepare(arguments: &Training, session: &mut Session, speaker: Option<&Output>) -> Result<Start, Failure> {
    if let Some(folder) = arguments.checkpoint.as_deref().filter(|_| arguments.resume) {
        return resume(folder, arguments.seed, session, speaker);
    }
    let folder = arguments.checkpoint.as_deref().filter(|_| speaker.is_some());
    let lock = folder.map(start_folder).transpose()?;
    let seed = arguments.seed.unwrap_or(DEFAULT_SEED);
    if arguments.weights.is_empty() {
        session.initialise(seed)?;
    } else {
        session.initialise_constants()?;
        load_weights(session, &arguments.weights)?;
    }
    let origin = origin(session, &arguments.weights)?;
    Ok(Start { progress: Progress { step: 0, seed }, origin, data: None, lock })
}

/// Makes the folder for a new run's checkpoints, before any work is done that could not be saved.
fn start_folder(folder: &Path) -> Result<File, Failure> {
    std::fs::create_dir_all(folder).map_err(|error| crate::files::unusable(folder, &error))?;
    let lock = checkpoint::lock(folder)?;
    match checkpoint::newest(folder)? {
        Some(_) => {
            let reason =
                "it holds the checkpoints of a run; go on from them with `--resume`, or name another folder";
            Err(crate::files::unusable(folder, &reason))
        }
        None => Ok(lock),
    }
}

/// Goes on from the newest checkpoint; its seed stands, so that the order of the data does.
fn resume(
    folder: &Path,
    seed: Option<u64>,
    session: &mut Session,
    speaker: Option<&Output>,
) -> Result<Start, Failure> {
    let Some(path) = checkpoint::newest(folder)? else {
        return Err(crate::files::unusable(folder, &"it holds no checkpoint to go on from"));
    };
    let lock = speaker.map(|_| checkpoint::lock(folder)).transpose()?;
    let progress = checkpoint::load(session, &path)?;
    if seed.is_some_and(|seed| seed != progress.seed) {
        let reason = format!("its run has seed {}; leave `--seed` out, or give that one", progress.seed);
        return Err(crate::files::unusable(&path, &reason));
    }
    if let Some(output) = speaker {
        output.note(&format!("going on from {} (step {})", path.display(), progress.step));
    }
    let (data, origin) = (checkpoint::data_of(&path)?, origin(session, &[path])?);
    Ok(Start { progress, origin, data, lock })
}

/// A digest of the files that state is set from, if there is another process to compare it with.
fn origin(session: &Session, paths: &[PathBuf]) -> Result<u64, Failure> {
    if session.is_alone() || paths.is_empty() { Ok(0) } else { Ok(digest::of_files(paths)?) }
}

/// Shows steps: a bar on a terminal, else a line each; nothing where another process speaks.
struct Display<'a> {
    output: Option<&'a Output>,
    bar: Option<ProgressBar>,
    steps: u64,
    /// The first failure to write.
    failed: Option<Failure>,
    last: Option<StepReport>,
    /// The first step whose loss or gradient norm was not finite, which of them, and what it was.
    lost: Option<(u64, &'static str, &'static str)>,
}

impl<'a> Display<'a> {
    fn new(output: Option<&'a Output>, steps: u64, done: u64) -> Self {
        let bar = output.is_some_and(Output::shows_progress).then(|| {
            let bar = ProgressBar::new(steps).with_position(done).with_style(style());
            bar.reset_eta();
            bar
        });
        Self { output, bar, steps, failed: None, last: None, lost: None }
    }

    /// Shows a step; an error where nobody reads any more.
    fn show(&mut self, report: &StepReport) -> Result<(), ()> {
        self.last = Some(*report);
        if self.lost.is_none()
            && let Some((figure, value)) = not_finite(report)
        {
            self.lost = Some((report.step, figure, value));
            if let Some(output) = self.output {
                output.note(&format!("from step {} on {figure} is {value}", report.step));
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_position(report.step);
            bar.set_message(figures(report));
            return Ok(());
        }
        let Some(output) = self.output else { return Ok(()) };
        let written = if output.json {
            output.json(report)
        } else {
            output.text(&format!("step {}/{}: {}\n", report.step, self.steps, figures(report)))
        };
        written.map_err(|failure| self.failed = Some(failure))
    }

    fn finish(self) -> Result<(), Failure> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            if let (Some(output), Some(report)) = (self.output, &self.last) {
                output.text(&format!("step {}/{}: {}\n", report.step, self.steps, figures(report)))?;
            }
        }
        match (self.failed, self.lost) {
            (Some(failure), _) => Err(failure),
            (None, Some((step, figure, value))) => {
                let text =
                    format!("from step {step} on {figure} was {value}; what was trained since is of no use");
                Err(Failure::Fault(text))
            }
            (None, None) => Ok(()),
        }
    }
}

/// Which figure of a step is not finite, and what it is.
fn not_finite(report: &StepReport) -> Option<(&'static str, &'static str)> {
    let figures = [("the loss", report.loss), ("the gradient norm", report.grad_norm)];
    figures.into_iter().find_map(|(name, value)| match value? {
        value if value.is_nan() => Some((name, "not a number")),
        value if value.is_infinite() => Some((name, "infinite")),
        _ => None,
    })
}

fn style() -> ProgressStyle {
    let template = "{bar:24} {pos}/{len} steps, {msg}, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn figures(report: &StepReport) -> String {
    let mut parts = Vec::new();
    parts.extend(report.loss.map(|loss| format!("loss {loss:.4}")));
    parts.extend(report.grad_norm.map(|norm| format!("grad norm {norm:.3}")));
    parts.extend(report.lr.map(|lr| format!("lr {lr:.2e}")));
    // A model without tokens has none a second.
    parts.extend((report.tokens > 0).then(|| format!("{:.0} tokens/s", report.tokens_per_s)));
    parts.join(", ")
}
