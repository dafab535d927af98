//! Cuts whole tensors into the ranks' shards and puts them together again.
//!
//! Pads exist only in shards: they are written as zeros and never read back.

use crate::program::{Layout, Mesh};

/// A stretch of elements that is contiguous in a shard and in the whole tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First element in the shard.
    pub local: usize,
    /// First element in the whole tensor.
    pub global: usize,
    /// Number of elements.
    pub length: usize,
}

/// Calls `visit` for each stretch of a rank's shard that is no pad, in memory order.
pub fn for_each_stretch(layout: &Layout, mesh: &Mesh, coordinates: &[u64], mut visit: impl FnMut(Stretch)) {
    let global = layout.global_shape();
    let local = layout.local_shape(mesh);
    let start = layout.local_start(mesh, coordinates);
    // How many elements of each dimension are in the shard and no pads.
    let held: Vec<u64> =
        (0..global.len()).map(|index| local[index].min(global[index].saturating_sub(start[index]))).collect();
    if held.contains(&0) {
        return;
    }
    // Trailing dimensions that the shard has whole lie contiguous in both.
    let whole = |index: &usize| held[*index] == local[*index] && held[*index] == global[*index];
    let whole_count = (0..global.len()).rev().take_while(whole).count();
    let inner = (global.len() - whole_count).saturating_sub(1);
    let length = held[inner.min(held.len())..].iter().product::<u64>() as usize;
    let mut index = vec![0; inner];
    loop {
        let offset = |shape: &[u64], start: Option<&[u64]>| {
            (0..shape.len()).fold(0, |offset, dimension| {
                let at =
                    index.get(dimension).copied().unwrap_or(0) + start.map_or(0, |start| start[dimension]);
                offset * shape[dimension] + at
            }) as usize
        };
        visit(Stretch { local: offset(&local, None), global: offset(&global, Some(&start)), length });
        let Some(dimension) = (0..inner).rev().find(|&dimension| index[dimension] + 1 < held[dimension])
        else {
            return;
        };
        index[dimension] += 1;
        index[dimension + 1..].fill(0);
    }
}

/// Makes all bytes zero. Fresh memory is zero already and is left alone, so that no pages are taken from the system before
/// whoever computes with them does, on the thread that does.
pub fn clear(bytes: &mut [u8]) {
    const PAGE: usize = 4096;
    for page in bytes.chunks_mut(PAGE) {
        if page.iter().fold(0, |any, byte| any | byte) != 0 {
            page.fill(0);
        }
    }
}

/// Copies a rank's part of a whole tensor into its shard.
pub fn scatter(layout: &Layout, mesh: &Mesh, coordinates: &[u64], whole: &[u8], shard: &mut [u8]) {
    if layout.dimensions.iter().any(|dimension| dimension.padded != dimension.size) {
        clear(shard);
    }
    let width = layout.dtype.bytes() as usize;
    for_each_stretch(layout, mesh, coordinates, |stretch| {
        let from = &whole[stretch.global * width..][..stretch.length * width];
        shard[stretch.local * width..][..stretch.length * width].copy_from_slice(from);
    });
}

/// Copies a rank's shard into its part of the whole tensor.
pub fn gather(layout: &Layout, mesh: &Mesh, coordinates: &[u64], shard: &[u8], whole: &mut [u8]) {
    let width = layout.dtype.bytes() as usize;
    for_each_stretch(layout, mesh, coordinates, |stretch| {
        let from = &shard[stretch.local * width..][..stretch.length * width];
        whole[stretch.global * width..][..stretch.length * width].copy_from_slice(from);
    });
}

/// Whether a rank's shard is the one to read: the first of its replicas.
#[must_use]
pub fn is_first_replica(layout: &Layout, coordinates: &[u64]) -> bool {
    let placed = |axis: usize| layout.placements.iter().any(|placement| placement.axis.index() == axis);
    coordinates.iter().enumerate().all(|(axis, &coordinate)| coordinate == 0 || placed(axis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AxisId, DType, Dimension, MeshAxis, Placement};

    fn mesh(sizes: &[u32]) -> Mesh {
        let axis = |(index, &size): (usize, &u32)| MeshAxis { name: format!("a{index}"), size };
        Mesh { axes: sizes.iter().enumerate().map(axis).collect() }
    }

    /// Scatters numbered elements over the mesh and gathers them again.
    fn round_trip(layout: &Layout, mesh: &Mesh) {
        let elements = layout.global_elements() as u32;
        let whole: Vec<u8> = (0..elements).flat_map(u32::to_le_bytes).collect();
        let mut back = vec![0xee; whole.len()];
        for rank in 0..mesh.ranks() {
            let coordinates = mesh.coordinates(rank);
            let mut shard = vec![0xaa; layout.local_bytes(mesh) as usize];
            scatter(layout, mesh, &coordinates, &whole, &mut shard);
            assert!(!shard.windows(4).any(|bytes| bytes == [0xaa; 4]), "pads are zero");
            if is_first_replica(layout, &coordinates) {
                gather(layout, mesh, &coordinates, &shard, &mut back);
            }
        }
        assert_eq!(back, whole);
    }

    #[test]
    fn shards_put_together_are_the_whole() {
        let mesh = mesh(&[2, 3, 2]);
        let layout = Layout::replicated(DType::U32, &[("a", 6), ("b", 4), ("c", 12)]);
        round_trip(&layout, &mesh);
        let axes = [AxisId(0), AxisId(1), AxisId(2)];
        round_trip(&layout.clone().placed(0, axes[0]), &mesh);
        round_trip(&layout.clone().placed(0, axes[1]).placed(0, axes[2]), &mesh);
        round_trip(&layout.clone().placed(2, axes[1]).placed(1, axes[0]).placed(2, axes[2]), &mesh);
        round_trip(&Layout::replicated(DType::U32, &[]), &mesh);
    }

    #[test]
    fn pads_are_in_shards_only() {
        let mesh = mesh(&[4]);
        for size in [1, 5, 6, 9, 10] {
            let padded = Dimension { name: "v".into(), size, padded: 12 };
            let plain = Dimension::new("d", 3);
            let placements = |dimension| vec![Placement { dimension, axis: AxisId(0) }];
            let outer = vec![padded.clone(), plain.clone()];
            round_trip(&Layout { dtype: DType::U32, dimensions: outer, placements: placements(0) }, &mesh);
            let inner = vec![plain, padded];
            round_trip(&Layout { dtype: DType::U32, dimensions: inner, placements: placements(1) }, &mesh);
        }
    }

    #[test]
    fn the_first_listed_axis_is_the_major_one() {
        let mesh = mesh(&[2, 2]);
        let layout = Layout::replicated(DType::U32, &[("a", 4)]).placed(0, AxisId(1)).placed(0, AxisId(0));
        let starts: Vec<u64> =
            (0..4).map(|rank| layout.local_start(&mesh, &mesh.coordinates(rank))[0]).collect();
        assert_eq!(starts, [0, 2, 1, 3]);
    }
}
