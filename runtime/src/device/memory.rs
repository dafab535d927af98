//! A rank's memory on a device.

use std::ops::Range;
use std::sync::Arc;

use super::flights::Flights;
use crate::error::{Result, RuntimeError};
use crate::program::{Program, Space};
use dtlc_emulator::{CudaDriver, DevicePointer, DriverError, Stream};

/// Where a rank's spaces begin on its device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    state: DevicePointer,
    arena: DevicePointer,
    input: DevicePointer,
    /// What launches of a call share.
    pub scratch: DevicePointer,
}

impl DeviceMemory {
    /// Where a space begins.
    pub fn base(&self, space: Space) -> DevicePointer {
        match space {
            Space::State => self.state,
            Space::Arena => self.arena,
            Space::Input => self.input,
        }
    }
}

/// The memory of a process's ranks on one device; given back when it is dropped.
pub struct DeviceMemories {
    driver: Arc<dyn CudaDriver>,
    flights: Arc<Flights>,
    /// The number of the first rank that is here.
    first: usize,
    ranks: Vec<DeviceMemory>,
    allocated: Vec<DevicePointer>,
}

impl DeviceMemories {
    /// Memory for the ranks of this process. State and inputs are zero; the arena has no value, so that an emulated device notices
    /// whoever reads what was never written.
    ///
    /// # Errors
    /// The device has no room.
    pub fn new(
        driver: Arc<dyn CudaDriver>,
        flights: Arc<Flights>,
        program: &Program,
        here: Range<usize>,
    ) -> Result<Self> {
        let first = here.start;
        let mut memories = Self { driver, flights, first, ranks: Vec::new(), allocated: Vec::new() };
        let scratch_bytes = program.device.as_ref().map_or(0, |device| device.scratch_bytes());
        for _ in here {
            let state = memories.allocate(program.state_bytes, "parameters and optimizer state")?;
            let arena = memories.allocate(program.arena_bytes, "activations")?;
            let input = memories.allocate(program.input_bytes, "inputs")?;
            let scratch = memories.allocate(scratch_bytes, "scratch")?;
            for (space, bytes) in [(state, program.state_bytes), (input, program.input_bytes)] {
                let filled = memories.driver.fill(space, 0, bytes, Stream::DEFAULT);
                filled.map_err(|error| RuntimeError::of_device("a rank's memory", &error))?;
            }
            memories.ranks.push(DeviceMemory { state, arena, input, scratch });
        }
        memories.settle()?;
        Ok(memories)
    }

    /// Where each rank's memory is.
    pub fn ranks(&self) -> &[DeviceMemory] {
        &self.ranks
    }

    /// Copies one rank's bytes to the device.
    ///
    /// # Errors
    /// What the device says.
    pub fn write(&mut self, rank: usize, space: Space, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.ranks[rank].base(space).offset(offset);
        let copied = self.follow(rank).and_then(|()| self.driver.copy_to_device(to, bytes, Stream::DEFAULT));
        copied.map_err(|error| RuntimeError::of_device(&format!("memory of rank {rank}"), &error))
    }

    /// Copies one rank's bytes from the device.
    ///
    /// # Errors
    /// What the device says.
    pub fn read(&self, rank: usize, space: Space, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let from = self.ranks[rank].base(space).offset(offset);
        let copied = self.follow(rank).and_then(|()| self.driver.copy_to_host(bytes, from, Stream::DEFAULT));
        // A step may write over it behind this.
        let copied = copied.and_then(|()| self.driver.record(self.flights.settled, Stream::DEFAULT));
        copied.map_err(|error| RuntimeError::of_device(&format!("memory of rank {rank}"), &error))
    }

    /// Returns when all that was written is there for every rank's stream.
    ///
    /// # Errors
    /// What the device says.
    pub fn settle(&self) -> Result<()> {
        let recorded = self.driver.record(self.flights.settled, Stream::DEFAULT);
        let settled = recorded.and_then(|()| self.driver.synchronize(Stream::DEFAULT));
        settled.map_err(|error| RuntimeError::of_device("memory of the ranks", &error))
    }

    /// What is copied next comes behind the rank's last step.
    fn follow(&self, rank: usize) -> std::result::Result<(), DriverError> {
        self.driver.wait(Stream::DEFAULT, self.flights.stepped[self.first + rank])
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<DevicePointer> {
        let pointer = self.driver.allocate(bytes.max(1));
        let pointer = pointer
            .map_err(|error: DriverError| RuntimeError::of_device(&format!("memory for {what}"), &error))?;
        self.allocated.push(pointer);
        Ok(pointer)
    }
}

impl Drop for DeviceMemories {
    fn drop(&mut self) {
        for &pointer in &self.allocated {
            // A device that is broken was reported when it broke.
            let _ = self.driver.free(pointer);
        }
    }
}
