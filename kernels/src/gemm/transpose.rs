//! Transposes 16 by 16 blocks of 32-bit words in vector registers: how operands whose contraction steps lie side by side
//! are packed with AVX-512.

use std::arch::x86_64::*;

/// Rows and columns of a block.
pub(crate) const BLOCK: usize = 16;

/// Writes word `column` of row `row` to word `row` of line `column`, for 16 rows and columns.
///
/// # Safety
/// The host must have AVX-512 F. Row `row` is read from `row * row_bytes` behind `source` on, line `column` written to
/// `column * pitch` words behind `destination` on; neither needs to be aligned.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose_block(
    source: *const u8,
    row_bytes: isize,
    destination: *mut u32,
    pitch: usize,
) {
    // SAFETY: the caller vouches for all rows.
    let rows: [__m512; BLOCK] = std::array::from_fn(|row| unsafe {
        _mm512_loadu_ps(source.wrapping_offset(row as isize * row_bytes).cast())
    });
    // Within each quarter of 128 bits: words of two rows, then of four.
    let pairs: [__m512; BLOCK] = std::array::from_fn(|index| {
        let (upper, lower) = (rows[index & !1], rows[index | 1]);
        if index % 2 == 0 { _mm512_unpacklo_ps(upper, lower) } else { _mm512_unpackhi_ps(upper, lower) }
    });
    let quads: [__m512; BLOCK] = std::array::from_fn(|index| {
        let (group, word) = (index & !3, index & 3);
        let upper = _mm512_castps_pd(pairs[group + word / 2]);
        let lower = _mm512_castps_pd(pairs[group + 2 + word / 2]);
        let joined =
            if word % 2 == 0 { _mm512_unpacklo_pd(upper, lower) } else { _mm512_unpackhi_pd(upper, lower) };
        _mm512_castpd_ps(joined)
    });
    // Then the quarters: quarter `q` of `quads[4 g + w]` is word `4 q + w` of rows `4 g` to `4 g + 3`.
    for word in 0..4 {
        let [first, second, third, fourth] = std::array::from_fn(|group| quads[4 * group + word]);
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(first, second);
        let high = _mm512_shuffle_f32x4::<0b10_00_10_00>(third, fourth);
        let low_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(first, second);
        let high_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(third, fourth);
        let lines = [
            _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high),
            _mm512_shuffle_f32x4::<0b10_00_10_00>(low_odd, high_odd),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(low_odd, high_odd),
        ];
        for (quarter, line) in lines.into_iter().enumerate() {
            // SAFETY: the caller vouches for all lines.
            unsafe { _mm512_storeu_ps(destination.add((4 * quarter + word) * pitch).cast(), line) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_transposed() {
        if !is_x86_feature_detected!("avx512f") {
            println!("skipped: this processor has no AVX-512");
            return;
        }
        let source: Vec<u32> = (0..16 * 20).collect();
        let mut destination = vec![0u32; 16 * 18];
        // SAFETY: AVX-512 is there; rows of 20 and lines of 18 words hold the block.
        unsafe { transpose_block(source.as_ptr().cast(), 80, destination.as_mut_ptr(), 18) };
        for row in 0..16 {
            for column in 0..16 {
                assert_eq!(destination[column * 18 + row], source[row * 20 + column], "{row} {column}");
            }
        }
    }
}
