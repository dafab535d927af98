//! What the ranks of a session know of each other's health: where each is, and the first failure.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::RuntimeError;
use crate::program::LocationId;

/// A rank that is in no instruction.
const NOWHERE: u32 = u32::MAX;

/// Shared by all ranks of a session.
#[derive(Debug)]
pub struct Health {
    failed: AtomicBool,
    first_failure: Mutex<Option<RuntimeError>>,
    positions: Vec<AtomicU32>,
}

impl Health {
    /// All well, for a number of ranks.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        let positions = (0..ranks).map(|_| AtomicU32::new(NOWHERE)).collect();
        Self { failed: AtomicBool::new(false), first_failure: Mutex::new(None), positions }
    }

    /// Whether some rank failed; the others then leave as soon as they can.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Records a failure if it is the first.
    pub fn fail(&self, failure: RuntimeError) {
        let mut first = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// The first failure.
    #[must_use]
    pub fn failure(&self) -> Option<RuntimeError> {
        self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes where a rank is, for messages.
    pub fn enter(&self, rank: usize, location: LocationId) {
        self.positions[rank].store(location.0, Ordering::Relaxed);
    }

    /// Notes that a rank is done with its step.
    pub fn leave(&self, rank: usize) {
        self.positions[rank].store(NOWHERE, Ordering::Relaxed);
    }

    /// Where a rank is.
    #[must_use]
    pub fn position(&self, rank: usize) -> Option<LocationId> {
        let location = self.positions[rank].load(Ordering::Relaxed);
        (location != NOWHERE).then_some(LocationId(location))
    }
}
