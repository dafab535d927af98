//! Attention on the tensor cores of compute capability 9.0 whose tiles arrive in bulk: where tensor maps describe queries, keys and values, the
//! forward launch that takes the place of the one for every device. More queries share the keys of a block, and a step has more keys, since there
//! is room for them.

use super::group::GROUP_LOOP;
use super::tensor::Tiles;
use super::{Attention, OFFSETS, SOFTMAX, Shape};
use crate::cuda::mapped::MappedRows;
use crate::cuda::{DeviceArgument, DeviceLaunch};
use crate::signature::InvalidSpec;

/// Threads of the four warps of which one brings tiles; together they leave registers to the others.
const BRINGING_THREADS: u32 = 128;

/// The forward launch in place of the one for every device, where there can be one.
pub(super) fn forward(attention: &Attention<'_>) -> Result<Option<DeviceLaunch>, InvalidSpec> {
    let spec = attention.spec;
    let tiles = Tiles::forward_in_bulk(spec);
    let (rows, columns) = (tiles.rows(), tiles.columns());
    let described = [(spec.head_dim, rows), (spec.head_dim, columns), (spec.value_dim, columns)];
    let mapped = (0..)
        .zip(described)
        .map(|(tensor, (features, box_rows))| attention.mapped(tensor, features, box_rows));
    let Some(mapped) = mapped.collect::<Option<Vec<_>>>() else { return Ok(None) };
    let strides = ["Q_HEAD_STRIDE", "K_HEAD_STRIDE", "V_HEAD_STRIDE"].into_iter().zip(&mapped);
    let source = strides
        .fold(tiles.describe(attention.source()), |source, (name, tensor)| {
            source.constant("long long", name, tensor.place_stride)
        })
        .file(SOFTMAX)
        .file(GROUP_LOOP)
        .file(include_str!("../bulk.cuh"))
        .file(include_str!("../attention_forward_bulk.cu"));
    let shape = Shape {
        threads: tiles.threads() + BRINGING_THREADS,
        ..Shape::of(&tiles, attention.query_blocks(rows))
    };
    let maps = mapped.iter().map(|tensor| DeviceArgument::Map(tensor.map));
    let outputs = [3, 4].map(DeviceArgument::Pointer);
    shape.launch("attention_forward_bulk", source, maps.chain(outputs).chain(OFFSETS).collect())
}

impl Attention<'_> {
    /// The tensor of this number, and of so many features, in boxes of so many positions.
    fn mapped(&self, number: u32, features: usize, box_rows: usize) -> Option<MappedRows> {
        let spec = self.spec;
        let tensor = &self.tensors[number as usize];
        let strides = tensor.strides;
        let heads =
            [(spec.batch, strides.batch), (spec.kv_heads, strides.kv_head), (spec.group, strides.group)];
        MappedRows::new(number, (features, 1), (tensor.positions, strides.sequence), &heads, box_rows)
    }
}
