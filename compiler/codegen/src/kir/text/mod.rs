//! The text of a kernel: what `dtlc emit --stage kernels` shows, and what tests read back.
//!
//! One statement a line, `#` starts a comment. Parameters and axes come first, then the loops:
//!
//! ```text
//! kernel rms_norm {
//!   tensor x: f32[8192] read
//!   tensor y: bf16[8192] write
//!   integer shift in 0..=40
//!   axis row: 8 serial
//!   axis d: 1024 vector
//!   for row {
//!     start @0: f32 sum
//!     for d {
//!       %0: f32 = load x[1024 row + d]
//!       %1: f32 = multiply %0, %0
//!       combine @0, %1
//!     }
//!     %2: f32 = total @0
//!     store y[1024 row], %2
//!   }
//! }
//! ```
//!
//! The axis inside a tile says so: `axis d: 150 vector by 64 of d_tile`. A number read from data stands in an index with its bound:
//! `table[64 (%3 below 1000) + d]`.

mod names;
mod parse;
mod print;

pub use parse::parse;
