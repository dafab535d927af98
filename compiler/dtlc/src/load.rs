//! From the command line's file, plan and overrides to the typed model and plan.

use crate::cli::{Choice, Source};
use crate::failure::Failure;
use crate::files::{self, FileLoader};
use dtlc_lang::{Compiled, Options, PlanChoice, compile};
use std::path::Path;

/// A file that is read: its name for messages, and its content.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// The path as given.
    pub name: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl SourceText {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Ok(Self { name: path.display().to_string(), bytes: files::read(path)? })
    }

    /// The typed model and plan.
    ///
    /// # Errors
    /// Everything wrong with the file as far as this plan is concerned.
    pub fn compile(&self, options: &Options) -> Result<Compiled, Failure> {
        compile(&FileLoader, &self.name, &self.bytes, options).map_err(|rejected| Failure::Input {
            diagnostics: rejected.diagnostics,
            sources: rejected.sources,
        })
    }
}

/// What the command line says of plan and sizes.
#[must_use]
pub fn options(choice: &Choice) -> Options {
    let plan = choice.plan.clone().map_or(PlanChoice::Only, PlanChoice::Named);
    Options { plan, overrides: choice.define.clone() }
}

/// Reads and types the file that a command names.
///
/// # Errors
/// It can't be read, or something is wrong with it.
pub fn load(source: &Source) -> Result<Compiled, Failure> {
    SourceText::read(&source.file)?.compile(&options(&source.choice))
}
