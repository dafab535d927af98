//! The compiler's files: sources in, with what a `use` names; results out, whole or not at all.
//!
//! Nothing else in the compiler touches the file system.

use crate::failure::Failure;
use dtlc_lang::{Code, Diagnostic, Loaded, Loader};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A source file larger than this is no source file.
const SOURCE_LIMIT: u64 = 256 << 20;

/// Reads a file that the user named.
///
/// # Errors
/// A diagnostic: there is no such file, it is a directory, it can't be read, it never ends.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    try_read(path).map_err(|error| unusable(path, &error))
}

/// The failure that a file can't be used.
pub fn unusable(path: &Path, reason: &dyn Display) -> Failure {
    let diagnostic =
        Diagnostic::error(Code::UnusableFile, format!("`{}` can't be used: {reason}", path.display()));
    Failure::without_place(diagnostic)
}

/// Writes a file: beside it first, to the disk, then in its place, so that a reader sees the old or the new one.
///
/// # Errors
/// A diagnostic where the system refuses.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    try_write(path, bytes, Kind::Document).map_err(|error| unusable(path, &error))
}

/// The same for a file that can be executed.
///
/// # Errors
/// As [`write()`].
pub fn write_executable(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    try_write(path, bytes, Kind::Executable).map_err(|error| unusable(path, &error))
}

/// Finds `use a::b::…` as `a/b.dtl` beside the file that asks.
#[derive(Clone, Copy, Debug)]
pub struct FileLoader;

impl Loader for FileLoader {
    fn load(&self, from: &str, segments: &[&str]) -> Loaded {
        let mut path: PathBuf = Path::new(from).parent().map(Path::to_path_buf).unwrap_or_default();
        path.extend(segments);
        path.set_extension("dtl");
        match try_read(&path) {
            Ok(bytes) => Loaded::Found { name: path.display().to_string(), bytes },
            Err(error) if error.kind() == ErrorKind::NotFound => Loaded::Missing,
            Err(error) => Loaded::Failed(format!("{}: {error}", path.display())),
        }
    }
}

fn try_read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory, not a file"));
    }
    let mut bytes = Vec::new();
    file.take(SOURCE_LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SOURCE_LIMIT {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it is larger than 256 MiB"));
    }
    Ok(bytes)
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Document,
    Executable,
}

fn try_write(path: &Path, bytes: &[u8], kind: Kind) -> io::Result<()> {
    // A device or a pipe is written as it is: renaming would replace it.
    if fs::metadata(path).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
        return File::options().write(true).open(path)?.write_all(bytes);
    }
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it names no file"))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.part", std::process::id()));
    let beside = folder.join(beside);
    let written = write_through(&beside, bytes, kind).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // It may not even exist; the first error is the one to tell.
        let _ = fs::remove_file(&beside);
    }
    written?;
    File::open(folder)?.sync_all()
}

fn write_through(path: &Path, bytes: &[u8], kind: Kind) -> io::Result<()> {
    let mode = match kind {
        Kind::Document => 0o666,
        Kind::Executable => 0o777,
    };
    let mut file = File::options().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
