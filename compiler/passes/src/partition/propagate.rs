//! Carries the placements of one step to a fixed point: along the factors of instructions, from values
//! to their gradients, from parameters to their optimizer state, and through loops.
//!
//! An instruction can be split one way an axis. Where the decisions around it disagree the earliest
//! entry wins, and only that one is carried through it: so `S@tp` stops at a product that `H@tp` splits.

use super::assign::{Assigned, Assignments, Cause, Effect};
use super::error::PlacementError;
use super::factors::{Factor, factors};
use super::mesh::Entry;
use super::select::has_role;
use dtlc_ir::{Axis, Dim, Inst, Op, Phase, Program, Region, Role, StateKind, Value};
use smallvec::SmallVec;

/// Two values that are placed alike in the dimensions that both have.
#[derive(Clone, Copy, Debug)]
struct Tie {
    from: Value,
    to: Value,
    through: &'static str,
}

/// An instruction with its factors.
struct Node<'a> {
    inst: &'a Inst,
    factors: Vec<Factor>,
}

/// The program as propagation sees it.
pub(super) struct Graph<'a> {
    program: &'a Program,
    /// Whether a rule that is narrowed to roles stays out of values of other roles.
    keeps_to_roles: bool,
    nodes: Vec<Node<'a>>,
    ties: Vec<Tie>,
}

impl<'a> Graph<'a> {
    /// The graph of a whole program.
    pub fn new(program: &'a Program) -> Graph<'a> {
        let mut graph = Graph { program, keeps_to_roles: true, nodes: Vec::new(), ties: Vec::new() };
        graph.add_region(&program.main);
        graph.add_gradients();
        graph.add_states();
        graph
    }

    /// The graph of the instructions that update state, without ties to anything else.
    pub fn of_update(program: &'a Program) -> Graph<'a> {
        let mut graph = Graph { program, keeps_to_roles: false, nodes: Vec::new(), ties: Vec::new() };
        let insts = program.main.insts.iter().filter(|inst| is_update(inst.phase));
        graph.nodes.extend(insts.map(|inst| Node { inst, factors: factors(program, inst) }));
        graph
    }

    fn add_region(&mut self, region: &'a Region) {
        for inst in &region.insts {
            if let Op::Scan(scan) = &inst.op {
                self.add_region(&scan.body);
                let (carries, stacks) = (scan.carries, scan.stacks);
                for index in 0..carries {
                    self.tie_both(inst.args[index], scan.body.params[index], "the start of a loop");
                    self.tie_both(scan.body.params[index], scan.body.yields[index], "a loop");
                    self.tie_both(scan.body.yields[index], inst.results[index], "the end of a loop");
                }
                for index in carries..carries + stacks {
                    self.tie_both(inst.args[index], scan.body.params[index], "a slice of a stack");
                }
                for index in carries..scan.body.yields.len() {
                    self.tie_both(scan.body.yields[index], inst.results[index], "a stack");
                }
                for (&initial, result) in inst.args[carries + stacks..].iter().zip(accumulated(inst, scan)) {
                    self.tie_both(initial, result, "an accumulated stack");
                }
            } else {
                self.nodes.push(Node { inst, factors: factors(self.program, inst) });
            }
        }
    }

    fn tie_both(&mut self, left: Value, right: Value, through: &'static str) {
        self.ties.push(Tie { from: left, to: right, through });
        self.ties.push(Tie { from: right, to: left, through });
    }

    fn add_gradients(&mut self) {
        for (gradient, info) in self.program.values.iter() {
            let Some(value) = info.gradient_of else { continue };
            self.ties.push(Tie { from: value, to: gradient, through: "its gradient" });
            if info.role == Role::Activation {
                self.ties.push(Tie { from: gradient, to: value, through: "its gradient" });
            }
        }
    }

    fn add_states(&mut self) {
        for state in &self.program.states {
            let parameter = match &state.kind {
                StateKind::Parameter(_) => None,
                StateKind::Master(parameter) | StateKind::Optimizer { parameter, .. } => Some(*parameter),
            };
            let parameter = parameter.and_then(|index| self.program.states.get(index));
            if let Some(parameter) = parameter {
                self.ties.push(Tie {
                    from: parameter.value,
                    to: state.value,
                    through: "the optimizer's state",
                });
            }
        }
    }

    /// Carries every decision as far as it goes.
    ///
    /// # Errors
    /// The first conflict between rules of one step.
    pub fn propagate(&self, assignments: &mut Assignments<'_>) -> Result<(), PlacementError> {
        loop {
            let mut changed = false;
            for node in &self.nodes {
                changed |= self.through(node, assignments)?;
            }
            for tie in &self.ties {
                changed |= self.along(tie, assignments)?;
            }
            for node in self.nodes.iter().rev() {
                changed |= self.through(node, assignments)?;
            }
            for tie in self.ties.iter().rev() {
                changed |= self.along(tie, assignments)?;
            }
            if !changed {
                return Ok(());
            }
        }
    }

    fn along(&self, tie: &Tie, assignments: &mut Assignments<'_>) -> Result<bool, PlacementError> {
        let decided: SmallVec<[Assigned; 4]> = assignments.of(tie.from).iter().copied().collect();
        let mut changed = false;
        for assigned in decided {
            let cause = Cause::Follows(tie.from, tie.through);
            changed |= self.extend(assignments, tie.to, assigned.dim, assigned.entry, cause)?;
        }
        Ok(changed)
    }

    fn through(&self, node: &Node<'_>, assignments: &mut Assignments<'_>) -> Result<bool, PlacementError> {
        let choice = choose(node.inst, &node.factors, assignments);
        if let Some(clash) = self.clash(node, assignments, &choice) {
            return Err(clash);
        }
        let mut changed = false;
        for chosen in &choice.chosen {
            let factor = &node.factors[chosen.factor];
            let cause = Cause::Follows(chosen.from, node.inst.op.name());
            for (value, dim) in members(node.inst, factor) {
                changed |= self.extend(assignments, value, dim, chosen.entry, cause)?;
            }
        }
        Ok(changed)
    }

    fn extend(
        &self,
        assignments: &mut Assignments<'_>,
        value: Value,
        dim: Dim,
        entry: Entry,
        cause: Cause,
    ) -> Result<bool, PlacementError> {
        let info = &assignments.entries[entry];
        let roles = &assignments.request.steps[info.step].rules[info.rule].roles;
        let role = self.program.values[value].role;
        if self.keeps_to_roles && role != Role::Activation && !has_role(roles, role) {
            return Ok(false);
        }
        match assignments.assign(self.program, value, dim, entry, cause) {
            Effect::Placed => Ok(true),
            Effect::Unchanged | Effect::NotDivisible => Ok(false),
            Effect::Conflict(held) => {
                let chain = match cause {
                    Cause::Rule => Vec::new(),
                    Cause::Follows(from, _) => assignments.chain(self.program, from, entry),
                };
                Err(assignments.conflict(self.program, value, held, (dim, entry), chain))
            }
        }
    }

    /// A value that two factors of one step both want on one axis.
    fn clash(
        &self,
        node: &Node<'_>,
        assignments: &Assignments<'_>,
        choice: &Choice,
    ) -> Option<PlacementError> {
        for lost in &choice.lost {
            let step = |entry: Entry| assignments.entries[entry].step;
            let is_same = step(lost.entry) == step(lost.to) && lost.entry != lost.to;
            if !is_same || assignments.is_pin(lost.entry) {
                continue;
            }
            for (value, dim) in members(node.inst, &node.factors[lost.factor]) {
                let held = assignments.of(value).iter().find(|held| held.entry == lost.to && held.dim != dim);
                if let Some(&held) = held {
                    let chain = assignments.chain(self.program, lost.from, lost.entry);
                    return Some(assignments.conflict(self.program, value, held, (dim, lost.entry), chain));
                }
            }
        }
        None
    }
}

/// The results of a scan that accumulate, in the order of their initial stacks.
fn accumulated<'a>(inst: &'a Inst, scan: &'a dtlc_ir::Scan) -> impl Iterator<Item = Value> + 'a {
    let outputs = inst.results[scan.carries..].iter().zip(&scan.outputs);
    outputs.filter(|(_, output)| output.has_initial()).map(|(&result, _)| result)
}

/// Whether instructions of a phase complete gradients or update state.
pub(super) fn is_update(phase: Phase) -> bool {
    match phase {
        Phase::Gradient | Phase::Update => true,
        Phase::Forward | Phase::Recompute | Phase::Backward => false,
    }
}

/// A factor that an instruction is split by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chosen {
    /// Index of the factor.
    pub factor: usize,
    /// On whose axes.
    pub entry: Entry,
    /// A value that wants it.
    pub from: Value,
}

/// A factor that an instruction can't be split by, because another has its axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    factor: usize,
    entry: Entry,
    from: Value,
    /// The entry that has the axes.
    to: Entry,
}

/// How an instruction is split.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// In order of precedence; no axis twice.
    pub chosen: SmallVec<[Chosen; 4]>,
    lost: SmallVec<[Lost; 2]>,
}

/// Chooses the factors that an instruction is split by: the earliest entries first.
pub(super) fn choose(inst: &Inst, factors: &[Factor], assignments: &Assignments<'_>) -> Choice {
    let mut wanted: SmallVec<[Chosen; 8]> = SmallVec::new();
    for (index, factor) in factors.iter().enumerate() {
        for (value, dim) in members(inst, factor) {
            for assigned in assignments.of(value).iter().filter(|assigned| assigned.dim == dim) {
                let known = |other: &Chosen| other.entry == assigned.entry && other.factor == index;
                if !wanted.iter().any(known) {
                    wanted.push(Chosen { factor: index, entry: assigned.entry, from: value });
                }
            }
        }
    }
    wanted.sort_by_key(|chosen| (chosen.entry, chosen.factor));
    let mut choice = Choice::default();
    for want in wanted {
        let axes: &[Axis] = &assignments.entries[want.entry].axes;
        let overlaps =
            |other: &&Chosen| assignments.entries[other.entry].axes.iter().any(|axis| axes.contains(axis));
        match choice.chosen.iter().find(overlaps) {
            Some(other) => {
                choice.lost.push(Lost {
                    factor: want.factor,
                    entry: want.entry,
                    from: want.from,
                    to: other.entry,
                });
            }
            None if fits(factors, &choice, &want, assignments) => choice.chosen.push(want),
            None => {}
        }
    }
    choice
}

/// Whether a factor can be split by one more entry.
fn fits(factors: &[Factor], choice: &Choice, want: &Chosen, assignments: &Assignments<'_>) -> bool {
    let Some(divides) = factors[want.factor].divides else { return true };
    let same = choice.chosen.iter().filter(|other| other.factor == want.factor);
    let size = |entry: Entry| assignments.mesh.group_size(assignments.entries[entry].axes.iter().copied());
    let ways: u64 = same.map(|other| size(other.entry)).product::<u64>() * size(want.entry);
    divides % ways == 0
}

/// The values with a factor, and their dimension of it: arguments first.
pub(super) fn members<'a>(inst: &'a Inst, factor: &'a Factor) -> impl Iterator<Item = (Value, Dim)> + 'a {
    let args = inst.args.iter().zip(&factor.args);
    let results = inst.results.iter().zip(&factor.results);
    args.chain(results).filter_map(|(&value, dim)| dim.map(|dim| (value, dim)))
}
