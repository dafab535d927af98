//! Writes files whole or not at all: beside the target, to the disk, then in its place. The one place that does.
//!
//! A link is followed and stays, a file that is there keeps who may read it, and a device or a pipe is written as it is:
//! none of them is replaced by a plain file.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Result, RuntimeError};

/// More links behind each other than the system follows.
const LINKS: usize = 40;

/// What a file is for; it says who may do what with a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be read.
    Document,
    /// To be executed.
    Executable,
}

/// Writes a file with what `fill` writes to it, so that a reader sees the old or the new one. A crash leaves one of them too.
///
/// # Errors
/// The system refuses, or `fill` fails; a plain file is as it was then.
pub fn write_whole(path: &Path, purpose: Purpose, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let failed = |error: io::Error| RuntimeError::file(path, &error);
    let known = fs::metadata(path).ok();
    if known.as_ref().is_some_and(|known| !known.is_file() && !known.is_dir()) {
        return fill(&mut File::options().write(true).open(path).map_err(failed)?);
    }
    let target = followed(path).map_err(failed)?;
    let name = target.file_name();
    let name = name.ok_or_else(|| failed(io::Error::new(io::ErrorKind::InvalidInput, "it names no file")))?;
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.part", std::process::id()));
    let beside = folder.join(beside);
    let permissions = known.map(|known| kept(&known.permissions(), purpose));
    let written = write_through(path, &beside, (purpose, permissions), fill)
        .and_then(|()| fs::rename(&beside, &target).map_err(failed));
    if written.is_err() {
        // It may not even exist; the first error is the one to tell.
        let _ = fs::remove_file(&beside);
    }
    written?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

/// The file that a link leads to, through further ones, be it there or not.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&target) else { return Ok(target) };
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "its links lead in a circle"))
}

/// What may be done with a file that takes the place of another: the same, and to execute it, for those who may read it, if
/// that is what it is for.
fn kept(known: &Permissions, purpose: Purpose) -> Permissions {
    let mode = known.mode() & 0o7777;
    Permissions::from_mode(match purpose {
        Purpose::Document => mode,
        Purpose::Executable => mode | (mode & 0o444) >> 2,
    })
}

fn write_through(
    path: &Path,
    beside: &Path,
    (purpose, permissions): (Purpose, Option<Permissions>),
    fill: impl FnOnce(&mut File) -> Result<()>,
) -> Result<()> {
    let failed = |error: io::Error| RuntimeError::file(path, &error);
    let mode = match (&permissions, purpose) {
        // Until it has those of the other, it is nobody else's.
        (Some(_), _) => 0o600,
        (None, Purpose::Document) => 0o666,
        (None, Purpose::Executable) => 0o777,
    };
    let opened = File::options().write(true).create(true).truncate(true).mode(mode).open(beside);
    let mut file = opened.map_err(failed)?;
    fill(&mut file)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions).map_err(failed)?;
    }
    file.sync_all().map_err(failed)
}
