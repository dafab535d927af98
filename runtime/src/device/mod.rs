//! The CUDA backend: a rank's memory in a device's, its work as launches, on a GPU or an emulated one alike.
//!
//! Owns what a program's [`DeviceSection`] becomes on a device ([`Loaded`]), a rank's stream and memory, and the kernels that
//! move data. Several ranks may share a device: then collectives are copies and reductions between their pieces of its memory.

mod load;
mod memory;
mod movement;

pub use load::Loaded;
pub use memory::{DeviceMemories, DeviceMemory};
pub use movement::movement_kernels;

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Result as RuntimeResult, RuntimeError};
use crate::executor::{Backend, Point, Trouble};
use crate::files::values::{Refused, find_float};
use crate::link::{Address, Integer, LinkedFloats, Placer};
use crate::program::device::{LaunchArgument, Work, operands};
use crate::program::{DType, Operation, Program, Reduction, Space, Transfer};
use dtlc_emulator::{Argument, CudaDriver, DevicePointer, DriverError, Stream};
use dtlc_kernels::collective::BlockCopy;
use load::ReadyLaunch;
use movement::{Mover, block_copy, block_reduction};

/// An operation, ready to run.
pub enum DeviceOperation {
    /// Launches and what they take.
    Launches { launches: Arc<[ReadyLaunch]>, pointers: Box<[Address]>, integers: Box<[Integer]> },
    /// A copy.
    Copy { copy: BlockCopy, source: Address, target: Address },
    /// A fill with the first `width` bytes of `pattern`, over and over.
    Fill { target: Address, bytes: u64, pattern: [u8; 4], width: usize },
}

/// A rank on a device.
pub struct Device {
    program: Arc<Program>,
    driver: Arc<dyn CudaDriver>,
    loaded: Arc<Loaded>,
    stream: Stream,
    memory: DeviceMemory,
    mover: Mover,
    /// Operands of the operation at hand.
    pointers: Vec<DevicePointer>,
    integers: Vec<i64>,
    arguments: Vec<Argument>,
    /// Where messages are packed and unpacked, and its bytes.
    staged: Option<(DevicePointer, u64)>,
}

impl Device {
    /// For a rank of a program with this memory.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(program: Arc<Program>, loaded: Arc<Loaded>, memory: DeviceMemory) -> RuntimeResult<Self> {
        let driver = Arc::clone(loaded.driver());
        let stream = driver.create_stream();
        Ok(Self {
            stream: stream.map_err(|error| RuntimeError::of_device("a rank's stream", &error))?,
            mover: Mover::new(Arc::clone(&loaded)),
            program,
            driver,
            loaded,
            memory,
            pointers: Vec::new(),
            integers: Vec::new(),
            arguments: Vec::new(),
            staged: None,
        })
    }

    fn pointer(&self, address: &Address, point: &Point) -> DevicePointer {
        self.memory.base(address.space).offset(address.at(point) as u64)
    }

    /// Launches one behind the other, with the operands at hand.
    fn launch(&mut self, launches: &[ReadyLaunch]) -> Result<(), DriverError> {
        for launch in launches {
            self.arguments.clear();
            for argument in &launch.arguments {
                self.arguments.push(match *argument {
                    LaunchArgument::Pointer(number) => Argument::Pointer(self.pointers[number as usize]),
                    LaunchArgument::Integer(number) => Argument::I64(self.integers[number as usize]),
                    LaunchArgument::Scratch(byte) => Argument::Pointer(self.memory.scratch.offset(byte)),
                    LaunchArgument::Constant(value) => Argument::I64(value),
                });
            }
            self.driver.launch(launch.kernel, launch.shape, &self.arguments, self.stream)?;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        copy: &BlockCopy,
        source: DevicePointer,
        target: DevicePointer,
    ) -> Result<(), DriverError> {
        if copy.rows * copy.columns * copy.block_bytes == 0 {
            return Ok(());
        }
        if copy.rows * copy.columns == 1 {
            return self.driver.copy_on_device(target, source, copy.block_bytes as u64, self.stream);
        }
        self.pointers.clear();
        self.pointers.extend([source, target]);
        let launches = self.mover.copy(copy)?;
        self.launch(&launches)
    }

    fn fill(&mut self, target: DevicePointer, bytes: u64, pattern: &[u8]) -> Result<(), DriverError> {
        let Some(fill) = movement::pattern(pattern) else {
            return self.driver.fill(target, pattern.first().copied().unwrap_or(0), bytes, self.stream);
        };
        self.pointers.clear();
        self.pointers.push(target);
        let launches = self.mover.fill(fill, bytes)?;
        self.launch(&launches)
    }
}

impl Backend for Device {
    type Operation = DeviceOperation;

    fn link(&mut self, operation: &Operation, placer: &Placer) -> RuntimeResult<DeviceOperation> {
        if let Operation::Copy { source, target, rows, row_bytes, source_pitch, target_pitch } = operation {
            let rows = Transfer::rows(*rows, *row_bytes, *source_pitch, *target_pitch);
            let (source, target) = (placer.address(source), placer.address(target));
            return Ok(DeviceOperation::Copy { copy: block_copy(&rows, 1), source, target });
        }
        if let Operation::Fill { target, dtype, value } = operation {
            return Ok(DeviceOperation::Fill {
                target: placer.address(target),
                bytes: target.bytes,
                pattern: dtype.pattern(*value),
                width: dtype.bytes() as usize,
            });
        }
        let launches = Work::of(operation).and_then(|work| self.loaded.launches(&self.program, &work));
        let launches =
            launches.ok_or_else(|| RuntimeError::Bug(format!("a device has no code for {operation:?}")))?;
        let (pointers, integers) = operands(operation);
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
                self.launch(launches)?;
            }
            DeviceOperation::Copy { copy, source, target } => {
                let (source, target) = (self.pointer(source, point), self.pointer(target, point));
                self.copy(copy, source, target)?;
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

    fn settle(&mut self) -> Result<(), Trouble> {
        Ok(self.driver.synchronize(self.stream)?)
    }

    unsafe fn copy_block(
        &mut self,
        transfer: &Transfer,
        dtype: DType,
        source: *const u8,
        target: *mut u8,
    ) -> Result<(), Trouble> {
        let copy = block_copy(transfer, dtype.bytes());
        Ok(self.copy(&copy, on_device(source), on_device(target))?)
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
        Ok(self.launch(&launches)?)
    }

    fn stage(&mut self, bytes: usize) -> Result<*mut u8, Trouble> {
        let bytes = (bytes as u64).max(1);
        let pointer = match self.staged {
            Some((pointer, there)) if there >= bytes => pointer,
            Some(_) | None => {
                // What was started may still use the old one.
                self.driver.synchronize(self.stream)?;
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
            bytes => Ok(self.driver.copy_to_host(bytes, on_device(source), self.stream)?),
        }
    }

    unsafe fn store(&mut self, bytes: &[u8], target: *mut u8) -> Result<(), Trouble> {
        match bytes {
            [] => Ok(()),
            bytes => Ok(self.driver.copy_to_device(on_device(target), bytes, self.stream)?),
        }
    }

    unsafe fn clear(&mut self, target: *mut u8, bytes: usize) -> Result<(), Trouble> {
        Ok(self.driver.fill(on_device(target), 0, bytes as u64, self.stream)?)
    }

    fn find_not_finite(
        &mut self,
        floats: &LinkedFloats,
        point: &Point,
    ) -> Result<Option<(usize, f32)>, Trouble> {
        let mut bytes = vec![0; floats.bytes];
        let from = self.pointer(&floats.address, point);
        self.driver.copy_to_host(&mut bytes, from, self.stream)?;
        Ok(find_float(floats.dtype, &bytes, Refused::NotFinite))
    }

    fn poison_arena(&mut self) -> Result<(), Trouble> {
        let arena = self.memory.base(Space::Arena);
        Ok(self.driver.fill(arena, 0xff, self.program.arena_bytes, self.stream)?)
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
