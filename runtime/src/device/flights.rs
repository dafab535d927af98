//! The events that order ranks on one device: two for each rank and collective, known to all ranks.
//!
//! A rank's *ready* is behind all that it did before a collective, its *moved* behind its movements in it. Ranks meet on the host
//! between recording and waiting, so a wait is always for the collective's own run, in loops too.

use std::sync::Arc;

use crate::error::{Result, RuntimeError};
use crate::program::{Instruction, Operation, Program};
use dtlc_emulator::{CudaDriver, Event};

/// The events of one rank in one collective.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// Behind all that the rank did before.
    pub ready: Event,
    /// Behind its movements.
    pub moved: Event,
}

/// The events of all ranks and collectives of a program; given back when they are dropped.
pub struct Flights {
    driver: Arc<dyn CudaDriver>,
    collectives: usize,
    /// By rank, then by collective.
    flights: Vec<Flight>,
}

impl Flights {
    /// For a program's ranks on one device.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(driver: Arc<dyn CudaDriver>, program: &Program) -> Result<Self> {
        let collectives = count(&program.instructions);
        let mut made = Self { driver, collectives, flights: Vec::new() };
        for _ in 0..program.mesh.ranks() as usize * collectives {
            let event = || made.driver.create_event();
            let flight = event().and_then(|ready| Ok(Flight { ready, moved: event()? }));
            let flight = flight.map_err(|error| RuntimeError::of_device("the events of a collective", &error));
            made.flights.push(flight?);
        }
        Ok(made)
    }

    /// The events of a rank in a collective, by its number in the program.
    ///
    /// # Errors
    /// There is none: a bug.
    pub fn of(&self, rank: usize, collective: u64) -> std::result::Result<Flight, dtlc_emulator::DriverError> {
        let flight = self.flights.get(rank * self.collectives + collective as usize).copied();
        flight.ok_or(dtlc_emulator::DriverError::BadHandle("collective"))
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        for flight in &self.flights {
            // A device that is broken was reported when it broke.
            let _ = self.driver.destroy_event(flight.ready);
            let _ = self.driver.destroy_event(flight.moved);
        }
    }
}

/// Collectives of a list and of the loops in it; [`crate::link`] numbers them in the same order.
fn count(body: &[Instruction]) -> usize {
    let each = body.iter().map(|instruction| match &instruction.operation {
        Operation::Collective(_) => 1,
        Operation::Loop(nested) => count(&nested.body),
        Operation::Kernel(_)
        | Operation::Matmul { .. }
        | Operation::Attention(_)
        | Operation::AttentionBackward(_)
        | Operation::Take { .. }
        | Operation::ScatterAdd { .. }
        | Operation::Copy { .. }
        | Operation::Fill { .. }
        | Operation::Done(_) => 0,
    });
    each.sum()
}
