//! The typed model as text: stage `model` of `dtlc emit`, printed and read back.
//!
//! [`print()`] writes everything and [`parse`] reads it back to an equal model. A model's `Display` leaves out places in
//! the source, layer instances and names: what a change of meaning shows in. The grammar is `grammar/model.pest`.

mod parse;
mod print;

pub use parse::{ParseError, parse};
pub use print::{print, type_text};
