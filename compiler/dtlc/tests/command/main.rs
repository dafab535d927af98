//! Tests of the built `dtlc` command.

mod bad_files;
mod bad_input;
mod built;
mod command_line;
mod devices;
#[path = "../../../../runtime/tests/support/libraries.rs"]
mod libraries;
#[cfg(feature = "mpi")]
mod mpi;
mod packed;
mod processes;
mod runs;
mod stages;
mod support;
