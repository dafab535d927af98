//! A rank's side of a collective: meet, move its share, part.

use std::ops::Range;

use super::{Frame, Shared, Trouble, parts_of};
use crate::collectives::transfer::{copy_block, reduce_block};
use crate::collectives::{Header, Patience, Refusal};
use crate::link::{LinkedCollective, LinkedTensor};
use crate::program::{CollectiveKind, DType, Reduction, Transfer};

/// Fewer elements than this are not worth a thread of their own.
const GRAIN_ELEMENTS: usize = 16 * 1024;
/// Members' shares of a reduction start at multiples of this, so that they share no cache line.
const SHARE_ELEMENTS: usize = 64;

impl Frame {
    pub(super) fn exchange(&mut self, collective: &LinkedCollective) -> Result<(), Trouble> {
        let refused = |refusal: Refusal| Trouble::Refused { seat: collective.seat, refusal };
        for (index, tensor) in collective.tensors.iter().enumerate() {
            let (source, target) = (self.address(&tensor.source), self.address(&tensor.target));
            self.seats[collective.seat].offer(index, source, target);
        }
        let header = Header { collective: collective.number, digest: self.digest(collective) };
        let patience = Patience { health: &self.health, spin: self.spin, timeout: self.timeout };
        self.seats[collective.seat].meet(header, patience).map_err(refused)?;
        for (index, tensor) in collective.tensors.iter().enumerate() {
            self.move_tensor(collective, index, tensor)?;
        }
        let patience = Patience { health: &self.health, spin: self.spin, timeout: self.timeout };
        self.seats[collective.seat].part(patience).map_err(refused)
    }

    /// The collective's digest with the iteration that it runs in.
    fn digest(&self, collective: &LinkedCollective) -> u64 {
        let mix = |hash: u64, number: &u64| (hash ^ number).wrapping_mul(0x0100_0000_01b3);
        self.loops.iter().chain([&self.numbers.step]).fold(collective.digest, mix)
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
                clear_where_cut(&tensor.transfer, own, tensor.dtype, seat.target(own, index));
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
                clear_where_cut(&tensor.transfer, own, tensor.dtype, self.targets[0]);
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
        &self,
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
        let ends = Shared((source.cast_const(), target));
        self.in_ranges(0..transfer.block_elements() as usize, |range| {
            let (source, target) = ends.get();
            // SAFETY: all members have met, so the buffers are theirs until they part; validation
            // checked that the blocks lie in them, and each range is copied once.
            unsafe { copy_block(&transfer, bytes, range, source, target) };
        })
    }

    /// Reduces a range of a block over the first `sources` sources into the first `targets` targets.
    fn reduce(
        &self,
        (transfer, dtype): (&Transfer, DType),
        reduction: Reduction,
        range: Range<usize>,
        sources: usize,
        targets: usize,
    ) -> Result<(), Trouble> {
        let ends = Shared((&self.sources[..sources], &self.targets[..targets]));
        self.in_ranges(range, |range| {
            let (sources, targets) = ends.get();
            // SAFETY: all members have met, so the buffers are theirs until they part; validation
            // checked that the blocks lie in them, and each element is reduced by one thread of one
            // member.
            unsafe { reduce_block(transfer, dtype, reduction, range, sources, targets) };
        })
    }

    /// Divides a range of elements over the threads.
    fn in_ranges(&self, range: Range<usize>, work: impl Fn(Range<usize>) + Sync) -> Result<(), Trouble> {
        let parts = parts_of(range.len() as u64, GRAIN_ELEMENTS as u64, self.team.threads());
        self.team.run(parts, &|part, _| {
            let cut = |part: usize| range.start + range.len() * part / parts;
            work(cut(part)..cut(part + 1));
        })?;
        Ok(())
    }
}

/// Sets a target to zero where pads cut its part of what the source's blocks split short.
fn clear_where_cut(transfer: &Transfer, own: usize, dtype: DType, target: *mut u8) {
    let there = transfer.of_block(own as u64, 0).block_elements();
    if there < transfer.block_elements() {
        let elements = transfer.outer * transfer.target.outer;
        // SAFETY: validation checked that all of it lies in the target, which is this rank's own until the members
        // part; what there is comes in afterwards.
        unsafe { target.write_bytes(0, (elements * dtype.bytes()) as usize) };
    }
}

/// A member's share of a block that all members have whole.
fn share(elements: usize, member: usize, members: usize) -> Range<usize> {
    let lines = elements.div_ceil(SHARE_ELEMENTS);
    let cut = |member: usize| (lines * member / members * SHARE_ELEMENTS).min(elements);
    cut(member)..cut(member + 1)
}
