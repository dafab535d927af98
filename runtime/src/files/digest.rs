//! Digests of what files hold: they tell the data, the weights and the checkpoint of one process or run from those of another.
//!
//! Of a large file they see its length and parts that are spread over it: a corpus of terabytes would take hours to read, and what is
//! mixed up differs in more than a few bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Result, RuntimeError};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;
/// Chunks that are read of a file; all of one that has no more.
const CHUNKS: u64 = 256;

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

/// Adds what a file holds, and how long it is, so that two files are not the same two cut elsewhere.
pub(super) fn add_file(hasher: &mut blake3::Hasher, file: &File, path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| RuntimeError::file(path, &error);
    let length = file.metadata().map_err(failed)?.len();
    hasher.update(&length.to_le_bytes());
    let chunks = length.div_ceil(CHUNK as u64);
    // The last one is read to the end of the file.
    let last = length.saturating_sub(CHUNK as u64);
    let mut chunk = vec![0; CHUNK];
    for number in 0..chunks.min(CHUNKS) {
        let offset = match chunks {
            0..=CHUNKS => number * CHUNK as u64,
            _ => (u128::from(number) * u128::from(last) / u128::from(CHUNKS - 1)) as u64,
        };
        let bytes = CHUNK.min((length - offset) as usize);
        file.read_exact_at(&mut chunk[..bytes], offset).map_err(failed)?;
        hasher.update(&chunk[..bytes]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Digests of files with a byte changed at each of these places, beside that of a file of zeros.
    fn digests(length: u64, places: &[u64]) -> (u64, Vec<u64>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        let file = File::create(&path).expect("a file");
        file.set_len(length).expect("it is made large without writing it");
        let plain = of_files(std::slice::from_ref(&path)).expect("it can be read");
        let changed = |&place: &u64| {
            file.write_all_at(&[1], place).expect("it is written");
            let digest = of_files(std::slice::from_ref(&path)).expect("it can be read");
            file.write_all_at(&[0], place).expect("it is written");
            digest
        };
        (plain, places.iter().map(changed).collect())
    }

    #[test]
    fn every_byte_of_a_small_file_counts() {
        let length = 3 * CHUNK as u64 + 5;
        let (plain, changed) = digests(length, &[0, CHUNK as u64 - 1, CHUNK as u64, length - 6, length - 1]);
        assert!(changed.iter().all(|&digest| digest != plain));
        assert_ne!(plain, digests(length - 1, &[]).0);
    }

    #[test]
    fn both_ends_of_a_large_file_count_and_its_length() {
        let length = 2 * CHUNKS * CHUNK as u64 + 5;
        let (plain, changed) = digests(length, &[0, length - 1]);
        assert!(changed.iter().all(|&digest| digest != plain));
        assert_ne!(plain, digests(length - 1, &[]).0);
        let empty = digests(0, &[]).0;
        assert_ne!(plain, empty);
    }

    #[test]
    fn files_that_are_cut_elsewhere_are_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let written = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("it is written");
            path
        };
        let digest = |paths: &[PathBuf]| of_files(paths).expect("they can be read");
        let one = digest(&[written("a", b"ab"), written("b", b"c")]);
        assert_ne!(one, digest(&[written("c", b"a"), written("d", b"bc")]));
        assert_eq!(one, digest(&[written("e", b"ab"), written("f", b"c")]));
    }
}
