//! Checks that every number of a program fits the rest, so that running it can't leave a buffer.
//!
//! What it can't check is the machine code itself: who gives a program gives code to run.

mod descriptors;
mod device;
mod flight;

use flight::check_flights;
use std::collections::BTreeSet;

use super::{
    Affine, AttentionBackwardCall, AttentionCall, AxisId, BufferRef, Collective, CollectiveKind,
    CollectiveTensor, DType, DocumentBuffers, Epilogue, Initial, Instruction, KernelCall, Layout, LocationId,
    Loop, Mesh, Operation, Part, Position, Program, Reduction, StateId, StateTensor, TensorName, Transfer,
    Variable, instruction::LOOP_DEPTH_LIMIT, instruction::Space,
};

/// No space, tensor or stride is larger than this, so that sums of a few never overflow.
pub const BYTES_LIMIT: u64 = 1 << 46;
/// No mesh is larger than this.
const RANK_LIMIT: u64 = 1 << 20;
/// No tensor has more dimensions, and no buffer more terms.
pub const DIMENSION_LIMIT: usize = 32;
/// No call has more operands.
const OPERAND_LIMIT: usize = 4096;

type Check = Result<(), String>;

impl Program {
    /// Checks every offset, size and index.
    ///
    /// # Errors
    /// The first fault, in words.
    pub fn validate(&self) -> Check {
        self.check_mesh()?;
        let spaces = [self.arena_bytes, self.state_bytes, self.input_bytes, self.thread_scratch_bytes];
        require(spaces.iter().all(|&bytes| bytes <= BYTES_LIMIT), || {
            "a memory space is impossibly large".into()
        })?;
        self.check_state()?;
        self.check_inputs()?;
        self.check_outputs()?;
        self.check_kernels()?;
        check_flights(&self.instructions, &mut BTreeSet::new())?;
        self.check_body(&self.instructions, &mut Vec::new())?;
        self.check_device()
    }

    fn check_mesh(&self) -> Check {
        require(self.mesh.axes.len() <= DIMENSION_LIMIT, || "the mesh has too many axes".into())?;
        let mut names = BTreeSet::new();
        for axis in &self.mesh.axes {
            require(axis.size > 0, || format!("mesh axis `{}` has size 0", axis.name))?;
            require(names.insert(&axis.name), || format!("mesh axis `{}` stands twice", axis.name))?;
        }
        require(self.mesh.ranks() <= RANK_LIMIT, || format!("the mesh has {} ranks", self.mesh.ranks()))
    }

    fn check_state(&self) -> Check {
        let mut names = BTreeSet::new();
        for tensor in &self.state {
            let label = || format!("state `{}` ({:?})", tensor.path, tensor.role);
            let fault = |reason| format!("{}: {reason}", label());
            require(names.insert(label()), || fault("stands twice".into()))?;
            self.check_shard(&tensor.layout, tensor.offset, self.state_bytes).map_err(fault)?;
            for name in &tensor.names {
                check_name(name, &tensor.layout).map_err(fault)?;
            }
            self.check_initial(tensor).map_err(fault)?;
        }
        Ok(())
    }

    fn check_initial(&self, tensor: &StateTensor) -> Check {
        let (first, second) = match tensor.initial {
            Initial::Constant(value) => (value, 0.0),
            Initial::Normal { mean, deviation } => (mean, deviation),
            Initial::Uniform { low, high } => (low, high),
            Initial::CopyOf(source) => return self.check_copy(tensor, source),
        };
        require(first.is_finite() && second.is_finite(), || "starts with what is no number".into())
    }

    fn check_copy(&self, tensor: &StateTensor, source: StateId) -> Check {
        let source = self.state.get(source.index()).ok_or("is a copy of a tensor that does not exist")?;
        require(!matches!(source.initial, Initial::CopyOf(_)), || "is a copy of a copy".into())?;
        require(source.layout.global_shape() == tensor.layout.global_shape(), || {
            "is a copy of another shape".into()
        })
    }

    fn check_inputs(&self) -> Check {
        let mut names = BTreeSet::new();
        for input in &self.inputs {
            require(names.insert(&input.name), || format!("input `{}` stands twice", input.name))?;
            self.check_shard(&input.layout, input.offset, self.input_bytes)
                .map_err(|reason| format!("input `{}`: {reason}", input.name))?;
        }
        Ok(())
    }

    fn check_outputs(&self) -> Check {
        let mut names = BTreeSet::new();
        for output in &self.outputs {
            let fault = |reason| format!("output `{}`: {reason}", output.name.template);
            require(names.insert(&output.name.template), || fault("stands twice".into()))?;
            check_layout(&output.layout, &self.mesh).map_err(fault)?;
            check_name(&output.name, &output.layout).map_err(fault)?;
            require(output.buffer.terms.is_empty(), || fault("its place depends on a variable".into()))?;
            let bytes = output.layout.local_bytes(&self.mesh);
            require(output.buffer.bytes >= bytes, || fault("is larger than its buffer".into()))?;
            self.check_buffer(&output.buffer, output.layout.dtype.bytes(), &[]).map_err(fault)?;
        }
        Ok(())
    }

    fn check_shard(&self, layout: &Layout, offset: u64, space: u64) -> Check {
        check_layout(layout, &self.mesh)?;
        require(offset.is_multiple_of(layout.dtype.bytes()), || "is not aligned to its type".into())?;
        let end = offset.checked_add(layout.local_bytes(&self.mesh));
        require(end.is_some_and(|end| end <= space), || "lies outside its memory space".into())
    }

    fn check_kernels(&self) -> Check {
        for kernel in &self.kernels {
            let fault = |reason: &str| format!("kernel `{}`: {reason}", kernel.name);
            let end = kernel.code_offset.checked_add(kernel.code_bytes);
            let inside = end.is_some_and(|end| end <= self.code.len() as u64);
            require(inside && kernel.code_bytes > 0, || fault("its code lies outside the blob"))?;
            require(kernel.extent <= BYTES_LIMIT, || fault("its extent is impossibly large"))?;
            require(kernel.grain >= 1, || fault("its grain is 0"))?;
            require(kernel.reads <= kernel.pointers, || fault("it reads more tensors than it is given"))?;
        }
        Ok(())
    }

    /// Checks a list of instructions inside loops of the given counts, outermost first.
    fn check_body(&self, body: &[Instruction], loops: &mut Vec<u32>) -> Check {
        for instruction in body {
            let fault = |reason| format!("{}: {reason}", self.place(instruction.location));
            require(instruction.location.index() < self.locations.len(), || {
                fault("no such location".into())
            })?;
            if let Operation::Loop(nested) = &instruction.operation {
                self.check_loop(nested, loops)?;
            } else {
                self.check_operation(&instruction.operation, loops).map_err(fault)?;
            }
        }
        Ok(())
    }

    fn check_loop(&self, nested: &Loop, loops: &mut Vec<u32>) -> Check {
        require(loops.len() < LOOP_DEPTH_LIMIT, || "loops are nested too deep".into())?;
        loops.push(nested.count);
        let result = self.check_body(&nested.body, loops);
        loops.pop();
        result
    }

    fn check_operation(&self, operation: &Operation, loops: &[u32]) -> Check {
        match operation {
            Operation::Loop(_) | Operation::Done(_) => Ok(()),
            Operation::Kernel(call) => self.check_kernel_call(call, loops),
            Operation::Matmul { spec, a, b, c, epilogue } => {
                self.check_matmul(spec, [a, b, c], loops)?;
                epilogue.as_ref().map_or(Ok(()), |epilogue| self.check_epilogue(epilogue, c, loops))
            }
            Operation::Attention(call) => self.check_attention(call, loops),
            Operation::AttentionBackward(call) => self.check_attention_backward(call, loops),
            Operation::Take { spec, table, ids, output, offset } => {
                self.check_affine(offset, loops)?;
                self.check_take(spec, [table, ids, output], loops)
            }
            Operation::ScatterAdd { spec, source, ids, output, offset } => {
                self.check_affine(offset, loops)?;
                self.check_scatter_add(spec, [source, ids, output], loops)
            }
            Operation::Copy { source, target, rows, row_bytes, source_pitch, target_pitch } => {
                self.check_buffer(source, 1, loops)?;
                self.check_buffer(target, 1, loops)?;
                require(rows.saturating_mul(*row_bytes) <= BYTES_LIMIT, || "copies impossibly much".into())?;
                for (buffer, pitch) in [(source, source_pitch), (target, target_pitch)] {
                    check_reach(&[(*rows, *pitch)], *row_bytes, 1, buffer.bytes)?;
                }
                Ok(())
            }
            Operation::Fill { target, dtype, value: _ } => {
                require(target.bytes % dtype.bytes() == 0, || "fills part of an element".into())?;
                self.check_buffer(target, dtype.bytes(), loops)
            }
            Operation::Collective(collective) => self.check_collective(collective, loops),
        }
    }

    fn check_kernel_call(&self, call: &KernelCall, loops: &[u32]) -> Check {
        let kernel = self.kernels.get(call.kernel.index()).ok_or("calls a kernel that does not exist")?;
        let pointers = call.pointers.len() == kernel.pointers as usize;
        let integers = call.integers.len() == kernel.integers as usize;
        require(pointers && integers, || format!("`{}` takes other operands", kernel.name))?;
        let few = call.pointers.len() <= OPERAND_LIMIT && call.integers.len() <= OPERAND_LIMIT;
        require(few, || format!("`{}` takes too many operands", kernel.name))?;
        call.pointers.iter().try_for_each(|pointer| self.check_buffer(pointer, 1, loops))?;
        for &(index, dtype, location) in &call.floats {
            let pointer = call.pointers.get(index as usize);
            let whole = pointer.is_some_and(|it| it.bytes.is_multiple_of(dtype.bytes()));
            require(whole && call.floats.len() <= OPERAND_LIMIT, || "names no float result".into())?;
            require(location.index() < self.locations.len(), || "no such location".into())?;
        }
        call.integers.iter().try_for_each(|integer| self.check_affine(integer, loops))
    }

    fn check_epilogue(&self, epilogue: &Epilogue, result: &BufferRef, loops: &[u32]) -> Check {
        self.check_kernel_call(&epilogue.call, loops)?;
        require(epilogue.location.index() < self.locations.len(), || "no such location".into())?;
        let reads = epilogue.call.pointers.get(epilogue.position as usize);
        require(reads == Some(result), || "goes on with another result than its product's".into())
    }

    fn check_collective(&self, collective: &Collective, loops: &[u32]) -> Check {
        let axes: BTreeSet<AxisId> = collective.axes.iter().copied().collect();
        require(axes.len() == collective.axes.len(), || "its group names an axis twice".into())?;
        let known = axes.iter().all(|axis| axis.index() < self.mesh.axes.len());
        require(known, || "its group names an axis that does not exist".into())?;
        let ranks = self.mesh.group_size(&collective.axes);
        require(collective.tensors.len() <= OPERAND_LIMIT, || "moves too many tensors".into())?;
        if let CollectiveKind::Permute(permutation) = &collective.kind {
            let sources: BTreeSet<u32> = permutation.sources.iter().copied().collect();
            let all = sources.iter().map(|&source| u64::from(source)).eq(0..ranks);
            require(all && permutation.sources.len() as u64 == ranks, || {
                "is no permutation of its group".into()
            })?;
        }
        let check = |tensor| self.check_collective_tensor(tensor, &collective.kind, ranks, loops);
        collective.tensors.iter().try_for_each(check)
    }

    fn check_collective_tensor(
        &self,
        tensor: &CollectiveTensor,
        kind: &CollectiveKind,
        ranks: u64,
        loops: &[u32],
    ) -> Check {
        check_reduction(kind, tensor.dtype)?;
        let (source_blocks, target_blocks) = match kind {
            CollectiveKind::AllGather => (1, ranks),
            CollectiveKind::ReduceScatter(_) => (ranks, 1),
            CollectiveKind::AllReduce(_) | CollectiveKind::Permute(_) => (1, 1),
            CollectiveKind::AllToAll => (ranks, ranks),
        };
        let transfer = tensor.transfer;
        require(transfer.block_elements() <= BYTES_LIMIT, || "its blocks are impossibly large".into())?;
        if let CollectiveKind::AllReduce(_) = kind {
            // Members take shares of it by their elements' numbers.
            let whole = transfer == Transfer::whole(transfer.block_elements());
            require(whole, || "reduces what does not lie side by side".into())?;
        }
        let sides = [
            (&tensor.source, transfer.source, source_blocks, transfer.position == Position::SplitOutside),
            (&tensor.target, transfer.target, target_blocks, transfer.position == Position::SplitInside),
        ];
        for (buffer, strides, blocks, middle_split) in sides {
            self.check_buffer(buffer, tensor.dtype.bytes(), loops)?;
            let (middle, inner) = (transfer.middle, transfer.inner);
            let (split, unit) = if middle_split { (middle, strides.middle) } else { (inner, 1) };
            check_blocks(split, blocks, strides.block, unit)?;
            let middles = if middle_split { middle.whole } else { middle.block };
            let inners = if middle_split { inner.block } else { inner.whole };
            let steps = [(transfer.outer, strides.outer), (middles, strides.middle)];
            check_reach(&steps, inners, tensor.dtype.bytes(), buffer.bytes)?;
        }
        Ok(())
    }

    fn check_affine(&self, affine: &Affine, loops: &[u32]) -> Check {
        require(affine.terms.len() <= DIMENSION_LIMIT, || "an integer has too many terms".into())?;
        affine.terms.iter().try_for_each(|term| self.largest(term.variable, loops).map(|_| ()))
    }

    /// Checks that a buffer stays inside its space for all values of its variables, and that its
    /// address is a multiple of `alignment`.
    fn check_buffer(&self, buffer: &BufferRef, alignment: u64, loops: &[u32]) -> Check {
        require(buffer.terms.len() <= DIMENSION_LIMIT, || "a buffer has too many terms".into())?;
        let mut end = u128::from(buffer.offset) + u128::from(buffer.bytes);
        let mut aligned = buffer.offset.is_multiple_of(alignment);
        for term in &buffer.terms {
            let moves = matches!(term.variable, Variable::MeshCoordinate(_) | Variable::LoopIndex(_));
            require(moves, || "a buffer's address depends on the step or the seed".into())?;
            end += u128::from(term.stride) * u128::from(self.largest(term.variable, loops)?);
            aligned &= term.stride.is_multiple_of(alignment);
        }
        require(aligned, || "a buffer is not aligned to its type".into())?;
        let space = match buffer.space {
            Space::State => self.state_bytes,
            Space::Arena => self.arena_bytes,
            Space::Input => self.input_bytes,
        };
        require(end <= u128::from(space), || "a buffer lies outside its memory space".into())
    }

    /// The largest value of a variable, 0 where it has no bound.
    fn largest(&self, variable: Variable, loops: &[u32]) -> Result<u64, String> {
        match variable {
            Variable::MeshCoordinate(axis) => match self.mesh.axes.get(axis.index()) {
                Some(axis) => Ok(u64::from(axis.size) - 1),
                None => Err("depends on a mesh axis that does not exist".into()),
            },
            Variable::LoopIndex(depth) => match loops.get(depth as usize) {
                Some(&count) => Ok(u64::from(count.saturating_sub(1))),
                None => Err("depends on a loop that does not enclose it".into()),
            },
            Variable::Step | Variable::SeedLow | Variable::SeedHigh => Ok(0),
        }
    }

    fn place(&self, location: LocationId) -> String {
        self.locations.get(location.index()).map_or_else(|| "an instruction".to_owned(), ToString::to_string)
    }
}

/// Checks sizes and placements of a layout, so that its arithmetic can't overflow or divide by 0.
fn check_layout(layout: &Layout, mesh: &Mesh) -> Check {
    require(layout.dimensions.len() <= DIMENSION_LIMIT, || "has too many dimensions".into())?;
    let mut bytes = layout.dtype.bytes();
    for dimension in &layout.dimensions {
        let sizes = dimension.size > 0 && dimension.padded >= dimension.size;
        require(sizes, || format!("dimension `{}` has an impossible size", dimension.name))?;
        bytes = bytes.saturating_mul(dimension.padded);
    }
    require(bytes <= BYTES_LIMIT, || "is impossibly large".into())?;
    let mut axes = BTreeSet::new();
    for placement in &layout.placements {
        require(axes.insert(placement.axis), || "is placed twice on one axis".into())?;
        let known = placement.axis.index() < mesh.axes.len();
        require(known, || "is placed on an axis that does not exist".into())?;
        let inside = (placement.dimension as usize) < layout.dimensions.len();
        require(inside, || "a dimension is placed that it does not have".into())?;
    }
    for (index, dimension) in layout.dimensions.iter().enumerate() {
        let divides = dimension.padded % layout.shards(mesh, index) == 0;
        require(divides, || format!("its axes do not divide dimension `{}`", dimension.name))?;
    }
    Ok(())
}

fn check_name(name: &TensorName, layout: &Layout) -> Check {
    let holes = name.template.matches("{}").count();
    let fits = holes == name.first.len() && holes <= layout.dimensions.len();
    require(fits, || format!("name `{}` does not fit its dimensions", name.template))?;
    require(name.first.iter().all(|&first| first <= BYTES_LIMIT), || "a stack starts impossibly late".into())
}

/// Blocks lie side by side, and all that pads may cut are the last ones. A step along what they split is `unit`.
fn check_blocks(split: Part, blocks: u64, stride: u64, unit: u64) -> Check {
    let fits = split.block <= split.whole && split.whole <= split.block.saturating_mul(blocks);
    let beside = blocks == 1 || stride == split.block.saturating_mul(unit);
    require(fits && beside, || "its blocks are not side by side".into())
}

fn check_reduction(kind: &CollectiveKind, dtype: DType) -> Check {
    let sum = match kind {
        CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => false,
        CollectiveKind::ReduceScatter(reduction) | CollectiveKind::AllReduce(reduction) => {
            *reduction == Reduction::Sum
        }
    };
    require(!(sum && dtype == DType::Bool), || "sums booleans".into())
}

/// Checks that `count` steps of some length each, plus `inner`, all in elements, stay within a
/// number of bytes.
fn check_reach(steps: &[(u64, u64)], inner: u64, element: u64, bytes: u64) -> Check {
    if steps.iter().any(|&(count, _)| count == 0) {
        return Ok(());
    }
    let product = |&(count, stride): &(u64, u64)| u128::from(count - 1) * u128::from(stride);
    // At most three products below 2^128 / 4 each, once counts and strides are below 2^46.
    let small = steps.iter().all(|&(count, stride)| count <= BYTES_LIMIT && stride <= BYTES_LIMIT);
    require(small && inner <= BYTES_LIMIT, || "its blocks are impossibly large".into())?;
    let reach: u128 = steps.iter().map(product).sum::<u128>() + u128::from(inner);
    require(reach * u128::from(element) <= u128::from(bytes), || "its blocks leave its buffer".into())
}

fn require(holds: bool, reason: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(reason()) }
}
