//! Opcodes that a warp runs together: shuffles, votes, reductions, matrix products.

use super::words::Words;
use super::{Decoded, Decoder};
use crate::code::Slot;
use crate::code::instruction::Together;
use crate::code::kinds::{IntegerKind, MatrixForm, MatrixProduct, ShuffleKind, Sign, VoteKind, Width};
use crate::ptx::{Operand, Type};

impl Decoder<'_> {
    pub(super) fn lane_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        match words.base {
            "shfl" => self.shuffle(words, operands)?,
            "vote" => self.vote(words, operands)?,
            "match" => self.match_lanes(words, operands)?,
            "redux" => self.reduce(words, operands)?,
            "activemask" => {
                words.expect(&[("b32", ())])?;
                let [to] = self.exactly(operands)?;
                let to = self.target(to, Width::Word)?;
                self.push(Together::ActiveMask { to });
            }
            "elect" => self.elect(words, operands)?,
            "mma" => self.matrix_product(words, operands)?,
            "movmatrix" => {
                for word in ["sync", "aligned", "m8n8", "trans", "b16"] {
                    words.expect(&[(word, ())])?;
                }
                let [to, from] = self.exactly(operands)?;
                let from = self.source(from, Type::B32)?;
                let to = self.target(to, Width::Word)?;
                self.push(Together::TransposeMatrix { to, from });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn shuffle(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("sync", ())])?;
        let kind = words.expect(&[
            ("up", ShuffleKind::Up),
            ("down", ShuffleKind::Down),
            ("bfly", ShuffleKind::Butterfly),
            ("idx", ShuffleKind::Index),
        ])?;
        words.expect(&[("b32", ())])?;
        let [to, a, b, c, lanes] = self.exactly(operands)?;
        let (to, inside) = match to {
            Operand::Pair(to, inside) => (to.as_ref(), self.predicate_target(inside)?),
            single => (single, None),
        };
        let (a, b) = (self.source(a, Type::B32)?, self.source(b, Type::U32)?);
        let (c, lanes) = (self.source(c, Type::U32)?, self.source(lanes, Type::U32)?);
        let to = self.target(to, Width::Word)?;
        self.push(Together::Shuffle { kind, to, inside, a, b, c, lanes });
        Ok(())
    }

    fn vote(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("sync", ())])?;
        let kind = words.expect(&[
            ("all", Some(VoteKind::All)),
            ("any", Some(VoteKind::Any)),
            ("uni", Some(VoteKind::Uniform)),
            ("ballot", None),
        ])?;
        let [to, by, lanes] = self.exactly(operands)?;
        let by = self.predicate(by)?;
        let lanes = self.source(lanes, Type::U32)?;
        let Some(kind) = kind else {
            words.expect(&[("b32", ())])?;
            let to = self.target(to, Width::Word)?;
            self.push(Together::Ballot { to, by, lanes });
            return Ok(());
        };
        words.expect(&[("pred", ())])?;
        if let Some(to) = self.predicate_target(to)? {
            self.push(Together::Vote { kind, to, by, lanes });
        }
        Ok(())
    }

    fn match_lanes(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let all = words.expect(&[("any", false), ("all", true)])?;
        words.expect(&[("sync", ())])?;
        let ty = words.expect(&[("b32", Type::B32), ("b64", Type::B64)])?;
        let [to, a, lanes] = self.exactly(operands)?;
        let (to, agree) = match to {
            Operand::Pair(to, agree) => (to.as_ref(), self.predicate_target(agree)?),
            single => (single, None),
        };
        let (a, lanes) = (self.source(a, ty)?, self.source(lanes, Type::U32)?);
        let (to, width) = (self.target(to, Width::Word)?, self.width(ty)?);
        self.push(Together::Match { width, all, to, agree, a, lanes });
        Ok(())
    }

    fn reduce(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("sync", ())])?;
        let kind = words.expect(&[
            ("add", IntegerKind::Add),
            ("min", IntegerKind::Minimum),
            ("max", IntegerKind::Maximum),
            ("and", IntegerKind::And),
            ("or", IntegerKind::Or),
            ("xor", IntegerKind::ExclusiveOr),
        ])?;
        let sign =
            words.expect(&[("u32", Sign::Unsigned), ("s32", Sign::Signed), ("b32", Sign::Unsigned)])?;
        let [to, a, lanes] = self.exactly(operands)?;
        let (a, lanes) = (self.source(a, Type::B32)?, self.source(lanes, Type::U32)?);
        let to = self.target(to, Width::Word)?;
        self.push(Together::Reduce { kind, sign, to, a, lanes });
        Ok(())
    }

    fn elect(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("sync", ())])?;
        let [to, lanes] = self.exactly(operands)?;
        let Operand::Pair(to, chosen) = to else {
            return self.fail("`elect` writes a register and a predicate");
        };
        let lanes = self.source(lanes, Type::U32)?;
        let to = self.target(to, Width::Word)?;
        if let Some(chosen) = self.predicate_target(chosen)? {
            self.push(Together::Elect { to, chosen, lanes });
        }
        Ok(())
    }

    fn matrix_product(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("sync", ())])?;
        words.expect(&[("aligned", ())])?;
        let depth = words.expect(&[("m16n8k4", 4), ("m16n8k8", 8), ("m16n8k16", 16), ("m16n8k32", 32)])?;
        words.expect(&[("row", ())])?;
        words.expect(&[("col", ())])?;
        let types = [words.ty()?, words.ty()?, words.ty()?, words.ty()?];
        let form = match types {
            [Type::F32, Type::F16, Type::F16, Type::F32] => MatrixForm::F16,
            [Type::F32, Type::Bf16, Type::Bf16, Type::F32] => MatrixForm::Bf16,
            [Type::F32, Type::Tf32, Type::Tf32, Type::F32] => MatrixForm::Tf32,
            [Type::F16, Type::F16, Type::F16, Type::F16] => MatrixForm::F16Sum,
            [Type::S32, Type::S8, Type::S8, Type::S32] => MatrixForm::S8,
            [Type::S32, Type::U8, Type::U8, Type::S32] => MatrixForm::U8,
            _ => return self.fail("`mma` of these types is not supported"),
        };
        // Elements of a row of A that a register holds, and the depths that exist.
        let (packed, depths) = match form {
            MatrixForm::F16 | MatrixForm::Bf16 | MatrixForm::F16Sum => (2, [8, 16]),
            MatrixForm::Tf32 => (1, [4, 8]),
            MatrixForm::S8 | MatrixForm::U8 => (4, [16, 32]),
        };
        if !depths.contains(&depth) {
            return self.fail(format!("`mma` of {form:?} with depth {depth}"));
        }
        let a_count = 16 * depth / 32 / packed;
        let sums = if form == MatrixForm::F16Sum { 2 } else { 4 };
        let [d, a, b, c] = self.exactly(operands)?;
        let product = MatrixProduct {
            form,
            depth: depth as u8,
            a: self.fragment(a, a_count, |decoder, operand| decoder.source(operand, Type::B32))?,
            b: self.fragment(b, a_count / 2, |decoder, operand| decoder.source(operand, Type::B32))?,
            c: self.fragment(c, sums, |decoder, operand| decoder.source(operand, Type::F32))?,
            d: self.fragment(d, sums, |decoder, operand| decoder.target(operand, Width::Word))?,
        };
        self.push(Together::MatrixProduct(Box::new(product)));
        Ok(())
    }

    pub(super) fn fragment(
        &mut self,
        operand: &Operand,
        count: usize,
        mut slot: impl FnMut(&mut Self, &Operand) -> Decoded<Slot>,
    ) -> Decoded<Box<[Slot]>> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if parts.len() != count {
            return self.fail(format!("a fragment of {} registers; it has {count}", parts.len()));
        }
        let mut slots = Vec::new();
        for part in parts {
            slots.push(slot(self, part)?);
        }
        Ok(slots.into())
    }
}
