//! Opcodes that compare, and logic on predicates: `setp`, `set`, `testp`, and `and`, `or`, `xor`, `not` on `.pred`.

use super::words::Words;
use super::{Decoded, Decoder};
use crate::code::PredicateRef;
use crate::code::instruction::Test;
use crate::code::kinds::{Compare, FloatTest, Logic, Relation};
use crate::ptx::{Operand, Type};

const RELATIONS: [(&str, Relation); 18] = [
    ("eq", Relation::Equal),
    ("ne", Relation::NotEqual),
    ("lt", Relation::Less),
    ("le", Relation::LessEqual),
    ("gt", Relation::Greater),
    ("ge", Relation::GreaterEqual),
    ("lo", Relation::Less),
    ("ls", Relation::LessEqual),
    ("hi", Relation::Greater),
    ("hs", Relation::GreaterEqual),
    ("equ", Relation::EqualUnordered),
    ("neu", Relation::NotEqualUnordered),
    ("ltu", Relation::LessUnordered),
    ("leu", Relation::LessEqualUnordered),
    ("gtu", Relation::GreaterUnordered),
    ("geu", Relation::GreaterEqualUnordered),
    ("num", Relation::Ordered),
    ("nan", Relation::Unordered),
];

const LOGICS: [(&str, Logic); 3] = [("and", Logic::And), ("or", Logic::Or), ("xor", Logic::ExclusiveOr)];

const TESTS: [(&str, FloatTest); 6] = [
    ("finite", FloatTest::Finite),
    ("infinite", FloatTest::Infinite),
    ("number", FloatTest::Number),
    ("notanumber", FloatTest::NotANumber),
    ("normal", FloatTest::Normal),
    ("subnormal", FloatTest::Subnormal),
];

impl Decoder<'_> {
    pub(super) fn compare_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        match words.base {
            "setp" => self.setp(words, operands)?,
            "set" => self.set(words, operands)?,
            "testp" => {
                let kind = words.expect(&TESTS)?;
                let ty = words.expect(&[("f32", Type::F32), ("f64", Type::F64)])?;
                let [to, a] = self.exactly(operands)?;
                let a = self.source(a, ty)?;
                if let Some(to) = self.predicate_target(to)? {
                    self.push(Test::FloatClass { kind, ty, to, a });
                }
            }
            "and" | "or" | "xor" | "not" if words.last_type() == Some(Type::Pred) => {
                self.predicate_logic(words, operands)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Relation, combination and flushing, which `setp` and `set` share.
    fn relation(&mut self, words: &mut Words<'_>) -> Decoded<(Relation, Option<Logic>, bool)> {
        let relation = words.expect(&RELATIONS)?;
        Ok((relation, words.choice(&LOGICS), words.take("ftz")))
    }

    fn comparable(&self, ty: Type) -> Decoded<Type> {
        match ty {
            Type::Pred | Type::B8 | Type::U8 | Type::S8 | Type::B128 | Type::Tf32 => {
                self.fail(format!("a comparison of type .{}", ty.name()))
            }
            _ => Ok(ty),
        }
    }

    fn setp(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let (relation, logic, flush) = self.relation(words)?;
        let ty = self.comparable(words.ty()?)?;
        let (targets, a, b, combine) = self.compared(logic, operands)?;
        let (to, second) = match targets {
            Operand::Pair(first, second) => (self.predicate_target(first)?, self.predicate_target(second)?),
            single => (self.predicate_target(single)?, None),
        };
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        self.push(Test::Compare(Box::new(Compare { ty, relation, a, b, to, second, combine, flush })));
        Ok(())
    }

    fn set(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let (relation, logic, flush) = self.relation(words)?;
        let to_type = words.ty()?;
        let ty = self.comparable(words.ty()?)?;
        let (to, a, b, combine) = self.compared(logic, operands)?;
        let one = match to_type {
            Type::U32 | Type::S32 => u32::MAX,
            Type::F32 => 1.0_f32.to_bits(),
            Type::U16 | Type::S16 => 0xffff,
            Type::F16 => 0x3c00,
            Type::Bf16 => 0x3f80,
            Type::F16x2 => 0x3c00_3c00,
            Type::Bf16x2 => 0x3f80_3f80,
            _ => return self.fail(format!("`set` to type .{}", to_type.name())),
        };
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let to = self.target(to, self.width(to_type)?)?;
        let compare = Compare { ty, relation, a, b, to: None, second: None, combine, flush };
        self.push(Test::SetMask { compare: Box::new(compare), to, one });
        Ok(())
    }

    #[allow(clippy::type_complexity, reason = "four parts of one operand list, named where they are taken")]
    fn compared<'b>(
        &mut self,
        logic: Option<Logic>,
        operands: &'b [Operand],
    ) -> Decoded<(&'b Operand, &'b Operand, &'b Operand, Option<(Logic, PredicateRef)>)> {
        match (operands, logic) {
            ([to, a, b], None) => Ok((to, a, b, None)),
            ([to, a, b, c], Some(logic)) => Ok((to, a, b, Some((logic, self.predicate(c)?)))),
            _ => self.fail("a comparison has a wrong number of operands"),
        }
    }

    fn predicate_logic(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.ty()?;
        let always = self.predicate(&Operand::Integer(1))?;
        let (logic, to, a, b) = match (words.base, operands) {
            ("not", [to, a]) => (Logic::ExclusiveOr, to, self.predicate(a)?, always),
            ("and", [to, a, b]) => (Logic::And, to, self.predicate(a)?, self.predicate(b)?),
            ("or", [to, a, b]) => (Logic::Or, to, self.predicate(a)?, self.predicate(b)?),
            ("xor", [to, a, b]) => (Logic::ExclusiveOr, to, self.predicate(a)?, self.predicate(b)?),
            _ => return self.fail("an operation on predicates has a wrong number of operands"),
        };
        if let Some(to) = self.predicate_target(to)? {
            self.push(Test::Predicate { logic, to, a, b });
        }
        Ok(())
    }

    /// `mov.pred`.
    pub(super) fn copy_predicate(&mut self, to: &Operand, from: &Operand) -> Decoded<()> {
        let from = self.predicate(from)?;
        if let Some(to) = self.predicate_target(to)? {
            self.push(Test::Predicate { logic: Logic::Or, to, a: from, b: from });
        }
        Ok(())
    }
}
