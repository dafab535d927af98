//! What a backward pass gathers parameters from: a part of what the forward pass gathered, kept between the two.
//!
//! ```text
//! before:  forward { %w#: [D] = reshard %w: [D@(outer, inner)] … }      backward { %w#: [D] = reshard %w … }
//! after:   forward { %w#: [D] = reshard %w …
//!                    %k: [D@inner] = reshard %w# … yield %k }           backward { %w#: [D] = reshard %k … }
//! ```
//!
//! The forward pass's gather crosses the slow network once; the backward pass's stays within a node, at the price of
//! that part of all layers (hpZ of ZeRO++, arXiv 2306.10209). The update changes the store alone, and the next step
//! keeps parts of what is there then.

use super::assign::{Assignments, describe};
use super::stores::{Owners, Stores, owners};
use crate::regions::{add_stack_input, add_stack_output, shared_slices};
use dtlc_ir::{Axis, Dim, Inst, Op, Phase, Program, Reason, Region, Role, ScalarOp, Scan, Type, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Lets backward scans gather from what forward scans keep, where a plan says so.
pub(super) fn keep_parts(program: &mut Program, assignments: &Assignments<'_>, stores: &Stores) {
    if stores.kept.iter().all(|axes| axes.is_empty()) {
        return;
    }
    let owners = owners(program);
    let mut main = std::mem::take(&mut program.main);
    Keeper { program, assignments, stores, owners }.in_region(&mut main);
    program.main = main;
}

struct Keeper<'a> {
    program: &'a mut Program,
    assignments: &'a Assignments<'a>,
    stores: &'a Stores,
    owners: Owners,
}

/// A gather of one parameter in each of the two bodies.
struct Gather {
    /// The instruction in the forward body.
    forward: usize,
    /// The instruction in the backward body. None where only the forward pass needs the parameter, unless the backward
    /// pass computes again what it is needed for.
    backward: Option<usize>,
    /// What is kept.
    kept: Type,
}

impl Keeper<'_> {
    fn in_region(&mut self, region: &mut Region) {
        for inst in &mut region.insts {
            if let Op::Scan(scan) = &mut inst.op {
                self.in_region(&mut scan.body);
            }
        }
        self.in_one(region);
        for backward in 1..region.insts.len() {
            for forward in 0..backward {
                let (before, after) = region.insts.split_at_mut(backward);
                self.in_pair(&mut before[forward], &mut after[0]);
            }
        }
    }

    /// Where both passes are in one region, as outside of layers.
    fn in_one(&mut self, region: &mut Region) {
        let is_backward = |inst: &Inst| inst.phase != Phase::Forward;
        let mut gathers = self.gathers(&region.insts, &region.insts, is_backward, Some);
        gathers.sort_by_key(|gather| std::cmp::Reverse(gather.forward));
        // What a gather behind reads must not move before it is read, so all of these change first.
        let mut made = Vec::new();
        for Gather { forward, backward, kept } in gathers {
            let (part, inst) = self.part_of(&region.insts[forward], kept);
            if let Some(backward) = backward {
                self.gather_from(part, &mut region.insts[backward]);
            }
            made.push((forward, inst));
        }
        made.into_iter().for_each(|(forward, inst)| region.insts.insert(forward + 1, inst));
    }

    fn in_pair(&mut self, forward: &mut Inst, backward: &mut Inst) {
        let phases = (forward.phase, backward.phase);
        let twins: FxHashMap<Value, Value> = shared_slices(backward, forward).into_iter().collect();
        let (Op::Scan(from), Op::Scan(to)) = (&mut forward.op, &mut backward.op) else { return };
        let reads = forward.results.iter().any(|result| backward.args.contains(result));
        if phases.0 != Phase::Forward || from.dim != to.dim || from.reverse == to.reverse || !reads {
            return;
        }
        let twin = |slice: Value| twins.get(&slice).copied();
        let mut gathers = self.gathers(&from.body.insts, &to.body.insts, |_| true, twin);
        gathers.extend(self.forward_only(from, &gathers));
        // From the last on, so that positions in the forward body stay right.
        gathers.sort_by_key(|gather| std::cmp::Reverse(gather.forward));
        for gather in gathers {
            let (part, inst) = self.part_of(&from.body.insts[gather.forward], gather.kept.clone());
            from.body.insts.insert(gather.forward + 1, inst);
            let stack = add_stack_output(self.program, from, &mut forward.results, part);
            let slice = self.program.values.push(self.program.values[part].clone());
            add_stack_input(to, &mut backward.args, stack, slice);
            let at = gather.backward.unwrap_or_else(|| {
                // Nothing reads it yet, and if nothing ever does it goes away.
                let mut inst = from.body.insts[gather.forward].clone();
                let whole = self.program.values[inst.results[0]].clone();
                (inst.phase, inst.results[0]) = (phases.1, self.program.values.push(whole));
                to.body.insts.push(inst);
                to.body.insts.len() - 1
            });
            self.gather_from(slice, &mut to.body.insts[at]);
        }
    }

    /// The gathers of `to` that `from` does too, of parameters with a part to keep.
    fn gathers(
        &self,
        from: &[Inst],
        to: &[Inst],
        wanted: impl Fn(&Inst) -> bool,
        twin: impl Fn(Value) -> Option<Value>,
    ) -> Vec<Gather> {
        let mut found: Vec<Gather> = Vec::new();
        for (at, inst) in to.iter().enumerate().filter(|(_, inst)| wanted(inst)) {
            let Some((slice, casts)) = moved(to, inst) else { continue };
            let (Some(twin), Some(owner)) = (twin(slice), self.owners[slice]) else { continue };
            let whole = self.program.ty(inst.results[0]);
            let Some(kept) = self.part(owner, whole) else { continue };
            let same = |other: &Inst| {
                other.phase == Phase::Forward
                    && moved(from, other) == Some((twin, casts))
                    && self.program.ty(other.results[0]) == whole
            };
            let forward = from.iter().position(same);
            let taken = |forward: &usize| found.iter().any(|gather| gather.forward == *forward);
            if let Some(forward) = forward.filter(|forward| !taken(forward)) {
                found.push(Gather { forward, backward: Some(at), kept });
            }
        }
        found
    }

    /// The other gathers of a forward body.
    fn forward_only(&self, from: &Scan, known: &[Gather]) -> Vec<Gather> {
        let gather = |(forward, inst): (usize, &Inst)| {
            let (slice, _) = moved(&from.body.insts, inst)?;
            let kept = self.part(self.owners[slice]?, self.program.ty(inst.results[0]))?;
            let is_known = known.iter().any(|gather| gather.forward == forward);
            let is_forward = inst.phase == Phase::Forward && from.body.params.contains(&slice);
            (is_forward && !is_known).then_some(Gather { forward, backward: None, kept })
        };
        from.body.insts.iter().enumerate().filter_map(gather).collect()
    }

    /// The part to keep of a gathered parameter; none if it is in parts over those axes anyway, or nothing is divided by them.
    fn part(&self, owner: usize, whole: &Type) -> Option<Type> {
        let kept = &self.stores.kept[owner];
        let is_free = |axis: &Axis| {
            whole.placement.dim_on(*axis).is_none() && whole.placement.partial_on(*axis).is_none()
        };
        if kept.is_empty() || !kept.iter().all(is_free) {
            return None;
        }
        let mut part = whole.clone();
        for &(dim, entry) in &self.stores.states[owner] {
            for &axis in self.assignments.entries[entry].axes.iter().filter(|axis| kept.contains(axis)) {
                part.placement.add_shard(self.divided(&part, dim, axis)?, axis);
            }
        }
        Some(part)
    }

    /// The dimension that an axis splits further: the stored one, unless whoever uses the parameter has split that as far as it goes.
    fn divided(&self, part: &Type, stored: Dim, axis: Axis) -> Option<Dim> {
        let divides = |dim: &Dim| {
            let ways = self.program.mesh.group_size(part.placement.axes_of(*dim).chain([axis]));
            self.program.dims[*dim].size.is_multiple_of(ways)
        };
        [stored].into_iter().chain(part.dims.iter().copied()).find(divides)
    }

    /// What keeps a part of a gathered parameter.
    fn part_of(&mut self, gathered: &Inst, kept: Type) -> (Value, Inst) {
        let (whole, phase) = (gathered.results[0], gathered.phase);
        let mut info = self.program.values[whole].clone();
        (info.ty, info.role) = (kept, Role::Parameter);
        let part = self.program.values.push(info);
        let name = describe(self.program, whole);
        let text = format!("a part of {name} is kept for the backward pass (`store backward`)");
        let (args, results) = (SmallVec::from_slice(&[whole]), SmallVec::from_slice(&[part]));
        let op = Op::Reshard(Reason { text, leave_to_gather: false });
        (part, Inst { op, args, results, phase })
    }

    /// Lets a gather of the backward body start from the part.
    fn gather_from(&self, part: Value, inst: &mut Inst) {
        let name = describe(self.program, part);
        if let Op::Reshard(reason) = &mut inst.op {
            reason.text = format!(
                "{name} was kept in parts by the forward pass (`store backward`) and is needed whole"
            );
        }
        inst.args[0] = part;
    }
}

/// What comes from outside that a reshard moves, and how often it is converted before.
fn moved(insts: &[Inst], inst: &Inst) -> Option<(Value, usize)> {
    let Op::Reshard(_) = inst.op else { return None };
    let (mut value, mut casts) = (inst.args[0], 0);
    while let Some(made) = insts.iter().find(|made| made.results.contains(&value)) {
        let Op::Map(ScalarOp::Cast) = made.op else { return None };
        (value, casts) = (made.args[0], casts + 1);
    }
    Some((value, casts))
}
