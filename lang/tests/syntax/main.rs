//! The syntax half of the language through its public interface: trees, errors, formatting, random edits.

mod errors;
mod format;
mod limits;
mod mutate;
mod reports;
mod support;
mod trees;
