//! A warp: its frames, registers and predicates, and which lanes are where. Lanes that part at a branch run on as groups, that with the lowest
//! place first, and groups that meet are one again.

use super::copies::Copies;
use super::group::Products;
use super::lanes::File;
use super::phases::Polling;
use crate::code::{BarrierKind, Code, PredicateRef, SLOT_WORDS, Slot};
use crate::memory::LocalMemory;

/// Calls may nest this deep.
pub(super) const MOST_FRAMES: usize = 256;

/// Lanes that stand at an instruction until others that it names have come there too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub pc: usize,
    pub mask: u32,
    pub opcode: &'static str,
    /// The lanes that there were of those that it names.
    pub named: u32,
}

/// A function that a warp runs.
#[derive(Debug)]
pub(super) struct Frame {
    pub function: usize,
    pub pc: usize,
    /// The lanes at `pc`.
    pub mask: u32,
    /// Groups of lanes elsewhere, the lowest place last.
    waiting: Vec<(usize, u32)>,
    parked: Vec<Parked>,
    /// All lanes that called.
    pub called: u32,
    pub registers: usize,
    pub predicates: usize,
    /// Where the frame begins in local memory, and how long it is there.
    pub local: u64,
    local_bytes: u64,
}

impl Frame {
    /// The current lanes go on at `pc`; lanes that wait there or before come first.
    #[inline(always)]
    pub fn go(&mut self, pc: usize) {
        self.pc = pc;
        let is_lowest = self.waiting.last().is_none_or(|(lowest, _)| *lowest > pc);
        if !is_lowest || self.parked.iter().any(|parked| parked.pc == pc) {
            self.reorder();
        }
    }

    /// The current lanes stay where they are until those that are elsewhere have come there; false if none of the lanes missing is on its way.
    pub fn park(&mut self, opcode: &'static str, named: u32) -> bool {
        let coming = self.waiting.iter().fold(0, |all, (_, mask)| all | mask);
        let missing = named & !self.mask;
        if missing == 0 || missing & !coming != 0 {
            return false;
        }
        self.parked.push(Parked { pc: self.pc, mask: self.mask, opcode, named });
        self.mask = 0;
        self.reorder();
        true
    }

    /// Lanes that wait for some of these.
    pub fn waits_for(&self, lanes: u32) -> Option<Parked> {
        self.parked.iter().find(|parked| parked.named & lanes != 0).copied()
    }

    /// The current lanes part: each group goes on where it is told.
    pub fn part(&mut self, groups: impl IntoIterator<Item = (usize, u32)>) {
        self.mask = 0;
        self.waiting.extend(groups.into_iter().filter(|(_, mask)| *mask != 0));
        self.waiting.sort_by_key(|(pc, _)| std::cmp::Reverse(*pc));
        self.reorder();
    }

    #[cold]
    fn reorder(&mut self) {
        if self.mask != 0 {
            let at = self.waiting.partition_point(|(pc, _)| *pc > self.pc);
            self.waiting.insert(at, (self.pc, self.mask));
        }
        let Some((pc, mask)) = self.waiting.pop() else {
            self.mask = 0;
            return;
        };
        (self.pc, self.mask) = (pc, mask);
        while let Some((_, mask)) = self.waiting.pop_if(|(lowest, _)| *lowest == pc) {
            self.mask |= mask;
        }
        for parked in self.parked.extract_if(.., |parked| parked.pc == pc) {
            self.mask |= parked.mask;
        }
    }

    /// Lanes leave the frame; whether any is left.
    pub fn leave(&mut self, lanes: u32) -> bool {
        self.mask &= !lanes;
        for (_, mask) in &mut self.waiting {
            *mask &= !lanes;
        }
        self.waiting.retain(|(_, mask)| *mask != 0);
        if self.mask == 0 {
            self.reorder();
        }
        self.mask != 0
    }
}

/// What a warp waits for at a barrier.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub barrier: u32,
    /// `None`: all threads of the block.
    pub threads: Option<u32>,
    pub kind: BarrierKind,
    /// What the threads bring to a reducing barrier.
    pub value: u32,
    pub to: Option<Slot>,
    pub to_predicate: Option<u32>,
}

#[derive(Clone, Debug)]
pub(super) enum Status {
    Ready,
    Waiting(Waiting),
    /// For a phase of a barrier in shared memory.
    Polling(Polling),
    Done,
}

#[derive(Debug)]
pub(super) struct Warp {
    pub index: u32,
    /// The coordinates of its threads, by axis.
    pub threads: [[u32; 32]; 3],
    /// The lanes that there are.
    pub lanes: u32,
    pub exited: u32,
    pub frames: Vec<Frame>,
    pub registers: Vec<u64>,
    pub predicates: Vec<u32>,
    pub local: LocalMemory,
    pub copies: Copies,
    pub products: Products,
    pub status: Status,
}

impl Warp {
    pub fn new(index: u32, lanes: u32, threads: [[u32; 32]; 3]) -> Warp {
        Warp {
            index,
            threads,
            lanes,
            exited: 0,
            frames: Vec::new(),
            registers: Vec::new(),
            predicates: Vec::new(),
            local: LocalMemory::new(32),
            copies: Copies::default(),
            products: Products::default(),
            status: Status::Ready,
        }
    }

    /// Ready for another block.
    pub fn clear(&mut self) {
        self.exited = 0;
        self.frames.clear();
        self.registers.clear();
        self.predicates.clear();
        self.copies = Copies::default();
        self.products = Products::default();
        self.status = Status::Ready;
    }

    pub fn alive(&self) -> u32 {
        self.lanes & !self.exited
    }

    /// A frame for these lanes; `false` where there is no room.
    pub fn enter(&mut self, function: usize, code: &Code, lanes: u32) -> bool {
        let local = self.frames.last().map_or(0, |frame| frame.local + frame.local_bytes);
        let local = local.next_multiple_of(16);
        if self.frames.len() >= MOST_FRAMES || !self.local.enter(local, code.local_bytes) {
            return false;
        }
        let (registers, predicates) = (self.registers.len(), self.predicates.len());
        self.registers.extend_from_slice(&code.template);
        self.predicates.resize(predicates + code.predicates as usize, 0);
        self.frames.push(Frame {
            function,
            pc: 0,
            mask: lanes,
            waiting: Vec::new(),
            parked: Vec::new(),
            called: lanes,
            registers,
            predicates,
            local,
            local_bytes: code.local_bytes,
        });
        true
    }

    /// Ends the top frame.
    pub fn leave(&mut self) -> Option<Frame> {
        let frame = self.frames.pop()?;
        self.registers.truncate(frame.registers);
        self.predicates.truncate(frame.predicates);
        Some(frame)
    }

    /// The registers of the top frame.
    #[inline(always)]
    pub fn file(&mut self) -> &mut File {
        let start = self.frames.last().map_or(0, |frame| frame.registers);
        &mut self.registers[start..]
    }

    /// A predicate of the top frame.
    #[inline(always)]
    pub fn predicate(&self, predicate: PredicateRef) -> u32 {
        let start = self.frames.last().map_or(0, |frame| frame.predicates);
        let value = self.predicates[start + predicate.slot as usize];
        if predicate.negated { !value } else { value }
    }

    #[inline(always)]
    pub fn set_predicate(&mut self, slot: u32, value: u32, mask: u32) {
        let start = self.frames.last().map_or(0, |frame| frame.predicates);
        let old = &mut self.predicates[start + slot as usize];
        *old = (*old & !mask) | (value & mask);
    }

    /// A register that must hold the same in all lanes of the mask, such as a lane mask; the first lane's where not.
    pub fn uniform(&mut self, slot: Slot, mask: u32) -> u32 {
        let lane = mask.trailing_zeros().min(31) as usize;
        let word = self.file()[slot as usize * SLOT_WORDS + lane / 2];
        (word >> (32 * (lane % 2))) as u32
    }
}
