//! Until when values are needed within one region.

use crate::fuse::is_alias;
use crate::uses::for_each_use;
use dtlc_ir::{Region, Value};
use rustc_hash::FxHashMap;

/// The last position in a region at which each value is read, its aliases included. Positions are
/// those of instructions; what the region yields is read at the position behind the last.
pub(super) struct Liveness {
    last: FxHashMap<Value, usize>,
    uses: FxHashMap<(Value, usize), u32>,
}

impl Liveness {
    /// Of one region; loops inside count as one position.
    pub(super) fn of(region: &Region) -> Liveness {
        let mut last: FxHashMap<Value, usize> = FxHashMap::default();
        let mut uses: FxHashMap<(Value, usize), u32> = FxHashMap::default();
        let end = region.insts.len();
        last.extend(region.yields.iter().map(|&value| (value, end)));
        for (position, inst) in region.insts.iter().enumerate().rev() {
            for_each_use(inst, &mut |value| {
                let at = last.entry(value).or_insert(position);
                *at = (*at).max(position);
                *uses.entry((value, position)).or_insert(0) += 1;
            });
            if is_alias(&inst.op)
                && let Some(&until) = last.get(&inst.results[0])
            {
                let at = last.entry(inst.args[0]).or_insert(until);
                *at = (*at).max(until);
            }
        }
        Liveness { last, uses }
    }

    /// The last position at which a value is read; none if it never is.
    pub(super) fn last_use(&self, value: Value) -> Option<usize> {
        self.last.get(&value).copied()
    }

    /// How often an instruction reads a value.
    pub(super) fn uses_at(&self, value: Value, position: usize) -> u32 {
        self.uses.get(&(value, position)).copied().unwrap_or(0)
    }
}
