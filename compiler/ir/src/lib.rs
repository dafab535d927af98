//! The intermediate representation: one set of operations and types that every stage from `logical` to `scheduled` uses, with its text.
