//! The matrix product against f64 sums: odd sizes, every layout and type, batches, compound contractions,
//! every instruction set, and the same bits for any number of parts.

mod support;

use dtlc_kernels::{
    isa::Isa,
    matmul::matmul_with,
    signature::{Accumulation, ContractionDim, Element, Factors, MatmulSpec},
};
use support::{Numbers, Stored, least_rounding, rounding, run_parts};

const ELEMENTS: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

/// A contraction in the general form, with buffers.
struct Case {
    dims: Vec<ContractionDim>,
    a: Stored,
    b: Stored,
    c: Stored,
    spec: MatmulSpec,
}

/// The dims of the case, before layouts: extent and which of A, B, C has it.
type Shape = [(usize, [bool; 3])];

const BATCH: [bool; 3] = [true, true, true];
const ROW: [bool; 3] = [true, false, true];
const COLUMN: [bool; 3] = [false, true, true];
const SUM: [bool; 3] = [true, true, false];

impl Case {
    /// Gives each tensor its dims in a random order, sometimes with padding.
    fn random(shape: &Shape, numbers: &mut Numbers) -> Case {
        let mut strides = vec![[None; 3]; shape.len()];
        let mut sizes = [1usize; 3];
        for tensor in 0..3 {
            let mut order: Vec<usize> = (0..shape.len()).filter(|&dim| shape[dim].1[tensor]).collect();
            for index in (1..order.len()).rev() {
                order.swap(index, numbers.below(index + 1));
            }
            let mut stride = numbers.pick(&[1, 1, 1, 2]);
            for dim in order {
                strides[dim][tensor] = Some(stride as isize);
                stride = stride * shape[dim].0 + numbers.pick(&[0, 0, 0, 5]);
            }
            sizes[tensor] = stride.max(1);
        }
        let dims: Vec<ContractionDim> = shape
            .iter()
            .zip(strides)
            .map(|(&(extent, _), [a, b, c])| ContractionDim { extent, a, b, c })
            .collect();
        let [a, b, c] = sizes.map(|size| Stored::random(numbers.pick(&ELEMENTS), size, numbers));
        let mut spec = MatmulSpec::contract(&dims, a.element, b.element, c.element).expect("valid");
        spec.accumulation = numbers.pick(&[Accumulation::Overwrite, Accumulation::Add]);
        spec.scale = numbers.pick(&[1.0, 0.125, -1.7]);
        spec.factors = numbers.pick(&[Factors::AsStored, Factors::Tf32]);
        Case { dims, a, b, c, spec }
    }

    fn run(&self, isa: Isa, parts: usize) -> Stored {
        let mut c = self.c.clone();
        let to = c.pointer_mut();
        run_parts(parts, self.spec.scratch_bytes(), |part, scratch| {
            // SAFETY: the buffers were sized by the dims that the spec was made from, scratch by the spec.
            unsafe { matmul_with(isa, &self.spec, self.a.pointer(), self.b.pointer(), to, scratch, part) };
        });
        c
    }

    /// Checks every element of C's memory, gaps between its elements included, against f64 sums.
    fn check(&self, result: &Stored) {
        let k: usize = self.dims.iter().filter(|dim| dim.c.is_none()).map(|dim| dim.extent).product();
        let mut sums = vec![(0.0, 0.0); self.c.len()];
        let mut written = vec![false; self.c.len()];
        self.walk(&mut |at| written[at[2]] = true, false);
        self.walk(
            &mut |at| {
                let product = self.read(&self.a, at[0]) * self.read(&self.b, at[1]);
                sums[at[2]].0 += product;
                sums[at[2]].1 += product.abs();
            },
            true,
        );
        let scale = f64::from(self.spec.scale);
        for (index, (sum, magnitude)) in sums.into_iter().enumerate() {
            let (old, new) = (self.c.get(index), result.get(index));
            if !written[index] {
                assert_eq!(old, new, "wrote between elements of C");
                continue;
            }
            let kept = if self.spec.accumulation == Accumulation::Add { old } else { 0.0 };
            let expected = kept + scale * sum;
            let unit = rounding(Element::F32);
            let bound = (k + 2) as f64 * unit * (magnitude * scale.abs() + kept.abs())
                + rounding(result.element) * 1.01 * expected.abs()
                + least_rounding(result.element)
                + f64::from(f32::MIN_POSITIVE);
            assert!(
                (new - expected).abs() <= bound,
                "{new} is not {expected} within {bound}: {:?}",
                self.spec
            );
        }
    }

    /// A factor as the product reads it.
    fn read(&self, operand: &Stored, index: usize) -> f64 {
        let stored = operand.get(index);
        match self.spec.factors {
            Factors::AsStored => stored,
            Factors::Tf32 => tf32(stored),
        }
    }

    /// Visits the offsets in A, B and C of each index, the sum's too if `summed`.
    fn walk(&self, visit: &mut dyn FnMut([usize; 3]), summed: bool) {
        let dims: Vec<ContractionDim> =
            self.dims.iter().copied().filter(|dim| summed || dim.c.is_some()).collect();
        let total: usize = dims.iter().map(|dim| dim.extent).product();
        for flat in 0..total {
            let (mut at, mut remaining) = ([0; 3], flat);
            for dim in &dims {
                let step = remaining % dim.extent;
                remaining /= dim.extent;
                for (at, stride) in at.iter_mut().zip([dim.a, dim.b, dim.c]) {
                    *at += step * stride.unwrap_or(0) as usize;
                }
            }
            visit(at);
        }
    }
}

/// A finite number to ten fraction bits, by the definition: to whole steps of its exponent, which is at least that of subnormals; halves go away from zero.
fn tf32(value: f64) -> f64 {
    let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let step = f64::from(exponent.max(-126) - 10).exp2();
    let rounded = (value / step).round() * step;
    if rounded.abs() > f64::from(f32::MAX) { f64::INFINITY.copysign(rounded) } else { rounded }
}

fn check_shape(shape: &Shape, numbers: &mut Numbers) {
    let case = Case::random(shape, numbers);
    for &isa in Isa::available() {
        let whole = case.run(isa, 1);
        case.check(&whole);
        for parts in [2, 3, 8] {
            assert!(case.run(isa, parts) == whole, "{parts} parts differ: {:?}", case.spec);
        }
    }
}

#[test]
fn small_products_of_every_layout() {
    let mut numbers = Numbers(1);
    for _ in 0..300 {
        let mut extent = || numbers.pick(&[1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 33, 63, 64, 65, 70]);
        let shape = [(extent(), ROW), (extent(), COLUMN), (extent(), SUM)];
        check_shape(&shape, &mut numbers);
    }
}

#[test]
fn batches_and_compound_indices() {
    let mut numbers = Numbers(2);
    for _ in 0..200 {
        let mut shape = Vec::new();
        for kind in [BATCH, BATCH, ROW, ROW, COLUMN, COLUMN, SUM, SUM, SUM] {
            if numbers.below(2) == 0 {
                shape.push((numbers.pick(&[1, 2, 3, 4, 9]), kind));
            }
        }
        check_shape(&shape, &mut numbers);
    }
}

#[test]
fn sizes_past_every_cache_block() {
    let mut numbers = Numbers(3);
    for (m, n, k) in [(401, 11, 40), (7, 391, 30), (50, 780, 9), (790, 60, 5), (5, 3, 1031), (33, 65, 513)] {
        check_shape(&[(m, ROW), (n, COLUMN), (k, SUM)], &mut numbers);
    }
}

#[test]
fn an_empty_contraction_clears_or_keeps() {
    let mut numbers = Numbers(4);
    for _ in 0..8 {
        check_shape(&[(5, ROW), (3, COLUMN), (0, SUM)], &mut numbers);
    }
}

#[test]
fn nested_dims_become_one_plain_product() {
    // [B, S, H, K] · [H, K, D] over H and K.
    let dim = |extent, a, b, c| ContractionDim { extent, a, b, c };
    let dims = [
        dim(2, Some(7 * 12), None, Some(7 * 5)),
        dim(7, Some(12), None, Some(5)),
        dim(3, Some(4), Some(20), None),
        dim(4, Some(1), Some(5), None),
        dim(5, None, Some(1), Some(1)),
    ];
    let spec = MatmulSpec::contract(&dims, Element::F32, Element::F32, Element::F32).expect("valid");
    assert!(spec.batch.is_empty());
    assert_eq!((spec.m, spec.n, spec.k(), spec.contraction.len()), (14, 5, 12, 1));
}

#[test]
fn a_dim_in_one_tensor_only_is_refused() {
    let dims = [ContractionDim { extent: 2, a: Some(1), b: None, c: None }];
    assert!(MatmulSpec::contract(&dims, Element::F32, Element::F32, Element::F32).is_err());
}

/// Numbers that are hard to round, each times one: between two of tf32 and beside that, of every exponent, and what is no finite number.
#[test]
fn factors_are_rounded_to_tf32() {
    let beside = |bits: u32| [bits, bits | 0xfff, bits | 0x1000, bits | 0x1001, bits | 0x1fff];
    let exponents = (0..=0xff_u32).map(|exponent| exponent << 23);
    let magnitudes = exponents.flat_map(|bits| [bits, bits | 0x2000, bits | 0x7f_e000]).flat_map(beside);
    let numbers: Vec<u32> = magnitudes.flat_map(|bits| [bits, bits | 1 << 31]).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
    let a = Stored::of_bytes(Element::F32, &bytes);
    let mut one = Stored::zeros(Element::F32, 1);
    one.set(0, 1.0);
    let dim = |extent, a, b, c| ContractionDim { extent, a, b, c };
    let count = numbers.len();
    // As the left factor in vectors, as the right one, and with terms that are neighbours.
    let layouts = [
        ([dim(count, Some(1), None, Some(1)), dim(1, Some(1), Some(1), None)], false),
        ([dim(count, None, Some(1), Some(1)), dim(1, Some(1), Some(1), None)], true),
        ([dim(count, Some(1), None, Some(2)), dim(1, Some(1), Some(1), None)], false),
    ];
    for (dims, swapped) in layouts {
        let mut spec = MatmulSpec::contract(&dims, Element::F32, Element::F32, Element::F32).expect("valid");
        spec.factors = Factors::Tf32;
        let (left, right) = if swapped { (&one, &a) } else { (&a, &one) };
        for &isa in Isa::available() {
            let mut c = Stored::zeros(Element::F32, 2 * count);
            let to = c.pointer_mut();
            run_parts(1, spec.scratch_bytes(), |part, scratch| {
                // SAFETY: the buffers hold what the dims reach, scratch what the spec says.
                unsafe { matmul_with(isa, &spec, left.pointer(), right.pointer(), to, scratch, part) };
            });
            let step = dims[0].c.unwrap_or(1) as usize;
            for (index, &bits) in numbers.iter().enumerate() {
                let (stored, found) = (f64::from(f32::from_bits(bits)), c.get(index * step));
                match stored.is_nan() {
                    true => assert!(found.is_nan(), "{bits:#x} on {isa:?}"),
                    false if stored.is_infinite() => assert_eq!(found, stored, "{bits:#x} on {isa:?}"),
                    false => assert_eq!(found, tf32(stored), "{bits:#x} on {isa:?}"),
                }
            }
        }
    }
}
