//! Copies and fills within a rank, divided over its threads.

use super::link::LinkedCopy;
use super::transfer::copy_block;
use super::{Cpu, Shared, parts_of};
use crate::executor::{Point, Trouble};

/// Fewer bytes than this are not worth a thread of their own.
const GRAIN_BYTES: usize = 64 * 1024;

impl Cpu {
    pub(super) fn copy(&self, copy: &LinkedCopy, point: &Point) -> Result<(), Trouble> {
        let ends =
            Shared((self.address(&copy.source, point).cast_const(), self.address(&copy.target, point)));
        let bytes = copy.rows.block_elements() as usize;
        let parts = parts_of(bytes as u64, GRAIN_BYTES as u64, self.team.threads());
        self.team.run(parts, &|part, _| {
            let (source, target) = ends.get();
            let range = bytes * part / parts..bytes * (part + 1) / parts;
            // SAFETY: validation checked that every row lies in its buffer; the compiler says that
            // they don't overlap.
            unsafe { copy_block(&copy.rows, 1, range, source, target) };
        })?;
        Ok(())
    }

    /// Fills `bytes` bytes with a pattern of 1, 2 or 4 bytes over and over.
    pub(super) fn fill(&self, target: *mut u8, bytes: usize, pattern: &[u8]) -> Result<(), Trouble> {
        let target = Shared(target);
        let elements = bytes / pattern.len();
        let parts = parts_of(elements as u64, GRAIN_BYTES as u64, self.team.threads());
        self.team.run(parts, &|part, _| {
            let first = elements * part / parts;
            let count = elements * (part + 1) / parts - first;
            // SAFETY: validation checked that the buffer holds the elements.
            let bytes = unsafe {
                let start = target.get().add(first * pattern.len());
                std::slice::from_raw_parts_mut(start, count * pattern.len())
            };
            fill_slice(bytes, pattern);
        })?;
        Ok(())
    }
}

fn fill_slice(bytes: &mut [u8], pattern: &[u8]) {
    match pattern {
        [first, rest @ ..] if rest.iter().all(|byte| byte == first) => bytes.fill(*first),
        _ => bytes.chunks_exact_mut(pattern.len()).for_each(|element| element.copy_from_slice(pattern)),
    }
}
