//! Which ranks share collectives: a group for each list of axes and each position on the others.
//!
//! From a program's instructions, once at start, to the seats that each rank takes.

use std::sync::Arc;

use super::{Group, Seat};
use crate::program::{AxisId, Collective, Program};

/// The groups of ranks for each list of axes that the program's collectives use.
#[derive(Debug, Default)]
pub struct Groups {
    /// Axes, most tensors a call, and the groups, each at its ranks' position of the other axes.
    families: Vec<Family>,
}

#[derive(Debug)]
struct Family {
    axes: Vec<AxisId>,
    tensors: usize,
    /// The group of each rank.
    of_rank: Vec<Arc<Group>>,
}

impl Groups {
    /// Makes the groups for a program.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let mut groups = Self::default();
        program.collectives().for_each(|(_, collective)| groups.note(collective));
        for family in &mut groups.families {
            family.of_rank = family_groups(program, &family.axes, family.tensors);
        }
        groups
    }

    fn note(&mut self, collective: &Collective) {
        let tensors = collective.tensors.len();
        match self.families.iter_mut().find(|family| family.axes == collective.axes) {
            Some(family) => family.tensors = family.tensors.max(tensors),
            None => {
                self.families.push(Family { axes: collective.axes.clone(), tensors, of_rank: Vec::new() })
            }
        }
    }

    /// The axes of each family of groups, in the order of a rank's seats.
    #[must_use]
    pub fn axes(&self) -> Vec<&[AxisId]> {
        self.families.iter().map(|family| &*family.axes).collect()
    }

    /// The number of the seat, of those of [`Groups::seats`], for collectives over some axes.
    #[must_use]
    pub fn seat(&self, axes: &[AxisId]) -> usize {
        self.families.iter().position(|family| family.axes == axes).unwrap_or(0)
    }

    /// The seats of a rank, one in a group of each family.
    #[must_use]
    pub fn seats(&self, program: &Program, rank: usize) -> Vec<Seat> {
        let coordinates = program.mesh.coordinates(rank as u64);
        let seat = |family: &Family| {
            let index = program.mesh.group_index(&family.axes, &coordinates);
            Seat::new(Arc::clone(&family.of_rank[rank]), index as usize)
        };
        self.families.iter().map(seat).collect()
    }
}

/// For each rank the group over `axes` that it is in; ranks stand in it by their index.
fn family_groups(program: &Program, axes: &[AxisId], tensors: usize) -> Vec<Arc<Group>> {
    let mesh = &program.mesh;
    let size = mesh.group_size(axes);
    let mut of_rank: Vec<Option<Arc<Group>>> = vec![None; mesh.ranks() as usize];
    for rank in 0..mesh.ranks() {
        if of_rank[rank as usize].is_some() {
            continue;
        }
        let mut members = vec![0; size as usize];
        let start = mesh.coordinates(rank);
        for other in 0..mesh.ranks() {
            let coordinates = mesh.coordinates(other);
            let differs =
                |axis: usize| coordinates[axis] != start[axis] && !axes.contains(&AxisId(axis as u32));
            if !(0..start.len()).any(differs) {
                members[mesh.group_index(axes, &coordinates) as usize] = other as usize;
            }
        }
        let group = Arc::new(Group::new(members.clone(), tensors));
        for member in members {
            of_rank[member] = Some(Arc::clone(&group));
        }
    }
    of_rank.into_iter().flatten().collect()
}
