//! A rank's side of a collective: meet, move its share, part. What moves where is decided here, how is the backend's part.

use std::ops::Range;

use super::{Backend, Frame, Trouble, Way};
use crate::collectives::{Header, Patience, Refusal};
use crate::link::{Address, LinkedCollective, LinkedTensor};
use crate::program::{CollectiveKind, DType, Reduction, Transfer};

/// Members' shares of a reduction start at multiples of this, so that they share no cache line.
const SHARE_ELEMENTS: usize = 64;

/// Which block of a member's source a reader takes, and which of its own target it becomes; none where it takes nothing. Of
/// an all-reduce each takes its share of everybody's only block.
pub(super) fn blocks(kind: &CollectiveKind, reader: usize, member: usize) -> Option<(usize, usize)> {
    match kind {
        CollectiveKind::AllGather => Some((0, member)),
        CollectiveKind::AllToAll => Some((reader, member)),
        CollectiveKind::Permute(permutation) => {
            (permutation.sources[reader] as usize == member).then_some((0, 0))
        }
        CollectiveKind::ReduceScatter(_) => Some((reader, 0)),
        CollectiveKind::AllReduce(_) => Some((0, 0)),
    }
}

impl<B: Backend> Frame<B> {
    /// Does a collective with the group's other members, wherever they are.
    pub(super) fn exchange(&mut self, collective: &LinkedCollective) -> Result<(), Trouble> {
        for (index, tensor) in collective.tensors.iter().enumerate() {
            let (source, target) = (self.address(&tensor.source), self.address(&tensor.target));
            self.seats[collective.seat].offer(index, source, target);
        }
        // What others read must be there before they read it.
        self.backend.announce(collective.number)?;
        let header = Header { collective: collective.number, digest: self.digest(collective) };
        match self.way {
            Way::Memory => self.exchange_in_memory(collective, header),
            Way::Messages(_) | Way::Network(_) => self.exchange_by_messages(collective, header),
        }
    }

    fn exchange_in_memory(&mut self, collective: &LinkedCollective, header: Header) -> Result<(), Trouble> {
        let refused = |refusal: Refusal| Trouble::Refused { seat: collective.seat, refusal };
        let patience = Patience { health: &self.health, spin: self.spin, timeout: self.timeout };
        self.seats[collective.seat].meet(header, patience).map_err(refused)?;
        for member in 0..self.seats[collective.seat].members() {
            self.backend.expect(collective.number, self.seats[collective.seat].rank(member))?;
        }
        for (index, tensor) in collective.tensors.iter().enumerate() {
            self.move_tensor(collective, index, tensor)?;
        }
        self.backend.conclude(collective.number)?;
        let patience = Patience { health: &self.health, spin: self.spin, timeout: self.timeout };
        // Now each member's part is under way, so that whoever waits for it waits for this one.
        self.seats[collective.seat].part(patience).map_err(refused)
    }

    /// What the rank does from now on comes behind all that the members move in a collective.
    pub(super) fn finish(&mut self, number: u64, seat: usize) -> Result<(), Trouble> {
        let seat = &self.seats[seat];
        match self.way {
            Way::Memory => {
                (0..seat.members()).try_for_each(|member| self.backend.finish(number, seat.rank(member)))
            }
            // What the others did came as messages, and is in this rank's movements.
            Way::Messages(_) | Way::Network(_) => self.backend.finish(number, seat.rank(seat.index())),
        }
    }

    fn address(&self, address: &Address) -> *mut u8 {
        self.backend.base(address.space).wrapping_add(address.at(&self.point))
    }

    /// The collective's digest with the iteration that it runs in.
    fn digest(&self, collective: &LinkedCollective) -> u64 {
        let mix = |hash: u64, number: &u64| (hash ^ number).wrapping_mul(0x0100_0000_01b3);
        self.point.loops.iter().chain([&self.point.numbers.step]).fold(collective.digest, mix)
    }

    fn move_tensor(
        &mut self,
        collective: &LinkedCollective,
        index: usize,
        tensor: &LinkedTensor,
    ) -> Result<(), Trouble> {
        let seat = &self.seats[collective.seat];
        let (own, members) = (seat.index(), seat.members());
        match &collective.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => {
                let target = seat.target(own, index);
                self.clear_where_cut(&collective.kind, tensor, own, target)?;
                (0..members).try_for_each(|member| match blocks(&collective.kind, own, member) {
                    Some(blocks) => self.receive(collective.seat, index, tensor, member, blocks),
                    None => Ok(()),
                })
            }
            CollectiveKind::ReduceScatter(reduction) => {
                let block = own * tensor.transfer.source.block as usize * tensor.dtype.bytes() as usize;
                for member in 0..members {
                    self.sources[member] = seat.source(member, index).wrapping_add(block);
                }
                self.targets[0] = seat.target(own, index);
                let transfer = tensor.transfer.of_block(own as u64, 0);
                self.clear_where_cut(&collective.kind, tensor, own, self.targets[0])?;
                let range = 0..transfer.block_elements() as usize;
                self.reduce((&transfer, tensor.dtype), *reduction, range, members, 1)
            }
            CollectiveKind::AllReduce(reduction) => {
                for member in 0..members {
                    self.sources[member] = seat.source(member, index);
                    self.targets[member] = seat.target(member, index);
                }
                let share = share(tensor.transfer.block_elements() as usize, own, members);
                self.reduce((&tensor.transfer, tensor.dtype), *reduction, share, members, members)
            }
        }
    }

    /// Copies one block of a member's source into one block of this rank's target.
    pub(super) fn receive(
        &mut self,
        seat: usize,
        index: usize,
        tensor: &LinkedTensor,
        member: usize,
        blocks: (usize, usize),
    ) -> Result<(), Trouble> {
        let seat = &self.seats[seat];
        let (transfer, source_offset, target_offset) = part(tensor, blocks);
        let source = seat.source(member, index).wrapping_add(source_offset);
        let target = seat.target(seat.index(), index).wrapping_add(target_offset);
        if source == target {
            // The block was gathered in place.
            return Ok(());
        }
        // SAFETY: all members have met, so the buffers are theirs until they part; validation checked that the blocks lie
        // in them, and each is copied once.
        unsafe { self.backend.copy_block(&transfer, tensor.dtype, source, target) }
    }

    /// Reduces a range of a block over the first `sources` sources into the first `targets` targets.
    pub(super) fn reduce(
        &mut self,
        block: (&Transfer, DType),
        reduction: Reduction,
        range: Range<usize>,
        sources: usize,
        targets: usize,
    ) -> Result<(), Trouble> {
        let (sources, targets) = (&self.sources[..sources], &self.targets[..targets]);
        // SAFETY: all members have met, or sent what they have, so the buffers are theirs until they part; validation
        // checked that the blocks lie in them, and each element is reduced by one member.
        unsafe { self.backend.reduce_block(block, reduction, range, sources, targets) }
    }

    /// Sets a target to zero where pads cut its part of what the source's blocks split short.
    pub(super) fn clear_where_cut(
        &mut self,
        kind: &CollectiveKind,
        tensor: &LinkedTensor,
        own: usize,
        target: *mut u8,
    ) -> Result<(), Trouble> {
        match kind {
            CollectiveKind::AllToAll | CollectiveKind::ReduceScatter(_) => {}
            CollectiveKind::AllGather | CollectiveKind::Permute(_) | CollectiveKind::AllReduce(_) => {
                return Ok(());
            }
        }
        let transfer = &tensor.transfer;
        let there = transfer.of_block(own as u64, 0).block_elements();
        if there == transfer.block_elements() {
            return Ok(());
        }
        let elements = transfer.outer * transfer.target.outer;
        // SAFETY: validation checked that all of it lies in the target, which is this rank's own until the members
        // part; what there is comes in afterwards.
        unsafe { self.backend.clear(target, (elements * tensor.dtype.bytes()) as usize) }
    }
}

/// A block of the source that becomes a block of the target, and the bytes to where each begins.
pub(super) fn part(tensor: &LinkedTensor, (source, target): (usize, usize)) -> (Transfer, usize, usize) {
    let (transfer, bytes) = (&tensor.transfer, tensor.dtype.bytes() as usize);
    let offset = |block: usize, stride: u64| block * stride as usize * bytes;
    let offsets = (offset(source, transfer.source.block), offset(target, transfer.target.block));
    (transfer.of_block(source as u64, target as u64), offsets.0, offsets.1)
}

/// A member's share of a block that all members have whole.
pub(super) fn share(elements: usize, member: usize, members: usize) -> Range<usize> {
    let lines = elements.div_ceil(SHARE_ELEMENTS);
    let cut = |member: usize| (lines * member / members * SHARE_ELEMENTS).min(elements);
    cut(member)..cut(member + 1)
}
