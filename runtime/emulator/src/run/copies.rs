//! Asynchronous copies of a warp that are under way: they take place when they are waited for, not before, so that a wait that
//! is missing or too short shows.

use super::each;
use std::collections::VecDeque;

/// One lane's copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub lane: u32,
    pub to: u64,
    pub from: u64,
    pub bytes: usize,
    /// The bytes that are taken from the source; the rest becomes zero.
    pub taken: usize,
}

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Copies that no group holds yet.
    open: Vec<Copy>,
    /// Groups with the lanes that committed them, the oldest first.
    groups: VecDeque<(u32, Vec<Copy>)>,
}

impl Copies {
    pub fn begin(&mut self, copy: Copy) {
        self.open.push(copy);
    }

    /// The lanes' open copies become a group, even if there are none.
    pub fn commit(&mut self, lanes: u32) {
        let (group, open) = self.open.iter().partition(|copy| lanes >> copy.lane & 1 == 1);
        self.open = open;
        self.groups.push_back((lanes, group));
    }

    /// The copies that must be done for each of these lanes to have at most `left` groups under way; they are gone from here.
    pub fn finish(&mut self, lanes: u32, left: u32) -> Vec<Copy> {
        let mut behind = [0_u32; 32];
        let mut done = Vec::new();
        for (members, copies) in self.groups.iter_mut().rev() {
            let mut ready = 0;
            for lane in each(*members & lanes) {
                ready |= u32::from(behind[lane] >= left) << lane;
                behind[lane] += 1;
            }
            let (finished, open): (Vec<_>, Vec<_>) =
                copies.iter().partition(|copy| ready >> copy.lane & 1 == 1);
            done.extend(finished);
            *copies = open;
            *members &= !ready;
        }
        self.groups.retain(|(members, _)| *members != 0);
        done
    }

    /// All copies of these lanes, committed or not.
    pub fn finish_all(&mut self, lanes: u32) -> Vec<Copy> {
        self.commit(lanes);
        self.finish(lanes, 0)
    }
}
