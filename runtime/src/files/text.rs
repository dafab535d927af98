//! Text as tokens: the bytes of files, folders walked in order of name.

use std::path::{Path, PathBuf};

use crate::error::{Result, RuntimeError};

/// The bytes of a file, or of all text files in a folder and its folders, one behind the other.
/// In folders, hidden entries, links and files that are not UTF-8 are left out.
///
/// # Errors
/// Something can't be read.
pub fn read_text(path: &Path, into: &mut Vec<u8>) -> Result<()> {
    let failed = |error: std::io::Error| RuntimeError::file(path, &error);
    if std::fs::metadata(path).map_err(failed)?.is_dir() {
        for file in text_files(path)? {
            let bytes = std::fs::read(&file).map_err(|error| RuntimeError::file(&file, &error))?;
            if std::str::from_utf8(&bytes).is_ok() {
                into.extend(bytes);
            }
        }
        return Ok(());
    }
    into.extend(std::fs::read(path).map_err(failed)?);
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
