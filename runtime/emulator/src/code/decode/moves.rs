//! Opcodes that move or reshape values: `mov`, `selp`, `cvt`, `cvta`, `isspacep`.

use super::words::Words;
use super::{Decoded, Decoder};
use crate::code::instruction::{Movement, Test};
use crate::code::kinds::{Convert, Rounding, Width};
use crate::ptx::{Operand, Space, Type};

pub(super) const ROUNDINGS: [(&str, Rounding); 4] =
    [("rn", Rounding::NearestEven), ("rz", Rounding::Zero), ("rm", Rounding::Down), ("rp", Rounding::Up)];

const INTEGRAL_ROUNDINGS: [(&str, Rounding); 4] =
    [("rni", Rounding::NearestEven), ("rzi", Rounding::Zero), ("rmi", Rounding::Down), ("rpi", Rounding::Up)];

const SPACES: [(&str, Space); 7] = [
    ("global", Space::Global),
    ("const", Space::Const),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
    ("param::entry", Space::Param),
];

impl Decoder<'_> {
    pub(super) fn move_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        match words.base {
            "mov" => self.mov(words, operands)?,
            "selp" => self.selp(words, operands)?,
            "cvt" => self.cvt(words, operands)?,
            "cvta" => self.cvta(words, operands)?,
            "isspacep" => {
                let space = words.expect(&SPACES)?;
                let [to, from] = self.exactly(operands)?;
                let window = self.window(space)?;
                let from = self.source(from, Type::U64)?;
                if let Some(to) = self.predicate_target(to)? {
                    self.push(Test::IsSpace { window, to, from });
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn mov(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let ty = words.ty()?;
        let [to, from] = self.exactly(operands)?;
        if ty == Type::Pred {
            return self.copy_predicate(to, from);
        }
        let width = self.width(ty)?;
        match (to, from) {
            (Operand::Vector(parts), _) => {
                let part = self.part(width, parts.len())?;
                let from = self.source(from, ty)?;
                let mut slots = Vec::new();
                for operand in parts {
                    let dropped = matches!(operand, Operand::Name(name) if name == "_");
                    slots.push(if dropped { None } else { Some(self.target(operand, part)?) });
                }
                self.push(Movement::Unpack { part, parts: slots.into(), from, whole: width });
            }
            (_, Operand::Vector(parts)) => {
                let part = self.part(width, parts.len())?;
                let part_type = if part == Width::Half { Type::B16 } else { Type::B32 };
                let mut slots = Vec::new();
                for operand in parts {
                    slots.push(self.source(operand, part_type)?);
                }
                let to = self.target(to, width)?;
                self.push(Movement::Pack { part, parts: slots.into(), to, whole: width });
            }
            (_, Operand::Name(name)) if name == "%clock" || name == "%clock64" || name == "%globaltimer" => {
                let to = self.target(to, width)?;
                self.push(Movement::Clock { width, to });
            }
            _ => {
                let from = self.source(from, ty)?;
                let to = self.target(to, width)?;
                self.push(Movement::Move { width, to, from });
            }
        }
        Ok(())
    }

    /// How wide each of so many equal parts is.
    fn part(&self, whole: Width, parts: usize) -> Decoded<Width> {
        match (whole, parts) {
            (Width::Word, 2) | (Width::Double, 4) => Ok(Width::Half),
            (Width::Double, 2) => Ok(Width::Word),
            _ => self.fail(format!("a vector of {parts} parts in {whole:?} width is not supported")),
        }
    }

    fn selp(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let ty = words.ty()?;
        let width = self.width(ty)?;
        let [to, a, b, by] = self.exactly(operands)?;
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let (by, to) = (self.predicate(by)?, self.target(to, width)?);
        self.push(Movement::Select { width, to, a, b, by });
        Ok(())
    }

    fn cvt(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let mut convert = Convert {
            to_type: Type::B32,
            from_type: Type::B32,
            rounding: Rounding::NearestEven,
            to_integral: false,
            saturate: false,
            relu: false,
            flush: false,
            to: 0,
            a: 0,
            b: None,
        };
        let mut integral = false;
        if let Some(rounding) = words.choice(&INTEGRAL_ROUNDINGS) {
            (convert.rounding, integral) = (rounding, true);
        } else if let Some(rounding) = words.choice(&ROUNDINGS) {
            convert.rounding = rounding;
        } else if words.take("rna") {
            convert.rounding = Rounding::NearestAway;
        }
        convert.relu = words.take("relu");
        if words.take("satfinite") {
            return self.fail("`cvt` with .satfinite is not supported");
        }
        convert.flush = words.take("ftz");
        convert.saturate = words.take("sat");
        (convert.to_type, convert.from_type) = (words.ty()?, words.ty()?);
        let both_float = convert.to_type.is_float() && convert.from_type.is_float();
        convert.to_integral = integral && both_float;
        let packed = matches!(convert.to_type, Type::F16x2 | Type::Bf16x2);
        self.convertible(&convert)?;
        let (to, a) = match operands {
            [to, a, b] if packed => {
                convert.b = Some(self.source(b, convert.from_type)?);
                (to, a)
            }
            [to, a] if !packed => (to, a),
            _ => return self.fail("`cvt` has a wrong number of operands"),
        };
        convert.a = self.source(a, convert.from_type)?;
        let width = self.width(convert.to_type)?;
        // The target may be wider than the type: the value is extended by its sign.
        let (slot, found) = self.target_of_any_width(to, width)?;
        if found == width {
            convert.to = slot;
            self.push(Movement::Convert(Box::new(convert)));
            return Ok(());
        }
        convert.to = self.fresh(width);
        let (narrow, narrow_type) = (convert.to, convert.to_type);
        self.push(Movement::Convert(Box::new(convert)));
        let to_type = match (found, narrow_type.is_signed()) {
            (Width::Half, true) => Type::S16,
            (Width::Half, false) => Type::U16,
            (Width::Word, true) => Type::S32,
            (Width::Word, false) => Type::U32,
            (Width::Double, true) => Type::S64,
            (Width::Double, false) => Type::U64,
        };
        let plain = Convert { to_type, from_type: narrow_type, to_integral: false, ..convert };
        let extend = Convert { saturate: false, to: slot, a: narrow, b: None, ..plain };
        self.push(Movement::Convert(Box::new(extend)));
        Ok(())
    }

    fn convertible(&self, convert: &Convert) -> Decoded<()> {
        let source = matches!(
            convert.from_type,
            Type::U8
                | Type::U16
                | Type::U32
                | Type::U64
                | Type::S8
                | Type::S16
                | Type::S32
                | Type::S64
                | Type::F16
                | Type::Bf16
                | Type::F32
                | Type::F64
        );
        let packed = matches!(convert.to_type, Type::F16x2 | Type::Bf16x2 | Type::Tf32);
        let known = source && convert.to_type.bytes() <= 8 && (!packed || convert.from_type == Type::F32);
        if known {
            return Ok(());
        }
        let (to, from) = (convert.to_type.name(), convert.from_type.name());
        self.fail(format!("`cvt` from .{from} to .{to} is not supported"))
    }

    fn cvta(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let to_space = words.take("to");
        let space = words.expect(&SPACES)?;
        let ty = words.ty()?;
        let [to, from] = self.exactly(operands)?;
        let window = self.window(space)?;
        let from = self.source(from, ty)?;
        let to = self.target(to, self.width(ty)?)?;
        self.push(if to_space {
            Movement::FromGeneric { window, to, from }
        } else {
            Movement::ToGeneric { window, to, from }
        });
        Ok(())
    }
}
