//! A set of bytes, one bit each.

#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// A set of this many bytes, all of them out.
    pub fn none(bytes: usize) -> Bits {
        Bits { words: vec![0; bytes.div_ceil(64)] }
    }

    /// Calls with the word and the mask of each piece of a range.
    #[inline(always)]
    fn pieces(start: usize, len: usize, mut visit: impl FnMut(usize, u64) -> bool) -> bool {
        let (mut at, end) = (start, start + len);
        while at < end {
            let bit = at % 64;
            let count = (64 - bit).min(end - at);
            let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << bit };
            if !visit(at / 64, mask) {
                return false;
            }
            at += count;
        }
        true
    }

    /// Whether all bytes of the range are in.
    #[inline(always)]
    pub fn all(&self, start: usize, len: usize) -> bool {
        Bits::pieces(start, len, |word, mask| self.words[word] & mask == mask)
    }

    /// Whether no byte of the range is in.
    #[inline(always)]
    pub fn none_of(&self, start: usize, len: usize) -> bool {
        Bits::pieces(start, len, |word, mask| self.words[word] & mask == 0)
    }

    /// Puts the range in.
    #[inline(always)]
    pub fn insert(&mut self, start: usize, len: usize) {
        Bits::pieces(start, len, |word, mask| {
            self.words[word] |= mask;
            true
        });
    }

    /// Takes the range out.
    #[inline(always)]
    pub fn remove(&mut self, start: usize, len: usize) {
        Bits::pieces(start, len, |word, mask| {
            self.words[word] &= !mask;
            true
        });
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    pub fn contains(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::Bits;

    #[test]
    fn ranges_agree_with_a_plain_set() {
        let mut bits = Bits::none(200);
        let mut plain = [false; 200];
        for (round, (start, len)) in
            [(3, 5), (60, 9), (0, 130), (64, 64), (190, 10), (7, 0)].iter().enumerate()
        {
            if round % 2 == 0 {
                bits.insert(*start, *len)
            } else {
                bits.remove(*start, *len)
            }
            plain[*start..start + len].fill(round % 2 == 0);
            for from in 0..200 {
                for count in [0, 1, 4, 16, 70] {
                    if from + count <= 200 {
                        let range = &plain[from..from + count];
                        assert_eq!(bits.all(from, count), range.iter().all(|bit| *bit), "{from} {count}");
                        assert_eq!(bits.none_of(from, count), range.iter().all(|bit| !bit), "{from} {count}");
                    }
                }
            }
        }
    }
}
