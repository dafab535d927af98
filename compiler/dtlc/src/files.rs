//! The compiler's files: sources in, with what a `use` names; results out, whole or not at all.
//!
//! Nothing else in the compiler touches the file system.

use crate::failure::Failure;
use dtlc_lang::{Code, Diagnostic, Loaded, Loader};
use dtlc_runtime::RuntimeError;
use dtlc_runtime::files::output::{Purpose, write_whole};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
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
    write_as(path, bytes, Purpose::Document)
}

/// The same for a file that can be executed.
///
/// # Errors
/// As [`write()`].
pub fn write_executable(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_as(path, bytes, Purpose::Executable)
}

/// Refuses a place to write to that is one of the files that are read, under whatever name.
///
/// # Errors
/// It is.
pub fn refuse_own_input<'a>(
    output: &Path,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Failure> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|known| (known.dev(), known.ino()));
    let Some(own) = identity(output) else { return Ok(()) };
    match inputs.into_iter().find(|input| identity(input) == Some(own)) {
        None => Ok(()),
        Some(input) => {
            let input = input.display();
            Err(unusable(
                output,
                &format!("`{input}` is read, and this would write over it; name another file"),
            ))
        }
    }
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

fn write_as(path: &Path, bytes: &[u8], purpose: Purpose) -> Result<(), Failure> {
    let fill = |file: &mut File| file.write_all(bytes).map_err(|error| RuntimeError::file(path, &error));
    Ok(write_whole(path, purpose, fill)?)
}
