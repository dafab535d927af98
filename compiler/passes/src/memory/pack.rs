//! Offsets for buffers with known lifetimes: the largest first, each at the lowest offset at which it meets
//! no other that is alive at the same time.

use super::ALIGNMENT;

/// A buffer to be placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Size in bytes.
    pub(super) bytes: u64,
    /// First position at which it is alive.
    pub(super) first: usize,
    /// Last position at which it is alive.
    pub(super) last: usize,
}

/// The offset of each item, and the size of all together.
pub(super) fn pack(items: &[Item]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&item| (std::cmp::Reverse(items[item].bytes), item));
    let mut offsets = vec![0u64; items.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for item in order {
        let size = aligned(items[item].bytes);
        let overlaps = |&&other: &&usize| {
            items[other].first <= items[item].last && items[item].first <= items[other].last
        };
        let mut busy: Vec<(u64, u64)> = placed
            .iter()
            .filter(overlaps)
            .map(|&other| (offsets[other], aligned(items[other].bytes)))
            .collect();
        busy.sort_unstable();
        let mut offset = 0;
        for (start, length) in busy {
            if start >= offset + size {
                break;
            }
            offset = offset.max(start + length);
        }
        offsets[item] = offset;
        total = total.max(offset + size);
        placed.push(item);
    }
    (offsets, total)
}

/// Rounded up to where the next buffer may start.
pub(super) fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::{Item, pack};

    #[test]
    fn buffers_alive_at_once_never_overlap() {
        let mut seed = 7u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % bound
        };
        for _ in 0..200 {
            let items: Vec<Item> = (0..30)
                .map(|_| {
                    let first = next(20) as usize;
                    Item { bytes: 1 + next(1000), first, last: first + next(6) as usize }
                })
                .collect();
            let (offsets, total) = pack(&items);
            for (a, first) in items.iter().enumerate() {
                assert!(offsets[a] + first.bytes <= total);
                for (b, second) in items.iter().enumerate().skip(a + 1) {
                    let at_once = first.first <= second.last && second.first <= first.last;
                    let apart =
                        offsets[a] + first.bytes <= offsets[b] || offsets[b] + second.bytes <= offsets[a];
                    assert!(!at_once || apart, "{first:?} and {second:?}");
                }
            }
        }
    }

    #[test]
    fn buffers_that_never_meet_share_memory() {
        let item = |first, last| Item { bytes: 640, first, last };
        assert_eq!(pack(&[item(0, 1), item(2, 3), item(4, 5)]).1, 640);
    }
}
