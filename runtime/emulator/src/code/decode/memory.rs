//! Opcodes that touch memory: `ld`, `st`, `atom`, `red`, `cp.async`, `ldmatrix`, `stmatrix`, and the fences and hints that do nothing here.

use super::words::Words;
use super::{Decoded, Decoder};
use crate::code::instruction::{Memory, Operation};
use crate::code::kinds::{
    AddressBase, AsyncCopy, Atomic, AtomicKind, MemoryAccess, Ordering, PredicateRef, Sign, Width,
};
use crate::ptx::{FunctionKind, Operand, Space, Type};

const SPACES: [(&str, Space); 9] = [
    ("global", Space::Global),
    ("const", Space::Const),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
    ("param::entry", Space::Param),
    ("param::func", Space::Param),
    ("generic", Space::Generic),
];

const SCOPES: [(&str, ()); 4] = [("cta", ()), ("cluster", ()), ("gpu", ()), ("sys", ())];

const ORDERINGS: [(&str, Ordering); 8] = [
    ("weak", Ordering::Weak),
    ("volatile", Ordering::Strong),
    ("relaxed", Ordering::Strong),
    ("acquire", Ordering::Strong),
    ("release", Ordering::Strong),
    ("acq_rel", Ordering::Strong),
    ("mmio", Ordering::Strong),
    ("sc", Ordering::Strong),
];

/// Hints of caches, which change no value.
const HINTS: [&str; 19] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];

const COUNTS: [(&str, usize); 3] = [("v2", 2), ("v4", 4), ("v8", 8)];

const ATOMICS: [(&str, AtomicKind); 10] = [
    ("add", AtomicKind::Add),
    ("min", AtomicKind::Minimum),
    ("max", AtomicKind::Maximum),
    ("and", AtomicKind::And),
    ("or", AtomicKind::Or),
    ("xor", AtomicKind::ExclusiveOr),
    ("exch", AtomicKind::Exchange),
    ("cas", AtomicKind::CompareExchange),
    ("inc", AtomicKind::Increment),
    ("dec", AtomicKind::Decrement),
];

fn take_hints(words: &mut Words<'_>) {
    while HINTS.iter().any(|hint| words.take(hint)) {}
}

impl Decoder<'_> {
    pub(super) fn memory_opcode(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<bool> {
        match words.base {
            "ld" | "ldu" => self.load(words, operands)?,
            "st" => self.store(words, operands)?,
            "atom" | "red" => self.atomic(words, operands)?,
            "cp" => self.copy(words, operands)?,
            "ldmatrix" | "stmatrix" => self.matrix_access(words, operands)?,
            "fence" if words.peek() == Some("proxy") => self.proxy_fence(words),
            "fence" if words.peek() == Some("mbarrier_init") => self.barrier_fence(words)?,
            "membar" | "fence" | "prefetch" | "prefetchu" | "applypriority" | "discard" => {
                words.take_rest();
                self.push(Operation::Nothing);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What `ld` and `st` share, up to the operands: how strong, the space, how many, the type.
    fn access(&mut self, words: &mut Words<'_>) -> Decoded<(Ordering, Space, usize, Type)> {
        let ordering = words.choice(&ORDERINGS).unwrap_or(Ordering::Weak);
        words.choice(&SCOPES);
        let space = words.choice(&SPACES).unwrap_or(Space::Generic);
        take_hints(words);
        let count = words.choice(&COUNTS).unwrap_or(1);
        let ty = words.ty()?;
        if ty.bytes() == 0 || ty.bytes() > 8 {
            return self.fail(format!("an access of type .{}", ty.name()));
        }
        Ok((ordering, space, count, ty))
    }

    /// The space as it is at run time.
    fn resolved(&self, space: Space, base: AddressBase) -> Space {
        match space {
            Space::Const => Space::Global,
            // The address of a parameter of a device function is one of the frame.
            Space::Param if base != AddressBase::Space && self.code.kind == FunctionKind::Device => {
                Space::Local
            }
            other => other,
        }
    }

    fn values<'b>(&self, operand: &'b Operand, count: usize) -> Decoded<&'b [Operand]> {
        let values = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if values.len() != count {
            return self.fail(format!("{} registers for {count} values", values.len()));
        }
        Ok(values)
    }

    fn load(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let (ordering, space, count, ty) = self.access(words)?;
        let [to, from] = self.exactly(operands)?;
        let (space, base, offset) = self.address(from, space)?;
        let space = self.resolved(space, base);
        let sign = if ty.is_signed() { Sign::Signed } else { Sign::Unsigned };
        let mut values = Vec::new();
        for operand in self.values(to, count)? {
            let dropped = matches!(operand, Operand::Name(name) if name == "_");
            let target = if dropped {
                None
            } else {
                let (slot, width) = self.target_of_any_width(operand, self.width(ty)?)?;
                if bytes_of(width) < ty.bytes() {
                    return self.fail("a register that is narrower than what is loaded");
                }
                Some((slot, width))
            };
            values.push(target);
        }
        let (bytes, values) = (ty.bytes() as u8, values.into());
        let access = MemoryAccess { space, base, offset, bytes, sign, ordering, values };
        self.push(Memory::Load(Box::new(access)));
        Ok(())
    }

    fn store(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let (ordering, space, count, ty) = self.access(words)?;
        let [to, from] = self.exactly(operands)?;
        let (space, base, offset) = self.address(to, space)?;
        let space = self.resolved(space, base);
        let mut values = Vec::new();
        for operand in self.values(from, count)? {
            let width = self.width(ty)?;
            values.push(Some((self.source(operand, ty)?, width)));
        }
        let (bytes, values) = (ty.bytes() as u8, values.into());
        let sign = Sign::Unsigned;
        let access = MemoryAccess { space, base, offset, bytes, sign, ordering, values };
        self.push(Memory::Store(Box::new(access)));
        Ok(())
    }

    fn atomic(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let returns = words.base == "atom";
        words.choice(&ORDERINGS);
        words.choice(&SCOPES);
        let space = words.choice(&SPACES).unwrap_or(Space::Generic);
        let kind = words.expect(&ATOMICS)?;
        words.take("noftz");
        let ty = words.ty()?;
        let add_only = kind == AtomicKind::Add || matches!(kind, AtomicKind::Exchange);
        if !matches!(ty.bytes(), 2 | 4 | 8) || (ty.is_float() && !add_only) {
            return self.fail(format!("`{}` with {kind:?} on type .{}", words.base, ty.name()));
        }
        let width = self.width(ty)?;
        let (to, rest) = match (returns, operands) {
            (true, [to, rest @ ..]) => (Some(self.target(to, width)?), rest),
            _ => (None, operands),
        };
        let (address, a, b) = match (kind, rest) {
            (AtomicKind::CompareExchange, [address, a, b]) => (address, a, Some(b)),
            (AtomicKind::CompareExchange, _) => return self.fail("`cas` takes two values"),
            (_, [address, a]) => (address, a, None),
            _ => return self.fail("an atomic operation has a wrong number of operands"),
        };
        let (space, base, offset) = self.address(address, space)?;
        let a = self.source(a, ty)?;
        let b = match b {
            Some(b) => Some(self.source(b, ty)?),
            None => None,
        };
        let atomic = Atomic { kind, ty, space, base, offset, to, a, b };
        self.push(Memory::Atomic(Box::new(atomic)));
        Ok(())
    }

    fn copy(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        words.expect(&[("async", ())])?;
        if words.take("bulk") {
            return self.bulk_copy(words, operands);
        }
        if words.take("commit_group") {
            self.push(Memory::AsyncCommit);
            return Ok(());
        }
        if words.take("wait_all") {
            self.push(Memory::AsyncWait { left: None });
            return Ok(());
        }
        if words.take("wait_group") {
            let [left] = self.exactly(operands)?;
            let left = Some(self.immediate(left)? as u32);
            self.push(Memory::AsyncWait { left });
            return Ok(());
        }
        let through_all = words.expect(&[("ca", true), ("cg", false)])?;
        words.expect(&[("shared", ()), ("shared::cta", ())])?;
        words.expect(&[("global", ())])?;
        take_hints(words);
        let (to, from, bytes, rest) = match operands {
            [to, from, bytes, rest @ ..] => (to, from, self.immediate(bytes)?, rest),
            _ => return self.fail("`cp.async` takes two addresses and a size"),
        };
        if !(bytes == 16 || through_all && matches!(bytes, 4 | 8)) {
            return self.fail(format!("`{}.async` of {bytes} bytes", words.base));
        }
        let (_, to_base, to_offset) = self.address(to, Space::Shared)?;
        let (_, from_base, from_offset) = self.address(from, Space::Global)?;
        let (taken, ignore) = match rest {
            [] => (None, None),
            [last] => match self.predicate(last) {
                Ok(PredicateRef { slot, negated }) if !matches!(last, Operand::Integer(_)) => {
                    (None, Some(PredicateRef { slot, negated }))
                }
                _ => (Some(self.source(last, Type::U32)?), None),
            },
            _ => return self.fail("`cp.async` with a cache policy is not supported"),
        };
        let copy = AsyncCopy {
            to: (to_base, to_offset),
            from: (from_base, from_offset),
            bytes: bytes as u8,
            taken,
            ignore,
        };
        self.push(Memory::AsyncCopy(Box::new(copy)));
        Ok(())
    }

    fn matrix_access(&mut self, words: &mut Words<'_>, operands: &[Operand]) -> Decoded<()> {
        let loads = words.base == "ldmatrix";
        words.expect(&[("sync", ())])?;
        words.expect(&[("aligned", ())])?;
        words.expect(&[("m8n8", ())])?;
        let count = words.expect(&[("x1", 1), ("x2", 2), ("x4", 4)])?;
        let transposed = words.take("trans");
        words.choice(&[("shared", ()), ("shared::cta", ())]);
        words.expect(&[("b16", ())])?;
        let [first, second] = self.exactly(operands)?;
        let (registers, address) = if loads { (first, second) } else { (second, first) };
        let (_, base, offset) = self.address(address, Space::Shared)?;
        let mut slots = Vec::new();
        for operand in self.values(registers, count)? {
            slots.push(if loads {
                self.target(operand, Width::Word)?
            } else {
                self.source(operand, Type::B32)?
            });
        }
        self.push(if loads {
            Memory::LoadMatrix { to: slots.into(), transposed, base, offset }
        } else {
            Memory::StoreMatrix { from: slots.into(), transposed, base, offset }
        });
        Ok(())
    }
}

fn bytes_of(width: Width) -> usize {
    match width {
        Width::Half => 2,
        Width::Word => 4,
        Width::Double => 8,
    }
}
