//! The text form of a program, the same at every stage: printing and parsing.
//!
//! [`print()`] writes everything and [`parse`] reads it back to the program's [`canonical`] form, in
//! which values and origins are numbered in the order of the text. [`print_step`] writes the
//! instructions alone, for people. The grammar is `grammar/ir.pest`.

mod canonical;
mod names;
mod parse;
mod parse_memory;
mod parse_op;
mod print;
mod print_op;

pub use canonical::canonical;
pub use names::Names;
pub use parse::{ParseError, parse};
pub use print::{InstPath, print, print_around, print_inst, print_placements, print_step, print_type};
