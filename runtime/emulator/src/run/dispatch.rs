//! To which function each operation on data goes.

use super::block::Executor;
use super::collective::{Shuffle, match_lanes, named_lanes, reduce, shuffle, vote};
use super::lanes::{Isa, Lane, mask_of};
use super::matrix::whole_warp;
use super::warp::Warp;
use super::{Ran, compare, convert, float, half, integer, matrix};
use crate::code::{
    Arithmetic, Compare, LANES, LOCAL_WINDOW, Memory, Movement, PredicateRef, Slot, Test, Together,
    WINDOW_BYTES, Width,
};
use crate::ptx::Type;

pub(super) fn arithmetic(isa: Isa, warp: &mut Warp, mask: u32, operation: &Arithmetic) {
    match operation {
        Arithmetic::Integer { kind, width, sign, operands } => {
            integer::integer(isa, warp.file(), mask, *kind, *width, *sign, *operands);
        }
        Arithmetic::Float32 { kind, mode, operands } => {
            float::float32(isa, warp.file(), mask, *kind, *mode, *operands);
        }
        Arithmetic::Float64 { kind, operands } => float::float64(isa, warp.file(), mask, *kind, *operands),
        Arithmetic::Half { kind, form, mode, operands } => {
            half::half(isa, warp.file(), mask, *kind, *form, *mode, *operands);
        }
        Arithmetic::Carry(c) => {
            let predicate = |slot| PredicateRef { slot, negated: false };
            let carries = c.carry_in.map_or(0, |carry| warp.predicate(predicate(carry)));
            let out = integer::carry(warp.file(), mask, c, carries);
            if let Some(carry) = c.carry_out {
                warp.set_predicate(carry, out, mask);
            }
        }
        Arithmetic::InsertBits { width, operands, length } => {
            integer::insert_bits(isa, warp.file(), mask, *width, *operands, *length);
        }
        Arithmetic::Permute { operands } => integer::permute(isa, warp.file(), mask, *operands),
        Arithmetic::LogicTable { operands, table } => {
            integer::logic_table(isa, warp.file(), mask, *table, *operands);
        }
        Arithmetic::ByteProducts { factors, a_sign, b_sign, operands } => {
            integer::byte_products(isa, warp.file(), mask, *factors, *a_sign, *b_sign, *operands);
        }
    }
}

/// `now` is what the clock says.
pub(super) fn movement(isa: Isa, warp: &mut Warp, mask: u32, now: u64, operation: &Movement) {
    match operation {
        Movement::Move { width, to, from } => convert::copy(isa, warp.file(), mask, *width, *to, *from),
        Movement::Select { width, to, a, b, by } => {
            let by = warp.predicate(*by);
            convert::select(isa, warp.file(), mask, *width, (*to, *a, *b), by);
        }
        Movement::Convert(c) => convert::convert(isa, warp.file(), mask, c),
        Movement::Narrow { to, from } => convert::narrow(isa, warp.file(), mask, *to, *from),
        Movement::LocalAddress { to, offset } => {
            let start = warp.frames.last().map_or(0, |frame| frame.local);
            u64::write(warp.file(), *to, &[start + offset; LANES], mask);
        }
        Movement::Pack { part, parts, to, whole } => {
            convert::pack(isa, warp.file(), mask, *part, parts, *whole, *to);
        }
        Movement::Unpack { part, parts, from, whole } => {
            convert::unpack(isa, warp.file(), mask, *part, parts, *whole, *from);
        }
        Movement::ToGeneric { window, to, from } => {
            convert::add_constant(isa, warp.file(), mask, *to, *from, *window);
        }
        Movement::FromGeneric { window, to, from } => {
            convert::add_constant(isa, warp.file(), mask, *to, *from, window.wrapping_neg());
        }
        Movement::Clock { width, to } => clock(warp, mask, *width, *to, now),
    }
}

/// Time passes by instructions.
fn clock(warp: &mut Warp, mask: u32, width: Width, to: Slot, now: u64) {
    match width {
        Width::Double => u64::write(warp.file(), to, &[now; LANES], mask),
        Width::Half | Width::Word => u32::write(warp.file(), to, &[now as u32; LANES], mask),
    }
}

pub(super) fn test(isa: Isa, warp: &mut Warp, mask: u32, operation: &Test) {
    match operation {
        Test::Compare(c) => {
            let (first, second) = compared(isa, warp, c);
            if let Some(to) = c.to {
                warp.set_predicate(to, first, mask);
            }
            if let Some(to) = c.second {
                warp.set_predicate(to, second, mask);
            }
        }
        Test::SetMask { compare: c, to, one } => {
            let masks = compared(isa, warp, c);
            let packed = matches!(c.ty, Type::F16x2 | Type::Bf16x2);
            compare::set(warp.file(), mask, *to, *one, packed, masks);
        }
        Test::FloatClass { kind, ty, to, a } => {
            let holds = compare::test(warp.file(), *kind, *ty, *a);
            warp.set_predicate(*to, holds, mask);
        }
        Test::Predicate { logic, to, a, b } => {
            let value = compare::combine(*logic, warp.predicate(*a), warp.predicate(*b));
            warp.set_predicate(*to, value, mask);
        }
        Test::IsSpace { window, to, from } => {
            let addresses = u64::read(warp.file(), *from);
            // Global memory is what lies below all windows.
            let bytes = if *window == 0 { LOCAL_WINDOW >> 1 } else { WINDOW_BYTES };
            let inside = mask_of(|lane| addresses[lane].wrapping_sub(*window) < bytes);
            warp.set_predicate(*to, inside, mask);
        }
    }
}

/// The masks of a comparison, combined with its third operand.
fn compared(isa: Isa, warp: &mut Warp, c: &Compare) -> (u32, u32) {
    let (first, second) = compare::compare(isa, warp.file(), c);
    match c.combine {
        Some((logic, by)) => {
            let by = warp.predicate(by);
            (compare::combine(logic, first, by), compare::combine(logic, second, by))
        }
        None => (first, second),
    }
}

impl Executor<'_> {
    pub fn memory(&mut self, warp: &mut Warp, line: u32, mask: u32, operation: &Memory) -> Ran<()> {
        match operation {
            Memory::Load(access) => self.load(warp, line, mask, access),
            Memory::Store(access) => self.store(warp, line, mask, access),
            Memory::Atomic(atomic) => self.atomic(warp, line, mask, atomic),
            Memory::AsyncCopy(copy) => self.begin_copy(warp, line, mask, copy),
            Memory::AsyncCommit => {
                warp.copies.commit(mask);
                Ok(())
            }
            Memory::AsyncWait { left } => self.end_copies(warp, line, mask, *left),
            Memory::LoadMatrix { to, transposed, base, offset } => {
                whole_warp("ldmatrix", mask)?;
                self.load_matrix(warp, line, to, *transposed, (*base, *offset))
            }
            Memory::StoreMatrix { from, transposed, base, offset } => {
                whole_warp("stmatrix", mask)?;
                self.store_matrix(warp, line, from, *transposed, (*base, *offset))
            }
        }
    }

    pub fn together(&mut self, warp: &mut Warp, mask: u32, operation: &Together) -> Ran<()> {
        if let Some((opcode, lanes)) = operation.named() {
            named_lanes(warp, opcode, lanes, mask)?;
        }
        match operation {
            Together::MatrixProduct(product) => {
                whole_warp("mma", mask)?;
                matrix::multiply(self.launch.isa, warp.file(), product);
            }
            Together::TransposeMatrix { to, from } => {
                whole_warp("movmatrix", mask)?;
                matrix::transpose(warp.file(), *to, *from);
            }
            Together::Shuffle { kind, to, inside, a, b, c, lanes: _ } => {
                let (kind, to, inside) = (*kind, *to, *inside);
                shuffle(warp, mask, &Shuffle { kind, to, inside, a: *a, b: *b, c: *c })?;
            }
            Together::Vote { kind, to, by, lanes: _ } => {
                let holds = vote(*kind, warp.predicate(*by), mask);
                warp.set_predicate(*to, if holds { mask } else { 0 }, mask);
            }
            Together::Ballot { to, by, lanes: _ } => {
                let yes = warp.predicate(*by) & mask;
                u32::write(warp.file(), *to, &[yes; LANES], mask);
            }
            Together::Match { width, all, to, agree, a, lanes: _ } => {
                let holds = match_lanes(warp.file(), mask, (*width, *all), *to, *a);
                if let Some(agree) = agree {
                    warp.set_predicate(*agree, if holds { mask } else { 0 }, mask);
                }
            }
            Together::Reduce { kind, sign, to, a, lanes: _ } => {
                reduce(warp.file(), mask, (*kind, *sign), *to, *a);
            }
            Together::ActiveMask { to } => u32::write(warp.file(), *to, &[mask; LANES], mask),
            Together::Elect { to, chosen, lanes: _ } => {
                let first = mask.trailing_zeros();
                u32::write(warp.file(), *to, &[first; LANES], mask);
                warp.set_predicate(*chosen, 1 << first, mask);
            }
            Together::WarpBarrier { lanes: _ } => self.shared.order_lanes(warp.index),
        }
        Ok(())
    }
}
