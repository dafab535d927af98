//! What the CPU makes of an operation: a function instead of a kernel's id, bytes instead of a value to fill in.

use super::code::{KernelFunction, LoadedCode};
use crate::error::{Result, RuntimeError};
use crate::link::{Address, Integer, Placer};
use crate::program::{
    AttentionBackwardCall, AttentionCall, DocumentBuffers, KernelCall, Operation, Program, Transfer,
};
use dtlc_kernels::signature::{AttentionBackwardSpec, AttentionSpec, MatmulSpec, ScatterAddSpec, TakeSpec};

/// A call of a generated kernel.
#[derive(Debug)]
pub struct LinkedKernel {
    /// The function.
    pub function: KernelFunction,
    /// Iterations of its outermost loop.
    pub extent: u64,
    /// Fewest iterations worth a thread.
    pub grain: u64,
    /// Tensor operands.
    pub pointers: Box<[Address]>,
    /// Integer operands.
    pub integers: Box<[Integer]>,
}

/// Rows of bytes to copy.
#[derive(Debug)]
pub struct LinkedCopy {
    /// Where from.
    pub source: Address,
    /// Where to.
    pub target: Address,
    /// The rows, as one block of bytes.
    pub rows: Transfer,
}

/// What a rank does by itself; see [`Operation`].
#[derive(Debug)]
pub enum CpuOperation {
    /// A generated kernel.
    Kernel(LinkedKernel),
    /// A matrix product.
    Matmul { spec: MatmulSpec, a: Address, b: Address, c: Address },
    /// Attention: q, k, v, o, lse.
    Attention {
        spec: Box<AttentionSpec>,
        tensors: Box<[Address; 5]>,
        documents: Option<Box<[Address; 2]>>,
        offsets: Box<[Integer; 2]>,
    },
    /// Its gradient: the same, then the gradients of o, q, k, v.
    AttentionBackward {
        spec: Box<AttentionBackwardSpec>,
        tensors: Box<[Address; 9]>,
        documents: Option<Box<[Address; 2]>>,
        offsets: Box<[Integer; 2]>,
    },
    /// Rows by id.
    Take { spec: TakeSpec, table: Address, ids: Address, output: Address, offset: Integer },
    /// Its transpose.
    ScatterAdd { spec: ScatterAddSpec, source: Address, ids: Address, output: Address, offset: Integer },
    /// A copy.
    Copy(LinkedCopy),
    /// A fill with the first `width` bytes of `pattern`, over and over.
    Fill { target: Address, bytes: usize, pattern: [u8; 4], width: usize },
}

/// Links one operation.
///
/// # Errors
/// A kernel outside the code, which validation rules out; a loop or a collective, which are not the backend's.
pub fn link(
    program: &Program,
    code: &LoadedCode,
    operation: &Operation,
    placer: &Placer,
) -> Result<CpuOperation> {
    let address = |buffer| placer.address(buffer);
    Ok(match operation {
        Operation::Kernel(call) => CpuOperation::Kernel(kernel(program, code, call, placer)?),
        Operation::Matmul { spec, a, b, c, epilogue: None } => {
            CpuOperation::Matmul { spec: spec.clone(), a: address(a), b: address(b), c: address(c) }
        }
        Operation::Attention(call) => attention(call, placer),
        Operation::AttentionBackward(call) => attention_backward(call, placer),
        Operation::Take { spec, table, ids, output, offset } => CpuOperation::Take {
            spec: spec.clone(),
            table: address(table),
            ids: address(ids),
            output: address(output),
            offset: placer.integer(offset),
        },
        Operation::ScatterAdd { spec, source, ids, output, offset } => CpuOperation::ScatterAdd {
            spec: spec.clone(),
            source: address(source),
            ids: address(ids),
            output: address(output),
            offset: placer.integer(offset),
        },
        Operation::Copy { source, target, rows, row_bytes, source_pitch, target_pitch } => {
            let rows = Transfer::rows(*rows, *row_bytes, *source_pitch, *target_pitch);
            CpuOperation::Copy(LinkedCopy { source: address(source), target: address(target), rows })
        }
        Operation::Fill { target, dtype, value } => CpuOperation::Fill {
            target: address(target),
            bytes: target.bytes as usize,
            pattern: dtype.pattern(*value),
            width: dtype.bytes() as usize,
        },
        Operation::Matmul { epilogue: Some(_), .. } => {
            return Err(RuntimeError::Bug(
                "a product that something goes on with is given to the CPU".into(),
            ));
        }
        Operation::Loop(_) | Operation::Collective(_) | Operation::Done(_) => {
            return Err(RuntimeError::Bug("a loop or a collective is given to a backend".into()));
        }
    })
}

fn kernel(program: &Program, code: &LoadedCode, call: &KernelCall, placer: &Placer) -> Result<LinkedKernel> {
    let entry = &program.kernels[call.kernel.index()];
    Ok(LinkedKernel {
        function: code.function(entry)?,
        extent: entry.extent,
        grain: entry.grain,
        pointers: call.pointers.iter().map(|buffer| placer.address(buffer)).collect(),
        integers: call.integers.iter().map(|integer| placer.integer(integer)).collect(),
    })
}

fn attention(call: &AttentionCall, placer: &Placer) -> CpuOperation {
    CpuOperation::Attention {
        spec: Box::new(call.spec.clone()),
        tensors: Box::new(call.tensors().map(|tensor| placer.address(tensor))),
        documents: documents(&call.documents, placer),
        offsets: Box::new([&call.q_offset, &call.k_offset].map(|offset| placer.integer(offset))),
    }
}

fn attention_backward(call: &AttentionBackwardCall, placer: &Placer) -> CpuOperation {
    CpuOperation::AttentionBackward {
        spec: Box::new(call.spec.clone()),
        tensors: Box::new(call.tensors().map(|tensor| placer.address(tensor))),
        documents: documents(&call.documents, placer),
        offsets: Box::new([&call.q_offset, &call.k_offset].map(|offset| placer.integer(offset))),
    }
}

fn documents(documents: &Option<DocumentBuffers>, placer: &Placer) -> Option<Box<[Address; 2]>> {
    documents.as_ref().map(|documents| Box::new(documents.both().map(|tensor| placer.address(tensor))))
}
