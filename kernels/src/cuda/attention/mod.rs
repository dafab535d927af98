//! Flash attention forward and backward: the launches, and where heads lie in each tensor.
//!
//! In 16 bits, of heads of up to 256 features, products run on the tensor cores, on those of sm_90a four warps together (`wgmma`), on all
//! others each for itself (`mma`), with the same tiles and launches; all else on the ordinary ones. Where tensor maps describe what is read by
//! tiles, a launch for devices of 9.0 alone stands beside that, whose tiles arrive in bulk (TMA).

mod bulk;
mod group;
mod tensor;

use self::tensor::{Tiles, is_for_tensor_cores};
use super::source::{Source, float, linear, stored};
use super::{DeviceArgument, DeviceCall, DeviceLaunch};
use crate::signature::{
    AttentionBackwardSpec, AttentionSpec, Causality, Documents, HeadStrides, InvalidSpec, require,
};

/// Queries, or keys, that a block of threads works on, on the ordinary cores; as in `attention_tiles.cuh`.
const ROWS: usize = 64;
/// Threads of such a block.
const THREADS: u32 = 256;
/// Elements of 16 bits that are copied at once.
const CHUNK: usize = 8;
/// Threads that share a query in `attention_delta.cu`.
const WARP: u64 = 32;
/// A longer window than this hides nothing, and sums with this one stay far from what 64 bits hold.
const LONGEST_WINDOW: u64 = 1 << 60;

const TILES: &str = concat!(include_str!("../tiles.cuh"), "\n", include_str!("../attention_tiles.cuh"));
const HEADS: &str = include_str!("../attention_heads.cuh");
const DOCUMENTS: &str = include_str!("../attention_documents.cuh");
const MARKS: &str = include_str!("../attention_marks.cuh");
const VISIBILITY: &str = include_str!("../attention_visibility.cuh");
const SOFTMAX: &str = include_str!("../attention_softmax.cuh");
const GRADIENT: &str = include_str!("../attention_gradient.cuh");
const QUERY_GRADIENT: &str = include_str!("../attention_query_gradient_tensor.cuh");
const KEY_GRADIENT: &str = include_str!("../attention_key_gradient_tensor.cuh");

/// Global coordinates of the first query and the first key.
const OFFSETS: [DeviceArgument; 2] = [DeviceArgument::Integer(0), DeviceArgument::Integer(1)];

/// Attends: buffers q, k, v, o and lse, and the documents of queries and keys that there are; integers are the global coordinates of the first query and the first key.
///
/// # Errors
/// The descriptor is not valid, or sizes are beyond what a launch can have.
pub fn attention(spec: &AttentionSpec) -> Result<DeviceCall, InvalidSpec> {
    let launch = Attention::of(spec, Vec::new())?.forward()?;
    Ok(DeviceCall { scratch_bytes: 0, launches: launch.into_iter().collect() })
}

/// Differentiates: buffers q, k, v, o, lse, the gradient of o, the gradients of q, k and v, and the documents that there are; integers are the global
/// coordinates of the first query and the first key.
///
/// # Errors
/// The descriptor is not valid, or sizes are beyond what a launch can have.
pub fn attention_backward(spec: &AttentionBackwardSpec) -> Result<DeviceCall, InvalidSpec> {
    spec.check()?;
    let (queries, keys) = (spec.forward.q_len, spec.forward.k_len);
    let gradients = vec![
        Tensor { name: "OGradient", strides: spec.o_gradient, positions: queries },
        Tensor { name: "QGradient", strides: spec.q_gradient, positions: queries },
        Tensor { name: "KGradient", strides: spec.k_gradient, positions: keys },
        Tensor { name: "VGradient", strides: spec.v_gradient, positions: keys },
    ];
    let attention = Attention::of(&spec.forward, gradients)?;
    let launches = [attention.delta(), attention.query_gradient()?, attention.key_gradient()?];
    Ok(DeviceCall {
        scratch_bytes: 4 * (attention.heads() * spec.forward.q_len) as u64,
        launches: launches.into_iter().flatten().collect(),
    })
}

/// An attention and the tensors of a call.
struct Attention<'a> {
    spec: &'a AttentionSpec,
    tensors: Vec<Tensor>,
}

/// Where a tensor of so many positions a head lies.
struct Tensor {
    name: &'static str,
    strides: HeadStrides,
    positions: usize,
}

impl Tensor {
    fn describe(&self, spec: &AttentionSpec) -> String {
        let HeadStrides { batch, sequence, kv_head, group } = self.strides;
        format!(
            "struct {} {{\n    static constexpr long long BATCH_STRIDE = {batch};\n    \
             static constexpr long long SEQUENCE_STRIDE = {sequence};\n    \
             static constexpr long long KV_HEAD_STRIDE = {kv_head};\n    \
             static constexpr long long GROUP_STRIDE = {group};\n    \
             static constexpr bool IS_ALIGNED = {};\n}};\n",
            self.name,
            self.is_aligned(spec),
        )
    }

    /// Whether, in 16 bits, each position starts at a multiple of 16 bytes if the tensor does so itself.
    fn is_aligned(&self, spec: &AttentionSpec) -> bool {
        let HeadStrides { batch, sequence, kv_head, group } = self.strides;
        let loops =
            [(spec.batch, batch), (self.positions, sequence), (spec.kv_heads, kv_head), (spec.group, group)];
        loops.iter().all(|(extent, stride)| *extent <= 1 || stride.unsigned_abs().is_multiple_of(CHUNK))
    }
}

/// How an output's features are divided among blocks, which compute the same scores.
#[derive(Clone, Copy)]
struct Split {
    /// Features of a block.
    features: usize,
    /// Blocks for all of them.
    parts: usize,
}

impl Split {
    fn of(width: usize) -> Split {
        let features = if width <= 64 { 64 } else { 128 };
        Split { features, parts: width.div_ceil(features).max(1) }
    }
}

impl<'a> Attention<'a> {
    fn of(spec: &'a AttentionSpec, gradients: Vec<Tensor>) -> Result<Attention<'a>, InvalidSpec> {
        spec.check()?;
        let most = i32::MAX as usize / 4;
        require(spec.q_len <= most && spec.k_len <= most, "an attention longer than an index holds")?;
        require(spec.head_dim <= most && spec.value_dim <= most, "a head larger than an index holds")?;
        require(spec.head_dim > 0, "an attention of queries without features")?;
        require(spec.scale.is_finite(), "an attention's scale is not finite")?;
        require(spec.softcap.is_none_or(f32::is_finite), "an attention's softcap is not finite")?;
        let mut tensors = vec![
            Tensor { name: "Q", strides: spec.q, positions: spec.q_len },
            Tensor { name: "K", strides: spec.k, positions: spec.k_len },
            Tensor { name: "V", strides: spec.v, positions: spec.k_len },
            Tensor { name: "O", strides: spec.o, positions: spec.q_len },
            Tensor { name: "Lse", strides: spec.lse, positions: spec.q_len },
        ];
        tensors.extend(gradients);
        Ok(Attention { spec, tensors })
    }

    /// Query heads of all sequences.
    fn heads(&self) -> usize {
        self.spec.batch * self.spec.kv_heads * self.spec.group
    }

    /// Blocks of so many queries, of all heads.
    fn query_blocks(&self, rows: usize) -> usize {
        self.heads() * self.spec.q_len.div_ceil(rows)
    }

    /// Blocks of so many keys, of all heads of keys.
    fn key_blocks(&self, rows: usize) -> usize {
        self.spec.batch * self.spec.kv_heads * self.spec.k_len.div_ceil(rows)
    }

    /// What all kernels share.
    fn source(&self) -> Source {
        let spec = self.spec;
        let window = spec.window.filter(|&window| window < LONGEST_WINDOW);
        let source = Source::new()
            .alias("Element", stored(spec.element))
            .factor(spec.element)
            .alias("Half", "Factor")
            .constant("int", "KV_HEADS", spec.kv_heads)
            .constant("int", "GROUP", spec.group)
            .constant("int", "Q_LEN", spec.q_len)
            .constant("int", "K_LEN", spec.k_len)
            .constant("int", "HEAD_DIM", spec.head_dim)
            .constant("int", "VALUE_DIM", spec.value_dim)
            .constant("bool", "CAUSAL", spec.causality == Causality::Causal)
            .constant("bool", "HAS_WINDOW", window.is_some())
            .constant("long long", "WINDOW", window.unwrap_or(0))
            .constant("bool", "HAS_CAP", spec.softcap.is_some())
            .constant("float", "CAP", float(spec.softcap.unwrap_or(1.0)))
            .constant("float", "SCALE", float(spec.scale));
        let described = |source: Source, tensor: &Tensor| source.file(&tensor.describe(spec));
        let source = self.tensors.iter().fold(source, described);
        let Some(Documents { q, k }) = spec.documents else {
            return source.macro_text("PACKED(...)", "").file(HEADS).file(VISIBILITY);
        };
        let documents = [
            Tensor { name: "QDocuments", strides: q, positions: spec.q_len },
            Tensor { name: "KDocuments", strides: k, positions: spec.k_len },
        ];
        let source = documents.iter().fold(source, described).macro_text("PACKED(...)", "__VA_ARGS__");
        source.file(HEADS).file(DOCUMENTS).file(VISIBILITY)
    }

    /// The last arguments of each launch: the offsets, and the documents that there are, which stand behind all other buffers.
    fn last_arguments(&self) -> impl Iterator<Item = DeviceArgument> + use<> {
        let first = self.tensors.len() as u32;
        let count = if self.spec.documents.is_some() { 2 } else { 0 };
        OFFSETS.into_iter().chain((first..first + count).map(DeviceArgument::Pointer))
    }

    /// What all kernels on the tensor cores share.
    fn tiled(&self, tiles: &Tiles) -> Source {
        let source = tiles.describe(self.source());
        if self.spec.documents.is_some() { source.file(MARKS) } else { source }
    }

    /// What all kernels on the ordinary cores share that work on tiles; of an output's features a block makes as many as `split` says.
    fn ordinary(&self, split: Split) -> Source {
        self.source().constant("int", "FEATURES", split.features).file(TILES)
    }

    fn forward(&self) -> Result<Option<DeviceLaunch>, InvalidSpec> {
        let pointers = [0, 1, 2, 3, 4].map(DeviceArgument::Pointer);
        let arguments = pointers.into_iter().chain(self.last_arguments()).collect();
        if is_for_tensor_cores(self.spec) {
            let tiles = Tiles::forward(self.spec);
            let source = self.tiled(&tiles).file(SOFTMAX).file(&group::forward_loop());
            let source = source.file(include_str!("../attention_forward_tensor.cu"));
            let shape = Shape::of(&tiles, self.query_blocks(tiles.rows()));
            let launch = shape.launch("attention_forward_tensor", source, arguments)?;
            return Ok(with_alternative(launch, bulk::forward(self)?));
        }
        let split = Split::of(self.spec.value_dim);
        let source = self.ordinary(split).file(include_str!("../attention_forward.cu"));
        let shape = Shape::ordinary(self.query_blocks(ROWS) * split.parts);
        shape.launch("attention_forward", source, arguments)
    }

    /// Output · gradient of each query into scratch.
    fn delta(&self) -> Option<DeviceLaunch> {
        let queries = (self.heads() * self.spec.q_len) as u64;
        let source = self
            .source()
            .constant("long long", "QUERIES", queries)
            .file(include_str!("../attention_delta.cu"));
        let [o, o_gradient] = [3, 5].map(DeviceArgument::Pointer);
        let arguments = vec![o, o_gradient, DeviceArgument::Scratch(0)];
        (queries > 0).then(|| linear("attention_delta", source, queries * WARP, arguments))
    }

    fn query_gradient(&self) -> Result<Option<DeviceLaunch>, InvalidSpec> {
        let pointers = [0, 1, 2, 4, 5, 6].map(DeviceArgument::Pointer);
        let arguments = pointers.into_iter().chain([DeviceArgument::Scratch(0)]);
        let arguments = arguments.chain(self.last_arguments()).collect();
        if is_for_tensor_cores(self.spec) {
            let tiles = Tiles::query_gradient(self.spec);
            let source = self.tiled(&tiles).file(GRADIENT).file(QUERY_GRADIENT);
            let source = source.file(include_str!("../attention_query_gradient_tensor.cu"));
            let shape = Shape::of(&tiles, self.query_blocks(tiles.rows()));
            let launch = shape.launch("attention_query_gradient_tensor", source, arguments)?;
            return Ok(with_alternative(launch, bulk::query_gradient(self)?));
        }
        let split = Split::of(self.spec.head_dim);
        let source = self.ordinary(split).file(GRADIENT).file(include_str!("../attention_query_gradient.cu"));
        let shape = Shape::ordinary(self.query_blocks(ROWS) * split.parts);
        shape.launch("attention_query_gradient", source, arguments)
    }

    fn key_gradient(&self) -> Result<Option<DeviceLaunch>, InvalidSpec> {
        let pointers = [0, 1, 2, 4, 5, 7, 8].map(DeviceArgument::Pointer);
        let arguments = pointers.into_iter().chain([DeviceArgument::Scratch(0)]);
        let arguments = arguments.chain(self.last_arguments()).collect();
        if is_for_tensor_cores(self.spec) {
            let tiles = Tiles::key_gradient(self.spec);
            let source = self.tiled(&tiles).file(GRADIENT).file(KEY_GRADIENT);
            let source = source.file(include_str!("../attention_key_gradient_tensor.cu"));
            let shape = Shape::of(&tiles, self.key_blocks(tiles.rows()) * tiles.parts);
            let launch = shape.launch("attention_key_gradient_tensor", source, arguments)?;
            return Ok(with_alternative(launch, bulk::key_gradient(self)?));
        }
        let split = Split::of(self.spec.head_dim.max(self.spec.value_dim));
        let source = self.ordinary(split).file(GRADIENT).file(include_str!("../attention_key_gradient.cu"));
        let shape = Shape::ordinary(self.key_blocks(ROWS) * split.parts);
        shape.launch("attention_key_gradient", source, arguments)
    }
}

/// A launch with one for devices of 9.0 in its place.
fn with_alternative(launch: Option<DeviceLaunch>, alternative: Option<DeviceLaunch>) -> Option<DeviceLaunch> {
    launch.map(|launch| DeviceLaunch { alternative: alternative.map(Box::new), ..launch })
}

/// The sizes of a launch.
struct Shape {
    blocks: usize,
    threads: u32,
    shared_bytes: usize,
}

impl Shape {
    /// Of a kernel on the ordinary cores.
    fn ordinary(blocks: usize) -> Shape {
        Shape { blocks, threads: THREADS, shared_bytes: 0 }
    }

    /// Of a kernel on the tensor cores.
    fn of(tiles: &Tiles, blocks: usize) -> Shape {
        Shape { blocks, threads: tiles.threads(), shared_bytes: tiles.shared_bytes() }
    }

    /// A launch of so many blocks, if there are any.
    fn launch(
        &self,
        stem: &str,
        source: Source,
        arguments: Vec<DeviceArgument>,
    ) -> Result<Option<DeviceLaunch>, InvalidSpec> {
        require(self.blocks <= i32::MAX as usize, "an attention of more blocks than a launch has")?;
        if self.blocks == 0 {
            return Ok(None);
        }
        let (name, source) = source.finish(stem);
        let (grid, block) = ([self.blocks as u32, 1, 1], [self.threads, 1, 1]);
        let shared_bytes = self.shared_bytes as u32;
        Ok(Some(DeviceLaunch { name, source, grid, block, shared_bytes, arguments, alternative: None }))
    }
}
