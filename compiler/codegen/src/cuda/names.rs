//! Identifiers of emitted CUDA C++: those of the source where they are known, each once a kernel, none that the language
//! or the prelude has taken.

use crate::kir::{AccumulatorId, AxisId, IntegerId, Kernel, Register, TensorId};
use crate::lower::Origins;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashSet;

/// Words that mean something in CUDA C++ or in our prelude, among those a model may use for a name.
const TAKEN: &[&str] = &[
    "Epilogue",
    "Loads",
    "Results",
    "WIDTH",
    "alignas",
    "alignof",
    "and",
    "asm",
    "auto",
    "bf16",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "const",
    "constexpr",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "dtl",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "f16",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "half",
    "if",
    "index",
    "inline",
    "int",
    "lane",
    "long",
    "main",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "nullptr",
    "operator",
    "or",
    "pack",
    "private",
    "protected",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "threads",
    "throw",
    "true",
    "try",
    "typedef",
    "typename",
    "union",
    "unit",
    "units",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
];

/// The identifier of everything in a kernel.
pub(super) struct Names {
    tensors: SecondaryMap<TensorId, String>,
    integers: SecondaryMap<IntegerId, String>,
    axes: SecondaryMap<AxisId, String>,
    registers: SecondaryMap<Register, String>,
    accumulators: SecondaryMap<AccumulatorId, String>,
    used: FxHashSet<String>,
}

impl Names {
    /// Names everything in `kernel`; registers after the values that `origins` knows.
    pub(super) fn new(kernel: &Kernel, origins: &Origins) -> Self {
        let mut names = Self {
            tensors: SecondaryMap::new(),
            integers: SecondaryMap::new(),
            axes: SecondaryMap::new(),
            registers: SecondaryMap::new(),
            accumulators: SecondaryMap::new(),
            used: TAKEN.iter().map(|&word| word.to_owned()).collect(),
        };
        for (id, tensor) in &kernel.tensors {
            names.tensors[id] = names.fresh(&tensor.name);
        }
        for (id, integer) in &kernel.integers {
            names.integers[id] = names.fresh(&integer.name);
        }
        for (id, axis) in &kernel.axes {
            names.axes[id] = names.fresh(&axis.name);
        }
        for register in kernel.registers.keys() {
            let name = origins[register].as_ref().and_then(|origin| origin.name.as_deref());
            names.registers[register] = match name.map(last_part) {
                Some(name) if !name.is_empty() => names.fresh(name),
                Some(_) | None => names.fresh(&format!("r{}", register.as_u32())),
            };
        }
        for accumulator in kernel.accumulators.keys() {
            names.accumulators[accumulator] = names.fresh(&format!("partial{}", accumulator.as_u32()));
        }
        names
    }

    pub(super) fn tensor(&self, tensor: TensorId) -> &str {
        &self.tensors[tensor]
    }

    pub(super) fn integer(&self, integer: IntegerId) -> &str {
        &self.integers[integer]
    }

    pub(super) fn axis(&self, axis: AxisId) -> &str {
        &self.axes[axis]
    }

    pub(super) fn register(&self, register: Register) -> &str {
        &self.registers[register]
    }

    pub(super) fn accumulator(&self, accumulator: AccumulatorId) -> &str {
        &self.accumulators[accumulator]
    }

    /// `wanted` as an identifier that nothing else has.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        let plain = identifier(wanted);
        let mut candidate = plain.clone();
        let mut number = 1;
        while !self.used.insert(candidate.clone()) {
            number += 1;
            candidate = format!("{plain}_{number}");
        }
        candidate
    }
}

/// Letters, digits and single underscores, no digit first: two underscores are the language's own.
pub(super) fn identifier(wanted: &str) -> String {
    let mut plain = String::new();
    for character in wanted.chars() {
        let character = if character.is_ascii_alphanumeric() { character } else { '_' };
        if character != '_' || !plain.ends_with('_') {
            plain.push(character);
        }
    }
    let plain = plain.trim_matches('_');
    match plain.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => plain.to_owned(),
        Some(_) | None => format!("v{plain}"),
    }
}

/// What a path such as `layers.attn.q0` ends in.
fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
