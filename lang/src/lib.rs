//! The `.dtl` language: sources, spans, diagnostics, parser, formatter, names, dimension types, the typed model and plan.
//!
//! From the bytes of `.dtl` files to a typed model and its plans. Knows nothing of devices, files or the code of ranks.

pub mod ast;
pub mod codes;
pub mod diagnostic;
pub mod elaborate;
pub mod format;
pub mod lex;
pub mod model;
pub mod parse;
pub mod plan;
pub mod render;
pub mod source;
pub mod suggest;
pub mod text;

pub use codes::Code;
pub use diagnostic::{Diagnostic, Severity};
pub use elaborate::{Checked, Compiled, Options, PlanChoice, Rejected, check_all, compile};
pub use format::format;
pub use parse::{Parsed, parse};
pub use source::{FileId, Loaded, Loader, SourceFile, SourceMap, Span};
