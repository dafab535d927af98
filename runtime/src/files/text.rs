//! Text as tokens: the bytes of files, folders walked in order of name.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::cpu::memory::machine_bytes;
use crate::error::{Result, RuntimeError};

/// The bytes of a file, or of all text files in a folder and its folders, one behind the other.
/// In folders, hidden entries, links and files that are not UTF-8 are left out.
///
/// # Errors
/// Something can't be read.
pub fn read_text(path: &Path, into: &mut Vec<u8>) -> Result<()> {
    let failed = |error: std::io::Error| RuntimeError::file(path, &error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    // Devices may never end; a pipe does when its writer goes.
    if metadata.file_type().is_char_device() {
        return Err(RuntimeError::file(path, &"it is a device, not text"));
    }
    if metadata.is_dir() {
        for file in text_files(path)? {
            let start = into.len();
            read_file(&file, into)?;
            if std::str::from_utf8(&into[start..]).is_err() {
                into.truncate(start);
            }
        }
        return Ok(());
    }
    read_file(path, into)
}

/// Adds the bytes of a file, as long as all of them leave room in this machine's memory.
fn read_file(path: &Path, into: &mut Vec<u8>) -> Result<()> {
    let failed = |error: std::io::Error| RuntimeError::file(path, &error);
    let most = machine_bytes().map_or(u64::MAX, |bytes| bytes / 2);
    let left = most.saturating_sub(into.len() as u64);
    let read = File::open(path).and_then(|file| file.take(left.saturating_add(1)).read_to_end(into));
    if read.map_err(failed)? as u64 > left {
        let reason = format!(
            "text is kept in memory, and with this file it is more than {most} bytes; token files are not"
        );
        return Err(RuntimeError::file(path, &reason));
    }
    Ok(())
}

/// All plain files below a folder in order of path.
fn text_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| RuntimeError::file(folder, &error);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        entries.push(entry.map_err(failed)?);
    }
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        let kind = entry.file_type().map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if kind.is_dir() {
            files.extend(text_files(&entry.path())?);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}
