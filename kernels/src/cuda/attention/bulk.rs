//! Attention on the tensor cores of compute capability 9.0 whose tiles arrive in bulk: where tensor maps describe what is read by tiles, the launch
//! that takes the place of the one for every device. More rows share the columns of a block, and more columns are under way or in a step, since
//! there is room for them.

use super::group::GROUP_LOOP;
use super::tensor::Tiles;
use super::{Attention, GRADIENT, KEY_GRADIENT, QUERY_GRADIENT, SOFTMAX, Shape};
use crate::cuda::mapped::MappedRows;
use crate::cuda::source::Source;
use crate::cuda::{DeviceArgument, DeviceLaunch};
use crate::signature::InvalidSpec;

/// Threads of the four warps of which one brings tiles, as in `attention_bulk.cuh`; together they leave registers to the others.
const BRINGING_THREADS: u32 = 128;
const BULK: &str = concat!(include_str!("../bulk.cuh"), "\n", include_str!("../attention_bulk.cuh"));

/// What stays in a block's shared memory or comes through it.
#[derive(Clone, Copy)]
enum Lines {
    Rows,
    Columns,
}

/// The forward launch in place of the one for every device, where there can be one.
pub(super) fn forward(attention: &Attention<'_>) -> Result<Option<DeviceLaunch>, InvalidSpec> {
    let spec = attention.spec;
    let launch = Launch {
        attention,
        tiles: Tiles::forward_in_bulk(spec),
        read: vec![
            (0, spec.head_dim, Lines::Rows),
            (1, spec.head_dim, Lines::Columns),
            (2, spec.value_dim, Lines::Columns),
        ],
    };
    let source = |source: Source| {
        let source = source.file(SOFTMAX).file(GROUP_LOOP).file(BULK);
        source.file(include_str!("../attention_forward_bulk.cu"))
    };
    let outputs = [3, 4].map(DeviceArgument::Pointer);
    let blocks = attention.query_blocks(launch.tiles.rows());
    launch.finish("attention_forward_bulk", source, blocks, &outputs)
}

/// The same for the gradient of queries.
pub(super) fn query_gradient(attention: &Attention<'_>) -> Result<Option<DeviceLaunch>, InvalidSpec> {
    let spec = attention.spec;
    let launch = Launch {
        attention,
        tiles: Tiles::query_gradient_in_bulk(spec),
        read: vec![
            (0, spec.head_dim, Lines::Rows),
            (1, spec.head_dim, Lines::Columns),
            (2, spec.value_dim, Lines::Columns),
            (5, spec.value_dim, Lines::Rows),
        ],
    };
    let source = |source: Source| {
        let source = source.file(GRADIENT).file(QUERY_GRADIENT).file(BULK);
        source.file(include_str!("../attention_query_gradient_bulk.cu"))
    };
    let rest = [DeviceArgument::Pointer(4), DeviceArgument::Pointer(6), DeviceArgument::Scratch(0)];
    let blocks = attention.query_blocks(launch.tiles.rows());
    launch.finish("attention_query_gradient_bulk", source, blocks, &rest)
}

/// The same for the gradients of keys and values.
pub(super) fn key_gradient(attention: &Attention<'_>) -> Result<Option<DeviceLaunch>, InvalidSpec> {
    let spec = attention.spec;
    let Some(tiles) = Tiles::key_gradient_in_bulk(spec) else { return Ok(None) };
    let blocks = attention.key_blocks(tiles.rows()) * tiles.parts;
    let launch = Launch {
        attention,
        tiles,
        read: vec![
            (0, spec.head_dim, Lines::Columns),
            (1, spec.head_dim, Lines::Rows),
            (2, spec.value_dim, Lines::Rows),
            (5, spec.value_dim, Lines::Columns),
        ],
    };
    let source = |source: Source| {
        let source = source.file(GRADIENT).file(KEY_GRADIENT).file(BULK);
        source.file(include_str!("../attention_key_gradient_bulk.cu"))
    };
    let [lse, keys, values] = [4, 7, 8].map(DeviceArgument::Pointer);
    launch.finish(
        "attention_key_gradient_bulk",
        source,
        blocks,
        &[lse, keys, values, DeviceArgument::Scratch(0)],
    )
}

/// A launch in the making.
struct Launch<'a> {
    attention: &'a Attention<'a>,
    tiles: Tiles,
    /// The tensors that are read by tiles: their numbers, their features, and as what.
    read: Vec<(u32, usize, Lines)>,
}

impl Launch<'_> {
    /// The launch, where maps describe what it reads: of the maps, other arguments, and the offsets. `files` says what comes behind the tiles.
    fn finish(
        &self,
        stem: &str,
        files: impl FnOnce(Source) -> Source,
        blocks: usize,
        others: &[DeviceArgument],
    ) -> Result<Option<DeviceLaunch>, InvalidSpec> {
        let Launch { attention, tiles, read } = self;
        let mut source = attention.tiled(tiles);
        let mut arguments = Vec::new();
        for &(number, features, lines) in read {
            let positions = match lines {
                Lines::Rows => tiles.rows(),
                Lines::Columns => tiles.columns(),
            };
            let Some(mapped) = attention.mapped(number, features, positions) else { return Ok(None) };
            let name = attention.tensors[number as usize].name.to_uppercase();
            source = source.constant("long long", &format!("{name}_HEAD_STRIDE"), mapped.place_stride);
            arguments.push(DeviceArgument::Map(mapped.map));
        }
        arguments.extend(others.iter().copied().chain(attention.last_arguments()));
        let shape = Shape { threads: tiles.threads() + BRINGING_THREADS, ..Shape::of(tiles, blocks) };
        shape.launch(stem, files(source), arguments)
    }
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
