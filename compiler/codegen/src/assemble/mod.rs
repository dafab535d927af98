//! Assembles the runtime's program, stage `kernels` → `program`: instructions in order, every value as a piece of
//! memory, every fused kernel as machine code.
//!
//! Reads a `scheduled` program and its memory plan; decides nothing about either. The result is for all
//! ranks of the mesh: what differs between them is affine in their coordinates. It knows the CPU backend only.

mod calls;
mod collectives;
mod interface;
mod permute;
mod place;

use crate::cranelift::{CompileError, TargetFeatures, compile};
use crate::kir::{Access, Kernel};
use crate::lower::{Integer, LowerError, Lowered, Origins, Unknown, lower_kernel};
use dtlc_ir::memory::{MemoryPlan, Write};
use dtlc_ir::{Dim, Inst, Op, Phase, Program, Region, Scan, Value};
use dtlc_passes::limits;
use dtlc_runtime::program as target;
use place::dtype;
use rustc_hash::FxHashMap;
use std::fmt;

// Whatever the passes let through, the runtime takes.
const _: () = assert!(limits::MOST_BYTES == target::BYTES_LIMIT);
const _: () = assert!(limits::MOST_DIMS == target::DIMENSION_LIMIT);
const _: () = assert!(limits::MOST_LOOPS == target::LOOP_DEPTH_LIMIT);

/// A kernel of an assembled program, for people.
#[derive(Clone, Debug)]
pub struct KernelListing {
    /// The kernel IR.
    pub kernel: Kernel,
    /// What its registers hold.
    pub origins: Origins,
    /// For each tensor parameter, the power of two in bytes that all its addresses are multiples of.
    pub alignments: Vec<u64>,
    /// What Cranelift was given.
    pub clif: String,
}

/// An assembled program with what was on the way.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// The program.
    pub program: target::Program,
    /// Its kernels, in the order of [`target::Program::kernels`].
    pub kernels: Vec<KernelListing>,
}

/// Why a program could not be assembled: always a bug of ours.
#[derive(Clone, Debug)]
pub enum AssembleError {
    /// A kernel's body was not foreseen.
    Lower(LowerError),
    /// A kernel does not compile.
    Compile(CompileError),
    /// An instruction has no counterpart at run time.
    Instruction {
        /// The instruction's name, and the value it defines.
        instruction: String,
        /// What was not foreseen.
        message: String,
    },
}

impl fmt::Display for AssembleError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AssembleError::Lower(error) => error.fmt(formatter),
            AssembleError::Compile(error) => error.fmt(formatter),
            AssembleError::Instruction { instruction, message } => {
                write!(formatter, "bug in dtlc: `{instruction}` can't be assembled: {message}")
            }
        }
    }
}

impl std::error::Error for AssembleError {}

impl From<LowerError> for AssembleError {
    fn from(error: LowerError) -> AssembleError {
        AssembleError::Lower(error)
    }
}

impl From<CompileError> for AssembleError {
    fn from(error: CompileError) -> AssembleError {
        AssembleError::Compile(error)
    }
}

pub(crate) type Result<T> = std::result::Result<T, AssembleError>;

/// Work that is worth a thread of its own, in elements of a kernel's loops.
const ELEMENTS_OF_A_PART: u64 = 8192;

/// Assembles a scheduled program for a CPU with `features`.
///
/// # Errors
/// What an earlier pass should not have made, a program without a memory plan too: a bug.
pub fn assemble(program: &Program, features: TargetFeatures) -> Result<Assembled> {
    let missing = || AssembleError::Instruction {
        instruction: program.name.clone(),
        message: "it has no memory plan".into(),
    };
    let memory = program.memory.as_ref().ok_or_else(missing)?;
    let mut assembler = Assembler {
        program,
        memory,
        features,
        loops: Vec::new(),
        code: Vec::new(),
        entries: Vec::new(),
        listings: Vec::new(),
        locations: vec![unknown_location()],
        scratch: 0,
        flights: FxHashMap::default(),
        started: 0,
    };
    let mut instructions = assembler.store_step()?;
    instructions.extend(assembler.region(&program.main)?);
    instructions.extend(assembler.copy_updated_state()?);
    assembler.finish(instructions)
}

struct Assembler<'a> {
    program: &'a Program,
    memory: &'a MemoryPlan,
    features: TargetFeatures,
    /// The dims of the loops that are open, outermost first.
    loops: Vec<Dim>,
    code: Vec<u8>,
    entries: Vec<target::KernelEntry>,
    listings: Vec<KernelListing>,
    locations: Vec<target::Location>,
    /// Scratch memory that a thread needs.
    scratch: u64,
    /// The number of the collective that brings a value in flight.
    flights: FxHashMap<Value, target::FlightId>,
    /// Collectives so far.
    started: u32,
}

impl Assembler<'_> {
    fn region(&mut self, region: &Region) -> Result<Vec<target::Instruction>> {
        let mut instructions = Vec::new();
        for inst in &region.insts {
            match &inst.op {
                Op::Scan(scan) => self.scan(inst, scan, &mut instructions)?,
                _ => {
                    if let Some(operation) = self.operation(inst)? {
                        let product = inst.op.region().and_then(Region::product);
                        let location = self.location(product.unwrap_or(inst));
                        instructions.push(target::Instruction { location, operation });
                    }
                }
            }
        }
        Ok(instructions)
    }

    fn scan(&mut self, inst: &Inst, scan: &Scan, out: &mut Vec<target::Instruction>) -> Result<()> {
        for (number, &result) in inst.results.iter().enumerate() {
            if let Some(initial) = initial_of(inst, scan, number) {
                self.copy_unless_same(initial, result, out)?;
            }
        }
        self.loops.push(scan.dim);
        let mut body = self.region(&scan.body)?;
        for carry in 0..scan.carries {
            self.copy_unless_same(scan.body.yields[carry], scan.body.params[carry], &mut body)?;
        }
        self.loops.pop();
        let count = u32::try_from(self.program.dims[scan.dim].size)
            .map_err(|_| self.unforeseen(inst, "a loop of more than 2^32 iterations"))?;
        let order = if scan.reverse { target::LoopOrder::Reverse } else { target::LoopOrder::Forward };
        let operation = target::Operation::Loop(target::Loop { count, order, body });
        out.push(target::Instruction { location: self.location(inst), operation });
        Ok(())
    }

    /// The instruction at run time; none for a view.
    fn operation(&mut self, inst: &Inst) -> Result<Option<target::Operation>> {
        Ok(Some(match &inst.op {
            Op::Fused(body) => match body.product() {
                Some(product) => self.product_and_rest(inst, body, product)?,
                None => target::Operation::Kernel(self.kernel(inst, body, &inst.args, &inst.results)?),
            },
            Op::Dot(factors) => {
                self.matmul(inst, *factors, [inst.args[0], inst.args[1], inst.results[0]], None)?
            }
            Op::Attention(attention) => self.attention(inst, attention)?,
            Op::AttentionGradient(attention) => self.attention_gradient(inst, attention)?,
            Op::Take { dim } => self.take(inst, *dim)?,
            Op::ScatterAdd { dim } => self.scatter_add(inst, *dim)?,
            Op::Collective(collective) => self.collective(inst, collective)?,
            Op::Done => self.done(inst)?,
            Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::StopGradient => return Ok(None),
            Op::Constant(_)
            | Op::Iota { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Random { .. }
            | Op::LocalSlice
            | Op::Scan(_)
            | Op::Reshard(_) => {
                return Err(self.unforeseen(inst, "it stands outside of a kernel"));
            }
        }))
    }

    /// The call of a kernel with this body; `args` are its parameters as they lie in memory, `results` its yields.
    fn kernel(
        &mut self,
        inst: &Inst,
        body: &Region,
        args: &[Value],
        results: &[Value],
    ) -> Result<target::KernelCall> {
        let adds =
            |result: &Value| self.memory.place(*result).is_some_and(|place| place.write == Write::Accumulate);
        let accumulate: Vec<bool> = results.iter().map(adds).collect();
        let name = self.kernel_name(inst);
        let lowered = lower_kernel(self.program, &name, body, &accumulate, &self.loops)?;
        let elements = body.params.iter().chain(&body.yields).map(|&value| self.local_elements(value));
        let pointers: Vec<target::BufferRef> =
            args.iter().chain(results).map(|&value| self.buffer(value)).collect::<Result<_>>()?;
        let Lowered { kernel, origins, integers } = lowered;
        let kernel = self.add_kernel(kernel, origins, elements.max().unwrap_or(1))?;
        let alignments = &mut self.listings[kernel.0 as usize].alignments;
        for (known, buffer) in alignments.iter_mut().zip(&pointers) {
            *known = (*known).min(place::alignment(buffer));
        }
        let integers = integers.iter().map(|integer| self.affine(integer)).collect();
        let mut floats = Vec::new();
        for (index, &value) in (args.len() as u32..).zip(results) {
            let element = self.program.ty(value).dtype;
            if element.is_float() {
                floats.push((index, dtype(element), self.location_of(inst, value)));
            }
        }
        Ok(target::KernelCall { kernel, pointers, integers, floats })
    }

    /// A product, and the kernel that goes on with its results: the body's rest, which reads them as its last argument.
    fn product_and_rest(&mut self, inst: &Inst, body: &Region, product: &Inst) -> Result<target::Operation> {
        let results = product.results[0];
        let outer = |inner: &Value| {
            let position = body.params.iter().position(|param| param == inner);
            position.map(|position| inst.args[position])
        };
        let rest = &body.insts[1..];
        let is_read = |param: &Value| rest.iter().any(|inst| inst.args.contains(param));
        let params: Vec<Value> = body.params.iter().copied().filter(is_read).collect();
        let args: Vec<Value> = params.iter().filter_map(outer).chain([results]).collect();
        let yields = || body.yields.iter().zip(&inst.results).filter(|(inner, _)| **inner != results);
        let kernel = Region {
            params: params.iter().copied().chain([results]).collect(),
            insts: rest.to_vec(),
            yields: yields().map(|(&inner, _)| inner).collect(),
        };
        let stored: Vec<Value> = yields().map(|(_, &result)| result).collect();
        let call = self.kernel(inst, &kernel, &args, &stored)?;
        let sums = if stored.len() < body.yields.len() { target::Sums::Kept } else { target::Sums::Passing };
        let epilogue =
            target::Epilogue { location: self.location(inst), position: params.len() as u32, sums, call };
        let Op::Dot(factors) = product.op else {
            return Err(self.unforeseen(inst, "a product of another operation"));
        };
        let [Some(a), Some(b)] = [0, 1].map(|number| product.args.get(number).and_then(outer)) else {
            return Err(self.unforeseen(inst, "a product of what is no parameter"));
        };
        self.matmul(inst, factors, [a, b, results], Some(epilogue))
    }

    /// Compiles a kernel, or finds an equal one.
    fn add_kernel(&mut self, kernel: Kernel, origins: Origins, elements: u64) -> Result<target::KernelId> {
        let same = |listing: &KernelListing| {
            let Kernel { name: _, tensors, integers, axes, registers, accumulators, outer } = &listing.kernel;
            (tensors, integers, axes) == (&kernel.tensors, &kernel.integers, &kernel.axes)
                && (registers, accumulators, outer)
                    == (&kernel.registers, &kernel.accumulators, &kernel.outer)
        };
        if let Some(position) = self.listings.iter().position(same) {
            return Ok(target::KernelId(position as u32));
        }
        let compiled = compile(&kernel, self.features)?;
        let alignment = crate::cranelift::CODE_ALIGNMENT as usize;
        self.code.resize(self.code.len().next_multiple_of(alignment), 0);
        let extent = kernel.parallel_extent();
        let read = kernel.tensors.values().take_while(|tensor| tensor.access == Access::Read);
        self.entries.push(target::KernelEntry {
            name: kernel.name.clone(),
            code_offset: self.code.len() as u64,
            code_bytes: compiled.code.len() as u64,
            extent,
            grain: (ELEMENTS_OF_A_PART * extent).div_ceil(elements.max(1)).clamp(1, extent.max(1)),
            pointers: kernel.tensors.len() as u32,
            reads: read.count() as u32,
            integers: kernel.integers.len() as u32,
        });
        self.code.extend_from_slice(&compiled.code);
        let alignments = vec![dtlc_passes::memory::ALIGNMENT; kernel.tensors.len()];
        self.listings.push(KernelListing { kernel, origins, alignments, clif: compiled.clif });
        Ok(target::KernelId(self.entries.len() as u32 - 1))
    }

    /// A readable name: what it stores, and in which phase.
    fn kernel_name(&self, inst: &Inst) -> String {
        let named = inst.results.iter().find_map(|&result| self.program.values[result].name.as_deref());
        let plain: String = named
            .unwrap_or("kernel")
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        match inst.phase {
            Phase::Forward => plain,
            phase => format!("{plain}_{}", phase.name()),
        }
    }

    fn affine(&self, integer: &Integer) -> target::Affine {
        let mut affine = target::Affine::constant(integer.constant);
        for &(unknown, coefficient) in &integer.terms {
            let variable = match unknown {
                Unknown::Coordinate(axis) => target::Variable::MeshCoordinate(place::axis_id(axis)),
                Unknown::LoopIndex(dim) => {
                    let depth = self.loops.iter().rposition(|&open| open == dim).unwrap_or(0);
                    target::Variable::LoopIndex(depth as u32)
                }
                Unknown::Step => target::Variable::Step,
                Unknown::SeedLow => target::Variable::SeedLow,
                Unknown::SeedHigh => target::Variable::SeedHigh,
            };
            affine = affine.plus(variable, coefficient);
        }
        affine
    }

    fn unforeseen(&self, inst: &Inst, message: impl Into<String>) -> AssembleError {
        let defines: Vec<String> =
            inst.results.iter().map(|&result| self.program.display_value(result)).collect();
        let instruction = format!("{} = {}", defines.join(", "), inst.op.name());
        AssembleError::Instruction { instruction, message: message.into() }
    }
}

/// What a result of a scan starts as: the initial carry, or the stack that is added to.
fn initial_of(inst: &Inst, scan: &Scan, result: usize) -> Option<Value> {
    let Some(output) = result.checked_sub(scan.carries) else { return Some(inst.args[result]) };
    let before = scan.outputs[..output].iter().filter(|output| output.has_initial()).count();
    let initial = scan.outputs[output].has_initial();
    initial.then(|| inst.args[scan.carries + scan.stacks + before])
}

fn unknown_location() -> target::Location {
    target::Location { file: String::new(), line: 0, column: 0, text: String::new() }
}
