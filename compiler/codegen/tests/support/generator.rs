//! Random kernels that obey every rule, and inputs for them.

use dtlc_codegen::kir::{
    Access, AxisId, AxisKind, BinaryOperator, Buffer, Combination, Comparison, Constant, Draw, ElementType,
    Index, IntegerId, Kernel, KernelBuilder, Operation, Register, ScalarType, TensorId, UnaryOperator,
};
use dtlc_codegen::math::{self, Host};

const SCALARS: [ScalarType; 4] = [ScalarType::F32, ScalarType::I32, ScalarType::U32, ScalarType::Bool];
const ELEMENTS: [ElementType; 6] = [
    ElementType::F32,
    ElementType::Bf16,
    ElementType::F16,
    ElementType::I32,
    ElementType::U32,
    ElementType::Bool,
];
const OF_FLOATS: [UnaryOperator; 14] = [
    UnaryOperator::Negate,
    UnaryOperator::Absolute,
    UnaryOperator::Exp,
    UnaryOperator::Log,
    UnaryOperator::Sqrt,
    UnaryOperator::ReciprocalSqrt,
    UnaryOperator::Tanh,
    UnaryOperator::Sigmoid,
    UnaryOperator::Erf,
    UnaryOperator::Sin,
    UnaryOperator::Cos,
    UnaryOperator::Floor,
    UnaryOperator::RoundToBf16,
    UnaryOperator::RoundToF16,
];
const OPERATORS: [BinaryOperator; 11] = [
    BinaryOperator::Add,
    BinaryOperator::Subtract,
    BinaryOperator::Multiply,
    BinaryOperator::Divide,
    BinaryOperator::Remainder,
    BinaryOperator::Power,
    BinaryOperator::Minimum,
    BinaryOperator::Maximum,
    BinaryOperator::And,
    BinaryOperator::Or,
    BinaryOperator::Xor,
];
const COMPARISONS: [Comparison; 6] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessOrEqual,
    Comparison::Greater,
    Comparison::GreaterOrEqual,
];
const COMBINATIONS: [Combination; 3] = [Combination::Sum, Combination::Maximum, Combination::Minimum];

/// Ordinary and extreme numbers of every type.
pub fn inputs(kernel: &Kernel, seed: u32) -> Vec<Buffer> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut float = |bits: u32| match bits % 16 {
        0 => f32::from_bits(next()),
        1 => {
            [0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -88.0][bits as usize / 16 % 8]
        }
        _ => (next() >> 8) as f32 / 1_048_576.0 - 8.0,
    };
    let mut state = seed.rotate_left(7) | 1;
    let mut word = move || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        match state >> 29 {
            0 => state,
            1 => u32::MAX,
            _ => state >> 8 & 15,
        }
    };
    let tensors = kernel.tensors.values();
    let buffer = |tensor: &dtlc_codegen::kir::TensorParameter| {
        let count = 0..tensor.length;
        match tensor.element {
            ElementType::F32 => Buffer::F32(count.map(|n| float(word() ^ n as u32)).collect()),
            ElementType::Bf16 => {
                Buffer::Bf16(count.map(|n| (float(word() ^ n as u32).to_bits() >> 16) as u16).collect())
            }
            ElementType::F16 => Buffer::F16(count.map(|n| f16_bits(float(word() ^ n as u32))).collect()),
            ElementType::I32 => Buffer::I32(count.map(|_| word().cast_signed()).collect()),
            ElementType::U32 => Buffer::U32(count.map(|_| word()).collect()),
            ElementType::Bool => Buffer::Bool(count.map(|_| (word() & 3) as u8).collect()),
        }
    };
    tensors.map(buffer).collect()
}

/// The nearest f16, by its bits.
pub fn f16_bits(number: f32) -> u16 {
    math::to_f16_bits(&mut Host { is_fused: true }, &number) as u16
}

/// Turns a list of choices into a kernel; a shorter list gives a smaller one.
pub struct Generator {
    choices: std::vec::IntoIter<u32>,
    builder: KernelBuilder,
    tensors: u32,
}

/// The loops of the kernel and the integer it takes.
#[derive(Clone, Copy)]
struct Shape {
    rows: u64,
    width: u64,
    row: AxisId,
    d: AxisId,
    shift: IntegerId,
}

impl Generator {
    /// A kernel will be made of these choices.
    pub fn new(choices: Vec<u32>) -> Self {
        Self { choices: choices.into_iter(), builder: KernelBuilder::new("random"), tensors: 0 }
    }

    /// A number below `bound`; 0 when the choices have run out.
    fn choose(&mut self, bound: u64) -> u64 {
        u64::from(self.choices.next().unwrap_or(0)) % bound
    }

    fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.choose(options.len() as u64) as usize]
    }

    /// The kernel.
    pub fn kernel(mut self) -> Kernel {
        let rows = 1 + self.choose(5);
        let width = 1 + self.choose(45);
        let shift = self.builder.integer("shift", Some((0, 8)));
        let row = self.builder.axis("row", rows, AxisKind::Serial);
        let d = self.builder.axis("d", width, AxisKind::Vector);
        let shape = Shape { rows, width, row, d, shift };
        match self.choose(3) {
            0 => self.rows(shape),
            1 => self.columns(shape),
            _ => self.tiles(shape),
        }
        self.builder.finish().expect("a valid kernel")
    }

    /// Rows outside, the vector loop inside, a second phase that reads the reductions of the first.
    fn rows(&mut self, shape: Shape) {
        self.builder.enter(shape.row);
        let outside = self.expressions(shape, Vec::new(), 2);
        let kinds = [0, 1].map(|_| self.reduction());
        let accumulators = kinds.map(|(scalar, kind)| self.builder.start(kind, scalar));
        self.builder.enter(shape.d);
        let inside = self.expressions(shape, outside.clone(), 6);
        for (accumulator, (scalar, _)) in accumulators.into_iter().zip(kinds) {
            let value = self.value(shape, &inside, scalar);
            self.builder.combine(accumulator, value);
        }
        self.outputs(shape, &inside);
        self.builder.leave();
        let mut known = outside;
        known.extend(accumulators.map(|accumulator| self.builder.total(accumulator)));
        self.outputs(shape, &known);
        self.builder.enter(shape.d);
        let inside = self.expressions(shape, known, 4);
        self.outputs(shape, &inside);
        self.builder.leave();
        self.builder.leave();
    }

    /// The vector loop outside, rows inside, reduced in accumulators of each column and in memory.
    fn columns(&mut self, shape: Shape) {
        self.builder.enter(shape.d);
        let outside = self.expressions(shape, Vec::new(), 3);
        let (scalar, kind) = self.reduction();
        let accumulator = self.builder.start(kind, scalar);
        let target = self.tensor(shape.width, ElementType::I32, Access::ReadWrite);
        self.builder.enter(shape.row);
        let inside = self.expressions(shape, outside.clone(), 5);
        let value = self.value(shape, &inside, scalar);
        self.builder.combine(accumulator, value);
        let value = self.value(shape, &inside, ScalarType::I32);
        let kind = self.pick(&COMBINATIONS);
        self.builder.accumulate(target, shape.d, kind, value);
        self.outputs(shape, &inside);
        self.builder.leave();
        let total = self.builder.total(accumulator);
        self.outputs(shape, &[outside, vec![total]].concat());
        self.builder.leave();
    }

    /// Tiles outside, the vector loop over a tile inside.
    fn tiles(&mut self, shape: Shape) {
        let size = 1 + self.choose(30);
        let (tile, inner) = self.builder.tiled_axis("part", shape.width, size, AxisKind::Vector);
        let shape = Shape { d: inner, ..shape };
        self.builder.enter(tile);
        let (scalar, kind) = self.reduction();
        let accumulator = self.builder.start(kind, scalar);
        self.builder.enter(shape.row);
        self.builder.enter(inner);
        let inside = self.expressions(shape, Vec::new(), 6);
        let value = self.value(shape, &inside, scalar);
        self.builder.combine(accumulator, value);
        self.outputs(shape, &inside);
        self.builder.leave();
        self.builder.leave();
        let total = self.builder.total(accumulator);
        let element = element_of(scalar);
        let out = self.tensor(shape.width.div_ceil(size), element, Access::Write);
        self.builder.store(out, tile, total);
        self.builder.leave();
    }

    /// Sums of floats depend on their order, so they are left to other tests.
    fn reduction(&mut self) -> (ScalarType, Combination) {
        let scalar = self.pick(&SCALARS[..3]);
        let kinds = if scalar == ScalarType::F32 { &COMBINATIONS[1..] } else { &COMBINATIONS };
        (scalar, self.pick(kinds))
    }

    fn tensor(&mut self, length: u64, element: ElementType, access: Access) -> TensorId {
        self.tensors += 1;
        let name = format!("t{}", self.tensors);
        self.builder.tensor(&name, element, access, length)
    }

    fn expressions(&mut self, shape: Shape, mut known: Vec<Register>, count: u64) -> Vec<Register> {
        for _ in 0..1 + self.choose(count + 1) {
            let next = match self.choose(8) {
                0..3 => self.load(shape),
                3 => self.draw(shape),
                _ => self.operation(shape, &known),
            };
            known.push(next);
        }
        known
    }

    /// The index of an element of a `[rows, width]` tensor, in one of several layouts, where both loops are open; else
    /// of fewer dimensions.
    fn place(&mut self, shape: Shape) -> (Index, u64) {
        let in_row = self.is_open(shape.row);
        let in_column = self.is_open(shape.d);
        let (rows, width) = (shape.rows as i64, shape.width as i64);
        let row = if in_row { 1 } else { 0 };
        let column = if in_column { 1 } else { 0 };
        let index = match self.choose(4) {
            0 => Index::default().plus(column, shape.d).plus(row * width, shape.row),
            1 => Index::default().plus(column * rows, shape.d).plus(row, shape.row),
            2 => Index::constant(rows * width - 1).plus(-column, shape.d).plus(-row * width, shape.row),
            _ => Index::default().plus(column * 2, shape.d).plus(row * width * 2, shape.row),
        };
        (index, shape.rows * shape.width * 2)
    }

    fn is_open(&self, axis: AxisId) -> bool {
        self.builder.is_open(axis)
    }

    fn load(&mut self, shape: Shape) -> Register {
        let (index, length) = self.place(shape);
        let element = self.pick(&ELEMENTS);
        let tensor = self.tensor(length + 8, element, Access::Read);
        let shift = self.choose(2) as i64;
        self.builder.load(tensor, index.plus(shift, shape.shift))
    }

    fn draw(&mut self, shape: Shape) -> Register {
        let (index, _) = self.place(shape);
        let index = index.plus(3, shape.shift);
        if self.choose(2) == 0 {
            return self.builder.coordinate(index);
        }
        let key = [Index::from(shape.shift), Index::constant(-77)];
        let draw = self.pick(&[Draw::Bits, Draw::Unit]);
        let word = self.choose(4) as u8;
        self.builder.random(key, index.scaled(1 << 31), word, draw)
    }

    /// A known register of the type wanted, cast where there is none.
    fn value(&mut self, shape: Shape, known: &[Register], scalar: ScalarType) -> Register {
        let fitting: Vec<Register> =
            known.iter().copied().filter(|&register| self.builder.scalar(register) == scalar).collect();
        if !fitting.is_empty() {
            return self.pick(&fitting);
        }
        let other = if known.is_empty() { self.load(shape) } else { self.pick(known) };
        self.builder.cast(scalar, other)
    }

    fn operation(&mut self, shape: Shape, known: &[Register]) -> Register {
        let scalar = self.pick(&SCALARS);
        let kind = self.choose(8);
        let left = self.value(shape, known, scalar);
        match kind {
            0 => self.constant(),
            1 => self.unary(left),
            2 => {
                let right = self.value(shape, known, scalar);
                let comparison = self.pick(&COMPARISONS);
                let comparison = match comparison.is_defined_on(scalar) {
                    true => comparison,
                    false => Comparison::Equal,
                };
                self.builder.compare(comparison, left, right)
            }
            3 => {
                let condition = self.value(shape, known, ScalarType::Bool);
                let right = self.value(shape, known, scalar);
                self.builder.select(condition, left, right)
            }
            4 => {
                let target = self.pick(&SCALARS);
                self.builder.cast(target, left)
            }
            5 => {
                let [left, right, addend] = [0; 3].map(|_| self.value(shape, known, ScalarType::F32));
                self.builder.multiply_add(left, right, addend)
            }
            _ => {
                let right = self.value(shape, known, scalar);
                let operators: Vec<_> =
                    OPERATORS.into_iter().filter(|operator| operator.result(scalar).is_some()).collect();
                let operator = self.pick(&operators);
                self.builder.binary(operator, left, right)
            }
        }
    }

    fn unary(&mut self, value: Register) -> Register {
        let operator = match self.builder.scalar(value) {
            ScalarType::F32 => self.pick(&OF_FLOATS),
            ScalarType::I32 => {
                self.pick(&[UnaryOperator::Negate, UnaryOperator::Absolute, UnaryOperator::Not])
            }
            ScalarType::U32 => self.pick(&[UnaryOperator::Negate, UnaryOperator::Not]),
            ScalarType::Bool => UnaryOperator::Not,
        };
        self.builder.unary(operator, value)
    }

    fn constant(&mut self) -> Register {
        let word = self.choose(1 << 32) as u32;
        let constant = match self.choose(5) {
            0 => Constant::f32((word % 64) as f32 / 8.0 - 4.0),
            1 => Constant::F32(word),
            2 => Constant::I32(word.cast_signed()),
            3 => Constant::U32(word % 32),
            _ => Constant::Bool(word & 1 != 0),
        };
        self.builder.compute(Operation::Constant(constant))
    }

    /// Stores some of the known values.
    fn outputs(&mut self, shape: Shape, known: &[Register]) {
        for _ in 0..1 + self.choose(3) {
            let value = self.pick(known);
            let scalar = self.builder.scalar(value);
            let element = match (scalar, self.choose(3)) {
                (ScalarType::F32, 1) => ElementType::Bf16,
                (ScalarType::F32, 2) => ElementType::F16,
                (scalar, _) => element_of(scalar),
            };
            let (index, length) = self.place(shape);
            let tensor = self.tensor(length, element, Access::Write);
            self.builder.store(tensor, index, value);
        }
    }
}

fn element_of(scalar: ScalarType) -> ElementType {
    match scalar {
        ScalarType::F32 => ElementType::F32,
        ScalarType::I32 => ElementType::I32,
        ScalarType::U32 => ElementType::U32,
        ScalarType::Bool => ElementType::Bool,
    }
}
