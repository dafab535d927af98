//! The parser that pest generates from `grammar/dtl.pest`.
//!
//! Rules and their generated parser only; [`super`] decides which rule is tried where.
#![allow(missing_docs)] // on the `Rule` enum that pest generates

use pest::Parser;
use pest_derive::Parser;

#[derive(Parser)]
#[grammar = "../../grammar/dtl.pest"]
pub(super) struct DtlParser;

/// Whether the grammar's `file` rule takes a whole text. Tests hold the piecewise parser against it.
pub fn accepts(text: &str) -> bool {
    DtlParser::parse(Rule::file, text).is_ok()
}
