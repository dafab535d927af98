//! The `dtlc` binary.

fn main() {}
