//! Makes a case that shows a fault smaller, as long as it shows the same fault.

use super::judge::{Verdict, judge};
use super::pieces::Piece;
use super::{Case, Counted};

/// Each step takes something away, so that a few dozen are enough for any case.
const MOST_STEPS: u64 = 200;

/// The smallest case found, by trying to leave out one thing after another until nothing more can go.
pub fn shrink(case: &Case, kind: &str) -> Case {
    let mut smallest = case.clone();
    let fails = |case: &Case| matches!(judge(&case.source()), Verdict::Wrong(found, _) if found == kind);
    // What could not go once is tried again only after the rest has been tried.
    let (mut at, mut last) = (0, 0);
    loop {
        let candidates = candidates(&smallest);
        let order = (at..candidates.len()).chain(0..at.min(candidates.len()));
        let smaller = order.into_iter().find(|&index| fails(&candidates[index]));
        match smaller {
            Some(index) => {
                smallest = candidates[index].clone();
                (at, last) = (index, last + 1);
            }
            None => return smallest,
        }
        if last > MOST_STEPS {
            return smallest;
        }
    }
}

/// Cases with one thing less, those that lose most first.
fn candidates(case: &Case) -> Vec<Case> {
    let mut found = Vec::new();
    let mut change = |apply: &dyn Fn(&mut Case)| {
        let mut smaller = case.clone();
        apply(&mut smaller);
        if smaller.source() != case.source() {
            found.push(smaller);
        }
    };
    for index in 0..case.stacks.len() {
        change(&|it| {
            it.stacks.remove(index);
        });
    }
    for (at, stack) in case.stacks.iter().enumerate() {
        for index in 0..stack.entries.len() {
            if stack.entries.len() > 1 {
                change(&|it| {
                    it.stacks[at].entries.remove(index);
                });
            } else {
                change(&|it| it.stacks[at].entries[index].0 = 0);
            }
            change(&|it| {
                let count = &mut it.stacks[at].entries[index].0;
                *count = (*count).min(1);
            });
            change(&|it| it.stacks[at].entries[index].1.residual = false);
            for piece in 0..stack.entries[index].1.pieces.len() {
                change(&|it| {
                    it.stacks[at].entries[index].1.pieces.remove(piece);
                });
                change(&|it| flatten(it, at, index, piece));
            }
        }
    }
    for index in 0..case.plan.entries.len() {
        change(&|it| {
            it.plan.entries.remove(index);
        });
    }
    change(&|it| it.plan.micro = None);
    change(&|it| it.plan.shared.retain(|entry| !entry.starts_with("precision")));
    change(&|it| it.plan.shared = vec!["optimizer sgd { lr 0.1 }".into()]);
    for index in 0..case.plan.mesh.len() {
        change(&|it| {
            it.plan.mesh.remove(index);
        });
        change(&|it| it.plan.mesh[index].1 = vec![1]);
        change(&|it| it.plan.mesh[index].1 = vec![2]);
    }
    change(&|it| it.for_each_layer(&mut |layer| layer.pin = None));
    change(&|it| it.for_each_layer(&mut |layer| layer.pieces.iter_mut().for_each(Piece::place_nowhere)));
    change(&|it| it.frame.positions = false);
    change(&|it| it.frame.tied = true);
    change(&|it| it.frame.capped = false);
    change(&|it| it.frame.z = false);
    change(&|it| it.frame.output = false);
    change(&|it| it.frame.counted = Counted::All);
    change(&|it| it.sequence = 1);
    change(&|it| it.sequence = 2);
    change(&|it| it.plan.global = it.plan.size("dp") * it.plan.micro.unwrap_or(1));
    found
}

/// Takes the pieces of a layer within a layer out of it.
fn flatten(case: &mut Case, stack: usize, entry: usize, piece: usize) {
    let pieces = &mut case.stacks[stack].entries[entry].1.pieces;
    if let Some((_, layer)) = pieces[piece].nested.take() {
        pieces.splice(piece..=piece, layer.pieces);
    }
}
