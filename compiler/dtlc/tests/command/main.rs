//! Tests of the built `dtlc` command.

mod bad_files;
mod bad_input;
mod built;
mod command_line;
mod devices;
#[cfg(feature = "mpi")]
mod mpi;
mod processes;
mod runs;
mod stages;
mod support;
