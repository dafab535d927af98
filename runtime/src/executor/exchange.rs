//! A rank's side of a collective: meet, move its share, part. What moves where is decided here, how is the backend's part.

use std::ops::Range;

use super::{Backend, Frame, Trouble};
use crate::collectives::{Header, Patience, Refusal};
use crate::link::{Address, LinkedCollective, LinkedTensor};
use crate::program::{CollectiveKind, DType, Reduction, Transfer};

/// Members' shares of a reduction start at multiples of this, so that they share no cache line.
const SHARE_ELEMENTS: usize = 64;

impl<B: Backend> Frame<B> {
    pub(super) fn exchange(&mut self, collective: &LinkedCollective) -> Result<(), Trouble> {
        let refused = |refusal: Refusal| Trouble::Refused { seat: collective.seat, refusal };
        for (index, tensor) in collective.tensors.iter().enumerate() {
            let (source, target) = (self.address(&tensor.source), self.address(&tensor.target));
            self.seats[collective.seat].offer(index, source, target);
        }
        // What others read must be there before they read it.
        self.backend.announce(collective.number)?;
        let header = Header { collective: collective.number, digest: self.digest(collective) };
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
        (0..seat.members()).try_for_each(|member| self.backend.finish(number, seat.rank(member)))
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
            CollectiveKind::AllGather => (0..members)
                .try_for_each(|member| self.receive(collective.seat, index, tensor, member, 0, member)),
            CollectiveKind::AllToAll => {
                let target = seat.target(own, index);
                self.clear_where_cut(&tensor.transfer, own, tensor.dtype, target)?;
                (0..members)
                    .try_for_each(|member| self.receive(collective.seat, index, tensor, member, own, member))
            }
            CollectiveKind::Permute(permutation) => {
                let member = permutation.sources[own] as usize;
                self.receive(collective.seat, index, tensor, member, 0, 0)
            }
            CollectiveKind::ReduceScatter(reduction) => {
                let block = own * tensor.transfer.source.block as usize * tensor.dtype.bytes() as usize;
                for member in 0..members {
                    self.sources[member] = seat.source(member, index).wrapping_add(block);
                }
                self.targets[0] = seat.target(own, index);
                let transfer = tensor.transfer.of_block(own as u64, 0);
                self.clear_where_cut(&tensor.transfer, own, tensor.dtype, self.targets[0])?;
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
    fn receive(
        &mut self,
        seat: usize,
        index: usize,
        tensor: &LinkedTensor,
        member: usize,
        source_block: usize,
        target_block: usize,
    ) -> Result<(), Trouble> {
        let seat = &self.seats[seat];
        let bytes = tensor.dtype.bytes() as usize;
        let transfer = tensor.transfer.of_block(source_block as u64, target_block as u64);
        let source_offset = source_block * transfer.source.block as usize * bytes;
        let target_offset = target_block * transfer.target.block as usize * bytes;
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
    fn reduce(
        &mut self,
        block: (&Transfer, DType),
        reduction: Reduction,
        range: Range<usize>,
        sources: usize,
        targets: usize,
    ) -> Result<(), Trouble> {
        let (sources, targets) = (&self.sources[..sources], &self.targets[..targets]);
        // SAFETY: all members have met, so the buffers are theirs until they part; validation checked that the blocks lie
        // in them, and each element is reduced by one member.
        unsafe { self.backend.reduce_block(block, reduction, range, sources, targets) }
    }

    /// Sets a target to zero where pads cut its part of what the source's blocks split short.
    fn clear_where_cut(
        &mut self,
        transfer: &Transfer,
        own: usize,
        dtype: DType,
        target: *mut u8,
    ) -> Result<(), Trouble> {
        let there = transfer.of_block(own as u64, 0).block_elements();
        if there == transfer.block_elements() {
            return Ok(());
        }
        let elements = transfer.outer * transfer.target.outer;
        // SAFETY: validation checked that all of it lies in the target, which is this rank's own until the members
        // part; what there is comes in afterwards.
        unsafe { self.backend.clear(target, (elements * dtype.bytes()) as usize) }
    }
}

/// A member's share of a block that all members have whole.
fn share(elements: usize, member: usize, members: usize) -> Range<usize> {
    let lines = elements.div_ceil(SHARE_ELEMENTS);
    let cut = |member: usize| (lines * member / members * SHARE_ELEMENTS).min(elements);
    cut(member)..cut(member + 1)
}
