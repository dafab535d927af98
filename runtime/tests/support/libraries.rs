//! Libraries that stand in for NVIDIA's: compiled when a test asks for one, and opened as the real ones are.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a source of `runtime/tests/fake` to `folder/file`, whose own name is `soname`.
///
/// # Panics
/// Where the Rust compiler does not take it.
pub fn compile(source: &str, folder: &Path, file: &str, soname: &str, configured: &[&str]) -> PathBuf {
    let fakes =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("runtime/tests/fake"));
    let from = fakes.map(|folder| folder.join(source)).find(|path| path.exists()).expect("a source of ours");
    let to = folder.join(file);
    std::fs::create_dir_all(folder).expect("a folder of ours");
    let mut command = Command::new(rustc());
    command.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "fake", "-Copt-level=0"]);
    command.args(["-Cpanic=abort", "--allow", "warnings"]);
    command.arg(format!("-Clink-arg=-Wl,-soname,{soname}"));
    for name in configured {
        command.args(["--cfg", name]);
    }
    let output = command.arg(&from).arg("-o").arg(&to).output().expect("the Rust compiler runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// The compiler beside the Cargo that runs the test.
fn rustc() -> PathBuf {
    if let Some(named) = std::env::var_os("RUSTC") {
        return named.into();
    }
    let beside = std::env::var_os("CARGO").map(|cargo| PathBuf::from(cargo).with_file_name("rustc"));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("rustc"))
}
