//! A collective between ranks in several processes: each sends what the others would read, and does with what comes in what
//! it would do in shared memory, in the same order.
//!
//! What moves where is [`super::exchange`]'s to say. A block travels packed: its elements side by side, those of a
//! collective's tensors one behind the other. On the way it passes a place of the backend's own memory, where the backend
//! packs, unpacks and reduces.

use std::ops::Range;

use super::exchange::{blocks, part, share};
use super::{Backend, Frame, Trouble};
use crate::collectives::{Header, Patience, Refusal};
use crate::link::{LinkedCollective, LinkedTensor};
use crate::processes::{HEADER_BYTES, Transport, begin, header_of};
use crate::program::{CollectiveKind, DType, Reduction, Strides, Transfer};

/// Messages of a collective, one for each member. They keep their room from one to the next.
#[derive(Debug, Default)]
pub struct Letters {
    outgoing: Vec<Vec<u8>>,
    incoming: Vec<Vec<u8>>,
    /// How far each that came in is read.
    read: Vec<usize>,
}

impl Letters {
    /// For groups of so many.
    pub fn new(members: usize) -> Self {
        Self {
            outgoing: vec![Vec::new(); members],
            incoming: vec![Vec::new(); members],
            read: vec![0; members],
        }
    }

    /// The next bytes from a member; none where there are fewer.
    fn next(&mut self, member: usize, bytes: usize) -> Option<&[u8]> {
        let start = self.read[member];
        self.read[member] += bytes;
        self.incoming[member].get(start..start + bytes)
    }
}

impl<B: Backend> Frame<B> {
    pub(super) fn exchange_by_messages(
        &mut self,
        collective: &LinkedCollective,
        header: Header,
        transport: &dyn Transport,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        self.backend.expect(collective.number, self.seats[collective.seat].rank(own))?;
        for reader in (0..members).filter(|&reader| reader != own) {
            begin(&mut self.letters.outgoing[reader], header);
            for (index, tensor) in collective.tensors.iter().enumerate() {
                self.pack(collective, index, tensor, reader)?;
            }
        }
        self.post(collective, header, transport)?;
        for (index, tensor) in collective.tensors.iter().enumerate() {
            self.take_in(collective, index, tensor)?;
        }
        if let CollectiveKind::AllReduce(_) = collective.kind {
            self.share_out(collective, header, transport)?;
        }
        self.backend.conclude(collective.number)
    }

    /// This member's index in the group, and how many there are.
    fn who(&self, collective: &LinkedCollective) -> (usize, usize) {
        let seat = &self.seats[collective.seat];
        (seat.index(), seat.members())
    }

    /// Sends and receives one message with each member, and sees that all came for the same.
    fn post(
        &mut self,
        collective: &LinkedCollective,
        header: Header,
        transport: &dyn Transport,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        let seat = &self.seats[collective.seat];
        let patience = Patience { health: &self.health, spin: self.spin, timeout: self.timeout };
        let refused = |refusal: Refusal| Trouble::Refused { seat: collective.seat, refusal };
        let letters = &mut self.letters;
        let (outgoing, incoming) = (&mut letters.outgoing[..members], &mut letters.incoming[..members]);
        transport.exchange(seat.ranks(), outgoing, incoming, patience).map_err(refused)?;
        letters.read.fill(HEADER_BYTES);
        for member in (0..members).filter(|&member| member != own) {
            let theirs = header_of(&letters.incoming[member]);
            theirs.into_iter().for_each(|theirs| seat.note(member, theirs));
            if theirs != Some(header) {
                return Err(refused(Refusal::Disagrees(member)));
            }
        }
        Ok(())
    }

    /// Appends what a reader takes of this rank's source to its message.
    fn pack(
        &mut self,
        collective: &LinkedCollective,
        index: usize,
        tensor: &LinkedTensor,
        reader: usize,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        let source = self.seats[collective.seat].source(own, index);
        let Some(taken) = blocks(&collective.kind, reader, own) else { return Ok(()) };
        let width = tensor.dtype.bytes() as usize;
        if let CollectiveKind::AllReduce(_) = collective.kind {
            let range = share(tensor.transfer.block_elements() as usize, reader, members);
            let (source, bytes) = (source.wrapping_add(range.start * width), range.len() * width);
            return self.fetch(source, bytes, reader);
        }
        let (transfer, offset, _) = part(tensor, taken);
        let (source, bytes) = (source.wrapping_add(offset), transfer.block_elements() as usize * width);
        let packed = Transfer { target: side_by_side(&transfer), ..transfer };
        if is_side_by_side(&transfer, transfer.source) || bytes == 0 {
            return self.fetch(source, bytes, reader);
        }
        let staged = self.backend.stage(bytes)?;
        // SAFETY: validation checked that the block lies in the source, and the place has room for all of it.
        unsafe { self.backend.copy_block(&packed, tensor.dtype, source, staged)? };
        self.fetch(staged, bytes, reader)
    }

    /// Appends bytes of this rank's memory to a message.
    fn fetch(&mut self, source: *const u8, bytes: usize, reader: usize) -> Result<(), Trouble> {
        let message = &mut self.letters.outgoing[reader];
        let start = message.len();
        message.resize(start + bytes, 0);
        // SAFETY: the caller's bytes lie in this rank's memory.
        unsafe { self.backend.fetch(source, &mut message[start..]) }
    }

    /// Does with a tensor what its collective does, with the messages in the place of the others' sources.
    fn take_in(
        &mut self,
        collective: &LinkedCollective,
        index: usize,
        tensor: &LinkedTensor,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        let target = self.seats[collective.seat].target(own, index);
        self.clear_where_cut(&collective.kind, tensor, own, target)?;
        match &collective.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => {
                for member in 0..members {
                    match blocks(&collective.kind, own, member) {
                        Some(taken) if member == own => {
                            self.receive(collective.seat, index, tensor, own, taken)?;
                        }
                        Some(taken) => self.unpack(collective.seat, tensor, member, taken, target)?,
                        None => {}
                    }
                }
                Ok(())
            }
            CollectiveKind::ReduceScatter(reduction) => {
                let (transfer, offset, _) = part(tensor, (own, 0));
                let source = self.seats[collective.seat].source(own, index).wrapping_add(offset);
                self.reduce_staged(collective, (&transfer, tensor.dtype), *reduction, source, target)
            }
            CollectiveKind::AllReduce(reduction) => {
                let range = share(tensor.transfer.block_elements() as usize, own, members);
                let offset = range.start * tensor.dtype.bytes() as usize;
                let source = self.seats[collective.seat].source(own, index).wrapping_add(offset);
                let target = target.wrapping_add(offset);
                let transfer = Transfer::whole(range.len() as u64);
                self.reduce_staged(collective, (&transfer, tensor.dtype), *reduction, source, target)
            }
        }
    }

    /// Puts the next block of a member's message into this rank's target.
    fn unpack(
        &mut self,
        seat: usize,
        tensor: &LinkedTensor,
        member: usize,
        taken: (usize, usize),
        target: *mut u8,
    ) -> Result<(), Trouble> {
        let (transfer, _, offset) = part(tensor, taken);
        let target = target.wrapping_add(offset);
        let bytes = (transfer.block_elements() * tensor.dtype.bytes()) as usize;
        let packed = Transfer { source: side_by_side(&transfer), ..transfer };
        if is_side_by_side(&transfer, transfer.target) || bytes == 0 {
            return self.store(seat, member, bytes, target);
        }
        let staged = self.backend.stage(bytes)?;
        self.store(seat, member, bytes, staged)?;
        // SAFETY: validation checked that the block lies in the target, and the place holds all of it.
        unsafe { self.backend.copy_block(&packed, tensor.dtype, staged, target) }
    }

    /// Copies the next bytes of a member's message to this rank's memory.
    fn store(&mut self, seat: usize, member: usize, bytes: usize, target: *mut u8) -> Result<(), Trouble> {
        let short = Trouble::Refused { seat, refusal: Refusal::Disagrees(member) };
        let bytes = self.letters.next(member, bytes).ok_or(short)?;
        // SAFETY: the caller's room is in this rank's memory.
        unsafe { self.backend.store(bytes, target) }
    }

    /// Reduces this rank's block and those in the messages, in the order of the group, into its target.
    fn reduce_staged(
        &mut self,
        collective: &LinkedCollective,
        (transfer, dtype): (&Transfer, DType),
        reduction: Reduction,
        source: *const u8,
        target: *mut u8,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        let bytes = (transfer.block_elements() * dtype.bytes()) as usize;
        if bytes == 0 {
            return Ok(());
        }
        let room = bytes.next_multiple_of(ALIGNMENT);
        let staged = self.backend.stage(members * room)?;
        for member in 0..members {
            let place = staged.wrapping_add(member * room);
            if member == own {
                let packed = Transfer { target: side_by_side(transfer), ..*transfer };
                // SAFETY: validation checked that the block lies in the source, and the place has room for all of it.
                unsafe { self.backend.copy_block(&packed, dtype, source, place)? };
            } else {
                self.store(collective.seat, member, bytes, place)?;
            }
            self.sources[member] = place;
        }
        self.targets[0] = target;
        let packed = Transfer { source: side_by_side(transfer), ..*transfer };
        let all = 0..transfer.block_elements() as usize;
        self.reduce((&packed, dtype), reduction, all, members, 1)
    }

    /// Gives all members this rank's share of an all-reduce, and puts theirs into its target.
    fn share_out(
        &mut self,
        collective: &LinkedCollective,
        header: Header,
        transport: &dyn Transport,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        let places = |tensor: &LinkedTensor, member: usize| -> Range<usize> {
            let range = share(tensor.transfer.block_elements() as usize, member, members);
            let width = tensor.dtype.bytes() as usize;
            range.start * width..range.end * width
        };
        for reader in (0..members).filter(|&reader| reader != own) {
            begin(&mut self.letters.outgoing[reader], header);
            for (index, tensor) in collective.tensors.iter().enumerate() {
                let target = self.seats[collective.seat].target(own, index);
                let place = places(tensor, own);
                self.fetch(target.wrapping_add(place.start), place.len(), reader)?;
            }
        }
        self.post(collective, header, transport)?;
        for (index, tensor) in collective.tensors.iter().enumerate() {
            let target = self.seats[collective.seat].target(own, index);
            for member in (0..members).filter(|&member| member != own) {
                let place = places(tensor, member);
                self.store(collective.seat, member, place.len(), target.wrapping_add(place.start))?;
            }
        }
        Ok(())
    }
}

/// Blocks in a place of their own start at multiples of this many bytes.
const ALIGNMENT: usize = 256;

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
