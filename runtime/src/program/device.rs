//! What a program has for CUDA devices beside its machine code: modules, and which launches perform which operation.
//!
//! Made by the compiler through NVRTC, loaded by `crate::device`. Copies, fills and reductions between ranks need functions
//! only: their launches follow from sizes that are known where they run.

use dtlc_kernels::cuda::{BUFFERS_OF_A_PRODUCT, DeviceArgument, MappedTensor};
use dtlc_kernels::signature::{AttentionBackwardSpec, AttentionSpec, MatmulSpec, ScatterAddSpec, TakeSpec};
use serde::{Deserialize, Serialize};

use super::{Affine, BufferRef, DocumentBuffers, Instruction, KernelId, Operation, Program, Sums};

/// A program's code for CUDA devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceSection {
    /// What a device loads.
    pub modules: Vec<DeviceModule>,
    /// The kernels of the modules, by names that differ.
    pub functions: Vec<DeviceFunction>,
    /// How each operation is performed.
    pub calls: Vec<DeviceCall>,
}

/// One compiled translation unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceModule {
    /// Its name, for messages.
    pub name: String,
    /// The only devices that can run it, by compute capability; none where all from that of its PTX on can.
    pub capability: Option<[u32; 2]>,
    /// What the named devices, or any later architecture, can run.
    #[serde(with = "super::text::lines")]
    pub ptx: String,
    /// Machine code, for exactly one architecture each.
    pub cubins: Vec<Cubin>,
}

/// Machine code of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cubin {
    /// The compute capability that it is for, major and minor: 9 and 0 of an H200.
    pub capability: [u32; 2],
    /// The code.
    #[serde(with = "super::text::machine_code")]
    pub bytes: Vec<u8>,
}

/// A kernel of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFunction {
    /// Its name there.
    pub name: String,
    /// The module, by its place in [`DeviceSection::modules`].
    pub module: u32,
}

/// What is performed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// A generated kernel.
    Kernel(KernelId),
    /// See [`Operation::Matmul`]: products that wait for nothing of each other.
    Products(Vec<WorkProduct>),
    /// See [`Operation::Attention`].
    Attention(AttentionSpec),
    /// See [`Operation::AttentionBackward`].
    AttentionBackward(AttentionBackwardSpec),
    /// See [`Operation::Take`].
    Take(TakeSpec),
    /// See [`Operation::ScatterAdd`].
    ScatterAdd(ScatterAddSpec),
}

/// A product, and what goes on with its result if something does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkProduct {
    /// Sizes, strides and types.
    pub spec: MatmulSpec,
    /// The rest.
    pub epilogue: Option<WorkEpilogue>,
}

/// What goes on with a product's result: see [`Epilogue`](super::Epilogue).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkEpilogue {
    /// The generated kernel.
    pub kernel: KernelId,
    /// Which of its pointers is the result.
    pub position: u32,
    /// Whether it is there afterwards.
    pub sums: Sums,
}

/// How something is performed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCall {
    /// What.
    pub work: Work,
    /// Device memory that the launches share and that has no value before and after.
    pub scratch_bytes: u64,
    /// The launches, each of which begins when the one before it is done.
    pub launches: Vec<Launch>,
    /// What some devices run in their place.
    pub alternatives: Vec<Alternative>,
}

/// A launch in the place of another, on the devices that its kernel's module names, where every tensor map that it takes can be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// The other, by its place in [`DeviceCall::launches`].
    pub position: u32,
    /// What is launched.
    pub launch: Launch,
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The kernel, by its place in [`DeviceSection::functions`].
    pub function: u32,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The kernel's arguments.
    pub arguments: Vec<LaunchArgument>,
}

/// An argument of a launch: eight bytes, but for several addresses, and for a map, which has 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchArgument {
    /// The address of the operation's buffer with this number, in the order of [`operands`].
    Pointer(u32),
    /// The addresses of so many of the operation's buffers, from this number on, side by side.
    Pointers {
        /// The first buffer's number.
        first: u32,
        /// How many.
        count: u32,
    },
    /// The operation's integer with this number.
    Integer(u32),
    /// The address of this byte of scratch.
    Scratch(u64),
    /// This number.
    Constant(i64),
    /// A tensor map of one of the operation's buffers; of alternatives only.
    Map(MappedTensor),
}

impl From<DeviceArgument> for LaunchArgument {
    fn from(argument: DeviceArgument) -> Self {
        match argument {
            DeviceArgument::Pointer(number) => Self::Pointer(number),
            DeviceArgument::Pointers { first, count } => Self::Pointers { first, count },
            DeviceArgument::Integer(number) => Self::Integer(number),
            DeviceArgument::Scratch(byte) => Self::Scratch(byte),
            DeviceArgument::Constant(value) => Self::Constant(value),
            DeviceArgument::Map(map) => Self::Map(map),
        }
    }
}

impl Work {
    /// What a run of instructions asks of a device ([`Program::runs`]); none of what needs no code of its own.
    #[must_use]
    pub fn of(run: &[Instruction]) -> Option<Self> {
        let products: Option<Vec<WorkProduct>> = run.iter().map(WorkProduct::of).collect();
        if let Some(products) = products.filter(|products| !products.is_empty()) {
            return Some(Self::Products(products));
        }
        let [Instruction { operation, .. }] = run else { return None };
        match operation {
            Operation::Kernel(call) => Some(Self::Kernel(call.kernel)),
            Operation::Attention(call) => Some(Self::Attention(call.spec.clone())),
            Operation::AttentionBackward(call) => Some(Self::AttentionBackward(call.spec.clone())),
            Operation::Take { spec, .. } => Some(Self::Take(spec.clone())),
            Operation::ScatterAdd { spec, .. } => Some(Self::ScatterAdd(spec.clone())),
            Operation::Matmul { .. }
            | Operation::Loop(_)
            | Operation::Copy { .. }
            | Operation::Fill { .. }
            | Operation::Collective(_)
            | Operation::Done(_) => None,
        }
    }

    /// The products that it is, if it is some.
    #[must_use]
    pub fn products(&self) -> &[WorkProduct] {
        match self {
            Self::Products(products) => products,
            Self::Kernel(_) | Self::Attention(_) | Self::AttentionBackward(_) => &[],
            Self::Take(_) | Self::ScatterAdd(_) => &[],
        }
    }

    /// How many buffers and integers it takes; none of a kernel that the program does not have.
    #[must_use]
    pub fn operands(&self, program: &Program) -> Option<[u32; 2]> {
        match self {
            Self::Kernel(kernel) => of_kernel(program, *kernel),
            Self::Products(products) => {
                products.iter().try_fold([0_u32; 2], |[pointers, integers], product| {
                    let [more_pointers, more_integers] = product.operands(program)?;
                    Some([pointers.checked_add(more_pointers)?, integers.checked_add(more_integers)?])
                })
            }
            Self::Attention(spec) => Some([5 + document_buffers(spec), 2]),
            Self::AttentionBackward(spec) => Some([9 + document_buffers(&spec.forward), 2]),
            Self::Take(_) | Self::ScatterAdd(_) => Some([3, 1]),
        }
    }
}

impl WorkProduct {
    fn of(instruction: &Instruction) -> Option<Self> {
        let Operation::Matmul { spec, epilogue, .. } = &instruction.operation else { return None };
        let epilogue = epilogue.as_ref().map(|epilogue| WorkEpilogue {
            kernel: epilogue.call.kernel,
            position: epilogue.position,
            sums: epilogue.sums,
        });
        Some(Self { spec: spec.clone(), epilogue })
    }

    /// As [`Work::operands`].
    #[must_use]
    pub fn operands(&self, program: &Program) -> Option<[u32; 2]> {
        let Some(epilogue) = &self.epilogue else { return Some([BUFFERS_OF_A_PRODUCT, 0]) };
        let [pointers, integers] = of_kernel(program, epilogue.kernel)?;
        Some([pointers.checked_add(BUFFERS_OF_A_PRODUCT)?, integers])
    }
}

/// The operands of a generated kernel.
fn of_kernel(program: &Program, kernel: KernelId) -> Option<[u32; 2]> {
    program.kernels.get(kernel.index()).map(|kernel| [kernel.pointers, kernel.integers])
}

impl Program {
    /// All that a device needs code for; what a loop repeats stands once.
    #[must_use]
    pub fn works(&self) -> Vec<Work> {
        fn in_list(program: &Program, body: &[Instruction], loops: &mut Vec<u32>, works: &mut Vec<Work>) {
            for run in program.runs(body, loops) {
                if let [Instruction { operation: Operation::Loop(nested), .. }] = run {
                    loops.push(nested.count);
                    in_list(program, &nested.body, loops, works);
                    loops.pop();
                }
                works.extend(Work::of(run));
            }
        }
        let mut works = Vec::new();
        in_list(self, &self.instructions, &mut Vec::new(), &mut works);
        works
    }
}

impl DeviceSection {
    /// How some work is performed.
    #[must_use]
    pub fn call(&self, work: &Work) -> Option<&DeviceCall> {
        self.calls.iter().find(|call| call.work == *work)
    }

    /// Bytes of scratch that any call needs.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        self.calls.iter().map(|call| call.scratch_bytes).max().unwrap_or(0)
    }
}

fn with_documents<'a>(
    tensors: &[&'a BufferRef],
    documents: &'a Option<DocumentBuffers>,
) -> Vec<&'a BufferRef> {
    tensors.iter().copied().chain(documents.iter().flat_map(DocumentBuffers::both)).collect()
}

/// The documents of queries and of keys, if sequences are packed.
fn document_buffers(spec: &AttentionSpec) -> u32 {
    if spec.documents.is_some() { 2 } else { 0 }
}

/// The buffers and integers of a run of instructions that is some [`Work`], in the order in which its kernels number them.
#[must_use]
pub fn operands(run: &[Instruction]) -> (Vec<&BufferRef>, Vec<&Affine>) {
    let (buffers, integers): (Vec<Vec<_>>, Vec<Vec<_>>) =
        run.iter().map(|instruction| operands_of(&instruction.operation)).unzip();
    (buffers.concat(), integers.concat())
}

fn operands_of(operation: &Operation) -> (Vec<&BufferRef>, Vec<&Affine>) {
    match operation {
        Operation::Kernel(call) => (call.pointers.iter().collect(), call.integers.iter().collect()),
        Operation::Matmul { spec: _, a, b, c, epilogue } => {
            let call = epilogue.iter().map(|epilogue| &epilogue.call);
            let pointers = [a, b, c].into_iter().chain(call.clone().flat_map(|call| &call.pointers));
            (pointers.collect(), call.flat_map(|call| &call.integers).collect())
        }
        Operation::Attention(call) => {
            (with_documents(&call.tensors(), &call.documents), vec![&call.q_offset, &call.k_offset])
        }
        Operation::AttentionBackward(call) => {
            (with_documents(&call.tensors(), &call.documents), vec![&call.q_offset, &call.k_offset])
        }
        Operation::Take { spec: _, table, ids, output, offset } => (vec![table, ids, output], vec![offset]),
        Operation::ScatterAdd { spec: _, source, ids, output, offset } => {
            (vec![source, ids, output], vec![offset])
        }
        Operation::Loop(_)
        | Operation::Copy { .. }
        | Operation::Fill { .. }
        | Operation::Collective(_)
        | Operation::Done(_) => (Vec::new(), Vec::new()),
    }
}
