//! One instruction after another: guards, control, and to which part of `run` each operation goes.

use super::barrier::Barrier;
use super::block::Executor;
use super::collective::{Shuffle, match_lanes, named_lanes, reduce, shuffle, vote};
use super::lanes::Lane;
use super::warp::{Status, Warp};
use super::{Ran, compare, convert, each, float, half, integer, matrix, throw};
use crate::code::{Code, Instruction, LANES, LOCAL_WINDOW, Operation, Slot, WINDOW_BYTES, Width};
use crate::fault::FaultKind;
use crate::ptx::{FunctionKind, Type};

impl Executor<'_> {
    /// Runs a warp until it waits, ends or has had its turn.
    pub fn run_warp(&mut self, warp: &mut Warp, turn: u64) -> Ran<()> {
        let program = self.launch.program;
        for _ in 0..turn {
            let Some(frame) = warp.frames.last() else { return Ok(()) };
            let code = &program.functions[frame.function];
            let Some(instruction) = code.instructions.get(frame.pc) else {
                return throw(frame.mask, FaultKind::Internal("a place behind the end of a function"));
            };
            self.spent += 1;
            if self.spent > self.launch.budget {
                return throw(frame.mask, FaultKind::BudgetSpent { instructions: self.launch.budget });
            }
            let mask = frame.mask & instruction.guard.map_or(u32::MAX, |guard| warp.predicate(guard));
            if mask == 0 {
                next(warp);
            } else if !self.control(warp, mask, code, instruction)? {
                self.data(warp, mask, instruction)?;
                next(warp);
            }
            if !matches!(warp.status, Status::Ready) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Runs what steers; `false` where the operation doesn't.
    #[inline(always)]
    fn control(&mut self, warp: &mut Warp, mask: u32, code: &Code, instruction: &Instruction) -> Ran<bool> {
        match &instruction.operation {
            Operation::Branch { target } => branch(warp, mask, *target as usize),
            Operation::BranchTable { targets, index } => branch_table(warp, mask, targets, *index)?,
            Operation::Call { function, .. } => self.call(warp, mask, *function as usize, instruction)?,
            Operation::Return if code.kind == FunctionKind::Device => self.returned(warp, mask)?,
            Operation::Return | Operation::Exit => self.exit(warp, mask)?,
            Operation::Trap => return throw(mask, FaultKind::Trap),
            Operation::Barrier { kind, barrier, threads, by, to, to_predicate } => {
                let (kind, barrier, threads) = (*kind, *barrier, *threads);
                let (by, to, to_predicate) = (*by, *to, *to_predicate);
                self.arrive(warp, mask, &Barrier { kind, barrier, threads, by, to, to_predicate })?;
                if matches!(warp.status, Status::Ready) {
                    next(warp);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn call(&mut self, warp: &mut Warp, mask: u32, function: usize, instruction: &Instruction) -> Ran<()> {
        let Operation::Call { arguments, .. } = &instruction.operation else { return Ok(()) };
        let code = &self.launch.program.functions[function];
        if arguments.len() != code.params.len() {
            let reason = format!("`{}` is called with {} arguments", code.name, arguments.len());
            return throw(mask, FaultKind::BadOperand(reason));
        }
        if let Some(frame) = warp.frames.last_mut() {
            // The others wait for those that call.
            let others = frame.mask & !mask;
            let pc = frame.pc;
            if others != 0 {
                frame.part([(pc + 1, others), (pc, mask)]);
            }
        }
        let caller = warp.frames.last().map_or(0, |frame| frame.local);
        self.enter(warp, function, code, mask)?;
        let callee = warp.frames.last().map_or(0, |frame| frame.local);
        for (from, field) in arguments.iter().zip(&code.params) {
            copy_local(warp, mask, callee + field.offset, caller + from, field.bytes)?;
        }
        Ok(())
    }

    /// Lanes return from a device function. With the last the caller goes on.
    fn returned(&mut self, warp: &mut Warp, mask: u32) -> Ran<()> {
        if warp.frames.last_mut().is_some_and(|frame| frame.leave(mask)) {
            return Ok(());
        }
        self.end_call(warp)
    }

    fn end_call(&mut self, warp: &mut Warp) -> Ran<()> {
        let program = self.launch.program;
        let Some(ended) = warp.leave() else { return Ok(()) };
        let Some(caller) = warp.frames.last() else { return Ok(()) };
        let lanes = ended.called & !warp.exited;
        let call = program.functions[caller.function].instructions.get(caller.pc);
        let Some(Operation::Call { results, .. }) = call.map(|call| &call.operation) else {
            return throw(lanes, FaultKind::Internal("a return to what is no call"));
        };
        let returns = &program.functions[ended.function].returns;
        let caller_local = caller.local;
        for (to, field) in results.iter().zip(returns) {
            copy_local(warp, lanes, caller_local + to, ended.local + field.offset, field.bytes)?;
        }
        next(warp);
        Ok(())
    }

    /// Lanes end, in whatever function they are.
    fn exit(&mut self, warp: &mut Warp, mask: u32) -> Ran<()> {
        warp.exited |= mask;
        for frame in &mut warp.frames {
            frame.called &= !mask;
            if frame.mask & mask != 0 {
                frame.leave(mask);
            }
        }
        while let Some(frame) = warp.frames.last()
            && frame.mask == 0
        {
            // Those who had returned before go on in the caller.
            if frame.called != 0 && warp.frames.len() > 1 {
                self.end_call(warp)?;
            } else {
                warp.leave();
            }
        }
        if warp.frames.is_empty() {
            warp.status = Status::Done;
        }
        Ok(())
    }

    /// Runs what computes or moves.
    #[inline(always)]
    fn data(&mut self, warp: &mut Warp, mask: u32, instruction: &Instruction) -> Ran<()> {
        let isa = self.launch.isa;
        match &instruction.operation {
            Operation::Move { width, to, from } => convert::copy(isa, warp.file(), mask, *width, *to, *from),
            Operation::Integer { kind, width, sign, operands } => {
                integer::integer(isa, warp.file(), mask, *kind, *width, *sign, *operands);
            }
            Operation::Float32 { kind, mode, operands } => {
                float::float32(isa, warp.file(), mask, *kind, *mode, *operands);
            }
            Operation::Float64 { kind, operands } => {
                float::float64(isa, warp.file(), mask, *kind, *operands);
            }
            Operation::Half { kind, form, mode, operands } => {
                half::half(isa, warp.file(), mask, *kind, *form, *mode, *operands);
            }
            Operation::Select { width, to, a, b, by } => {
                let by = warp.predicate(*by);
                convert::select(isa, warp.file(), mask, *width, (*to, *a, *b), by);
            }
            Operation::Convert(c) => convert::convert(isa, warp.file(), mask, c),
            Operation::Compare(c) => {
                let (first, second) = self.compared(warp, c);
                if let Some(to) = c.to {
                    warp.set_predicate(to, first, mask);
                }
                if let Some(to) = c.second {
                    warp.set_predicate(to, second, mask);
                }
            }
            Operation::Predicate { logic, to, a, b } => {
                let value = compare::combine(*logic, warp.predicate(*a), warp.predicate(*b));
                warp.set_predicate(*to, value, mask);
            }
            Operation::Load(access) => self.load(warp, instruction.line, mask, access)?,
            Operation::Store(access) => self.store(warp, instruction.line, mask, access)?,
            Operation::MatrixProduct(product) => {
                matrix::whole_warp("mma", mask)?;
                matrix::multiply(isa, warp.file(), product);
            }
            _ => self.rare(warp, mask, instruction)?,
        }
        Ok(())
    }

    /// The masks of a comparison, combined with its third operand.
    fn compared(&self, warp: &mut Warp, c: &crate::code::Compare) -> (u32, u32) {
        let (first, second) = compare::compare(self.launch.isa, warp.file(), c);
        match c.combine {
            Some((logic, by)) => {
                let by = warp.predicate(by);
                (compare::combine(logic, first, by), compare::combine(logic, second, by))
            }
            None => (first, second),
        }
    }

    fn rare(&mut self, warp: &mut Warp, mask: u32, instruction: &Instruction) -> Ran<()> {
        let isa = self.launch.isa;
        let line = instruction.line;
        match &instruction.operation {
            Operation::Narrow { to, from } => convert::narrow(isa, warp.file(), mask, *to, *from),
            Operation::LocalAddress { to, offset } => {
                let start = warp.frames.last().map_or(0, |frame| frame.local);
                u64::write(warp.file(), *to, &[start + offset; LANES], mask);
            }
            Operation::Pack { part, parts, to, whole } => {
                convert::pack(isa, warp.file(), mask, *part, parts, *whole, *to);
            }
            Operation::Unpack { part, parts, from, whole } => {
                convert::unpack(isa, warp.file(), mask, *part, parts, *whole, *from);
            }
            Operation::Carry(c) => {
                let slot = |slot| crate::code::PredicateRef { slot, negated: false };
                let carries = c.carry_in.map_or(0, |carry| warp.predicate(slot(carry)));
                let out = integer::carry(warp.file(), mask, c, carries);
                if let Some(carry) = c.carry_out {
                    warp.set_predicate(carry, out, mask);
                }
            }
            Operation::InsertBits { width, operands, length } => {
                integer::insert_bits(isa, warp.file(), mask, *width, *operands, *length);
            }
            Operation::Permute { operands } => integer::permute(isa, warp.file(), mask, *operands),
            Operation::LogicTable { operands, table } => {
                integer::logic_table(isa, warp.file(), mask, *table, *operands);
            }
            Operation::ByteProducts { a_sign, b_sign, operands } => {
                integer::byte_products(isa, warp.file(), mask, *a_sign, *b_sign, *operands);
            }
            Operation::SetMask { compare: c, to, one } => {
                let masks = self.compared(warp, c);
                let packed = matches!(c.ty, Type::F16x2 | Type::Bf16x2);
                compare::set(warp.file(), mask, *to, *one, packed, masks);
            }
            Operation::TestFinite { kind, ty, to, a } => {
                let holds = compare::test(warp.file(), *kind, *ty, *a);
                warp.set_predicate(*to, holds, mask);
            }
            Operation::ToGeneric { window, to, from } => {
                convert::add_constant(isa, warp.file(), mask, *to, *from, *window);
            }
            Operation::FromGeneric { window, to, from } => {
                convert::add_constant(isa, warp.file(), mask, *to, *from, window.wrapping_neg());
            }
            Operation::IsSpace { window, to, from } => {
                let addresses = u64::read(warp.file(), *from);
                // Global memory is what lies below all windows.
                let bytes = if *window == 0 { LOCAL_WINDOW >> 1 } else { WINDOW_BYTES };
                let inside = super::lanes::mask_of(|lane| addresses[lane].wrapping_sub(*window) < bytes);
                warp.set_predicate(*to, inside, mask);
            }
            _ => self.rarest(warp, line, mask, instruction)?,
        }
        Ok(())
    }

    fn rarest(&mut self, warp: &mut Warp, line: u32, mask: u32, instruction: &Instruction) -> Ran<()> {
        match &instruction.operation {
            Operation::Atomic(atomic) => self.atomic(warp, line, mask, atomic)?,
            Operation::AsyncCopy(copy) => self.begin_copy(warp, line, mask, copy)?,
            Operation::AsyncCommit => warp.copies.commit(mask),
            Operation::AsyncWait { left } => self.end_copies(warp, line, mask, *left)?,
            Operation::LoadMatrix { to, transposed, base, offset } => {
                matrix::whole_warp("ldmatrix", mask)?;
                self.load_matrix(warp, line, to, *transposed, (*base, *offset))?;
            }
            Operation::StoreMatrix { from, transposed, base, offset } => {
                matrix::whole_warp("stmatrix", mask)?;
                self.store_matrix(warp, line, from, *transposed, (*base, *offset))?;
            }
            Operation::TransposeMatrix { to, from } => {
                matrix::whole_warp("movmatrix", mask)?;
                matrix::transpose(warp.file(), *to, *from);
            }
            Operation::Shuffle { kind, to, inside, a, b, c, lanes } => {
                named_lanes(warp, "shfl.sync", *lanes, mask)?;
                let (kind, to, inside) = (*kind, *to, *inside);
                shuffle(warp, mask, &Shuffle { kind, to, inside, a: *a, b: *b, c: *c })?;
            }
            Operation::Vote { kind, to, by, lanes } => {
                named_lanes(warp, "vote.sync", *lanes, mask)?;
                let holds = vote(*kind, warp.predicate(*by), mask);
                warp.set_predicate(*to, if holds { mask } else { 0 }, mask);
            }
            Operation::Ballot { to, by, lanes } => {
                named_lanes(warp, "vote.sync", *lanes, mask)?;
                let yes = warp.predicate(*by) & mask;
                u32::write(warp.file(), *to, &[yes; LANES], mask);
            }
            Operation::Match { width, all, to, agree, a, lanes } => {
                named_lanes(warp, "match.sync", *lanes, mask)?;
                let holds = match_lanes(warp.file(), mask, (*width, *all), *to, *a);
                if let Some(agree) = agree {
                    warp.set_predicate(*agree, if holds { mask } else { 0 }, mask);
                }
            }
            Operation::Reduce { kind, sign, to, a, lanes } => {
                named_lanes(warp, "redux.sync", *lanes, mask)?;
                reduce(warp.file(), mask, (*kind, *sign), *to, *a);
            }
            Operation::ActiveMask { to } => u32::write(warp.file(), *to, &[mask; LANES], mask),
            Operation::Elect { to, chosen, lanes } => {
                named_lanes(warp, "elect.sync", *lanes, mask)?;
                let first = mask.trailing_zeros();
                u32::write(warp.file(), *to, &[first; LANES], mask);
                warp.set_predicate(*chosen, 1 << first, mask);
            }
            Operation::Clock { width, to } => clock(warp, mask, *width, *to, self.spent),
            Operation::WarpBarrier { lanes } => self.warp_barrier(warp, *lanes, mask)?,
            Operation::Nothing => {}
            _ => return throw(mask, FaultKind::Internal("an operation that nothing runs")),
        }
        Ok(())
    }
}

#[inline(always)]
fn next(warp: &mut Warp) {
    if let Some(frame) = warp.frames.last_mut() {
        frame.go(frame.pc + 1);
    }
}

fn branch(warp: &mut Warp, taken: u32, target: usize) {
    let Some(frame) = warp.frames.last_mut() else { return };
    if taken == frame.mask {
        frame.go(target);
    } else {
        let (pc, others) = (frame.pc + 1, frame.mask & !taken);
        frame.part([(target, taken), (pc, others)]);
    }
}

fn branch_table(warp: &mut Warp, mask: u32, targets: &[u32], index: Slot) -> Ran<()> {
    let indices = u32::read(warp.file(), index);
    let mut groups: Vec<(usize, u32)> = Vec::new();
    for lane in each(mask) {
        let Some(target) = targets.get(indices[lane] as usize) else {
            let reason = format!("a branch to entry {} of a table of {}", indices[lane], targets.len());
            return throw(1 << lane, FaultKind::BadOperand(reason));
        };
        match groups.iter_mut().find(|(pc, _)| *pc == *target as usize) {
            Some((_, members)) => *members |= 1 << lane,
            None => groups.push((*target as usize, 1 << lane)),
        }
    }
    let Some(frame) = warp.frames.last_mut() else { return Ok(()) };
    groups.push((frame.pc + 1, frame.mask & !mask));
    frame.part(groups);
    Ok(())
}

fn copy_local(warp: &mut Warp, mask: u32, to: u64, from: u64, bytes: u64) -> Ran<()> {
    for lane in each(mask) {
        if let Err(kind) = warp.local.copy(lane, to, from, bytes as usize) {
            return throw(1 << lane, kind);
        }
    }
    Ok(())
}

/// Time passes by instructions.
fn clock(warp: &mut Warp, mask: u32, width: Width, to: Slot, now: u64) {
    match width {
        Width::Double => u64::write(warp.file(), to, &[now; LANES], mask),
        Width::Half | Width::Word => u32::write(warp.file(), to, &[now as u32; LANES], mask),
    }
}
