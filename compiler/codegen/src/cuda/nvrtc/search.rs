//! Where NVRTC may lie, and loading it from there.
//!
//! The library's own dependency is found by name only among what is loaded, so both are opened here by absolute path;
//! whoever asks for the library by name afterwards gets this one.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names folders with CUDA's libraries, ahead of all others.
pub const LIBRARIES_VARIABLE: &str = "DTLC_CUDA_LIBS";

/// What is opened, in this order.
const FILES: [&str; 2] = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"];

/// The last words of a message.
pub(super) const HOW_TO_GET_IT: &str = "get it with `pip install nvidia-cuda-nvrtc==13.0.88`, \
    and set DTLC_CUDA_LIBS to the environment's folder or to the one with the library, where it isn't found by itself";

/// The folders to look into.
#[derive(Clone, Debug)]
pub struct Search {
    folders: Vec<PathBuf>,
}

/// NVRTC is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Where it was looked for.
    pub folders: Vec<PathBuf>,
    /// Why a file that is there could not be opened.
    pub unusable: Option<String>,
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unusable {
            Some(reason) => write!(formatter, "NVRTC can't be loaded: {reason}")?,
            None => {
                write!(formatter, "NVRTC ({} and {}) was not found; looked in:", FILES[1], FILES[0])?;
                for folder in &self.folders {
                    write!(formatter, "\n  {}", folder.display())?;
                }
                if self.folders.is_empty() {
                    write!(formatter, " no folder")?;
                }
            }
        }
        write!(formatter, "\n{HOW_TO_GET_IT}")
    }
}

impl Search {
    /// In these folders only.
    pub fn in_folders(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }

    /// Where the environment says: `DTLC_CUDA_LIBS`, the toolkit, the packages of an active or the default Python.
    pub fn of_environment() -> Self {
        let mut folders = Vec::new();
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(named) = variable(LIBRARIES_VARIABLE) {
            for folder in std::env::split_paths(&named) {
                folders.push(folder.clone());
                folders.extend(below(&folder));
            }
        }
        for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from) {
            folders.push(toolkit.join("lib64"));
        }
        folders.push(PathBuf::from("/usr/local/cuda/lib64"));
        if let Some(environment) = variable("VIRTUAL_ENV") {
            folders.extend(below(Path::new(&environment)));
        }
        if let Some(path) = variable("PATH") {
            let mut interpreters =
                std::env::split_paths(&path).filter(|folder| folder.join("python3").exists());
            if let Some(prefix) = interpreters.next().as_deref().and_then(Path::parent) {
                folders.extend(below(prefix));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        folders.retain(|folder| seen.insert(folder.clone()));
        Self { folders }
    }

    /// The folders, in the order in which they are looked into.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Opens the library; it stays open. The first call that succeeds decides for the whole process.
    ///
    /// # Errors
    /// It is in none of the folders, or can't be opened.
    pub(super) fn load(&self) -> Result<(), Missing> {
        static LOADED: OnceLock<()> = OnceLock::new();
        if LOADED.get().is_some() {
            return Ok(());
        }
        let holds_all = |folder: &&PathBuf| FILES.iter().all(|file| folder.join(file).is_file());
        let missing = |unusable| Missing { folders: self.folders.clone(), unusable };
        let Some(folder) = self.folders.iter().find(holds_all) else { return Err(missing(None)) };
        for file in FILES {
            let path = std::path::absolute(folder.join(file)).unwrap_or_else(|_| folder.join(file));
            // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no preconditions.
            let library = unsafe { libloading::Library::new(&path) };
            match library {
                Ok(library) => std::mem::forget(library),
                Err(error) => return Err(missing(Some(format!("{}: {error}", path.display())))),
            }
        }
        // SAFETY: as above; it opens the same library by its name.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            let reason = format!("{} is open, but not found by its name", FILES[1]);
            return Err(missing(Some(reason)));
        }
        let _ = LOADED.set(());
        Ok(())
    }
}

/// The folders of NVIDIA's wheels in the environment at `prefix`, or below `prefix` itself.
fn below(prefix: &Path) -> Vec<PathBuf> {
    let mut packages = vec![prefix.to_owned()];
    let versions = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    versions.sort();
    let is_python = |path: &&PathBuf| {
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python3"))
    };
    for version in versions.iter().filter(is_python) {
        packages.extend(["site-packages", "dist-packages"].map(|folder| version.join(folder)));
    }
    let libraries = packages.iter().map(|packages| packages.join("nvidia").join("cu13").join("lib"));
    libraries.filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Missing, Search};
    use std::path::PathBuf;

    #[test]
    fn the_message_says_what_was_looked_for_where_and_how_to_get_it() {
        let folders = vec![PathBuf::from("nowhere"), PathBuf::from("elsewhere")];
        let text = Missing { folders, unusable: None }.to_string();
        for part in ["libnvrtc.so.13", "\n  nowhere", "\n  elsewhere", "pip install", "DTLC_CUDA_LIBS"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn an_environment_always_gives_somewhere_to_look() {
        assert!(!Search::of_environment().folders.is_empty());
    }
}
