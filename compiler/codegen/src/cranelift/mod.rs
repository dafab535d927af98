//! The Cranelift emitter: a kernel of the kernel IR as machine code for x86-64.
//!
//! Owns the way from a valid [`Kernel`] to relocatable bytes; it does not load or run them, and it does not fuse or
//! reorder what the kernel says. The code has the signature of a generated kernel:
//!
//! ```text
//! extern "C" fn(pointers: *const *mut u8, integers: *const i64, begin: i64, end: i64)
//! ```
//!
//! Every register is a 128-bit vector of four lanes. A vector loop runs chunks of up to four vectors, op by op side by
//! side, then single vectors, then the lanes that are left in a partly filled vector, so that one sequence of
//! operations serves all and the place of an element in its chunk never changes its bits. Cranelift's own optimiser is
//! off, because it undoes that interleaving; hoisting and common subexpressions are handled here.
//!
//! A reduction along a vector loop keeps four lanes a vector; these combine in a fixed order that depends on the
//! extent alone: vectors pairwise, then lanes 0+2 and 1+3, then both halves.

mod address;
mod emit;
mod features;
mod group;
mod lanes;
mod memory;
mod operation;
mod random;
mod reduction;
mod vectorise;

pub use features::TargetFeatures;

use crate::kir::{Kernel, KirError};
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName, types};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
use cranelift_codegen::{CodegenError, Context, control::ControlPlane};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use std::fmt;

/// The alignment, in bytes, at which code must be loaded: its constants lie inside it.
pub const CODE_ALIGNMENT: u64 = 64;

/// The machine code of a kernel.
#[derive(Clone, Debug)]
pub struct CompiledKernel {
    /// Position-independent code and its constants; the entry is the first byte.
    pub code: Vec<u8>,
    /// What Cranelift was given, as text.
    pub clif: String,
    /// Processor features the code needs, by the names of `is_x86_feature_detected!`.
    pub required_features: Vec<&'static str>,
}

/// Why a kernel could not be compiled. All are faults of the compiler's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The kernel is not valid.
    Invalid(KirError),
    /// The target does not exist or lacks a feature that every kernel needs.
    Target(String),
    /// Cranelift refused the function made of the kernel.
    Backend {
        /// The kernel's name.
        kernel: String,
        /// What Cranelift said.
        message: String,
    },
}

impl fmt::Display for CompileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(formatter),
            Self::Target(message) => write!(formatter, "no code for this target: {message}"),
            Self::Backend { kernel, message } => {
                write!(formatter, "bug in dtlc: kernel `{kernel}` does not compile: {message}")
            }
        }
    }
}

impl std::error::Error for CompileError {}

impl From<KirError> for CompileError {
    fn from(error: KirError) -> Self {
        Self::Invalid(error)
    }
}

/// Compiles `kernel` for a processor with `features`.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(kernel: &Kernel, features: TargetFeatures) -> Result<CompiledKernel, CompileError> {
    crate::kir::validate(kernel)?;
    let isa = features.isa().map_err(CompileError::Target)?;
    let function = build(kernel, features, &isa);
    let clif = function.display().to_string();
    let backend = |message: String| CompileError::Backend { kernel: kernel.name.clone(), message };
    let mut context = Context::for_function(function);
    let compiled = context
        .compile(isa.as_ref(), &mut ControlPlane::default())
        .map_err(|error| backend(explain(&error.inner)))?;
    if let Some(relocation) = compiled.buffer.relocs().first() {
        return Err(backend(format!("the code refers outside itself: {relocation:?}")));
    }
    Ok(CompiledKernel { code: compiled.code_buffer().to_vec(), clif, required_features: features.names() })
}

fn build(kernel: &Kernel, features: TargetFeatures, isa: &OwnedTargetIsa) -> Function {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params = vec![AbiParam::new(types::I64); 4];
    let mut function = Function::with_name_signature(UserFuncName::user(0, 0), signature);
    let mut context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut function, &mut context);
    emit::emit(kernel, features, builder, isa.frontend_config());
    function
}

fn explain(error: &CodegenError) -> String {
    match error {
        CodegenError::Verifier(errors) => errors.to_string(),
        other => other.to_string(),
    }
}
