//! Which blocks of a collective travel between ranks whose memories are apart, and where each lies packed. Moves none of them.

use super::exchange::{blocks, part, share};
use crate::link::{LinkedCollective, LinkedTensor};
use crate::network::Route;
use crate::program::{CollectiveKind, Strides, Transfer};

/// A block that travels, or this rank's own of a reduction, which only has to be packed.
#[derive(Clone, Copy, Debug)]
pub struct Parcel {
    /// Where it goes; none for a block that stays.
    pub route: Option<Route>,
    /// Its length.
    pub bytes: usize,
    /// Which of the collective's tensors it is of.
    pub tensor: usize,
    /// The block in source and target.
    pub transfer: Transfer,
    /// Where the block is taken from, or put.
    pub end: End,
    /// Bytes from the start of that buffer to the block.
    pub offset: usize,
    /// Where it lies packed, in bytes from the start of the place for parcels; none where it does in the buffer itself.
    pub staged: Option<usize>,
}

/// Which of a tensor's buffers a block is taken from, or put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// What this rank gives.
    Source,
    /// What it receives into.
    Target,
    /// Neither: what comes in is only reduced.
    Room,
}

/// The parcels of a collective. They keep their room from one to the next.
#[derive(Debug, Default)]
pub struct Parcels {
    /// Those between two members stand in the same order with both, and those for all with all.
    pub list: Vec<Parcel>,
    /// Bytes of the place for those that need one.
    room: usize,
}

impl Parcels {
    /// Lists what member `own` of so many sends and takes in; returns the bytes of a place for parcels that need one.
    pub fn lay_out(&mut self, collective: &LinkedCollective, own: usize, members: usize) -> usize {
        self.list.clear();
        self.room = 0;
        let kind = &collective.kind;
        for tensor in collective.tensors.iter().enumerate() {
            for member in 0..members {
                let (to, from) = (Some(Route::To(member)), Some(Route::From(member)));
                let mut add = |route, end, pair| self.add(kind, route, end, tensor, pair, members);
                match kind {
                    CollectiveKind::AllGather if members == 1 => {}
                    CollectiveKind::AllGather => {
                        let end = if member == own { End::Source } else { End::Target };
                        add(Some(Route::OfAll(member)), end, [own, member]);
                    }
                    CollectiveKind::AllToAll | CollectiveKind::Permute(_) if member == own => {}
                    CollectiveKind::AllToAll | CollectiveKind::Permute(_) => {
                        add(to, End::Source, [member, own]);
                        add(from, End::Target, [own, member]);
                    }
                    CollectiveKind::ReduceScatter(_) | CollectiveKind::AllReduce(_) if member == own => {
                        add(None, End::Source, [own, own]);
                    }
                    CollectiveKind::ReduceScatter(_) | CollectiveKind::AllReduce(_) => {
                        add(to, End::Source, [member, own]);
                        add(from, End::Room, [own, member]);
                    }
                }
            }
        }
        self.room
    }

    /// Lists each member's share of an all-reduce's results, which goes to all from where it lies.
    pub fn lay_out_shares(&mut self, collective: &LinkedCollective, members: usize) {
        self.list.clear();
        for tensor in collective.tensors.iter().enumerate() {
            for member in (0..members).filter(|_| members > 1) {
                let route = Some(Route::OfAll(member));
                self.add(&collective.kind, route, End::Target, tensor, [member; 2], members);
            }
        }
    }

    /// Adds what a reader takes of a member's source, if there is anything.
    fn add(
        &mut self,
        kind: &CollectiveKind,
        route: Option<Route>,
        end: End,
        (tensor, linked): (usize, &LinkedTensor),
        pair: [usize; 2],
        members: usize,
    ) {
        let Some((transfer, source, target)) = block(kind, linked, pair, members) else { return };
        let bytes = (transfer.block_elements() * linked.dtype.bytes()) as usize;
        if bytes == 0 {
            return;
        }
        let (offset, is_packed) = match end {
            End::Source => (source, is_side_by_side(&transfer, transfer.source)),
            End::Target => (target, is_side_by_side(&transfer, transfer.target)),
            End::Room => (0, false),
        };
        let staged = (!is_packed).then_some(self.room);
        self.room += staged.map_or(0, |_| bytes.next_multiple_of(ALIGNMENT));
        self.list.push(Parcel { route, bytes, tensor, transfer, end, offset, staged });
    }
}

/// Blocks in a place of their own start at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// What a reader takes of a member's source, and the bytes to where it begins in that and in the reader's target. Of an all-reduce
/// it is the share that the reader reduces.
pub fn block(
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
pub fn side_by_side(transfer: &Transfer) -> Strides {
    let (middles, inners) = (transfer.middle.block, transfer.inner.block);
    Strides { outer: middles * inners, middle: inners, block: 0 }
}

/// Whether these steps of a block are those.
fn is_side_by_side(transfer: &Transfer, steps: Strides) -> bool {
    let packed = side_by_side(transfer);
    (transfer.outer <= 1 || steps.outer == packed.outer)
        && (transfer.middle.block <= 1 || steps.middle == packed.middle)
}
