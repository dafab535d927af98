//! Tensor maps: how a tensor lies in device memory and which boxes of it are copied at once, for `cp.async.bulk.tensor`. Owns what may be
//! mapped ([`TensorMap::check`]) on every device, and the 128 bytes that stand for a map on the emulated one; a GPU's driver has bytes
//! of its own.

use crate::driver::{DevicePointer, DriverError};

/// Bytes of a map as kernels take it.
pub const TENSOR_MAP_BYTES: usize = 128;

/// What kernels' parameters that are maps start at multiples of.
pub(crate) const TENSOR_MAP_ALIGNMENT: u64 = 64;

const MOST_DIMENSIONS: usize = 5;
/// What stands first in the bytes.
const MARK: u32 = 0x4d54_4c44;

/// How 16-byte pieces of rows change places in shared memory: within rows of so many bytes, by the bits of their address from the seventh on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// They stay.
    None,
    /// Over 32 bytes.
    Bytes32,
    /// Over 64 bytes.
    Bytes64,
    /// Over 128 bytes.
    Bytes128,
}

impl Swizzle {
    const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128];

    /// The row that a box must have; none where any will do.
    const fn row_bytes(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::Bytes32 => Some(32),
            Swizzle::Bytes64 => Some(64),
            Swizzle::Bytes128 => Some(128),
        }
    }

    /// Where a byte of shared memory goes.
    pub(crate) fn place(self, address: u64) -> u64 {
        let pieces = self.row_bytes().map_or(1, |bytes| bytes / 16);
        address ^ (address >> 7 & (pieces - 1)) << 4
    }
}

/// A tensor of 16-bit floats in device memory, and the boxes that are copied. They may be bf16 or f16: their bits are moved, and outside are
/// zeros. Dimensions are in the order of memory: the first has neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Its first element.
    pub base: DevicePointer,
    /// Elements of each dimension.
    pub sizes: Vec<u64>,
    /// Bytes from each element to the next in each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of a box in each dimension.
    pub box_sizes: Vec<u32>,
    /// How a box lies in shared memory.
    pub swizzle: Swizzle,
}

impl TensorMap {
    /// Bytes of an element.
    pub const ELEMENT_BYTES: u64 = 2;

    /// Whether there can be such a map.
    ///
    /// # Errors
    /// What no device takes.
    pub fn check(&self) -> Result<(), DriverError> {
        let wrong = |reason: String| Err(DriverError::BadTensorMap(reason));
        let rank = self.sizes.len();
        if !(1..=MOST_DIMENSIONS).contains(&rank)
            || self.strides.len() != rank - 1
            || self.box_sizes.len() != rank
        {
            return wrong(format!(
                "{rank} sizes, {} strides and {} sizes of a box; there are 1 to {MOST_DIMENSIONS} dimensions, and the first has no stride",
                self.strides.len(),
                self.box_sizes.len()
            ));
        }
        if !self.base.0.is_multiple_of(16) {
            return wrong(format!("a tensor at {:#x}, which is not a multiple of 16", self.base.0));
        }
        if let Some(size) = self.sizes.iter().find(|size| !(1..=1 << 32).contains(*size)) {
            return wrong(format!("a dimension of {size} elements"));
        }
        if let Some(stride) =
            self.strides.iter().find(|stride| !stride.is_multiple_of(16) || **stride >= 1 << 40)
        {
            return wrong(format!("a stride of {stride} bytes, which is not a multiple of 16 below 2^40"));
        }
        if let Some(size) = self.box_sizes.iter().find(|size| !(1..=256).contains(*size)) {
            return wrong(format!("a box of {size} elements in a dimension; there are 1 to 256"));
        }
        let row = u64::from(self.box_sizes[0]) * TensorMap::ELEMENT_BYTES;
        match self.swizzle.row_bytes() {
            _ if !row.is_multiple_of(16) => {
                wrong(format!("a box whose rows have {row} bytes, which is not a multiple of 16"))
            }
            Some(bytes) if bytes != row => {
                wrong(format!("a box whose rows have {row} bytes, which change places over {bytes}"))
            }
            _ => Ok(()),
        }
    }

    /// Bytes that a box takes in shared memory.
    #[must_use]
    pub fn box_bytes(&self) -> u64 {
        self.box_sizes.iter().map(|size| u64::from(*size)).product::<u64>() * TensorMap::ELEMENT_BYTES
    }

    /// The emulated device's bytes of a map.
    pub(crate) fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], DriverError> {
        self.check()?;
        let mut bytes = Vec::with_capacity(TENSOR_MAP_BYTES);
        bytes.extend(MARK.to_le_bytes());
        bytes.extend([self.sizes.len() as u8, self.swizzle as u8, 0, 0]);
        bytes.extend(self.base.0.to_le_bytes());
        for axis in 0..MOST_DIMENSIONS {
            bytes.extend(self.sizes.get(axis).unwrap_or(&0).to_le_bytes());
        }
        for axis in 0..MOST_DIMENSIONS - 1 {
            bytes.extend(self.strides.get(axis).unwrap_or(&0).to_le_bytes());
        }
        for axis in 0..MOST_DIMENSIONS {
            bytes.extend(self.box_sizes.get(axis).unwrap_or(&0).to_le_bytes());
        }
        bytes.resize(TENSOR_MAP_BYTES, 0);
        let mut array = [0; TENSOR_MAP_BYTES];
        array.copy_from_slice(&bytes);
        Ok(array)
    }

    /// The map that these bytes stand for on the emulated device, if they do.
    pub(crate) fn decode(bytes: &[u8]) -> Option<TensorMap> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let double = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (rank, swizzle) = (usize::from(*bytes.get(4)?), usize::from(*bytes.get(5)?));
        if word(0)? != MARK || !(1..=MOST_DIMENSIONS).contains(&rank) {
            return None;
        }
        let map = TensorMap {
            base: DevicePointer(double(8)?),
            sizes: (0..rank).map(|axis| double(16 + 8 * axis)).collect::<Option<_>>()?,
            strides: (0..rank - 1).map(|axis| double(56 + 8 * axis)).collect::<Option<_>>()?,
            box_sizes: (0..rank).map(|axis| word(88 + 4 * axis)).collect::<Option<_>>()?,
            swizzle: *Swizzle::ALL.get(swizzle)?,
        };
        map.check().ok().map(|()| map)
    }
}
