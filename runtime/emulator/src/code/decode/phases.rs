//! Opcodes of barriers that lie in shared memory, `mbarrier`, and of the bulk copies that they wait for, `cp.async.bulk.tensor`.

use super::words::Words;
use super::{Decoded, Decoder};
use crate::code::instruction::{Instruction, Operation, Phase, PhaseOf};
use crate::code::kinds::{MbarrierPlace, TensorCopy, Width};
use crate::ptx::{Operand, Space, Type};

pub(super) fn is_copy(instruction: &Instruction) -> bool {
    matches!(instruction.operation, Operation::Phase(Phase::Copy(_)))
}

const SHARED: [(&str, Space); 2] = [("shared", Space::Shared), ("shared::cta", Space::Shared)];

impl Decoder<'_> {
    pub(super) fn phase_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        if words.base != "mbarrier" {
            return Ok(false);
        }
        let what = words.expect(&[
            ("init", "init"),
            ("inval", "inval"),
            ("arrive", "arrive"),
            ("expect_tx", "expect_tx"),
            ("test_wait", "test_wait"),
            ("try_wait", "try_wait"),
        ])?;
        match what {
            "init" | "inval" => self.barrier_itself(words, operands, what == "init")?,
            "arrive" => self.barrier_arrival(words, operands)?,
            "expect_tx" => self.barrier_bytes(words, operands)?,
            _ => self.barrier_test(words, operands, what == "try_wait")?,
        }
        Ok(true)
    }

    /// `fence.mbarrier_init`.
    pub(super) fn barrier_fence(&mut self, words: &mut Words<'_>) -> Decoded<()> {
        words.expect(&[("mbarrier_init", ())])?;
        words.expect(&[("release", ())])?;
        words.expect(&[("cluster", ())])?;
        self.push(Phase::Publish);
        Ok(())
    }

    fn barrier_place(&mut self, operand: &Operand, space: Space) -> Decoded<MbarrierPlace> {
        let (space, base, offset) = self.address(operand, space)?;
        Ok(MbarrierPlace { space, base, offset })
    }

    fn barrier_space(words: &mut Words<'_>) -> Decoded<Space> {
        let space = words.choice(&SHARED).unwrap_or(Space::Generic);
        words.expect(&[("b64", ())])?;
        Ok(space)
    }

    fn barrier_itself(&mut self, words: &mut Words<'_>, operands: &[Operand], makes: bool) -> Decoded<()> {
        let space = Decoder::barrier_space(words)?;
        let phase = match operands {
            [barrier, count] if makes => Phase::Make {
                barrier: self.barrier_place(barrier, space)?,
                count: self.source(count, Type::U32)?,
            },
            [barrier] if !makes => Phase::End { barrier: self.barrier_place(barrier, space)? },
            _ => {
                return self
                    .fail("`mbarrier.init` takes an address and a count, `mbarrier.inval` an address");
            }
        };
        self.push(phase);
        Ok(())
    }

    /// How strong it is (whether it orders memory) and for whom.
    fn barrier_order(words: &mut Words<'_>, strong: &str) -> bool {
        let orders = !words.take("relaxed");
        words.take(strong);
        words.choice(&[("cta", ()), ("cluster", ())]);
        orders
    }

    fn barrier_arrival(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let expects = words.take("expect_tx");
        let releases = Decoder::barrier_order(words, "release");
        let space = Decoder::barrier_space(words)?;
        let (state, barrier, number) = match operands {
            [state, barrier] if !expects => (state, barrier, None),
            [state, barrier, number] => (state, barrier, Some(number)),
            _ => return self.fail("`mbarrier.arrive` has a wrong number of operands"),
        };
        let state = match state {
            Operand::Name(name) if name == "_" => None,
            state => Some(self.target(state, Width::Double)?),
        };
        let barrier = self.barrier_place(barrier, space)?;
        let number = match number {
            Some(number) => self.source(number, Type::U32)?,
            None => self.constant(1, Width::Word),
        };
        let (bytes, count) =
            if expects { (Some(number), Some(self.constant(1, Width::Word))) } else { (None, Some(number)) };
        self.push(Phase::Arrive { barrier, bytes, count, state, releases });
        Ok(())
    }

    fn barrier_bytes(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.take("relaxed");
        words.choice(&[("cta", ()), ("cluster", ())]);
        let space = Decoder::barrier_space(words)?;
        let [barrier, bytes] = self.exactly(operands)?;
        let barrier = self.barrier_place(barrier, space)?;
        let bytes = Some(self.source(bytes, Type::U32)?);
        self.push(Phase::Arrive { barrier, bytes, count: None, state: None, releases: false });
        Ok(())
    }

    fn barrier_test(&mut self, words: &mut Words<'_>, operands: &[Operand], waits: bool) -> Decoded<()> {
        let by_parity = words.take("parity");
        let acquires = Decoder::barrier_order(words, "acquire");
        let space = Decoder::barrier_space(words)?;
        // How long it may wait at most says nothing here.
        let (to, barrier, phase) = match operands {
            [to, barrier, phase] => (to, barrier, phase),
            [to, barrier, phase, _] if waits => (to, barrier, phase),
            _ => return self.fail("a wait of `mbarrier` has a wrong number of operands"),
        };
        let Operand::Name(to) = to else { return self.fail("a predicate register is expected") };
        let to = self.predicate_named(to)?;
        let barrier = self.barrier_place(barrier, space)?;
        let of = if by_parity {
            PhaseOf::Parity(self.source(phase, Type::U32)?)
        } else {
            PhaseOf::State(self.source(phase, Type::B64)?)
        };
        self.push(Phase::Test { barrier, of, to, waits, acquires });
        Ok(())
    }

    /// `cp.async.bulk`, behind those words.
    pub(super) fn bulk_copy(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("tensor", ())])?;
        let rank = words.expect(&[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)])?;
        words.expect(&[("shared::cluster", ()), ("shared::cta", ())])?;
        words.expect(&[("global", ())])?;
        words.take("tile");
        words.expect(&[("mbarrier::complete_tx::bytes", ())])?;
        let [to, Operand::Tensor(map, coordinates), barrier] = operands else {
            return self.fail("`cp.async.bulk.tensor` takes a target, a map with coordinates and a barrier");
        };
        if coordinates.len() != rank {
            return self.fail(format!("{} coordinates of {rank} dimensions", coordinates.len()));
        }
        let (_, base, offset) = self.address(to, Space::Shared)?;
        let (space, map_base, map_offset) = self.address(&Operand::Address(map.clone()), Space::Generic)?;
        if space != Space::Generic {
            return self.fail("a tensor map is found by a generic address");
        }
        let coordinates =
            coordinates.iter().map(|one| self.source(one, Type::S32)).collect::<Decoded<Vec<_>>>()?;
        let barrier = self.barrier_place(barrier, Space::Shared)?;
        self.push(Phase::Copy(Box::new(TensorCopy {
            to: (base, offset),
            map: (map_base, map_offset),
            coordinates: coordinates.into(),
            barrier,
        })));
        Ok(())
    }
}
