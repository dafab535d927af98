//! Barriers of a block: which warps wait, when they go on, and what that orders.

use super::block::Executor;
use super::lanes::Lane;
use super::warp::{Status, Waiting, Warp};
use super::{Ran, throw};
use crate::code::{BarrierKind, LANES, PredicateRef, Slot};
use crate::fault::FaultKind;

/// The operands of a barrier instruction.
pub(super) struct Barrier {
    pub kind: BarrierKind,
    pub barrier: Slot,
    pub threads: Option<Slot>,
    pub by: Option<PredicateRef>,
    pub to: Option<Slot>,
    pub to_predicate: Option<u32>,
}

impl Executor<'_> {
    /// A warp arrives. It waits where it is, unless it only says so.
    pub fn arrive(&mut self, warp: &mut Warp, mask: u32, barrier: &Barrier) -> Ran<()> {
        if mask != warp.alive() {
            let kind = FaultKind::DivergentBarrier { arrived: mask, alive: warp.alive() };
            return throw(mask, kind);
        }
        let number = warp.uniform(barrier.barrier, mask);
        if number >= 16 {
            return throw(mask, FaultKind::BadOperand(format!("barrier {number}; there are 16")));
        }
        let threads = barrier.threads.map(|slot| warp.uniform(slot, mask));
        let bad = threads.is_some_and(|threads| threads == 0 || threads % 32 != 0);
        if bad || (barrier.kind == BarrierKind::Arrive && threads.is_none()) {
            let reason = format!("a barrier of {threads:?} threads; it takes a multiple of 32");
            return throw(mask, FaultKind::BadOperand(reason));
        }
        if barrier.kind == BarrierKind::Arrive {
            self.arrived[number as usize] |= 1 << warp.index;
            self.shared.arrive(warp.index);
            return Ok(());
        }
        warp.status = Status::Waiting(Waiting {
            barrier: number,
            threads,
            kind: barrier.kind,
            value: barrier.by.map_or(0, |by| warp.predicate(by) & mask),
            to: barrier.to,
            to_predicate: barrier.to_predicate,
        });
        Ok(())
    }

    /// Lets go on whom nothing holds any more; whether that is anyone.
    pub fn open_barriers(&mut self, warps: &mut [Warp]) -> bool {
        let mut opened = false;
        for number in 0..16 {
            let waiting = |warp: &Warp| match &warp.status {
                Status::Waiting(waiting) if waiting.barrier == number => Some(waiting.clone()),
                _ => None,
            };
            let members: Vec<(usize, Waiting)> = warps
                .iter()
                .enumerate()
                .filter_map(|(index, warp)| waiting(warp).map(|waiting| (index, waiting)))
                .collect();
            let Some((_, first)) = members.first() else { continue };
            let alive = warps.iter().filter(|warp| !matches!(warp.status, Status::Done)).count();
            let arrived = self.arrived[number as usize];
            let everyone = members.len() == alive;
            let complete = match first.threads {
                None => everyone,
                Some(threads) => (members.len() as u32 + arrived.count_ones()) * LANES as u32 >= threads,
            };
            if complete {
                opened = true;
                self.open(warps, &members, arrived, everyone);
                self.arrived[number as usize] = 0;
            }
        }
        opened
    }

    fn open(&mut self, warps: &mut [Warp], members: &[(usize, Waiting)], arrived: u32, everyone: bool) {
        let waiting = members.iter().fold(0, |mask, (index, _)| mask | 1 << index);
        if everyone && arrived & !waiting == 0 {
            self.shared.order_all();
        } else {
            self.shared.order(arrived, waiting);
        }
        let mut holding = 0;
        let (mut any, mut all) = (false, true);
        for (index, member) in members {
            holding += member.value.count_ones();
            any |= member.value != 0;
            all &= member.value == warps[*index].alive();
        }
        for (index, member) in members {
            let warp = &mut warps[*index];
            let mask = warp.alive();
            match member.kind {
                BarrierKind::Population => {
                    if let Some(to) = member.to {
                        u32::write(warp.file(), to, &[holding; LANES], mask);
                    }
                }
                BarrierKind::And | BarrierKind::Or => {
                    let holds = if member.kind == BarrierKind::And { all } else { any };
                    if let Some(to) = member.to_predicate {
                        warp.set_predicate(to, if holds { mask } else { 0 }, mask);
                    }
                }
                BarrierKind::Sync | BarrierKind::Arrive => {}
            }
            warp.status = Status::Ready;
            if let Some(frame) = warp.frames.last_mut() {
                frame.go(frame.pc + 1);
            }
        }
    }
}
