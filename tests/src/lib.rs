//! Test harness shared by the suites in `tests/tests`.

pub mod backend;
pub mod chain;
pub mod cuda;
pub mod fuzz;
pub mod golden;
pub mod golden_half;
pub mod products;
pub mod random;
