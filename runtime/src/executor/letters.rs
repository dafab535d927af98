//! Messages of a collective on their way through the host's memory: filled, sent, taken in and checked.

use super::parcels::Parcel;
use super::{Backend, Frame, Trouble};
use crate::collectives::{Header, Patience, Refusal};
use crate::link::LinkedCollective;
use crate::network::Route;
use crate::processes::{HEADER_BYTES, Transport, begin, header_of};

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
    /// Exchanges parcels, with one message to and from each member.
    pub(super) fn post(
        &mut self,
        collective: &LinkedCollective,
        header: Header,
        parcels: &[Parcel],
        transport: &dyn Transport,
    ) -> Result<(), Trouble> {
        let (own, members) = self.who(collective);
        let others = || (0..members).filter(|&member| member != own);
        others().for_each(|reader| begin(&mut self.letters.outgoing[reader], header));
        for parcel in parcels {
            let at = self.place(collective, parcel);
            match parcel.route {
                Some(Route::To(reader)) => self.fetch(at, parcel.bytes, reader)?,
                Some(Route::OfAll(root)) if root == own => {
                    others().try_for_each(|reader| self.fetch(at, parcel.bytes, reader))?;
                }
                Some(Route::From(_) | Route::OfAll(_)) | None => {}
            }
        }
        self.send(collective, header, transport)?;
        for parcel in parcels {
            let at = self.place(collective, parcel);
            match parcel.route {
                Some(Route::From(member) | Route::OfAll(member)) if member != own => {
                    self.store(collective.seat, member, parcel.bytes, at)?;
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Sends and receives one message with each member, and sees that all came for the same.
    fn send(
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

    /// Appends bytes of this rank's memory to a message.
    fn fetch(&mut self, source: *const u8, bytes: usize, reader: usize) -> Result<(), Trouble> {
        let message = &mut self.letters.outgoing[reader];
        let start = message.len();
        message.resize(start + bytes, 0);
        // SAFETY: a parcel lies in this rank's memory.
        unsafe { self.backend.fetch(source, &mut message[start..]) }
    }

    /// Copies the next bytes of a member's message to this rank's memory.
    fn store(&mut self, seat: usize, member: usize, bytes: usize, target: *mut u8) -> Result<(), Trouble> {
        let short = Trouble::Refused { seat, refusal: Refusal::Disagrees(member) };
        let bytes = self.letters.next(member, bytes).ok_or(short)?;
        // SAFETY: a parcel lies in this rank's memory.
        unsafe { self.backend.store(bytes, target) }
    }
}
