//! Checkpoints: all state and the step's number in one safetensors file.
//!
//! Tensors are whole and without pads, under names that say role and path, so a checkpoint loads
//! under any sharding. A checkpoint is written beside its place and then moved there.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::safetensors::{Item, TensorFile, give, write};
use super::values::{Refused, find_float};
use crate::error::{Result, RuntimeError};
use crate::program::{Role, StateId, StateTensor};
use crate::session::{Session, same_order};

const FORMAT: &str = "dtlc-checkpoint-1";

/// What a checkpoint says besides its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The last step that is in it.
    pub step: u64,
    /// The seed of the run.
    pub seed: u64,
}

/// The file for a step in a checkpoint folder.
#[must_use]
pub fn path_of(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step:08}.safetensors"))
}

/// Keeps other runs from writing to a checkpoint folder for as long as the file is open. The system forgets it with the
/// process, however that ends.
///
/// # Errors
/// Another run writes to the folder, or the system refuses.
pub fn lock(folder: &Path) -> Result<File> {
    let failed = |error: std::io::Error| RuntimeError::file(folder, &error);
    let file = File::create(folder.join(".lock")).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RuntimeError::file(
            folder,
            &"another run writes its checkpoints to it; wait, or name another folder",
        )),
        // Some file systems over a network have no locks.
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// The newest checkpoint in a folder, if there is one.
///
/// # Errors
/// The folder can't be read.
pub fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    if !folder.exists() {
        return Ok(None);
    }
    let failed = |error: std::io::Error| RuntimeError::file(folder, &error);
    let mut best: Option<(u64, PathBuf)> = None;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number = name.strip_prefix("step-").and_then(|name| name.strip_suffix(".safetensors"));
        if let Some(step) = number.and_then(|number| number.parse::<u64>().ok())
            && best.as_ref().is_none_or(|(newest, _)| step > *newest)
        {
            best = Some((step, path));
        }
    }
    Ok(best.map(|(_, path)| path))
}

/// What tells the data of the run that wrote a checkpoint from other; none where it does not say.
///
/// # Errors
/// The file can't be read.
pub fn data_of(path: &Path) -> Result<Option<String>> {
    Ok(TensorFile::open(path)?.metadata().get("data").cloned())
}

/// Writes all state into a folder, which is made if it is not there. `data` tells the run's data from other. Where there are
/// several processes all call this, and that of rank 0 writes.
///
/// # Errors
/// The system refuses; a process does not come; a value is not finite, so that the run is lost: nothing is written then.
pub fn save(session: &Session, folder: &Path, progress: Progress, data: &str) -> Result<PathBuf> {
    let path = path_of(folder, progress.step);
    let state = session.program().state.iter().enumerate();
    let items =
        state.map(|(index, tensor)| item(session, StateId(index as u32), tensor, progress.step)).collect();
    if !session.is_first() {
        give(items)?;
        return Ok(path);
    }
    std::fs::create_dir_all(folder).map_err(|error| RuntimeError::file(folder, &error))?;
    let metadata = BTreeMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("program".to_owned(), session.program().name.clone()),
        ("step".to_owned(), progress.step.to_string()),
        ("seed".to_owned(), progress.seed.to_string()),
        ("data".to_owned(), data.to_owned()),
    ]);
    write(&path, items, &metadata)?;
    Ok(path)
}

/// A state tensor that is saved after a step, in which all has to be finite.
fn item<'a>(session: &'a Session, id: StateId, tensor: &'a StateTensor, step: u64) -> Item<'a> {
    let bytes = move || {
        let whole = session.collect_state(id)?;
        let bytes = whole.map(|whole| whole.bytes).unwrap_or_default();
        match find_float(tensor.layout.dtype, &bytes, Refused::NotFinite) {
            None => Ok(bytes),
            Some((at, value)) => Err(RuntimeError::Fault(format!(
                "after step {step} `{}` holds {value} (element {at}): the run is lost, so it ends here, and no checkpoint is \
                 written of it",
                key(tensor)
            ))),
        }
    };
    Item {
        name: key(tensor),
        dtype: tensor.layout.dtype,
        shape: tensor.layout.global_shape(),
        bytes: Box::new(bytes),
    }
}

/// Sets all state from a checkpoint, which may have been written under another sharding.
///
/// # Errors
/// The file can't be read, is no checkpoint, or its state is not this program's; all differences
/// are listed, and nothing is changed.
pub fn load(session: &mut Session, path: &Path) -> Result<Progress> {
    let file = TensorFile::open(path)?;
    let metadata = file.metadata();
    if metadata.get("format").map(String::as_str) != Some(FORMAT) {
        return Err(RuntimeError::file(path, &"it is no checkpoint of this version of dtlc"));
    }
    let number = |key: &str| {
        let number = metadata.get(key).and_then(|number| number.parse::<u64>().ok());
        number.ok_or_else(|| RuntimeError::file(path, &format!("it does not say its {key}")))
    };
    let progress = Progress { step: number("step")?, seed: number("seed")? };
    if progress.step == u64::MAX {
        return Err(RuntimeError::file(
            path,
            &format!("it says that it is of step {}, and none follows", u64::MAX),
        ));
    }
    let program = session.program().clone();
    let problems = differences(&file, &program.state);
    if !problems.is_empty() {
        return Err(RuntimeError::Input(problems));
    }
    let values = program.state.iter().map(|tensor| file.read(&key(tensor), tensor.layout.dtype));
    // All is read before anything is set.
    let values = values.collect::<Result<Vec<_>>>()?;
    for (tensor, value) in program.state.iter().zip(&values) {
        if let Some((at, number)) = find_float(tensor.layout.dtype, value, Refused::NotFinite) {
            let reason = format!(
                "`{}` holds {number} (element {at}): the run was lost before; go on from an earlier checkpoint",
                key(tensor)
            );
            return Err(RuntimeError::file(path, &reason));
        }
    }
    for (tensor, value) in program.state.iter().zip(values) {
        session.set_state_bytes(tensor, &value)?;
    }
    Ok(progress)
}

fn differences(file: &TensorFile, state: &[StateTensor]) -> Vec<String> {
    let path = file.path().display();
    let mut problems = Vec::new();
    let keys: Vec<String> = state.iter().map(key).collect();
    for (tensor, key) in state.iter().zip(&keys) {
        let shape = tensor.layout.global_shape();
        match file.entries().get(key) {
            None => problems.push(format!("{path}: `{key}` {shape:?} is missing")),
            Some(entry) if !same_order(&shape, &entry.shape) => {
                problems.push(format!("{path}: `{key}` has shape {:?}, the program {shape:?}", entry.shape));
            }
            Some(_) => {}
        }
    }
    let extra = file.entries().keys().filter(|name| !keys.contains(name));
    problems.extend(extra.map(|name| format!("{path}: `{name}` is no state of the program")));
    let ours = state.iter().any(|tensor| tensor.role == Role::Master);
    let theirs = file.entries().keys().any(|name| name.starts_with("master."));
    if ours != theirs {
        let keeps = |has: bool| if has { "keeps f32 masters" } else { "keeps no masters" };
        problems.push(format!(
            "{path}: this plan {}, the run that wrote it {}; a new run can start from its parameters: `--weights {path}`",
            keeps(ours),
            keeps(theirs)
        ));
    }
    problems
}

/// The name of a state tensor in a checkpoint.
fn key(tensor: &StateTensor) -> String {
    match &tensor.role {
        Role::Parameter => format!("param.{}", tensor.path),
        Role::Master => format!("master.{}", tensor.path),
        Role::Optimizer(name) => format!("optimizer.{name}.{}", tensor.path),
        Role::Buffer(name) => format!("buffer.{name}.{}", tensor.path),
    }
}
