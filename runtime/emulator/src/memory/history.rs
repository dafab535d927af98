//! Which stream has touched which bytes of device memory, and whether something orders the accesses.
//!
//! A piece of work (a launch, a copy, a fill) marks the bytes that it reads and writes; when it is done they are compared with what other
//! streams did there. Exact to the byte. What orders streams is told from outside, as clocks; see `device::clocks`.

use super::global::GlobalMemory;

/// Bytes of memory that are looked at together.
const PAGE: usize = 4096;
/// Words of a page's set of bytes.
const WORDS: usize = PAGE / 64;

type Set = [u64; WORDS];
/// Bytes that are read, and bytes that are written.
pub(super) type Sets = (Box<Set>, Box<Set>);

/// Whether streams are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCheck {
    /// Every access is compared with those of other streams.
    On,
    /// None is.
    Off,
}

/// Who does a piece of work, and what it comes behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author<'a> {
    /// The stream's number.
    pub stream: usize,
    /// The stream's own time of this work.
    pub time: u64,
    /// What to call the work; see [`super::GlobalMemory::settle`].
    pub label: usize,
    /// For each stream, up to which time its work is done before this.
    pub clock: &'a [u64],
}

/// Two accesses that nothing orders: the later is the author's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unordered {
    pub address: u64,
    pub wrote: bool,
    pub other_stream: usize,
    pub other_label: usize,
    pub other_wrote: bool,
}

/// What the work at hand has touched of a page.
#[derive(Debug)]
pub(super) struct Touched {
    allocation: usize,
    page: usize,
    reads: Box<Set>,
    writes: Box<Set>,
}

/// What a piece of work has touched of a page and no later one that comes behind it.
#[derive(Debug)]
struct Past {
    stream: usize,
    time: u64,
    label: usize,
    reads: Option<Box<Set>>,
    writes: Option<Box<Set>>,
}

/// An allocation's past.
#[derive(Debug, Default)]
pub(super) struct History {
    /// For each page, 1 and the place among the touched pages, or 0.
    slots: Vec<u32>,
    pages: Vec<Vec<Past>>,
}

impl History {
    pub fn new(bytes: usize, check: StreamCheck) -> History {
        let pages = if check == StreamCheck::On { bytes.div_ceil(PAGE) } else { 0 };
        History { slots: vec![0; pages], pages: (0..pages).map(|_| Vec::new()).collect() }
    }
}

/// How bytes are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read,
    Write,
}

impl GlobalMemory {
    /// Marks bytes of an allocation as touched by the work at hand.
    #[inline(always)]
    pub(super) fn touch(&mut self, allocation: usize, offset: usize, bytes: usize, touch: Touch) {
        if self.check == StreamCheck::Off {
            return;
        }
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let page = at / PAGE;
            let stop = end.min((page + 1) * PAGE);
            let slot = match self.allocations[allocation].history.slots[page] {
                0 => self.first_touch(allocation, page),
                slot => slot as usize - 1,
            };
            let touched = &mut self.touched[slot];
            let set = if touch == Touch::Read { &mut touched.reads } else { &mut touched.writes };
            insert(set, at - page * PAGE, stop - page * PAGE);
            at = stop;
        }
    }

    #[cold]
    fn first_touch(&mut self, allocation: usize, page: usize) -> usize {
        let (reads, writes) = match self.spare.pop() {
            Some((reads, writes)) => (reads, writes),
            None => (Box::new([0; WORDS]), Box::new([0; WORDS])),
        };
        self.touched.push(Touched { allocation, page, reads, writes });
        self.allocations[allocation].history.slots[page] = self.touched.len() as u32;
        self.touched.len() - 1
    }

    /// Forgets what the work at hand has touched: the host did it while nothing else could, or it went wrong.
    pub fn forget(&mut self) {
        while let Some(touched) = self.touched.pop() {
            self.allocations[touched.allocation].history.slots[touched.page] = 0;
            self.recycle(touched.reads, touched.writes);
        }
    }

    /// The work at hand is done: compares what it touched with the past, of which it becomes a part.
    ///
    /// # Errors
    /// The first byte, by allocation and address, that another stream touches too while nothing orders the two.
    pub fn settle(&mut self, author: &Author<'_>) -> Result<(), Unordered> {
        let mut found: Option<Unordered> = None;
        while let Some(touched) = self.touched.pop() {
            let allocation = &mut self.allocations[touched.allocation];
            allocation.history.slots[touched.page] = 0;
            let base = allocation.base + (touched.page * PAGE) as u64;
            let past = &mut allocation.history.pages[touched.page];
            let unordered = past.iter().filter(|past| !past.is_before(author));
            let conflicts = unordered.filter_map(|past| past.conflict(&touched, base));
            let first = conflicts.min_by_key(|conflict| conflict.address);
            if let Some(conflict) = first
                && found.is_none_or(|found| conflict.address < found.address)
            {
                found = Some(conflict);
            }
            for past in past.iter_mut().filter(|past| past.is_before(author)) {
                past.yield_to(&touched);
            }
            past.retain(|past| past.reads.is_some() || past.writes.is_some());
            let set = |set: &Set| set.iter().any(|word| *word != 0).then(|| Box::new(*set));
            past.push(Past {
                stream: author.stream,
                time: author.time,
                label: author.label,
                reads: set(&touched.reads),
                writes: set(&touched.writes),
            });
            self.recycle(touched.reads, touched.writes);
        }
        found.map_or(Ok(()), Err)
    }

    fn recycle(&mut self, mut reads: Box<Set>, mut writes: Box<Set>) {
        const KEPT: usize = 1024;
        if self.spare.len() < KEPT {
            reads.fill(0);
            writes.fill(0);
            self.spare.push((reads, writes));
        }
    }
}

impl Past {
    /// Whether it is done when the author's work begins.
    fn is_before(&self, author: &Author<'_>) -> bool {
        self.stream == author.stream || author.clock.get(self.stream).is_some_and(|time| *time >= self.time)
    }

    /// The first byte that both touch and one writes.
    fn conflict(&self, touched: &Touched, base: u64) -> Option<Unordered> {
        (0..WORDS).find_map(|index| {
            let of = |set: &Option<Box<Set>>| set.as_ref().map_or(0, |set| set[index]);
            let (reads, writes) = (of(&self.reads), of(&self.writes));
            let both = touched.writes[index] & (reads | writes) | touched.reads[index] & writes;
            (both != 0).then(|| {
                let bit = both & both.wrapping_neg();
                Unordered {
                    address: base + index as u64 * 64 + u64::from(both.trailing_zeros()),
                    wrote: touched.writes[index] & bit != 0,
                    other_stream: self.stream,
                    other_label: self.label,
                    other_wrote: writes & bit != 0,
                }
            })
        })
    }

    /// Gives up the bytes that later work has touched in a way that says at least as much: whoever is not ordered behind
    /// this is not ordered behind that either.
    fn yield_to(&mut self, touched: &Touched) {
        let without = |set: &mut Option<Box<Set>>, gone: &dyn Fn(usize) -> u64| {
            if let Some(words) = set {
                words.iter_mut().enumerate().for_each(|(index, word)| *word &= !gone(index));
                if words.iter().all(|word| *word == 0) {
                    *set = None;
                }
            }
        };
        without(&mut self.reads, &|index| touched.reads[index] | touched.writes[index]);
        without(&mut self.writes, &|index| touched.writes[index]);
    }
}

/// Puts the bytes of a range into a page's set.
#[inline(always)]
fn insert(set: &mut Set, start: usize, end: usize) {
    let (first, last) = (start / 64, (end - 1) / 64);
    let (head, tail) = (u64::MAX << (start % 64), u64::MAX >> (63 - (end - 1) % 64));
    if first == last {
        set[first] |= head & tail;
        return;
    }
    set[first] |= head;
    set[first + 1..last].fill(u64::MAX);
    set[last] |= tail;
}
