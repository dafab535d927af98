//! Puts a source together: the prelude, the constants of a descriptor, the files that compute with them, and a name.

use std::fmt::{Display, Write};

use crate::signature::Element;

const PRELUDE: &str = include_str!("prelude.cuh");

/// Threads of a block of kernels without shared memory.
pub(super) const THREADS: u32 = 256;
/// As many blocks of [`THREADS`] as fill the largest device; more would only be started later.
const MOST_BLOCKS: u64 = 160 * 8;

/// A translation unit in the making.
pub(super) struct Source {
    text: String,
}

impl Source {
    pub(super) fn new() -> Self {
        Self { text: format!("{PRELUDE}\n") }
    }

    /// Defines a constant; `kind` is a type of C++.
    pub(super) fn constant(mut self, kind: &str, name: &str, value: impl Display) -> Self {
        self.line(format_args!("constexpr {kind} {name} = {value};"));
        self
    }

    /// Names a type.
    pub(super) fn alias(mut self, name: &str, kind: &str) -> Self {
        self.line(format_args!("using {name} = {kind};"));
        self
    }

    /// Defines a macro, for what no constant can stand for.
    pub(super) fn macro_text(mut self, name: &str, text: &str) -> Self {
        self.line(format_args!("#define {name} {text}"));
        self
    }

    /// Goes on with a file.
    pub(super) fn file(mut self, text: &str) -> Self {
        self.text.push('\n');
        self.text.push_str(text);
        self
    }

    /// The function's name and the whole text. The name opens with `stem` and ends with a digest of the text.
    pub(super) fn finish(self, stem: &str) -> (String, String) {
        let name = format!("{stem}_{:016x}", digest(&self.text));
        let source = format!("#define KERNEL {name}\n\n{}", self.text);
        (name, source)
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// The type of C++ that stores an element.
pub(super) fn stored(element: Element) -> &'static str {
    match element {
        Element::F32 => "float",
        Element::Bf16 => "bf16",
    }
}

/// Blocks of a launch whose threads take what is left in turns, of `items` for a thread each at first.
pub(super) fn linear_blocks(items: u64) -> u32 {
    items.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS) as u32
}

/// 64 bits that differ between texts (FNV-1a).
fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
