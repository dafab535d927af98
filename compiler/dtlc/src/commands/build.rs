//! `dtlc build`: says that it is not there yet.

use crate::cli::Build;
use crate::failure::Failure;

/// Refuses.
///
/// # Errors
/// Always.
pub fn run(arguments: &Build) -> Result<(), Failure> {
    let file = arguments.source.file.display();
    Err(Failure::Usage(format!(
        "`dtlc build` is not there yet; `dtlc train {file}` runs the same program from this executable"
    )))
}
