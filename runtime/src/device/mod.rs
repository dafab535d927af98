//! The CUDA backend: a rank's memory in a device's, its work as launches, on a GPU or an emulated one alike.
//!
//! Owns what a program's [`DeviceSection`](crate::program::device::DeviceSection) becomes on a device ([`Loaded`]), a rank's streams and
//! memory, and the kernels that move data. Several ranks may share a device: then collectives are copies and reductions between
//! their pieces of its memory.
//!
//! A rank has two streams. What it does by itself is on one, in order; its movements in collectives are on the other, behind what
//! every member had done before (*ready*), and what comes behind a collective's done waits for every member's movements (*moved*):
//! see [`Flights`]. The host never waits within a step.

mod flights;
mod load;
mod maps;
mod memory;
mod movement;
mod recording;

pub use flights::Flights;
pub use load::Loaded;
pub(crate) use maps::tensor_map;
pub use memory::{DeviceMemories, DeviceMemory};
pub use movement::movement_kernels;
pub use recording::Graphs;

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Result as RuntimeResult, RuntimeError};
use crate::executor::{Backend, Point, Products, StepNumbers, StepStart, Trouble};
use crate::files::values::{Refused, find_float};
use crate::link::{Address, Integer, LinkedFloats, Placer};
use crate::program::device::{Work, operands};
use crate::program::{DType, Instruction, Operation, Program, Reduction, Space, Transfer};
use dtlc_emulator::{Argument, CudaDriver, DevicePointer, DriverError, Stream};
use dtlc_kernels::collective::BlockCopy;
use load::ReadyLaunch;
use maps::{Maps, Operands};
use movement::{Mover, block_copy, block_reduction};
use recording::Recording;

/// An operation, ready to run.
pub enum DeviceOperation {
    /// Launches and what they take.
    Launches { launches: Arc<[ReadyLaunch]>, pointers: Box<[Address]>, integers: Arc<[Integer]> },
    /// A copy.
    Copy { copy: BlockCopy, source: Address, target: Address },
    /// A fill with the first `width` bytes of `pattern`, over and over.
    Fill { target: Address, bytes: u64, pattern: [u8; 4], width: usize },
}

/// A rank on a device.
pub struct Device {
    // In the order in which they are given back: a graph before its streams, both before the kernels.
    recording: Recording,
    streams: Streams,
    rank: usize,
    flights: Arc<Flights>,
    program: Arc<Program>,
    driver: Arc<dyn CudaDriver>,
    loaded: Arc<Loaded>,
    memory: DeviceMemory,
    mover: Mover,
    /// Operands of the operation at hand.
    pointers: Vec<DevicePointer>,
    integers: Vec<i64>,
    arguments: Vec<Argument>,
    maps: Maps,
    /// Where messages are packed and unpacked, and its bytes.
    staged: Option<(DevicePointer, u64)>,
}

/// A rank's streams; given back when they are dropped.
struct Streams {
    driver: Arc<dyn CudaDriver>,
    /// What the rank does by itself.
    compute: Stream,
    /// Its movements in collectives.
    movement: Stream,
}

impl Drop for Streams {
    fn drop(&mut self) {
        for stream in [self.compute, self.movement] {
            // A device that is broken was reported when it broke.
            let _ = self.driver.destroy_stream(stream);
        }
    }
}

impl Device {
    /// For a rank of a program with this memory; `flights` are those of all ranks.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(
        program: Arc<Program>,
        loaded: Arc<Loaded>,
        flights: Arc<Flights>,
        (rank, memory): (usize, DeviceMemory),
        graphs: Graphs,
    ) -> RuntimeResult<Self> {
        let driver = Arc::clone(loaded.driver());
        let streams = driver.create_stream().and_then(|compute| {
            Ok(Streams { driver: Arc::clone(&driver), compute, movement: driver.create_stream()? })
        });
        let streams = streams.map_err(|error| RuntimeError::of_device("a rank's streams", &error))?;
        Ok(Self {
            rank,
            flights,
            recording: Recording::new(Arc::clone(&driver), streams.compute, graphs),
            streams,
            mover: Mover::new(Arc::clone(&loaded)),
            program,
            driver,
            loaded,
            memory,
            pointers: Vec::new(),
            integers: Vec::new(),
            arguments: Vec::new(),
            maps: Maps::default(),
            staged: None,
        })
    }

    fn pointer(&self, address: &Address, point: &Point) -> DevicePointer {
        self.memory.base(address.space).offset(address.at(point) as u64)
    }

    /// Launches one behind the other, with the operands at hand.
    fn launch(&mut self, launches: &[ReadyLaunch], stream: Stream) -> Result<(), DriverError> {
        let (pointers, integers) = (&*self.pointers, &*self.integers);
        let operands = Operands { pointers, integers, scratch: self.memory.scratch };
        for launch in launches {
            let launch = launch.chosen(pointers);
            self.arguments.clear();
            self.maps.arguments(&*self.driver, launch, operands, &mut self.arguments)?;
            self.driver.launch(launch.kernel, launch.shape, &self.arguments, stream)?;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        copy: &BlockCopy,
        source: DevicePointer,
        target: DevicePointer,
        stream: Stream,
    ) -> Result<(), DriverError> {
        if copy.rows * copy.columns * copy.block_bytes == 0 {
            return Ok(());
        }
        if copy.rows * copy.columns == 1 {
            return self.driver.copy_on_device(target, source, copy.block_bytes as u64, stream);
        }
        self.pointers.clear();
        self.pointers.extend([source, target]);
        let launches = self.mover.copy(copy)?;
        self.recording.note(&launches, &self.pointers, None, &Point::default());
        self.launch(&launches, stream)
    }

    fn fill(&mut self, target: DevicePointer, bytes: u64, pattern: &[u8]) -> Result<(), DriverError> {
        let Some(fill) = movement::pattern(pattern) else {
            let value = pattern.first().copied().unwrap_or(0);
            return self.driver.fill(target, value, bytes, self.streams.compute);
        };
        self.pointers.clear();
        self.pointers.push(target);
        let launches = self.mover.fill(fill, bytes)?;
        self.recording.note(&launches, &self.pointers, None, &Point::default());
        self.launch(&launches, self.streams.compute)
    }
}

impl Backend for Device {
    type Operation = DeviceOperation;

    const PRODUCTS: Products = Products::Together;

    fn link(&mut self, run: &[Instruction], placer: &Placer) -> RuntimeResult<DeviceOperation> {
        let first = run.first().map(|instruction| &instruction.operation);
        if let Some(Operation::Copy { source, target, rows, row_bytes, source_pitch, target_pitch }) = first {
            let rows = Transfer::rows(*rows, *row_bytes, *source_pitch, *target_pitch);
            let (source, target) = (placer.address(source), placer.address(target));
            return Ok(DeviceOperation::Copy { copy: block_copy(&rows, 1), source, target });
        }
        if let Some(Operation::Fill { target, dtype, value }) = first {
            return Ok(DeviceOperation::Fill {
                target: placer.address(target),
                bytes: target.bytes,
                pattern: dtype.pattern(*value),
                width: dtype.bytes() as usize,
            });
        }
        let launches = Work::of(run).and_then(|work| self.loaded.launches(&self.program, &work));
        let launches =
            launches.ok_or_else(|| RuntimeError::Bug(format!("a device has no code for {run:?}")))?;
        let (pointers, integers) = operands(run);
        Ok(DeviceOperation::Launches {
            launches,
            pointers: pointers.into_iter().map(|buffer| placer.address(buffer)).collect(),
            integers: integers.into_iter().map(|integer| placer.integer(integer)).collect(),
        })
    }

    fn perform(&mut self, operation: &DeviceOperation, point: &Point) -> Result<(), Trouble> {
        match operation {
            DeviceOperation::Launches { launches, pointers, integers } => {
                self.pointers.clear();
                for pointer in pointers {
                    let pointer = self.pointer(pointer, point);
                    self.pointers.push(pointer);
                }
                self.integers.clear();
                self.integers.extend(integers.iter().map(|integer| integer.at(point)));
                self.recording.note(launches, &self.pointers, Some(integers), point);
                self.launch(launches, self.streams.compute)?;
            }
            DeviceOperation::Copy { copy, source, target } => {
                let (source, target) = (self.pointer(source, point), self.pointer(target, point));
                self.copy(copy, source, target, self.streams.compute)?;
            }
            DeviceOperation::Fill { target, bytes, pattern, width } => {
                let target = self.pointer(target, point);
                self.fill(target, *bytes, &pattern[..*width])?;
            }
        }
        Ok(())
    }

    fn base(&self, space: Space) -> *mut u8 {
        // An address of the device's, never followed here.
        std::ptr::without_provenance_mut(self.memory.base(space).0 as usize)
    }

    fn announce(&mut self, collective: u64) -> Result<(), Trouble> {
        let flight = self.flights.of(self.rank, collective)?;
        Ok(self.driver.record(flight.ready, self.streams.compute)?)
    }

    fn expect(&mut self, collective: u64, rank: usize) -> Result<(), Trouble> {
        let flight = self.flights.of(rank, collective)?;
        Ok(self.driver.wait(self.streams.movement, flight.ready)?)
    }

    fn conclude(&mut self, collective: u64) -> Result<(), Trouble> {
        let flight = self.flights.of(self.rank, collective)?;
        Ok(self.driver.record(flight.moved, self.streams.movement)?)
    }

    fn finish(&mut self, collective: u64, rank: usize) -> Result<(), Trouble> {
        let flight = self.flights.of(rank, collective)?;
        Ok(self.driver.wait(self.streams.compute, flight.moved)?)
    }

    fn begin_step(&mut self, numbers: StepNumbers) -> Result<StepStart, Trouble> {
        // What the owner of the ranks has written meanwhile.
        self.driver.wait(self.streams.compute, self.flights.settled)?;
        let scratch = self.memory.scratch;
        let (maps, driver) = (&mut self.maps, &*self.driver);
        let arguments = |launch: &ReadyLaunch, pointers: &[DevicePointer], integers: &[i64]| {
            let mut arguments = Vec::new();
            let operands = Operands { pointers, integers, scratch };
            maps.arguments(driver, launch.chosen(pointers), operands, &mut arguments)?;
            Ok(arguments)
        };
        Ok(self.recording.begin(numbers, arguments)?)
    }

    fn end_recording(&mut self) -> Result<(), Trouble> {
        Ok(self.recording.end()?)
    }

    fn movement(&self) -> Stream {
        self.streams.movement
    }

    fn settle(&mut self) -> Result<(), Trouble> {
        // Every collective's done has put its movements before this.
        self.driver.record(self.flights.stepped[self.rank], self.streams.compute)?;
        Ok(self.driver.synchronize(self.streams.compute)?)
    }

    unsafe fn copy_block(
        &mut self,
        transfer: &Transfer,
        dtype: DType,
        source: *const u8,
        target: *mut u8,
    ) -> Result<(), Trouble> {
        let copy = block_copy(transfer, dtype.bytes());
        Ok(self.copy(&copy, on_device(source), on_device(target), self.streams.movement)?)
    }

    unsafe fn reduce_block(
        &mut self,
        (transfer, dtype): (&Transfer, DType),
        reduction: Reduction,
        range: Range<usize>,
        sources: &[*const u8],
        targets: &[*mut u8],
    ) -> Result<(), Trouble> {
        if range.is_empty() {
            return Ok(());
        }
        let range = range.start as u64..range.end as u64;
        let members = [sources.len() as u32, targets.len() as u32];
        let spec = block_reduction(transfer, dtype, reduction, range, members);
        self.pointers.clear();
        self.pointers.extend(sources.iter().map(|&source| on_device(source)));
        self.pointers.extend(targets.iter().map(|&target| on_device(target)));
        let launches = self.mover.reduce(&spec)?;
        self.recording.note(&launches, &self.pointers, None, &Point::default());
        Ok(self.launch(&launches, self.streams.movement)?)
    }

    fn stage(&mut self, bytes: usize) -> Result<*mut u8, Trouble> {
        let bytes = (bytes as u64).max(1);
        let pointer = match self.staged {
            Some((pointer, there)) if there >= bytes => pointer,
            Some(_) | None => {
                // What was started may still use the old one.
                self.driver.synchronize(self.streams.movement)?;
                if let Some((old, _)) = self.staged.take() {
                    self.driver.free(old)?;
                }
                let pointer = self.driver.allocate(bytes)?;
                self.staged = Some((pointer, bytes));
                pointer
            }
        };
        Ok(std::ptr::without_provenance_mut(pointer.0 as usize))
    }

    unsafe fn fetch(&mut self, source: *const u8, bytes: &mut [u8]) -> Result<(), Trouble> {
        match bytes {
            [] => Ok(()),
            bytes => Ok(self.driver.copy_to_host(bytes, on_device(source), self.streams.movement)?),
        }
    }

    unsafe fn store(&mut self, bytes: &[u8], target: *mut u8) -> Result<(), Trouble> {
        match bytes {
            [] => Ok(()),
            bytes => Ok(self.driver.copy_to_device(on_device(target), bytes, self.streams.movement)?),
        }
    }

    unsafe fn clear(&mut self, target: *mut u8, bytes: usize) -> Result<(), Trouble> {
        Ok(self.driver.fill(on_device(target), 0, bytes as u64, self.streams.movement)?)
    }

    fn find_not_finite(
        &mut self,
        floats: &LinkedFloats,
        point: &Point,
    ) -> Result<Option<(usize, f32)>, Trouble> {
        let mut bytes = vec![0; floats.bytes];
        let from = self.pointer(&floats.address, point);
        self.driver.copy_to_host(&mut bytes, from, self.streams.compute)?;
        Ok(find_float(floats.dtype, &bytes, Refused::NotFinite))
    }

    fn poison_arena(&mut self) -> Result<(), Trouble> {
        // What the owner of the ranks has read meanwhile.
        self.driver.wait(self.streams.compute, self.flights.settled)?;
        let arena = self.memory.base(Space::Arena);
        Ok(self.driver.fill(arena, 0xff, self.program.arena_bytes, self.streams.compute)?)
    }

    fn close(&self) {
        // A rank has no threads beside its own here.
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some((pointer, _)) = self.staged {
            // A device that is broken was reported when it broke.
            let _ = self.driver.free(pointer);
        }
    }
}

/// What an address means where all members are on a device.
fn on_device(address: *const u8) -> DevicePointer {
    DevicePointer(address.addr() as u64)
}
