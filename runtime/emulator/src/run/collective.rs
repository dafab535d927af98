//! What the lanes of a warp do together: shuffles, votes, matches, reductions. The lanes that an instruction names must be those that run it.

use super::lanes::{File, Lane};
use super::warp::Warp;
use super::{Ran, each, throw};
use crate::code::{IntegerKind, LANES, ShuffleKind, Sign, Slot, Together, VoteKind, Width};
use crate::fault::FaultKind;

/// The slots of a shuffle.
pub(super) struct Shuffle {
    pub kind: ShuffleKind,
    pub to: Slot,
    pub inside: Option<u32>,
    pub a: Slot,
    pub b: Slot,
    pub c: Slot,
}

impl Together {
    /// The instruction and the register that names lanes, if it names some.
    pub(super) fn named(&self) -> Option<(&'static str, Slot)> {
        match *self {
            Together::Shuffle { lanes, .. } => Some(("shfl.sync", lanes)),
            Together::Vote { lanes, .. } | Together::Ballot { lanes, .. } => Some(("vote.sync", lanes)),
            Together::Match { lanes, .. } => Some(("match.sync", lanes)),
            Together::Reduce { lanes, .. } => Some(("redux.sync", lanes)),
            Together::Elect { lanes, .. } => Some(("elect.sync", lanes)),
            Together::WarpBarrier { lanes } => Some(("bar.warp.sync", lanes)),
            Together::MatrixProduct(_) | Together::TransposeMatrix { .. } | Together::ActiveMask { .. } => {
                None
            }
        }
    }
}

/// Whether the lanes that come to an instruction wait there for others that it names and that run elsewhere in the same function. A loop that
/// the compiler unrolls may lead some lanes on a shorter way to a place that all come to.
pub(super) fn waits_for_others(warp: &mut Warp, mask: u32, operation: &Together) -> bool {
    let Some((opcode, lanes)) = operation.named() else { return false };
    let lane = mask.trailing_zeros() as usize % LANES;
    let named = u32::read(warp.file(), lanes)[lane] & warp.alive();
    warp.frames.last_mut().is_some_and(|frame| frame.mask == mask && frame.park(opcode, named))
}

/// Whether the lanes that a register names are those that run.
pub(super) fn named_lanes(warp: &mut Warp, opcode: &'static str, lanes: Slot, mask: u32) -> Ran<()> {
    let values = u32::read(warp.file(), lanes);
    let alive = warp.alive();
    for lane in each(mask) {
        if values[lane] & alive != mask {
            let kind = FaultKind::DivergentLanes { opcode, named: values[lane], running: mask };
            return throw(1 << lane, kind);
        }
    }
    Ok(())
}

pub(super) fn shuffle(warp: &mut Warp, mask: u32, s: &Shuffle) -> Ran<()> {
    let file = warp.file();
    let (a, b, c) = (u32::read(file, s.a), u32::read(file, s.b), u32::read(file, s.c));
    let mut result = a;
    let mut inside = 0;
    for lane in each(mask) {
        let (distance, clamp, segment) = (b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31);
        let here = lane as u32;
        let last = (here & segment) | (clamp & !segment);
        let (source, within) = match s.kind {
            ShuffleKind::Up => {
                let source = here.wrapping_sub(distance);
                (source, source as i32 >= last as i32)
            }
            ShuffleKind::Down => (here + distance, here + distance <= last),
            ShuffleKind::Butterfly => (here ^ distance, here ^ distance <= last),
            ShuffleKind::Index => {
                let source = (here & segment) | (distance & !segment);
                (source, source <= last)
            }
        };
        if !within {
            continue;
        }
        if mask >> source & 1 == 0 {
            return throw(1 << lane, FaultKind::InactiveSource { lane: source });
        }
        inside |= 1 << lane;
        result[lane] = a[source as usize];
    }
    u32::write(file, s.to, &result, mask);
    if let Some(to) = s.inside {
        warp.set_predicate(to, inside, mask);
    }
    Ok(())
}

/// What a vote comes to, given the lanes that say yes.
pub(super) fn vote(kind: VoteKind, yes: u32, mask: u32) -> bool {
    match kind {
        VoteKind::All => yes & mask == mask,
        VoteKind::Any => yes & mask != 0,
        VoteKind::Uniform => yes & mask == mask || yes & mask == 0,
    }
}

/// Which lanes hold the same value as each, or for `all` whether all do.
pub(super) fn match_lanes(
    file: &mut File,
    mask: u32,
    (width, all): (Width, bool),
    to: Slot,
    a: Slot,
) -> bool {
    let values: [u64; LANES] =
        if width == Width::Double { u64::read(file, a) } else { u32::read(file, a).map(u64::from) };
    let mut result = [0; LANES];
    for lane in each(mask) {
        for other in each(mask) {
            result[lane] |= u32::from(values[lane] == values[other]) << other;
        }
    }
    let agree = each(mask).all(|lane| result[lane] == mask);
    if all {
        result = [if agree { mask } else { 0 }; LANES];
    }
    u32::write(file, to, &result, mask);
    agree
}

/// `redux`. Every lane gets the result.
pub(super) fn reduce(file: &mut File, mask: u32, (kind, sign): (IntegerKind, Sign), to: Slot, a: Slot) {
    let values = u32::read(file, a);
    let signed = |a: u32, b: u32, less: bool| if ((a as i32) < b as i32) == less { a } else { b };
    let joined = each(mask).map(|lane| values[lane]).reduce(|a, b| match (kind, sign) {
        (IntegerKind::Minimum, Sign::Signed) => signed(a, b, true),
        (IntegerKind::Maximum, Sign::Signed) => signed(a, b, false),
        (IntegerKind::Minimum, Sign::Unsigned) => a.min(b),
        (IntegerKind::Maximum, Sign::Unsigned) => a.max(b),
        (IntegerKind::And, _) => a & b,
        (IntegerKind::Or, _) => a | b,
        (IntegerKind::ExclusiveOr, _) => a ^ b,
        // The decoder lets no other kind through than the sum.
        _ => a.wrapping_add(b),
    });
    u32::write(file, to, &[joined.unwrap_or(0); LANES], mask);
}
