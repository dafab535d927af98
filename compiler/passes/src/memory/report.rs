//! What the plan says to people: what is alive when most is.

use dtlc_ir::{Origin, Value};

/// A buffer that is alive at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakItem {
    /// The first value stored in it.
    pub value: Value,
    /// Where that comes from.
    pub origin: Origin,
    /// Its size on one rank.
    pub bytes: u64,
}

/// The arena at its fullest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Buffers of the arena that are alive then, largest first. What else the arena takes are gaps.
    pub peak: Vec<PeakItem>,
}
