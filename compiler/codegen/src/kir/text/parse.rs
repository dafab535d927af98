//! Reads kernels back.

use super::names::Named;
use crate::kir::{
    Accumulator, AccumulatorId, Axis, AxisId, BinaryOperator, Comparison, Constant, Index, IntegerParameter,
    Kernel, KirError, Loop, Operation, Register, Result, ScalarType, Span, Statement, TensorId,
    TensorParameter, UnaryOperator, Variable, validate,
};
use cranelift_entity::{EntityRef, PrimaryMap};
use std::collections::BTreeMap;
use std::str::FromStr;

/// The kernel that `text` prints, validated.
///
/// # Errors
/// The first line that can't be read, or the first rule that the kernel breaks.
pub fn parse(text: &str) -> Result<Kernel> {
    let mut parser = Parser {
        tokens: tokens(text),
        position: 0,
        registers: BTreeMap::new(),
        accumulators: BTreeMap::new(),
        kernel: Kernel {
            name: String::new(),
            tensors: PrimaryMap::new(),
            integers: PrimaryMap::new(),
            axes: PrimaryMap::new(),
            registers: PrimaryMap::new(),
            accumulators: PrimaryMap::new(),
            outer: Loop { axis: AxisId::new(0), body: Vec::new() },
        },
    };
    parser.kernel()?;
    validate(&parser.kernel)?;
    Ok(parser.kernel)
}

/// Words and signs, each with its line number.
fn tokens(text: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut rest = line.split('#').next().unwrap_or_default().trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |character: char| character.is_alphanumeric() || "_.%@".contains(character);
            let is_number = first.is_ascii_digit();
            let mut length = 0;
            for (place, character) in rest.char_indices() {
                // An exponent's sign belongs to its number, the dots of a range do not.
                let before = rest[..place].chars().last();
                let in_exponent = is_number && character == '-' && before == Some('e');
                let in_range = is_number && rest[place..].starts_with("..");
                if !(is_word(character) && !in_range || in_exponent) {
                    break;
                }
                length = place + character.len_utf8();
            }
            let length = length.max(first.len_utf8());
            tokens.push((number + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

struct Parser<'text> {
    tokens: Vec<(usize, &'text str)>,
    position: usize,
    registers: BTreeMap<usize, ScalarType>,
    accumulators: BTreeMap<usize, Accumulator>,
    kernel: Kernel,
}

/// Words.
impl<'text> Parser<'text> {
    fn fault<T>(&self, wanted: &str) -> Result<T> {
        let (line, found) = match self.tokens.get(self.position) {
            Some((line, token)) => (*line, *token),
            None => (0, "the end"),
        };
        let message = format!("line {line}: {wanted} expected, not `{found}`");
        Err(KirError::new(&self.kernel.name, message))
    }

    fn peek(&self) -> &'text str {
        self.tokens.get(self.position).map_or("", |(_, token)| token)
    }

    fn next(&mut self) -> &'text str {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn accept(&mut self, token: &str) -> bool {
        let found = self.peek() == token;
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.accept(token) {
            return Ok(());
        }
        self.fault(&format!("`{token}`"))
    }

    fn read<T>(&mut self, wanted: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        match read(self.peek()) {
            Some(value) => {
                self.position += 1;
                Ok(value)
            }
            None => self.fault(wanted),
        }
    }

    fn named<N: Named>(&mut self, wanted: &str) -> Result<N> {
        self.read(wanted, N::of_word)
    }

    /// A number with an optional sign.
    fn number<N: FromStr>(&mut self) -> Result<N> {
        let sign = if self.accept("-") { "-" } else { "" };
        self.read("a number", |token| format!("{sign}{token}").parse().ok())
    }

    fn register(&mut self) -> Result<Register> {
        let number = self.read("a register", |token| token.strip_prefix('%')?.parse().ok())?;
        Ok(Register::new(number))
    }

    fn accumulator(&mut self) -> Result<AccumulatorId> {
        let number = self.read("an accumulator", |token| token.strip_prefix('@')?.parse().ok())?;
        Ok(AccumulatorId::new(number))
    }

    fn axis(&mut self) -> Result<AxisId> {
        let mut axes = self.kernel.axes.iter();
        let name = self.peek();
        match axes.find(|(_, axis)| axis.name == name) {
            Some((axis, _)) => {
                self.position += 1;
                Ok(axis)
            }
            None => self.fault("an axis"),
        }
    }

    fn tensor(&mut self) -> Result<TensorId> {
        let mut tensors = self.kernel.tensors.iter();
        let name = self.peek();
        match tensors.find(|(_, tensor)| tensor.name == name) {
            Some((tensor, _)) => {
                self.position += 1;
                Ok(tensor)
            }
            None => self.fault("a tensor"),
        }
    }
}

/// The kernel and its loops.
impl Parser<'_> {
    fn kernel(&mut self) -> Result<()> {
        self.expect("kernel")?;
        self.kernel.name = self.next().to_owned();
        self.expect("{")?;
        while self.accept("tensor") {
            self.tensor_parameter()?;
        }
        while self.accept("integer") {
            self.integer_parameter()?;
        }
        while self.accept("axis") {
            self.axis_declaration()?;
        }
        self.expect("for")?;
        self.kernel.outer = self.nest()?;
        self.expect("}")?;
        if self.position < self.tokens.len() {
            return self.fault("the end");
        }
        self.fill_tables()
    }

    /// Registers and accumulators are numbered without gaps.
    fn fill_tables(&mut self) -> Result<()> {
        for (position, (number, scalar)) in std::mem::take(&mut self.registers).into_iter().enumerate() {
            if position != number {
                return self.fault(&format!("register %{position}"));
            }
            self.kernel.registers.push(scalar);
        }
        for (position, (number, accumulator)) in
            std::mem::take(&mut self.accumulators).into_iter().enumerate()
        {
            if position != number {
                return self.fault(&format!("accumulator @{position}"));
            }
            self.kernel.accumulators.push(accumulator);
        }
        Ok(())
    }

    fn tensor_parameter(&mut self) -> Result<()> {
        let name = self.next().to_owned();
        self.expect(":")?;
        let element = self.named("an element type")?;
        self.expect("[")?;
        let length = self.number()?;
        self.expect("]")?;
        let access = self.named("an access")?;
        self.kernel.tensors.push(TensorParameter { name, element, access, length });
        Ok(())
    }

    fn integer_parameter(&mut self) -> Result<()> {
        let name = self.next().to_owned();
        let mut range = None;
        if self.accept("in") {
            let low = self.number()?;
            self.expect("..")?;
            self.expect("=")?;
            range = Some((low, self.number()?));
        }
        self.kernel.integers.push(IntegerParameter { name, range });
        Ok(())
    }

    fn axis_declaration(&mut self) -> Result<()> {
        let name = self.next().to_owned();
        self.expect(":")?;
        let extent = self.number()?;
        let kind = self.named("`serial` or `vector`")?;
        let mut span = Span::Whole;
        if self.accept("by") {
            let size = self.number()?;
            self.expect("of")?;
            let outer = self.axis()?;
            span = Span::Tile { outer, size };
        }
        self.kernel.axes.push(Axis { name, extent, kind, span });
        Ok(())
    }

    /// What follows `for`.
    fn nest(&mut self) -> Result<Loop> {
        let axis = self.axis()?;
        self.expect("{")?;
        let mut body = Vec::new();
        while !self.accept("}") {
            body.push(self.statement()?);
        }
        Ok(Loop { axis, body })
    }

    fn statement(&mut self) -> Result<Statement> {
        if self.accept("for") {
            return Ok(Statement::Loop(self.nest()?));
        }
        if self.accept("start") {
            return self.start();
        }
        if self.accept("combine") {
            let accumulator = self.accumulator()?;
            self.expect(",")?;
            let value = self.register()?;
            return Ok(Statement::Combine { accumulator, value });
        }
        if self.accept("store") {
            let (tensor, index) = (self.tensor()?, self.index()?);
            self.expect(",")?;
            let value = self.register()?;
            return Ok(Statement::Store { tensor, index, value });
        }
        if self.accept("accumulate") {
            let combination = self.named("a combination")?;
            let (tensor, index) = (self.tensor()?, self.index()?);
            self.expect(",")?;
            let value = self.register()?;
            return Ok(Statement::Accumulate { tensor, index, combination, value });
        }
        self.definition()
    }

    fn start(&mut self) -> Result<Statement> {
        let accumulator = self.accumulator()?;
        self.expect(":")?;
        let scalar = self.named("a type")?;
        let combination = self.named("a combination")?;
        let description = Accumulator { scalar, combination };
        self.accumulators.insert(accumulator.index(), description);
        Ok(Statement::Start(accumulator))
    }

    fn definition(&mut self) -> Result<Statement> {
        let register = self.register()?;
        self.expect(":")?;
        let scalar = self.named("a type")?;
        self.registers.insert(register.index(), scalar);
        self.expect("=")?;
        if self.accept("load") {
            let (tensor, index) = (self.tensor()?, self.index()?);
            return Ok(Statement::Load { register, tensor, index });
        }
        if self.accept("total") {
            let accumulator = self.accumulator()?;
            return Ok(Statement::Total { register, accumulator });
        }
        let operation = self.operation(scalar)?;
        Ok(Statement::Let { register, operation })
    }
}

/// Operations and indices.
impl Parser<'_> {
    fn operation(&mut self, scalar: ScalarType) -> Result<Operation> {
        let word = self.peek();
        if let Some(operator) = UnaryOperator::of_word(word) {
            self.position += 1;
            return Ok(Operation::Unary(operator, self.register()?));
        }
        if let Some(operator) = BinaryOperator::of_word(word) {
            self.position += 1;
            let [left, right] = self.operands()?;
            return Ok(Operation::Binary(operator, left, right));
        }
        if let Some(comparison) = Comparison::of_word(word) {
            self.position += 1;
            let [left, right] = self.operands()?;
            return Ok(Operation::Compare(comparison, left, right));
        }
        if self.accept("multiply_add") {
            let [left, right, addend] = self.operands()?;
            return Ok(Operation::MultiplyAdd { left, right, addend });
        }
        if self.accept("select") {
            let [condition, on_true, on_false] = self.operands()?;
            return Ok(Operation::Select { condition, on_true, on_false });
        }
        if self.accept("cast") {
            return Ok(Operation::Cast(scalar, self.register()?));
        }
        if self.accept("coordinate") {
            return Ok(Operation::Coordinate(self.index()?));
        }
        if self.accept("random") {
            return self.random();
        }
        Ok(Operation::Constant(self.constant(scalar)?))
    }

    fn operands<const COUNT: usize>(&mut self) -> Result<[Register; COUNT]> {
        let mut operands = [Register::new(0); COUNT];
        for (position, operand) in operands.iter_mut().enumerate() {
            if position > 0 {
                self.expect(",")?;
            }
            *operand = self.register()?;
        }
        Ok(operands)
    }

    fn random(&mut self) -> Result<Operation> {
        let draw = self.named("`bits` or `unit`")?;
        let word = self.number()?;
        let first = self.index()?;
        self.expect(",")?;
        let second = self.index()?;
        self.expect(",")?;
        Ok(Operation::Random { key: [first, second], counter: self.index()?, word, draw })
    }

    fn constant(&mut self, scalar: ScalarType) -> Result<Constant> {
        Ok(match scalar {
            ScalarType::F32 if self.accept("bits") => Constant::F32(self.number()?),
            ScalarType::F32 => Constant::f32(self.number()?),
            ScalarType::I32 => Constant::I32(self.number()?),
            ScalarType::U32 => Constant::U32(self.number()?),
            ScalarType::Bool => Constant::Bool(self.read("a bool", |token| token.parse().ok())?),
        })
    }

    fn index(&mut self) -> Result<Index> {
        self.expect("[")?;
        let mut index = Index::default();
        let mut is_negative = self.accept("-");
        loop {
            index = self.term(index, if is_negative { -1 } else { 1 })?;
            if self.accept("]") {
                return Ok(index);
            }
            is_negative = self.accept("-");
            if !is_negative {
                self.expect("+")?;
            }
        }
    }

    fn term(&mut self, index: Index, sign: i64) -> Result<Index> {
        let magnitude = self.peek().parse::<u64>().ok();
        self.position += usize::from(magnitude.is_some());
        let coefficient = (magnitude.unwrap_or(1) as i64).wrapping_mul(sign);
        if magnitude.is_some() && ["]", "+", "-"].contains(&self.peek()) {
            return Ok(index.offset(coefficient));
        }
        let variable = self.variable()?;
        Ok(index.plus(coefficient, variable))
    }

    fn variable(&mut self) -> Result<Variable> {
        if self.accept("(") {
            let register = self.register()?;
            self.expect("below")?;
            let bound = self.number()?;
            self.expect(")")?;
            return Ok(Variable::Data { register, bound });
        }
        let name = self.peek();
        let mut integers = self.kernel.integers.iter();
        if let Some((integer, _)) = integers.find(|(_, integer)| integer.name == name) {
            self.position += 1;
            return Ok(Variable::Integer(integer));
        }
        Ok(Variable::Axis(self.axis()?))
    }
}
