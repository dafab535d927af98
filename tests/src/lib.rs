//! Test harness shared by the suites in `tests/tests`.
