//! What products of groups of warps and bulk copies ask of shared memory: who wrote a byte and whether a fence published it, and which bytes
//! products under way read. Kept only where a program has either.
//!
//! `fence.proxy.async` publishes what all lanes of its warp wrote before. One that only a part of a warp runs publishes nothing here, nor
//! does one by a warp that reads what another wrote.

use super::Fault;
use crate::fault::FaultKind;

/// Bytes that a product reads at once.
const CHUNK: usize = 16;

#[derive(Debug)]
pub(crate) struct ProductShadow {
    /// For each byte the warp that wrote it last, and how many fences it had run: `fences << 5 | warp`.
    writers: Vec<u32>,
    /// The fences of each warp, one more.
    fences: [u32; 32],
    /// For each chunk the products that read it.
    readers: Vec<u16>,
    warp: u32,
}

impl ProductShadow {
    pub fn new(bytes: usize) -> ProductShadow {
        ProductShadow {
            writers: vec![0; bytes],
            fences: [1; 32],
            readers: vec![0; bytes.div_ceil(CHUNK)],
            warp: 0,
        }
    }

    pub fn clear(&mut self) {
        self.writers.fill(0);
        self.readers.fill(0);
        self.fences = [1; 32];
    }

    /// What comes is done by this warp.
    pub fn begin(&mut self, warp: u32) {
        self.warp = warp % 32;
    }

    pub fn publish(&mut self, warp: u32) {
        self.fences[warp as usize % 32] += 1;
    }

    /// A thread writes.
    pub fn write(&mut self, at: usize, bytes: usize, address: u64) -> Result<(), Fault> {
        if bytes > 0 && self.readers[at / CHUNK..=(at + bytes - 1) / CHUNK].iter().any(|count| *count > 0) {
            return Err(Box::new(FaultKind::ReadUnderWay { address }));
        }
        self.writers[at..at + bytes].fill(self.fences[self.warp as usize] << 5 | self.warp);
        Ok(())
    }

    /// Refuses bytes that a thread wrote with no fence behind.
    fn published(&self, at: usize, bytes: usize, address: u64) -> Result<(), Fault> {
        let open = |writer: &&u32| **writer != 0 && **writer >> 5 == self.fences[(**writer & 31) as usize];
        match self.writers[at..at + bytes].iter().find(open) {
            Some(writer) => Err(Box::new(FaultKind::NotPublished { address, writer: writer & 31 })),
            None => Ok(()),
        }
    }

    /// A bulk copy is to write.
    pub fn begin_copy(&mut self, at: usize, bytes: usize, address: u64) -> Result<(), Fault> {
        self.published(at, bytes, address)?;
        self.write(at, bytes, address)?;
        // It is in no need of a fence.
        self.writers[at..at + bytes].fill(0);
        Ok(())
    }

    /// A product begins to read a chunk.
    pub fn begin_read(&mut self, at: usize, address: u64) -> Result<(), Fault> {
        self.published(at, CHUNK, address)?;
        self.readers[at / CHUNK] += 1;
        Ok(())
    }

    pub fn end_read(&mut self, at: usize) {
        self.readers[at / CHUNK] = self.readers[at / CHUNK].saturating_sub(1);
    }
}
