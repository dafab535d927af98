//! Which values a tensor of the user may hold: indices stay below the size of what they index, floats are numbers.
//!
//! From bytes in a program's types to what is wrong with them. Reads no files.

use half::{bf16, f16};

use crate::program::DType;
use serde::{Deserialize, Serialize};

/// What the integers of an input index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexBound {
    /// The input.
    pub input: String,
    /// The name of the dimension that they index.
    pub dim: String,
    /// Its size: they are below it.
    pub below: u64,
    /// Values that may stand beside indices, such as the label that does not count.
    pub marks: Vec<u32>,
}

impl IndexBound {
    /// What is wrong with integers of this input, if anything is.
    #[must_use]
    pub fn fault(&self, dtype: DType, bytes: &[u8]) -> Option<String> {
        if !matches!(dtype, DType::U32 | DType::I32) {
            return None;
        }
        let words =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let fits = |word: u32| u64::from(word) < self.below || self.marks.contains(&word);
        let (at, word) = words.enumerate().find(|&(_, word)| !fits(word))?;
        let value = if dtype == DType::I32 { i64::from(word as i32) } else { i64::from(word) };
        let Self { input, dim, below, .. } = self;
        Some(format!("`{input}` holds {value} (element {at}), and `{dim}` has {below} places, from 0"))
    }
}

/// Which floats are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not-a-number.
    Nan,
    /// That, and infinities.
    NotFinite,
}

/// What is wrong with the values of an input, if anything is: an index out of range, or NaN. Infinities may be meant,
/// as in a mask that is added.
#[must_use]
pub fn input_fault(name: &str, dtype: DType, bytes: &[u8], bounds: &[IndexBound]) -> Option<String> {
    let bound = bounds.iter().find(|bound| bound.input == name);
    let index = bound.and_then(|bound| bound.fault(dtype, bytes));
    index.or_else(|| {
        let (at, _) = find_float(dtype, bytes, Refused::Nan)?;
        Some(format!("`{name}` holds NaN (element {at})"))
    })
}

/// The first float that is refused: its index and value.
#[must_use]
pub fn find_float(dtype: DType, bytes: &[u8], refused: Refused) -> Option<(usize, f32)> {
    let is_refused = |value: f32| match refused {
        Refused::Nan => value.is_nan(),
        Refused::NotFinite => !value.is_finite(),
    };
    let mut found = match dtype {
        DType::F32 => find(bytes, |[a, b, c, d]| f32::from_le_bytes([a, b, c, d]), is_refused),
        DType::Bf16 => find(bytes, |[a, b]| bf16::from_le_bytes([a, b]).to_f32(), is_refused),
        DType::F16 => find(bytes, |[a, b]| f16::from_le_bytes([a, b]).to_f32(), is_refused),
        DType::I32 | DType::U32 | DType::Bool => None,
    }?;
    // One sign of not-a-number is as good as the other.
    if found.1.is_nan() {
        found.1 = f32::NAN;
    }
    Some(found)
}

fn find<const WIDTH: usize>(
    bytes: &[u8],
    read: impl Fn([u8; WIDTH]) -> f32,
    is_refused: impl Fn(f32) -> bool,
) -> Option<(usize, f32)> {
    let elements = bytes.as_chunks::<WIDTH>().0.iter();
    elements.map(|&element| read(element)).enumerate().find(|&(_, value)| is_refused(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn indices_stay_below_their_table_or_are_marks() {
        let bound = IndexBound { input: "labels".into(), dim: "V".into(), below: 4, marks: vec![u32::MAX] };
        assert_eq!(bound.fault(DType::U32, &bytes(&[0, 3, u32::MAX])), None);
        let fault = bound.fault(DType::U32, &bytes(&[3, 4])).expect("4 is too large");
        assert!(fault.contains("holds 4 (element 1)"), "{fault}");
        let fault = bound.fault(DType::I32, &bytes(&[(-2i32) as u32])).expect("-2 is no mark");
        assert!(fault.contains("holds -2"), "{fault}");
    }

    #[test]
    fn the_first_bad_float_is_found() {
        let floats: Vec<u8> =
            [1.0, f32::INFINITY, f32::NAN].iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        assert_eq!(find_float(DType::F32, &floats, Refused::NotFinite), Some((1, f32::INFINITY)));
        assert_eq!(find_float(DType::F32, &floats, Refused::Nan).map(|(index, _)| index), Some(2));
        assert_eq!(find_float(DType::U32, &bytes(&[u32::MAX]), Refused::Nan), None);
        let narrow: Vec<u8> = [bf16::ONE, bf16::NAN].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(find_float(DType::Bf16, &narrow, Refused::Nan).map(|(index, _)| index), Some(1));
    }
}
