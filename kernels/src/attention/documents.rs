//! Which positions of a block of queries and a block of keys belong to one document, where sequences are packed.
//!
//! From numbers of documents to what a tile of scores hides, and whether any of it is seen. Reads no queries and no keys.

use super::{
    layout::{KEYS, QUERIES},
    scores::Tile,
};
use crate::signature::{Documents, Head, HeadStrides};

/// Where the numbers lie, of queries and of keys.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub strides: Documents,
    pub q: *const u32,
    pub k: *const u32,
}

/// The documents of a block of queries, and of the block of keys that they meet.
pub(super) struct BlockDocuments {
    numbers: Numbers,
    head: Head,
    queries: Block<QUERIES>,
    keys: Block<KEYS>,
}

/// What a block of queries sees of a block of keys.
pub(super) enum Overlap {
    /// Nothing: they have no document in common.
    None,
    /// All of it is of one document.
    Whole,
    /// Some of it.
    Some,
}

/// The documents of at most `SIZE` positions that follow each other, and the least and the greatest.
#[derive(Clone, Copy)]
struct Block<const SIZE: usize> {
    numbers: [u32; SIZE],
    least: u32,
    greatest: u32,
}

impl BlockDocuments {
    /// Those of `count` queries of a head from `first` on.
    ///
    /// # Safety
    /// The numbers must be readable wherever their strides reach.
    pub(super) unsafe fn of(numbers: Numbers, head: Head, first: usize, count: usize) -> BlockDocuments {
        // SAFETY: the caller's promise.
        let queries = unsafe { Block::read(numbers.q, &numbers.strides.q, head, first, count) };
        BlockDocuments { numbers, head, queries, keys: Block::EMPTY }
    }

    /// Meets `count` keys from `first` on: what the queries see of them.
    ///
    /// # Safety
    /// As [`BlockDocuments::of`].
    pub(super) unsafe fn meet(&mut self, first: usize, count: usize) -> Overlap {
        let Numbers { strides, k, .. } = &self.numbers;
        // SAFETY: the caller's promise.
        self.keys = unsafe { Block::read(*k, &strides.k, self.head, first, count) };
        let (queries, keys) = (&self.queries, &self.keys);
        if keys.greatest < queries.least || queries.greatest < keys.least {
            Overlap::None
        } else if keys.least == queries.greatest && queries.least == keys.greatest {
            Overlap::Whole
        } else {
            Overlap::Some
        }
    }

    /// Sets what lanes do not see of a tile of the keys that they met last to `value`.
    ///
    /// # Safety
    /// The tile must be valid, and of these queries and keys.
    pub(super) unsafe fn hide(&self, tile: &Tile, value: f32) {
        for (row, of_key) in self.keys.numbers.iter().enumerate().take(tile.keys) {
            // SAFETY: the row is in use.
            let lanes = unsafe { tile.row(row) };
            for (lane, document) in lanes.iter_mut().zip(&self.queries.numbers) {
                *lane = if document == of_key { *lane } else { value };
            }
        }
    }
}

impl<const SIZE: usize> Block<SIZE> {
    const EMPTY: Self = Block { numbers: [0; SIZE], least: u32::MAX, greatest: 0 };

    /// # Safety
    /// The numbers must be readable wherever their strides reach.
    unsafe fn read(
        data: *const u32,
        strides: &HeadStrides,
        head: Head,
        first: usize,
        count: usize,
    ) -> Block<SIZE> {
        let mut block = Self::EMPTY;
        for (index, number) in block.numbers.iter_mut().take(count).enumerate() {
            // SAFETY: the caller's promise.
            *number = unsafe { *data.offset(strides.offset(head, first + index)) };
            block.least = block.least.min(*number);
            block.greatest = block.greatest.max(*number);
        }
        block
    }
}
