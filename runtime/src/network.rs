//! What moves bytes between the memories of devices that ranks in several processes have, without passing through the host: its words alone.
//!
//! [`crate::nccl`] is one; the tests have another, between emulated devices. What is moved where is `executor::messages`'s to say.

use crate::error::RuntimeError;
use dtlc_emulator::{DevicePointer, Stream};

/// Which way the bytes of a message go. Members are counted in the order of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// From here to a member.
    To(usize),
    /// From a member to here.
    From(usize),
    /// From this member to all others; each names the place in its own memory.
    OfAll(usize),
}

/// Bytes to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where from and to.
    pub route: Route,
    /// Where they lie in this rank's memory, or are to lie.
    pub at: DevicePointer,
    /// How many; not 0.
    pub bytes: usize,
}

/// Messages that the members of a group exchange at once.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The number of the collective in the program.
    pub collective: u64,
    /// Which of the rank's groups, in the order in which the program's collectives first use them.
    pub group: usize,
    /// The group's ranks.
    pub ranks: &'a [usize],
    /// What goes from one member to another stands in the same order with both; and with all, what goes to all.
    pub messages: &'a [Message],
    /// What they come behind, and what comes behind them.
    pub stream: Stream,
    /// Whether the run has failed elsewhere, so that nothing is to be waited for any more.
    pub has_failed: &'a dyn Fn() -> bool,
}

/// Why messages came to nothing: with the rank, the collective and its place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Something went wrong here, or did not end in time.
    Here(RuntimeError),
    /// Another member is gone, or so it looks from here: what its process says of it is worth more.
    Elsewhere(RuntimeError),
}

impl From<Broken> for RuntimeError {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Here(error) | Broken::Elsewhere(error) => error,
        }
    }
}

/// Moves bytes between the devices of several processes.
pub trait Network: Send + Sync {
    /// Starts messages; all members do. It may wait on the host until they have.
    ///
    /// # Errors
    /// What went wrong.
    fn exchange(&self, call: &Call<'_>) -> Result<(), Broken>;

    /// Sees whether all that was started goes well; asked from time to time, on another thread than the rank's.
    ///
    /// # Errors
    /// What went wrong.
    fn look(&self) -> Result<(), Broken>;

    /// Ends all that is under way, here and for the other members.
    fn abort(&self);
}
