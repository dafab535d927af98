//! Until when values are needed within one region.

use crate::fuse::is_alias;
use crate::uses::for_each_use;
use dtlc_ir::{Inst, Op, Region, Value};
use rustc_hash::FxHashMap;

/// The results of an instruction that lie where its arguments do, with those: views, and what a done hands on.
pub(super) fn aliases(inst: &Inst) -> impl Iterator<Item = (Value, Value)> + '_ {
    let hands_on = is_alias(&inst.op) || inst.op == Op::Done;
    inst.results.iter().copied().zip(inst.args.iter().copied()).filter(move |_| hands_on)
}

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
            for (alias, of) in aliases(inst) {
                if let Some(&until) = last.get(&alias) {
                    let at = last.entry(of).or_insert(until);
                    *at = (*at).max(until);
                }
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
