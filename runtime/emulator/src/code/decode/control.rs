//! Opcodes that steer: branches, calls, barriers, ends.

use super::words::Words;
use super::{Binding, Decoded, Decoder, FunctionNames};
use crate::code::instruction::{Control, Operation, Together};
use crate::code::kinds::{BarrierKind, PredicateRef, Width};
use crate::ptx::{Operand, Space, Type};

impl Decoder<'_> {
    pub(super) fn control_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        match words.base {
            "bra" => {
                words.take("uni");
                let [target] = self.exactly(operands)?;
                let Operand::Name(name) = target else { return self.fail("`bra` wants a label") };
                self.branches.push((self.code.instructions.len(), vec![name.clone()]));
                self.push(Control::Branch { target: 0 });
            }
            "brx" => self.branch_table(words, operands)?,
            "call" => self.call(words, operands)?,
            "ret" => {
                words.take("uni");
                self.push(Control::Return);
            }
            "exit" => self.push(Control::Exit),
            "trap" | "brkpt" => self.push(Control::Trap),
            "bar" | "barrier" => self.barrier(words, operands)?,
            // Waiting and hints: an emulated warp has nothing to gain from them.
            "nanosleep" | "pmevent" | "griddepcontrol" => {
                words.take_rest();
                self.push(Operation::Nothing);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn branch_table(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("idx", ())])?;
        words.take("uni");
        let [index, table] = self.exactly(operands)?;
        let Operand::Name(name) = table else { return self.fail("`brx.idx` wants a table") };
        let Some(Binding::Targets(targets)) = self.lookup(name).cloned() else {
            return self.fail(format!("`{name}` is not a table of branch targets"));
        };
        let index = self.source(index, Type::U32)?;
        self.branches.push((self.code.instructions.len(), targets));
        self.push(Control::BranchTable { targets: Box::new([]), index });
        Ok(())
    }

    fn call(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.take("uni");
        let (results, name, arguments) = match operands {
            [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => {
                (results.as_slice(), name, arguments.as_slice())
            }
            [Operand::List(results), Operand::Name(name)] => (results.as_slice(), name, [].as_slice()),
            [Operand::Name(name), Operand::List(arguments)] => ([].as_slice(), name, arguments.as_slice()),
            [Operand::Name(name)] => ([].as_slice(), name, [].as_slice()),
            _ => return self.fail("calls through a register are not supported"),
        };
        let function = match self.outer.functions.get(name) {
            Some(FunctionNames { index: Some(index) }) => *index,
            // A failed assertion ends the kernel, as the device's own library would.
            Some(FunctionNames { index: None }) if name == "__assertfail" => {
                self.push(Control::Trap);
                return Ok(());
            }
            Some(FunctionNames { index: None }) => {
                return self.fail(format!("the function `{name}` has no body in this module"));
            }
            None => {
                return self
                    .fail(format!("`{name}` is not a function; calls through a register are not supported"));
            }
        };
        let arguments = self.call_fields(arguments)?;
        let results = self.call_fields(results)?;
        self.push(Control::Call { function, arguments, results });
        Ok(())
    }

    /// Where the variables of a call lie in the caller's frame.
    fn call_fields(&self, operands: &[Operand]) -> Decoded<Box<[u64]>> {
        let mut offsets = Vec::new();
        for operand in operands {
            let Operand::Name(name) = operand else { return self.fail("an argument that isn't a variable") };
            match self.lookup(name) {
                Some(Binding::Variable { space: Space::Local, offset }) => offsets.push(*offset),
                _ => return self.fail(format!("`{name}` is not a variable of this call")),
            }
        }
        Ok(offsets.into())
    }

    fn barrier(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.take("cta");
        if words.take("warp") {
            words.expect(&[("sync", ())])?;
            let [lanes] = self.exactly(operands)?;
            let lanes = self.source(lanes, Type::U32)?;
            self.push(Together::WarpBarrier { lanes });
            return Ok(());
        }
        let what = words.expect(&[("sync", 0), ("arrive", 1), ("red", 2)])?;
        let kind = match what {
            0 => BarrierKind::Sync,
            1 => BarrierKind::Arrive,
            _ => words.expect(&[
                ("popc", BarrierKind::Population),
                ("and", BarrierKind::And),
                ("or", BarrierKind::Or),
            ])?,
        };
        words.take("aligned");
        let (mut to, mut to_predicate, mut by) = (None, None, None);
        let rest = match kind {
            BarrierKind::Sync | BarrierKind::Arrive => operands,
            BarrierKind::Population | BarrierKind::And | BarrierKind::Or => {
                let (target, rest, last) = match operands {
                    [target, rest @ .., last] => (target, rest, last),
                    _ => return self.fail("a reducing barrier has a wrong number of operands"),
                };
                by = Some(self.predicate(last)?);
                if kind == BarrierKind::Population {
                    words.expect(&[("u32", ())])?;
                    to = Some(self.target(target, Width::Word)?);
                } else {
                    words.expect(&[("pred", ())])?;
                    to_predicate = self.predicate_target(target)?;
                }
                rest
            }
        };
        self.barrier_of(kind, rest, by, to, to_predicate)
    }

    fn barrier_of(
        &mut self,
        kind: BarrierKind,
        operands: &[Operand],
        by: Option<PredicateRef>,
        to: Option<u32>,
        to_predicate: Option<u32>,
    ) -> Decoded<()> {
        let (barrier, threads) = match operands {
            [barrier] => (barrier, None),
            [barrier, threads] => (barrier, Some(self.source(threads, Type::U32)?)),
            _ => return self.fail("a barrier has a wrong number of operands"),
        };
        let barrier = self.source(barrier, Type::U32)?;
        self.push(Control::Barrier { kind, barrier, threads, by, to, to_predicate });
        Ok(())
    }
}
