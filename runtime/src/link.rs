//! Turns a program's instructions into those of one rank: mesh coordinates filled in, seats instead of groups, and what a
//! backend makes of each operation.
//!
//! After linking, running a step looks nothing up. Where a rank's memory lies is the backend's to know.

use crate::collectives::groups::Groups;
use crate::error::{Result, RuntimeError};
use crate::executor::{Backend, Point, Products};
use crate::program::{
    Affine, BufferRef, Collective, CollectiveKind, DType, FlightId, Instruction, KernelCall, LocationId,
    Loop, LoopOrder, Operation, Program, Space, Sums, Transfer, Variable,
};
use dtlc_kernels::signature::Element;
use std::collections::BTreeMap;
use std::slice;

/// A place in a rank's memory that moves with loop indices.
#[derive(Debug)]
pub struct Address {
    /// The space.
    pub space: Space,
    /// Bytes from its start with all loop indices 0.
    offset: usize,
    /// Loop depth and bytes for each unit of that loop's index.
    strides: Box<[(usize, usize)]>,
}

impl Address {
    /// Bytes from the start of the space.
    #[must_use]
    pub fn at(&self, point: &Point) -> usize {
        let moved = |offset: usize, &(depth, stride): &(usize, usize)| {
            offset.wrapping_add(point.loops[depth] as usize * stride)
        };
        self.strides.iter().fold(self.offset, moved)
    }
}

/// A variable that is still open after linking.
#[derive(Clone, Copy, Debug)]
enum OpenVariable {
    LoopIndex(usize),
    Step,
    SeedLow,
    SeedHigh,
}

/// An integer that moves with loop indices, step and seed.
#[derive(Debug)]
pub struct Integer {
    /// Its constant part, with the rank's coordinates filled in.
    constant: i64,
    terms: Box<[(OpenVariable, i64)]>,
}

impl Integer {
    /// Whether it changes from step to step.
    #[must_use]
    pub fn depends_on_step(&self) -> bool {
        self.terms.iter().any(|(variable, _)| match variable {
            OpenVariable::LoopIndex(_) => false,
            OpenVariable::Step | OpenVariable::SeedLow | OpenVariable::SeedHigh => true,
        })
    }

    /// Its value.
    #[must_use]
    pub fn at(&self, point: &Point) -> i64 {
        self.terms.iter().fold(self.constant, |sum, &(variable, coefficient)| {
            let value = match variable {
                OpenVariable::LoopIndex(depth) => point.loops[depth],
                OpenVariable::Step => point.numbers.step,
                OpenVariable::SeedLow => point.numbers.seed & 0xffff_ffff,
                OpenVariable::SeedHigh => point.numbers.seed >> 32,
            };
            sum.wrapping_add(coefficient.wrapping_mul(value as i64))
        })
    }
}

/// An instruction of one rank.
#[derive(Debug)]
pub struct Linked<O> {
    /// The source line that a fault names.
    pub location: LocationId,
    /// What to do.
    pub operation: LinkedOperation<O>,
    /// The float tensors that it computes.
    pub floats: Box<[LinkedFloats]>,
}

/// A float tensor that an instruction computes.
#[derive(Debug)]
pub struct LinkedFloats {
    /// The source line that made it.
    pub location: LocationId,
    /// Where it lies.
    pub address: Address,
    /// Its bytes.
    pub bytes: usize,
    /// Its type.
    pub dtype: DType,
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
pub enum LinkedOperation<O> {
    /// A loop at some depth.
    Loop { count: u32, order: LoopOrder, depth: usize, body: Box<[Linked<O>]> },
    /// What a rank does by itself.
    Alone(O),
    /// A collective.
    Collective(LinkedCollective),
    /// The end of the collective of this number, with this seat.
    Done { number: u64, seat: usize },
}

/// The instructions of one rank, for a backend.
///
/// # Errors
/// What the backend says of an operation.
pub fn link<B: Backend>(
    program: &Program,
    rank: usize,
    groups: &Groups,
    backend: &mut B,
) -> Result<Box<[Linked<B::Operation>]>> {
    let placer = Placer { coordinates: program.mesh.coordinates(rank as u64) };
    let mut linker = Linker {
        program,
        placer,
        groups,
        backend,
        loops: Vec::new(),
        collectives: 0,
        flights: BTreeMap::new(),
    };
    linker.body(&program.instructions)
}

/// Fills a rank's coordinates in.
pub struct Placer {
    coordinates: Vec<u64>,
}

impl Placer {
    /// Where a buffer lies.
    #[must_use]
    pub fn address(&self, buffer: &BufferRef) -> Address {
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
        Address { space: buffer.space, offset: offset as usize, strides: strides.into() }
    }

    /// A number.
    #[must_use]
    pub fn integer(&self, affine: &Affine) -> Integer {
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

struct Linker<'a, B> {
    program: &'a Program,
    placer: Placer,
    groups: &'a Groups,
    backend: &'a mut B,
    /// How often those loops run that are open, outermost first.
    loops: Vec<u32>,
    /// Collectives seen so far.
    collectives: u64,
    /// Their numbers and seats.
    flights: BTreeMap<FlightId, (u64, usize)>,
}

impl<B: Backend> Linker<'_, B> {
    fn body(&mut self, body: &[Instruction]) -> Result<Box<[Linked<B::Operation>]>> {
        let mut linked = Vec::new();
        match B::PRODUCTS {
            Products::Apart => {
                for instruction in body {
                    for piece in instruction.apart().iter() {
                        linked.push(self.run(slice::from_ref(piece))?);
                    }
                }
            }
            Products::Together => {
                for run in self.program.runs(body, &self.loops) {
                    linked.push(self.run(run)?);
                }
            }
        }
        Ok(linked.into())
    }

    /// A run of instructions as one, at the place of its first.
    fn run(&mut self, run: &[Instruction]) -> Result<Linked<B::Operation>> {
        let first = run.first().ok_or_else(|| RuntimeError::Bug("a run of no instructions".into()))?;
        let operation = self.operation(run, &first.operation)?;
        let floats = run.iter().flat_map(float_results).map(|(location, buffer, dtype)| LinkedFloats {
            location,
            address: self.placer.address(buffer),
            bytes: buffer.bytes as usize,
            dtype,
        });
        Ok(Linked { location: first.location, operation, floats: floats.collect() })
    }

    fn operation(&mut self, run: &[Instruction], first: &Operation) -> Result<LinkedOperation<B::Operation>> {
        Ok(match first {
            Operation::Loop(Loop { count, order, body }) => {
                let depth = self.loops.len();
                self.loops.push(*count);
                let body = self.body(body)?;
                self.loops.pop();
                LinkedOperation::Loop { count: *count, order: *order, depth, body }
            }
            Operation::Collective(collective) => LinkedOperation::Collective(self.collective(collective)),
            Operation::Done(flight) => {
                let unknown = || RuntimeError::Bug("a collective is waited for that never started".into());
                let &(number, seat) = self.flights.get(flight).ok_or_else(unknown)?;
                LinkedOperation::Done { number, seat }
            }
            Operation::Kernel(_)
            | Operation::Matmul { .. }
            | Operation::Attention(_)
            | Operation::AttentionBackward(_)
            | Operation::Take { .. }
            | Operation::ScatterAdd { .. }
            | Operation::Copy { .. }
            | Operation::Fill { .. } => LinkedOperation::Alone(self.backend.link(run, &self.placer)?),
        })
    }

    fn collective(&mut self, collective: &Collective) -> LinkedCollective {
        let number = self.collectives;
        self.collectives += 1;
        let seat = self.groups.seat(&collective.axes);
        self.flights.insert(collective.flight, (number, seat));
        let tensors = collective.tensors.iter().map(|tensor| LinkedTensor {
            source: self.placer.address(&tensor.source),
            target: self.placer.address(&tensor.target),
            dtype: tensor.dtype,
            transfer: tensor.transfer,
        });
        LinkedCollective {
            number,
            digest: digest(collective),
            seat,
            kind: collective.kind.clone(),
            tensors: tensors.collect(),
        }
    }
}

/// The float tensors that an instruction computes, and where; what it only moves was looked at where it was computed.
fn float_results(instruction: &Instruction) -> Vec<(LocationId, &BufferRef, DType)> {
    let of = |element: Element| match element {
        Element::F32 => DType::F32,
        Element::Bf16 => DType::Bf16,
        Element::F16 => DType::F16,
    };
    let floats = match &instruction.operation {
        Operation::Kernel(call) => return floats_of(call).collect(),
        Operation::Matmul { spec, c, epilogue: None, .. } => vec![(c, of(spec.c))],
        Operation::Matmul { spec, c, epilogue: Some(epilogue), .. } => {
            // What passes is no longer there when this is looked at; what is made of it shows it.
            let kept =
                [(instruction.location, c, of(spec.c))].into_iter().filter(|_| epilogue.sums == Sums::Kept);
            return kept.chain(floats_of(&epilogue.call)).collect();
        }
        Operation::Attention(call) => vec![(&call.o, of(call.spec.element)), (&call.lse, DType::F32)],
        Operation::AttentionBackward(call) => {
            let dtype = of(call.spec.forward.element);
            [&call.q_gradient, &call.k_gradient, &call.v_gradient].map(|buffer| (buffer, dtype)).into()
        }
        Operation::ScatterAdd { spec, output, .. } => vec![(output, of(spec.output))],
        Operation::Collective(collective) => match collective.kind {
            CollectiveKind::ReduceScatter(_) | CollectiveKind::AllReduce(_) => {
                let floats = collective
                    .tensors
                    .iter()
                    .filter(|it| matches!(it.dtype, DType::F32 | DType::Bf16 | DType::F16));
                floats.map(|tensor| (&tensor.target, tensor.dtype)).collect()
            }
            CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => Vec::new(),
        },
        Operation::Loop(_) | Operation::Take { .. } | Operation::Copy { .. } | Operation::Fill { .. } => {
            Vec::new()
        }
        Operation::Done(_) => Vec::new(),
    };
    floats.into_iter().map(|(buffer, dtype)| (instruction.location, buffer, dtype)).collect()
}

fn floats_of(call: &KernelCall) -> impl Iterator<Item = (LocationId, &BufferRef, DType)> {
    call.floats.iter().map(|&(index, dtype, location)| (location, &call.pointers[index as usize], dtype))
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
