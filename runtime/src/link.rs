//! Turns a program's instructions into those of one rank: addresses instead of buffers, mesh
//! coordinates filled in, functions instead of kernel ids, seats instead of groups.
//!
//! After linking, running a step allocates nothing and looks nothing up.

use dtlc_kernels::signature::{
    AttentionBackwardSpec, AttentionSpec, Element, MatmulSpec, ScatterAddSpec, TakeSpec,
};
use half::bf16;

use crate::code::{KernelFunction, LoadedCode};
use crate::collectives::groups::Groups;
use crate::error::Result;
use crate::memory::RankMemory;
use crate::program::{
    Affine, AttentionBackwardCall, AttentionCall, BufferRef, Collective, CollectiveKind, DType, Instruction,
    KernelCall, LocationId, LoopOrder, Operation, Part, Program, Space, Strides, Transfer, Variable,
};

/// An address that moves with loop indices.
#[derive(Debug)]
pub struct Address {
    /// Where it is with all loop indices 0.
    pub base: *mut u8,
    /// Loop depth and bytes for each unit of that loop's index.
    pub strides: Box<[(usize, usize)]>,
}

// SAFETY: an address by itself gives no access; who uses it says why that is right.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// A variable that is still open after linking.
#[derive(Clone, Copy, Debug)]
pub enum OpenVariable {
    /// Index of the loop at this depth.
    LoopIndex(usize),
    /// Number of the step.
    Step,
    /// Lower half of the seed.
    SeedLow,
    /// Upper half of the seed.
    SeedHigh,
}

/// An integer that moves with loop indices, step and seed.
#[derive(Debug)]
pub struct Integer {
    /// Its constant part, with the rank's coordinates filled in.
    pub constant: i64,
    /// What is added.
    pub terms: Box<[(OpenVariable, i64)]>,
}

/// An instruction of one rank.
#[derive(Debug)]
pub struct Linked {
    /// The source line that a fault names.
    pub location: LocationId,
    /// What to do.
    pub operation: LinkedOperation,
    /// The float tensors that it computes.
    pub floats: Box<[LinkedFloats]>,
}

/// A float tensor that an instruction computes.
#[derive(Debug)]
pub struct LinkedFloats {
    /// Where it lies.
    pub address: Address,
    /// Its bytes.
    pub bytes: usize,
    /// Its type.
    pub dtype: DType,
}

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

/// One tensor of a collective.
#[derive(Debug)]
pub struct LinkedTensor {
    /// What this rank gives.
    pub source: Address,
    /// Where it receives.
    pub target: Address,
    /// Element type.
    pub dtype: DType,
    /// The blocks.
    pub transfer: Transfer,
}

/// A collective.
#[derive(Debug)]
pub struct LinkedCollective {
    /// Its number in the program, the same on all ranks.
    pub number: u64,
    /// A digest of what the members must agree on.
    pub digest: u64,
    /// Which of the rank's seats it uses.
    pub seat: usize,
    /// What it does.
    pub kind: CollectiveKind,
    /// The tensors.
    pub tensors: Box<[LinkedTensor]>,
}

/// What a linked instruction does; see [`Operation`].
#[derive(Debug)]
pub enum LinkedOperation {
    /// A loop at some depth.
    Loop { count: u32, order: LoopOrder, depth: usize, body: Box<[Linked]> },
    /// A generated kernel.
    Kernel(LinkedKernel),
    /// A matrix product.
    Matmul { spec: MatmulSpec, a: Address, b: Address, c: Address },
    /// Attention: q, k, v, o, lse.
    Attention { spec: Box<AttentionSpec>, tensors: Box<[Address; 5]>, offsets: Box<[Integer; 2]> },
    /// Its gradient: the same, then the gradients of o, q, k, v.
    AttentionBackward {
        spec: Box<AttentionBackwardSpec>,
        tensors: Box<[Address; 9]>,
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
    /// A collective.
    Collective(LinkedCollective),
    /// The end of one.
    Done,
}

/// The instructions of one rank.
///
/// # Errors
/// A kernel outside the code, which validation rules out.
pub fn link(
    program: &Program,
    rank: usize,
    memory: &RankMemory,
    code: &LoadedCode,
    groups: &Groups,
) -> Result<Box<[Linked]>> {
    let coordinates = program.mesh.coordinates(rank as u64);
    let mut linker = Linker { program, coordinates, memory, code, groups, collectives: 0 };
    linker.body(&program.instructions, 0)
}

struct Linker<'a> {
    program: &'a Program,
    coordinates: Vec<u64>,
    memory: &'a RankMemory,
    code: &'a LoadedCode,
    groups: &'a Groups,
    /// Collectives seen so far.
    collectives: u64,
}

impl Linker<'_> {
    fn body(&mut self, body: &[Instruction], depth: usize) -> Result<Box<[Linked]>> {
        body.iter()
            .map(|instruction| {
                let operation = self.operation(&instruction.operation, depth)?;
                let floats = float_results(&instruction.operation).into_iter();
                let floats = floats.map(|(buffer, dtype)| LinkedFloats {
                    address: self.address(buffer),
                    bytes: buffer.bytes as usize,
                    dtype,
                });
                Ok(Linked { location: instruction.location, operation, floats: floats.collect() })
            })
            .collect()
    }

    fn operation(&mut self, operation: &Operation, depth: usize) -> Result<LinkedOperation> {
        Ok(match operation {
            Operation::Loop(nested) => {
                let body = self.body(&nested.body, depth + 1)?;
                LinkedOperation::Loop { count: nested.count, order: nested.order, depth, body }
            }
            Operation::Kernel(call) => LinkedOperation::Kernel(self.kernel(call)?),
            Operation::Matmul { spec, a, b, c } => LinkedOperation::Matmul {
                spec: spec.clone(),
                a: self.address(a),
                b: self.address(b),
                c: self.address(c),
            },
            Operation::Attention(call) => self.attention(call),
            Operation::AttentionBackward(call) => self.attention_backward(call),
            Operation::Take { spec, table, ids, output, offset } => LinkedOperation::Take {
                spec: spec.clone(),
                table: self.address(table),
                ids: self.address(ids),
                output: self.address(output),
                offset: self.integer(offset),
            },
            Operation::ScatterAdd { spec, source, ids, output, offset } => LinkedOperation::ScatterAdd {
                spec: spec.clone(),
                source: self.address(source),
                ids: self.address(ids),
                output: self.address(output),
                offset: self.integer(offset),
            },
            Operation::Copy { source, target, rows, row_bytes, source_pitch, target_pitch } => {
                let pitch = |pitch: u64| Strides { outer: pitch, middle: 0, block: 0 };
                let (source_rows, target_rows) = (pitch(*source_pitch), pitch(*target_pitch));
                let row = Transfer::all_gather(*rows, Part::even(*row_bytes, 1));
                LinkedOperation::Copy(LinkedCopy {
                    source: self.address(source),
                    target: self.address(target),
                    rows: Transfer { source: source_rows, target: target_rows, ..row },
                })
            }
            Operation::Fill { target, dtype, value } => LinkedOperation::Fill {
                target: self.address(target),
                bytes: target.bytes as usize,
                pattern: fill_pattern(*dtype, *value),
                width: dtype.bytes() as usize,
            },
            Operation::Collective(collective) => LinkedOperation::Collective(self.collective(collective)),
            Operation::Done(_) => LinkedOperation::Done,
        })
    }

    fn kernel(&self, call: &KernelCall) -> Result<LinkedKernel> {
        let entry = &self.program.kernels[call.kernel.index()];
        Ok(LinkedKernel {
            function: self.code.function(entry)?,
            extent: entry.extent,
            grain: entry.grain,
            pointers: call.pointers.iter().map(|buffer| self.address(buffer)).collect(),
            integers: call.integers.iter().map(|integer| self.integer(integer)).collect(),
        })
    }

    fn attention(&self, call: &AttentionCall) -> LinkedOperation {
        let tensors = [&call.q, &call.k, &call.v, &call.o, &call.lse];
        LinkedOperation::Attention {
            spec: Box::new(call.spec.clone()),
            tensors: Box::new(tensors.map(|tensor| self.address(tensor))),
            offsets: Box::new([&call.q_offset, &call.k_offset].map(|offset| self.integer(offset))),
        }
    }

    fn attention_backward(&self, call: &AttentionBackwardCall) -> LinkedOperation {
        let tensors = [
            &call.q,
            &call.k,
            &call.v,
            &call.o,
            &call.lse,
            &call.o_gradient,
            &call.q_gradient,
            &call.k_gradient,
            &call.v_gradient,
        ];
        LinkedOperation::AttentionBackward {
            spec: Box::new(call.spec.clone()),
            tensors: Box::new(tensors.map(|tensor| self.address(tensor))),
            offsets: Box::new([&call.q_offset, &call.k_offset].map(|offset| self.integer(offset))),
        }
    }

    fn collective(&mut self, collective: &Collective) -> LinkedCollective {
        let number = self.collectives;
        self.collectives += 1;
        let tensors = collective.tensors.iter().map(|tensor| LinkedTensor {
            source: self.address(&tensor.source),
            target: self.address(&tensor.target),
            dtype: tensor.dtype,
            transfer: tensor.transfer,
        });
        LinkedCollective {
            number,
            digest: digest(collective),
            seat: self.groups.seat(&collective.axes),
            kind: collective.kind.clone(),
            tensors: tensors.collect(),
        }
    }

    fn address(&self, buffer: &BufferRef) -> Address {
        let region = match buffer.space {
            Space::State => &self.memory.state,
            Space::Arena => &self.memory.arena,
            Space::Input => &self.memory.input,
        };
        let mut offset = buffer.offset;
        let mut strides = Vec::new();
        for term in &buffer.terms {
            match term.variable {
                Variable::MeshCoordinate(axis) => offset += term.stride * self.coordinates[axis.index()],
                Variable::LoopIndex(depth) => strides.push((depth as usize, term.stride as usize)),
                // Validation refuses these in an address.
                Variable::Step | Variable::SeedLow | Variable::SeedHigh => {}
            }
        }
        Address { base: region.address().wrapping_add(offset as usize), strides: strides.into() }
    }

    fn integer(&self, affine: &Affine) -> Integer {
        let mut constant = affine.constant;
        let mut terms = Vec::new();
        for term in &affine.terms {
            let open = match term.variable {
                Variable::MeshCoordinate(axis) => {
                    let coordinate = self.coordinates[axis.index()] as i64;
                    constant = constant.wrapping_add(term.coefficient.wrapping_mul(coordinate));
                    continue;
                }
                Variable::LoopIndex(depth) => OpenVariable::LoopIndex(depth as usize),
                Variable::Step => OpenVariable::Step,
                Variable::SeedLow => OpenVariable::SeedLow,
                Variable::SeedHigh => OpenVariable::SeedHigh,
            };
            terms.push((open, term.coefficient));
        }
        Integer { constant, terms: terms.into() }
    }
}

/// The float tensors that an instruction computes; what it only moves was looked at where it was computed.
fn float_results(operation: &Operation) -> Vec<(&BufferRef, DType)> {
    let of = |element: Element| match element {
        Element::F32 => DType::F32,
        Element::Bf16 => DType::Bf16,
    };
    match operation {
        Operation::Kernel(call) => {
            call.floats.iter().map(|&(index, dtype)| (&call.pointers[index as usize], dtype)).collect()
        }
        Operation::Matmul { spec, c, .. } => vec![(c, of(spec.c))],
        Operation::Attention(call) => vec![(&call.o, of(call.spec.element)), (&call.lse, DType::F32)],
        Operation::AttentionBackward(call) => {
            let dtype = of(call.spec.forward.element);
            [&call.q_gradient, &call.k_gradient, &call.v_gradient].map(|buffer| (buffer, dtype)).into()
        }
        Operation::ScatterAdd { spec, output, .. } => vec![(output, of(spec.output))],
        Operation::Collective(collective) => match collective.kind {
            CollectiveKind::ReduceScatter(_) | CollectiveKind::AllReduce(_) => {
                let floats =
                    collective.tensors.iter().filter(|it| matches!(it.dtype, DType::F32 | DType::Bf16));
                floats.map(|tensor| (&tensor.target, tensor.dtype)).collect()
            }
            CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => Vec::new(),
        },
        Operation::Loop(_) | Operation::Take { .. } | Operation::Copy { .. } | Operation::Fill { .. } => {
            Vec::new()
        }
        Operation::Done(_) => Vec::new(),
    }
}

/// The bytes of a value in an element type.
fn fill_pattern(dtype: DType, value: f64) -> [u8; 4] {
    match dtype {
        DType::F32 => (value as f32).to_le_bytes(),
        DType::I32 => (value as i32).to_le_bytes(),
        DType::U32 => (value as u32).to_le_bytes(),
        DType::Bf16 => {
            let [low, high] = bf16::from_f32(value as f32).to_le_bytes();
            [low, high, 0, 0]
        }
        DType::Bool => [u8::from(value != 0.0), 0, 0, 0],
    }
}

/// A digest of a collective's kind, group and sizes (FNV-1a over their numbers).
fn digest(collective: &Collective) -> u64 {
    let kind = match &collective.kind {
        CollectiveKind::AllGather => 0,
        CollectiveKind::ReduceScatter(reduction) => 10 + *reduction as u64,
        CollectiveKind::AllReduce(reduction) => 20 + *reduction as u64,
        CollectiveKind::AllToAll => 30,
        CollectiveKind::Permute(_) => 40,
    };
    let axes = collective.axes.iter().map(|axis| u64::from(axis.0));
    let tensors = collective.tensors.iter();
    let sizes = tensors.map(|tensor| tensor.transfer.block_elements() * tensor.dtype.bytes());
    let numbers = std::iter::once(kind).chain(axes).chain(sizes);
    numbers.fold(0xcbf2_9ce4_8422_2325, |hash, number| (hash ^ number).wrapping_mul(0x0100_0000_01b3))
}
