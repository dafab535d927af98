//! Runs steps: a training run over data, or one evaluation of given inputs.
//!
//! Prints nothing; the caller gets a report after each step.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indexmap::IndexMap;
use serde::Serialize;

use crate::error::{Result, RuntimeError};
use crate::files::checkpoint::{self, Progress};
use crate::files::data::Data;
use crate::files::weights::unstack;
use crate::session::Session;
use crate::tensor::HostTensor;

/// What to train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainOptions {
    /// The step to start with: 1, or the one after a checkpoint's.
    pub first_step: u64,
    /// The last step.
    pub last_step: u64,
    /// Seed of what is random in a step.
    pub seed: u64,
    /// A digest of the files that the state was set from, the same in all processes of a run; 0 if there are none.
    pub origin: u64,
    /// Where checkpoints go, if any are wanted.
    pub checkpoints: Option<Checkpoints>,
}

/// Where and how often to write checkpoints. One is also written at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// The folder.
    pub folder: PathBuf,
    /// Steps between two; 0 for the end alone.
    pub interval: u64,
}

/// What a step did; also the JSON line of `dtlc train --json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// The loss, if the program has one.
    pub loss: Option<f32>,
    /// Norm of the gradients before clipping.
    pub grad_norm: Option<f32>,
    /// Learning rate.
    pub lr: Option<f32>,
    /// Tokens in the step's batch.
    pub tokens: u64,
    /// Tokens a second, all ranks together.
    pub tokens_per_s: f64,
    /// Milliseconds that the step took, data included.
    pub step_ms: f64,
    /// Bytes that a rank touches.
    pub peak_bytes: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// It was asked to stop after this step.
    Stopped {
        /// The last step that is done; 0 if none is.
        step: u64,
    },
}

/// Runs steps until the last one or until `stop` is set, which ends the run after the step in progress.
///
/// # Errors
/// The data, a checkpoint or a step fails.
pub fn train(
    session: &mut Session,
    data: &Data,
    options: &TrainOptions,
    stop: &AtomicBool,
    mut report: impl FnMut(&StepReport),
) -> Result<Ending> {
    if let Some(steps) = data.steps().filter(|steps| *steps < options.last_step) {
        let wanted = options.last_step;
        return Err(RuntimeError::input(format!("the data has {steps} steps, {wanted} were asked for")));
    }
    let mut done = options.first_step.saturating_sub(1);
    let mut saved = None;
    agree(session, data, options)?;
    let fingerprint = options.checkpoints.as_ref().map_or(Ok(String::new()), |_| data.fingerprint())?;
    for step in options.first_step..=options.last_step {
        if session.any(stop.load(Ordering::Relaxed))? {
            break;
        }
        let start = Instant::now();
        data.feed(session, step)?;
        session.step(step, options.seed)?;
        report(&step_report(session, step, start.elapsed().as_secs_f64())?);
        done = step;
        if let Some(checkpoints) = &options.checkpoints
            && checkpoints.interval > 0
            && step % checkpoints.interval == 0
        {
            let progress = Progress { step, seed: options.seed };
            checkpoint::save(session, &checkpoints.folder, progress, &fingerprint)?;
            saved = Some(step);
        }
    }
    if let Some(checkpoints) = &options.checkpoints
        && done >= options.first_step
        && saved != Some(done)
    {
        let progress = Progress { step: done, seed: options.seed };
        checkpoint::save(session, &checkpoints.folder, progress, &fingerprint)?;
    }
    // Nobody ends before the last checkpoint is written.
    session.agree("the end of the run", done)?;
    Ok(if done >= options.last_step { Ending::Finished } else { Ending::Stopped { step: done } })
}

/// Makes sure that all processes are about to train the same.
fn agree(session: &Session, data: &Data, options: &TrainOptions) -> Result<()> {
    if session.is_alone() {
        return Ok(());
    }
    session.agree("where they run (`--device`)", u64::from(session.is_on_device()))?;
    session.agree("their data (`--data`)", data.digest()?)?;
    session.agree("what they start from (`--weights`, or the checkpoint)", options.origin)?;
    session.agree("the seed", options.seed)?;
    session.agree("the first step, as their checkpoints have it", options.first_step)?;
    session.agree("the number of steps (`--steps`)", options.last_step)?;
    let interval = options.checkpoints.as_ref().map_or(0, |checkpoints| checkpoints.interval + 1);
    session.agree("when to write checkpoints", interval)
}

fn step_report(session: &Session, step: u64, seconds: f64) -> Result<StepReport> {
    let tokens = session.program().inputs.iter().find(|input| input.name == "tokens");
    let tokens = tokens.map_or(0, |input| input.layout.global_elements());
    Ok(StepReport {
        step,
        loss: session.scalar("loss")?,
        grad_norm: session.scalar("grad_norm")?,
        lr: session.scalar("lr")?,
        tokens,
        tokens_per_s: tokens as f64 / seconds.max(1e-9),
        step_ms: seconds * 1e3,
        peak_bytes: session.rank_bytes(),
    })
}

/// Runs one step on given inputs and returns all outputs by name, one for each layer of a stack.
///
/// # Errors
/// Inputs are missing, left over or don't fit (all are listed), or the step fails.
pub fn evaluate(
    session: &mut Session,
    inputs: &IndexMap<String, HostTensor>,
    seed: u64,
) -> Result<IndexMap<String, HostTensor>> {
    let mut problems = Vec::new();
    for input in session.program().inputs.iter().filter(|input| !inputs.contains_key(&input.name)) {
        problems.push(format!("input `{}` {:?} is missing", input.name, input.layout.global_shape()));
    }
    for (name, tensor) in inputs {
        match session.set_input(name, tensor) {
            Ok(()) => {}
            Err(RuntimeError::Input(lines)) => problems.extend(lines),
            Err(error) => return Err(error),
        }
    }
    if !problems.is_empty() {
        return Err(RuntimeError::Input(problems));
    }
    session.step(1, seed)?;
    outputs(session)
}

/// All outputs of the last step by name, one for each layer of a stack.
///
/// # Errors
/// What a device says.
pub fn outputs(session: &Session) -> Result<IndexMap<String, HostTensor>> {
    let mut all = IndexMap::new();
    for output in &session.program().outputs {
        all.extend(unstack(&output.name, session.output(output)?));
    }
    Ok(all)
}
