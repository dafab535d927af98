//! The `dtlc` command as a library, so that tests drive the same code.
