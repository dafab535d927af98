//! What can be wrong with a placement, as data: `dtlc` turns these into diagnostics. Nothing here prints.

use dtlc_ir::Origin;
use dtlc_lang::source::Span;

/// The kind of a placement error; each becomes one diagnostic code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlacementErrorKind {
    /// A rule names a mesh axis that the plan doesn't have.
    UnknownAxis,
    /// One rule names an axis twice.
    AxisTwice,
    /// A rule matches no dimension of any value.
    NoMatch,
    /// `at` or a store rule names something that the model doesn't have.
    UnknownName,
    /// The axes don't divide the dimension.
    NotDivisible,
    /// Two rules of one step for the same thing.
    DuplicateRule,
    /// Two rules of one step want different dimensions of one value on one axis.
    Conflict,
    /// The dimension is one that a loop iterates over.
    StackedDimension,
    /// Data can only move by gathering what both ends hold sharded, and there is no leave to.
    NeedsLeave,
    /// Nothing follows from a rule: a remark.
    NoEffect,
    /// A bug in dtlc.
    Internal,
}

/// A labelled place: in the plan, or in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A part of the plan.
    Plan(Span),
    /// A part of the model.
    Model(Origin),
}

/// Something wrong with the placement that a plan asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementError {
    /// Which rule of the language is broken.
    pub kind: PlacementErrorKind,
    /// One sentence.
    pub message: String,
    /// Where, with a label each; the first is the main one.
    pub places: Vec<(Place, String)>,
    /// Why: a chain of reasons, one line each.
    pub reasons: Vec<String>,
    /// What to write instead.
    pub hint: Option<String>,
}

impl PlacementError {
    /// An error without places, reasons or a hint yet.
    pub(crate) fn new(kind: PlacementErrorKind, message: impl Into<String>) -> PlacementError {
        PlacementError { kind, message: message.into(), places: Vec::new(), reasons: Vec::new(), hint: None }
    }

    /// A fault of the compiler.
    pub(crate) fn internal(message: impl Into<String>) -> PlacementError {
        PlacementError::new(PlacementErrorKind::Internal, format!("bug in dtlc: {}", message.into()))
    }

    /// Adds a label in the plan; nothing where there is no plan text.
    pub(crate) fn at_plan(mut self, span: Option<Span>, label: impl Into<String>) -> PlacementError {
        self.places.extend(span.map(|span| (Place::Plan(span), label.into())));
        self
    }

    /// Adds a label in the model.
    pub(crate) fn at_model(mut self, origin: Origin, label: impl Into<String>) -> PlacementError {
        self.places.push((Place::Model(origin), label.into()));
        self
    }

    /// Adds reasons.
    pub(crate) fn because(mut self, reasons: impl IntoIterator<Item = String>) -> PlacementError {
        self.reasons.extend(reasons);
        self
    }

    /// Adds a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> PlacementError {
        self.hint = Some(hint.into());
        self
    }
}
