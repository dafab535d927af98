//! The `.dtl` language: sources, spans, diagnostics, parser, formatter, names, dimension types, the typed model and plan.

pub mod model;
pub mod plan;
pub mod source;
