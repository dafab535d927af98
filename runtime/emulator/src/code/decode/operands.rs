//! Operands to slots: registers of the right width, constants and special registers as registers, addresses.

use super::{Binding, Decoded, Decoder};
use crate::code::instruction::Movement;
use crate::code::kinds::{AddressBase, PredicateRef, Special, Width};
use crate::code::{LOCAL_WINDOW, Slot};
use crate::ptx::{Address, Operand, Space, Type};

/// The predicate register that is always false.
const FALSE: u32 = 0;

impl Decoder<'_> {
    pub(super) fn lookup(&self, name: &str) -> Option<&Binding> {
        let inner = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        inner.or_else(|| self.outer.variables.get(name))
    }

    pub(super) fn predicate_named(&self, name: &str) -> Decoded<u32> {
        match self.lookup(name) {
            Some(Binding::Predicate(slot)) => Ok(*slot),
            _ => self.fail(format!("`{name}` is not a predicate register")),
        }
    }

    /// A predicate that is read.
    pub(super) fn predicate(&self, operand: &Operand) -> Decoded<PredicateRef> {
        match operand {
            Operand::Name(name) => Ok(PredicateRef { slot: self.predicate_named(name)?, negated: false }),
            Operand::Not(name) => Ok(PredicateRef { slot: self.predicate_named(name)?, negated: true }),
            Operand::Integer(value) => Ok(PredicateRef { slot: FALSE, negated: *value != 0 }),
            _ => self.fail("a predicate is expected"),
        }
    }

    /// A predicate that is written; `None` for `_`.
    pub(super) fn predicate_target(&self, operand: &Operand) -> Decoded<Option<u32>> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(None),
            Operand::Name(name) => self.predicate_named(name).map(Some),
            _ => self.fail("a predicate register is expected"),
        }
    }

    /// The operands, which must be this many.
    pub(super) fn exactly<'b, const N: usize>(&self, operands: &'b [Operand]) -> Decoded<&'b [Operand; N]> {
        operands
            .try_into()
            .or_else(|_| self.fail(format!("{N} operands are expected, not {}", operands.len())))
    }

    /// A register that is written with a value of this width; `_` is one that nothing reads. A wider register isn't allowed here.
    pub(super) fn target(&mut self, operand: &Operand, width: Width) -> Decoded<Slot> {
        let (slot, found) = self.target_of_any_width(operand, width)?;
        if found != width {
            return self.fail(format!("a register of {found:?} width is written as {width:?}"));
        }
        Ok(slot)
    }

    /// A register that is written, and its own width.
    pub(super) fn target_of_any_width(&mut self, operand: &Operand, width: Width) -> Decoded<(Slot, Width)> {
        let Operand::Name(name) = operand else { return self.fail("a register is expected") };
        if name == "_" {
            return Ok((self.fresh(width), width));
        }
        match self.lookup(name) {
            Some(Binding::Register { slot, width }) => Ok((*slot, *width)),
            _ => self.fail(format!("`{name}` is not a register")),
        }
    }

    /// A value of this type that is read. A wider register gives its low part.
    pub(super) fn source(&mut self, operand: &Operand, ty: Type) -> Decoded<Slot> {
        let width = self.width(ty)?;
        let name = match operand {
            Operand::Name(name) => name,
            _ => {
                let bits = self.literal(operand, ty)?;
                return Ok(self.constant(bits, width));
            }
        };
        match self.lookup(name).cloned() {
            Some(Binding::Register { slot, width: found }) => self.fitted(slot, found, width),
            Some(Binding::Variable { space, offset }) => Ok(self.address_of(space, offset, width)),
            Some(Binding::Predicate(_) | Binding::Targets(_)) => {
                self.fail(format!("`{name}` is not a value"))
            }
            None if name == "WARP_SZ" => Ok(self.constant(32, width)),
            None => self.special(name, width),
        }
    }

    fn fitted(&mut self, slot: Slot, found: Width, wanted: Width) -> Decoded<Slot> {
        match (found, wanted) {
            (Width::Double, Width::Double) => Ok(slot),
            (Width::Double, _) => {
                let to = self.fresh(Width::Word);
                self.push(Movement::Narrow { to, from: slot });
                Ok(to)
            }
            // Lanes of 16 bits are read from the low half of 32.
            (Width::Word, Width::Half | Width::Word) | (Width::Half, Width::Half) => Ok(slot),
            (Width::Half | Width::Word, _) => {
                self.fail(format!("a register of {found:?} width is read as {wanted:?}"))
            }
        }
    }

    /// The address of a variable as a value.
    fn address_of(&mut self, space: Space, offset: u64, width: Width) -> Slot {
        if space != Space::Local {
            return self.constant(offset, width);
        }
        let to = self.fresh(Width::Double);
        self.push(Movement::LocalAddress { to, offset });
        if width == Width::Double {
            return to;
        }
        let narrow = self.fresh(Width::Word);
        self.push(Movement::Narrow { to: narrow, from: to });
        narrow
    }

    /// A register that holds these bits in every lane.
    pub(super) fn constant(&mut self, bits: u64, width: Width) -> Slot {
        let bits = match width {
            Width::Half => bits & 0xffff,
            Width::Word => bits & 0xffff_ffff,
            Width::Double => bits,
        };
        // A half is a word whose upper part is zero.
        let width = if width == Width::Double { Width::Double } else { Width::Word };
        if let Some(slot) = self.constants.get(&(bits, width)) {
            return *slot;
        }
        let slot = self.fresh(width);
        self.constants.insert((bits, width), slot);
        slot
    }

    fn literal(&self, operand: &Operand, ty: Type) -> Decoded<u64> {
        match (operand, ty) {
            (Operand::Integer(value), Type::F64) => Ok((*value as f64).to_bits()),
            (Operand::Integer(value), Type::F32) => Ok(u64::from((*value as f32).to_bits())),
            (Operand::Integer(value), _) => Ok(*value as u64),
            (Operand::Float32(bits), Type::F64) => Ok(f64::from(f32::from_bits(*bits)).to_bits()),
            (Operand::Float32(bits), _) => Ok(u64::from(*bits)),
            (Operand::Float64(bits), Type::F64 | Type::B64) => Ok(*bits),
            (Operand::Float64(bits), Type::F32 | Type::B32) => {
                Ok(u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            _ => self.fail("an operand that this instruction can't take"),
        }
    }

    /// The value of an operand that must be a number.
    pub(super) fn immediate(&self, operand: &Operand) -> Decoded<i64> {
        match operand {
            Operand::Integer(value) => Ok(*value),
            _ => self.fail("a number is expected"),
        }
    }

    fn special(&mut self, name: &str, width: Width) -> Decoded<Slot> {
        let Some(special) = special_named(name) else {
            return self.fail(format!("`{name}` is not declared"));
        };
        if let Some(slot) = self.specials.get(&special) {
            return self.widened(*slot, width);
        }
        let slot = self.fresh(Width::Word);
        self.specials.insert(special, slot);
        self.widened(slot, width)
    }

    /// A 32-bit register as one of 64 bits, with zeros above.
    fn widened(&mut self, slot: Slot, width: Width) -> Decoded<Slot> {
        if width != Width::Double {
            return Ok(slot);
        }
        let zero = self.constant(0, Width::Word);
        let to = self.fresh(Width::Double);
        let parts = vec![slot, zero].into();
        self.push(Movement::Pack { part: Width::Word, parts, to, whole: Width::Double });
        Ok(to)
    }

    /// An address operand: its space, base and offset. The space of a named variable may narrow that of the opcode.
    pub(super) fn address(&mut self, operand: &Operand, space: Space) -> Decoded<(Space, AddressBase, i64)> {
        let Operand::Address(Address { base, offset }) = operand else {
            return self.fail("an address in brackets is expected");
        };
        let Some(name) = base else { return Ok((space, AddressBase::Space, *offset)) };
        match self.lookup(name) {
            Some(Binding::Register { slot, width: Width::Double }) => {
                Ok((space, AddressBase::Double(*slot), *offset))
            }
            Some(Binding::Register { slot, width: Width::Word }) => {
                Ok((space, AddressBase::Word(*slot), *offset))
            }
            Some(Binding::Variable { space: own, offset: start }) => {
                let agrees = space == Space::Generic && *own != Space::Local
                    || space == *own
                    || (space == Space::Param && *own == Space::Local);
                if !agrees {
                    return self.fail(format!("`{name}` does not lie in the space of the access"));
                }
                let own = if *own == Space::Const { Space::Global } else { *own };
                Ok((own, AddressBase::Space, (*start as i64).wrapping_add(*offset)))
            }
            _ => self.fail(format!("`{name}` is not an address")),
        }
    }

    /// Where local memory begins among generic addresses.
    pub(super) fn window(&self, space: Space) -> Decoded<u64> {
        match space {
            Space::Global | Space::Const => Ok(0),
            Space::Shared => Ok(crate::code::SHARED_WINDOW),
            Space::Local => Ok(LOCAL_WINDOW),
            Space::Param => Ok(crate::code::PARAM_WINDOW),
            Space::Generic => self.fail("a space is expected"),
        }
    }
}

fn special_named(name: &str) -> Option<Special> {
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, "x")) => (base, 0),
        Some((base, "y")) => (base, 1),
        Some((base, "z")) => (base, 2),
        _ => {
            return match name {
                "%laneid" => Some(Special::Lane),
                "%warpid" => Some(Special::Warp),
                "%nwarpid" => Some(Special::Warps),
                "%lanemask_eq" => Some(Special::LanesEqual),
                "%lanemask_lt" => Some(Special::LanesBelow),
                "%lanemask_le" => Some(Special::LanesUpTo),
                "%lanemask_gt" => Some(Special::LanesAbove),
                "%lanemask_ge" => Some(Special::LanesFrom),
                "%smid" => Some(Special::Processor),
                "%nsmid" => Some(Special::Processors),
                "%gridid" => Some(Special::GridId),
                "%dynamic_smem_size" => Some(Special::DynamicSharedBytes),
                "%total_smem_size" => Some(Special::TotalSharedBytes),
                _ => None,
            };
        }
    };
    match base {
        "%tid" => Some(Special::Thread(axis)),
        "%ntid" => Some(Special::BlockSize(axis)),
        "%ctaid" => Some(Special::Block(axis)),
        "%nctaid" => Some(Special::GridSize(axis)),
        _ => None,
    }
}
