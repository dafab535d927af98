//! Layouts at random, and how far two results may be apart.

use crate::support::{Numbers, Stored, least_rounding, rounding};
use dtlc_kernels::signature::Element;

/// Elements that nothing has written: NaN in both types, with bits that no kernel makes.
pub fn untouched(element: Element, count: usize) -> Stored {
    Stored::of_bytes(element, &vec![0xff; count * element.bytes()])
}

/// The same numbers without their signs.
pub fn magnitudes(stored: &Stored, element: Element) -> Stored {
    let mut result = Stored::zeros(element, stored.len());
    (0..stored.len()).for_each(|index| result.set(index, stored.get(index).abs()));
    result
}

/// The first element that is off by more than its bound and the rounding of both results. Where nothing was written it must be NaN
/// on both sides.
pub fn difference(found: &Stored, expected: &Stored, bounds: &Stored) -> Option<String> {
    (0..expected.len()).find_map(|index| {
        let (found_value, expected_value) = (found.get(index), expected.get(index));
        let bound = bounds.get(index)
            + 2.0 * (rounding(found.element) * expected_value.abs() + least_rounding(found.element));
        let is_near = (found_value - expected_value).abs() <= bound
            || found_value == expected_value
            || found_value.is_nan() && expected_value.is_nan();
        (!is_near).then(|| format!("element {index}: {found_value}, not {expected_value} within {bound}"))
    })
}

/// Strides of dims in a random order with a gap here and there, and the elements they span.
pub fn random_strides(extents: &[usize], numbers: &mut Numbers) -> (Vec<isize>, usize) {
    let mut order: Vec<usize> = (0..extents.len()).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, numbers.below(index + 1));
    }
    strides(extents, &order, |_| numbers.pick(&[0, 0, 3]))
}

/// Strides of dims in this order, innermost first, with gaps behind so many elements.
pub fn strides(
    extents: &[usize],
    order: &[usize],
    mut gap: impl FnMut(usize) -> usize,
) -> (Vec<isize>, usize) {
    let mut strides = vec![0; extents.len()];
    let mut span = 1;
    for &dim in order {
        strides[dim] = span as isize;
        span *= extents[dim].max(1);
        span += gap(span);
    }
    (strides, span)
}
