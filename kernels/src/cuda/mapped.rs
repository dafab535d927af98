//! What launches whose tiles arrive in bulk share: tensors as tensor maps describe them.
//!
//! From the loops of an operand to a [`MappedTensor`] of rows of neighbours, and where those of a batch are in its last dimension. Makes no maps.

use super::MappedTensor;
use crate::signature::Element;

/// How often an index is counted up, and the elements from one to the next.
pub(super) type Loop = (usize, isize);

/// Rows of a tensor of halves, as a tensor map describes them.
pub(super) struct MappedRows {
    pub map: MappedTensor,
    /// Elements from each place of the map's last dimension to the next.
    pub place_stride: u64,
}

impl MappedRows {
    /// Elements of a row of a box: 128 bytes.
    pub const WIDTH: usize = 64;

    /// Of a buffer that has rows of `inner` elements, so many as `outer` says, again wherever the loops of `places` lead; a box has `box_rows` of them.
    /// None where no map describes it.
    pub fn new(
        buffer: u32,
        inner: Loop,
        outer: Loop,
        places: &[Loop],
        box_rows: usize,
    ) -> Option<MappedRows> {
        let place_stride =
            places.iter().filter(|(extent, _)| *extent > 1).try_fold(0, |stride, (_, next)| {
                Some(greatest_common_divisor(stride, u64::try_from(*next).ok()?))
            })?;
        let count: u64 = match place_stride {
            0 => 1,
            stride => {
                let last = places.iter().map(|(extent, next)| (*extent as u64 - 1) * *next as u64 / stride);
                1 + last.sum::<u64>()
            }
        };
        let bytes = Element::Bf16.bytes() as u64;
        // Where there is one place there is no next one.
        let stride_of =
            |places: u64, stride: u64| if places > 1 { stride.checked_mul(bytes) } else { Some(128) };
        let strides = [
            stride_of(outer.0 as u64, u64::try_from(outer.1).ok().or((outer.0 <= 1).then_some(0))?)?,
            stride_of(count, place_stride)?,
        ];
        let sizes = [inner.0 as u64, outer.0 as u64, count];
        let is_described = (inner.1 == 1 || inner.0 == 1)
            && sizes.iter().all(|size| (1..=i32::MAX as u64).contains(size))
            && strides.iter().all(|stride| (1..1 << 40).contains(stride) && stride.is_multiple_of(16));
        let map =
            MappedTensor { buffer, sizes, strides, box_sizes: [Self::WIDTH as u32, box_rows as u32, 1] };
        is_described.then_some(MappedRows { map, place_stride: place_stride.max(1) })
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
