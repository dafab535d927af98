//! What a legal kernel is. Emitters and the interpreter take only kernels that pass, so that no index leaves a tensor
//! and no emitter has to check a type.

use super::{
    Access, AccumulatorId, AxisId, AxisKind, Index, Kernel, KirError, Loop, Operation, Register, Result,
    ScalarType, Span, Statement, TensorId, Variable,
};
use cranelift_entity::{EntityRef, EntitySet};

/// Checks every rule of the kernel IR.
///
/// # Errors
/// The first rule broken: a name used twice or not a word (letters, digits, `_` and `.`); an axis without values, walked inside itself or a tile outside its tiles; a vector loop
/// in a vector loop; a register read before or outside its list, assigned twice or with a wrong type; an accumulator
/// read or combined out of place; a tensor touched against its access; an index that may leave its tensor; a store or
/// accumulation in a vector loop whose index does not move with it.
pub fn validate(kernel: &Kernel) -> Result<()> {
    let mut validator = Validator {
        kernel,
        known: EntitySet::new(),
        assigned: EntitySet::new(),
        walked: Vec::new(),
        started: Vec::new(),
    };
    validator.names()?;
    validator.axes()?;
    validator.nest(&kernel.outer)
}

/// The least and greatest value, both included, that `index` takes over all iterations and permitted integers, or
/// `None` where an integer has no stated range or the bounds overflow.
pub fn bounds(kernel: &Kernel, index: &Index) -> Option<(i128, i128)> {
    let start = i128::from(index.constant_part());
    let mut bounds = (start, start);
    for term in index.terms() {
        let (low, high) = match term.variable {
            Variable::Integer(integer) => kernel.integers[integer].range?,
            Variable::Axis(axis) => (0, i64::try_from(kernel.axes[axis].extent).ok()? - 1),
            Variable::Data { bound, .. } => (0, i64::from(bound) - 1),
        };
        let ends = [low, high].map(|end| i128::from(end) * i128::from(term.coefficient));
        bounds.0 += ends[0].min(ends[1]);
        bounds.1 += ends[0].max(ends[1]);
    }
    Some(bounds)
}

struct Validator<'kernel> {
    kernel: &'kernel Kernel,
    /// Registers that may be read here.
    known: EntitySet<Register>,
    /// Registers assigned anywhere so far.
    assigned: EntitySet<Register>,
    /// Axes of the enclosing loops, outermost first.
    walked: Vec<AxisId>,
    /// Accumulators that may be used here, with the number of enclosing loops at their start.
    started: Vec<(AccumulatorId, usize)>,
}

/// A rule: an error with a message unless the condition holds.
macro_rules! require {
    ($self:ident, $condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(KirError::new(&$self.kernel.name, format!($($message)+)));
        }
    };
}

impl Validator<'_> {
    fn names(&self) -> Result<()> {
        let kernel = self.kernel;
        let tensors = kernel.tensors.values().map(|tensor| &tensor.name);
        let integers = kernel.integers.values().map(|integer| &integer.name);
        let axes = kernel.axes.values().map(|axis| &axis.name);
        let mut names: Vec<_> = tensors.chain(integers).chain(axes).collect();
        let is_word = |name: &str| {
            let inner = |character: char| character.is_ascii_alphanumeric() || "_.".contains(character);
            name.chars().all(inner)
                && !name.starts_with(|first: char| !first.is_ascii_alphabetic() && first != '_')
        };
        for name in names.iter().copied().chain([&kernel.name]) {
            require!(self, !name.is_empty() && is_word(name), "`{name}` is not a name");
        }
        names.sort();
        for pair in names.windows(2) {
            require!(self, pair[0] != pair[1], "the name `{}` stands twice", pair[0]);
        }
        Ok(())
    }

    fn axes(&self) -> Result<()> {
        let axes = &self.kernel.axes;
        for axis in axes.values() {
            let name = &axis.name;
            require!(self, (1..1 << 48).contains(&axis.extent), "axis `{name}` has {} values", axis.extent);
            if let Span::Tile { outer, size } = axis.span {
                require!(self, size > 0, "axis `{name}` has tiles of no size");
                require!(
                    self,
                    axes[outer].span == Span::Whole && axes[outer].extent == axis.extent.div_ceil(size),
                    "axis `{}` is not the tiles of `{name}`",
                    axes[outer].name
                );
                require!(
                    self,
                    axes[outer].kind == AxisKind::Serial,
                    "the tiles of `{name}` are a vector axis"
                );
            }
        }
        for tensor in self.kernel.tensors.values() {
            require!(self, tensor.length < 1 << 48, "tensor `{}` is too long", tensor.name);
        }
        Ok(())
    }

    fn nest(&mut self, nest: &Loop) -> Result<()> {
        let axis = &self.kernel.axes[nest.axis];
        let name = &axis.name;
        require!(self, !self.walked.contains(&nest.axis), "axis `{name}` is walked inside itself");
        require!(
            self,
            axis.kind == AxisKind::Serial || self.vector_axis().is_none(),
            "vector axis `{name}` inside a vector loop"
        );
        if let Span::Tile { outer, .. } = axis.span {
            require!(
                self,
                self.walked.contains(&outer),
                "axis `{name}` is walked outside a loop over its tiles"
            );
        }
        self.walked.push(nest.axis);
        let mut assigned_here = Vec::new();
        let started_before = self.started.len();
        for statement in &nest.body {
            self.statement(statement, &mut assigned_here)?;
        }
        for register in assigned_here {
            self.known.remove(register);
        }
        self.started.truncate(started_before);
        self.walked.pop();
        Ok(())
    }

    fn statement(&mut self, statement: &Statement, assigned_here: &mut Vec<Register>) -> Result<()> {
        match statement {
            Statement::Loop(nest) => return self.nest(nest),
            Statement::Let { register, operation } => {
                self.operation(operation)?;
                let scalar = operation
                    .result(&self.kernel.registers)
                    .map_err(|message| KirError::new(&self.kernel.name, message))?;
                self.assign(*register, scalar, assigned_here)?;
            }
            Statement::Load { register, tensor, index } => {
                self.access(*tensor, index, Access::Write)?;
                self.assign(*register, self.element(*tensor), assigned_here)?;
            }
            Statement::Store { tensor, index, value } => {
                self.access(*tensor, index, Access::Read)?;
                self.moves(*tensor, index)?;
                self.typed(*value, self.element(*tensor))?;
            }
            Statement::Accumulate { tensor, index, value, .. } => {
                self.access(*tensor, index, Access::Read)?;
                self.access(*tensor, index, Access::Write)?;
                self.moves(*tensor, index)?;
                self.typed(*value, self.element(*tensor))?;
                require!(self, self.element(*tensor) != ScalarType::Bool, "accumulation of bools");
            }
            Statement::Start(accumulator) => self.start(*accumulator)?,
            Statement::Combine { accumulator, value } => {
                let started = self.started.iter().any(|(known, _)| known == accumulator);
                require!(self, started, "{accumulator} is combined before its start");
                self.typed(*value, self.kernel.accumulators[*accumulator].scalar)?;
            }
            Statement::Total { register, accumulator } => {
                let here = (*accumulator, self.walked.len());
                require!(
                    self,
                    self.started.contains(&here),
                    "{accumulator} is read outside the list that started it"
                );
                let scalar = self.kernel.accumulators[*accumulator].scalar;
                self.assign(*register, scalar, assigned_here)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, accumulator: AccumulatorId) -> Result<()> {
        let twice = self.started.iter().any(|(known, _)| *known == accumulator);
        require!(self, !twice, "{accumulator} is started twice");
        let scalar = self.kernel.accumulators[accumulator].scalar;
        require!(self, scalar != ScalarType::Bool, "{accumulator} holds a bool");
        self.started.push((accumulator, self.walked.len()));
        Ok(())
    }

    fn operation(&self, operation: &Operation) -> Result<()> {
        for operand in operation.operands() {
            self.read(operand)?;
        }
        for index in operation.indices() {
            self.index(index)?;
            let has_data = index.data_registers().next().is_some();
            require!(self, !has_data, "data inside an index that isn't a tensor's");
        }
        Ok(())
    }

    fn element(&self, tensor: TensorId) -> ScalarType {
        self.kernel.tensors[tensor].element.scalar()
    }

    fn vector_axis(&self) -> Option<AxisId> {
        let axes = &self.kernel.axes;
        self.walked.iter().copied().find(|&axis| axes[axis].kind == AxisKind::Vector)
    }

    fn read(&self, register: Register) -> Result<()> {
        require!(self, self.known.contains(register), "{register} is read where it isn't assigned");
        Ok(())
    }

    fn typed(&self, register: Register, scalar: ScalarType) -> Result<()> {
        self.read(register)?;
        let found = self.kernel.registers[register];
        require!(self, found == scalar, "{register} is {found:?} where {scalar:?} is wanted");
        Ok(())
    }

    fn assign(
        &mut self,
        register: Register,
        scalar: ScalarType,
        assigned_here: &mut Vec<Register>,
    ) -> Result<()> {
        let found = self.kernel.registers.get(register).copied();
        require!(self, found == Some(scalar), "{register} is {found:?}, its value {scalar:?}");
        require!(self, !self.assigned.contains(register), "{register} is assigned twice");
        self.assigned.insert(register);
        self.known.insert(register);
        assigned_here.push(register);
        Ok(())
    }

    fn index(&self, index: &Index) -> Result<()> {
        for term in index.terms() {
            match term.variable {
                Variable::Integer(integer) => {
                    require!(self, integer.index() < self.kernel.integers.len(), "no {integer}");
                }
                Variable::Axis(axis) => {
                    require!(
                        self,
                        self.walked.contains(&axis),
                        "an index uses {axis} outside a loop over it"
                    );
                }
                Variable::Data { register, bound } => {
                    self.read(register)?;
                    let scalar = self.kernel.registers[register];
                    let whole = matches!(scalar, ScalarType::I32 | ScalarType::U32);
                    require!(self, whole && bound > 0, "an index by {register}: {scalar:?} below {bound}");
                }
            }
        }
        Ok(())
    }

    /// `refused` is the access that a tensor must not have.
    fn access(&self, tensor: TensorId, index: &Index, refused: Access) -> Result<()> {
        self.index(index)?;
        let parameter = &self.kernel.tensors[tensor];
        let name = &parameter.name;
        require!(self, parameter.access != refused, "tensor `{name}` is {refused:?} only");
        let Some((low, high)) = bounds(self.kernel, index) else {
            return Err(KirError::new(
                &self.kernel.name,
                format!("an index of `{name}` uses an integer without a range"),
            ));
        };
        require!(
            self,
            low >= 0 && high < i128::from(parameter.length),
            "an index of `{name}` runs from {low} to {high}, the tensor has {} elements",
            parameter.length
        );
        Ok(())
    }

    fn moves(&self, tensor: TensorId, index: &Index) -> Result<()> {
        let Some(axis) = self.vector_axis() else {
            return Ok(());
        };
        let name = &self.kernel.tensors[tensor].name;
        require!(
            self,
            index.coefficient(axis) != 0,
            "what is written to `{name}` does not move with vector axis `{}`",
            self.kernel.axes[axis].name
        );
        Ok(())
    }
}
