//! How a tensor is spread over the mesh: axes, dimensions, placements, local shapes.
//!
//! Pure arithmetic on a [`super::Program`]'s data; moving elements is `crate::shards`' part.

use serde::{Deserialize, Serialize};

use super::{AxisId, DType};

/// One axis of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshAxis {
    /// Its name, such as `dp`, or `tp.0` for a part.
    pub name: String,
    /// Ranks along it.
    pub size: u32,
}

/// The mesh of ranks. Ranks are numbered row-major: the last axis varies fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    /// The axes, outermost first; none for one rank.
    pub axes: Vec<MeshAxis>,
}

impl Mesh {
    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        self.axes.iter().fold(1, |ranks, axis| u64::from(axis.size).saturating_mul(ranks))
    }

    /// Size of an axis.
    #[must_use]
    pub fn size(&self, axis: AxisId) -> u64 {
        u64::from(self.axes[axis.index()].size)
    }

    /// Coordinate of each axis of a rank.
    #[must_use]
    pub fn coordinates(&self, rank: u64) -> Vec<u64> {
        let mut rest = rank;
        let mut coordinates: Vec<u64> = self
            .axes
            .iter()
            .rev()
            .map(|axis| {
                let coordinate = rest % u64::from(axis.size);
                rest /= u64::from(axis.size);
                coordinate
            })
            .collect();
        coordinates.reverse();
        coordinates
    }

    /// What to call a rank in messages: its number with its coordinates, such as `rank 3 (dp 1, tp 1)`.
    #[must_use]
    pub fn rank_name(&self, rank: usize) -> String {
        if self.axes.is_empty() {
            return format!("rank {rank}");
        }
        let coordinates = self.coordinates(rank as u64);
        let each = self.axes.iter().zip(coordinates).map(|(axis, at)| format!("{} {at}", axis.name));
        format!("rank {rank} ({})", each.collect::<Vec<_>>().join(", "))
    }

    /// The rank at the given coordinates.
    #[must_use]
    pub fn rank_at(&self, coordinates: &[u64]) -> u64 {
        self.axes
            .iter()
            .zip(coordinates)
            .fold(0, |rank, (axis, coordinate)| rank * u64::from(axis.size) + coordinate)
    }

    /// Product of the sizes of some axes.
    #[must_use]
    pub fn group_size(&self, axes: &[AxisId]) -> u64 {
        axes.iter().map(|&axis| self.size(axis)).product()
    }

    /// Index within a group over `axes`, row-major in the order they are listed.
    #[must_use]
    pub fn group_index(&self, axes: &[AxisId], coordinates: &[u64]) -> u64 {
        axes.iter().fold(0, |index, &axis| index * self.size(axis) + coordinates[axis.index()])
    }
}

/// One dimension of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dimension {
    /// Its name in the model.
    pub name: String,
    /// Its logical size.
    pub size: u64,
    /// Its size with pads behind, so that its axes divide it; equal to `size` if it has none.
    pub padded: u64,
}

impl Dimension {
    /// A dimension without pads.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Self {
        Self { name: name.to_owned(), size, padded: size }
    }
}

/// A dimension sharded in contiguous blocks over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Index of the dimension.
    pub dimension: u32,
    /// The axis.
    pub axis: AxisId,
}

/// Type, global shape and sharding of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Element type.
    pub dtype: DType,
    /// Dimensions in memory order, row-major.
    pub dimensions: Vec<Dimension>,
    /// Which dimension lies on which axis. Where several lie on one dimension, the first is the
    /// major one. An axis that is not named holds replicas.
    pub placements: Vec<Placement>,
}

impl Layout {
    /// A layout without pads or sharding.
    #[must_use]
    pub fn replicated(dtype: DType, dimensions: &[(&str, u64)]) -> Self {
        let dimensions = dimensions.iter().map(|&(name, size)| Dimension::new(name, size)).collect();
        Self { dtype, dimensions, placements: Vec::new() }
    }

    /// The same with one more placement, minor to those already on that dimension.
    #[must_use]
    pub fn placed(mut self, dimension: u32, axis: AxisId) -> Self {
        self.placements.push(Placement { dimension, axis });
        self
    }

    /// Sizes without pads.
    #[must_use]
    pub fn global_shape(&self) -> Vec<u64> {
        self.dimensions.iter().map(|dimension| dimension.size).collect()
    }

    /// Number of elements without pads.
    #[must_use]
    pub fn global_elements(&self) -> u64 {
        self.dimensions.iter().map(|dimension| dimension.size).product()
    }

    /// Number of shards of a dimension.
    #[must_use]
    pub fn shards(&self, mesh: &Mesh, dimension: usize) -> u64 {
        self.placed_on(dimension).map(|axis| mesh.size(axis)).product()
    }

    /// Sizes of one rank's shard, pads included.
    #[must_use]
    pub fn local_shape(&self, mesh: &Mesh) -> Vec<u64> {
        let local = |(index, dimension): (usize, &Dimension)| dimension.padded / self.shards(mesh, index);
        self.dimensions.iter().enumerate().map(local).collect()
    }

    /// Global coordinate of the first element of a rank's shard, for each dimension.
    #[must_use]
    pub fn local_start(&self, mesh: &Mesh, coordinates: &[u64]) -> Vec<u64> {
        let local = self.local_shape(mesh);
        (0..self.dimensions.len())
            .map(|dimension| {
                let axes = self.placed_on(dimension);
                let shard = axes.fold(0, |shard, axis| shard * mesh.size(axis) + coordinates[axis.index()]);
                shard * local[dimension]
            })
            .collect()
    }

    /// Bytes of one rank's shard, pads included.
    #[must_use]
    pub fn local_bytes(&self, mesh: &Mesh) -> u64 {
        self.local_shape(mesh).iter().product::<u64>() * self.dtype.bytes()
    }

    fn placed_on(&self, dimension: usize) -> impl Iterator<Item = AxisId> + '_ {
        let on_dimension = move |placement: &&Placement| placement.dimension as usize == dimension;
        self.placements.iter().filter(on_dimension).map(|placement| placement.axis)
    }
}
