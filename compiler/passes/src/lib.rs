//! The passes that take a typed model to a scheduled program.
