//! Take and scatter-add against the CPU's: shards of a vocabulary, ids outside, both types, skewed ids.

use crate::bench::{Bench, Placing, compiled};
use crate::support::{Numbers, Scratch, Stored};
use crate::tensor::{difference, untouched};
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::{DeviceCall, scatter_add, take};
use dtlc_kernels::embedding::{scatter_add as scatter_on_host, take as take_on_host};
use dtlc_kernels::signature::{Accumulation, Element, Part, ScatterAddSpec, TakeSpec};

const ELEMENTS: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

/// Ids below `bound`, half of them the same, one of them negative.
fn random_ids(count: usize, bound: usize, numbers: &mut Numbers) -> Vec<u32> {
    let mut id = || numbers.below(bound) as u32;
    let often = id();
    let mut ids: Vec<u32> = (0..count).map(|index| if index % 2 == 0 { id() } else { often }).collect();
    if let Some(id) = ids.get_mut(count / 2) {
        *id = (-100_i32).cast_unsigned();
    }
    ids
}

fn bytes_of(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

#[test]
fn take_reads_the_shard_and_zeros_elsewhere() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(1);
    for element in ELEMENTS {
        for (tokens, vocabulary, width, offset) in
            [(1, 1, 1, 0), (33, 10, 7, 0), (50, 9, 64, 9), (70, 0, 3, 5), (0, 3, 3, 0)]
        {
            let spec = TakeSpec { tokens, vocabulary, width, element };
            let table = Stored::random(element, vocabulary * width, &mut numbers);
            let ids = random_ids(tokens, offset as usize + vocabulary + 5, &mut numbers);
            let mut expected = untouched(element, tokens * width);
            // SAFETY: the buffers have the sizes that the descriptor states.
            unsafe {
                take_on_host(
                    &spec,
                    table.pointer(),
                    ids.as_ptr(),
                    expected.pointer_mut(),
                    offset,
                    Part::WHOLE,
                );
            }
            for placing in [Placing::Aligned, Placing::Behind(4)] {
                let output = untouched(element, tokens * width);
                let mut buffers = [table.bytes(), bytes_of(&ids), output.bytes()];
                bench
                    .run(&take(&spec), &mut buffers, &[offset], placing)
                    .unwrap_or_else(|error| panic!("{error}"));
                assert!(buffers[2] == expected.bytes(), "{spec:?} {placing:?}");
            }
        }
    }
}

/// A scatter with its operands.
pub struct Scatter {
    pub spec: ScatterAddSpec,
    source: Stored,
    ids: Vec<u32>,
    output: Stored,
    offset: i64,
}

impl Scatter {
    pub fn random(spec: ScatterAddSpec, offset: i64, numbers: &mut Numbers) -> Scatter {
        let source = Stored::random(spec.source, spec.tokens * spec.width, numbers);
        let ids = random_ids(spec.tokens, offset as usize + spec.vocabulary + 3, numbers);
        let count = spec.vocabulary * spec.width;
        let output = match spec.accumulation {
            Accumulation::Overwrite => untouched(spec.output, count),
            Accumulation::Add => Stored::random(spec.output, count, numbers),
        };
        Scatter { spec, source, ids, output, offset }
    }

    /// The difference to the CPU's result. Both take the same sums in the same order.
    pub fn judge(&self, call: &DeviceCall, bench: &mut Bench) -> Option<String> {
        let mut expected = self.output.clone();
        let mut scratch = Scratch::new(self.spec.scratch_bytes());
        // SAFETY: the buffers have the sizes that the descriptor states.
        unsafe {
            scatter_on_host(
                &self.spec,
                self.source.pointer(),
                self.ids.as_ptr(),
                expected.pointer_mut(),
                self.offset,
                scratch.pointer(),
                Part::WHOLE,
            );
        }
        let mut buffers = [self.source.bytes(), bytes_of(&self.ids), self.output.bytes()];
        if let Err(error) = bench.run(call, &mut buffers, &[self.offset], Placing::Aligned) {
            return Some(error.to_string());
        }
        let found = Stored::of_bytes(self.spec.output, &buffers[2]);
        let bounds = Stored::zeros(Element::F32, expected.len());
        let by_rounding = || "by a rounding".to_owned();
        (found != expected).then(|| difference(&found, &expected, &bounds).unwrap_or_else(by_rounding))
    }
}

#[test]
fn scatter_add_has_the_bits_of_the_cpus() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(2);
    let sizes = [
        (200, 10, 7, 0),
        (99, 9, 130, 9),
        (70, 5, 300, 2),
        (60, 40, 20, 0),
        (333, 4, 9, 1),
        (1, 1, 1, 0),
        (0, 3, 5, 0),
        (9, 0, 5, 0),
    ];
    let (f32, bf16, f16) = (Element::F32, Element::Bf16, Element::F16);
    let (overwrite, add) = (Accumulation::Overwrite, Accumulation::Add);
    let forms = [
        (f32, f32, overwrite),
        (f32, f32, add),
        (bf16, f32, add),
        (bf16, bf16, overwrite),
        (f32, bf16, add),
        (f16, f16, overwrite),
        (bf16, f32, overwrite),
        (f32, f16, add),
    ];
    for ((source, output, accumulation), (tokens, vocabulary, width, offset)) in forms.into_iter().zip(sizes)
    {
        let spec = ScatterAddSpec { tokens, vocabulary, width, source, output, accumulation };
        let case = Scatter::random(spec, offset, &mut numbers);
        let call = scatter_add(&case.spec).expect("a valid descriptor");
        if let Some(difference) = case.judge(&call, &mut bench) {
            panic!("{:?}: {difference}", case.spec);
        }
    }
}

#[test]
fn both_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let taken = take(&TakeSpec { tokens: 64, vocabulary: 100, width: 64, element: Element::Bf16 });
    let scattered = scatter_add(&ScatterAddSpec {
        tokens: 64,
        vocabulary: 100,
        width: 64,
        source: Element::Bf16,
        output: Element::F32,
        accumulation: Accumulation::Add,
    })
    .expect("a valid descriptor");
    for launch in taken.launches.iter().chain(&scattered.launches) {
        for architecture in Architecture::ALL {
            compiled(launch, architecture);
        }
    }
}
