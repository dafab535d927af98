//! What is legal at each stage. A program that breaks a rule is the compiler's fault, so each failure is
//! a [`Fault`](crate::Fault) that shows the instruction inside the IR text.
//!
//! Every stage's check includes the structural one: definitions before uses, types, and the main
//! region's signature.

mod collective;
mod logical;
mod partial;
mod placement;
mod scheduled;
mod sharded;
mod structure;

pub use logical::{joint, logical};
pub use scheduled::scheduled;
pub use sharded::sharded;
pub use structure::{instructions, structure};

use crate::program::Program;
use std::marker::PhantomData;
use std::ops::Deref;

/// Marks the logical stage: the model's mathematics on one device.
#[derive(Clone, Copy, Debug)]
pub struct Logical;

/// Marks the joint stage: forward, backward and update on one device.
#[derive(Clone, Copy, Debug)]
pub struct Joint;

/// Marks the sharded stage: placements on every value, reshards where they change.
#[derive(Clone, Copy, Debug)]
pub struct Sharded;

/// Marks the scheduled stage: each rank's instructions in order, collectives for reshards.
#[derive(Clone, Copy, Debug)]
pub struct Scheduled;

/// A program that was found legal at stage `S`. Only the functions of this module make one.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'a, S> {
    program: &'a Program,
    stage: PhantomData<S>,
}

impl<'a, S> Verified<'a, S> {
    fn new(program: &'a Program) -> Verified<'a, S> {
        Verified { program, stage: PhantomData }
    }

    /// The program.
    pub fn program(&self) -> &'a Program {
        self.program
    }
}

impl<S> Deref for Verified<'_, S> {
    type Target = Program;

    fn deref(&self) -> &Program {
        self.program
    }
}
