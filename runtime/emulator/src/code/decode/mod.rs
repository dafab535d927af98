//! From a function's syntax tree to pre-decoded instructions. Owns names: registers, variables, labels, constants and special
//! registers become slots and numbers here. What an opcode needs is in the files below; an opcode or modifier that none of them knows
//! is an error with its PTX line.

mod arithmetic;
mod compare;
mod control;
mod group;
mod lanes;
mod memory;
mod moves;
mod operands;
mod phases;
mod words;

use super::instruction::{Control, Operation};
use super::kinds::{Special, Width};
use super::{
    Code, Field, Instruction, LANES, PredicateRef, Program, SLOT_WORDS, STATIC_SHARED, SharedRegion, Slot,
};
use crate::ptx::{Function, FunctionKind, Item, Module, PtxError, RawInstruction, Space, Type, Variable};
use std::collections::{BTreeMap, HashMap, HashSet};
use words::Words;

type Decoded<T> = Result<T, PtxError>;

/// Decodes a module whose global and constant variables lie at these addresses.
///
/// # Errors
/// The first instruction, type or name that is not known.
pub(crate) fn decode(module: &Module, addresses: &HashMap<String, u64>) -> Decoded<Program> {
    let mut outer = Names::new(module, addresses);
    let mut functions = Vec::new();
    let mut kernels = BTreeMap::new();
    for (index, function) in with_bodies(module).enumerate() {
        if function.kind == FunctionKind::Entry {
            kernels.insert(function.name.clone(), index);
        }
        functions.push(function_code(&mut outer, function)?);
    }
    let shared_by_all: Vec<SharedRegion> = outer.shared.clone();
    let of_calls: Vec<SharedRegion> = functions
        .iter()
        .filter(|code: &&Code| code.kind == FunctionKind::Device)
        .flat_map(|code| code.shared.clone())
        .collect();
    for code in functions.iter_mut().filter(|code| code.kind == FunctionKind::Entry) {
        code.shared.extend(shared_by_all.iter().chain(&of_calls));
        code.shared.sort_by_key(|region| region.base);
    }
    let mut instructions = functions.iter().flat_map(|code| &code.instructions);
    let has_async_proxy = instructions.any(|one| group::is_product(one) || phases::is_copy(one));
    Ok(Program { functions, kernels, files: module.files.clone(), has_async_proxy })
}

fn with_bodies(module: &Module) -> impl Iterator<Item = &Function> {
    module.functions.iter().filter(|function| function.body.is_some())
}

/// What the names outside of all functions mean.
struct Names {
    variables: HashMap<String, Binding>,
    functions: HashMap<String, FunctionNames>,
    shared: Vec<SharedRegion>,
    next_shared: u64,
}

/// What a call must know of the function.
#[derive(Clone)]
struct FunctionNames {
    /// `None` for a declaration alone.
    index: Option<u32>,
}

/// What a name inside a function means.
#[derive(Clone)]
enum Binding {
    Register { slot: Slot, width: Width },
    Predicate(u32),
    Variable { space: Space, offset: u64 },
    Targets(Vec<String>),
}

impl Names {
    fn new(module: &Module, addresses: &HashMap<String, u64>) -> Names {
        let mut names = Names {
            variables: HashMap::new(),
            functions: HashMap::new(),
            shared: Vec::new(),
            next_shared: STATIC_SHARED,
        };
        for variable in &module.variables {
            let offset = match variable.space {
                Space::Shared => {
                    let region = names.place_shared(variable);
                    names.shared.extend(region.filter(|region| region.bytes > 0));
                    region.map_or(0, |region| region.base)
                }
                _ => addresses.get(&variable.name).copied().unwrap_or(0),
            };
            let binding = Binding::Variable { space: variable.space, offset };
            names.variables.insert(variable.name.clone(), binding);
        }
        for function in module.functions.iter().filter(|function| function.body.is_none()) {
            names.functions.insert(function.name.clone(), FunctionNames { index: None });
        }
        for (index, function) in with_bodies(module).enumerate() {
            names.functions.insert(function.name.clone(), FunctionNames { index: Some(index as u32) });
        }
        names
    }

    /// Room for a static variable, with a gap behind it so that an access past its end is seen. A variable without a length is the
    /// dynamic memory and gets none.
    fn place_shared(&mut self, variable: &Variable) -> Option<SharedRegion> {
        variable.count?;
        let base = self.next_shared.next_multiple_of(variable.align.max(256));
        self.next_shared = base + variable.bytes() + 256;
        Some(SharedRegion { base, bytes: variable.bytes() })
    }
}

/// A function under construction.
struct Decoder<'a> {
    outer: &'a mut Names,
    code: Code,
    scopes: Vec<HashMap<String, Binding>>,
    constants: HashMap<(u64, Width), Slot>,
    specials: HashMap<Special, Slot>,
    labels: HashMap<String, u32>,
    /// Branches whose targets are still names.
    branches: Vec<(usize, Vec<String>)>,
    next_slot: Slot,
    line: u32,
    source: (u32, u32),
    guard: Option<PredicateRef>,
    /// The predicate that holds the carry, where one is used.
    carry: Option<u32>,
    /// Registers that products of groups use.
    watched: HashSet<String>,
}

fn function_code(outer: &mut Names, function: &Function) -> Decoded<Code> {
    let code = Code {
        name: function.name.clone(),
        kind: function.kind,
        instructions: Vec::new(),
        template: Vec::new(),
        specials: Vec::new(),
        predicates: 1,
        local_bytes: 0,
        shared: Vec::new(),
        params: Vec::new(),
        returns: Vec::new(),
        param_bytes: 0,
        most_threads: function.most_threads,
    };
    let mut decoder = Decoder {
        outer,
        code,
        scopes: vec![HashMap::new()],
        constants: HashMap::new(),
        specials: HashMap::new(),
        labels: HashMap::new(),
        branches: Vec::new(),
        next_slot: 0,
        line: function.line,
        source: (0, 0),
        guard: None,
        carry: None,
        watched: group::registers_of_products(function),
    };
    decoder.parameters(function);
    for item in function.body.iter().flatten() {
        decoder.item(item)?;
    }
    decoder.finish()
}

impl Decoder<'_> {
    fn fail<T>(&self, reason: impl Into<String>) -> Decoded<T> {
        Err(PtxError::new(self.line, reason))
    }

    fn bind(&mut self, name: &str, binding: Binding) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), binding);
        }
    }

    fn parameters(&mut self, function: &Function) {
        for result in &function.returns {
            let field = self.local_field(result);
            self.code.returns.push(field);
        }
        for param in &function.params {
            if function.kind == FunctionKind::Device {
                let field = self.local_field(param);
                self.code.params.push(field);
                continue;
            }
            let offset = self.code.param_bytes.next_multiple_of(param.align);
            self.code.params.push(Field { offset, bytes: param.bytes() });
            self.code.param_bytes = offset + param.bytes();
            self.bind(&param.name, Binding::Variable { space: Space::Param, offset });
        }
    }

    /// Room in the frame for a variable of the thread, or for an argument on its way.
    fn local_field(&mut self, variable: &Variable) -> Field {
        let offset = self.code.local_bytes.next_multiple_of(variable.align.max(8));
        self.code.local_bytes = offset + variable.bytes();
        self.bind(&variable.name, Binding::Variable { space: Space::Local, offset });
        Field { offset, bytes: variable.bytes() }
    }

    fn item(&mut self, item: &Item) -> Decoded<()> {
        match item {
            Item::Label(name, line) => {
                self.line = *line;
                let at = self.code.instructions.len() as u32;
                if self.labels.insert(name.clone(), at).is_some() {
                    return self.fail(format!("a second label `{name}`"));
                }
            }
            Item::Open => self.scopes.push(HashMap::new()),
            Item::Close => drop(self.scopes.pop()),
            Item::Registers { ty, name, count } => self.registers(*ty, name, *count)?,
            Item::Variable(variable) => self.variable(variable)?,
            Item::Location { file, line } => self.source = (*file, *line),
            Item::BranchTargets(name, labels) => self.bind(name, Binding::Targets(labels.clone())),
            Item::Instruction(raw) => self.instruction(raw)?,
        }
        Ok(())
    }

    fn registers(&mut self, ty: Type, name: &str, count: Option<u32>) -> Decoded<()> {
        let Some(count) = count else { return self.register_named(ty, name) };
        for number in 0..count {
            self.register_named(ty, &format!("{name}{number}"))?;
        }
        Ok(())
    }

    fn register_named(&mut self, ty: Type, name: &str) -> Decoded<()> {
        let binding = if ty == Type::Pred {
            self.code.predicates += 1;
            Binding::Predicate(self.code.predicates - 1)
        } else {
            let width = self.width(ty)?;
            Binding::Register { slot: self.fresh(width), width }
        };
        self.bind(name, binding);
        Ok(())
    }

    /// How wide a register of this type is.
    fn width(&self, ty: Type) -> Decoded<Width> {
        match ty.bytes() {
            1 | 2 => Ok(Width::Half),
            4 => Ok(Width::Word),
            8 => Ok(Width::Double),
            _ => self.fail(format!("registers of type .{} are not supported", ty.name())),
        }
    }

    /// A register that no name stands for.
    fn fresh(&mut self, width: Width) -> Slot {
        let slot = self.next_slot;
        self.next_slot += if width == Width::Double { 2 } else { 1 };
        slot
    }

    fn variable(&mut self, variable: &Variable) -> Decoded<()> {
        self.line = variable.line;
        match variable.space {
            Space::Local | Space::Param => drop(self.local_field(variable)),
            Space::Shared => {
                let region = self.outer.place_shared(variable);
                self.code.shared.extend(region);
                let offset = region.map_or(0, |region| region.base);
                self.bind(&variable.name, Binding::Variable { space: Space::Shared, offset });
            }
            Space::Global | Space::Const | Space::Generic => {
                return self.fail("a variable of this space inside a function is not supported");
            }
        }
        Ok(())
    }

    fn push(&mut self, operation: impl Into<Operation>) {
        let (line, source, guard) = (self.line, self.source, self.guard);
        let operation = operation.into();
        self.code.instructions.push(Instruction { operation, guard, line, source });
    }

    fn instruction(&mut self, raw: &RawInstruction) -> Decoded<()> {
        self.line = raw.line;
        self.guard = match &raw.guard {
            Some(guard) => {
                let slot = self.predicate_named(&guard.name)?;
                Some(PredicateRef { slot, negated: guard.negated })
            }
            None => None,
        };
        let mut words = Words::new(&raw.opcode, raw.line);
        let operands = raw.operands.as_slice();
        self.touch(raw);
        let known = self.move_opcode(&mut words, operands)?
            || self.arithmetic_opcode(&mut words, operands)?
            || self.compare_opcode(&mut words, operands)?
            || self.memory_opcode(&mut words, operands)?
            || self.lane_opcode(&mut words, operands)?
            || self.group_opcode(&mut words, operands)?
            || self.phase_opcode(&mut words, operands)?
            || self.control_opcode(&mut words, operands)?;
        if !known {
            return self.fail(format!("the opcode `{}` is not known to the emulator", raw.opcode));
        }
        words.finish()
    }

    fn finish(mut self) -> Decoded<Code> {
        for (at, names) in std::mem::take(&mut self.branches) {
            let line = self.code.instructions.get(at).map_or(self.line, |instruction| instruction.line);
            let mut targets = Vec::new();
            for name in names {
                let Some(target) = self.labels.get(&name) else {
                    return Err(PtxError::new(line, format!("there is no label `{name}`")));
                };
                targets.push(*target);
            }
            match self.code.instructions.get_mut(at).map(|instruction| &mut instruction.operation) {
                Some(Operation::Control(Control::Branch { target })) => {
                    *target = targets.first().copied().unwrap_or(0)
                }
                Some(Operation::Control(Control::BranchTable { targets: table, .. })) => {
                    *table = targets.into()
                }
                _ => return Err(PtxError::new(line, "bug in dtlc: a branch that is none")),
            }
        }
        // Control that runs off the end returns.
        self.guard = None;
        self.push(Control::Return);
        let mut template = vec![0; self.next_slot as usize * SLOT_WORDS];
        for ((bits, width), slot) in &self.constants {
            let at = *slot as usize * SLOT_WORDS;
            if *width == Width::Double {
                template[at..at + LANES].fill(*bits);
            } else {
                let word = bits & 0xffff_ffff;
                template[at..at + SLOT_WORDS].fill(word | (word << 32));
            }
        }
        self.code.template = template;
        let mut specials: Vec<_> = self.specials.iter().map(|(special, slot)| (*slot, *special)).collect();
        specials.sort_by_key(|(slot, _)| *slot);
        self.code.specials = specials;
        Ok(self.code)
    }
}
