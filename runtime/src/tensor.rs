//! A whole tensor in the host's memory, between files, the caller and the ranks.

use half::{bf16, f16};

use crate::error::{Result, RuntimeError};
use crate::program::DType;

/// A dense, unsharded tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Elements in row-major order, little-endian.
    pub bytes: Vec<u8>,
}

/// An element type that files may have and programs don't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// A program's own.
    Program(DType),
    /// IEEE 754 binary64.
    F64,
    /// 64-bit signed.
    I64,
    /// 64-bit unsigned.
    U64,
    /// 16-bit unsigned.
    U16,
    /// 8-bit unsigned.
    U8,
}

impl FileType {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Program(dtype) => dtype.bytes() as usize,
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::U16 => 2,
            Self::U8 => 1,
        }
    }

    /// Its name in a program or, if no program has it, in Rust.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Program(dtype) => dtype.name(),
            Self::F64 => "f64",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::U16 => "u16",
            Self::U8 => "u8",
        }
    }

    fn is_float(self) -> bool {
        match self {
            Self::F64 | Self::Program(DType::F32 | DType::Bf16 | DType::F16) => true,
            Self::I64 | Self::U64 | Self::U16 | Self::U8 => false,
            Self::Program(DType::I32 | DType::U32 | DType::Bool) => false,
        }
    }
}

impl HostTensor {
    /// An `f32` tensor.
    #[must_use]
    pub fn from_f32(shape: &[u64], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: DType::F32, shape: shape.to_vec(), bytes }
    }

    /// A `u32` tensor.
    #[must_use]
    pub fn from_u32(shape: &[u64], values: &[u32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: DType::U32, shape: shape.to_vec(), bytes }
    }

    /// The elements as `f32`, converted if they are of another type.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let width = self.dtype.bytes() as usize;
        let file_type = FileType::Program(self.dtype);
        self.bytes.chunks_exact(width).map(|element| read_float(file_type, element) as f32).collect()
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Converts elements to a program's type. Floats become floats, rounded to nearest even (`f64` to
/// `Bf16` and `F16` by way of `f32`); integers become integers and must fit.
///
/// # Errors
/// A float for an integer or the other way round, or an integer that does not fit.
pub fn convert(from: FileType, bytes: &[u8], to: DType) -> Result<Vec<u8>> {
    if from == FileType::Program(to) {
        return Ok(bytes.to_vec());
    }
    let elements = bytes.chunks_exact(from.bytes());
    match (from.is_float(), FileType::Program(to).is_float()) {
        (true, true) => Ok(elements.flat_map(|element| write_float(to, read_float(from, element))).collect()),
        (false, false) => convert_integers(from, bytes, to),
        (true, false) | (false, true) => {
            Err(RuntimeError::input(format!("{} can't be read as {}", from.name(), to.name())))
        }
    }
}

fn convert_integers(from: FileType, bytes: &[u8], to: DType) -> Result<Vec<u8>> {
    let mut converted = Vec::with_capacity(bytes.len());
    for element in bytes.chunks_exact(from.bytes()) {
        let value = read_integer(from, element);
        let fits = match to {
            DType::I32 => i32::try_from(value).map(|value| converted.extend(value.to_le_bytes())).is_ok(),
            // −1 is the usual mark of an ignored label; as u32 it is 0xffffffff.
            DType::U32 if value == -1 => {
                converted.extend(u32::MAX.to_le_bytes());
                true
            }
            DType::U32 => u32::try_from(value).map(|value| converted.extend(value.to_le_bytes())).is_ok(),
            DType::Bool => {
                converted.push(u8::from(value != 0));
                true
            }
            DType::F32 | DType::Bf16 | DType::F16 => false,
        };
        if !fits {
            return Err(RuntimeError::input(format!("the value {value} does not fit {}", to.name())));
        }
    }
    Ok(converted)
}

/// The value of an element, given exactly its bytes; integers are converted.
fn read_float(from: FileType, element: &[u8]) -> f64 {
    match from {
        FileType::Program(DType::F32) => f32::from_le_bytes(array(element)).into(),
        FileType::Program(DType::Bf16) => bf16::from_le_bytes(array(element)).into(),
        FileType::Program(DType::F16) => f16::from_le_bytes(array(element)).into(),
        FileType::F64 => f64::from_le_bytes(array(element)),
        FileType::I64 | FileType::U64 | FileType::U16 | FileType::U8 => read_integer(from, element) as f64,
        FileType::Program(DType::I32 | DType::U32 | DType::Bool) => read_integer(from, element) as f64,
    }
}

/// The value of an integer element; 0 for a float.
fn read_integer(from: FileType, element: &[u8]) -> i128 {
    match from {
        FileType::Program(DType::I32) => i32::from_le_bytes(array(element)).into(),
        FileType::Program(DType::U32) => u32::from_le_bytes(array(element)).into(),
        FileType::Program(DType::Bool) | FileType::U8 => element[0].into(),
        FileType::I64 => i64::from_le_bytes(array(element)).into(),
        FileType::U64 => u64::from_le_bytes(array(element)).into(),
        FileType::U16 => u16::from_le_bytes(array(element)).into(),
        FileType::F64 | FileType::Program(DType::F32 | DType::Bf16 | DType::F16) => 0,
    }
}

/// The bytes of a float, rounded to `to`; an integer type gets nothing.
pub(crate) fn write_float(to: DType, value: f64) -> impl Iterator<Item = u8> {
    let count = if FileType::Program(to).is_float() { to.bytes() as usize } else { 0 };
    to.pattern(value).into_iter().take(count)
}

/// The bytes of an element; all callers cut chunks of the right size.
fn array<const N: usize>(element: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(element);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_rounded_to_nearest_even() {
        let halves: Vec<u8> = [1.0f32, -2.5].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        let floats = convert(FileType::Program(DType::F16), &halves, DType::F32).expect("floats convert");
        assert_eq!(floats, [1.0f32.to_le_bytes(), (-2.5f32).to_le_bytes()].concat());
        assert_eq!(convert(FileType::Program(DType::F32), &floats, DType::F16), Ok(halves));
        let large = 65_520f32.to_le_bytes();
        assert_eq!(convert(FileType::Program(DType::F32), &large, DType::F16), Ok(vec![0x00, 0x7c]));
        // Half way between two bf16 values in f32; the bit below decides.
        let tie = f32::from_bits(0x3f80_8000).to_le_bytes();
        assert_eq!(convert(FileType::Program(DType::F32), &tie, DType::Bf16), Ok(vec![0x80, 0x3f]));
        let above = f32::from_bits(0x3f80_8001).to_le_bytes();
        assert_eq!(convert(FileType::Program(DType::F32), &above, DType::Bf16), Ok(vec![0x81, 0x3f]));
    }

    #[test]
    fn integers_must_fit() {
        let large = (1i64 << 40).to_le_bytes();
        assert!(convert(FileType::I64, &large, DType::U32).is_err());
        let ignored = (-1i64).to_le_bytes();
        assert_eq!(convert(FileType::I64, &ignored, DType::U32), Ok(vec![0xff; 4]));
        assert!(convert(FileType::F64, &1f64.to_le_bytes(), DType::U32).is_err());
    }
}
