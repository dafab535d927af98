//! The ranks' memory, wherever it is, as the session's owner reads and writes it between steps.

use crate::cpu::memory::{RankMemory, Region};
use crate::device::DeviceMemories;
use crate::error::Result;
use crate::program::Space;

/// A piece of one rank's space.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The space.
    pub space: Space,
    /// Its first byte in the space.
    pub offset: u64,
    /// Its length.
    pub bytes: usize,
}

/// All memory of all ranks that are in this process. Only the owner of the session touches it while no step runs.
pub enum Memories {
    /// In this process.
    Host(Vec<RankMemory>),
    /// On a device.
    Device(DeviceMemories),
}

impl Default for Memories {
    /// That of no ranks.
    fn default() -> Self {
        Self::Host(Vec::new())
    }
}

impl Memories {
    /// Lets `fill` write all of a piece, the same on every rank here, in the order of the ranks.
    ///
    /// # Errors
    /// What a device says.
    pub fn write(&mut self, piece: Piece, fill: impl FnOnce(Vec<&mut [u8]>)) -> Result<()> {
        match self {
            Self::Host(ranks) => {
                let shard = |memory| {
                    // SAFETY: no step is running, since this borrows the session's memory mutably.
                    let space = unsafe { region_mut(memory, piece.space).contents_mut() };
                    &mut space[piece.offset as usize..][..piece.bytes]
                };
                fill(ranks.iter_mut().map(shard).collect());
                Ok(())
            }
            Self::Device(memories) => {
                let mut shards = vec![vec![0; piece.bytes]; memories.ranks().len()];
                fill(shards.iter_mut().map(Vec::as_mut_slice).collect());
                for (rank, shard) in shards.iter().enumerate() {
                    memories.write(rank, piece.space, piece.offset, shard)?;
                }
                memories.settle()
            }
        }
    }

    /// Shows `read` a piece of a rank, counted from the first one here.
    ///
    /// # Errors
    /// What a device says.
    pub fn read(&self, rank: usize, piece: Piece, read: impl FnOnce(&[u8])) -> Result<()> {
        match self {
            Self::Host(ranks) => {
                let memory = &ranks[rank];
                let region = match piece.space {
                    Space::State => &memory.state,
                    Space::Arena => &memory.arena,
                    Space::Input => &memory.input,
                };
                // SAFETY: a step runs only while the session is borrowed mutably, so nobody writes.
                let space = unsafe { region.contents() };
                read(&space[piece.offset as usize..][..piece.bytes]);
                Ok(())
            }
            Self::Device(memories) => {
                let mut bytes = vec![0; piece.bytes];
                memories.read(rank, piece.space, piece.offset, &mut bytes)?;
                read(&bytes);
                Ok(())
            }
        }
    }
}

fn region_mut(memory: &mut RankMemory, space: Space) -> &mut Region {
    match space {
        Space::State => &mut memory.state,
        Space::Arena => &mut memory.arena,
        Space::Input => &mut memory.input,
    }
}
