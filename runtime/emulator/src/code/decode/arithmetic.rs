//! Opcodes that compute: integers, floats, halves, bits. One table says which opcode is which kind for each sort of type.

use super::moves::ROUNDINGS;
use super::words::Words;
use super::{Decoded, Decoder};
use crate::code::instruction::Arithmetic;
use crate::code::kinds::{
    ByteFactors, Carry, CarryKind, FloatKind, FloatMode, HalfForm, IntegerKind, Operands, Rounding, Sign,
    Width,
};
use crate::ptx::{Operand, Type};

impl Decoder<'_> {
    pub(super) fn arithmetic_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        let ty = words.last_type();
        if ty == Some(Type::Pred) {
            return Ok(false);
        }
        let float = ty.is_some_and(Type::is_float);
        match words.base {
            "addc" | "subc" | "madc" => self.carried(words, operands)?,
            "add" | "sub" | "mad" if words.has("cc") => self.carried(words, operands)?,
            "fma" | "copysign" | "sqrt" | "rsqrt" | "rcp" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => {
                self.float(words, operands)?;
            }
            "add" | "sub" | "mul" | "mad" | "div" | "min" | "max" | "neg" | "abs" if float => {
                self.float(words, operands)?;
            }
            "add" | "sub" | "mul" | "mad" | "div" | "rem" | "min" | "max" | "neg" | "abs" | "and" | "or"
            | "xor" | "not" | "cnot" | "shl" | "shr" | "popc" | "clz" | "bfind" | "brev" | "bfe" | "sad"
            | "mul24" | "mad24" => self.integer(words, operands)?,
            "shf" => self.funnel(words, operands)?,
            "bfi" => self.insert_bits(words, operands)?,
            "prmt" => self.permute(words, operands)?,
            "lop3" => self.logic_table(words, operands)?,
            "dp4a" | "dp2a" => self.byte_products(words, operands)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn integer(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let kind = self.integer_kind(words)?;
        let ty = words.ty()?;
        let width = self.width(ty)?;
        if ty.bytes() == 1 || ty.is_float() {
            return self.fail(format!("`{}` on type .{}", words.base, ty.name()));
        }
        let sign = if ty.is_signed() { Sign::Signed } else { Sign::Unsigned };
        let [a_type, b_type, c_type, to_type] = operand_types(kind, ty);
        let mut slots = Operands::default();
        let (to, sources) = match operands {
            [to, sources @ ..] => (to, sources),
            [] => return self.fail("operands are missing"),
        };
        if sources.len() != integer_sources(kind) {
            return self.fail(format!("`{}` has {} sources", words.base, integer_sources(kind)));
        }
        let fields = [&mut slots.a, &mut slots.b, &mut slots.c];
        for ((field, operand), ty) in fields.into_iter().zip(sources).zip([a_type, b_type, c_type]) {
            *field = self.source(operand, ty)?;
        }
        slots.to = self.target(to, self.width(to_type)?)?;
        self.push(Arithmetic::Integer { kind, width, sign, operands: slots });
        Ok(())
    }

    fn integer_kind(&self, words: &mut Words<'_>) -> Decoded<IntegerKind> {
        use IntegerKind as Kind;
        let base = words.base;
        let saturates = matches!(base, "add" | "sub") && words.take("sat");
        let as_shift = base == "bfind" && words.take("shiftamt");
        let kind = match base {
            "add" if saturates => Kind::AddSaturating,
            "add" => Kind::Add,
            "sub" if saturates => Kind::SubtractSaturating,
            "sub" => Kind::Subtract,
            "mul" => words.expect(&[
                ("lo", Kind::MultiplyLow),
                ("hi", Kind::MultiplyHigh),
                ("wide", Kind::MultiplyWide),
            ])?,
            "mad" => words.expect(&[
                ("lo", Kind::MultiplyAddLow),
                ("hi", Kind::MultiplyAddHigh),
                ("wide", Kind::MultiplyAddWide),
            ])?,
            "mul24" => words.expect(&[("lo", Kind::Multiply24)])?,
            "mad24" => words.expect(&[("lo", Kind::MultiplyAdd24)])?,
            "div" => Kind::Divide,
            "rem" => Kind::Remainder,
            "min" => Kind::Minimum,
            "max" => Kind::Maximum,
            "neg" => Kind::Negate,
            "abs" => Kind::Absolute,
            "and" => Kind::And,
            "or" => Kind::Or,
            "xor" => Kind::ExclusiveOr,
            "not" => Kind::Not,
            "cnot" => Kind::LogicalNot,
            "shl" => Kind::ShiftLeft,
            "shr" => Kind::ShiftRight,
            "popc" => Kind::PopulationCount,
            "clz" => Kind::LeadingZeros,
            "bfind" if as_shift => Kind::FindLeadingShift,
            "bfind" => Kind::FindLeading,
            "brev" => Kind::ReverseBits,
            "bfe" => Kind::ExtractBits,
            "sad" => Kind::DistanceAdd,
            other => return self.fail(format!("bug in dtlc: `{other}` is no integer opcode")),
        };
        Ok(kind)
    }

    fn float(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let mut mode = FloatMode::PLAIN;
        let (mut nan, mut relu, mut approximate) = (false, false, false);
        loop {
            if let Some(rounding) = words.choice(&ROUNDINGS) {
                mode.rounding = rounding;
            } else if words.take("ftz") {
                mode.flush = true;
            } else if words.take("sat") {
                mode.saturate = true;
            } else if words.take("NaN") {
                nan = true;
            } else if words.take("relu") {
                relu = true;
            } else if words.take("approx") || words.take("full") {
                approximate = true;
            } else {
                break;
            }
        }
        let ty = words.ty()?;
        let kind = self.float_kind(words.base, nan, relu)?;
        self.has_rounding(kind, mode, ty)?;
        self.has_form(kind, ty, approximate)?;
        let width = self.width(ty)?;
        let (to, sources) = match operands {
            [to, sources @ ..] if sources.len() == float_sources(kind) => (to, sources),
            _ => return self.fail(format!("`{}` has {} sources", words.base, float_sources(kind))),
        };
        let mut slots = Operands::default();
        for (field, operand) in [&mut slots.a, &mut slots.b, &mut slots.c].into_iter().zip(sources) {
            *field = self.source(operand, ty)?;
        }
        slots.to = self.target(to, width)?;
        let half = |form| Arithmetic::Half { kind, form, mode, operands: slots };
        let operation = match ty {
            Type::F32 => Arithmetic::Float32 { kind, mode, operands: slots },
            Type::F64 if mode.saturate => return self.fail("f64 does not saturate"),
            Type::F64 => Arithmetic::Float64 { kind, operands: slots },
            Type::F16 => half(HalfForm::F16),
            Type::F16x2 => half(HalfForm::F16Pair),
            Type::Bf16 => half(HalfForm::Bf16),
            Type::Bf16x2 => half(HalfForm::Bf16Pair),
            _ => return self.fail(format!("`{}` on type .{}", words.base, ty.name())),
        };
        self.push(operation);
        Ok(())
    }

    fn float_kind(&self, base: &str, nan: bool, relu: bool) -> Decoded<FloatKind> {
        let kind = match base {
            "add" => FloatKind::Add,
            "sub" => FloatKind::Subtract,
            "mul" => FloatKind::Multiply,
            "fma" if relu => FloatKind::FusedMultiplyAddRelu,
            "fma" | "mad" => FloatKind::FusedMultiplyAdd,
            "div" => FloatKind::Divide,
            "min" if nan => FloatKind::MinimumNan,
            "min" => FloatKind::Minimum,
            "max" if nan => FloatKind::MaximumNan,
            "max" => FloatKind::Maximum,
            "neg" => FloatKind::Negate,
            "abs" => FloatKind::Absolute,
            "copysign" => FloatKind::CopySign,
            "sqrt" => FloatKind::SquareRoot,
            "rsqrt" => FloatKind::ReciprocalSquareRoot,
            "rcp" => FloatKind::Reciprocal,
            "ex2" => FloatKind::ExponentialTwo,
            "lg2" => FloatKind::LogarithmTwo,
            "sin" => FloatKind::Sine,
            "cos" => FloatKind::Cosine,
            "tanh" => FloatKind::HyperbolicTangent,
            other => return self.fail(format!("bug in dtlc: `{other}` is no float opcode")),
        };
        Ok(kind)
    }

    /// Directed rounding is there for what can be told exactly: sums and products.
    fn has_rounding(&self, kind: FloatKind, mode: FloatMode, ty: Type) -> Decoded<()> {
        let exact = matches!(
            kind,
            FloatKind::Add | FloatKind::Subtract | FloatKind::Multiply | FloatKind::FusedMultiplyAdd
        );
        if mode.rounding == Rounding::NearestEven || (exact && ty == Type::F32) {
            return Ok(());
        }
        self.fail(format!("{:?} rounding of {kind:?} on .{} is not supported", mode.rounding, ty.name()))
    }

    /// Which functions there are for which type.
    fn has_form(&self, kind: FloatKind, ty: Type, approximate: bool) -> Decoded<()> {
        let functions = matches!(
            kind,
            FloatKind::LogarithmTwo | FloatKind::Sine | FloatKind::Cosine | FloatKind::ReciprocalSquareRoot
        );
        let known = match ty {
            Type::F64 => {
                !matches!(kind, FloatKind::ExponentialTwo | FloatKind::HyperbolicTangent) && {
                    !functions || kind == FloatKind::ReciprocalSquareRoot
                }
            }
            Type::F32 => approximate || !functions,
            _ => !functions && !matches!(kind, FloatKind::Divide | FloatKind::SquareRoot),
        };
        if known {
            return Ok(());
        }
        self.fail(format!("{kind:?} on type .{} in this form is not supported", ty.name()))
    }

    /// Sums with a carry: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.lo.cc`, `madc.hi` and so on.
    fn carried(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let kind = match words.base {
            "add" | "addc" => CarryKind::Add,
            "sub" | "subc" => CarryKind::Subtract,
            _ => words.expect(&[("lo", CarryKind::MultiplyAddLow), ("hi", CarryKind::MultiplyAddHigh)])?,
        };
        let carry = *self.carry.get_or_insert_with(|| {
            self.code.predicates += 1;
            self.code.predicates - 1
        });
        let carry_in = words.base.ends_with('c').then_some(carry);
        let carry_out = words.take("cc").then_some(carry);
        let ty = words.ty()?;
        if !matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::S64 | Type::B32 | Type::B64) {
            return self.fail(format!("`{}` on type .{}", words.base, ty.name()));
        }
        let width = self.width(ty)?;
        let sign = if ty.is_signed() { Sign::Signed } else { Sign::Unsigned };
        let operands = match operands {
            [to, a, b] if matches!(kind, CarryKind::Add | CarryKind::Subtract) => {
                let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
                Operands { to: self.target(to, width)?, a, b, c: b }
            }
            operands => self.three(self.exactly(operands)?, ty)?,
        };
        self.push(Arithmetic::Carry(Box::new(Carry { kind, width, sign, operands, carry_in, carry_out })));
        Ok(())
    }

    fn three(&mut self, operands: &[Operand; 4], ty: Type) -> Decoded<Operands> {
        let [to, a, b, c] = operands;
        let (a, b, c) = (self.source(a, ty)?, self.source(b, ty)?, self.source(c, ty)?);
        Ok(Operands { to: self.target(to, self.width(ty)?)?, a, b, c })
    }

    fn funnel(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let left = words.expect(&[("l", true), ("r", false)])?;
        let wraps = words.expect(&[("wrap", true), ("clamp", false)])?;
        words.expect(&[("b32", ())])?;
        let operands = self.three(self.exactly(operands)?, Type::B32)?;
        let kind = match (left, wraps) {
            (true, true) => IntegerKind::FunnelLeftWrap,
            (true, false) => IntegerKind::FunnelLeftClamp,
            (false, true) => IntegerKind::FunnelRightWrap,
            (false, false) => IntegerKind::FunnelRightClamp,
        };
        self.push(Arithmetic::Integer { kind, width: Width::Word, sign: Sign::Unsigned, operands });
        Ok(())
    }

    fn insert_bits(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let ty = words.expect(&[("b32", Type::B32), ("b64", Type::B64)])?;
        let width = self.width(ty)?;
        let [to, a, b, start, length] = self.exactly(operands)?;
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let (c, length) = (self.source(start, Type::U32)?, self.source(length, Type::U32)?);
        let to = self.target(to, width)?;
        self.push(Arithmetic::InsertBits { width, operands: Operands { to, a, b, c }, length });
        Ok(())
    }

    fn permute(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("b32", ())])?;
        let operands = self.three(self.exactly(operands)?, Type::B32)?;
        self.push(Arithmetic::Permute { operands });
        Ok(())
    }

    fn logic_table(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("b32", ())])?;
        let [to, a, b, c, table] = self.exactly::<5>(operands)?;
        let table = self.immediate(table)? as u8;
        let operands = self.three(&[to.clone(), a.clone(), b.clone(), c.clone()], Type::B32)?;
        self.push(Arithmetic::LogicTable { operands, table });
        Ok(())
    }

    fn byte_products(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let signs = [("s32", Sign::Signed), ("u32", Sign::Unsigned)];
        let factors = match words.base {
            "dp2a" => words.expect(&[("lo", ByteFactors::HalvesByLow), ("hi", ByteFactors::HalvesByHigh)])?,
            _ => ByteFactors::Bytes,
        };
        let (a_sign, b_sign) = (words.expect(&signs)?, words.expect(&signs)?);
        let operands = self.three(self.exactly(operands)?, Type::B32)?;
        self.push(Arithmetic::ByteProducts { factors, a_sign, b_sign, operands });
        Ok(())
    }
}

fn integer_sources(kind: IntegerKind) -> usize {
    use IntegerKind as Kind;
    match kind {
        Kind::Not
        | Kind::LogicalNot
        | Kind::Negate
        | Kind::Absolute
        | Kind::PopulationCount
        | Kind::LeadingZeros
        | Kind::FindLeading
        | Kind::FindLeadingShift
        | Kind::ReverseBits => 1,
        Kind::MultiplyAddLow
        | Kind::MultiplyAddHigh
        | Kind::MultiplyAddWide
        | Kind::MultiplyAdd24
        | Kind::ExtractBits
        | Kind::FunnelLeftWrap
        | Kind::FunnelLeftClamp
        | Kind::FunnelRightWrap
        | Kind::FunnelRightClamp
        | Kind::DistanceAdd => 3,
        Kind::Add
        | Kind::AddSaturating
        | Kind::Subtract
        | Kind::SubtractSaturating
        | Kind::MultiplyLow
        | Kind::MultiplyHigh
        | Kind::MultiplyWide
        | Kind::Multiply24
        | Kind::Divide
        | Kind::Remainder
        | Kind::Minimum
        | Kind::Maximum
        | Kind::And
        | Kind::Or
        | Kind::ExclusiveOr
        | Kind::ShiftLeft
        | Kind::ShiftRight => 2,
    }
}

/// The types of a, b, c and the result, where they aren't all that of the opcode.
fn operand_types(kind: IntegerKind, ty: Type) -> [Type; 4] {
    use IntegerKind as Kind;
    let twice = match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        Type::S32 => Type::S64,
        other => other,
    };
    match kind {
        Kind::MultiplyWide => [ty, ty, ty, twice],
        Kind::MultiplyAddWide => [ty, ty, twice, twice],
        Kind::ShiftLeft | Kind::ShiftRight => [ty, Type::U32, ty, ty],
        Kind::ExtractBits => [ty, Type::U32, Type::U32, ty],
        Kind::PopulationCount | Kind::LeadingZeros | Kind::FindLeading | Kind::FindLeadingShift => {
            [ty, ty, ty, Type::U32]
        }
        _ => [ty; 4],
    }
}

fn float_sources(kind: FloatKind) -> usize {
    match kind {
        FloatKind::FusedMultiplyAdd | FloatKind::FusedMultiplyAddRelu => 3,
        FloatKind::Add
        | FloatKind::Subtract
        | FloatKind::Multiply
        | FloatKind::Divide
        | FloatKind::Minimum
        | FloatKind::Maximum
        | FloatKind::MinimumNan
        | FloatKind::MaximumNan
        | FloatKind::CopySign => 2,
        FloatKind::Negate
        | FloatKind::Absolute
        | FloatKind::SquareRoot
        | FloatKind::ReciprocalSquareRoot
        | FloatKind::Reciprocal
        | FloatKind::ExponentialTwo
        | FloatKind::LogarithmTwo
        | FloatKind::Sine
        | FloatKind::Cosine
        | FloatKind::HyperbolicTangent => 1,
    }
}
