//! Puts emitted code into executable memory and calls it, beside the interpreter.
#![allow(dead_code, reason = "each suite uses a part")]

pub mod generator;

use dtlc_codegen::cranelift::{CompiledKernel, TargetFeatures, compile};
use dtlc_codegen::kir::{Arithmetic, Buffer, Kernel, interpret};
use memmap2::{Mmap, MmapMut};
use std::ops::Range;

type Entry = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64);

/// Code that can be called.
pub struct Loaded {
    code: Mmap,
    tensors: usize,
    integers: usize,
}

impl Loaded {
    /// Maps the code of a kernel.
    pub fn new(kernel: &Kernel, compiled: &CompiledKernel) -> Self {
        let mut memory = MmapMut::map_anon(compiled.code.len()).expect("memory for code");
        memory.copy_from_slice(&compiled.code);
        Self {
            code: memory.make_exec().expect("executable memory"),
            tensors: kernel.tensors.len(),
            integers: kernel.integers.len(),
        }
    }

    /// Executes a part of the parallel axis.
    pub fn call(&self, pointers: &[*mut u8], integers: &[i64], range: Range<u64>) {
        assert_eq!(pointers.len(), self.tensors);
        assert_eq!(integers.len(), self.integers);
        // SAFETY: the mapping holds the code of a function of this signature from its first byte on, made for this host.
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(self.code.as_ptr()) };
        // SAFETY: the caller passes a pointer to each tensor of the kernel, of the length it states, and the validator
        // proved that no other element is touched.
        unsafe {
            entry(pointers.as_ptr(), integers.as_ptr(), range.start as i64, range.end as i64);
        }
    }
}

/// The address of a buffer's first element.
pub fn pointer(buffer: &mut Buffer) -> *mut u8 {
    match buffer {
        Buffer::F32(data) => data.as_mut_ptr().cast(),
        Buffer::Bf16(data) | Buffer::F16(data) => data.as_mut_ptr().cast(),
        Buffer::I32(data) => data.as_mut_ptr().cast(),
        Buffer::U32(data) => data.as_mut_ptr().cast(),
        Buffer::Bool(data) => data.as_mut_ptr().cast(),
    }
}

/// The targets that this host can run.
pub fn targets() -> Vec<TargetFeatures> {
    let host = TargetFeatures::host().expect("a host that runs kernels");
    let mut targets = vec![host];
    if host != TargetFeatures::BASELINE {
        targets.push(TargetFeatures::BASELINE);
    }
    targets
}

/// Runs emitted code over all of the parallel axis, in parts that end at `splits`.
pub fn execute(
    kernel: &Kernel,
    target: TargetFeatures,
    buffers: &[Buffer],
    integers: &[i64],
    splits: &[u64],
) -> Vec<Buffer> {
    let compiled = compile(kernel, target).unwrap_or_else(|error| panic!("{error}\n{kernel:?}"));
    let loaded = Loaded::new(kernel, &compiled);
    let mut buffers = buffers.to_vec();
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(pointer).collect();
    for (tensor, buffer) in kernel.tensors.values().zip(&buffers) {
        assert!(buffer.len() as u64 >= tensor.length, "{} is too short", tensor.name);
    }
    let mut start = 0;
    for &end in splits.iter().chain([&kernel.parallel_extent()]) {
        loaded.call(&pointers, integers, start..end);
        start = end;
    }
    buffers
}

/// Runs the interpreter over all of the parallel axis, with the arithmetic of `target`.
pub fn judge(kernel: &Kernel, target: TargetFeatures, buffers: &[Buffer], integers: &[i64]) -> Vec<Buffer> {
    interpreted(kernel, Arithmetic::Target { is_fused: target.fma }, buffers, integers)
}

/// Runs the interpreter over all of the parallel axis, with the arithmetic of a GPU.
pub fn judge_gpu(kernel: &Kernel, buffers: &[Buffer], integers: &[i64]) -> Vec<Buffer> {
    interpreted(kernel, Arithmetic::Target { is_fused: true }, buffers, integers)
}

fn interpreted(kernel: &Kernel, arithmetic: Arithmetic, buffers: &[Buffer], integers: &[i64]) -> Vec<Buffer> {
    let mut buffers = buffers.to_vec();
    interpret(kernel, arithmetic, &mut buffers, integers, 0..kernel.parallel_extent())
        .unwrap_or_else(|error| panic!("{error}"));
    buffers
}

/// Requires equal elements: see [`difference`].
pub fn assert_close(found: &[Buffer], expected: &[Buffer], tolerance: f64) {
    if let Some(difference) = difference(found, expected, tolerance) {
        panic!("{difference}\n{found:?}\n{expected:?}");
    }
}

/// The first element that differs: in its bits at a tolerance of 0 (any NaN stands for a NaN), else by more than
/// `tolerance` relative to the larger of the expected magnitude and 1.
pub fn difference(found: &[Buffer], expected: &[Buffer], tolerance: f64) -> Option<String> {
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len());
        for element in 0..found.len() {
            let (is_near, found, expected) = match (found, expected) {
                (Buffer::F32(found), Buffer::F32(expected)) => {
                    let (found, expected) = (found[element], expected[element]);
                    (near(found, expected, tolerance), found.to_string(), expected.to_string())
                }
                (Buffer::Bf16(found), Buffer::Bf16(expected)) => {
                    let [found, expected] =
                        [found[element], expected[element]].map(|bits| f32::from_bits(u32::from(bits) << 16));
                    let tolerance = if tolerance == 0.0 { 0.0 } else { tolerance + 0.0079 };
                    (near(found, expected, tolerance), found.to_string(), expected.to_string())
                }
                (Buffer::F16(found), Buffer::F16(expected)) => {
                    let [found, expected] = [found[element], expected[element]].map(|bits| {
                        dtlc_codegen::math::of_f16_bits(
                            &mut dtlc_codegen::math::Host { is_fused: true },
                            &u32::from(bits),
                        )
                    });
                    let tolerance = if tolerance == 0.0 { 0.0 } else { tolerance + 1.0 / 1024.0 };
                    (near(found, expected, tolerance), found.to_string(), expected.to_string())
                }
                (Buffer::I32(found), Buffer::I32(expected)) => same(found[element], expected[element]),
                (Buffer::U32(found), Buffer::U32(expected)) => same(found[element], expected[element]),
                (Buffer::Bool(found), Buffer::Bool(expected)) => same(found[element], expected[element]),
                _ => (false, "of another type".to_owned(), String::new()),
            };
            if !is_near {
                return Some(format!("tensor {position}, element {element}: {found}, not {expected}"));
            }
        }
    }
    None
}

fn same<T: PartialEq + ToString>(found: T, expected: T) -> (bool, String, String) {
    (found == expected, found.to_string(), expected.to_string())
}

fn near(found: f32, expected: f32, tolerance: f64) -> bool {
    if found.is_nan() || expected.is_nan() {
        return found.is_nan() && expected.is_nan();
    }
    if found.to_bits() == expected.to_bits() || found == expected && tolerance > 0.0 {
        return true;
    }
    let [found, expected] = [found, expected].map(f64::from);
    (found - expected).abs() <= tolerance * expected.abs().max(1.0)
}
