//! Evaluates values of a kernel's body at given indices, as registers.

use super::{Integer, LowerError, Origins, RegisterOrigin, Unknown, shard_start, unforeseen};
use crate::kir::{
    AxisId, BinaryOperator, Comparison, Constant, Draw, Index, IntegerId, KernelBuilder, Register,
    ScalarType, TensorId, UnaryOperator, Variable,
};
use dtlc_ir::{DType, Dim, Inst, Literal, Op, Program, Region, ScalarOp, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The local index along each dim.
pub(super) type Indices = Vec<(Dim, Index)>;

/// The state of lowering one kernel.
pub(super) struct Evaluator<'a> {
    pub(super) program: &'a Program,
    pub(super) body: &'a Region,
    pub(super) builder: KernelBuilder,
    /// The tensor of each parameter of the body.
    pub(super) tensors: FxHashMap<Value, TensorId>,
    pub(super) integers: Vec<Integer>,
    pub(super) origins: Origins,
    definitions: FxHashMap<Value, &'a Inst>,
    /// Finished reductions of the present row.
    pub(super) reduced: FxHashMap<Value, Register>,
    extents: FxHashMap<AxisId, u64>,
    /// Registers by value and index; one map for each open loop.
    known: Vec<FxHashMap<(Value, Vec<Index>), Register>>,
    loops: &'a [Dim],
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(program: &'a Program, name: &str, body: &'a Region, loops: &'a [Dim]) -> Evaluator<'a> {
        let definition = |inst: &'a Inst| inst.results.iter().map(move |&result| (result, inst));
        Evaluator {
            program,
            body,
            builder: KernelBuilder::new(name),
            tensors: FxHashMap::default(),
            integers: Vec::new(),
            origins: Origins::new(),
            definitions: body.insts.iter().flat_map(definition).collect(),
            reduced: FxHashMap::default(),
            extents: FxHashMap::default(),
            known: vec![FxHashMap::default()],
            loops,
        }
    }

    /// Opens a loop, whose index runs up to `extent`.
    pub(super) fn enter(&mut self, axis: AxisId, extent: u64) {
        self.builder.enter(axis);
        self.extents.insert(axis, extent);
        self.known.push(FxHashMap::default());
    }

    /// Closes the innermost loop.
    pub(super) fn leave(&mut self) {
        self.builder.leave();
        self.known.pop();
    }

    /// The position of an element in a tensor of this value's type.
    pub(super) fn address(&self, value: Value, indices: &Indices) -> Result<Index, LowerError> {
        let ty = self.program.ty(value);
        let mut address = Index::constant(0);
        let mut stride = 1i64;
        for &dim in ty.dims.iter().rev() {
            address = address.sum(&self.index(indices, dim)?.scaled(stride));
            stride *= ty.local_size(self.program, dim) as i64;
        }
        Ok(address)
    }

    fn index(&self, indices: &Indices, dim: Dim) -> Result<Index, LowerError> {
        match indices.iter().find(|(other, _)| *other == dim) {
            Some((_, index)) => Ok(index.clone()),
            None => unforeseen(format!("no index for dimension `{}`", self.program.dims[dim].name)),
        }
    }

    /// The value at these indices.
    pub(super) fn evaluate(&mut self, value: Value, indices: &Indices) -> Result<Register, LowerError> {
        if let Some(&register) = self.reduced.get(&value) {
            return Ok(register);
        }
        let dims: SmallVec<[Dim; 6]> = self.program.ty(value).dims.clone();
        let key: Vec<Index> = dims.iter().map(|&dim| self.index(indices, dim)).collect::<Result<_, _>>()?;
        let key = (value, key);
        if let Some(&register) = self.known.iter().rev().find_map(|known| known.get(&key)) {
            return Ok(register);
        }
        let register = match self.definitions.get(&value).copied() {
            None => {
                let address = self.address(value, indices)?;
                match self.tensors.get(&value) {
                    Some(&tensor) => self.builder.load(tensor, address),
                    None => return unforeseen("a value that is neither defined nor a parameter"),
                }
            }
            Some(inst) => self.instruction(inst, indices)?,
        };
        self.note_origin(register, value);
        if let Some(known) = self.known.last_mut() {
            known.insert(key, register);
        }
        Ok(register)
    }

    /// Keeps what the source says of a register; a view of a value is in that value's register.
    pub(super) fn note_origin(&mut self, register: Register, value: Value) {
        if self.origins[register].is_none() {
            let info = &self.program.values[value];
            let origin = &self.program.origins[info.origin];
            let (name, file, line) = (info.name.clone(), origin.file.clone(), origin.line);
            self.origins[register] = Some(RegisterOrigin { name, file, line });
        }
    }

    fn instruction(&mut self, inst: &'a Inst, indices: &Indices) -> Result<Register, LowerError> {
        let result = inst.results[0];
        match &inst.op {
            Op::Constant(literal) => Ok(self.literal(*literal, self.program.ty(result).dtype)),
            Op::Iota { dim } => {
                let coordinate = self.coordinate(result, *dim, indices)?;
                Ok(self.builder.coordinate(coordinate))
            }
            Op::Map(function) => self.map(*function, inst, indices),
            Op::Rename { from, to } => {
                let index = self.index(indices, *to)?;
                self.evaluate(inst.args[0], &with(indices, *from, index))
            }
            Op::Split { dim, into } => {
                let mut index = Index::constant(0);
                for &part in into {
                    let size = self.program.ty(result).local_size(self.program, part) as i64;
                    index = index.scaled(size).sum(&self.index(indices, part)?);
                }
                self.evaluate(inst.args[0], &with(indices, *dim, index))
            }
            Op::Slice { dim, start, into } => {
                let index = match into {
                    Some(into) => self.index(indices, *into)?.offset(*start as i64),
                    None => Index::constant(*start as i64),
                };
                self.evaluate(inst.args[0], &with(indices, *dim, index))
            }
            Op::Pad { dim, start, into } => self.piece(inst, &[(*dim, *start)], *into, indices),
            Op::Concat { pieces, into } => {
                let mut start = 0;
                let mut starts: SmallVec<[(Option<Dim>, u64); 4]> = SmallVec::new();
                for (&piece, &arg) in pieces.iter().zip(&inst.args) {
                    starts.push((piece, start));
                    start += self.piece_length(arg, piece);
                }
                self.piece(inst, &starts, *into, indices)
            }
            Op::LocalSlice => self.local_slice(inst, indices),
            Op::Random { stream, dims } => self.random(inst, *stream, dims, indices),
            Op::Reduce { .. } => unforeseen("a reduction is used before it is done"),
            Op::Merge { .. }
            | Op::Dot(_)
            | Op::Take { .. }
            | Op::ScatterAdd { .. }
            | Op::StopGradient
            | Op::Attention(_)
            | Op::AttentionGradient(_)
            | Op::Scan(_)
            | Op::Reshard(_)
            | Op::Collective(_)
            | Op::Done
            | Op::Fused(_) => unforeseen(format!("`{}` inside a kernel", inst.op.name())),
        }
    }

    fn piece_length(&self, arg: Value, piece: Option<Dim>) -> u64 {
        piece.map_or(1, |piece| self.program.ty(arg).local_size(self.program, piece))
    }

    /// The argument whose piece of `into` the index lies in, or 0 if it lies in none.
    fn piece(
        &mut self,
        inst: &Inst,
        starts: &[(Option<Dim>, u64)],
        into: Dim,
        indices: &Indices,
    ) -> Result<Register, LowerError> {
        let index = self.index(indices, into)?;
        let (least, greatest) = self.range(&index);
        for (&arg, &(piece, start)) in inst.args.iter().zip(starts) {
            let (start, length) = (start as i64, self.piece_length(arg, piece) as i64);
            if start <= least && greatest < start + length {
                let inner = match piece {
                    Some(piece) => with(indices, piece, index.offset(-start)),
                    None => indices.clone(),
                };
                return self.evaluate(arg, &inner);
            }
            if least < start + length && start <= greatest {
                return unforeseen("a loop runs over two pieces of a concatenation");
            }
        }
        Ok(self.literal(Literal::Float(0.0), self.program.ty(inst.results[0]).dtype))
    }

    /// The least and the greatest value of an index that depends on loops only.
    fn range(&self, index: &Index) -> (i64, i64) {
        let mut range = (index.constant_part(), index.constant_part());
        for term in index.terms() {
            let last = match term.variable {
                Variable::Axis(axis) => self.extents.get(&axis).map_or(0, |&extent| extent as i64 - 1),
                Variable::Integer(_) | Variable::Data { .. } => 0,
            };
            let reach = term.coefficient * last;
            range = (range.0 + reach.min(0), range.1 + reach.max(0));
        }
        range
    }

    fn local_slice(&mut self, inst: &Inst, indices: &Indices) -> Result<Register, LowerError> {
        let (from, to) = (self.program.ty(inst.args[0]), self.program.ty(inst.results[0]));
        let mut inner = indices.clone();
        for &dim in &to.dims {
            let held = from.placement.axes_of(dim).count();
            let mut part = Integer::default();
            for axis in to.placement.axes_of(dim).skip(held) {
                let size = self.program.mesh.axes[axis].size as i64;
                part.terms.iter_mut().for_each(|(_, coefficient)| *coefficient *= size);
                part.terms.push((Unknown::Coordinate(axis), 1));
            }
            if !part.terms.is_empty() {
                let size = to.local_size(self.program, dim) as i64;
                part.terms.iter_mut().for_each(|(_, coefficient)| *coefficient *= size);
                let start = self.integer(part)?;
                let index = self.index(indices, dim)?.plus(1, start);
                let parts: u64 = to
                    .placement
                    .axes_of(dim)
                    .skip(held)
                    .map(|axis| self.program.mesh.axes[axis].size)
                    .product();
                let whole = from.local_size(self.program, dim);
                let is_padded = parts * to.local_size(self.program, dim) > whole;
                let index = if is_padded { self.held_back(index, whole) } else { index };
                inner = with(&inner, dim, index);
            }
        }
        self.evaluate(inst.args[0], &inner)
    }

    /// The index, but nowhere beyond the last of `count`: pads take what stands there, which nothing sums.
    fn held_back(&mut self, index: Index, count: u64) -> Index {
        let register = self.builder.coordinate(index);
        Variable::Data { register, bound: u32::try_from(count).unwrap_or(u32::MAX) }.into()
    }

    /// The global coordinate along `dim` of an element of `value`.
    fn coordinate(&mut self, value: Value, dim: Dim, indices: &Indices) -> Result<Index, LowerError> {
        let ty = self.program.ty(value);
        if !ty.has(dim) {
            return match self.loops.contains(&dim) {
                true => Ok(self
                    .integer(Integer { constant: 0, terms: vec![(Unknown::LoopIndex(dim), 1)] })?
                    .into()),
                false => unforeseen(format!("no loop over `{}`", self.program.dims[dim].name)),
            };
        }
        let start = shard_start(self.program, value, dim);
        let index = self.index(indices, dim)?;
        match start.terms.is_empty() {
            true => Ok(index),
            false => Ok(index.plus(1, self.integer(start)?)),
        }
    }

    /// An integer parameter, the same one for equal numbers.
    fn integer(&mut self, mut integer: Integer) -> Result<IntegerId, LowerError> {
        integer.terms.sort_unstable();
        if let Some(position) = self.integers.iter().position(|other| *other == integer) {
            return Ok(IntegerId::from_u32(position as u32));
        }
        let mut range = Some((integer.constant, integer.constant));
        for &(unknown, coefficient) in &integer.terms {
            let last = match unknown {
                Unknown::Coordinate(axis) => Some(self.program.mesh.axes[axis].size as i64 - 1),
                Unknown::LoopIndex(dim) => Some(self.program.dims[dim].size as i64 - 1),
                Unknown::Step | Unknown::SeedLow | Unknown::SeedHigh => None,
            };
            let reach = last.and_then(|last| last.checked_mul(coefficient));
            range =
                range.zip(reach).map(|((least, most), reach)| (least + reach.min(0), most + reach.max(0)));
        }
        let id = self.builder.integer(&format!("integer{}", self.integers.len()), range);
        self.integers.push(integer);
        Ok(id)
    }

    /// Word 0 of the generator for the element's number over `dims`, keyed on seed, stream and step as
    /// [`dtlc_ir::random_bits`] defines. The step that the instruction reads is the program's own.
    fn random(
        &mut self,
        inst: &Inst,
        stream: u32,
        dims: &[Dim],
        indices: &Indices,
    ) -> Result<Register, LowerError> {
        let result = inst.results[0];
        let mut number = Index::constant(0);
        for &dim in dims {
            let size = self.program.dims[dim].size as i64;
            number = number.scaled(size).sum(&self.coordinate(result, dim, indices)?);
        }
        let stream = i64::from(stream.wrapping_mul(dtlc_ir::STREAM_STEP));
        let low = Integer { constant: stream, terms: vec![(Unknown::SeedLow, 1)] };
        let high = Integer { constant: 0, terms: vec![(Unknown::SeedHigh, 1), (Unknown::Step, 1)] };
        let key = [self.integer(low)?.into(), self.integer(high)?.into()];
        Ok(self.builder.random(key, number, 0, Draw::Unit))
    }

    fn literal(&mut self, literal: Literal, dtype: DType) -> Register {
        let number = match literal {
            Literal::Float(number) => number,
            Literal::Int(number) => number as f64,
            Literal::Bool(truth) => f64::from(u8::from(truth)),
        };
        self.builder.constant(match (dtype, literal) {
            (DType::F32 | DType::Bf16 | DType::F16, _) => Constant::f32(number as f32),
            (DType::I32, Literal::Int(number)) => Constant::I32(number as i32),
            (DType::U32, Literal::Int(number)) => Constant::U32(number as u32),
            (DType::I32, _) => Constant::I32(number as i32),
            (DType::U32, _) => Constant::U32(number as u32),
            (DType::Bool, _) => Constant::Bool(number != 0.0),
        })
    }

    fn map(&mut self, function: ScalarOp, inst: &Inst, indices: &Indices) -> Result<Register, LowerError> {
        let args: SmallVec<[Register; 3]> =
            inst.args.iter().map(|&arg| self.evaluate(arg, indices)).collect::<Result<_, _>>()?;
        let builder = &mut self.builder;
        let unary = |operator| (operator, args[0]);
        let (operator, argument) = match function {
            ScalarOp::Neg => unary(UnaryOperator::Negate),
            ScalarOp::Abs => unary(UnaryOperator::Absolute),
            ScalarOp::Exp => unary(UnaryOperator::Exp),
            ScalarOp::Log => unary(UnaryOperator::Log),
            ScalarOp::Sqrt => unary(UnaryOperator::Sqrt),
            ScalarOp::Rsqrt => unary(UnaryOperator::ReciprocalSqrt),
            ScalarOp::Tanh => unary(UnaryOperator::Tanh),
            ScalarOp::Sigmoid => unary(UnaryOperator::Sigmoid),
            ScalarOp::Erf => unary(UnaryOperator::Erf),
            ScalarOp::Sin => unary(UnaryOperator::Sin),
            ScalarOp::Cos => unary(UnaryOperator::Cos),
            ScalarOp::Floor => unary(UnaryOperator::Floor),
            ScalarOp::Not => unary(UnaryOperator::Not),
            ScalarOp::Cast => {
                let (from, to) =
                    (self.program.ty(inst.args[0]).dtype, self.program.ty(inst.results[0]).dtype);
                let scalar = match to {
                    DType::F32 | DType::Bf16 | DType::F16 => ScalarType::F32,
                    DType::I32 => ScalarType::I32,
                    DType::U32 => ScalarType::U32,
                    DType::Bool => ScalarType::Bool,
                };
                let same = builder.scalar(args[0]) == scalar;
                let number = if same { args[0] } else { builder.cast(scalar, args[0]) };
                let rounding = match to {
                    DType::Bf16 => Some(UnaryOperator::RoundToBf16),
                    DType::F16 => Some(UnaryOperator::RoundToF16),
                    DType::F32 | DType::I32 | DType::U32 | DType::Bool => None,
                };
                let rounding = rounding.filter(|_| from != to);
                return Ok(rounding.map_or(number, |rounding| builder.unary(rounding, number)));
            }
            ScalarOp::Select => return Ok(builder.select(args[0], args[1], args[2])),
            ScalarOp::Add
            | ScalarOp::Sub
            | ScalarOp::Mul
            | ScalarOp::Div
            | ScalarOp::Rem
            | ScalarOp::Pow
            | ScalarOp::Min
            | ScalarOp::Max
            | ScalarOp::And
            | ScalarOp::Or
            | ScalarOp::Equal
            | ScalarOp::NotEqual
            | ScalarOp::Less
            | ScalarOp::LessEqual
            | ScalarOp::Greater
            | ScalarOp::GreaterEqual => return Ok(binary(builder, function, args[0], args[1])),
        };
        Ok(builder.unary(operator, argument))
    }
}

fn binary(builder: &mut KernelBuilder, function: ScalarOp, left: Register, right: Register) -> Register {
    if let Some(comparison) = comparison(function) {
        return builder.compare(comparison, left, right);
    }
    let operator = match function {
        ScalarOp::Sub => BinaryOperator::Subtract,
        ScalarOp::Mul => BinaryOperator::Multiply,
        ScalarOp::Div => BinaryOperator::Divide,
        ScalarOp::Rem if builder.scalar(left) == ScalarType::F32 => {
            let quotient = builder.divide(left, right);
            let whole = builder.unary(UnaryOperator::Floor, quotient);
            let product = builder.multiply(right, whole);
            return builder.subtract(left, product);
        }
        ScalarOp::Rem => BinaryOperator::Remainder,
        ScalarOp::Pow => BinaryOperator::Power,
        ScalarOp::Min => BinaryOperator::Minimum,
        ScalarOp::Max => BinaryOperator::Maximum,
        ScalarOp::And => BinaryOperator::And,
        ScalarOp::Or => BinaryOperator::Or,
        _ => BinaryOperator::Add,
    };
    builder.binary(operator, left, right)
}

fn comparison(function: ScalarOp) -> Option<Comparison> {
    match function {
        ScalarOp::Equal => Some(Comparison::Equal),
        ScalarOp::NotEqual => Some(Comparison::NotEqual),
        ScalarOp::Less => Some(Comparison::Less),
        ScalarOp::LessEqual => Some(Comparison::LessOrEqual),
        ScalarOp::Greater => Some(Comparison::Greater),
        ScalarOp::GreaterEqual => Some(Comparison::GreaterOrEqual),
        _ => None,
    }
}

/// The same indices, with another one along `dim`.
pub(super) fn with(indices: &Indices, dim: Dim, index: Index) -> Indices {
    let mut changed: Indices = indices.iter().filter(|(other, _)| *other != dim).cloned().collect();
    changed.push((dim, index));
    changed
}
