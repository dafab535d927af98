//! Tensors as bytes, for kernels on both sides: layouts at random, and how far two results may be apart.

use dtlc_kernels::signature::Element;
use dtlc_tests::random::rng::Rng;

/// What lies where nothing was written: NaN in both types.
pub const UNTOUCHED: u8 = 0xff;

/// A tensor's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub element: Element,
    pub bytes: Vec<u8>,
}

impl Stored {
    /// Elements that nothing has written.
    pub fn untouched(element: Element, count: usize) -> Stored {
        Stored { element, bytes: vec![UNTOUCHED; count * element.bytes()] }
    }

    /// Elements in -1..1.
    pub fn random(element: Element, count: usize, numbers: &mut Rng) -> Stored {
        Stored::of(element, (0..count).map(|_| numbers.unit() as f32 * 2.0 - 1.0))
    }

    /// The nearest elements to these numbers.
    pub fn of(element: Element, values: impl IntoIterator<Item = f32>) -> Stored {
        let mut bytes = Vec::new();
        for value in values {
            let bits = value.to_bits();
            match element {
                Element::F32 => bytes.extend(bits.to_le_bytes()),
                // To nearest, ties to even; no NaN comes here.
                Element::Bf16 => {
                    bytes.extend((((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16).to_le_bytes());
                }
            }
        }
        Stored { element, bytes }
    }

    pub fn values(&self) -> Vec<f32> {
        match self.element {
            Element::F32 => self
                .bytes
                .chunks_exact(4)
                .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
            Element::Bf16 => {
                self.bytes.chunks_exact(2).map(|half| f32::from_le_bytes([0, 0, half[0], half[1]])).collect()
            }
        }
    }

    /// The same numbers without their signs.
    pub fn magnitudes(&self) -> Stored {
        Stored::of(self.element, self.values().into_iter().map(f32::abs))
    }

    /// For a kernel of the CPU, which wants it aligned.
    pub fn pointer(&self) -> *const u8 {
        if self.bytes.is_empty() {
            return std::ptr::dangling::<u64>().cast();
        }
        let pointer = self.bytes.as_ptr();
        assert_eq!(pointer.align_offset(4), 0, "the allocator aligns to 16 bytes");
        pointer
    }

    pub fn pointer_mut(&mut self) -> *mut u8 {
        self.pointer().cast_mut()
    }
}

/// Half a unit in the last place, relative to the value.
pub fn rounding(element: Element) -> f32 {
    match element {
        Element::F32 => 2_f32.powi(-24),
        Element::Bf16 => 2_f32.powi(-8),
    }
}

/// The first element that is off by more than its bound and the rounding of both results; elsewhere, and where nothing was
/// written, the bits must be the same.
pub fn difference(found: &Stored, expected: &Stored, bounds: &[f32]) -> Option<String> {
    let (found_values, expected_values) = (found.values(), expected.values());
    let elements = found_values.iter().zip(&expected_values).zip(bounds).enumerate();
    for (index, ((found_value, expected_value), bound)) in elements {
        let bound = bound + 2.0 * rounding(found.element) * expected_value.abs();
        let is_near = found_value.to_bits() == expected_value.to_bits()
            || (found_value - expected_value).abs() <= bound;
        if !is_near {
            return Some(format!("element {index}: {found_value}, not {expected_value} within {bound}"));
        }
    }
    None
}

/// Strides of dims in a random order with a gap here and there, and the elements they span.
pub fn random_strides(extents: &[usize], numbers: &mut Rng) -> (Vec<isize>, usize) {
    let mut order: Vec<usize> = (0..extents.len()).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, numbers.below(index as u64 + 1) as usize);
    }
    strides(extents, &order, || numbers.below(4) as usize / 3 * 3)
}

/// Strides of dims in this order, innermost first.
pub fn strides(extents: &[usize], order: &[usize], mut gap: impl FnMut() -> usize) -> (Vec<isize>, usize) {
    let mut strides = vec![0; extents.len()];
    let mut span = 1;
    for &dim in order {
        strides[dim] = span as isize;
        span = span * extents[dim].max(1) + gap();
    }
    (strides, span)
}

/// Scratch for a kernel of the CPU.
pub struct Scratch(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "it is memory")] [u8; 64]);

impl Scratch {
    pub fn new(bytes: usize) -> Scratch {
        Scratch(vec![Line([UNTOUCHED; 64]); bytes.div_ceil(64)])
    }

    pub fn pointer(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}
