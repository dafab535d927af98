//! Tests of the built `dtlc` command.

mod command_line;
mod runs;
mod stages;
mod support;
