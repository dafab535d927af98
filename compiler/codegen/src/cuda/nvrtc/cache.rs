//! Compiled files kept on disk, by what they were made of: source, options and the compiler's version.
//!
//! A cache is never an error: what can't be read is compiled again, what can't be written is not kept.

use super::Binary;
use std::path::PathBuf;

/// A folder with compiled files.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// Changes when the form of a kept file does.
const FORM: &str = "dtlc nvrtc cache 2";

/// The name of what these make.
pub(super) fn key(version: (i32, i32), options: &[String], source: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    let version = format!("{}.{}", version.0, version.1);
    let parts = [FORM, &version].into_iter().chain(options.iter().map(String::as_str)).chain([source]);
    for part in parts {
        // With the length ahead, no two lists of parts read the same.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

impl Cache {
    /// Keeps files in `folder`, which need not be there yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// What is kept under a key.
    pub(super) fn get(&self, key: &str) -> Option<Binary> {
        let bytes = std::fs::read(self.folder.join(key)).ok()?;
        let (check, payload) = bytes.split_at_checked(blake3::OUT_LEN)?;
        if blake3::hash(payload).as_bytes() != check {
            return None;
        }
        postcard::from_bytes(payload).ok()
    }

    /// Keeps `binary`; another process sees all of it or nothing.
    pub(super) fn put(&self, key: &str, binary: &Binary) {
        let Ok(payload) = postcard::to_stdvec(binary) else { return };
        let mut bytes = blake3::hash(&payload).as_bytes().to_vec();
        bytes.extend(payload);
        let thread = format!("{:?}", std::thread::current().id());
        let number: String = thread.chars().filter(char::is_ascii_digit).collect();
        let unfinished = self.folder.join(format!("{key}.{}.{number}", std::process::id()));
        let kept = std::fs::create_dir_all(&self.folder)
            .and_then(|()| std::fs::write(&unfinished, &bytes))
            .and_then(|()| std::fs::rename(&unfinished, self.folder.join(key)));
        if kept.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, key};
    use crate::cuda::nvrtc::Binary;

    #[test]
    fn what_is_kept_is_found_and_what_is_damaged_is_not() {
        let folder = std::env::temp_dir().join(format!("dtlc-cache-{}", std::process::id()));
        let cache = Cache::new(folder.clone());
        let binary = Binary { ptx: "p".to_owned(), cubin: vec![1, 2, 3], log: String::new() };
        let key = key((13, 0), &["--std=c++17".to_owned()], "source");
        assert_eq!(cache.get(&key), None);
        cache.put(&key, &binary);
        assert_eq!(cache.get(&key), Some(binary));
        let path = folder.join(&key);
        let mut bytes = std::fs::read(&path).expect("what was kept");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).expect("a file of ours");
        assert_eq!(cache.get(&key), None);
        std::fs::remove_dir_all(folder).expect("a folder of ours");
    }

    #[test]
    fn every_part_counts() {
        let options = |text: &str| vec![text.to_owned()];
        let keys = [
            key((13, 0), &options("a"), "b"),
            key((13, 1), &options("a"), "b"),
            key((13, 0), &options("ab"), ""),
            key((13, 0), &options("a"), "c"),
        ];
        for (position, key) in keys.iter().enumerate() {
            assert!(!keys[..position].contains(key));
        }
    }
}
