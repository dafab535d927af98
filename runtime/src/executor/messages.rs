//! A collective between ranks whose memories are apart: each sends what the others would read, and does with what comes in what
//! it would do in shared memory, in the same order, so that sums have the same bits.
//!
//! What moves where is [`super::exchange`]'s to say. A block travels packed, its elements side by side. One that lies so already is
//! sent from where it is or put where it goes; any other passes a place of the backend's own memory, as does all that is to be reduced. How parcels
//! travel, through the host's memory ([`super::letters`]) or between devices ([`crate::network`]), makes no other difference.
//!
//! A reduction sends each member the part that it reduces, and an all-reduce then the result to all: as many bytes to and from a rank as in a
//! ring. But none are added on the way: where each machine has `m` members of a group, `m` times as many pass between machines.

use super::exchange::blocks;
use super::parcels::{End, Parcel, block, side_by_side};
use super::{Backend, Frame, Trouble, Way};
use crate::collectives::{Header, Refusal};
use crate::link::{LinkedCollective, LinkedTensor};
use crate::network::{Call, Message, Route};
use crate::program::{CollectiveKind, Transfer};
use dtlc_emulator::DevicePointer;

impl<B: Backend> Frame<B> {
    pub(super) fn exchange_by_messages(
        &mut self,
        collective: &LinkedCollective,
        header: Header,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        self.backend.expect(collective.number, self.seats[collective.seat].rank(own))?;
        let mut parcels = std::mem::take(&mut self.parcels);
        let room = parcels.lay_out(collective, own, members);
        self.staged = if room == 0 { std::ptr::null_mut() } else { self.backend.stage(room)? };
        for (index, tensor) in collective.tensors.iter().enumerate() {
            let target = self.seats[collective.seat].target(own, index);
            self.clear_where_cut(&collective.kind, tensor, own, target)?;
        }
        parcels.list.iter().try_for_each(|parcel| self.pack(collective, parcel))?;
        self.deliver(collective, header, &parcels.list)?;
        for (index, tensor) in collective.tensors.iter().enumerate() {
            self.take_in(collective, index, tensor, &parcels.list)?;
        }
        if let CollectiveKind::AllReduce(_) = collective.kind {
            parcels.lay_out_shares(collective, members);
            self.deliver(collective, header, &parcels.list)?;
        }
        self.parcels = parcels;
        self.backend.conclude(collective.number)
    }

    /// This member's index in the group, and how many there are.
    pub(super) fn who(&self, collective: &LinkedCollective) -> (usize, usize) {
        let seat = &self.seats[collective.seat];
        (seat.index(), seat.members())
    }

    /// Where a parcel's bytes lie side by side.
    pub(super) fn place(&self, collective: &LinkedCollective, parcel: &Parcel) -> *mut u8 {
        match parcel.staged {
            Some(offset) => self.staged.wrapping_add(offset),
            None => self.buffer(collective, parcel),
        }
    }

    /// Where a parcel's block begins in its buffer.
    fn buffer(&self, collective: &LinkedCollective, parcel: &Parcel) -> *mut u8 {
        let seat = &self.seats[collective.seat];
        let start = match parcel.end {
            End::Source => seat.source(seat.index(), parcel.tensor),
            End::Target => seat.target(seat.index(), parcel.tensor),
            End::Room => self.staged,
        };
        start.wrapping_add(parcel.offset)
    }

    /// Packs a block that is to leave, or to be reduced here, where it does not lie packed.
    fn pack(&mut self, collective: &LinkedCollective, parcel: &Parcel) -> Result<(), Trouble> {
        if parcel.end != End::Source || parcel.staged.is_none() {
            return Ok(());
        }
        let packed = Transfer { target: side_by_side(&parcel.transfer), ..parcel.transfer };
        let dtype = collective.tensors[parcel.tensor].dtype;
        let (source, place) = (self.buffer(collective, parcel), self.place(collective, parcel));
        // SAFETY: validation checked that the block lies in the source, and the place has room for all of it.
        unsafe { self.backend.copy_block(&packed, dtype, source, place) }
    }

    fn deliver(
        &mut self,
        collective: &LinkedCollective,
        header: Header,
        parcels: &[Parcel],
    ) -> Result<(), Trouble> {
        match self.way.clone() {
            // Then nothing has to travel.
            Way::Memory => Ok(()),
            Way::Messages(transport) => self.post(collective, header, parcels, &*transport),
            Way::Network(network) => {
                let mut messages = std::mem::take(&mut self.messages);
                messages.clear();
                messages.extend(parcels.iter().filter_map(|parcel| {
                    let at = DevicePointer(self.place(collective, parcel).addr() as u64);
                    Some(Message { route: parcel.route?, at, bytes: parcel.bytes })
                }));
                let seat = collective.seat;
                let call = Call {
                    collective: collective.number,
                    group: seat,
                    ranks: self.seats[seat].ranks(),
                    messages: &messages,
                    stream: self.backend.movement(),
                    has_failed: &|| self.health.has_failed(),
                };
                let started = if messages.is_empty() { Ok(()) } else { network.exchange(&call) };
                self.messages = messages;
                started.map_err(|error| match self.health.has_failed() {
                    true => Trouble::Refused { seat, refusal: Refusal::Abandoned },
                    false => Trouble::Network(Box::new(error)),
                })
            }
        }
    }

    /// Does with a tensor what its collective does, with the parcels in the place of the others' sources.
    fn take_in(
        &mut self,
        collective: &LinkedCollective,
        index: usize,
        tensor: &LinkedTensor,
        parcels: &[Parcel],
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        let mut parcels = parcels.iter().filter(|parcel| parcel.tensor == index);
        match &collective.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => {
                parcels.try_for_each(|parcel| self.unpack(collective, parcel))?;
                match blocks(&collective.kind, own, own) {
                    Some(taken) => self.receive(collective.seat, index, tensor, own, taken),
                    None => Ok(()),
                }
            }
            CollectiveKind::ReduceScatter(reduction) | CollectiveKind::AllReduce(reduction) => {
                for parcel in parcels {
                    let member = match parcel.route {
                        None => own,
                        Some(Route::From(member)) => member,
                        Some(Route::To(_) | Route::OfAll(_)) => continue,
                    };
                    self.sources[member] = self.place(collective, parcel);
                }
                let block = block(&collective.kind, tensor, [own, own], members);
                let block = block.filter(|(transfer, ..)| transfer.block_elements() > 0);
                let Some((transfer, _, offset)) = block else { return Ok(()) };
                self.targets[0] = self.seats[collective.seat].target(own, index).wrapping_add(offset);
                let packed = Transfer { source: side_by_side(&transfer), ..transfer };
                let all = 0..transfer.block_elements() as usize;
                self.reduce((&packed, tensor.dtype), *reduction, all, members, 1)
            }
        }
    }

    /// Puts a block that has come in packed where it belongs.
    fn unpack(&mut self, collective: &LinkedCollective, parcel: &Parcel) -> Result<(), Trouble> {
        if parcel.end != End::Target || parcel.staged.is_none() {
            return Ok(());
        }
        let packed = Transfer { source: side_by_side(&parcel.transfer), ..parcel.transfer };
        let dtype = collective.tensors[parcel.tensor].dtype;
        let (place, target) = (self.place(collective, parcel), self.buffer(collective, parcel));
        // SAFETY: validation checked that the block lies in the target, and the place holds all of it.
        unsafe { self.backend.copy_block(&packed, dtype, place, target) }
    }
}
