//! Values as pieces of memory, and numbers that depend on the rank.

use super::{AssembleError, Assembler, Result};
use crate::lower::shard_start;
use dtlc_ir::memory::Space;
use dtlc_ir::{Axis, DType, Dim, Inst, Value};
use dtlc_kernels::signature::Element;
use dtlc_runtime::program as target;

/// The axis in the runtime's mesh, which has the same order.
pub(super) fn axis_id(axis: Axis) -> target::AxisId {
    target::AxisId(axis.as_u32())
}

/// The runtime's element type.
pub(super) fn dtype(dtype: DType) -> target::DType {
    match dtype {
        DType::F32 => target::DType::F32,
        DType::Bf16 => target::DType::Bf16,
        DType::F16 => target::DType::F16,
        DType::I32 => target::DType::I32,
        DType::U32 => target::DType::U32,
        DType::Bool => target::DType::Bool,
    }
}

/// The power of two that all addresses of a buffer are multiples of, for spaces that start at a multiple of
/// [`dtlc_passes::memory::ALIGNMENT`].
pub(super) fn alignment(buffer: &target::BufferRef) -> u64 {
    let moves = buffer.terms.iter().map(|term| term.stride);
    let bits = moves.fold(buffer.offset | dtlc_passes::memory::ALIGNMENT, |bits, stride| bits | stride);
    1 << bits.trailing_zeros()
}

impl Assembler<'_> {
    /// Where a value lies, in the loops that are open.
    pub(super) fn buffer(&self, value: Value) -> Result<target::BufferRef> {
        let Some(place) = self.memory.place(value) else {
            return Err(AssembleError::Instruction {
                instruction: self.program.display_value(value),
                message: "the value has no place in memory".into(),
            });
        };
        let space = match place.space {
            Space::State => target::Space::State,
            Space::Arena => target::Space::Arena,
            Space::Input => target::Space::Input,
        };
        let mut buffer = target::BufferRef::new(space, place.offset, place.bytes);
        for &(depth, stride) in &place.strides {
            buffer = buffer.moved(target::Variable::LoopIndex(depth), stride);
        }
        Ok(buffer)
    }

    /// Copies one value over another, unless they share their memory.
    pub(super) fn copy_unless_same(
        &mut self,
        source: Value,
        target: Value,
        out: &mut Vec<target::Instruction>,
    ) -> Result<()> {
        let (from, to) = (self.buffer(source)?, self.buffer(target)?);
        if (from.space, from.offset, &from.terms) == (to.space, to.offset, &to.terms) {
            return Ok(());
        }
        let row_bytes = from.bytes;
        let operation = target::Operation::Copy {
            source: from,
            target: to,
            rows: 1,
            row_bytes,
            source_pitch: row_bytes,
            target_pitch: row_bytes,
        };
        out.push(target::Instruction { location: target::LocationId(0), operation });
        Ok(())
    }

    pub(super) fn local_elements(&self, value: Value) -> u64 {
        self.program.ty(value).local_elements(self.program)
    }

    /// How much of `dim` a rank holds of a value.
    pub(super) fn extent(&self, value: Value, dim: Dim) -> u64 {
        self.program.ty(value).local_size(self.program, dim)
    }

    /// Elements from one index along `dim` to the next; none if the value lacks it.
    pub(super) fn stride(&self, value: Value, dim: Dim) -> Option<u64> {
        let ty = self.program.ty(value);
        let position = ty.position(dim)?;
        Some(ty.dims[position + 1..].iter().map(|&inner| self.extent(value, inner)).product())
    }

    /// The global coordinate of a rank's first element along `dim`.
    pub(super) fn shard_start(&self, value: Value, dim: Dim) -> target::Affine {
        self.affine(&shard_start(self.program, value, dim))
    }

    /// The element type of an operand of a hand-written kernel.
    pub(super) fn float(&self, inst: &Inst, value: Value) -> Result<Element> {
        match self.program.ty(value).dtype {
            DType::F32 => Ok(Element::F32),
            DType::Bf16 => Ok(Element::Bf16),
            DType::F16 => Ok(Element::F16),
            DType::I32 | DType::U32 | DType::Bool => {
                Err(self.unforeseen(inst, "an operand that is no float"))
            }
        }
    }

    /// The source position of an instruction, for messages.
    pub(super) fn location(&mut self, inst: &Inst) -> target::LocationId {
        let Some(&result) = inst.results.first() else { return target::LocationId(0) };
        self.location_of(inst, result)
    }

    /// The source position of one of its results.
    pub(super) fn location_of(&mut self, inst: &Inst, result: Value) -> target::LocationId {
        let info = &self.program.values[result];
        let origin = &self.program.origins[info.origin];
        let name = info.name.as_deref().unwrap_or_default();
        let mut text = inst.op.name().to_string();
        if !name.is_empty() {
            text = format!("{text} of {name}");
        }
        if let dtlc_ir::Op::Collective(collective) = &inst.op {
            text = format!("{text} over {}", self.program.mesh.display(&collective.axes));
        }
        let location =
            target::Location { file: origin.file.clone(), line: origin.line, column: origin.column, text };
        let position = self.locations.iter().position(|other| *other == location).unwrap_or_else(|| {
            self.locations.push(location);
            self.locations.len() - 1
        });
        target::LocationId(position as u32)
    }
}
