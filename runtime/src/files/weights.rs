//! Parameters in files, by name: loading into a session's shards and saving from them.
//!
//! A file may hold a stack as one tensor or one tensor for each layer, under any of the names that
//! the program lists; dimensions may be merged or split as long as the elements' order is the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indexmap::{IndexMap, IndexSet};

use super::names::{Member, members, rolled};
use super::safetensors::{Item, TensorFile, write};
use super::values::{Refused, find_float};
use crate::error::{Result, RuntimeError};
use crate::program::{Initial, Program, Role, StateId, StateTensor, TensorName};
use crate::session::{Session, same_order};
use crate::tensor::HostTensor;

/// A prefix that all parameters in a file may share; what lacks it in such a file is no parameter.
const PREFIX: &str = "param.";

/// Where one parameter is found: files and names in them, in the order of the stack.
type Found = Vec<Place>;

/// A tensor in one of the files.
#[derive(Clone)]
struct Place {
    file: usize,
    /// Its name in the file, prefix included.
    name: String,
}

/// Sets every parameter, its master copy and what starts as a copy of it from files.
///
/// # Errors
/// A file can't be read, or parameters are missing, left over or of another shape; all of them are
/// listed, and nothing is changed. A value that is not finite ends it where it is found.
pub fn load_weights(session: &mut Session, paths: &[PathBuf]) -> Result<()> {
    let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>>>()?;
    let mut problems = Vec::new();
    let names = NameIndex::new(&files, &mut problems);
    let program = session.program().clone();
    let mut found: IndexMap<&str, Found> = IndexMap::new();
    let mut used = IndexSet::new();
    for tensor in program.state.iter().filter(|tensor| tensor.role == Role::Parameter) {
        match names.find(tensor, &files, &mut used) {
            Ok(place) => drop(found.insert(&tensor.path, place)),
            Err(problem) => problems.push(problem),
        }
    }
    for (name, place) in names.tensors.iter().filter(|(name, _)| !used.contains(*name)) {
        let path = files[place.file].path().display();
        problems.push(format!("{path}: `{name}` is no parameter of `{}`", program.name));
    }
    if !problems.is_empty() {
        return Err(RuntimeError::Input(problems));
    }
    let mut whole = Vec::new();
    for tensor in &program.state {
        if let Some(place) = source_path(&program, tensor).and_then(|path| found.get(path)) {
            whole.clear();
            for Place { file, name } in place {
                let before = whole.len();
                files[*file].read_onto(name, tensor.layout.dtype, &mut whole)?;
                let read = &whole[before..];
                if let Some((at, value)) = find_float(tensor.layout.dtype, read, Refused::NotFinite) {
                    let reason = format!("`{name}` holds {value} (element {at})");
                    return Err(RuntimeError::file(files[*file].path(), &reason));
                }
            }
            session.set_state_bytes(tensor, &whole)?;
        }
    }
    Ok(())
}

/// The path of the parameter whose file value a state tensor takes, if it takes one.
fn source_path<'a>(program: &'a Program, tensor: &'a StateTensor) -> Option<&'a str> {
    match (&tensor.role, tensor.initial) {
        (Role::Parameter | Role::Master, _) => Some(&tensor.path),
        (Role::Optimizer(_) | Role::Buffer(_), Initial::CopyOf(source)) => {
            let source = &program.state[source.index()];
            matches!(source.role, Role::Parameter | Role::Master).then_some(source.path.as_str())
        }
        (Role::Optimizer(_) | Role::Buffer(_), _) => None,
    }
}

/// Which file has which name.
struct NameIndex {
    /// Places by the name without prefix.
    tensors: IndexMap<String, Place>,
}

impl NameIndex {
    /// Notes a problem for each name that stands in two files.
    fn new(files: &[TensorFile], problems: &mut Vec<String>) -> Self {
        let mut tensors: IndexMap<String, Place> = IndexMap::new();
        for (index, file) in files.iter().enumerate() {
            let prefixed = file.entries().keys().any(|name| name.starts_with(PREFIX));
            for name in file.entries().keys() {
                let short = if prefixed { name.strip_prefix(PREFIX) } else { Some(name.as_str()) };
                let Some(short) = short else { continue };
                let place = Place { file: index, name: name.clone() };
                if let Some(other) = tensors.insert(short.to_owned(), place) {
                    let (path, other) = (file.path().display(), files[other.file].path().display());
                    problems.push(format!("`{name}` is in {path} and in {other}"));
                }
            }
        }
        Self { tensors }
    }

    /// Where a parameter is, or why it is nowhere. Notes the names it uses.
    fn find(
        &self,
        tensor: &StateTensor,
        files: &[TensorFile],
        used: &mut IndexSet<String>,
    ) -> std::result::Result<Found, String> {
        let shape = tensor.layout.global_shape();
        let whole = TensorName::plain(&tensor.path);
        for name in tensor.names.iter().chain([&whole]) {
            let stack = members(name, &shape);
            let whole = Member { name: rolled(name), index: 0 };
            for (candidates, shape) in [(&stack[..], &shape[name.first.len()..]), (&[whole], &shape[..])] {
                if candidates.iter().any(|member| self.tensors.contains_key(&member.name)) {
                    used.extend(candidates.iter().map(|member| member.name.clone()));
                    return self.check(candidates, shape, files);
                }
            }
        }
        let wanted =
            tensor.names.first().map_or(tensor.path.clone(), |name| name.template.replace("{}", "0"));
        let of_one = tensor.names.first().map_or(0, |name| name.first.len());
        Err(format!("`{wanted}` {:?} is in no file", &shape[of_one.min(shape.len())..]))
    }

    fn check(
        &self,
        members: &[Member],
        shape: &[u64],
        files: &[TensorFile],
    ) -> std::result::Result<Found, String> {
        let mut found = Found::new();
        for member in members {
            let Some(place) = self.tensors.get(&member.name) else {
                return Err(format!("`{}` {shape:?} is in no file", member.name));
            };
            let file = &files[place.file];
            let given = &file.entries()[&place.name].shape;
            if !same_order(shape, given) {
                let (path, name) = (file.path().display(), &place.name);
                return Err(format!("{path}: `{name}` has shape {given:?}, the program {shape:?}"));
            }
            found.push(place.clone());
        }
        Ok(found)
    }
}

/// The parameters by name, one for each layer of a stack, with the bits of the master copy where
/// there is one.
///
/// # Errors
/// Two parameters with one name; what a device says.
pub fn parameters(session: &Session) -> Result<IndexMap<String, HostTensor>> {
    let mut all = IndexMap::new();
    for (holder, name) in holders(session.program()) {
        for (name, part) in unstack(&name, session.state(holder)?) {
            if all.insert(name.clone(), part).is_some() {
                return Err(RuntimeError::Bug(format!("two parameters are named `{name}`")));
            }
        }
    }
    Ok(all)
}

/// For each parameter the state that has it most exactly, its master copy where there is one, and its name in files.
#[must_use]
pub fn holders(program: &Program) -> Vec<(StateId, TensorName)> {
    let states = program.state.iter().enumerate();
    let holder = |(index, tensor): (usize, &StateTensor)| {
        let master = |other: &StateTensor| other.role == Role::Master && other.path == tensor.path;
        let source = program.state.iter().position(master).unwrap_or(index);
        let name = tensor.names.first().cloned().unwrap_or_else(|| TensorName::plain(&tensor.path));
        (StateId(source as u32), name)
    };
    states.filter(|(_, tensor)| tensor.role == Role::Parameter).map(holder).collect()
}

/// A tensor's parts under their names; the stacked dimensions are gone from their shapes.
#[must_use]
pub fn unstack(name: &TensorName, whole: HostTensor) -> Vec<(String, HostTensor)> {
    let names = members(name, &whole.shape);
    let shape = whole.shape[name.first.len()..].to_vec();
    let bytes = whole.bytes.len() / names.len().max(1);
    let part = |member: Member| {
        let bytes = whole.bytes[member.index * bytes..][..bytes].to_vec();
        (member.name, HostTensor { dtype: whole.dtype, shape: shape.clone(), bytes })
    };
    names.into_iter().map(part).collect()
}

/// Writes tensors by name to a file, whole or not at all.
///
/// # Errors
/// The system refuses.
pub fn save_tensors(path: &Path, tensors: &IndexMap<String, HostTensor>) -> Result<()> {
    let items = tensors.iter().map(|(name, tensor)| Item::of(name, tensor)).collect();
    write(path, items, &BTreeMap::new())
}
