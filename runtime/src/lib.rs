//! Runs a compiled program: its format, ranks, memory arena, collectives, data and logs.
