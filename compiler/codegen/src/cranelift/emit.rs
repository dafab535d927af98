//! Walks a kernel's statements and emits them: scopes, common subexpressions, hoisting, loops.

use super::TargetFeatures;
use super::address::AddressKey;
use super::group::{Group, LANES};
use super::reduction::Slots;
use crate::kir::{
    Access, AccumulatorId, AxisId, AxisKind, Constant, Index, IntegerId, Kernel, Loop, Operation, Register,
    Span, Statement, TensorId, Variable,
};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use cranelift_frontend::FunctionBuilder;
use rustc_hash::FxHashMap;

/// Emits the whole of `kernel` into the empty function of `builder`.
pub(super) fn emit(
    kernel: &Kernel,
    features: TargetFeatures,
    builder: FunctionBuilder<'_>,
    config: TargetFrontendConfig,
) {
    let mut emitter = Emitter {
        kernel,
        features,
        builder,
        pointers: PrimaryMap::new(),
        integers: PrimaryMap::new(),
        axes: SecondaryMap::new(),
        walked: Vec::new(),
        vector_axis: None,
        chunk: Chunk::SCALAR,
        registers: SecondaryMap::new(),
        constants: SecondaryMap::new(),
        canonical: SecondaryMap::new(),
        scopes: Vec::new(),
        accumulators: SecondaryMap::new(),
    };
    emitter.function();
    emitter.builder.finalize(config);
}

/// How many iterations of the vector loop run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Vectors.
    pub vectors: usize,
    /// Lanes in use, fewer than four only in a single vector.
    pub lanes: usize,
}

impl Chunk {
    /// One iteration: also what holds outside a vector loop.
    pub const SCALAR: Self = Self { vectors: 1, lanes: 1 };

    /// Full vectors.
    pub fn of_vectors(vectors: usize) -> Self {
        Self { vectors, lanes: LANES }
    }

    /// Iterations.
    pub fn width(self) -> usize {
        self.vectors * self.lanes
    }
}

/// The values of an axis that one run of a loop covers.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub start: Value,
    pub end: Value,
    /// How many, where it is known; then at least 1.
    pub count: Option<u64>,
}

/// What was computed since a loop was entered; all of it is out of reach once it is left.
#[derive(Default)]
pub(super) struct Scope {
    operations: FxHashMap<Operation, Register>,
    loads: FxHashMap<(TensorId, Index), Register>,
    pub addresses: FxHashMap<AddressKey, Value>,
    assigned: Vec<Register>,
}

/// The state of emission.
pub(super) struct Emitter<'kernel, 'function> {
    pub kernel: &'kernel Kernel,
    pub features: TargetFeatures,
    pub builder: FunctionBuilder<'function>,
    pub pointers: PrimaryMap<TensorId, Value>,
    pub integers: PrimaryMap<IntegerId, Value>,
    /// The variable of each enclosing loop; in a vector loop that of the chunk's first iteration.
    pub axes: SecondaryMap<AxisId, Option<Value>>,
    /// Enclosing loops, outermost first.
    pub walked: Vec<AxisId>,
    pub vector_axis: Option<AxisId>,
    pub chunk: Chunk,
    registers: SecondaryMap<Register, Option<Group>>,
    /// Literals are emitted again at each use: a load from the code's constants, rather than a register held.
    constants: SecondaryMap<Register, Option<Constant>>,
    /// The register that first got the same value.
    canonical: SecondaryMap<Register, Option<Register>>,
    pub scopes: Vec<Scope>,
    pub accumulators: SecondaryMap<AccumulatorId, Slots>,
}

/// Functions and loops.
impl<'kernel> Emitter<'kernel, '_> {
    fn function(&mut self) {
        let entry = self.builder.create_block();
        self.builder.append_block_params_for_function_params(entry);
        self.builder.switch_to_block(entry);
        self.builder.seal_block(entry);
        let parameters: [Value; 4] = std::array::from_fn(|n| self.builder.block_params(entry)[n]);
        let [pointers, integers, start, end] = parameters;
        let flags = MemFlagsData::trusted().with_readonly();
        for position in 0..self.kernel.tensors.len() {
            let offset = position as i32 * 8;
            let pointer = self.builder.ins().load(types::I64, flags, pointers, offset);
            self.pointers.push(pointer);
        }
        for position in 0..self.kernel.integers.len() {
            let offset = position as i32 * 8;
            let integer = self.builder.ins().load(types::I64, flags, integers, offset);
            self.integers.push(integer);
        }
        self.scopes.push(Scope::default());
        let outer = &self.kernel.outer;
        self.prepare_addresses(&outer.body);
        let count = None;
        self.nest(outer, Range { start, end, count });
        self.builder.ins().return_(&[]);
    }

    fn nest(&mut self, nest: &'kernel Loop, range: Range) {
        self.scopes.push(Scope::default());
        self.hoist(&nest.body);
        match self.kernel.axes[nest.axis].kind {
            AxisKind::Serial => {
                self.run(nest, range, 1);
            }
            AxisKind::Vector => self.vector_loop(nest, range),
        }
        self.leave_scope();
    }

    fn range(&mut self, axis: AxisId) -> Range {
        let axis = &self.kernel.axes[axis];
        let extent = axis.extent;
        let end = self.builder.ins().iconst(types::I64, extent as i64);
        match axis.span {
            Span::Whole => {
                Range { start: self.builder.ins().iconst(types::I64, 0), end, count: Some(extent) }
            }
            Span::Tile { outer, size } => {
                let tile = self.index_value(&Index::from(outer));
                let start = self.builder.ins().imul_imm_s(tile, size as i64);
                let next = self.builder.ins().iadd_imm_s(start, size as i64);
                let is_full = extent.is_multiple_of(size);
                Range {
                    start,
                    end: if is_full { next } else { self.builder.ins().smin(next, end) },
                    count: is_full.then_some(size),
                }
            }
        }
    }

    /// Emits a loop in steps of `step` for as long as a whole step is left; gives the first value not covered. Where
    /// the count of `range` is known, it is at least a step.
    pub(super) fn run(&mut self, nest: &'kernel Loop, range: Range, step: usize) -> Value {
        let step = step as i64;
        let counter = self.builder.declare_var(types::I64);
        self.builder.def_var(counter, range.start);
        let last = self.builder.ins().iadd_imm_s(range.end, -step);
        let body = self.builder.create_block();
        let exit = self.builder.create_block();
        let condition = IntCC::SignedLessThanOrEqual;
        if range.count.is_some() {
            self.builder.ins().jump(body, &[]);
        } else {
            let any = self.builder.ins().icmp(condition, range.start, last);
            self.builder.ins().brif(any, body, &[], exit, &[]);
        }
        self.builder.switch_to_block(body);
        let value = self.builder.use_var(counter);
        self.iteration(nest, value);
        let next = self.builder.ins().iadd_imm_s(value, step);
        self.builder.def_var(counter, next);
        let more = self.builder.ins().icmp(condition, next, last);
        self.builder.ins().brif(more, body, &[], exit, &[]);
        self.builder.seal_block(body);
        self.builder.switch_to_block(exit);
        self.builder.seal_block(exit);
        self.builder.use_var(counter)
    }

    /// Emits the body once, with the loop's variable at `value`.
    pub(super) fn iteration(&mut self, nest: &'kernel Loop, value: Value) {
        self.scopes.push(Scope::default());
        self.walked.push(nest.axis);
        self.axes[nest.axis] = Some(value);
        self.prepare_addresses(&nest.body);
        for statement in &nest.body {
            self.statement(statement);
        }
        self.axes[nest.axis] = None;
        self.walked.pop();
        self.leave_scope();
    }

    fn leave_scope(&mut self) {
        let scope = self.scopes.pop().unwrap_or_default();
        for register in scope.assigned {
            self.registers[register] = None;
            self.canonical[register] = None;
        }
    }
}

/// Statements and registers.
impl<'kernel> Emitter<'kernel, '_> {
    fn statement(&mut self, statement: &'kernel Statement) {
        match statement {
            Statement::Loop(nest) => {
                let range = self.range(nest.axis);
                self.nest(nest, range);
            }
            Statement::Let { register, operation } => self.assign(*register, operation),
            Statement::Load { register, tensor, index } => self.assign_load(*register, *tensor, index),
            Statement::Store { tensor, index, value } => {
                let value = self.group(*value);
                self.store(*tensor, index, &value);
            }
            Statement::Accumulate { tensor, index, combination, value } => {
                let scalar = self.kernel.registers[*value];
                let value = self.group(*value);
                let present = self.load(*tensor, index);
                let next = self.combination(*combination, scalar, &value, &present);
                self.store(*tensor, index, &next);
            }
            Statement::Start(accumulator) => self.start(*accumulator),
            Statement::Combine { accumulator, value } => self.combine(*accumulator, *value),
            Statement::Total { register, accumulator } => {
                let total = self.total(*accumulator);
                self.define(*register, total);
            }
        }
    }

    /// Emits what in `statements`, nested loops included, does not change in the loop that is about to be entered.
    fn hoist(&mut self, statements: &'kernel [Statement]) {
        for statement in statements {
            match statement {
                Statement::Loop(nest) => self.hoist(&nest.body),
                Statement::Let { register, operation } => {
                    let operands = operation.operands();
                    let indices = operation.indices();
                    if operands.iter().all(|&operand| self.is_known(operand))
                        && indices.iter().all(|index| self.is_fixed(index))
                    {
                        self.assign(*register, operation);
                    }
                }
                Statement::Load { register, tensor, index } => {
                    if self.is_read_only(*tensor) && self.is_fixed(index) {
                        self.assign_load(*register, *tensor, index);
                    }
                }
                Statement::Store { .. }
                | Statement::Accumulate { .. }
                | Statement::Start(_)
                | Statement::Combine { .. }
                | Statement::Total { .. } => {}
            }
        }
    }

    fn is_known(&self, register: Register) -> bool {
        self.registers[register].is_some() || self.constants[register].is_some()
    }

    fn is_fixed(&self, index: &Index) -> bool {
        index.terms().iter().all(|term| match term.variable {
            Variable::Integer(_) => true,
            Variable::Axis(axis) => self.walked.contains(&axis),
            Variable::Data { register, .. } => self.is_known(register),
        })
    }

    fn is_read_only(&self, tensor: TensorId) -> bool {
        self.kernel.tensors[tensor].access == Access::Read
    }

    fn assign(&mut self, register: Register, operation: &Operation) {
        if let Operation::Constant(constant) = operation {
            self.constants[register] = Some(*constant);
        }
        if self.registers[register].is_some() {
            return;
        }
        let canonical = self.canonical_operation(operation);
        let known = self.scopes.iter().rev().find_map(|scope| scope.operations.get(&canonical));
        if let Some(&known) = known {
            return self.alias(register, known);
        }
        if !matches!(operation, Operation::Constant(_)) {
            let value = self.compute(operation);
            self.define(register, value);
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.operations.insert(canonical, register);
        }
    }

    fn assign_load(&mut self, register: Register, tensor: TensorId, index: &Index) {
        if self.registers[register].is_some() {
            return;
        }
        let key = (tensor, index.clone());
        let known = self.scopes.iter().rev().find_map(|scope| scope.loads.get(&key));
        if let (Some(&known), true) = (known, self.is_read_only(tensor)) {
            return self.alias(register, known);
        }
        let value = self.load(tensor, index);
        self.define(register, value);
        if let Some(scope) = self.scopes.last_mut() {
            scope.loads.insert(key, register);
        }
    }

    fn define(&mut self, register: Register, value: Group) {
        self.registers[register] = Some(value);
        if let Some(scope) = self.scopes.last_mut() {
            scope.assigned.push(register);
        }
    }

    fn alias(&mut self, register: Register, known: Register) {
        self.canonical[register] = Some(self.canonical_register(known));
        if let Some(value) = self.registers[known].clone() {
            self.define(register, value);
        }
    }

    fn canonical_register(&self, register: Register) -> Register {
        self.canonical[register].unwrap_or(register)
    }

    fn canonical_operation(&self, operation: &Operation) -> Operation {
        operation.with_operands(|register| self.canonical_register(register))
    }

    /// The vectors that hold a register.
    pub(super) fn group(&mut self, register: Register) -> Group {
        match (&self.registers[register], self.constants[register]) {
            (Some(group), _) => group.clone(),
            (None, Some(constant)) => self.constant(constant),
            (None, None) => unreachable!("bug in dtlc: {register} passed the validator unassigned"),
        }
    }
}
