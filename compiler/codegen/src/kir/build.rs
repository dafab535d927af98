//! Makes kernels: keeps the open loops, numbers and types the registers. Whether the result obeys every rule is for
//! the validator, which [`KernelBuilder::finish`] calls.

use super::{
    Access, Accumulator, AccumulatorId, Axis, AxisId, AxisKind, BinaryOperator, Combination, Comparison,
    Constant, Draw, ElementType, Index, IntegerId, IntegerParameter, Kernel, KirError, Loop, Operation,
    Register, Result, ScalarType, Span, Statement, TensorId, TensorParameter, UnaryOperator, validate,
};
use cranelift_entity::PrimaryMap;

/// A kernel in the making. The first loop entered is the parallel one.
///
/// A mistake (operands of unlike types, a statement outside the loop) is kept and reported by [`Self::finish`].
pub struct KernelBuilder {
    name: String,
    tensors: PrimaryMap<TensorId, TensorParameter>,
    integers: PrimaryMap<IntegerId, IntegerParameter>,
    axes: PrimaryMap<AxisId, Axis>,
    registers: PrimaryMap<Register, ScalarType>,
    accumulators: PrimaryMap<AccumulatorId, Accumulator>,
    open: Vec<Loop>,
    outer: Option<Loop>,
    mistake: Option<String>,
}

/// Parameters and loops.
impl KernelBuilder {
    /// An empty kernel.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            tensors: PrimaryMap::new(),
            integers: PrimaryMap::new(),
            axes: PrimaryMap::new(),
            registers: PrimaryMap::new(),
            accumulators: PrimaryMap::new(),
            open: Vec::new(),
            outer: None,
            mistake: None,
        }
    }

    /// Adds a tensor parameter of which `length` elements may be touched.
    pub fn tensor(&mut self, name: &str, element: ElementType, access: Access, length: u64) -> TensorId {
        self.tensors.push(TensorParameter { name: name.to_owned(), element, access, length })
    }

    /// Adds an integer parameter; `range` has both ends included.
    pub fn integer(&mut self, name: &str, range: Option<(i64, i64)>) -> IntegerId {
        self.integers.push(IntegerParameter { name: name.to_owned(), range })
    }

    /// Adds an axis of `extent` values, all of which each loop over it covers.
    pub fn axis(&mut self, name: &str, extent: u64, kind: AxisKind) -> AxisId {
        self.axes.push(Axis { name: name.to_owned(), extent, kind, span: Span::Whole })
    }

    /// Adds two axes: the serial one over tiles of `size` values of an axis of `extent` values, and the one inside a tile.
    pub fn tiled_axis(&mut self, name: &str, extent: u64, size: u64, kind: AxisKind) -> (AxisId, AxisId) {
        let tiles = extent.div_ceil(size.max(1));
        let outer = self.axis(&format!("{name}_tile"), tiles, AxisKind::Serial);
        let inner =
            self.axes.push(Axis { name: name.to_owned(), extent, kind, span: Span::Tile { outer, size } });
        (outer, inner)
    }

    /// Opens a loop over `axis` inside the loop that is open now.
    pub fn enter(&mut self, axis: AxisId) {
        if self.outer.is_some() {
            self.fault("a second outermost loop");
        }
        self.open.push(Loop { axis, body: Vec::new() });
    }

    /// Closes the innermost open loop.
    pub fn leave(&mut self) {
        let Some(closed) = self.open.pop() else {
            return self.fault("`leave` outside a loop");
        };
        match self.open.last_mut() {
            Some(enclosing) => enclosing.body.push(Statement::Loop(closed)),
            None => self.outer = Some(closed),
        }
    }

    /// Opens a loop over `axis`, lets `body` fill it and closes it.
    pub fn nest(&mut self, axis: AxisId, body: impl FnOnce(&mut Self)) {
        self.enter(axis);
        body(self);
        self.leave();
    }

    /// Whether a loop over `axis` is open.
    pub fn is_open(&self, axis: AxisId) -> bool {
        self.open.iter().any(|nest| nest.axis == axis)
    }

    /// The type of a register.
    pub fn scalar(&self, register: Register) -> ScalarType {
        self.registers[register]
    }

    /// The finished kernel, validated.
    ///
    /// # Errors
    /// The first mistake made on the way, or the first rule that the kernel breaks.
    pub fn finish(self) -> Result<Kernel> {
        let fault = |message: &str| KirError::new(&self.name, message);
        if let Some(mistake) = &self.mistake {
            return Err(fault(mistake));
        }
        if !self.open.is_empty() {
            return Err(fault("a loop is left open"));
        }
        let outer = self.outer.ok_or_else(|| fault("no loop"))?;
        let kernel = Kernel {
            name: self.name,
            tensors: self.tensors,
            integers: self.integers,
            axes: self.axes,
            registers: self.registers,
            accumulators: self.accumulators,
            outer,
        };
        validate(&kernel)?;
        Ok(kernel)
    }

    fn fault(&mut self, message: impl Into<String>) {
        self.mistake.get_or_insert(message.into());
    }

    fn push(&mut self, statement: Statement) {
        match self.open.last_mut() {
            Some(innermost) => innermost.body.push(statement),
            None => self.fault("a statement outside a loop"),
        }
    }
}

/// Statements.
impl KernelBuilder {
    /// `tensor[index]`.
    pub fn load(&mut self, tensor: TensorId, index: impl Into<Index>) -> Register {
        let register = self.registers.push(self.tensors[tensor].element.scalar());
        self.push(Statement::Load { register, tensor, index: index.into() });
        register
    }

    /// `tensor[index] = value`.
    pub fn store(&mut self, tensor: TensorId, index: impl Into<Index>, value: Register) {
        self.push(Statement::Store { tensor, index: index.into(), value });
    }

    /// `tensor[index] = combination(tensor[index], value)`.
    pub fn accumulate(
        &mut self,
        tensor: TensorId,
        index: impl Into<Index>,
        combination: Combination,
        value: Register,
    ) {
        self.push(Statement::Accumulate { tensor, index: index.into(), combination, value });
    }

    /// A new accumulator, started here.
    pub fn start(&mut self, combination: Combination, scalar: ScalarType) -> AccumulatorId {
        let accumulator = self.accumulators.push(Accumulator { scalar, combination });
        self.push(Statement::Start(accumulator));
        accumulator
    }

    /// Enters `value` into `accumulator`.
    pub fn combine(&mut self, accumulator: AccumulatorId, value: Register) {
        self.push(Statement::Combine { accumulator, value });
    }

    /// The value of `accumulator`, in the statement list that started it.
    pub fn total(&mut self, accumulator: AccumulatorId) -> Register {
        let scalar = self.accumulators[accumulator].scalar;
        let register = self.registers.push(scalar);
        self.push(Statement::Total { register, accumulator });
        register
    }

    /// The value of any operation; the methods below name them singly.
    pub fn compute(&mut self, operation: Operation) -> Register {
        let scalar = operation.result(&self.registers).unwrap_or_else(|mistake| {
            self.fault(mistake);
            ScalarType::F32
        });
        let register = self.registers.push(scalar);
        self.push(Statement::Let { register, operation });
        register
    }
}

/// Operations.
impl KernelBuilder {
    /// A literal.
    pub fn constant(&mut self, constant: Constant) -> Register {
        self.compute(Operation::Constant(constant))
    }

    /// A floating-point literal.
    pub fn f32(&mut self, value: f32) -> Register {
        self.constant(Constant::f32(value))
    }

    /// An operator on one value.
    pub fn unary(&mut self, operator: UnaryOperator, value: Register) -> Register {
        self.compute(Operation::Unary(operator, value))
    }

    /// An operator on two values of one type.
    pub fn binary(&mut self, operator: BinaryOperator, left: Register, right: Register) -> Register {
        self.compute(Operation::Binary(operator, left, right))
    }

    /// `left + right`.
    pub fn add(&mut self, left: Register, right: Register) -> Register {
        self.binary(BinaryOperator::Add, left, right)
    }

    /// `left - right`.
    pub fn subtract(&mut self, left: Register, right: Register) -> Register {
        self.binary(BinaryOperator::Subtract, left, right)
    }

    /// `left · right`.
    pub fn multiply(&mut self, left: Register, right: Register) -> Register {
        self.binary(BinaryOperator::Multiply, left, right)
    }

    /// `left / right`.
    pub fn divide(&mut self, left: Register, right: Register) -> Register {
        self.binary(BinaryOperator::Divide, left, right)
    }

    /// `left · right + addend`.
    pub fn multiply_add(&mut self, left: Register, right: Register, addend: Register) -> Register {
        self.compute(Operation::MultiplyAdd { left, right, addend })
    }

    /// Whether a relation holds.
    pub fn compare(&mut self, comparison: Comparison, left: Register, right: Register) -> Register {
        self.compute(Operation::Compare(comparison, left, right))
    }

    /// `on_true` where `condition` holds, else `on_false`.
    pub fn select(&mut self, condition: Register, on_true: Register, on_false: Register) -> Register {
        self.compute(Operation::Select { condition, on_true, on_false })
    }

    /// Conversion to another type.
    pub fn cast(&mut self, target: ScalarType, value: Register) -> Register {
        self.compute(Operation::Cast(target, value))
    }

    /// The low 32 bits of an index, as an i32.
    pub fn coordinate(&mut self, index: impl Into<Index>) -> Register {
        self.compute(Operation::Coordinate(index.into()))
    }

    /// A random draw: word `word` of Philox on `key` and `counter`.
    pub fn random(&mut self, key: [Index; 2], counter: Index, word: u8, draw: Draw) -> Register {
        self.compute(Operation::Random { key, counter, word, draw })
    }
}
