//! What the kernel tests share: deterministic numbers, stored buffers, scratch that notices overruns, and
//! error bounds.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod attention;
pub mod formula;

use dtlc_kernels::signature::{Element, Part};
use half::{bf16, f16};

/// A small deterministic generator (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// Uniform in -1..1.
    pub fn signed(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// A tensor's memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored {
    pub element: Element,
    words: Vec<u32>,
    halves: Vec<u16>,
}

impl Stored {
    pub fn zeros(element: Element, count: usize) -> Stored {
        let (words, halves) = match element {
            Element::F32 => (vec![0; count], vec![]),
            Element::Bf16 | Element::F16 => (vec![], vec![0; count]),
        };
        Stored { element, words, halves }
    }

    pub fn random(element: Element, count: usize, numbers: &mut Numbers) -> Stored {
        let mut stored = Stored::zeros(element, count);
        for index in 0..count {
            stored.set(index, numbers.signed());
        }
        stored
    }

    pub fn len(&self) -> usize {
        self.words.len() + self.halves.len()
    }

    pub fn get(&self, index: usize) -> f64 {
        match self.element {
            Element::F32 => f64::from(f32::from_bits(self.words[index])),
            Element::Bf16 => f64::from(bf16::from_bits(self.halves[index])),
            Element::F16 => f64::from(f16::from_bits(self.halves[index])),
        }
    }

    pub fn set(&mut self, index: usize, value: f64) {
        match self.element {
            Element::F32 => self.words[index] = (value as f32).to_bits(),
            Element::Bf16 => self.halves[index] = bf16::from_f64(value).to_bits(),
            Element::F16 => self.halves[index] = f16::from_f64(value).to_bits(),
        }
    }

    /// The elements as they lie in memory.
    pub fn bytes(&self) -> Vec<u8> {
        let words = self.words.iter().flat_map(|word| word.to_ne_bytes());
        words.chain(self.halves.iter().flat_map(|half| half.to_ne_bytes())).collect()
    }

    /// Elements that lie like this in memory.
    pub fn of_bytes(element: Element, bytes: &[u8]) -> Stored {
        let mut stored = Stored::zeros(element, bytes.len() / element.bytes());
        let (words, halves) = (bytes.as_chunks::<4>().0, bytes.as_chunks::<2>().0);
        stored.words.iter_mut().zip(words).for_each(|(to, from)| *to = u32::from_ne_bytes(*from));
        stored.halves.iter_mut().zip(halves).for_each(|(to, from)| *to = u16::from_ne_bytes(*from));
        stored
    }

    pub fn pointer(&self) -> *const u8 {
        match self.element {
            Element::F32 => self.words.as_ptr().cast(),
            Element::Bf16 | Element::F16 => self.halves.as_ptr().cast(),
        }
    }

    pub fn pointer_mut(&mut self) -> *mut u8 {
        match self.element {
            Element::F32 => self.words.as_mut_ptr().cast(),
            Element::Bf16 | Element::F16 => self.halves.as_mut_ptr().cast(),
        }
    }
}

/// Half a unit in the last place, relative to the value.
pub fn rounding(element: Element) -> f64 {
    match element {
        Element::F32 => 2f64.powi(-24),
        Element::Bf16 => 2f64.powi(-8),
        Element::F16 => 2f64.powi(-11),
    }
}

/// Half a unit in the last place of numbers near 0: what rounding changes at least.
pub fn least_rounding(element: Element) -> f64 {
    match element {
        Element::F32 => 2f64.powi(-150),
        Element::Bf16 => 2f64.powi(-134),
        Element::F16 => 2f64.powi(-25),
    }
}

/// Aligned memory with a guard behind it, filled with NaN so that a read before a write shows.
pub struct Scratch {
    lines: Vec<Line>,
    bytes: usize,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

const FILL: u8 = 0xff;

impl Scratch {
    pub fn new(bytes: usize) -> Scratch {
        Scratch { lines: vec![Line([FILL; 64]); bytes.div_ceil(64) + 1], bytes }
    }

    pub fn pointer(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    /// Panics if anything was written behind the stated size.
    pub fn check(&self) {
        let behind = self.lines.iter().flat_map(|line| line.0).skip(self.bytes);
        assert!(behind.into_iter().all(|byte| byte == FILL), "scratch overrun");
    }
}

/// Runs the parts of a call at the same time, each with fresh scratch.
pub fn run_parts(count: usize, scratch_bytes: usize, run: impl Fn(Part, *mut u8)) {
    /// A kernel call, which owns the pointers in it.
    struct Call<F>(F);

    // SAFETY: kernels may run distinct parts of one call at the same time: what the tests are about.
    unsafe impl<F> Sync for Call<F> {}

    impl<F: Fn(Part, *mut u8)> Call<F> {
        fn part(&self, part: Part, scratch_bytes: usize) {
            let mut scratch = Scratch::new(scratch_bytes);
            self.0(part, scratch.pointer());
            scratch.check();
        }
    }

    let call = &Call(run);
    std::thread::scope(|scope| {
        for index in 1..count {
            scope.spawn(move || call.part(Part { index, count }, scratch_bytes));
        }
        call.part(Part { index: 0, count }, scratch_bytes);
    });
}
