//! Running a kernel: blocks one after another, the warps of a block in turn, 32 lanes of a warp at once.
//!
//! The order is fixed, so a launch gives the same bits each time, or the same fault.

mod access;
mod atomic;
mod barrier;
mod block;
mod collective;
mod compare;
mod convert;
mod copies;
mod descriptor;
mod dispatch;
mod float;
mod group;
mod half;
mod integer;
mod lanes;
mod matrix;
mod phases;
mod span;
mod step;
mod warp;

pub(crate) use block::{Launch, launch};
pub use lanes::Isa;

use crate::fault::FaultKind;

/// A fault with the lane that it happened on.
#[derive(Debug)]
pub(crate) struct Thrown {
    lane: u32,
    kind: FaultKind,
}

type Ran<T> = Result<T, Box<Thrown>>;

/// A fault of the first lane of a mask.
#[cold]
fn throw<T>(mask: u32, kind: impl Into<Box<FaultKind>>) -> Ran<T> {
    Err(Box::new(Thrown { lane: mask.trailing_zeros().min(31), kind: *kind.into() }))
}

/// The lanes of a mask, the lowest first.
fn each(mask: u32) -> impl Iterator<Item = usize> + Clone {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}
