//! A collective between ranks whose memories are apart: each sends what the others would read, and does with what comes in what
//! it would do in shared memory, in the same order, so that sums have the same bits.
//!
//! What moves where is [`super::exchange`]'s to say. A block travels packed, its elements side by side. One that lies so already is
//! sent from where it is or put where it goes; any other passes a place of the backend's own memory, as does all that is to be reduced. How parcels
//! travel, through the host's memory ([`super::letters`]) or between devices ([`crate::network`]), makes no other difference.
//!
//! A reduction sends each member the part that it reduces, and an all-reduce then the result to all: as many bytes to and from a rank as in a
//! ring, but none are added on the way, so where a group has several members in each of several machines, as many times more between those.

use super::exchange::{blocks, part, share};
use super::{Backend, Frame, Trouble, Way};
use crate::collectives::{Header, Refusal};
use crate::link::{LinkedCollective, LinkedTensor};
use crate::network::{Call, Message, Route};
use crate::program::{CollectiveKind, Strides, Transfer};
use dtlc_emulator::DevicePointer;

/// A block that travels, or this rank's own of a reduction, which only has to be packed.
#[derive(Clone, Copy, Debug)]
pub struct Parcel {
    /// Where it goes; none for a block that stays.
    pub route: Option<Route>,
    /// Its length.
    pub bytes: usize,
    tensor: usize,
    /// The block in source and target.
    transfer: Transfer,
    end: End,
    /// Bytes from the start of that buffer to the block.
    offset: usize,
    /// Where it lies packed, in bytes from the start of the place for parcels; none where it does in the buffer itself.
    staged: Option<usize>,
}

/// Which of a tensor's buffers a block is taken from, or put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Source,
    Target,
    /// Neither: what comes in is only reduced.
    Room,
}

impl<B: Backend> Frame<B> {
    pub(super) fn exchange_by_messages(
        &mut self,
        collective: &LinkedCollective,
        header: Header,
    ) -> Result<(), Trouble> {
        let (own, _) = self.who(collective);
        self.backend.expect(collective.number, self.seats[collective.seat].rank(own))?;
        let mut parcels = std::mem::take(&mut self.parcels);
        let room = self.lay_out(collective, &mut parcels);
        self.staged = if room == 0 { std::ptr::null_mut() } else { self.backend.stage(room)? };
        for (index, tensor) in collective.tensors.iter().enumerate() {
            let target = self.seats[collective.seat].target(own, index);
            self.clear_where_cut(&collective.kind, tensor, own, target)?;
        }
        parcels.iter().try_for_each(|parcel| self.pack(collective, parcel))?;
        self.deliver(collective, header, &parcels)?;
        for (index, tensor) in collective.tensors.iter().enumerate() {
            self.take_in(collective, index, tensor, &parcels)?;
        }
        if let CollectiveKind::AllReduce(_) = collective.kind {
            self.lay_out_shares(collective, &mut parcels);
            self.deliver(collective, header, &parcels)?;
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

    /// Lists a collective's parcels; returns the bytes of a place for those that need one.
    fn lay_out(&self, collective: &LinkedCollective, parcels: &mut Vec<Parcel>) -> usize {
        let (own, members) = self.who(collective);
        let kind = &collective.kind;
        let mut room = 0;
        parcels.clear();
        let mut add = |route, end, (tensor, linked): (usize, &LinkedTensor), [reader, member]: [usize; 2]| {
            let Some((transfer, source, target)) = block(kind, linked, [reader, member], members) else {
                return;
            };
            let bytes = (transfer.block_elements() * linked.dtype.bytes()) as usize;
            if bytes == 0 {
                return;
            }
            let (offset, is_packed) = match end {
                End::Source => (source, is_side_by_side(&transfer, transfer.source)),
                End::Target => (target, is_side_by_side(&transfer, transfer.target)),
                End::Room => (0, false),
            };
            let staged = (!is_packed).then_some(room);
            room += staged.map_or(0, |_| bytes.next_multiple_of(ALIGNMENT));
            parcels.push(Parcel { route, bytes, tensor, transfer, end, offset, staged });
        };
        for tensor in collective.tensors.iter().enumerate() {
            for member in 0..members {
                let (to, from) = (Some(Route::To(member)), Some(Route::From(member)));
                match kind {
                    CollectiveKind::AllGather if members == 1 => {}
                    CollectiveKind::AllGather => {
                        let end = if member == own { End::Source } else { End::Target };
                        add(Some(Route::OfAll(member)), end, tensor, [own, member]);
                    }
                    CollectiveKind::AllToAll | CollectiveKind::Permute(_) if member == own => {}
                    CollectiveKind::AllToAll | CollectiveKind::Permute(_) => {
                        add(to, End::Source, tensor, [member, own]);
                        add(from, End::Target, tensor, [own, member]);
                    }
                    CollectiveKind::ReduceScatter(_) | CollectiveKind::AllReduce(_) if member == own => {
                        add(None, End::Source, tensor, [own, own]);
                    }
                    CollectiveKind::ReduceScatter(_) | CollectiveKind::AllReduce(_) => {
                        add(to, End::Source, tensor, [member, own]);
                        add(from, End::Room, tensor, [own, member]);
                    }
                }
            }
        }
        room
    }

    /// Lists each member's share of an all-reduce's results, which goes to all.
    fn lay_out_shares(&self, collective: &LinkedCollective, parcels: &mut Vec<Parcel>) {
        let (_, members) = self.who(collective);
        parcels.clear();
        for (tensor, linked) in collective.tensors.iter().enumerate() {
            for member in (0..members).filter(|_| members > 1) {
                let block = block(&collective.kind, linked, [member, member], members);
                let Some((transfer, _, offset)) = block else { continue };
                let bytes = (transfer.block_elements() * linked.dtype.bytes()) as usize;
                let (route, end, staged) = (Some(Route::OfAll(member)), End::Target, None);
                if bytes > 0 {
                    parcels.push(Parcel { route, bytes, tensor, transfer, end, offset, staged });
                }
            }
        }
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

/// Blocks in a place of their own start at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// What a reader takes of a member's source, and the bytes to where it begins in that and in the reader's target. Of an all-reduce
/// it is the share that the reader reduces.
fn block(
    kind: &CollectiveKind,
    tensor: &LinkedTensor,
    [reader, member]: [usize; 2],
    members: usize,
) -> Option<(Transfer, usize, usize)> {
    let taken = blocks(kind, reader, member)?;
    if let CollectiveKind::AllReduce(_) = kind {
        let range = share(tensor.transfer.block_elements() as usize, reader, members);
        let offset = range.start * tensor.dtype.bytes() as usize;
        return Some((Transfer::whole(range.len() as u64), offset, offset));
    }
    Some(part(tensor, taken))
}

/// The steps of a block whose elements lie side by side.
fn side_by_side(transfer: &Transfer) -> Strides {
    let (middles, inners) = (transfer.middle.block, transfer.inner.block);
    Strides { outer: middles * inners, middle: inners, block: 0 }
}

/// Whether these steps of a block are those.
fn is_side_by_side(transfer: &Transfer, steps: Strides) -> bool {
    let packed = side_by_side(transfer);
    (transfer.outer <= 1 || steps.outer == packed.outer)
        && (transfer.middle.block <= 1 || steps.middle == packed.middle)
}
