//! The events that order ranks on one device, and the ranks and their owner: known to all of them.
//!
//! Two for each rank and collective: its *ready* is behind all that it did before the collective, its *moved* behind its movements in it. Ranks
//! meet on the host between recording and waiting, so a wait is always for the collective's own run, in loops too. One for each rank
//! behind its last step, which the owner waits for before it touches the rank's memory, and one behind what the owner did.

use std::sync::Arc;

use crate::error::{Result, RuntimeError};
use crate::program::Program;
use dtlc_emulator::{CudaDriver, DriverError, Event};

/// The events of one rank in one collective.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// Behind all that the rank did before.
    pub ready: Event,
    /// Behind its movements.
    pub moved: Event,
}

/// The events of all ranks of a program; given back when they are dropped.
pub struct Flights {
    driver: Arc<dyn CudaDriver>,
    collectives: usize,
    /// By rank, then by collective.
    flights: Vec<Flight>,
    /// Behind the last step of each rank.
    pub stepped: Vec<Event>,
    /// Behind what the owner of the ranks did to their memory.
    pub settled: Event,
    made: Vec<Event>,
}

impl Flights {
    /// For a program's ranks on one device.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(driver: Arc<dyn CudaDriver>, program: &Program) -> Result<Self> {
        let collectives = program.collectives().count();
        let ranks = program.mesh.ranks() as usize;
        let settled = driver.create_event().map_err(|error| RuntimeError::of_device("an event", &error))?;
        let (flights, stepped, made) = (Vec::new(), Vec::new(), vec![settled]);
        let mut all = Self { driver, collectives, flights, stepped, settled, made };
        for _ in 0..ranks * collectives {
            let flight = Flight { ready: all.event()?, moved: all.event()? };
            all.flights.push(flight);
        }
        for _ in 0..ranks {
            let event = all.event()?;
            all.stepped.push(event);
        }
        Ok(all)
    }

    fn event(&mut self) -> Result<Event> {
        let event = self.driver.create_event();
        let event = event.map_err(|error| RuntimeError::of_device("the events of a rank", &error))?;
        self.made.push(event);
        Ok(event)
    }

    /// The events of a rank in a collective, by its number in the program.
    ///
    /// # Errors
    /// There is none: a bug.
    pub fn of(&self, rank: usize, collective: u64) -> std::result::Result<Flight, DriverError> {
        let flight = self.flights.get(rank * self.collectives + collective as usize).copied();
        flight.ok_or(DriverError::BadHandle("collective"))
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        for &event in &self.made {
            // A device that is broken was reported when it broke.
            let _ = self.driver.destroy_event(event);
        }
    }
}
