//! One instruction after another: guards, and what steers: branches, calls, ends.

use super::barrier::Barrier;
use super::block::Executor;
use super::collective::waits_for_others;
use super::dispatch::{arithmetic, movement, test};
use super::lanes::Lane;
use super::warp::{Status, Warp};
use super::{Ran, each, throw};
use crate::code::{Code, Control, Operation, Slot};
use crate::fault::FaultKind;
use crate::ptx::FunctionKind;

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
                continue;
            }
            let isa = self.launch.isa;
            match &instruction.operation {
                Operation::Control(operation) => {
                    self.control(warp, mask, code, operation)?;
                    if matches!(warp.status, Status::Ready) {
                        continue;
                    }
                    return Ok(());
                }
                Operation::Nothing => {}
                Operation::Arithmetic(operation) => arithmetic(isa, warp, mask, operation),
                Operation::Movement(operation) => movement(isa, warp, mask, self.spent, operation),
                Operation::Test(operation) => test(isa, warp, mask, operation),
                Operation::Memory(operation) => self.memory(warp, instruction.line, mask, operation)?,
                Operation::Group(operation) => self.group(warp, instruction.line, mask, operation)?,
                Operation::Together(operation) => {
                    if waits_for_others(warp, mask, operation) {
                        continue;
                    }
                    self.together(warp, mask, operation)?;
                }
                Operation::Phase(operation) => {
                    self.phase(warp, instruction.line, mask, operation)?;
                    if !matches!(warp.status, Status::Ready) {
                        return Ok(());
                    }
                }
            }
            next(warp);
        }
        Ok(())
    }

    /// Runs what steers, and says where each lane goes on.
    fn control(&mut self, warp: &mut Warp, mask: u32, code: &Code, operation: &Control) -> Ran<()> {
        match operation {
            Control::Branch { target } => branch(warp, mask, *target as usize),
            Control::BranchTable { targets, index } => branch_table(warp, mask, targets, *index)?,
            Control::Call { function, arguments, .. } => {
                self.call(warp, mask, *function as usize, arguments)?
            }
            Control::Return if code.kind == FunctionKind::Device => self.returned(warp, mask)?,
            Control::Return | Control::Exit => self.exit(warp, mask)?,
            Control::Trap => return throw(mask, FaultKind::Trap),
            Control::Barrier { kind, barrier, threads, by, to, to_predicate } => {
                let (kind, barrier, threads) = (*kind, *barrier, *threads);
                let (by, to, to_predicate) = (*by, *to, *to_predicate);
                self.arrive(warp, mask, &Barrier { kind, barrier, threads, by, to, to_predicate })?;
                if matches!(warp.status, Status::Ready) {
                    next(warp);
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, warp: &mut Warp, mask: u32, function: usize, arguments: &[u64]) -> Ran<()> {
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
        none_waits_for(warp, mask)?;
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
        let Some(Operation::Control(Control::Call { results, .. })) = call.map(|call| &call.operation) else {
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
        none_waits_for(warp, mask)?;
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
}

/// Lanes that leave a function never come to where others of it wait for them.
fn none_waits_for(warp: &mut Warp, leaving: u32) -> Ran<()> {
    let Some(frame) = warp.frames.last_mut() else { return Ok(()) };
    let Some(parked) = frame.waits_for(leaving) else { return Ok(()) };
    (frame.pc, frame.mask) = (parked.pc, parked.mask);
    let kind = FaultKind::DivergentLanes { opcode: parked.opcode, named: parked.named, running: parked.mask };
    throw(1 << parked.mask.trailing_zeros(), kind)
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
