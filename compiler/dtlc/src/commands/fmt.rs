//! `dtlc fmt`: canonical form.

use crate::cli::Fmt;
use crate::failure::{Failure, show_diagnostics};
use crate::files;
use crate::output::Output;
use dtlc_lang::SourceMap;
use dtlc_lang::format::format;
use serde_json::json;
use similar::TextDiff;

/// Formats files, or shows what would change.
///
/// # Errors
/// A file that can't be read or parsed (the others are still done); with `--check`, one that would change.
pub fn run(arguments: &Fmt, output: &Output) -> Result<(), Failure> {
    let mut refused = false;
    for path in &arguments.files {
        let bytes = match files::read(path) {
            Ok(bytes) => bytes,
            Err(failure) => {
                let _ = failure.report(output);
                refused = true;
                continue;
            }
        };
        let mut sources = SourceMap::new();
        let added = sources.add_bytes(path.display().to_string(), &bytes);
        let formatted =
            added.map_err(|diagnostic| vec![*diagnostic]).and_then(|file| format(sources.file(file)));
        let text = match formatted {
            Ok(text) => text,
            Err(diagnostics) => {
                show_diagnostics(&diagnostics, &sources, output);
                refused = true;
                continue;
            }
        };
        let changed = text.as_bytes() != bytes;
        if changed && !arguments.check {
            files::write(path, text.as_bytes())?;
        }
        refused |= changed && arguments.check;
        let name = path.display().to_string();
        if output.json {
            output.json(&json!({ "file": name, "changed": changed }))?;
        } else if changed && arguments.check {
            let before = String::from_utf8_lossy(&bytes);
            let diff = TextDiff::from_lines(before.as_ref(), text.as_str());
            output.text(&diff.unified_diff().header(&name, "formatted").to_string())?;
        }
    }
    if refused { Err(Failure::Refused) } else { Ok(()) }
}
