//! Which instructions of a region share a kernel.
//!
//! Instructions are visited from the last to the first. Each joins the kernel of the first of its users that
//! it fits, unless that would make a kernel wait for itself; otherwise it becomes the root of a kernel of
//! its own. Constants and the like, and what cheap functions make of smaller tensors, are copied into every kernel
//! that uses them, so that no mask or outer product is ever stored for a second one. Then kernels that
//! have equal loops and read the same tensor are joined. At last each product joins the kernel that goes on with its results
//! point after point, and is its first instruction.

use super::shape::{Shape, extents_of, is_alias, is_cheap, is_fusible};
use crate::uses::for_each_use;
use dtlc_ir::{Inst, Op, Program, Region, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// A kernel reads and writes at most this many tensors.
const TENSOR_LIMIT: usize = 20;

/// What becomes of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays an instruction of the region.
    Alone,
    /// It is copied into each kernel that uses it, and gone if only kernels do.
    Copied,
    /// It is part of this kernel.
    Grouped(usize),
}

/// The result of grouping.
pub(super) struct Grouping {
    /// One for each instruction.
    pub(super) fates: Vec<Fate>,
    /// The instructions of each kernel, in order; empty where kernels were joined.
    pub(super) groups: Vec<Vec<usize>>,
    /// For each instruction, the instructions that use its results.
    pub(super) users: Vec<Vec<usize>>,
    /// For each instruction, whether the region yields a result of it.
    pub(super) escapes: Vec<bool>,
    /// The instruction that defines a value of this region.
    pub(super) definition: FxHashMap<Value, usize>,
}

struct Former<'a> {
    program: &'a Program,
    insts: &'a [Inst],
    grouping: Grouping,
    shapes: Vec<Shape>,
    /// Yields that are added to what is there.
    accumulated: &'a FxHashSet<Value>,
}

/// Groups the instructions of a region, whose yields among `accumulated` are added to what is there.
pub(super) fn form(program: &Program, region: &Region, accumulated: &FxHashSet<Value>) -> Grouping {
    let grouping = analyse(region);
    let mut former = Former { program, insts: &region.insts, grouping, shapes: Vec::new(), accumulated };
    former.mark_copied();
    for index in (0..region.insts.len()).rev() {
        former.place(index);
    }
    former.join_siblings();
    for index in (0..region.insts.len()).rev() {
        if matches!(region.insts[index].op, Op::Dot(_)) {
            former.place_product(index);
        }
    }
    former.grouping
}

fn analyse(region: &Region) -> Grouping {
    let count = region.insts.len();
    let mut definition = FxHashMap::default();
    for (index, inst) in region.insts.iter().enumerate() {
        definition.extend(inst.results.iter().map(|&result| (result, index)));
    }
    let mut users = vec![Vec::new(); count];
    for (index, inst) in region.insts.iter().enumerate() {
        for_each_use(inst, &mut |value| {
            if let Some(&maker) = definition.get(&value)
                && users[maker].last() != Some(&index)
            {
                users[maker].push(index);
            }
        });
    }
    let mut escapes = vec![false; count];
    for value in &region.yields {
        if let Some(&maker) = definition.get(value) {
            escapes[maker] = true;
        }
    }
    Grouping { fates: vec![Fate::Alone; count], groups: Vec::new(), users, escapes, definition }
}

impl Former<'_> {
    /// Constants, coordinates, and cheap functions of those and of what is smaller than their result.
    fn mark_copied(&mut self) {
        for (index, inst) in self.insts.iter().enumerate() {
            let cheap = match inst.op {
                Op::Constant(_) | Op::Iota { .. } => true,
                Op::Map(_) => is_cheap(&inst.op),
                _ => false,
            };
            let copied = |value: &Value| match self.grouping.definition.get(value) {
                Some(&maker) => self.grouping.fates[maker] == Fate::Copied,
                None => false,
            };
            let elements = |value: Value| self.program.ty(value).local_elements(self.program);
            let smaller = |value: &Value| elements(*value) < elements(inst.results[0]);
            if cheap && inst.args.iter().all(|arg| copied(arg) || smaller(arg)) {
                self.grouping.fates[index] = Fate::Copied;
            }
        }
    }

    fn place(&mut self, index: usize) {
        let inst = &self.insts[index];
        if self.grouping.fates[index] == Fate::Copied || !is_fusible(&inst.op) || self.stays_alias(index) {
            return;
        }
        for group in self.user_groups(index) {
            if let Some(shape) = self.admission(index, group) {
                self.grouping.groups[group].insert(0, index);
                self.grouping.fates[index] = Fate::Grouped(group);
                self.shapes[group] = shape;
                return;
            }
        }
        self.grouping.fates[index] = Fate::Grouped(self.grouping.groups.len());
        self.grouping.groups.push(vec![index]);
        self.shapes.push(Shape::of(self.program, inst));
    }

    /// A product stays alone unless a kernel takes it.
    fn place_product(&mut self, index: usize) {
        let takes = |&group: &usize| self.takes_product(group, index);
        if let Some(group) = self.user_groups(index).into_iter().find(takes) {
            self.grouping.groups[group].insert(0, index);
            self.grouping.fates[index] = Fate::Grouped(group);
        }
    }

    /// Whether a kernel uses a product's results each at its own point alone, has no other product, adds nothing to what is there,
    /// and needs nothing else that waits for the results.
    fn takes_product(&self, group: usize, index: usize) -> bool {
        let product = &self.insts[index];
        let points = extents_of(self.program, product.results[0]);
        let members = &self.grouping.groups[group];
        let mut made_of_it = FxHashSet::from_iter([product.results[0]]);
        let goes_on = members.iter().all(|&member| {
            let inst = &self.insts[member];
            let uses = inst.args.iter().any(|arg| made_of_it.contains(arg));
            if uses {
                made_of_it.extend(&inst.results);
            }
            !uses || matches!(inst.op, Op::Map(_)) && extents_of(self.program, inst.results[0]) == points
        });
        let refuses = |&member: &usize| {
            let inst = &self.insts[member];
            matches!(inst.op, Op::Dot(_)) || self.accumulated.contains(&inst.results[0])
        };
        let is_copied = |arg: &Value| match self.grouping.definition.get(arg) {
            Some(&maker) => self.grouping.fates[maker] == Fate::Copied,
            None => false,
        };
        goes_on
            && self.shapes[group] == Shape::Pointwise(points)
            && !members.iter().any(refuses)
            && !product.args.iter().any(is_copied)
            && !self.reaches(index, group)
            && self.tensor_count(members, Some(index)) <= TENSOR_LIMIT
    }

    /// Whether a view stays outside: its argument is stored anyway, or someone outside wants the result.
    fn stays_alias(&self, index: usize) -> bool {
        let inst = &self.insts[index];
        if !is_alias(&inst.op) {
            return false;
        }
        let argument_is_stored = match self.grouping.definition.get(&inst.args[0]) {
            Some(&maker) => !is_fusible(&self.insts[maker].op) || self.stays_alias(maker),
            None => true,
        };
        argument_is_stored || self.is_stored(index, None)
    }

    /// Whether anything but members of `group` uses the result.
    fn is_stored(&self, index: usize, group: Option<usize>) -> bool {
        let inside = |&user: &usize| match self.grouping.fates[user] {
            Fate::Grouped(other) => group.is_none() || group == Some(other),
            Fate::Alone | Fate::Copied => false,
        };
        self.grouping.escapes[index] || !self.grouping.users[index].iter().all(inside)
    }

    /// The kernels that use an instruction, earliest first.
    fn user_groups(&self, index: usize) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for &user in &self.grouping.users[index] {
            if let Fate::Grouped(group) = self.grouping.fates[user]
                && !found.contains(&group)
            {
                found.push(group);
            }
        }
        found
    }

    /// The shape of `group` with this instruction in it, if it may join.
    fn admission(&self, index: usize, group: usize) -> Option<Shape> {
        let inst = &self.insts[index];
        let stored = self.is_stored(index, Some(group));
        let shape = self.shapes[group].admit(self.program, inst, stored)?;
        let members = &self.grouping.groups[group];
        let once = shape != self.shapes[group]
            || self.shapes[group].admit(self.program, inst, true).is_some()
            || self.is_used_once_a_point(index, group);
        let allowed = once
            && self.views_fit(index, members)
            && !self.reaches(index, group)
            && self.tensor_count(members, Some(index)) <= TENSOR_LIMIT;
        allowed.then_some(shape)
    }

    /// Whether no user in the group broadcasts the result, so that nothing is computed twice; cheap work may be.
    fn is_used_once_a_point(&self, index: usize, group: usize) -> bool {
        let elements = |of: usize| self.program.ty(self.insts[of].results[0]).local_elements(self.program);
        is_cheap(&self.insts[index].op)
            || self.grouping.users[index].iter().all(|&user| {
                let broadcasts =
                    matches!(self.insts[user].op, Op::Map(_)) && elements(user) > elements(index);
                self.grouping.fates[user] == Fate::Grouped(group) && !broadcasts
            })
    }

    /// A concatenation or pad must be reached without another view on the way, so that the loops can be cut
    /// where its pieces meet.
    fn views_fit(&self, index: usize, members: &[usize]) -> bool {
        let into = match &self.insts[index].op {
            Op::Concat { into, .. } | Op::Pad { into, .. } => *into,
            _ => return true,
        };
        members.iter().all(|&member| match &self.insts[member].op {
            Op::Slice { dim, .. } | Op::Split { dim, .. } | Op::Rename { from: dim, .. } => *dim != into,
            Op::LocalSlice | Op::Pad { .. } | Op::Concat { .. } | Op::Reduce { .. } => false,
            _ => true,
        })
    }

    /// Whether the group can be reached from the instruction through something outside the group.
    fn reaches(&self, index: usize, group: usize) -> bool {
        let mut pending: Vec<usize> = self.grouping.users[index].clone();
        let mut seen = FxHashSet::default();
        let mut first = true;
        while !pending.is_empty() {
            for user in std::mem::take(&mut pending) {
                if self.grouping.fates[user] == Fate::Grouped(group) {
                    if first {
                        continue;
                    }
                    return true;
                }
                for member in self.together(user) {
                    if seen.insert(member) {
                        pending.extend(&self.grouping.users[member]);
                    }
                }
            }
            first = false;
        }
        false
    }

    /// The instructions that run together with this one.
    fn together(&self, index: usize) -> Vec<usize> {
        match self.grouping.fates[index] {
            Fate::Grouped(group) => self.grouping.groups[group].clone(),
            Fate::Alone | Fate::Copied => vec![index],
        }
    }

    /// Tensors that a kernel of these instructions reads or writes.
    fn tensor_count(&self, members: &[usize], more: Option<usize>) -> usize {
        let all: Vec<usize> = members.iter().copied().chain(more).collect();
        let stored = all.iter().filter(|&&member| {
            self.grouping.escapes[member]
                || self.grouping.users[member].iter().any(|user| !all.contains(user))
        });
        stored.count() + self.inputs(&all).len()
    }

    /// Values that come into a kernel from outside.
    fn inputs(&self, members: &[usize]) -> FxHashSet<Value> {
        let outside = |value: &Value| match self.grouping.definition.get(value) {
            Some(maker) => !members.contains(maker) && self.grouping.fates[*maker] != Fate::Copied,
            None => true,
        };
        members.iter().flat_map(|&member| self.insts[member].args.iter().copied().filter(outside)).collect()
    }

    /// Joins kernels with equal loops that read the same tensor and do not wait for each other.
    fn join_siblings(&mut self) {
        for first in 0..self.grouping.groups.len() {
            for second in 0..first {
                if let Some(shape) = self.sibling_shape(first, second) {
                    let mut members = std::mem::take(&mut self.grouping.groups[second]);
                    for &member in &members {
                        self.grouping.fates[member] = Fate::Grouped(first);
                    }
                    members.append(&mut self.grouping.groups[first]);
                    members.sort_unstable();
                    self.grouping.groups[first] = members;
                    self.shapes[first] = shape;
                }
            }
        }
    }

    fn sibling_shape(&self, first: usize, second: usize) -> Option<Shape> {
        let (a, b) = (&self.grouping.groups[first], &self.grouping.groups[second]);
        if a.is_empty() || b.is_empty() {
            return None;
        }
        let shape = self.shapes[first].join(&self.shapes[second])?;
        let theirs = self.inputs(b);
        let large = |value: &Value| !self.program.ty(*value).dims.is_empty();
        let shares = self.inputs(a).iter().any(|value| large(value) && theirs.contains(value));
        let both: Vec<usize> = a.iter().chain(b).copied().collect();
        let independent = || !self.waits(a, second) && !self.waits(b, first);
        (shares && self.tensor_count(&both, None) <= TENSOR_LIMIT && independent()).then_some(shape)
    }

    /// Whether `group` uses, directly or not, what these instructions define.
    fn waits(&self, members: &[usize], group: usize) -> bool {
        let mut pending: Vec<usize> =
            members.iter().flat_map(|&member| self.grouping.users[member].clone()).collect();
        let mut seen = FxHashSet::default();
        while let Some(user) = pending.pop() {
            if self.grouping.fates[user] == Fate::Grouped(group) {
                return true;
            }
            if seen.insert(user) {
                for member in self.together(user) {
                    pending.extend(&self.grouping.users[member]);
                }
            }
        }
        false
    }
}
