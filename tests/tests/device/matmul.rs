//! Matrix products of every layout, against the CPU's.

use crate::bench::{Bench, Placing, compiled};
use crate::support::{Numbers, Scratch, Stored, rounding};
use crate::tensor::{difference, magnitudes, random_strides, strides, untouched};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_emulator::DriverError;
use dtlc_kernels::cuda::{DeviceCall, matmul};
use dtlc_kernels::matmul::matmul as matmul_on_host;
use dtlc_kernels::signature::{Accumulation, BatchLoop, ContractionLoop, Element, Factors, MatmulSpec, Part};

/// Sizes of a product; layouts are drawn.
#[derive(Clone, Debug)]
pub struct Shape {
    pub batch: Vec<Batch>,
    pub m: usize,
    pub n: usize,
    pub contraction: Vec<usize>,
    pub elements: [Element; 3],
    pub factors: Factors,
    pub accumulation: Accumulation,
    pub scale: f32,
}

/// A loop over products, and which operands it moves through.
#[derive(Clone, Copy, Debug)]
pub enum Batch {
    Both(usize),
    OnlyA(usize),
    OnlyB(usize),
}

impl Batch {
    fn extents(self) -> [usize; 3] {
        match self {
            Batch::Both(extent) => [extent, extent, extent],
            Batch::OnlyA(extent) => [extent, 1, extent],
            Batch::OnlyB(extent) => [1, extent, extent],
        }
    }
}

pub const F32: [Element; 3] = [Element::F32; 3];

/// A product of f32 without batch.
pub fn plain(m: usize, n: usize, k: usize) -> Shape {
    Shape {
        batch: vec![],
        m,
        n,
        contraction: vec![k],
        elements: F32,
        factors: Factors::AsStored,
        accumulation: Accumulation::Overwrite,
        scale: 1.0,
    }
}

/// A product with its operands.
pub struct Case {
    pub spec: MatmulSpec,
    pub a: Stored,
    pub b: Stored,
    pub c: Stored,
}

impl Case {
    /// Layouts and numbers at random.
    pub fn random(shape: &Shape, numbers: &mut Numbers) -> Case {
        let mut layouts = Vec::new();
        for extents in shape.extents() {
            layouts.push(random_strides(&extents, numbers));
        }
        Case::with(shape, &layouts, numbers)
    }

    /// Dense operands: A with its terms or its rows innermost, B with its terms or its columns, C with its columns or its rows.
    pub fn dense(shape: &Shape, innermost: [Innermost; 3], numbers: &mut Numbers) -> Case {
        Case::padded(shape, innermost, 1, numbers)
    }

    /// The same, with all strides but the innermost multiples of `step`.
    pub fn padded(shape: &Shape, [a, b, c]: [Innermost; 3], step: usize, numbers: &mut Numbers) -> Case {
        let batches = shape.batch.len();
        let layouts: Vec<(Vec<isize>, usize)> = shape
            .extents()
            .iter()
            .zip([a, b, c])
            .map(|(extents, innermost)| {
                let lines_first = || batches..extents.len();
                let mut order: Vec<usize> = match innermost {
                    Innermost::Lines => lines_first().collect(),
                    Innermost::Others => lines_first().rev().collect(),
                };
                order.extend((0..batches).rev());
                strides(extents, &order, |span| span.next_multiple_of(step) - span)
            })
            .collect();
        Case::with(shape, &layouts, numbers)
    }

    fn with(shape: &Shape, layouts: &[(Vec<isize>, usize)], numbers: &mut Numbers) -> Case {
        let [(a, a_span), (b, b_span), (c, c_span)] = layouts else { panic!("three operands") };
        let batches = shape.batch.len();
        let batch = shape.batch.iter().enumerate().map(|(index, batch)| {
            let [in_a, in_b, extent] = batch.extents();
            let moved = |stride: isize, own: usize| if own == 1 { 0 } else { stride };
            BatchLoop {
                extent,
                stride_a: moved(a[index], in_a),
                stride_b: moved(b[index], in_b),
                stride_c: c[index],
            }
        });
        let terms = shape.contraction.iter().enumerate().map(|(index, &extent)| ContractionLoop {
            extent,
            stride_a: a[batches + 1 + index],
            stride_b: b[batches + 1 + index],
        });
        let spec = MatmulSpec {
            batch: batch.collect(),
            m: shape.m,
            n: shape.n,
            contraction: terms.collect(),
            a_row_stride: a[batches],
            b_column_stride: b[batches],
            c_row_stride: c[batches],
            c_column_stride: c[batches + 1],
            a: shape.elements[0],
            b: shape.elements[1],
            c: shape.elements[2],
            factors: shape.factors,
            accumulation: shape.accumulation,
            scale: shape.scale,
        };
        let c = match shape.accumulation {
            Accumulation::Overwrite => untouched(spec.c, *c_span),
            Accumulation::Add => Stored::random(spec.c, *c_span, numbers),
        };
        let (a, b) = (Stored::random(spec.a, *a_span, numbers), Stored::random(spec.b, *b_span, numbers));
        Case { spec, a, b, c }
    }

    /// What a call makes of the output.
    pub fn output(
        &self,
        call: &DeviceCall,
        bench: &mut Bench,
        placing: Placing,
    ) -> Result<Vec<u8>, DriverError> {
        let mut buffers = [&self.a, &self.b, &self.c].map(Stored::bytes);
        bench.run(call, &mut buffers, &[], placing)?;
        let [.., output] = buffers;
        Ok(output)
    }

    /// The difference to the CPU's result, if there is one.
    pub fn judge(&self, call: &DeviceCall, bench: &mut Bench, placing: Placing) -> Option<String> {
        match self.output(call, bench, placing) {
            Ok(output) => self.difference(&output),
            Err(error) => Some(error.to_string()),
        }
    }

    /// How an output differs from the CPU's, if it does.
    pub fn difference(&self, output: &[u8]) -> Option<String> {
        difference(&Stored::of_bytes(self.spec.c, output), &self.on_host(), &self.bounds())
    }

    /// The CPU's result.
    pub fn on_host(&self) -> Stored {
        let mut result = self.c.clone();
        on_host(&self.spec, &self.a, &self.b, &mut result);
        result
    }

    /// Twice the error of a sum of K products in f32, in any order: K + 2 roundings of the sum of magnitudes, K of products and
    /// sums, one by the scale and one with what was there.
    fn bounds(&self) -> Stored {
        let spec = MatmulSpec { c: Element::F32, scale: self.spec.scale.abs(), ..self.spec.clone() };
        let (a, b) = (magnitudes(&self.a, spec.a), magnitudes(&self.b, spec.b));
        let mut sums = match spec.accumulation {
            Accumulation::Overwrite => Stored::zeros(Element::F32, self.c.len()),
            Accumulation::Add => magnitudes(&self.c, Element::F32),
        };
        on_host(&spec, &a, &b, &mut sums);
        let roundings = 2.0 * (spec.k() + 2) as f64 * rounding(Element::F32);
        (0..sums.len()).for_each(|index| sums.set(index, sums.get(index) * roundings));
        sums
    }
}

/// Which of an operand's two indices has stride 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Innermost {
    /// Rows of A or C, columns of B.
    Lines,
    /// Terms of A and B, columns of C.
    Others,
}

impl Shape {
    /// Extents of each operand: batch, lines (rows of C), terms (columns of C).
    fn extents(&self) -> [Vec<usize>; 3] {
        let of = |operand: usize| self.batch.iter().map(move |batch| batch.extents()[operand]);
        let terms = || self.contraction.iter().copied();
        [
            of(0).chain([self.m]).chain(terms()).collect(),
            of(1).chain([self.n]).chain(terms()).collect(),
            of(2).chain([self.m, self.n]).collect(),
        ]
    }
}

fn on_host(spec: &MatmulSpec, a: &Stored, b: &Stored, c: &mut Stored) {
    let mut scratch = Scratch::new(spec.scratch_bytes());
    // SAFETY: operands were made as large as their strides reach, scratch as the descriptor says.
    unsafe {
        matmul_on_host(spec, a.pointer(), b.pointer(), c.pointer_mut(), scratch.pointer(), Part::WHOLE);
    }
}

/// Holds a call to the CPU's result.
pub fn check(shape: &Shape, case: &Case, bench: &mut Bench, placing: Placing) {
    let call = matmul(&case.spec, None).unwrap_or_else(|error| panic!("{error}: {shape:?}"));
    if let Some(difference) = case.judge(&call, bench, placing) {
        let source = call.launches.first().map_or("", |launch| &launch.source);
        panic!("{shape:?} {:?} {placing:?}\n{difference}\n{source}", case.spec);
    }
}

pub const OPERANDS: [Innermost; 2] = [Innermost::Lines, Innermost::Others];

#[test]
fn every_transpose_in_f32() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(1);
    for a in OPERANDS {
        for b in OPERANDS {
            for c in OPERANDS {
                let shape = plain(70, 67, 35);
                let case = Case::dense(&shape, [a, b, c], &mut numbers);
                check(&shape, &case, &mut bench, Placing::Aligned);
            }
        }
    }
}

#[test]
fn odd_sizes_batches_broken_contractions_and_every_type() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(2);
    let (f32, bf16, f16) = (Element::F32, Element::Bf16, Element::F16);
    let shapes = [
        plain(1, 1, 1),
        plain(1, 200, 17),
        plain(130, 1, 40),
        Shape { contraction: vec![], ..plain(5, 7, 1) },
        Shape { contraction: vec![0], ..plain(3, 4, 1) },
        Shape {
            contraction: vec![3, 5, 7],
            accumulation: Accumulation::Add,
            scale: -0.3,
            ..plain(33, 40, 1)
        },
        Shape { batch: vec![Batch::Both(3), Batch::OnlyA(2), Batch::OnlyB(2)], ..plain(20, 65, 19) },
        Shape { batch: vec![Batch::OnlyB(5)], elements: [bf16, bf16, bf16], ..plain(17, 9, 50) },
        Shape { elements: [f32, bf16, f32], accumulation: Accumulation::Add, ..plain(66, 31, 33) },
        Shape {
            elements: [bf16, f32, bf16],
            accumulation: Accumulation::Add,
            scale: 0.125,
            ..plain(31, 66, 18)
        },
        Shape { elements: [f16, f32, f16], accumulation: Accumulation::Add, ..plain(31, 40, 33) },
        Shape { elements: [bf16, f16, f32], scale: 0.125, ..plain(17, 31, 20) },
    ];
    for shape in shapes {
        let case = Case::random(&shape, &mut numbers);
        check(&shape, &case, &mut bench, Placing::Aligned);
    }
}

/// The large tiles, from code for a later architecture.
#[test]
fn a_product_that_fills_a_device() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let shape = Shape { batch: vec![Batch::Both(32)], scale: 2.0, ..plain(130, 250, 21) };
    let case = Case::dense(&shape, [Innermost::Others, Innermost::Lines, Innermost::Others], &mut Numbers(3));
    let call = matmul(&case.spec, None).expect("a valid descriptor");
    assert!(call.launches[0].source.contains("TILE_ROWS = 128"));
    check(&shape, &case, &mut bench, Placing::Aligned);
}

#[test]
fn what_is_empty_is_not_launched() {
    for (m, n, batch) in [(0, 3, 1), (3, 0, 1), (3, 3, 0)] {
        let shape = Shape { batch: vec![Batch::Both(batch)], ..plain(m, n, 2) };
        let case = Case::random(&shape, &mut Numbers(4));
        assert_eq!(matmul(&case.spec, None).expect("a valid descriptor"), DeviceCall::default());
    }
}

#[test]
fn products_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let mut numbers = Numbers(5);
    let shapes = [
        plain(64, 64, 64),
        Shape { batch: vec![Batch::Both(128)], ..plain(128, 128, 64) },
        Shape { contraction: vec![3, 5], accumulation: Accumulation::Add, scale: 0.1, ..plain(65, 63, 1) },
    ];
    for shape in shapes {
        let call = matmul(&Case::random(&shape, &mut numbers).spec, None).expect("a valid descriptor");
        for architecture in Architecture::ALL {
            compiled(&call.launches[0], architecture);
        }
    }
}
