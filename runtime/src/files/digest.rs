//! Digests of what files hold: they tell the data, the weights and the checkpoint of one process or run from those of another.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Result, RuntimeError};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// A digest of the contents of files, in their order; their names don't count.
///
/// # Errors
/// A file can't be read.
pub fn of_files(paths: &[PathBuf]) -> Result<u64> {
    let mut hasher = blake3::Hasher::new();
    for path in paths {
        let file = File::open(path).map_err(|error| RuntimeError::file(path, &error))?;
        add_file(&mut hasher, &file, path)?;
    }
    Ok(number(&hasher))
}

/// The first bytes of a digest, as a number.
#[must_use]
pub fn number(hasher: &blake3::Hasher) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Adds all that a file holds, and how long it is, so that two files are not the same two cut elsewhere.
pub(super) fn add_file(hasher: &mut blake3::Hasher, file: &File, path: &Path) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0u64;
    loop {
        let read = file.read_at(&mut chunk, offset).map_err(|error| RuntimeError::file(path, &error))?;
        if read == 0 {
            hasher.update(&offset.to_le_bytes());
            return Ok(());
        }
        hasher.update(&chunk[..read]);
        offset += read as u64;
    }
}
