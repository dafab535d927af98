//! What fuzzing starts from: the repository's own files, what the compiler makes of them, and what once showed a fault.

use super::programs::HEADER_BYTES;
use crate::chain::{Mode, compile};
use crate::random::Case;
use dtlc::pipeline::Compilation;
use dtlc_ir::text;
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::{Path, PathBuf};

/// Random models among the seeds.
const RANDOM_CASES: u64 = 24;

/// Files of the language: models, plans, the standard library, samples of all constructs.
pub fn sources() -> Vec<Vec<u8>> {
    let mut found = files(&["lang/tests/syntax/samples", "stdlib", "examples", "compiler/dtlc/tests/files"]);
    found.extend(models());
    found
}

/// Files with a model in them, small ones first.
pub fn models() -> Vec<Vec<u8>> {
    let mut found = files(&["tests/cases", "compiler/dtlc/tests/files", "examples", "examples/golden"]);
    found.extend((0..RANDOM_CASES).map(|seed| Case::generate(seed).source().into_bytes()));
    found.sort_by_key(Vec::len);
    found
}

/// The IR's text at each stage of small models.
pub fn ir_texts() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for Compilation { logical, joint, sharded, scheduled, .. } in compilations() {
        let programs = [Some(logical), joint, sharded.map(|it| it.program), scheduled.map(|it| it.program)];
        found.extend(programs.into_iter().flatten().map(|program| text::print(&program).into_bytes()));
    }
    found
}

/// Artifacts of small models.
pub fn programs() -> Vec<Vec<u8>> {
    let assembled = compilations().into_iter().filter_map(|compilation| compilation.assembled);
    let mut found: Vec<Vec<u8>> = assembled
        .map(|assembled| {
            let mut program = assembled.program;
            // Code is bytes to the loader; a little of it leaves more of the mutations to the rest.
            program.code.truncate(64);
            for kernel in &mut program.kernels {
                (kernel.code_offset, kernel.code_bytes) = (0, 64);
            }
            program.to_bytes().expect("a compiled program is valid")
        })
        .collect();
    found.retain(|bytes| bytes.len() > HEADER_BYTES);
    found.sort_by_key(Vec::len);
    found
}

/// Small safetensors files of all types.
pub fn tensor_files() -> Vec<Vec<u8>> {
    let bytes: Vec<u8> = (0..48).collect();
    let types =
        [Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::I64, Dtype::U8, Dtype::BOOL, Dtype::F64, Dtype::U16];
    let mut found = Vec::new();
    for count in 0..=types.len() {
        let views = types.iter().take(count).enumerate().map(|(index, &dtype)| {
            let width = dtype.bitsize() / 8;
            let view = TensorView::new(dtype, vec![2, 3], &bytes[..6 * width]).expect("the bytes fit");
            (format!("layers.{index}.weight"), view)
        });
        found.push(safetensors::serialize(views, None).expect("they can be written"));
    }
    found
}

/// Inputs that once showed a fault of a target, by name.
///
/// # Panics
/// Where the folder can't be read.
pub fn findings(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = root().join("tests/fuzz").join(target);
    let mut paths = entries(&folder);
    paths.sort();
    let named = |path: PathBuf| (path.display().to_string(), read(&path));
    paths.into_iter().map(named).collect()
}

/// The kept cases, under both of their plans.
fn compilations() -> Vec<Compilation> {
    let mut paths = entries(&root().join("tests/cases"));
    paths.sort();
    let plans = |path: PathBuf| {
        let path = path.to_string_lossy().into_owned();
        ["one", "many"].map(|plan| compile(&path, plan, Mode::Train))
    };
    paths.into_iter().flat_map(plans).collect()
}

fn files(folders: &[&str]) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> = folders.iter().flat_map(|folder| entries(&root().join(folder))).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "dtl"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.expect("an entry of a folder").path()).filter(|path| path.is_file()).collect()
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
