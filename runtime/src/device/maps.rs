//! Arguments of launches, tensor maps among them, which are made once for each place of memory that they describe: in a rank's first step.

use std::collections::HashMap;

use super::load::ReadyLaunch;
use crate::program::device::LaunchArgument;
use dtlc_emulator::{Argument, CudaDriver, DevicePointer, DriverError, Swizzle, TENSOR_MAP_BYTES, TensorMap};
use dtlc_kernels::cuda::MappedTensor;

/// What bulk copies begin at multiples of.
const MAP_ALIGNMENT: u64 = 16;

/// The maps of a rank.
#[derive(Default)]
pub struct Maps(HashMap<(MappedTensor, DevicePointer), [u8; TENSOR_MAP_BYTES]>);

/// What the arguments of a launch are made of.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    pub pointers: &'a [DevicePointer],
    pub integers: &'a [i64],
    /// Where scratch begins.
    pub scratch: DevicePointer,
}

impl ReadyLaunch {
    /// The launch itself, or the one in its place where the device has that and operands begin where its maps can.
    pub fn chosen(&self, pointers: &[DevicePointer]) -> &ReadyLaunch {
        let takes = |argument: &LaunchArgument| match argument {
            LaunchArgument::Map(map) => pointers[map.buffer as usize].0.is_multiple_of(MAP_ALIGNMENT),
            LaunchArgument::Pointer(_)
            | LaunchArgument::Pointers { .. }
            | LaunchArgument::Integer(_)
            | LaunchArgument::Scratch(_)
            | LaunchArgument::Constant(_) => true,
        };
        let alternative = self.alternative.as_deref();
        alternative.filter(|launch| launch.arguments.iter().all(takes)).unwrap_or(self)
    }
}

impl Maps {
    /// Puts the arguments of a launch behind those that are there.
    ///
    /// # Errors
    /// A map can't be made.
    pub fn arguments(
        &mut self,
        driver: &dyn CudaDriver,
        launch: &ReadyLaunch,
        operands: Operands<'_>,
        to: &mut Vec<Argument>,
    ) -> Result<(), DriverError> {
        for argument in &launch.arguments {
            to.push(match *argument {
                LaunchArgument::Pointer(number) => Argument::Pointer(operands.pointers[number as usize]),
                LaunchArgument::Pointers { first, count } => {
                    let pointers = &operands.pointers[first as usize..(first + count) as usize];
                    Argument::Bytes(pointers.iter().flat_map(|pointer| pointer.0.to_le_bytes()).collect())
                }
                LaunchArgument::Integer(number) => Argument::I64(operands.integers[number as usize]),
                LaunchArgument::Scratch(byte) => Argument::Pointer(operands.scratch.offset(byte)),
                LaunchArgument::Constant(value) => Argument::I64(value),
                LaunchArgument::Map(map) => {
                    let base = operands.pointers[map.buffer as usize];
                    Argument::Bytes(self.map(driver, map, base)?.to_vec())
                }
            });
        }
        Ok(())
    }

    fn map(
        &mut self,
        driver: &dyn CudaDriver,
        map: MappedTensor,
        base: DevicePointer,
    ) -> Result<[u8; TENSOR_MAP_BYTES], DriverError> {
        if let Some(made) = self.0.get(&(map, base)) {
            return Ok(*made);
        }
        let made = driver.tensor_map(&tensor_map(&map, base))?;
        self.0.insert((map, base), made);
        Ok(made)
    }
}

/// The map of a tensor that begins here.
pub fn tensor_map(map: &MappedTensor, base: DevicePointer) -> TensorMap {
    TensorMap {
        base,
        sizes: map.sizes.to_vec(),
        strides: map.strides.to_vec(),
        box_sizes: map.box_sizes.to_vec(),
        swizzle: Swizzle::Bytes128,
    }
}
