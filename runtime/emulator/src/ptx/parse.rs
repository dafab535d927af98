//! From tokens to the syntax tree. Owns PTX's grammar as far as NVRTC writes it; what it does not know is an error that
//! names the line, never skipped.

use super::lexer::{Token, tokens};
use super::syntax::{
    Address, Function, FunctionKind, Guard, Initial, Item, Module, Operand, RawInstruction, Space, Variable,
};
use super::{PtxError, Type};

/// Reads a PTX text.
///
/// # Errors
/// The first place that isn't PTX as it is known here.
pub fn parse(text: &str) -> Result<Module, PtxError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut module = Module::default();
    while parser.at < parser.tokens.len() {
        parser.top(&mut module)?;
    }
    Ok(module)
}

struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
}

type Parsed<T> = Result<T, PtxError>;

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn ahead(&self, count: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + count).map(|(token, _)| *token)
    }

    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Parsed<T> {
        Err(PtxError::new(self.line(), reason))
    }

    fn next(&mut self) -> Parsed<Token<'a>> {
        let Some(token) = self.peek() else { return self.fail("the text ends too early") };
        self.at += 1;
        Ok(token)
    }

    /// Whether the mark is next; it is taken if so.
    fn takes(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: u8) -> Parsed<()> {
        if self.takes(mark) {
            return Ok(());
        }
        self.fail(format!("`{}` is expected, not {:?}", mark as char, self.peek()))
    }

    fn word(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            other => self.fail(format!("a name is expected, not {other:?}")),
        }
    }

    fn integer(&mut self) -> Parsed<u64> {
        match self.peek() {
            Some(Token::Integer(value)) => {
                self.at += 1;
                Ok(value)
            }
            other => self.fail(format!("a number is expected, not {other:?}")),
        }
    }

    fn small(&mut self) -> Parsed<u32> {
        let value = self.integer()?;
        u32::try_from(value).or_else(|_| self.fail(format!("{value} is too large")))
    }

    /// One directive of the module.
    fn top(&mut self, module: &mut Module) -> Parsed<()> {
        while ["visible", "extern", "weak", "common"].iter().any(|word| self.takes_directive(word)) {}
        match self.word()? {
            ".version" => self.next().map(drop),
            ".address_size" => match self.integer()? {
                64 => Ok(()),
                other => self.fail(format!("addresses of {other} bits; only 64 are known")),
            },
            ".target" => {
                module.target = self.word()?.to_owned();
                while self.takes(b',') {
                    self.word()?;
                }
                Ok(())
            }
            ".file" => self.file(module),
            ".section" => self.skip_section(),
            ".pragma" => self.skip_statement(),
            ".entry" => self.function(module, FunctionKind::Entry),
            ".func" => self.function(module, FunctionKind::Device),
            word => {
                let Some(space) = space_directive(word) else {
                    self.at -= 1;
                    return self.fail(format!("`{word}` is not known at the top of a module"));
                };
                let variable = self.variable(space)?;
                self.expect(b';')?;
                module.variables.push(variable);
                Ok(())
            }
        }
    }

    fn takes_directive(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(word)) if word.strip_prefix('.') == Some(name));
        self.at += usize::from(found);
        found
    }

    fn file(&mut self, module: &mut Module) -> Parsed<()> {
        let number = self.small()?;
        let Token::Text(name) = self.next()? else { return self.fail("`.file` wants a name") };
        // Relative names are compiled behind this, so that they don't depend on a working directory.
        let name = name.strip_prefix("/./").unwrap_or(name);
        module.files.insert(number, name.to_owned());
        while self.takes(b',') {
            self.integer()?;
        }
        Ok(())
    }

    fn skip_section(&mut self) -> Parsed<()> {
        self.word()?;
        self.expect(b'{')?;
        while self.next()? != Token::Mark(b'}') {}
        Ok(())
    }

    fn skip_statement(&mut self) -> Parsed<()> {
        while self.next()? != Token::Mark(b';') {}
        Ok(())
    }

    fn function(&mut self, module: &mut Module, kind: FunctionKind) -> Parsed<()> {
        let returns = if self.peek() == Some(Token::Mark(b'(')) { self.params()? } else { Vec::new() };
        let line = self.line();
        let name = self.word()?.to_owned();
        let params = if self.peek() == Some(Token::Mark(b'(')) { self.params()? } else { Vec::new() };
        let mut function = Function { name, kind, returns, params, most_threads: None, body: None, line };
        while let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            match word {
                ".maxntid" | ".reqntid" => function.most_threads = Some(self.product()?),
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".reqnctapercluster" => {
                    self.product()?;
                }
                ".noreturn" | ".explicitcluster" => {}
                ".pragma" => self.skip_statement()?,
                _ => return self.fail(format!("`{word}` is not known behind a function's parameters")),
            }
        }
        if !self.takes(b';') {
            self.expect(b'{')?;
            function.body = Some(self.body()?);
        }
        module.functions.push(function);
        Ok(())
    }

    fn product(&mut self) -> Parsed<u32> {
        let mut product = self.small()?;
        while self.takes(b',') {
            product = product.saturating_mul(self.small()?);
        }
        Ok(product)
    }

    fn params(&mut self) -> Parsed<Vec<Variable>> {
        self.expect(b'(')?;
        let mut params = Vec::new();
        while !self.takes(b')') {
            if self.word()? != ".param" {
                self.at -= 1;
                return self.fail("a `.param` is expected; parameters in registers are not known");
            }
            params.push(self.variable(Space::Param)?);
            self.takes(b',');
        }
        Ok(params)
    }

    /// Everything of a variable behind its space, without the semicolon.
    fn variable(&mut self, space: Space) -> Parsed<Variable> {
        let line = self.line();
        let (mut align, mut element) = (None, None);
        let name = loop {
            match self.word()? {
                ".align" => align = Some(self.integer()?),
                // Where a parameter points to; says nothing that an access would not.
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                word => match word.strip_prefix('.') {
                    Some(name) => element = Some(self.type_named(name)?),
                    None => break word.to_owned(),
                },
            }
        };
        let Some(element) = element else { return self.fail(format!("`{name}` has no type")) };
        let mut count = Some(1);
        while self.takes(b'[') {
            if self.takes(b']') {
                count = None;
                continue;
            }
            let length = self.integer()?;
            count = count.and_then(|count: u64| count.checked_mul(length));
            self.expect(b']')?;
        }
        let initial = if self.takes(b'=') { self.initial(element)? } else { Initial::None };
        let align = align.unwrap_or(element.bytes().max(1) as u64);
        if !align.is_power_of_two() {
            return self.fail(format!("an alignment of {align}"));
        }
        Ok(Variable { name, space, element, count, align, initial, line })
    }

    fn type_named(&self, name: &str) -> Parsed<Type> {
        match Type::from_name(name) {
            Some(ty) => Ok(ty),
            None => self.fail(format!("`.{name}` is not a type that is known")),
        }
    }

    fn initial(&mut self, element: Type) -> Parsed<Initial> {
        let mut bytes = Vec::new();
        let mut depth = 0;
        loop {
            if self.takes(b'{') {
                depth += 1;
            } else if self.takes(b'}') {
                depth -= 1;
            } else if !self.takes(b',') {
                let value = self.literal()?;
                let bits = literal_bits(&value, element)
                    .map_or_else(|| self.fail("an initial value that isn't a number is not supported"), Ok)?;
                bytes.extend_from_slice(&bits.to_le_bytes()[..element.bytes().min(8)]);
            }
            if depth == 0 {
                return Ok(Initial::Bytes(bytes));
            }
        }
    }

    /// A number with its sign, or a name.
    fn literal(&mut self) -> Parsed<Operand> {
        let negative = self.takes(b'-');
        let value = match self.next()? {
            Token::Integer(value) if negative => Operand::Integer((value as i64).wrapping_neg()),
            Token::Integer(value) => Operand::Integer(value as i64),
            Token::Float32(bits) => Operand::Float32(if negative { bits ^ 0x8000_0000 } else { bits }),
            Token::Float64(bits) => Operand::Float64(if negative { bits ^ (1 << 63) } else { bits }),
            Token::Word(name) if !negative => Operand::Name(name.to_owned()),
            other => {
                self.at -= 1;
                return self.fail(format!("{other:?} is not an operand"));
            }
        };
        Ok(value)
    }

    /// The items of a body, up to and with the brace that closes it.
    fn body(&mut self) -> Parsed<Vec<Item>> {
        let mut items = Vec::new();
        let mut depth = 0;
        loop {
            if self.takes(b'{') {
                depth += 1;
                items.push(Item::Open);
            } else if self.takes(b'}') {
                if depth == 0 {
                    return Ok(items);
                }
                depth -= 1;
                items.push(Item::Close);
            } else if !self.takes(b';') {
                self.item(&mut items)?;
            }
        }
    }

    fn item(&mut self, items: &mut Vec<Item>) -> Parsed<()> {
        let line = self.line();
        if self.peek() == Some(Token::Mark(b'@')) {
            items.push(Item::Instruction(self.instruction()?));
            return Ok(());
        }
        let word = self.word()?;
        match word {
            ".reg" => return self.registers(items),
            ".loc" => {
                items.push(self.location()?);
                return Ok(());
            }
            ".pragma" => return self.skip_statement(),
            _ => {}
        }
        if let Some(space) = space_directive(word) {
            items.push(Item::Variable(self.variable(space)?));
            return self.expect(b';');
        }
        if self.takes(b':') {
            if !self.takes_directive("branchtargets") {
                items.push(Item::Label(word.to_owned(), line));
                return Ok(());
            }
            let mut labels = vec![self.word()?.to_owned()];
            while self.takes(b',') {
                labels.push(self.word()?.to_owned());
            }
            items.push(Item::BranchTargets(word.to_owned(), labels));
            return self.expect(b';');
        }
        if word.starts_with('.') {
            return Err(PtxError::new(line, format!("the directive `{word}` is not known in a body")));
        }
        self.at -= 1;
        items.push(Item::Instruction(self.instruction()?));
        Ok(())
    }

    fn registers(&mut self, items: &mut Vec<Item>) -> Parsed<()> {
        let Some(name) = self.word()?.strip_prefix('.') else { return self.fail("a type is expected") };
        let ty = self.type_named(name)?;
        loop {
            let name = self.word()?.to_owned();
            let count = if self.takes(b'<') {
                let count = self.small()?;
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            items.push(Item::Registers { ty, name, count });
            if !self.takes(b',') {
                return self.expect(b';');
            }
        }
    }

    fn location(&mut self) -> Parsed<Item> {
        let file = self.small()?;
        let line = self.small()?;
        self.small()?;
        // Where the code was inlined from and to: the place of the code itself is what counts.
        while self.takes(b',') {
            match self.word()? {
                "function_name" => {
                    self.word()?;
                    if self.takes(b'+') {
                        self.integer()?;
                    }
                }
                "inlined_at" => {
                    for _ in 0..3 {
                        self.small()?;
                    }
                }
                other => return self.fail(format!("`{other}` is not known in `.loc`")),
            }
        }
        Ok(Item::Location { file, line })
    }

    fn instruction(&mut self) -> Parsed<RawInstruction> {
        let line = self.line();
        let guard = if self.takes(b'@') {
            let negated = self.takes(b'!');
            Some(Guard { name: self.word()?.to_owned(), negated })
        } else {
            None
        };
        let opcode = self.word()?.to_owned();
        let mut operands = Vec::new();
        while !self.takes(b';') {
            operands.push(self.operand()?);
            if !self.takes(b',') {
                self.expect(b';')?;
                break;
            }
        }
        Ok(RawInstruction { line, guard, opcode, operands })
    }

    fn operand(&mut self) -> Parsed<Operand> {
        if self.takes(b'!') {
            return Ok(Operand::Not(self.word()?.to_owned()));
        }
        if self.takes(b'[') {
            return self.address();
        }
        if self.takes(b'{') {
            return Ok(Operand::Vector(self.operands_until(b'}')?));
        }
        if self.takes(b'(') {
            return Ok(Operand::List(self.operands_until(b')')?));
        }
        let first = self.literal()?;
        if self.takes(b'|') {
            let second = self.literal()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn operands_until(&mut self, end: u8) -> Parsed<Vec<Operand>> {
        let mut operands = Vec::new();
        while !self.takes(end) {
            operands.push(self.operand()?);
            if !self.takes(b',') {
                self.expect(end)?;
                break;
            }
        }
        Ok(operands)
    }

    fn address(&mut self) -> Parsed<Operand> {
        let mut address = Address { base: None, offset: 0 };
        if let Some(Token::Word(name)) = self.peek() {
            self.at += 1;
            address.base = Some(name.to_owned());
        }
        loop {
            let negative = match (self.peek(), self.ahead(1)) {
                (Some(Token::Mark(b']')), _) => break,
                (Some(Token::Mark(b',')), Some(Token::Mark(b'{'))) => {
                    self.at += 2;
                    let coordinates = self.operands_until(b'}')?;
                    self.expect(b']')?;
                    return Ok(Operand::Tensor(address, coordinates));
                }
                (Some(Token::Mark(b'+')), Some(Token::Mark(b'-'))) => {
                    self.at += 2;
                    true
                }
                (Some(Token::Mark(b'+')), _) => {
                    self.at += 1;
                    false
                }
                (Some(Token::Mark(b'-')), _) => {
                    self.at += 1;
                    true
                }
                _ => false,
            };
            let offset = self.integer()? as i64;
            let signed = if negative { offset.wrapping_neg() } else { offset };
            address.offset = address.offset.wrapping_add(signed);
        }
        self.expect(b']')?;
        Ok(Operand::Address(address))
    }
}

fn space_directive(word: &str) -> Option<Space> {
    match word {
        ".global" => Some(Space::Global),
        ".const" => Some(Space::Const),
        ".shared" => Some(Space::Shared),
        ".local" => Some(Space::Local),
        ".param" => Some(Space::Param),
        _ => None,
    }
}

/// The bits of a literal as a value of this type; `None` for a name.
fn literal_bits(value: &Operand, ty: Type) -> Option<u64> {
    match *value {
        Operand::Integer(value) => Some(value as u64),
        Operand::Float32(bits) if ty == Type::F64 => Some(f64::from(f32::from_bits(bits)).to_bits()),
        Operand::Float32(bits) => Some(u64::from(bits)),
        Operand::Float64(bits) if ty == Type::F64 => Some(bits),
        Operand::Float64(bits) => Some(u64::from((f64::from_bits(bits) as f32).to_bits())),
        _ => None,
    }
}
