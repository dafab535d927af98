//! The 64-bit descriptors by which `wgmma` finds a factor in shared memory: where each chunk of 16 bytes, eight elements of 16 bits, lies.
//!
//! # Fields
//!
//! Bits 0-13 are the start address, 16-29 the leading and 32-45 the stride offset, each in units of 16 bytes; 49-51 the base offset, which must
//! be zero here, so that patterns begin at multiples of their length; 62-63 the layout: 0 none, 1 swizzled over 128, 2 over 64, 3 over 32 bytes.
//!
//! # Where a chunk lies
//!
//! A factor is lines (rows of the left, columns of the right) by 16 terms. The unit is a core matrix, eight rows of one chunk. W rows of chunks
//! side by side make a row of the layout: W is 1, 8, 4, 2 for layouts 0, 1, 2, 3. So a core matrix's rows are 16 * W bytes apart.
//!
//! *Terms along memory.* A chunk is a line's eight terms; a line has two. Eight lines are a core matrix, eight lines further is one stride offset.
//! The second chunk is the next in the row; without a swizzle, where rows have one chunk, it is the leading offset away.
//!
//! ```text
//! start + line % 8 * 16 W + line / 8 * stride + half * (W == 1 ? leading : 16)
//! ```
//!
//! *Lines along memory.* A chunk is a term's eight lines. Eight terms are a core matrix; W chunks of lines lie side by side. W chunks of lines further is one
//! leading offset, eight terms further one stride offset. Without a swizzle the two change places.
//!
//! ```text
//! start + chunk % W * 16 + chunk / W * leading + term % 8 * 16 W + term / 8 * stride
//! start + chunk * stride + term % 8 * 16 + term / 8 * leading                            (W == 1)
//! ```
//!
//! *Swizzle.* The chunk's place in its row of 128, 64 or 32 bytes is combined by exclusive or with the bits of the address from bit 7 on: in bytes, bits 4-6
//! with 7-9, 4-5 with 7-8, 4 with 7. This acts on the address in shared memory, start included. So a start inside a row, as for the
//! next 16 terms of rows that have more, gives the same places as the whole row does.

use crate::code::Major;

/// A descriptor, read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    start: u64,
    leading: u64,
    stride: u64,
    /// Chunks of a row: W above.
    width: u64,
}

impl Descriptor {
    pub fn of(bits: u64) -> Result<Descriptor, String> {
        const UNUSED: u64 = 3 << 14 | 3 << 30 | 7 << 46 | 0x3ff << 52;
        if bits & UNUSED != 0 {
            return Err(format!("a matrix descriptor {bits:#018x} with bits set that mean nothing"));
        }
        if bits >> 49 & 7 != 0 {
            return Err(format!(
                "a matrix descriptor {bits:#018x} with a base offset, which is not supported"
            ));
        }
        let bytes = |shift: u32| (bits >> shift & 0x3fff) << 4;
        let width = [1, 8, 4, 2][(bits >> 62) as usize];
        Ok(Descriptor { start: bytes(0), leading: bytes(16), stride: bytes(32), width })
    }

    /// The addresses of the chunks that hold 16 terms of lines from `first` on, both multiples of eight. With terms along memory two for
    /// each line, with lines along memory 16, one a term, for each eight lines.
    pub fn chunks(&self, major: Major, first: usize, lines: usize) -> impl Iterator<Item = u64> {
        let this = *self;
        let each = match major {
            Major::Terms => 2,
            Major::Lines => 16,
        };
        let count = lines * 2;
        (0..count).map(move |index| {
            let (outer, inner) = ((index / each) as u64, (index % each) as u64);
            match major {
                Major::Terms => this.chunk_of_line(first as u64 + outer, inner),
                Major::Lines => this.chunk_of_term(first as u64 / 8 + outer, inner),
            }
        })
    }

    fn chunk_of_line(&self, line: u64, half: u64) -> u64 {
        let step = if self.width == 1 { self.leading } else { 16 };
        self.swizzled(self.start + line % 8 * 16 * self.width + line / 8 * self.stride + half * step)
    }

    fn chunk_of_term(&self, chunk: u64, term: u64) -> u64 {
        let width = self.width;
        let (beside, below) =
            if width == 1 { (self.stride, self.leading) } else { (self.leading, self.stride) };
        let of_lines = chunk % width * 16 + chunk / width * beside;
        self.swizzled(self.start + of_lines + term % 8 * 16 * width + term / 8 * below)
    }

    fn swizzled(&self, address: u64) -> u64 {
        address ^ (address >> 7 & (self.width - 1)) << 4
    }
}
