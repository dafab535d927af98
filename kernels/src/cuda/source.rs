//! Puts a source together: the prelude, the constants of a descriptor, the files that compute with them, and a name.

use std::fmt::{Display, Write};

use super::{DeviceArgument, DeviceLaunch};
use crate::signature::Element;

const PRELUDE: &str = include_str!("prelude.cuh");

/// Threads of a block of kernels whose blocks share nothing.
const THREADS: u32 = 256;
/// As many blocks of [`THREADS`] as fill the largest device; more would only be started later.
const MOST_BLOCKS: u64 = 160 * 8;

/// A translation unit in the making, but for its prelude.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Source {
    text: String,
    macros: Vec<String>,
}

impl Source {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Defines a constant, which a file need not use; `kind` is a type of C++.
    pub(super) fn constant(mut self, kind: &str, name: &str, value: impl Display) -> Self {
        self.line(format_args!("[[maybe_unused]] constexpr {kind} {name} = {value};"));
        self
    }

    /// Names a type.
    pub(super) fn alias(mut self, name: &str, kind: &str) -> Self {
        self.line(format_args!("using {name} = {kind};"));
        self
    }

    /// Names the type of what the tensor cores multiply, if they do: `Factor`, and where an instruction is written `FACTOR_NAME`, and
    /// `WARP_PRODUCT` for the one of a warp.
    pub(super) fn factor(self, element: Element) -> Self {
        let (name, terms) = match element {
            Element::F32 => ("tf32", 8),
            Element::Bf16 | Element::F16 => (stored(element), 16),
        };
        self.alias("Factor", stored(element))
            .macro_text("FACTOR_NAME", &format!("\"{name}\""))
            .macro_text("WARP_PRODUCT", &format!("\"m16n8k{terms}.row.col.f32.{name}.{name}.f32\""))
    }

    /// Defines a macro, for what no constant can stand for.
    pub(super) fn macro_text(mut self, name: &str, text: &str) -> Self {
        self.line(format_args!("#define {name} {text}"));
        self.macros.push(name.to_owned());
        self
    }

    /// Goes on with a file.
    pub(super) fn file(mut self, text: &str) -> Self {
        self.text.push('\n');
        self.text.push_str(text);
        self
    }

    /// The text as a namespace, so that others with the same names may stand beside it.
    pub(super) fn enclosed(self, namespace: &str) -> String {
        let undefined: String = self.macros.iter().map(|name| format!("#undef {name}\n")).collect();
        let opening = format!(
            "namespace {namespace} {{\n\n// The text has more functions of this name.\nusing ::address;\n"
        );
        format!("{opening}{}\n}}  // namespace {namespace}\n{undefined}", self.text)
    }

    /// The function's name and the whole text. The name opens with `stem` and ends with a digest of the text.
    pub(super) fn finish(self, stem: &str) -> (String, String) {
        let name = format!("{stem}_{:016x}", digest(&self.text));
        let source = format!("#define KERNEL {name}\n\n{PRELUDE}\n{}", self.text);
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
        Element::F16 => "f16",
    }
}

/// A literal with exactly this value, which is finite, and for people the decimal one.
pub(super) fn float(value: f32) -> String {
    let bits = value.to_bits();
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let (exponent, fraction) = ((bits >> 23 & 0xff) as i32, bits & 0x7f_ffff);
    // Subnormal numbers lack the leading bit and have the exponent of the smallest normal ones.
    let mantissa = if exponent == 0 { fraction } else { fraction | 0x80_0000 };
    format!("{sign}0x{mantissa:x}p{}f /* {value:?} */", exponent.max(1) - 150)
}

/// A launch of `threads` threads, or of fewer that take what there is in turns.
pub(super) fn linear(
    stem: &str,
    source: Source,
    threads: u64,
    arguments: Vec<DeviceArgument>,
) -> DeviceLaunch {
    let (name, source) = source.finish(stem);
    let blocks = threads.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS) as u32;
    let (grid, block) = ([blocks, 1, 1], [THREADS, 1, 1]);
    DeviceLaunch { name, source, grid, block, shared_bytes: 0, arguments, alternative: None }
}

/// 64 bits that differ between texts (FNV-1a).
fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn literals_are_exact() {
        assert_eq!(float(1.0), "0x800000p-23f /* 1.0 */");
        assert_eq!(float(-0.1), "-0xcccccdp-27f /* -0.1 */");
        assert_eq!(float(1e-45), "0x1p-149f /* 1e-45 */");
    }
}
