//! Memory as a GPU has it, with a shadow that knows which bytes were written, and who else touched them.

mod barriers;
mod bits;
mod global;
mod history;
mod local;
mod mbarrier;
mod products;
mod race;
mod shared;

pub(crate) use global::{GlobalMemory, Rule};
pub use history::StreamCheck;
pub(crate) use history::{Author, Unordered};
pub(crate) use local::LocalMemory;
pub(crate) use race::Clock;
pub use shared::RaceCheck;
pub(crate) use shared::SharedMemory;

/// A fault; boxed, since what is right returns often and what is wrong once.
pub(crate) type Fault = Box<crate::fault::FaultKind>;

/// What memory holds before anything is written: as floats of any width not a number, as an integer minus one.
pub(crate) const POISON: u8 = 0xff;
