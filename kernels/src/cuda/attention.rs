//! Flash attention forward and backward: the launches, and where heads lie in each tensor.

use super::source::{Source, float, linear, stored};
use super::{DeviceArgument, DeviceCall, DeviceLaunch};
use crate::signature::{AttentionBackwardSpec, AttentionSpec, Causality, HeadStrides, InvalidSpec, require};

/// Queries, or keys, that a block of threads works on; as in `attention_tiles.cuh`.
const ROWS: usize = 64;
/// Threads of such a block.
const THREADS: u32 = 256;
/// Threads that share a query in `attention_delta.cu`.
const WARP: u64 = 32;
/// A longer window than this hides nothing, and sums with this one stay far from what 64 bits hold.
const LONGEST_WINDOW: u64 = 1 << 60;

const TILES: &str = concat!(include_str!("tiles.cuh"), "\n", include_str!("attention_tiles.cuh"));
const GRADIENT: &str = include_str!("attention_gradient.cuh");

/// Global coordinates of the first query and the first key.
const OFFSETS: [DeviceArgument; 2] = [DeviceArgument::Integer(0), DeviceArgument::Integer(1)];

/// Attends: buffers q, k, v, o and lse; integers are the global coordinates of the first query and the first key.
///
/// # Errors
/// The descriptor is not valid, or sizes are beyond what a launch can have.
pub fn attention(spec: &AttentionSpec) -> Result<DeviceCall, InvalidSpec> {
    let attention = Attention::of(spec, Vec::new())?;
    let split = Split::of(spec.value_dim);
    let blocks = attention.heads() * spec.q_len.div_ceil(ROWS) * split.parts;
    let pointers = [0, 1, 2, 3, 4].map(DeviceArgument::Pointer);
    let source = attention.source(split).file(TILES).file(include_str!("attention_forward.cu"));
    let launch = blocked("attention_forward", source, blocks, pointers.into_iter().chain(OFFSETS))?;
    Ok(DeviceCall { scratch_bytes: 0, launches: launch.into_iter().collect() })
}

/// Differentiates: buffers q, k, v, o, lse, the gradient of o, and the gradients of q, k and v; integers are the global
/// coordinates of the first query and the first key.
///
/// # Errors
/// The descriptor is not valid, or sizes are beyond what a launch can have.
pub fn attention_backward(spec: &AttentionBackwardSpec) -> Result<DeviceCall, InvalidSpec> {
    spec.check()?;
    let gradients = vec![
        ("OGradient", spec.o_gradient),
        ("QGradient", spec.q_gradient),
        ("KGradient", spec.k_gradient),
        ("VGradient", spec.v_gradient),
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
    tensors: Vec<(&'static str, HeadStrides)>,
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
    fn of(
        spec: &'a AttentionSpec,
        gradients: Vec<(&'static str, HeadStrides)>,
    ) -> Result<Attention<'a>, InvalidSpec> {
        spec.check()?;
        let most = i32::MAX as usize / 4;
        require(spec.q_len <= most && spec.k_len <= most, "an attention longer than an index holds")?;
        require(spec.head_dim <= most && spec.value_dim <= most, "a head larger than an index holds")?;
        require(spec.head_dim > 0, "an attention of queries without features")?;
        require(spec.scale.is_finite(), "an attention's scale is not finite")?;
        require(spec.softcap.is_none_or(f32::is_finite), "an attention's softcap is not finite")?;
        let mut tensors = vec![("Q", spec.q), ("K", spec.k), ("V", spec.v), ("O", spec.o), ("Lse", spec.lse)];
        tensors.extend(gradients);
        Ok(Attention { spec, tensors })
    }

    /// Query heads of all sequences.
    fn heads(&self) -> usize {
        self.spec.batch * self.spec.kv_heads * self.spec.group
    }

    /// What all kernels share; of an output's features a block makes as many as `split` says.
    fn source(&self, split: Split) -> Source {
        let spec = self.spec;
        let window = spec.window.filter(|&window| window < LONGEST_WINDOW);
        let source = Source::new()
            .alias("Element", stored(spec.element))
            .constant("int", "KV_HEADS", spec.kv_heads)
            .constant("int", "GROUP", spec.group)
            .constant("int", "Q_LEN", spec.q_len)
            .constant("int", "K_LEN", spec.k_len)
            .constant("int", "HEAD_DIM", spec.head_dim)
            .constant("int", "VALUE_DIM", spec.value_dim)
            .constant("int", "FEATURES", split.features)
            .constant("bool", "CAUSAL", spec.causality == Causality::Causal)
            .constant("bool", "HAS_WINDOW", window.is_some())
            .constant("long long", "WINDOW", window.unwrap_or(0))
            .constant("bool", "HAS_CAP", spec.softcap.is_some())
            .constant("float", "CAP", float(spec.softcap.unwrap_or(1.0)))
            .constant("float", "SCALE", float(spec.scale));
        let described = |source: Source, (name, strides): &(&str, HeadStrides)| {
            source.file(&format!(
                "struct {name} {{\n    static constexpr long long BATCH_STRIDE = {};\n    \
                 static constexpr long long SEQUENCE_STRIDE = {};\n    \
                 static constexpr long long KV_HEAD_STRIDE = {};\n    \
                 static constexpr long long GROUP_STRIDE = {};\n}};\n",
                strides.batch, strides.sequence, strides.kv_head, strides.group
            ))
        };
        self.tensors.iter().fold(source, described).file(include_str!("attention_heads.cuh"))
    }

    /// Output · gradient of each query into scratch.
    fn delta(&self) -> Option<DeviceLaunch> {
        let queries = (self.heads() * self.spec.q_len) as u64;
        let source = self
            .source(Split::of(self.spec.value_dim))
            .constant("long long", "QUERIES", queries)
            .file(include_str!("attention_delta.cu"));
        let [o, o_gradient] = [3, 5].map(DeviceArgument::Pointer);
        let arguments = vec![o, o_gradient, DeviceArgument::Scratch(0)];
        (queries > 0).then(|| linear("attention_delta", source, queries * WARP, arguments))
    }

    fn query_gradient(&self) -> Result<Option<DeviceLaunch>, InvalidSpec> {
        let split = Split::of(self.spec.head_dim);
        let blocks = self.heads() * self.spec.q_len.div_ceil(ROWS) * split.parts;
        let source =
            self.source(split).file(TILES).file(GRADIENT).file(include_str!("attention_query_gradient.cu"));
        let pointers = [0, 1, 2, 4, 5, 6].map(DeviceArgument::Pointer);
        let arguments = pointers.into_iter().chain([DeviceArgument::Scratch(0)]).chain(OFFSETS);
        blocked("attention_query_gradient", source, blocks, arguments)
    }

    fn key_gradient(&self) -> Result<Option<DeviceLaunch>, InvalidSpec> {
        let spec = self.spec;
        let split = Split::of(spec.head_dim.max(spec.value_dim));
        let blocks = spec.batch * spec.kv_heads * spec.k_len.div_ceil(ROWS) * split.parts;
        let source =
            self.source(split).file(TILES).file(GRADIENT).file(include_str!("attention_key_gradient.cu"));
        let pointers = [0, 1, 2, 4, 5, 7, 8].map(DeviceArgument::Pointer);
        let arguments = pointers.into_iter().chain([DeviceArgument::Scratch(0)]).chain(OFFSETS);
        blocked("attention_key_gradient", source, blocks, arguments)
    }
}

/// A launch of so many blocks, if there are any.
fn blocked(
    stem: &str,
    source: Source,
    blocks: usize,
    arguments: impl Iterator<Item = DeviceArgument>,
) -> Result<Option<DeviceLaunch>, InvalidSpec> {
    require(blocks <= i32::MAX as usize, "an attention of more blocks than a launch has")?;
    if blocks == 0 {
        return Ok(None);
    }
    let (name, source) = source.finish(stem);
    let (grid, block) = ([blocks as u32, 1, 1], [THREADS, 1, 1]);
    let arguments = arguments.collect();
    Ok(Some(DeviceLaunch { name, source, grid, block, shared_bytes: 0, arguments }))
}
