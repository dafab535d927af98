//! Tensor maps, as the driver encodes them for its device.

use super::Gpu;
use super::calls::{check, cuTensorMapEncodeTiled};
use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use dtlc_emulator::{DriverError, Swizzle, TENSOR_MAP_BYTES, TensorMap};

impl Gpu {
    pub(super) fn encoded(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES], DriverError> {
        map.check()?;
        if self.capability.0 < 9 {
            return Err(DriverError::BadTensorMap(format!("{} has none, being older than 9.0", self.name)));
        }
        self.enter()?;
        let swizzle = match map.swizzle {
            Swizzle::None => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Swizzle::Bytes32 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Swizzle::Bytes64 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Swizzle::Bytes128 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let mut encoded = CUtensorMap { opaque: [0; 16] };
        let steps = vec![1_u32; map.sizes.len()];
        // SAFETY: `check` has made sure that the lists are as long as the rank says, strides one less; the library copies them, and the map
        // is a variable of ours.
        let made = unsafe {
            cuTensorMapEncodeTiled(
                &raw mut encoded,
                // Or another float of 16 bits: copies move bytes, and outside are zeros.
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                map.sizes.len() as u32,
                std::ptr::without_provenance_mut(map.base.0 as usize),
                map.sizes.as_ptr(),
                map.strides.as_ptr(),
                map.box_sizes.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check(made, || format!("making a map of {map:?}"))?;
        let mut bytes = [0; TENSOR_MAP_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(encoded.opaque) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(bytes)
    }
}
