//! The words of the text, each next to what it stands for.

use crate::kir::{
    Access, AxisKind, BinaryOperator, Combination, Comparison, Draw, ElementType, ScalarType, UnaryOperator,
};

/// A closed set of things that the text names by a word.
pub(super) trait Named: Copy + Sized + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// The word.
    fn word(self) -> &'static str;

    /// What a word stands for.
    fn of_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|named| named.word() == word)
    }
}

/// Implements [`Named`] from a list of variants and words.
macro_rules! named {
    ($($kind:ident { $($variant:ident = $word:literal),* $(,)? })*) => {$(
        impl Named for $kind {
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),*
                }
            }
        }
    )*};
}

named! {
    ElementType { F32 = "f32", Bf16 = "bf16", F16 = "f16", I32 = "i32", U32 = "u32", Bool = "bool" }
    ScalarType { F32 = "f32", I32 = "i32", U32 = "u32", Bool = "bool" }
    Access { Read = "read", Write = "write", ReadWrite = "read_write" }
    AxisKind { Serial = "serial", Vector = "vector" }
    Combination { Sum = "sum", Maximum = "maximum", Minimum = "minimum" }
    Draw { Bits = "bits", Unit = "unit" }
    UnaryOperator {
        Negate = "negate",
        Absolute = "absolute",
        Not = "not",
        Exp = "exp",
        Log = "log",
        Sqrt = "sqrt",
        ReciprocalSqrt = "reciprocal_sqrt",
        Tanh = "tanh",
        Sigmoid = "sigmoid",
        Erf = "erf",
        Sin = "sin",
        Cos = "cos",
        Floor = "floor",
        RoundToBf16 = "round_to_bf16",
        RoundToF16 = "round_to_f16",
    }
    BinaryOperator {
        Add = "add",
        Subtract = "subtract",
        Multiply = "multiply",
        Divide = "divide",
        Remainder = "remainder",
        Power = "power",
        Minimum = "minimum",
        Maximum = "maximum",
        And = "and",
        Or = "or",
        Xor = "xor",
    }
    Comparison {
        Equal = "equal",
        NotEqual = "not_equal",
        Less = "less",
        LessOrEqual = "less_or_equal",
        Greater = "greater",
        GreaterOrEqual = "greater_or_equal",
    }
}
