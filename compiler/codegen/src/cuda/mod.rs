//! The CUDA emitter: kernels of the kernel IR as CUDA C++, stages `kernels` → `cuda`, and on to `ptx` through NVRTC.
//!
//! Owns the way from a valid [`Kernel`] to text that people can read: named after the source's values, with comments
//! that lead back to its lines, over a small prelude of our own instead of NVIDIA's headers. The functions are those of
//! [`crate::math`], operation by operation, so elementwise kernels give the bits of the CPU's. It does not fuse or
//! reorder what a kernel says; it decides which thread does what (`mapping`), and the same kernel gives the same
//! bytes. It neither loads nor launches anything.
//!
//! A kernel that uses a product's results one by one can become the product's epilogue instead of a function ([`epilogue()`]).
//!
//! Reductions combine in an order that depends on extents alone: the lanes of a warp in a tree, warps in their order.

mod columns;
mod emit;
mod epilogue;
mod index;
mod live;
mod mapping;
mod math;
mod names;
pub mod nvrtc;
mod operation;
mod prelude;
mod statement;
mod text;
mod vector;

use crate::assemble::Assembled;
use crate::kir::{Kernel, KirError, validate};
use crate::lower::Origins;
use std::collections::BTreeSet;
use std::fmt;

pub use epilogue::epilogue;
pub use text::Places;

/// A kernel as a function of CUDA C++.
#[derive(Clone, Debug)]
pub struct CudaKernel {
    /// The function's name.
    pub name: String,
    /// Threads of a block: no other number will do.
    pub threads: u32,
    /// Blocks that keep the kernel busy; any other number gives the same bits.
    pub blocks: u32,
    text: text::Text,
    functions: BTreeSet<math::Function>,
}

impl fmt::Display for CudaKernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text.print(Places::Comments))
    }
}

/// Emits a kernel as the function `name`, which must be an identifier of C++ that is not taken. The function's parameters
/// are the kernel's tensors as pointers, then its integers as `long long`; for each tensor, `alignments` has the power of
/// two in bytes that its address is a multiple of, at least an element's.
///
/// # Errors
/// The kernel is not valid.
pub fn emit(
    kernel: &Kernel,
    origins: &Origins,
    alignments: &[u64],
    name: &str,
) -> Result<CudaKernel, KirError> {
    validate(kernel)?;
    Ok(emit::emit(kernel, origins, alignments, name))
}

/// Emits every kernel of an assembled program, in its order.
///
/// # Errors
/// A kernel is not valid: a bug of ours.
pub fn emit_program(assembled: &Assembled) -> Result<Vec<CudaKernel>, KirError> {
    let listings = assembled.kernels.iter().enumerate();
    listings
        .map(|(number, listing)| {
            let name = function_name(&listing.kernel, number);
            emit(&listing.kernel, &listing.origins, &listing.alignments, &name)
        })
        .collect()
}

/// An identifier for the kernel with this number of a program, made of its name.
fn function_name(kernel: &Kernel, number: usize) -> String {
    format!("{}_k{number}", names::identifier(&kernel.name))
}

/// One file with these kernels.
pub fn file(kernels: &[CudaKernel], places: Places) -> String {
    let functions = kernels.iter().flat_map(|kernel| kernel.functions.iter().copied()).collect();
    let mut text = prelude::text(&functions);
    for kernel in kernels {
        text.push('\n');
        if places == Places::Directives {
            text.push_str(&text::line_directive(1, &kernel.name));
        }
        text.push_str(&kernel.text.print(places));
    }
    text
}
