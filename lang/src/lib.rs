//! The `.dtl` language: sources, spans, diagnostics, parser, formatter, names, dimension types, the typed model and plan.
