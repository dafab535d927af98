//! NVIDIA's libraries: where they may lie, opening them by absolute path, and what they must hold before the first call.
//!
//! `cudarc` opens a library by its name at the first call, and panics where it or a function is missing. So each is opened here first, its functions
//! are looked for, and that the name leads to the same library is made sure of.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use libloading::Library;

/// A library to look for.
pub struct Wanted {
    /// What to call it.
    pub name: &'static str,
    /// Its file.
    pub file: &'static str,
    /// The functions that are called.
    pub functions: &'static [&'static str],
    /// How to get it, as the last words of a message.
    pub how_to_get_it: &'static str,
}

/// The folders to look into, in this order.
#[derive(Clone, Debug)]
pub struct Search {
    folders: Vec<PathBuf>,
    loader: Loader,
}

/// Whether the system's loader, which knows of more folders, is asked where none has a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loader {
    Asked,
    NotAsked,
}

/// Where systems and containers put a driver's libraries.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
];

impl Search {
    /// In these folders only.
    #[must_use]
    pub fn in_folders(folders: Vec<PathBuf>) -> Self {
        Self { folders, loader: Loader::NotAsked }
    }

    /// Where the environment says, then where systems put libraries: the variable `ahead`, if there is one, names folders before `LD_LIBRARY_PATH`.
    #[must_use]
    pub fn of_environment(ahead: Option<&str>) -> Self {
        let paths = |name: &str| {
            let named = std::env::var_os(name).unwrap_or_default();
            std::env::split_paths(&named).filter(|folder| !folder.as_os_str().is_empty()).collect::<Vec<_>>()
        };
        let named = ahead.map(paths).unwrap_or_default();
        let packaged = named.iter().flat_map(|folder| packages_below(folder)).collect::<Vec<_>>();
        let folders = named.into_iter().chain(packaged).chain(paths("LD_LIBRARY_PATH"));
        let mut folders: Vec<PathBuf> = folders.chain(FOLDERS.map(PathBuf::from)).collect();
        let mut seen = std::collections::BTreeSet::new();
        folders.retain(|folder| seen.insert(folder.clone()));
        Self { folders, loader: Loader::Asked }
    }
}

/// The folders of NVIDIA's Python packages in an environment.
fn packages_below(prefix: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions
        .map(|entry| entry.path().join("site-packages").join("nvidia"))
        .flat_map(|nvidia| [nvidia.join("nccl").join("lib"), nvidia.join("cu13").join("lib")])
        .filter(|folder| folder.is_dir())
        .collect();
    folders.sort();
    folders
}

/// A library that is open for as long as the process lives.
pub struct Opened {
    /// Where it is.
    pub path: PathBuf,
    library: Library,
}

impl Opened {
    /// Looks for a library, opens it, and looks for its functions.
    ///
    /// # Errors
    /// What was looked for, where, and how to get it.
    pub fn find(wanted: &Wanted, search: &Search) -> Result<Self, String> {
        let Wanted { name, file, functions, how_to_get_it } = wanted;
        let folder = search.folders.iter().find(|folder| folder.join(file).exists());
        let path = match folder {
            Some(folder) => std::path::absolute(folder.join(file)).unwrap_or_else(|_| folder.join(file)),
            None => PathBuf::from(file),
        };
        let nowhere = || {
            let list: String = search.folders.iter().map(|at| format!("\n  {}", at.display())).collect();
            format!("{name} is missing: {file} was not found; looked in:{list}\n{how_to_get_it}")
        };
        if folder.is_none() && search.loader == Loader::NotAsked {
            return Err(nowhere());
        }
        // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no preconditions.
        let library = unsafe { Library::new(&path) }.map_err(|error| match folder {
            Some(_) => format!("{name} can't be loaded: {}: {error}", path.display()),
            None => nowhere(),
        })?;
        let opened = Self { path, library };
        let missing: Vec<&str> =
            functions.iter().copied().filter(|function| opened.address(function).is_none()).collect();
        if missing.is_empty() {
            return Ok(opened);
        }
        Err(format!(
            "{name} is too old: {} lacks {}\n{how_to_get_it}",
            opened.path.display(),
            missing.join(", ")
        ))
    }

    /// Where a function is.
    pub fn address(&self, function: &str) -> Option<*mut c_void> {
        address(&self.library, function)
    }

    /// Keeps the library open for ever, once it is sure that `by_name`, which opens libraries by their names, leads to it.
    ///
    /// # Errors
    /// It leads elsewhere.
    pub fn keep(self, function: &str, by_name: Option<&Library>) -> Result<PathBuf, String> {
        let found = by_name.and_then(|library| address(library, function));
        let is_same = found.is_some() && found == self.address(function);
        let Self { path, library } = self;
        std::mem::forget(library);
        if is_same {
            return Ok(path);
        }
        let shown = path.display();
        Err(format!(
            "{shown} is open, but its name leads to another library; put its folder first in LD_LIBRARY_PATH"
        ))
    }
}

fn address(library: &Library, function: &str) -> Option<*mut c_void> {
    // SAFETY: the symbol is only looked at, not called.
    let symbol = unsafe { library.get::<*mut c_void>(function.as_bytes()) }.ok()?;
    // SAFETY: the library stays open, and the address is not followed.
    Some(unsafe { symbol.into_raw() }.as_raw_ptr())
}
