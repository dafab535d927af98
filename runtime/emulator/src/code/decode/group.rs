//! Opcodes of groups of four warps: `wgmma`, and the fence that shared memory needs before it. Finds the instructions that use the registers
//! of such products, which must not be used while a product is under way.

use super::words::Words;
use super::{Binding, Decoded, Decoder};
use crate::code::instruction::{Group, Instruction, Operation};
use crate::code::kinds::{GroupProduct, LeftFactor, Major, MatrixForm, Width};
use crate::ptx::{Function, Item, Operand, RawInstruction, Type};
use std::collections::HashSet;
use std::sync::Arc;

const PRODUCT: &str = "wgmma.mma_async.";

pub(super) fn is_product(instruction: &Instruction) -> bool {
    matches!(instruction.operation, Operation::Group(Group::Product(_)))
}

/// The names of registers that hold sums or left factors.
pub(super) fn registers_of_products(function: &Function) -> HashSet<String> {
    let mut found = HashSet::new();
    for item in function.body.iter().flatten() {
        if let Item::Instruction(raw) = item
            && raw.opcode.starts_with(PRODUCT)
        {
            for operand in raw.operands.iter().take(2) {
                if let Operand::Vector(parts) = operand {
                    names(parts, &mut |name| {
                        found.insert(name.to_owned());
                    });
                }
            }
        }
    }
    found
}

/// Visits each name that operands mention.
fn names(operands: &[Operand], visit: &mut impl FnMut(&str)) {
    for operand in operands {
        match operand {
            Operand::Name(name) | Operand::Not(name) => visit(name),
            Operand::Vector(parts) | Operand::List(parts) => names(parts, visit),
            Operand::Address(address) => address.base.iter().for_each(|name| visit(name)),
            Operand::Tensor(address, coordinates) => {
                address.base.iter().for_each(|name| visit(name));
                names(coordinates, visit);
            }
            Operand::Pair(first, second) => {
                names(std::slice::from_ref(first), visit);
                names(std::slice::from_ref(second), visit);
            }
            Operand::Integer(_) | Operand::Float32(_) | Operand::Float64(_) => {}
        }
    }
}

fn major(transposed: bool) -> Major {
    if transposed { Major::Lines } else { Major::Terms }
}

impl Decoder<'_> {
    /// Puts a mark before an instruction that is no product and uses the registers of one.
    pub(super) fn touch(&mut self, raw: &RawInstruction) {
        if self.watched.is_empty() || raw.opcode.starts_with(PRODUCT) {
            return;
        }
        let mut slots = Vec::new();
        names(&raw.operands, &mut |name| {
            if self.watched.contains(name)
                && let Some(Binding::Register { slot, .. }) = self.lookup(name)
            {
                slots.push(*slot);
            }
        });
        if !slots.is_empty() {
            self.push(Group::Touch(slots.into()));
        }
    }

    pub(super) fn proxy_fence(&mut self, words: &mut Words<'_>) {
        let publishes = words.take("proxy")
            && words.take("async")
            && words.peek().is_none_or(|space| space == "shared::cta");
        words.take_rest();
        if publishes {
            self.push(Group::Publish);
        } else {
            self.push(Operation::Nothing);
        }
    }

    pub(super) fn group_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        match words.base {
            "wgmma" => {}
            "setmaxnreg" => return self.register_count(words, operands).map(|()| true),
            _ => return Ok(false),
        }
        let what = words.expect(&[("fence", 0), ("commit_group", 1), ("wait_group", 2), ("mma_async", 3)])?;
        words.expect(&[("sync", ())])?;
        words.expect(&[("aligned", ())])?;
        match what {
            0 => self.push(Group::Fence),
            1 => self.push(Group::Commit),
            2 => {
                let [left] = self.exactly(operands)?;
                let left = self.immediate(left)? as u32;
                self.push(Group::Wait { left });
            }
            _ => self.group_product(words, operands)?,
        }
        Ok(true)
    }

    /// How many registers a thread has: what there must be for the code behind, which the assembler sees to. Here only that the group agrees.
    fn register_count(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("inc", ()), ("dec", ())])?;
        words.expect(&[("sync", ())])?;
        words.expect(&[("aligned", ())])?;
        words.expect(&[("u32", ())])?;
        let [count] = self.exactly(operands)?;
        let count = self.immediate(count)?;
        if !(24..=256).contains(&count) || count % 8 != 0 {
            return self
                .fail(format!("`setmaxnreg` of {count} registers; it takes multiples of 8 from 24 to 256"));
        }
        self.push(Group::Registers);
        Ok(())
    }

    fn group_product(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let shape = words.peek().unwrap_or_default();
        let columns = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix("k16"));
        let columns: usize = columns.and_then(|text| text.parse().ok()).unwrap_or(0);
        if columns == 0 || columns > 256 || !columns.is_multiple_of(8) {
            return Err(words.unknown(shape));
        }
        words.take(shape);
        let form = match [words.ty()?, words.ty()?, words.ty()?] {
            [Type::F32, Type::F16, Type::F16] => MatrixForm::F16,
            [Type::F32, Type::Bf16, Type::Bf16] => MatrixForm::Bf16,
            _ => return self.fail("`wgmma` of these types is not supported"),
        };
        let [sums, left, right, adds, numbers @ ..] = operands else {
            return self.fail("`wgmma.mma_async` has too few operands");
        };
        let numbers = numbers.iter().map(|number| self.immediate(number)).collect::<Decoded<Vec<i64>>>()?;
        let (signs, left_transposed, right_transposed) = match (left, numbers.as_slice()) {
            (Operand::Vector(_), [a, b, right]) => ([*a, *b], 0, *right),
            (Operand::Name(_), [a, b, left, right]) => ([*a, *b], *left, *right),
            _ => return self.fail("`wgmma.mma_async` has a wrong number of operands"),
        };
        if signs.iter().any(|sign| sign.abs() != 1)
            || [left_transposed, right_transposed].iter().any(|number| !(0..=1).contains(number))
        {
            return self.fail("`wgmma.mma_async` takes signs of 1 and -1 and transposes of 0 and 1");
        }
        let left = match left {
            Operand::Vector(_) => LeftFactor::Registers(
                self.fragment(left, 4, |decoder, operand| decoder.source(operand, Type::B32))?,
            ),
            _ => {
                let descriptor = self.source(left, Type::B64)?;
                LeftFactor::Shared { descriptor, major: major(left_transposed == 1) }
            }
        };
        let product = GroupProduct {
            form,
            columns,
            sums: self
                .fragment(sums, columns / 2, |decoder, operand| decoder.target(operand, Width::Word))?,
            left,
            right: self.source(right, Type::B64)?,
            right_major: major(right_transposed == 1),
            adds: self.predicate(adds)?,
            negated: signs[0] != signs[1],
        };
        self.push(Group::Product(Arc::new(product)));
        Ok(())
    }
}
