//! Tensors of the interpreter: named dimensions, sizes, and f64 elements in row-major order.

use crate::dim::Dim;
use smallvec::SmallVec;

/// A dense tensor. Integers and truth values (0, 1) are exact in its elements too.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dims: SmallVec<[Dim; 6]>,
    sizes: SmallVec<[usize; 6]>,
    /// The elements, row-major in the order of the dims.
    pub data: Vec<f64>,
}

impl Tensor {
    /// A tensor of equal elements.
    pub fn filled(shape: impl IntoIterator<Item = (Dim, usize)>, value: f64) -> Tensor {
        let (dims, sizes): (SmallVec<[Dim; 6]>, SmallVec<[usize; 6]>) = shape.into_iter().unzip();
        let elements = sizes.iter().product();
        Tensor { dims, sizes, data: vec![value; elements] }
    }

    /// A tensor whose element number `i` in row-major order is `value(i)`.
    pub fn from_fn(
        shape: impl IntoIterator<Item = (Dim, usize)>,
        mut value: impl FnMut(usize) -> f64,
    ) -> Tensor {
        let mut tensor = Tensor::filled(shape, 0.0);
        tensor.data.iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
        tensor
    }

    /// A tensor without dimensions.
    pub fn scalar(value: f64) -> Tensor {
        Tensor::filled([], value)
    }

    /// Its dimensions, in memory order.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }

    /// Dimensions with sizes.
    pub fn shape(&self) -> Vec<(Dim, usize)> {
        self.dims.iter().copied().zip(self.sizes.iter().copied()).collect()
    }

    /// The number of elements along `dim`; 1 if there is no such dimension.
    pub fn size(&self, dim: Dim) -> usize {
        self.dims.iter().position(|&other| other == dim).map_or(1, |at| self.sizes[at])
    }

    /// The distance between neighbours along `dim`; 0 if there is no such dimension, so that it broadcasts.
    pub fn stride(&self, dim: Dim) -> usize {
        match self.dims.iter().position(|&other| other == dim) {
            Some(at) => self.sizes[at + 1..].iter().product(),
            None => 0,
        }
    }

    /// The offset of the element that lies `steps` away from the one at offset `base`.
    pub fn offset(&self, base: usize, steps: &[(Dim, usize)]) -> usize {
        steps.iter().fold(base, |offset, &(dim, count)| offset + count * self.stride(dim))
    }

    /// The strides for the dimensions of `space`.
    pub fn strides(&self, space: &[(Dim, usize)]) -> Vec<usize> {
        space.iter().map(|&(dim, _)| self.stride(dim)).collect()
    }

    /// The same elements as a tensor of shape `shape`, which has the same number of them.
    pub fn reshaped(&self, shape: impl IntoIterator<Item = (Dim, usize)>) -> Tensor {
        let (dims, sizes) = shape.into_iter().unzip();
        Tensor { dims, sizes, data: self.data.clone() }
    }

    /// The same tensor with its dimensions in another order.
    pub fn ordered(&self, dims: &[Dim]) -> Tensor {
        let shape: Vec<(Dim, usize)> = dims.iter().map(|&dim| (dim, self.size(dim))).collect();
        let mut result = Tensor::filled(shape.iter().copied(), 0.0);
        walk(&shape, &[result.strides(&shape), self.strides(&shape)], |_, at| {
            result.data[at[0]] = self.data[at[1]];
        });
        result
    }

    /// Element `index` along `dim`, without that dimension.
    pub fn element(&self, dim: Dim, index: usize) -> Tensor {
        let rest: Vec<(Dim, usize)> = self.shape().into_iter().filter(|&(other, _)| other != dim).collect();
        let mut result = Tensor::filled(rest.iter().copied(), 0.0);
        let start = index * self.stride(dim);
        walk(&rest, &[result.strides(&rest), self.strides(&rest)], |_, at| {
            result.data[at[0]] = self.data[start + at[1]];
        });
        result
    }

    /// Adds a value with the same dimensions.
    pub fn add(&mut self, value: &Tensor) {
        let space = value.shape();
        walk(&space, &[self.strides(&space), value.strides(&space)], |_, at| {
            self.data[at[0]] += value.data[at[1]];
        });
    }

    /// Adds `value`, which lacks `dim`, to element `index` along `dim`.
    pub fn add_element(&mut self, dim: Dim, index: usize, value: &Tensor) {
        let space = value.shape();
        let start = index * self.stride(dim);
        walk(&space, &[self.strides(&space), value.strides(&space)], |_, at| {
            self.data[start + at[0]] += value.data[at[1]];
        });
    }
}

/// Visits every coordinate of `space` in row-major order, with the offset of each operand there, given the
/// operands' strides over `space`.
pub(super) fn walk(
    space: &[(Dim, usize)],
    strides: &[Vec<usize>],
    mut visit: impl FnMut(&[usize], &[usize]),
) {
    if space.iter().any(|&(_, size)| size == 0) {
        return;
    }
    let mut coordinates = vec![0; space.len()];
    let mut offsets = vec![0; strides.len()];
    loop {
        visit(&coordinates, &offsets);
        let mut at = space.len();
        loop {
            if at == 0 {
                return;
            }
            at -= 1;
            coordinates[at] += 1;
            offsets.iter_mut().zip(strides).for_each(|(offset, strides)| *offset += strides[at]);
            if coordinates[at] < space[at].1 {
                break;
            }
            coordinates[at] = 0;
            offsets
                .iter_mut()
                .zip(strides)
                .for_each(|(offset, strides)| *offset -= strides[at] * space[at].1);
        }
    }
}
