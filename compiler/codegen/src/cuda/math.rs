//! The functions of [`crate::math`] as CUDA C++: the same sequences as on the CPU, so that both give the same bits.
//!
//! Each function is printed as one assignment a line. Nothing is contracted behind our back: kernels are compiled with
//! `--fmad=false`, and a fused multiply-add is asked for by name.

use super::prelude::float_literal;
use crate::math::{self, Lanes};
use std::fmt::Write;

/// A function of the mathematics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Function {
    Exp,
    Log,
    Tanh,
    Sigmoid,
    Erf,
    Sin,
    Cos,
    ReciprocalSqrt,
    Power,
    ToBf16Bits,
}

impl Function {
    /// The name in namespace `dtl`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Erf => "erf",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::ReciprocalSqrt => "reciprocal_sqrt",
            Self::Power => "power",
            Self::ToBf16Bits => "to_bf16_bits",
        }
    }

    /// What it computes, for the reader of the text.
    fn comment(self) -> &'static str {
        match self {
            Self::Exp => "e^x, to 1.2 ulp; a result below 2^-126 is 0.",
            Self::Log => "The natural logarithm, to 1.2 ulp.",
            Self::Tanh => "The hyperbolic tangent, to 1.5 ulp.",
            Self::Sigmoid => "1 / (1 + e^-x), to 2.5 ulp.",
            Self::Erf => "The error function, to 1.5 ulp.",
            Self::Sin => "The sine of radians up to 2^22.",
            Self::Cos => "The cosine of radians up to 2^22.",
            Self::ReciprocalSqrt => "1 / sqrt(x), to 1.5 ulp.",
            Self::Power => "x to the power y, to 5 ulp.",
            Self::ToBf16Bits => "The nearest bf16 in the low 16 bits, ties to even; a NaN stays one.",
        }
    }

    /// The definition.
    pub(super) fn definition(self) -> String {
        let mut printer = Printer { lines: String::new(), count: 0 };
        let x = "x".to_owned();
        let (kind, parameters, result) = match self {
            Self::Exp => ("float", "float x", math::exp(&mut printer, &x)),
            Self::Log => ("float", "float x", math::log(&mut printer, &x)),
            Self::Tanh => ("float", "float x", math::tanh(&mut printer, &x)),
            Self::Sigmoid => ("float", "float x", math::sigmoid(&mut printer, &x)),
            Self::Erf => ("float", "float x", math::erf(&mut printer, &x)),
            Self::Sin => ("float", "float x", math::sin(&mut printer, &x)),
            Self::Cos => ("float", "float x", math::cos(&mut printer, &x)),
            Self::ReciprocalSqrt => ("float", "float x", math::reciprocal_sqrt(&mut printer, &x)),
            Self::Power => ("float", "float x, float y", math::power(&mut printer, &x, &"y".to_owned())),
            Self::ToBf16Bits => ("unsigned", "float x", math::to_bf16_bits(&mut printer, &x)),
        };
        let (name, comment, lines) = (self.name(), self.comment(), printer.lines);
        format!("// {comment}\nDTL_INLINE {kind} {name}({parameters}) {{\n{lines}    return {result};\n}}\n")
    }
}

/// Prints operations; a value is an identifier or a literal.
struct Printer {
    lines: String,
    count: usize,
}

impl Printer {
    fn assign(&mut self, kind: &str, expression: &str) -> String {
        let name = format!("{}{}", &kind[..1], self.count);
        self.count += 1;
        // Writing to a string does not fail.
        let _ = writeln!(self.lines, "    const {kind} {name} = {expression};");
        name
    }

    fn float_of_text(&mut self, expression: &str) -> String {
        self.assign("float", expression)
    }

    fn word(&mut self, expression: &str) -> String {
        self.assign("unsigned", expression)
    }

    fn truth(&mut self, expression: &str) -> String {
        self.assign("bool", expression)
    }
}

impl Lanes for Printer {
    type Float = String;
    type Bits = String;
    type Mask = String;

    fn is_fused(&self) -> bool {
        true
    }

    fn float(&mut self, value: f32) -> String {
        float_literal(value)
    }

    fn bits(&mut self, value: u32) -> String {
        format!("0x{value:x}u")
    }

    fn add(&mut self, left: &String, right: &String) -> String {
        self.float_of_text(&format!("{left} + {right}"))
    }

    fn subtract(&mut self, left: &String, right: &String) -> String {
        self.float_of_text(&format!("{left} - {right}"))
    }

    fn multiply(&mut self, left: &String, right: &String) -> String {
        self.float_of_text(&format!("{left} * {right}"))
    }

    fn divide(&mut self, left: &String, right: &String) -> String {
        self.float_of_text(&format!("{left} / {right}"))
    }

    fn multiply_add(&mut self, left: &String, right: &String, addend: &String) -> String {
        self.float_of_text(&format!("__fmaf_rn({left}, {right}, {addend})"))
    }

    fn negate(&mut self, value: &String) -> String {
        self.float_of_text(&format!("-({value})"))
    }

    fn absolute(&mut self, value: &String) -> String {
        self.float_of_text(&format!("fabsf({value})"))
    }

    fn sqrt(&mut self, value: &String) -> String {
        self.float_of_text(&format!("__fsqrt_rn({value})"))
    }

    fn floor(&mut self, value: &String) -> String {
        self.float_of_text(&format!("floorf({value})"))
    }

    fn equal(&mut self, left: &String, right: &String) -> String {
        self.truth(&format!("{left} == {right}"))
    }

    fn less(&mut self, left: &String, right: &String) -> String {
        self.truth(&format!("{left} < {right}"))
    }

    fn less_or_equal(&mut self, left: &String, right: &String) -> String {
        self.truth(&format!("{left} <= {right}"))
    }

    fn select(&mut self, mask: &String, on_true: &String, on_false: &String) -> String {
        self.float_of_text(&format!("{mask} ? {on_true} : {on_false}"))
    }

    fn bits_of(&mut self, value: &String) -> String {
        self.word(&format!("__float_as_uint({value})"))
    }

    fn float_of(&mut self, value: &String) -> String {
        self.float_of_text(&format!("__uint_as_float({value})"))
    }

    fn signed_to_float(&mut self, value: &String) -> String {
        self.float_of_text(&format!("static_cast<float>(static_cast<int>({value}))"))
    }

    fn bits_add(&mut self, left: &String, right: &String) -> String {
        self.word(&format!("{left} + {right}"))
    }

    fn bits_subtract(&mut self, left: &String, right: &String) -> String {
        self.word(&format!("{left} - {right}"))
    }

    fn bits_and(&mut self, left: &String, right: &String) -> String {
        self.word(&format!("{left} & {right}"))
    }

    fn bits_or(&mut self, left: &String, right: &String) -> String {
        self.word(&format!("{left} | {right}"))
    }

    fn bits_xor(&mut self, left: &String, right: &String) -> String {
        self.word(&format!("{left} ^ {right}"))
    }

    fn shift_left(&mut self, value: &String, amount: u8) -> String {
        self.word(&format!("{value} << {amount}"))
    }

    fn shift_right(&mut self, value: &String, amount: u8) -> String {
        self.word(&format!("{value} >> {amount}"))
    }

    fn shift_right_signed(&mut self, value: &String, amount: u8) -> String {
        self.word(&format!("static_cast<unsigned>(static_cast<int>({value}) >> {amount})"))
    }

    fn bits_equal(&mut self, left: &String, right: &String) -> String {
        self.truth(&format!("{left} == {right}"))
    }

    fn bits_select(&mut self, mask: &String, on_true: &String, on_false: &String) -> String {
        self.word(&format!("{mask} ? {on_true} : {on_false}"))
    }

    fn mask_and(&mut self, left: &String, right: &String) -> String {
        self.truth(&format!("{left} && {right}"))
    }

    fn mask_or(&mut self, left: &String, right: &String) -> String {
        self.truth(&format!("{left} || {right}"))
    }

    fn mask_not(&mut self, mask: &String) -> String {
        self.truth(&format!("!{mask}"))
    }
}
