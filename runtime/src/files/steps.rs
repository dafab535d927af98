//! Safetensors files that hold the inputs of several steps, for exact comparisons.
//!
//! Each input is a tensor of its name with one more dimension in front, the step. Where there are
//! sequences of `tokens` one longer than the model's, they give `tokens` and `labels` both.

use std::path::PathBuf;

use super::data::{LABELS, TOKENS};
use super::safetensors::TensorFile;
use super::values::{IndexBound, input_fault};
use crate::error::{Result, RuntimeError};
use crate::program::{Input, Program};
use crate::session::same_order;

/// Tensors whose leading dimension counts steps.
#[derive(Debug)]
pub struct StepData {
    /// Files with the number of steps in each.
    files: Vec<(TensorFile, u64)>,
    /// What integers may be.
    pub(super) bounds: Vec<IndexBound>,
}

/// How an input is taken from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supply {
    /// One step of the tensor of the input's name.
    Whole,
    /// The tokens of each sequence from this one on, as many as the input has.
    From(usize),
}

impl StepData {
    /// Opens files and checks that each has every input of the program.
    ///
    /// # Errors
    /// A file can't be read or lacks an input.
    pub fn open(paths: &[PathBuf], program: &Program) -> Result<Self> {
        let open = |path: &PathBuf| {
            let file = TensorFile::open(path)?;
            let steps = steps_of(&file, program)?;
            Ok((file, steps))
        };
        Ok(Self { files: paths.iter().map(open).collect::<Result<_>>()?, bounds: Vec::new() })
    }

    /// Number of steps in all files.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.files.iter().map(|(_, steps)| steps).sum()
    }

    /// The bytes of each input for a step, the first being 1.
    ///
    /// # Errors
    /// There is no such step, or the file can't be read.
    pub fn batch(&self, program: &Program, step: u64) -> Result<Vec<Vec<u8>>> {
        let mut index = step.saturating_sub(1);
        for (file, steps) in &self.files {
            if index < *steps {
                let read = |input| self.checked(file, input, index, step);
                return program.inputs.iter().map(read).collect();
            }
            index -= steps;
        }
        let steps = self.steps();
        Err(RuntimeError::input(format!("the data has {steps} steps, so there is none for step {step}")))
    }

    /// The bytes of an input for a step, which hold no index out of range and no NaN.
    fn checked(&self, file: &TensorFile, input: &Input, index: u64, step: u64) -> Result<Vec<u8>> {
        let bytes = read_step(file, input, index)?;
        match input_fault(&input.name, input.layout.dtype, &bytes, &self.bounds) {
            Some(fault) => Err(RuntimeError::file(file.path(), &format!("step {step}: {fault}"))),
            None => Ok(bytes),
        }
    }

    /// What tells this data from other: all of it.
    pub(super) fn describe(&self, hasher: &mut blake3::Hasher) -> Result<()> {
        self.files.iter().try_for_each(|(file, _)| file.add_to(hasher))
    }
}

/// The number of steps in a file that has every input.
fn steps_of(file: &TensorFile, program: &Program) -> Result<u64> {
    let path = file.path().display();
    let mut problems = Vec::new();
    let mut counts = Vec::new();
    for input in &program.inputs {
        match supply(file, input) {
            Ok((name, _)) => counts.extend(file.entries()[name].shape.first()),
            Err(problem) => problems.push(format!("{path}: {problem}")),
        }
    }
    let first = counts.first().copied().unwrap_or(0);
    if let Some(other) = counts.iter().find(|&&count| count != first) {
        problems.push(format!("{path}: it has {first} steps of one input and {other} of another"));
    }
    if problems.is_empty() { Ok(first) } else { Err(RuntimeError::Input(problems)) }
}

/// Which tensor of a file feeds an input, and how.
fn supply<'a>(file: &TensorFile, input: &'a Input) -> std::result::Result<(&'a str, Supply), String> {
    let shape = input.layout.global_shape();
    if let Some(entry) = file.entries().get(&input.name)
        && let [_, rest @ ..] = entry.shape.as_slice()
        && same_order(&shape, rest)
    {
        return Ok((&input.name, Supply::Whole));
    }
    let first = match input.name.as_str() {
        TOKENS => Some(0),
        LABELS if !file.entries().contains_key(LABELS) => Some(1),
        _ => None,
    };
    if let Some(first) = first
        && let Some(entry) = file.entries().get(TOKENS)
        && let ([_, rows @ .., longer], Some(&length)) = (entry.shape.as_slice(), shape.last())
        && *longer == length + 1
        && rows.iter().product::<u64>() * length == input.layout.global_elements()
    {
        return Ok((TOKENS, Supply::From(first)));
    }
    let sizes: String = shape.iter().map(|size| format!(", {size}")).collect();
    let wanted = format!("[steps{sizes}]");
    Err(match file.entries().get(&input.name) {
        Some(entry) => {
            format!(
                "`{}` has shape {:?}, and {wanted} is wanted: one {shape:?} for each step",
                input.name, entry.shape
            )
        }
        None => format!("there is no `{}` of shape {wanted}, one {shape:?} for each step", input.name),
    })
}

/// The bytes of an input for a step of a file that has it, the first being 0.
fn read_step(file: &TensorFile, input: &Input, step: u64) -> Result<Vec<u8>> {
    let (name, supply) = supply(file, input).map_err(RuntimeError::Bug)?;
    let elements = file.entries()[name].shape[1..].iter().product::<u64>() as usize;
    let first = step as usize * elements;
    let bytes = file.read_part(name, input.layout.dtype, first..first + elements)?;
    match supply {
        Supply::Whole => Ok(bytes),
        Supply::From(first) => {
            let width = input.layout.dtype.bytes() as usize;
            let length = input.layout.global_shape().last().map_or(0, |&length| length as usize);
            let sequences = bytes.chunks_exact((length + 1) * width);
            Ok(sequences.flat_map(|sequence| &sequence[first * width..][..length * width]).copied().collect())
        }
    }
}
